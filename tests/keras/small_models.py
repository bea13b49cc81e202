"""Small models, samplers and comparisons that tests share."""

import dataclasses
import functools

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

CROSSENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
BINARY_CROSSENTROPY = keras.losses.BinaryCrossentropy(from_logits=True)


def standard_normal():
    """Returns a prior; made at import, it would start TensorFlow before devices are configured."""
    return tfp.distributions.Normal(0.0, 1.0)


def unit_normal(y, f):
    return 0.5 * tf.square(y - f)


@keras.saving.register_keras_serializable("tests")
def heteroscedastic_normal(out):
    return tfp.distributions.Normal(out[..., :1], tf.nn.softplus(out[..., 1:]))


def sequential(*layers, loss=CROSSENTROPY, inputs=3, **compiled):
    """Returns a compiled model, which runs eagerly unless `compiled` has arguments."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input([inputs]), *layers])
    model.compile(loss=loss, **(compiled or {"run_eagerly": True}))
    return model


def linear(loss=CROSSENTROPY, units=4, activation=None, use_bias=False, **arguments):
    keras.utils.set_random_seed(1)  # layers without a seed draw one
    dense = keras.layers.Dense(units, activation, use_bias=use_bias)
    return sequential(dense, loss=loss, **arguments)


affine = functools.partial(linear, use_bias=True)


def sgld(step_size=1e-3, temperature=1.0, **arguments):
    return lambda target: sgmcmc.SGLD(target, step_size, temperature, **arguments)


def sampler(make_kernel_fn, num_examples, prior=None, **arguments):
    """Returns a callback that keeps every state, unless `arguments` say otherwise.

    These may be fields of `Collect`, `Chains` and `Directory` (its path as `directory`).
    """
    arguments = {"num_burnin_steps": 0, "num_steps_between_results": 0, "seed": 0, **arguments}

    def taken(kind):
        names = [field.name for field in dataclasses.fields(kind)]
        return {name: arguments.pop(name) for name in names if name in arguments}

    groups = {"collect": sgmcmc.keras.Collect(**taken(sgmcmc.keras.Collect))}
    chains, place = taken(sgmcmc.keras.Chains), taken(sgmcmc.Directory)
    if chains.get("num_chains") is not None:
        groups["chains"] = sgmcmc.keras.Chains(**chains)
    path = arguments.pop("directory", None)
    if path is not None or place:
        output = sgmcmc.Directory("." if path is None else path, **place)
        groups["output"] = output if path is not None else None
    return sgmcmc.keras.SamplerCallback(
        make_kernel_fn, prior=prior, num_examples=num_examples, **groups, **arguments
    )


def fit(model, callback, x, y, **arguments):
    """Samples with the examples in their order, and returns the logs."""
    return model.fit(x, y, shuffle=False, verbose=0, callbacks=[callback], **arguments).history


def posterior_of(model, samples, num_chains=None):
    return sgmcmc.keras.Posterior(model, model.trainable_variables, samples, num_chains)


def assert_equal(some, others):
    for a, b in zip(some, others, strict=True):
        np.testing.assert_array_equal(a, b)


def assert_close(some, others, rtol=1e-5, atol=1e-6):
    for a, b in zip(some, others, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)
