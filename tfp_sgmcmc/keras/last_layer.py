"""Laplace's approximation of the posterior of a network's last layer."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal.checks import a_type, integer
from tfp_sgmcmc.keras.model import compiled_loss, internals
from tfp_sgmcmc.keras.model.priors import as_log_prior
from tfp_sgmcmc.keras.posterior.batches import check_arrays, check_numbers, checked_inputs, num_rows
from tfp_sgmcmc.keras.posterior.posterior import Posterior
from tfp_sgmcmc.targets import MinibatchLogProb, find_center
from tfp_sgmcmc.targets.base import ExpansionError

_ROWS = 500  # whose scores give the units of the search for the mode
_TOLERANCE = 0.01  # of the mode, in standard deviations of the posterior


def last_layer_laplace(
    model: keras.Model,
    x: Any,
    y: Any,
    prior: Any,
    *,
    num_samples: int = 30,
    seed: Any = None,
    batch_size: int = 500,
) -> Posterior:
    r"""Returns draws of the weights of the last `Dense` layer by Laplace's approximation.

    \[
    \theta_L \sim N(\hat\theta_L, (-H)^{-1}), \qquad
    H = \nabla^2 \Big( \log p(\theta_L) - \sum_{i=1}^N \ell(y_i, f_{\theta_L}(\phi_i)) \Big)
    \]

    at the mode \( \hat\theta_L \), with \( \phi_i \) the inputs of the last layer, which all other
    weights determine, as they are. The mode is found first (`sgmcmc.find_center`), because training
    rarely ends there. For a crossentropy, and a normal, Poisson or other likelihood with its
    canonical link, H is the generalised Gauss-Newton matrix, since the outputs (before a softmax or
    sigmoid) are linear in the weights. It is exact up to 4096 weights, and low rank plus diagonal
    beyond. The model stays as it is.

    Spread comes from the last layer alone, so the draws are a baseline of a posterior of all
    weights, for the cost of one pass over the data and a regression.

    Examples:
      >>> import keras, numpy as np, tensorflow_probability as tfp
      >>> import tfp_sgmcmc as sgmcmc
      >>> x = np.random.default_rng(0).normal(size=[200, 2]).astype(np.float32)
      >>> y = (x[:, 0] > x[:, 1]).astype(int)
      >>> model = keras.Sequential([
      ...     keras.Input([2]), keras.layers.Dense(5, "tanh"), keras.layers.Dense(2)])
      >>> model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
      >>> _ = model.fit(x, y, epochs=2, verbose=0)
      >>> posterior = sgmcmc.keras.last_layer_laplace(
      ...     model, x, y, tfp.distributions.Normal(0., 1.), seed=0)
      >>> [s.shape for s in posterior.samples]
      [(30, 5, 2), (30, 2)]
      >>> posterior.evaluate(x, y).accuracy > 0.9
      True

    Args:
      model: a Functional or Sequential model with one output, which comes from a trainable `Dense`
        layer. It is compiled with a negative log likelihood, as for `SamplerCallback`. Its dropout
        is off, and BatchNormalization takes its moving statistics.
      x: inputs, a nest of arrays `[N, ...]`.
      y: targets, an array `[N, ...]`.
      prior: as in `SamplerCallback`. The prior of other layers' weights makes no difference.
      num_samples: the number of draws.
      seed: one or two integers. None draws one, which `keras.utils.set_random_seed` determines.
      batch_size: rows that are evaluated at once.

    Returns:
      The draws as a `Posterior` of the last layer's variables.

    Raises:
      ValueError: the model is of another form or not compiled with a likelihood, a part of its last
        layer is frozen or adapted by LoRA, or a number is out of range. The log posterior is not
        strictly curved at the mode, as with a flat prior of a softmax.
      TypeError: an argument is of another type.

    References:
      E. Daxberger, A. Kristiadi, A. Immer, R. Eschenhagen, M. Bauer and P. Hennig. Laplace redux:
      effortless Bayesian deep learning. NeurIPS, 2021.
    """
    internals.check_built(model)
    compiled_loss.check_likelihoods(model)
    layer, outputs = _last_layer(model)
    if layer.activity_regularizer is not None:
        raise ValueError(
            f"The last layer, {layer.name!r}, must have no activity_regularizer, which is no prior "
            f"of its weights. Received: {layer.activity_regularizer!r}."
        )
    checked_inputs(model, x)
    check_arrays("y", y)
    check_numbers(y)
    (y,) = keras.tree.flatten(y)  # the only output may have a name
    total, y = num_rows((x, y)), np.asarray(y)
    integer("num_samples", num_samples, 1)
    integer("batch_size", batch_size, 1)
    seed = random.as_seed(random.fresh_seed() if seed is None else seed)
    compiled_loss.build(model, *keras.tree.map_structure(lambda a: a[:1], (x, y)), None)
    values = [keras.ops.convert_to_tensor(v) for v in model.trainable_variables]
    numbers = {id(v): i for i, v in enumerate(model.trainable_variables)}
    places = [numbers[id(v)] for v in layer.trainable_variables]
    log_prior = as_log_prior(prior, model)

    def log_prior_fn(*state: tf.Tensor) -> tf.Tensor:
        if state[0].shape.rank > 2:  # several states
            return tf.vectorized_map(lambda one: log_prior_fn(*one), list(state))
        everything = list(values)
        for place, part in zip(places, state, strict=True):
            everything[place] = part
        penalty = sum(
            v.regularizer(part)
            for v, part in zip(layer.trainable_variables, state, strict=True)
            if v.regularizer is not None
        )
        return log_prior(everything) - total * penalty

    def log_likelihood_fn(*state_and_batch: Any) -> tf.Tensor:
        *state, (inputs, labels) = state_and_batch
        found = tf.matmul(inputs, state[0])
        if layer.use_bias:
            found += state[1][..., tf.newaxis, :]
        lead = tf.shape(found)[:-1]  # chains and rows, which the loss takes for rows
        entries = tf.shape(labels)[len(labels.shape) - len(y.shape) + 1 :]
        labels = tf.reshape(
            tf.broadcast_to(labels, tf.concat([lead, entries], 0)), [-1, *y.shape[1:]]
        )
        found = layer.activation(tf.reshape(found, [-1, found.shape[-1]]))
        packed = keras.tree.pack_sequence_as(outputs, [found])
        each = compiled_loss.negative_log_likelihoods(model, labels, packed)
        return -tf.cast(tf.reshape(each, lead), state[0].dtype)

    features = keras.Model(model.inputs, layer.input).predict(x, batch_size, verbose=0)
    features = features.astype(layer.kernel.dtype)  # it may be of half precision
    if features.ndim != 2:
        raise ValueError(
            f"The inputs of the last layer, {layer.name!r}, must have shape [rows, features]. "
            f"Received: shape {[*features.shape]}."
        )
    target = MinibatchLogProb(log_prior_fn, log_likelihood_fn, (features, y), min(total, _ROWS))
    try:
        _, report = find_center(
            target, [values[i] for i in places], tolerance=_TOLERANCE, seed=random.fold_in(seed, 0)
        )
        draws = report.laplace.sample(num_samples, seed=random.fold_in(seed, 1))
    except ExpansionError as error:
        raise ValueError(
            "prior must make the log posterior strictly curved at its mode, as a normal does. "
            f"Received: prior={prior}, which leaves a Hessian that is not negative definite."
        ) from error
    return Posterior(model, layer.trainable_variables, [d.numpy() for d in draws])


def _last_layer(model: keras.Model) -> tuple[keras.layers.Dense, Any]:
    """Returns the layer of a model's only output, and the nest of its symbolic outputs."""
    outputs = internals.symbolic_outputs(model)
    flat = [] if outputs is None else keras.tree.flatten(outputs)
    if len(flat) != 1:
        raise ValueError(
            "model must be Functional or Sequential with one output. Received: "
            f"{a_type(model)} with {len(flat) or 'unknown'} outputs."
        )
    layer = internals.layer_of(flat[0])
    if not isinstance(layer, keras.layers.Dense) or not layer.trainable:
        is_frozen = isinstance(layer, keras.layers.Dense)
        raise ValueError(
            "The model's output must come from a trainable Dense layer. Received: one from "
            f"{getattr(layer, 'name', layer)!r}, {a_type(layer)}"
            + (" with trainable=False." if is_frozen else ". Give the activation to a Dense layer.")
        )
    weights = [layer.kernel, layer.bias] if layer.use_bias else [layer.kernel]
    if [id(v) for v in layer.trainable_variables] != [id(v) for v in weights]:
        raise ValueError(
            f"The last layer, {layer.name!r}, must have a trainable kernel and bias, whose "
            "posterior is approximated. Received: trainable "
            f"{[v.name for v in layer.trainable_variables]}, as by LoRA, quantization or a frozen "
            "kernel. Sample those by SamplerCallback, or set the variables' trainable to True."
        )
    return layer, outputs
