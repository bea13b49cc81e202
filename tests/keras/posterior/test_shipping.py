"""Posteriors as Keras models and SavedModels, thinned, and in half precision."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tests.keras.small_models import CROSSENTROPY, assert_close, assert_equal, linear
from tfp_sgmcmc.keras import losses
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.posterior import model_copy

# Keras converts to NumPy in model.save in a way that NumPy 2 warns about.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy")

RNG = np.random.default_rng(0)
X = RNG.normal(size=[7, 3]).astype(np.float32)
WEIGHTS = np.array([0.0, 1.0, 3.0, 0.5, 2.0, 1.0])
Posterior = sgmcmc.keras.Posterior


def normal(samples, v):
    return samples.uniform(0.1, 2.0, size=[6, 2, *v.shape]).astype(np.float32)


@pytest.fixture(scope="module")
def posterior():
    """Two outputs, moving statistics that are sampled, a layer that is not, chains and weights."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input([3], name="features")
    hidden = keras.layers.Dense(3, trainable=False, name="frozen")(inputs)
    hidden = keras.layers.BatchNormalization(name="norm")(hidden)
    hidden = keras.layers.Dropout(0.5)(keras.layers.Dense(5, "relu")(hidden))
    units = {"kind": 4, "value": 2}
    model = keras.Model(
        inputs, {n: keras.layers.Dense(u, name=n)(hidden) for n, u in units.items()}
    )
    model.compile(loss={"kind": CROSSENTROPY, "value": losses.GaussianNLL()}, jit_compile=False)
    norm = model.get_layer("norm")
    variables = [*model.trainable_variables, norm.moving_mean, norm.moving_variance]
    return Posterior(model, variables, [normal(RNG, v) for v in variables], 2, WEIGHTS)


def check(shipped, posterior, rtol=1e-6):
    """Compares the outputs of a model with those of `predict`."""
    expected = posterior.predict(X)
    value = expected.predictive["value"]
    assert shipped.keys() == {
        *(f"{n}_{k}" for n in ("kind", "value") for k in ("mean", "standard_deviation")),
        *(f"value_{k}" for k in ("predictive_mean", "aleatoric", "epistemic")),
    }
    for name in ("kind", "value"):
        np.testing.assert_allclose(shipped[f"{name}_mean"], expected.mean[name], rtol, 1e-7)
        spread = expected.standard_deviation[name]
        np.testing.assert_allclose(shipped[f"{name}_standard_deviation"], spread, rtol, 1e-6)
    np.testing.assert_allclose(shipped["value_predictive_mean"], value.mean, rtol, 1e-7)
    np.testing.assert_allclose(shipped["value_aleatoric"], value.aleatoric, rtol)
    np.testing.assert_allclose(shipped["value_epistemic"], value.epistemic, rtol, 1e-6)
    assert value.epistemic.min() > 0


def test_the_model_predicts_as_the_posterior_does_before_and_after_saving(posterior, tmp_path):
    before = [v.numpy() for v in posterior.model.variables]
    shipped = posterior.to_keras_model()
    check(shipped.predict(X, verbose=0), posterior)
    assert not shipped.trainable_variables
    shipped.save(tmp_path / "shipped.keras")
    loaded = keras.models.load_model(tmp_path / "shipped.keras")
    check(loaded.predict(X, verbose=0), posterior)
    assert_equal([v.numpy() for v in posterior.model.variables], before)


@pytest.mark.thorough
def test_a_saved_model_gives_the_same_numbers(posterior, tmp_path):
    posterior.to_keras_model().export(tmp_path / "exported", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "exported")
    check(loaded.serve(X), posterior)


SERVE = """
import sys, numpy as np, tensorflow as tf
x, out, loaded = np.load(sys.argv[2]), sys.argv[3], tf.saved_model.load(sys.argv[1])
np.savez(out, **{k: y.numpy() for k, y in loaded.serve(x).items()})
assert not {n.split(".")[0] for n in sys.modules} & {"tfp_sgmcmc", "tensorflow_probability"}
"""

LOAD = """
import sys, numpy as np, keras, tfp_sgmcmc.keras
model = keras.models.load_model(sys.argv[1])
np.savez(sys.argv[3], **model.predict(np.load(sys.argv[2]), verbose=0))
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [SERVE, LOAD], ids=["tensorflow alone", "a new script"])
def test_other_processes_load_it(posterior, code, tmp_path):
    path, x, out = tmp_path / "shipped.keras", tmp_path / "x.npy", tmp_path / "out.npz"
    shipped = posterior.to_keras_model()
    np.save(x, X)
    if code is SERVE:
        path = tmp_path / "exported"
        shipped.export(path, verbose=False)
    else:
        shipped.save(path)
    environment = {**os.environ, "PYTHONPATH": "" if code is SERVE else os.getcwd()}
    arguments = [sys.executable, "-c", code, path, x, out]
    subprocess.run(arguments, check=True, env=environment, cwd=tmp_path)
    with np.load(out) as found:
        check(dict(found), posterior)


def test_a_single_output_has_short_names():
    kernels = RNG.normal(size=[5, 3, 4]).astype(np.float32)
    posterior = small_models.posterior_of(linear(small_models.BINARY_CROSSENTROPY), [kernels])
    shipped = posterior.to_keras_model("net")
    found, expected = shipped(X), posterior.predict(X)
    assert shipped.name == "net" and found.keys() == {"mean", "standard_deviation"}
    assert_close([*found.values()], expected[:2])


def test_several_inputs_and_masks_in_sequences():
    """The inputs keep their structure; embeddings of masked tokens are means of their samples."""
    inputs = {"a": keras.Input([3], name="a"), "t": keras.Input([None], dtype="int32", name="t")}
    hidden = keras.layers.Embedding(4, 2, mask_zero=True)(inputs["t"])
    pooled = keras.layers.GlobalAveragePooling1D()(hidden)
    outputs = keras.layers.Dense(1)(keras.layers.Concatenate()([inputs["a"], pooled]))
    model = keras.Model(inputs, outputs)
    model.compile(loss=small_models.unit_normal, run_eagerly=True)
    samples = [RNG.normal(size=[4, *v.shape]).astype(np.float32) for v in model.trainable_variables]
    posterior = small_models.posterior_of(model, samples)
    x = {"a": X[:2], "t": np.array([[1, 2, 0], [3, 0, 0]])}
    assert_close([*posterior.to_keras_model()(x).values()], posterior.predict(x)[:2])


@pytest.mark.parametrize("names", [None, ["before", "after"]])
def test_outputs_of_one_layer_have_names_that_differ(names):
    """Keras' `output_names` has the layer's name twice."""
    inputs, layer = [keras.Input([3]), keras.Input([3])], keras.layers.Dense(2, name="shared")
    outputs = [layer(x) for x in inputs]
    nest = outputs if names is None else dict(zip(names, outputs, strict=True))
    model = keras.Model(inputs, nest)
    samples = [RNG.normal(size=[4, *v.shape]).astype(np.float32) for v in model.trainable_variables]
    posterior = small_models.posterior_of(model, samples)
    x = [X[:2], 2 * X[:2]]
    shipped, mean = posterior.to_keras_model()(x), posterior.predict(x, activation=None).mean
    for place, name in enumerate(names or ["output_0", "output_1"]):
        expected = mean[place if names is None else name]
        assert_close([shipped[f"{name}_mean"]], [expected])


def preprocessed(name):
    """Returns inputs of a kind, and layers that were adapted to them."""
    words = np.array([["red fox"], ["red hen"], ["blue hen"], ["fox"]])
    numbers = RNG.normal(3.0, 2.0, size=[5, 3]).astype(np.float32)
    L = keras.layers
    x, layer, after = {
        "normalization": (numbers, L.Normalization(), []),
        "discretization": (numbers, L.Discretization(num_bins=4), [L.Rescaling(0.25)]),
        "strings": (words, L.StringLookup(output_mode="multi_hot"), []),
        "integers": (np.array([[7], [9], [9], [5]]), L.IntegerLookup(output_mode="one_hot"), []),
        "text": (words, L.TextVectorization(output_mode="tf_idf"), []),
        "tokens": (words, L.TextVectorization(), [L.Embedding(9, 2), L.Flatten()]),
    }[name]
    if name == "tokens":
        layer = L.TextVectorization(output_sequence_length=2)
    layer.adapt(x)
    return x, [layer, *after]


@pytest.mark.parametrize(
    "name",
    [
        *("normalization", "integers"),
        *(
            pytest.param(x, marks=pytest.mark.thorough)
            for x in ("discretization", "strings", "text", "tokens")
        ),
    ],
)
def test_adapted_preprocessing_is_shipped(name, tmp_path):
    """Its state is in constants and tables, in neither the variables nor the configuration."""
    x, layers = preprocessed(name)
    keras.utils.set_random_seed(1)
    dtype = "string" if x.dtype.kind == "U" else x.dtype.name
    model = keras.Sequential(
        [keras.Input(x.shape[1:], dtype=dtype), *layers, keras.layers.Dense(2)]
    )
    model.compile(loss=CROSSENTROPY, run_eagerly=True)
    generator = np.random.default_rng(0)
    samples = [
        generator.normal(size=[3, *v.shape]).astype(np.float32) for v in model.trainable_variables
    ]
    posterior = small_models.posterior_of(model, samples)
    x = tf.constant(x)
    expected = posterior.predict(x)[:2]
    shipped = posterior.to_keras_model()
    assert_close(shipped(x).values(), expected)
    shipped.save(tmp_path / "shipped.keras")
    assert_close(keras.models.load_model(tmp_path / "shipped.keras")(x).values(), expected)
    shipped.export(tmp_path / "exported", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "exported")
    served = loaded.serve(x)
    assert_close([served["mean"], served["standard_deviation"]], expected)


def test_words_outside_of_a_vocabulary_that_has_no_place_for_them():
    """Such a model, as of a FeatureSpace, refuses the random rows on which it would be compared."""
    keras.utils.set_random_seed(1)
    lookup = keras.layers.StringLookup(vocabulary=["u", "v"], num_oov_indices=0)
    table = keras.layers.Embedding(2, 2)
    model = keras.Sequential(
        [keras.Input([], dtype="string"), lookup, table, keras.layers.Dense(3)]
    )
    model.compile(loss=CROSSENTROPY, jit_compile=False)
    words, labels = tf.constant(["u", "v"] * 4), np.arange(8) % 3
    sampler = small_models.sampler(
        lambda target: sgmcmc.SGHMC(target, 1e-3, 1.0, covariance="diag"),
        num_examples=8,
        independent_batches=False,
    )
    small_models.fit(model, sampler, words, labels, batch_size=4)  # by scores
    posterior = sampler.posterior
    shipped = posterior.to_keras_model()
    assert_close(shipped(words).values(), posterior.predict(words)[:2])


@keras.saving.register_keras_serializable("tests")
class Scaled(keras.layers.Layer):
    """A layer with state that only Python knows."""

    factor = 1.0

    def call(self, x):
        return self.factor * x


def test_a_copy_that_predicts_otherwise_is_refused():
    layer = Scaled()
    model = small_models.sequential(layer, keras.layers.Dense(2))
    samples = [np.ones([2, *v.shape], np.float32) for v in model.trainable_variables]
    posterior = small_models.posterior_of(model, samples)
    posterior.to_keras_model()
    layer.factor = 2.0
    with pytest.raises(ValueError, match="A copy of the model .* must predict as the model does"):
        posterior.to_keras_model()


def test_a_lambda_without_a_name_is_explained():
    model = small_models.sequential(keras.layers.Lambda(lambda x: 2 * x), keras.layers.Dense(2))
    samples = [np.ones([2, *v.shape], np.float32) for v in model.trainable_variables]
    posterior = small_models.posterior_of(model, samples)
    with pytest.raises(ValueError, match="Received: the Lambda layer 'lambda.*subclass of keras"):
        posterior.to_keras_model()


def doubled(x):
    return 2 * x


class Unregistered(keras.layers.Dense):
    """A user's layer of a script, which Keras finds by no name."""


def test_a_users_classes_and_functions_need_not_be_registered(tmp_path):
    ones = type("Ones", (keras.initializers.Constant,), {})(1.0)
    inner = keras.Sequential([
        keras.Input([3]), Unregistered(2, kernel_initializer=ones), keras.layers.Lambda(doubled)
    ])  # fmt: skip
    model = small_models.sequential(inner, keras.layers.Dense(2, doubled))
    samples = [RNG.normal(size=[2, *v.shape]).astype("f") for v in model.trainable_variables]
    posterior = small_models.posterior_of(model, samples)
    shipped = posterior.to_keras_model()
    assert_close([shipped(X)["mean"]], [posterior.predict(X).mean])
    shipped.save(tmp_path / "shipped.keras")
    names = {"Unregistered": Unregistered, "doubled": doubled, "Ones": type(ones)}
    loaded = keras.models.load_model(tmp_path / "shipped.keras", custom_objects=names)
    assert_equal(loaded(X).values(), shipped(X).values())


class WithoutKeywords(keras.layers.Layer):
    """A user's layer that Keras cannot make again."""

    def __init__(self, units):
        super().__init__()
        self.dense = keras.layers.Dense(units)

    def call(self, x):
        return self.dense(x)


def test_a_layer_that_cannot_be_made_again_is_named():
    inner = keras.Sequential([keras.Input([3]), WithoutKeywords(2)])
    model = small_models.sequential(keras.layers.Dense(3), inner)
    samples = [np.ones([2, *v.shape], np.float32) for v in model.trainable_variables]
    posterior = small_models.posterior_of(model, samples)
    words = r"its layer 'without_keywords.*', a WithoutKeywords, .*Let its __init__ take \*\*kwargs"
    with pytest.raises(ValueError, match=words):
        posterior.to_keras_model()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(posterior, dtype, tmp_path):
    """Weights change by half a unit in the last place, in memory, in files and when shipped."""
    half, unit = posterior.to_dtype(dtype), {"float16": 2**-11, "bfloat16": 2**-8}[dtype]
    exact = [s.astype(half.samples[0].dtype).astype(np.float32) for s in posterior.samples]
    for rounded, values in zip(exact, posterior.samples, strict=True):
        assert 0 < np.abs(rounded / values - 1).max() <= unit
    assert sum(s.nbytes for s in half.samples) * 2 == sum(s.nbytes for s in posterior.samples)
    rounded = posterior.with_samples(exact, WEIGHTS)
    x, y = X, {"kind": np.arange(7) % 4, "value": X[:, :1]}
    assert half.evaluate(x, y) == rounded.evaluate(x, y)
    assert_equal(half.predict(x).mean.values(), rounded.predict(x).mean.values())
    shipped = half.to_keras_model()
    check(shipped.predict(x, verbose=0), rounded)
    assert sum(w.dtype == dtype for w in shipped.weights) == len(half.samples)
    half.save(tmp_path / "half.npz")
    assert (tmp_path / "half.npz").stat().st_size < 0.8 * stored_bytes(posterior, tmp_path)
    loaded = Posterior.load(tmp_path / "half.npz", posterior.model)
    assert [s.dtype for s in loaded.samples] == [s.dtype for s in half.samples]
    assert_equal(loaded.samples, half.samples)
    np.testing.assert_array_equal(loaded.weights, WEIGHTS)


def stored_bytes(posterior, folder):
    posterior.save(folder / "whole.npz")
    return (folder / "whole.npz").stat().st_size


def test_half_precision_in_short(posterior):
    half = posterior.to_dtype("float16")
    exact = [s.astype(np.float16).astype(np.float32) for s in posterior.samples]
    rounded = posterior.with_samples(exact, WEIGHTS).predict(X)
    assert_equal(half.predict(X).mean.values(), rounded.mean.values())
    assert {s.dtype.name for s in half.samples} == {"float16"}


def test_thinned_samples_keep_their_weights(posterior):
    thin = posterior.thin(3)
    assert len(thin) == 2 and thin.num_chains == 2
    assert_equal(thin.samples, [s[::3] for s in posterior.samples])
    np.testing.assert_array_equal(thin.weights, WEIGHTS[::3])
    assert posterior.with_samples(posterior.samples).thin(2).weights is None


UNEVEN = np.array([1.0, 100.0, 0.01, 0.0], np.float32)  # of the columns of a kernel


def quantized(posterior):
    shipped = posterior.to_keras_model()
    shipped.quantize("int8", filters="posterior_average")  # Keras warns of input layers
    return shipped


@pytest.mark.thorough
def test_8_bits_change_means_by_less_than_half_a_step_of_each_channel():
    """A step is max |w| / 127 over the inputs of a sample's channel; a common one is too wide."""
    kernels = RNG.normal(size=[5, 3, 4]).astype(np.float32) * UNEVEN
    posterior = small_models.posterior_of(linear(small_models.unit_normal), [kernels])

    def bound(largest):
        half_step = (largest + keras.config.epsilon()) / 254
        return np.abs(X).sum(axis=1)[:, None] * half_step.mean(axis=0)

    exact, shipped = posterior.predict(X), quantized(posterior)
    error = np.abs(shipped(X)["mean"] - exact.mean)
    limit = bound(np.abs(kernels).max(axis=1)) + 1e-6 * np.abs(exact.mean)
    assert np.all(error <= limit) and error[:, 1].max() > 0.05 * limit[:, 1].max()
    common, scale = keras.quantizers.abs_max_quantize(kernels, (0, 1, 2), to_numpy=True)
    coarse = np.abs(X @ (np.asarray(common) / np.asarray(scale)).mean(axis=0) - exact.mean)
    assert (coarse[:, [0, 2]] > limit[:, [0, 2]]).any(axis=0).all()


def test_8_bits_make_a_file_smaller_and_are_read_again(tmp_path):
    samples = [RNG.normal(size=[20, 64, 64]).astype(np.float32)]
    posterior = small_models.posterior_of(linear(units=64, inputs=64), samples)
    x, sizes = RNG.normal(size=[3, 64]).astype(np.float32), {}
    shipped = {"whole": posterior.to_keras_model(), "narrow": quantized(posterior)}
    for name, model in shipped.items():
        model.save(tmp_path / f"{name}.keras")
        sizes[name] = (tmp_path / f"{name}.keras").stat().st_size
    assert sizes["narrow"] < 0.33 * sizes["whole"]  # a byte for four, and 4/64 bytes for a scale
    loaded = keras.models.load_model(tmp_path / "narrow.keras")
    assert_equal(loaded(x).values(), shipped["narrow"](x).values())
    assert [v.dtype for v in loaded.variables] == [v.dtype for v in shipped["narrow"].variables]


def rounded(values, is_stacked):
    """Returns a kernel as 8 bits hold it, or another variable as it is."""
    if values.ndim - is_stacked < 2:
        return values
    values = np.asarray(values, np.float32)
    axes = tuple(range(int(is_stacked), values.ndim - 1))
    step = (np.abs(values).max(axes, keepdims=True) + keras.config.epsilon()) / 127
    return np.rint(values / step) * step


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [None, "float16"])
def test_8_bits_of_many_layers(posterior, dtype, tmp_path):
    """Kernels are rounded, whether sampled or not, and biases and statistics stay as they are."""
    stored = posterior if dtype is None else posterior.to_dtype(dtype)
    shipped = quantized(stored)
    kernels = [v for v in posterior.model.variables if len(v.shape) > 1]
    assert [v.dtype for v in shipped.variables].count("int8") == len(kernels) == 4
    found = shipped.predict(X, verbose=0)
    flat = [s.reshape(-1, *v.shape) for s, v in zip(stored.samples, stored.variables, strict=True)]
    by_hand = [rounded(x, True).reshape(s.shape) for x, s in zip(flat, stored.samples, strict=True)]
    frozen = posterior.model.get_layer("frozen").kernel
    whole = frozen.numpy()
    frozen.assign(rounded(whole, False))
    check(found, stored.with_samples(by_hand, WEIGHTS), rtol=1e-5)
    frozen.assign(whole)
    shipped.save(tmp_path / "shipped.keras")
    loaded = keras.models.load_model(tmp_path / "shipped.keras")
    assert_equal(loaded.predict(X, verbose=0).values(), found.values())
    shipped.export(tmp_path / "exported", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "exported")
    served = loaded.serve(X)
    assert_close([served[name] for name in found], found.values())


def test_8_bits_are_the_only_other_storage():
    kernels = RNG.normal(size=[2, 3, 4]).astype(np.float32)
    posterior = small_models.posterior_of(linear(small_models.unit_normal), [kernels])
    shipped = posterior.to_keras_model()
    for mode in ("float8", "int4"):
        with pytest.raises(ValueError, match=f"mode must be \"int8\".*Received: '{mode}'"):
            shipped.quantize(mode, filters="posterior_average")
    assert_close([shipped(X)["mean"]], [posterior.predict(X).mean])
    config = keras.quantizers.Int8QuantizationConfig(
        keras.quantizers.AbsMaxQuantizer(value_range=(-7, 7)), None
    )
    shipped.quantize(config=config, filters="posterior_average")
    integers = next(v for v in shipped.variables if v.dtype == "int8")
    assert np.abs(integers.numpy()).max() == 7
    with pytest.raises(ValueError, match="already quantized"):
        shipped.quantize("int8", filters="posterior_average")


def test_a_lambda_is_exported_but_not_saved(tmp_path):
    loss = sgmcmc.keras.NegativeLogLikelihood(lambda out: tfp.distributions.Laplace(out, 1.0))
    kernels = RNG.normal(size=[5, 3, 1]).astype(np.float32)
    shipped = small_models.posterior_of(linear(loss, 1), [kernels]).to_keras_model()
    np.testing.assert_allclose(shipped(X)["aleatoric"], 2**0.5, rtol=1e-6)
    with pytest.raises(ValueError, match="cannot be saved, because its make_distribution_fn"):
        shipped.save(tmp_path / "shipped.keras")


def test_errors(posterior):
    with pytest.raises(ValueError, match="k must be at least 1"):
        posterior.thin(0)
    with pytest.raises(ValueError, match="dtype must be 'float16' or 'bfloat16'"):
        posterior.to_dtype("int8")
    large = posterior.with_samples([1e5 * s for s in posterior.samples])
    with pytest.raises(ValueError, match="must be at most 65.* in magnitude for float16"):
        large.to_dtype("float16")
    large.to_dtype("bfloat16")


@pytest.mark.thorough
def test_one_pass_over_all_samples_gives_the_same(posterior, tmp_path):
    shipped = posterior.to_keras_model(batched=True)
    check(shipped(X), posterior, rtol=1e-5)
    shipped.save(tmp_path / "shipped.keras")
    loaded = keras.models.load_model(tmp_path / "shipped.keras")
    check(loaded.predict(X, verbose=0), posterior, rtol=1e-5)


def test_samples_are_thinned_to_a_number_of_bytes(posterior):
    size = sum(s[0].nbytes for s in posterior.samples)
    shipped = posterior.to_keras_model(max_bytes=3 * size)
    check(shipped(X), posterior.thin(2))
    with pytest.raises(ValueError, match=f"max_bytes must be at least {size}, .*: 5"):
        posterior.to_keras_model(max_bytes=5)


def test_a_distilled_network_has_the_loss_weights_of_the_model():
    """Otherwise `nats_lost` would compare different densities."""
    inputs = keras.Input([2])
    outputs = [keras.layers.Dense(1)(inputs) for _ in range(2)]
    model = keras.Model(inputs, outputs)
    model.compile("sgd", loss=["mse", "mse"], loss_weights=[1.0, 0.25])
    samples = [np.stack([w, w]) for w in model.get_weights()]
    posterior = sgmcmc.keras.Posterior(model, model.trainable_variables, samples)
    student = model_copy._student(posterior, np.zeros([3, 2], np.float32))
    x, y = np.ones([3, 2], np.float32), [np.ones([3, 1], np.float32)] * 2
    assert internals.loss_weights(student) == [1.0, 0.25]
    np.testing.assert_allclose(student.evaluate(x, y, verbose=0)[0],
                               model.evaluate(x, y, verbose=0)[0], rtol=1e-5)  # fmt: skip


@pytest.mark.parametrize("nest", [dict, list])
def test_an_output_without_a_loss_has_no_observations(nest):
    """Labels leave it out, and draws of it are None."""
    inputs = keras.Input([2])
    seen = keras.layers.Dense(3, activation="tanh")(inputs)
    outputs = {"y": keras.layers.Dense(1)(seen), "seen": seen}
    loss, labels = sgmcmc.keras.losses.GaussianNLL(scale=1.0), np.ones([8, 1], np.float32)
    given = {"y": labels}
    if nest is list:
        outputs, loss, given = [*outputs.values()], [loss, None], [labels]
    else:
        loss = {"y": loss}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", loss=loss)
    samples = [np.stack([w, w]) for w in model.get_weights()]
    posterior = sgmcmc.keras.Posterior(model, model.trainable_variables, samples)
    x = np.ones([8, 2], np.float32)
    draws = posterior.sample_predictive(x, 5, seed=0)
    draws = [draws["y"], draws["seen"]] if nest is dict else draws
    assert draws[0].shape == (5, 8, 1) and draws[1] is None
    found = posterior.distil(x, (x, given), epochs=2, batch_size=4, seed=0)
    assert np.isfinite(found.nats_lost)


def test_a_distilled_network_has_no_prior_of_its_own():
    """A regulariser counts in the ensemble that it learns from."""
    dense = keras.layers.Dense(
        1, kernel_regularizer="l2", activity_regularizer=keras.regularizers.L1(1.0)
    )
    model = keras.Sequential([keras.Input([2]), dense])
    model.compile("sgd", loss="mse")
    samples = [np.stack([w, w]) for w in model.get_weights()]
    posterior = sgmcmc.keras.Posterior(model, model.trainable_variables, samples)
    student = model_copy._student(posterior, np.zeros([3, 2], np.float32))
    student(np.ones([3, 2], np.float32))
    assert not student.losses and model.layers[0].kernel.regularizer is not None
