"""Predictions of a `Posterior`: entropies in closed form, chunks, and samples from a fit."""

import keras
import numpy as np
import pytest
import scipy.special
import scipy.stats

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tests.keras.small_models import CROSSENTROPY, assert_equal, linear, unit_normal

N, C = 30, 2
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, 3]).astype(np.float32)
NEW = RNG.normal(size=[7, 3]).astype(np.float32)
KERNELS = RNG.normal(size=[5, 3, 4]).astype(np.float32)


def posterior_of(model, kernels=KERNELS, num_chains=None):
    return small_models.posterior_of(model, [kernels], num_chains)


class Lazy:
    """The parts of an array that samples on disk must have; records what is read."""

    def __init__(self, values):
        self._values, self.shape, self.dtype = values, values.shape, values.dtype
        self.read = []

    def __getitem__(self, item):
        assert isinstance(item, slice)
        self.read.append(item)
        return self._values[item]


def categorical(p):
    """Returns entropies of the mean, and mutual information, over the first axis."""
    total = scipy.stats.entropy(p.mean(axis=0), axis=-1)
    return total, total - scipy.stats.entropy(p, axis=-1).mean(axis=0)


def bernoulli(p):
    return categorical(np.stack([p, 1 - p], axis=-1))


def check(prediction, p, entropies):
    np.testing.assert_allclose(prediction.mean, p.mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(prediction.standard_deviation, p.std(axis=0), rtol=1e-3, atol=1e-6)
    for got, want in zip(prediction[2:4], entropies or (None, None), strict=True):
        if want is None:
            assert got is None
        else:
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
            assert got.shape == want.shape and want.min() > 1e-3


CASES = {
    "sparse": (CROSSENTROPY, None, categorical),
    "string": ("sparse_categorical_crossentropy", "softmax", categorical),
    "one-hot": (keras.losses.CategoricalCrossentropy(from_logits=True), None, categorical),
    "divergence": (keras.losses.KLDivergence(), "softmax", categorical),
    "binary": (small_models.BINARY_CROSSENTROPY, None, bernoulli),
    "binary string": ("binary_crossentropy", "sigmoid", bernoulli),
    "no probabilities": (unit_normal, None, None),
}


@pytest.mark.parametrize("name", CASES)
def test_entropies_of_each_loss_before_any_fit(name):
    """The losses of a model that is only compiled are not resolved yet."""
    loss, activation, entropies = CASES[name]
    logits = NEW @ KERNELS
    link = {
        categorical: lambda f: scipy.special.softmax(f, axis=-1),
        bernoulli: scipy.special.expit,
    }
    p = link.get(entropies, lambda f: f)(logits)
    prediction = posterior_of(linear(loss, 4, activation)).predict(NEW, batch_size=4)
    check(prediction, p, entropies and entropies(p))


def test_no_entropies_of_outputs_as_they_are():
    prediction = posterior_of(linear()).predict(NEW, activation=None)
    check(prediction, NEW @ KERNELS, None)


def test_samples_that_agree_leave_no_information_and_sure_ones_that_do_not_leave_all():
    model = linear(units=2)
    alike = np.tile(KERNELS[:1, :, :2], [6, 1, 1])
    prediction = posterior_of(model, alike).predict(NEW)
    np.testing.assert_allclose(prediction.mutual_information, 0, atol=1e-6)
    assert prediction.mutual_information.min() >= 0 and prediction.entropy.min() > 1e-3
    sure = 1e3 * np.array([[[1, -1]] * 3, [[-1, 1]] * 3], np.float32)  # p is 1 or 0
    prediction = posterior_of(model, sure).predict(np.ones([2, 3], np.float32))
    for values in (prediction.entropy, prediction.mutual_information):
        np.testing.assert_allclose(values, np.log(2), rtol=1e-6)


@pytest.mark.thorough
def test_chunks_of_samples_that_are_only_sliced(monkeypatch):
    """A compiled model reads the 8 draws of 2 chains 3 at a time."""
    kernels = RNG.normal(size=[8, C, 3, 4]).astype(np.float32)
    p = scipy.special.softmax((NEW @ kernels).reshape(-1, 7, 4), axis=-1)
    model = linear(jit_compile=True)
    whole = posterior_of(model, kernels, C).predict(NEW)
    check(whole, p, categorical(p))
    monkeypatch.setattr("tfp_sgmcmc.keras.posterior.sample_loops._CHUNK_BYTES", 3 * C * 12 * 4)
    lazy = Lazy(kernels)
    posterior = posterior_of(model, lazy, C)
    check(posterior.predict(NEW), p, categorical(p))
    assert lazy.read == [slice(0, 3), slice(3, 6), slice(6, 9)]
    outputs = posterior.outputs(NEW, activation=None)
    np.testing.assert_allclose(outputs, NEW @ kernels, rtol=1e-4, atol=1e-5)


def test_samples_in_zarr(tmp_path):
    zarr = pytest.importorskip("zarr")
    stored = zarr.create_array(tmp_path, data=KERNELS, chunks=(2, 3, 4))
    model = linear()
    posterior = posterior_of(model, stored)
    assert_equal(posterior.predict(NEW), posterior_of(model).predict(NEW))
    posterior.save(tmp_path / "posterior.npz")
    loaded = sgmcmc.keras.Posterior.load(tmp_path / "posterior.npz", model)
    np.testing.assert_array_equal(loaded.samples[0], KERNELS)


def test_means_of_half_precision_outputs_are_not():
    """A running mean of 1000 samples in bfloat16 would stop changing after a few samples."""
    layer = keras.layers.Dense(1, use_bias=False, dtype="mixed_bfloat16")
    model = small_models.sequential(layer, loss=unit_normal, run_eagerly=False)
    kernels = np.linspace(0, 1, 1000, dtype=np.float32)[:, None, None] * np.ones([3, 1], np.float32)
    prediction = posterior_of(model, kernels).predict(np.ones([1, 3], np.float32))
    np.testing.assert_allclose(prediction.mean, [[1.5]], atol=0.01)  # 2^-8 is bfloat16's unit
    np.testing.assert_allclose(prediction.standard_deviation, [[3 / 12**0.5]], atol=0.01)


@pytest.fixture(scope="module")
def fitted():
    """A callback after a fit with two outputs, moving statistics, dropout and two chains."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input([3])
    hidden = keras.layers.BatchNormalization(name="norm")(inputs)
    hidden = keras.layers.Dropout(0.5, seed=1)(hidden)
    outputs = {n: keras.layers.Dense(u, name=n)(hidden) for n, u in (("kind", 4), ("value", 1))}
    model = keras.Model(inputs, outputs)
    model.compile(loss={"kind": CROSSENTROPY, "value": unit_normal}, jit_compile=False)
    numbers = {"num_burnin_steps": 2, "num_chains": C}
    callback = small_models.sampler(small_models.sgld(1e-2), N, **numbers)
    y = {"kind": RNG.integers(0, 4, size=[N]), "value": X[:, :1]}
    model.fit(X, y, batch_size=10, epochs=2, verbose=0, callbacks=[callback])
    return callback


def test_several_outputs_by_the_samples_own_statistics(fitted):
    posterior = fitted.posterior
    assert len(posterior) == 4
    by_path = {v.path: s for v, s in zip(posterior.variables, posterior.samples, strict=True)}
    part = {path: s.reshape(4 * C, 1, *s.shape[2:]) for path, s in by_path.items()}
    mean, variance = part["norm/moving_mean"], part["norm/moving_variance"]
    hidden = (NEW - mean) / np.sqrt(variance + 1e-3) * part["norm/gamma"] + part["norm/beta"]
    kind, value = (
        hidden @ part[f"{name}/kernel"][:, 0] + part[f"{name}/bias"] for name in ("kind", "value")
    )
    p = scipy.special.softmax(kind, axis=-1)
    prediction = posterior.predict(NEW)
    check(sgmcmc.keras.PosteriorPrediction(*(x["kind"] for x in prediction)), p, categorical(p))
    check(sgmcmc.keras.PosteriorPrediction(*(x["value"] for x in prediction)), value, None)
    for name, own in posterior.outputs(NEW).items():
        assert own.shape[:3] == (4, C, 7)
        np.testing.assert_allclose(
            own.mean(axis=(0, 1)), prediction.mean[name], rtol=1e-4, atol=1e-6
        )


def test_the_callback_s_own_methods_are_the_posterior_s(fitted):
    whole, pair = fitted.posterior.predict(NEW), fitted.predict(NEW)
    assert isinstance(pair, sgmcmc.keras.Prediction)
    for got, want in zip(pair, whole[:2], strict=True):
        assert_equal([got[name] for name in want], want.values())
    count = len(fitted.samples)
    assert_equal(fitted.samples, fitted.posterior.samples[:count])


def test_fewer_samples(fitted):
    posterior = fitted.posterior
    last = posterior.with_samples([s[-1:] for s in posterior.samples])
    assert (len(posterior), len(last)) == (4, 1)
    np.testing.assert_allclose(
        last.predict(NEW).mean["value"], posterior.outputs(NEW)["value"][-1].mean(axis=0), rtol=1e-5
    )


def test_another_loss_makes_other_probabilities():
    model = linear()
    posterior = posterior_of(model)
    assert posterior.predict(NEW).entropy is not None
    model.compile(loss=unit_normal, run_eagerly=True)
    check(posterior.predict(NEW), NEW @ KERNELS, None)


@pytest.mark.parametrize(
    "samples, num_chains, words",
    [
        ([], None, "each of the 1 variables.*Received: 0 arrays"),
        ([KERNELS, KERNELS], None, "each of the 1 variables.*Received: 2 arrays"),
        ([KERNELS[..., :3]], None, r"kernel must .*\(5, 3, 4\). .*float32 of shape \(5, 3, 3\)"),
        ([KERNELS.astype(np.float64)], None, "float32 of shape.*Received: float64"),
        ([KERNELS], 2, r"must be float32 of shape \(5, 2, 3, 4\)"),
        ([KERNELS[:0]], None, r"float32 of shape \(1, 3, 4\). .*shape \(0, 3, 4\)"),
    ],
)
def test_unfit_samples(samples, num_chains, words):
    with pytest.raises(ValueError, match=words):
        small_models.posterior_of(linear(), samples, num_chains)


def test_a_model_that_is_not_compiled():
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(4, use_bias=False)])
    with pytest.raises(ValueError, match="not compiled with a loss.*activation=None"):
        posterior_of(model).predict(NEW)
    check(posterior_of(model).predict(NEW, activation=None), NEW @ KERNELS, None)


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1. Received: 0"),
        ({"batch_size": 2.0}, TypeError, "batch_size must be an integer. Received: 2.0"),
        ({"activation": "softmax"}, ValueError, "activation must .* Received: 'softmax'"),
    ],
)
def test_unfit_arguments(arguments, error, words):
    with pytest.raises(error, match=words):
        posterior_of(linear()).predict(NEW, **arguments)


def test_several_outputs_of_a_compiled_model_that_saw_no_labels():
    """A traced function creates no variables for the metrics of several losses."""
    inputs = keras.Input([3])
    model = keras.Model(inputs, [keras.layers.Dense(4, use_bias=False)(inputs) for _ in range(2)])
    model.compile(loss=[CROSSENTROPY, unit_normal], jit_compile=False)
    prediction = small_models.posterior_of(model, [KERNELS, KERNELS]).predict(NEW)
    p = scipy.special.softmax(NEW @ KERNELS, axis=-1)
    np.testing.assert_allclose(prediction.mean[0], p.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(prediction.mean[1], (NEW @ KERNELS).mean(axis=0), rtol=1e-4)


@pytest.mark.thorough
def test_samples_of_some_variables_of_a_regularised_model():
    """In a stateless scope, Keras gives other variables' regularisers no value."""
    penalty = keras.regularizers.L2(0.1)
    layers = [keras.layers.Dense(n, kernel_regularizer=penalty) for n in (4, 2)]
    model = small_models.sequential(*layers)
    last = layers[1].trainable_variables
    values = [np.stack([v.numpy(), 2 * v.numpy()]) for v in last]
    posterior = sgmcmc.keras.Posterior(model, last, values)
    x = np.ones([3, 3], np.float32)
    outputs = posterior.outputs(x, activation=None)
    np.testing.assert_allclose(outputs[0], model(x), rtol=1e-5)
    np.testing.assert_allclose(outputs[1], 2 * outputs[0], rtol=1e-5)
