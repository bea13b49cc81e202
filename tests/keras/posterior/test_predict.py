"""The posterior predictive, and layers that behave differently in training."""

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tests.keras.small_models import CROSSENTROPY, affine, sequential, sgld, unit_normal
from tfp_sgmcmc.keras.model import internals

N = 30
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, 3]).astype(np.float32)
Y = RNG.integers(0, 4, size=[N])
NEW = RNG.normal(size=[7, 3]).astype(np.float32)


def sample(model, x=X, y=Y, kernel=None, burnin=2, batch_size=10):
    callback = small_models.sampler(kernel or sgld(1e-2), N, num_burnin_steps=burnin)
    small_models.fit(model, callback, x, y, batch_size=batch_size, epochs=2)
    return callback


def check(prediction, outputs):
    """Compares a prediction with `outputs`, whose first axis is that of the samples."""
    np.testing.assert_allclose(prediction.mean, outputs.mean(axis=0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        prediction.standard_deviation, outputs.std(axis=0), rtol=1e-3, atol=1e-6
    )
    assert outputs.std(axis=0).min() > 0


def logits(callback, x=NEW):
    kernel, bias = callback.samples
    return x @ kernel + bias[:, None]


CROSSENTROPIES = {
    "sparse": (keras.losses.SparseCategoricalCrossentropy, Y, scipy.special.softmax),
    "categorical": (keras.losses.CategoricalCrossentropy, np.eye(4)[Y], scipy.special.softmax),
    "binary": (keras.losses.BinaryCrossentropy, np.eye(4)[Y], None),
}


@pytest.mark.parametrize(
    "name",
    ["sparse", *(pytest.param(x, marks=pytest.mark.thorough) for x in ("categorical", "binary"))],
)
def test_probabilities_are_averaged_not_logits(name):
    loss, y, softmax = CROSSENTROPIES[name]
    callback = sample(affine(loss(from_logits=True)), y=y)
    f = logits(callback)
    check(callback.predict(NEW), softmax(f, axis=-1) if softmax else scipy.special.expit(f))
    check(callback.predict(NEW, activation=None), f)
    check(callback.predict(NEW, activation=tf.square), f**2)


@pytest.mark.thorough
def test_probabilities_are_not_activated_again():
    callback = sample(affine("sparse_categorical_crossentropy", activation="softmax"))
    check(callback.predict(NEW), scipy.special.softmax(logits(callback), axis=-1))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param({"jit_compile": True}, marks=pytest.mark.thorough),
        {"run_eagerly": True},
        pytest.param({"jit_compile": False}, marks=pytest.mark.slow),
    ],
)
def test_modes_and_batches(mode, monkeypatch):
    """Rows and samples come in several pieces, of which the last is shorter."""
    monkeypatch.setattr("tfp_sgmcmc.keras.posterior.sample_loops._CHUNK_BYTES", 3 * 16 * 4)
    callback = sample(affine(unit_normal, **mode), y=np.eye(4)[Y])
    assert len(callback.samples[0]) == 4
    check(callback.predict(NEW, batch_size=3), logits(callback))
    check(callback.predict(NEW[:1], batch_size=3), logits(callback, NEW[:1]))


@pytest.mark.thorough
def test_one_sample_has_no_spread():
    callback = sample(affine(unit_normal), y=np.eye(4)[Y], burnin=5)
    assert np.all(callback.predict(NEW).standard_deviation == 0)


@pytest.mark.thorough
def test_several_inputs_and_outputs():
    keras.utils.set_random_seed(1)
    inputs = {"a": keras.Input([3], name="a"), "b": keras.Input([3], name="b")}
    outputs = {
        "kind": keras.layers.Dense(4, use_bias=False, name="kind")(inputs["a"]),
        "value": keras.layers.Dense(1, use_bias=False, name="value")(inputs["b"]),
    }
    model = keras.Model(inputs, outputs)
    model.compile(loss={"kind": CROSSENTROPY, "value": unit_normal}, run_eagerly=True)
    callback = sample(model, x={"a": X, "b": 2 * X}, y={"kind": Y, "value": X[:, :1]})
    prediction = callback.predict({"a": NEW, "b": NEW + 1})
    kernels = dict(zip([v.path for v in model.trainable_variables], callback.samples, strict=True))
    for name, x, activation in [
        ("kind", NEW, lambda f: scipy.special.softmax(f, axis=-1)),
        ("value", NEW + 1, lambda f: f),
    ]:
        part = sgmcmc.keras.Prediction(prediction.mean[name], prediction.standard_deviation[name])
        check(part, activation(x @ kernels[f"{name}/kernel"]))


def test_batch_normalization_predicts_by_the_sample_s_own_statistics():
    momentum = 0.7
    norm = keras.layers.BatchNormalization(momentum=momentum, epsilon=1e-3)
    model = sequential(norm, keras.layers.Dense(1), loss=unit_normal)
    callback = sample(model, y=X[:, :1], burnin=0)
    gamma, beta, kernel, bias = (s[:, None] for s in callback.samples)
    means, variances = callback.result.non_trainable_samples.values()
    assert len(means) == 6 and np.abs(np.diff(means, axis=0)).min() > 0
    mean = np.zeros(3)
    for t in range(6):  # sample t has the statistics after t + 1 batches
        batch = X[(10 * t) % N :][:10]
        mean = momentum * mean + (1 - momentum) * batch.mean(axis=0)
        np.testing.assert_allclose(means[t], mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(norm.moving_mean, means[-1])
    normed = (NEW - means[:, None]) / np.sqrt(variances[:, None] + 1e-3) * gamma + beta
    check(callback.predict(NEW), normed @ kernel[:, 0] + bias)


@pytest.mark.parametrize(
    "mode", [pytest.param({"jit_compile": True}, marks=pytest.mark.slow), {"run_eagerly": True}]
)
def test_dropout_is_active_while_sampling_and_off_in_predict(mode):
    """With a linear loss, the kernel's gradient shows which inputs the batch's mask let through."""
    x = np.ones([N, 3], np.float32)
    model = sequential(
        keras.layers.Dropout(0.5, seed=1),
        keras.layers.Dense(1, use_bias=False),
        loss=lambda y, f: f,
        **mode,
    )
    initial = model.get_weights()[0]
    callback = sample(model, x, Y, sgld(2 / N, temperature=0.0), burnin=0, batch_size=15)
    (kernels,) = callback.samples
    moves = -np.diff(np.concatenate([[initial], kernels]), axis=0)[..., 0]  # mean of the masks
    kept = moves * 15 / 2  # an input that passes counts twice
    np.testing.assert_allclose(kept, np.round(kept), atol=1e-3)
    assert len({tuple(np.round(m)) for m in kept}) == 4  # each step has another mask
    assert kept.min() > 0 and kept.max() < 15
    check(callback.predict(NEW), NEW @ kernels)
    np.testing.assert_array_equal(callback.predict(NEW).mean, callback.predict(NEW).mean)


def test_errors():
    model = affine(unit_normal)
    with pytest.raises(ValueError, match="no samples yet"):
        sample(model, y=np.eye(4)[Y], burnin=6).predict(NEW)
    values = [np.stack([v.numpy()] * 2) for v in model.trainable_variables]
    posterior = small_models.posterior_of(model, values)
    with pytest.raises(ValueError, match="activation must .* Received: 'softmax'"):
        posterior.predict(NEW, activation="softmax")
    with pytest.raises(ValueError, match="rows"):
        posterior.predict(NEW[:0])
    with pytest.raises(ValueError, match="batch_size must be at least 1. Received: 0"):
        posterior.predict(NEW, batch_size=0)


@pytest.mark.parametrize("floatx", ["float32", pytest.param("float64", marks=pytest.mark.thorough)])
def test_models_of_float64(floatx):
    """Layers of float64, with losses of either dtype: state, gradient and predictions agree."""
    before = keras.config.floatx()
    keras.config.set_floatx(floatx)
    try:
        dense = keras.layers.Dense(4, dtype="float64")
        model = keras.Sequential([keras.Input([3], dtype="float64"), dense])
        model.compile(loss=CROSSENTROPY, run_eagerly=True)
        x, y = np.random.default_rng(0).normal(size=[5, 3]), np.array([0, 1, 2, 3, 0])
        batch = (tf.constant(x), tf.constant(y), None)
        internals.build(model, *batch)
        target = sgmcmc.keras.ModelLogProb(
            model, 5, lambda state: -tf.reduce_sum(state[0] ** 2), batch
        )
        state = [tf.convert_to_tensor(v.value) for v in model.trainable_variables]
        estimate = target.estimate(state, tf.constant([0, 0]))
        scores = [s.rows() if hasattr(s, "rows") else s for s in estimate.scores]
        found = [estimate.log_prob, estimate.noise_scale, *estimate.gradient, *scores]
        assert {value.dtype for value in found} == {tf.float64}
        posterior = sgmcmc.keras.Posterior(
            model, model.trainable_variables, [v.numpy()[np.newaxis] for v in state]
        )
        p = scipy.special.softmax(x @ state[0].numpy(), axis=1)
        np.testing.assert_allclose(posterior.predict(x).mean, p, rtol=1e-6)
        log_p = np.log(p[np.arange(5), y])
        np.testing.assert_allclose(posterior.log_likelihood(x, y)[0], log_p, rtol=1e-5)
    finally:
        keras.config.set_floatx(before)


def test_a_function_for_outputs_may_read_a_variable_that_changes():
    divisor = [1.0]
    model = small_models.linear(jit_compile=False)
    samples = [np.stack([w, w]) for w in model.get_weights()]
    posterior = sgmcmc.keras.Posterior(model, model.trainable_variables, samples)
    x = np.ones([2, 3], np.float32)

    def activation(outputs):
        return tf.sigmoid(outputs / divisor[0])

    for divisor[0] in (1.0, 100.0):
        found = posterior.predict(x, activation=activation, verbose=0).mean
        expected = tf.sigmoid(model(x) / divisor[0])
        np.testing.assert_allclose(found, expected, rtol=1e-5)
