"""Arguments of `Posterior` are checked, and each message names the argument."""

import copy
import json
import pickle
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfp_sgmcmc as sgmcmc
from tests.keras.small_models import affine, linear, posterior_of

X = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0]], np.float32)
Y = np.array([1, 3])
Posterior = sgmcmc.keras.Posterior


def samples(model, rows=3, seed=0):
    generator = np.random.default_rng(seed)
    shapes = [v.shape for v in model.trainable_variables]
    return [generator.normal(size=[rows, *s]).astype(np.float32) for s in shapes]


@pytest.fixture(scope="module")
def posterior():
    model = affine()
    return posterior_of(model, samples(model))


@pytest.mark.parametrize("damaged", ["byte", "cut", "bytes"])
def test_damaged_files_are_refused_or_read_unchanged(posterior, tmp_path, damaged):
    """Damage to the bytes of a file gives a ValueError, or the same samples."""
    path = tmp_path / "samples.npz"
    posterior.save(path)
    whole, generator, refused = path.read_bytes(), np.random.default_rng(1), 0
    for _ in range(200):
        data = bytearray(whole)
        if damaged == "cut":
            data = data[: generator.integers(len(data))]
        else:
            for _ in range(1 if damaged == "byte" else 10):
                data[generator.integers(len(data))] = generator.integers(256)
        path.write_bytes(bytes(data))
        try:
            read = Posterior.load(path, posterior.model)
        except ValueError:
            refused += 1
            continue
        assert read.num_chains is None
        for a, b in zip(read.samples, posterior.samples, strict=True):
            np.testing.assert_array_equal(a, b)
    assert refused > 100


@pytest.mark.parametrize(
    "header",
    [
        {"variables": [{"path": ["a"], "shape": [3, 4], "dtype": "float32"}]},
        {"variables": [{"path": "a", "shape": "34", "dtype": "float32"}]},
        {"variables": [{"path": "a", "shape": [3.0, 4], "dtype": "float32"}]},
        {"variables": [{"path": "a", "shape": [3, 4], "dtype": 1}]},
        {"variables": None},
        {"num_chains": "2"},
        {"num_chains": 0},
        {"num_chains": 3},
        {"num_chains": [3]},
    ],
)
def test_damaged_headers_are_refused_with_the_path(posterior, tmp_path, header):
    """Such a header has valid checksums."""
    path, new = tmp_path / "a.npz", tmp_path / "b.npz"
    posterior.save(path)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(new, "w") as changed:
        for name in old.namelist():
            data = old.read(name)
            if name == "header.json":
                data = json.dumps({**json.loads(data), **header}).encode()
            changed.writestr(name, data)
    with pytest.raises(ValueError, match=r"b\.npz is damaged"):
        Posterior.load(new, posterior.model)


def test_labels_of_some_outputs_alone_are_refused():
    x = keras.Input([3])
    outputs = [keras.layers.Dense(2, "softmax")(x), keras.layers.Dense(2, "softmax")(x)]
    model = keras.Model(x, outputs)
    model.compile(loss=["sparse_categorical_crossentropy"] * 2)
    posterior = posterior_of(model, samples(model))
    with pytest.raises(ValueError, match=r"y must have an array for each output .* Received: 1\."):
        posterior.evaluate(X, Y // 2)
    with pytest.raises(TypeError, match=r"Received: a NoneType\. Leave out what belongs to an out"):
        posterior.evaluate(X, [Y, None])
    model.compile(loss=["sparse_categorical_crossentropy", None])
    assert posterior.evaluate(X, [Y // 2, Y]).accuracy[1] is None


UNBUILT = keras.Sequential([keras.layers.Dense(1)])


@pytest.mark.parametrize(
    "change, error, words",
    [
        ({"model": None}, TypeError, "model must be a keras.Model. Received: a NoneType"),
        ({"model": UNBUILT}, ValueError, "model must be built"),
        ({"variables": ["kernel"]}, TypeError, "variables must be .*Received: a str"),
        ({"variables": None}, TypeError, "variables must be .*Received: a NoneType"),
        ({"variables": [keras.Variable([1.0])]}, ValueError, "variables must be variables of"),
        ({"samples": None}, TypeError, "samples must be a list of arrays"),
        ({"samples": [[1.0], [2.0]]}, TypeError, "samples must be .* a list with a list"),
        ({"samples": np.zeros([2, 3])}, TypeError, "samples must be .* Received: an ndarray"),
        ({"num_chains": True}, TypeError, "num_chains must be an integer"),
        ({"num_chains": 0}, ValueError, "num_chains must be at least 1"),
    ],
)
def test_arguments(posterior, change, error, words):
    model = posterior.model
    valid = {"model": model, "variables": posterior.variables, "samples": posterior.samples}
    with pytest.raises(error, match=words):
        Posterior(**{**valid, **change})


def test_samples_that_are_not_finite(posterior):
    bad = [*map(np.copy, posterior.samples)]
    bad[1][2, 0] = np.nan
    with pytest.raises(ValueError, match="samples of .*bias must be finite"):
        posterior.with_samples(bad)


@pytest.mark.parametrize(
    "x, error, words",
    [
        (None, TypeError, "x must be an array"),
        ([1.0, 2.0], TypeError, "x must be an array"),
        (np.array([[object()]]), TypeError, "x must have real numbers"),
        ([X, X], ValueError, "x must have an array for each of the 1 inputs"),
        (X[:, :2], ValueError, r"x must have shape \['rows', 3\]"),
        (X[0], ValueError, r"x must have shape \['rows', 3\].*Received: shape \[3\]"),
        (np.where(X == 2, np.nan, X), ValueError, "x must have finite entries. .* in row 0"),
    ],
)
def test_inputs(posterior, x, error, words):
    with pytest.raises(error, match=words):
        posterior.predict(x)
    with pytest.raises(error, match=words):
        posterior.evaluate(x, Y)


@pytest.mark.filterwarnings("ignore:(.|\n)*structure of `inputs` doesn't match")
@pytest.mark.parametrize("as_dict", [True, False])
def test_a_dict_may_have_more_than_the_inputs(as_dict):
    """Keras gives a model with a dict of inputs wrong ones if others come before them."""
    inputs = {"b": keras.Input([1], name="b"), "c": keras.Input([], dtype="string", name="c")}
    lookup = keras.layers.StringLookup(vocabulary=["u", "v"], output_mode="one_hot")
    joined = keras.layers.Concatenate()([inputs["b"], lookup(inputs["c"])])
    given = inputs if as_dict else [inputs["c"], inputs["b"]]
    model = keras.Model(given, keras.layers.Dense(1)(joined))
    model.compile(loss=lambda y, f: 0.5 * tf.square(y - f))
    x = {"b": X[:, :1], "c": tf.constant(["u", "v"])}
    before, after = {"a": X, **x}, {**x, "d": X}
    many = posterior_of(model, samples(model))
    expected = many.predict(x).mean
    for more in [after] if as_dict else [before, after]:
        np.testing.assert_array_equal(many.predict(more).mean, expected)
    if as_dict:
        with pytest.raises(ValueError, match="for each of the 2 inputs.*Received: 3 arrays"):
            many.predict(before)


@pytest.mark.parametrize(
    "activation, error, words",
    [
        (3, TypeError, "activation must be 'auto', None or a callable"),
        (lambda y: None, ValueError, "activation must return a tensor.*Received: None"),
        (lambda y: tf.reduce_sum(y), ValueError, r"activation must return .* shape \(\)"),
    ],
)
def test_activations(posterior, activation, error, words):
    with pytest.raises(error, match=words):
        posterior.predict(X, activation=activation)


class WithoutKeywords(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = keras.layers.Dense(4)

    def build(self, shape):
        self.head.build(shape)

    def call(self, x):
        return self.head(x)


class WithoutConfig(WithoutKeywords):
    def __init__(self, other):
        super().__init__()


@pytest.mark.parametrize("make", [WithoutKeywords, lambda: WithoutConfig(object())])
def test_subclassed_models_that_cannot_be_made_again(make):
    model = make()
    model.compile(loss="sparse_categorical_crossentropy")
    model(X)
    posterior = posterior_of(model, samples(model))
    for use in (
        lambda: posterior.to_keras_model(inputs=keras.Input([3])),
        lambda: posterior.distil(X, (X, Y)),
    ):
        with pytest.raises(ValueError, match=r"Let its __init__ take \*\*kwargs.*get_config"):
            use()


@pytest.mark.parametrize("given", [Y, X, (X,), {"x": X, "y": Y}])
def test_validation_data_are_checked_before_training(posterior, given):
    with pytest.raises(TypeError, match=r"validation_data must be a tuple \(x, y\)"):
        posterior.distil(X, given)
    with pytest.raises(ValueError, match="y must hold numbers of classes"):
        posterior.distil(X, (X, Y + 4))


def test_other_arguments(posterior, tmp_path):
    with pytest.raises(TypeError, match="sample_weight must be an array of numbers"):
        posterior.evaluate(X, Y, sample_weight=["a", "b"])
    weight = np.array([1.0, 2.0])
    with pytest.raises(TypeError, match=r"one array, .* weights of 2 outputs, \['a', 'b'\]"):
        posterior.evaluate(X, Y, sample_weight={"a": weight, "b": weight})
    same = (posterior.evaluate(X, Y, sample_weight=w) for w in (weight, {"a": weight}))
    assert next(same) == next(same)
    with pytest.raises(TypeError, match="y must be an array"):
        posterior.log_likelihood(X, None)
    with pytest.raises(TypeError, match="path must be a string or a path. Received: 3"):
        posterior.save(3)
    with pytest.raises(TypeError, match="path must be a string or a path. Received: None"):
        Posterior.load(None, posterior.model)
    for model, words in (("model", "a str"), (tf_keras.Sequential(), "a Sequential of tf_keras")):
        with pytest.raises(TypeError, match=f"model must be a keras.Model. Received: {words}"):
            Posterior.load(tmp_path / "a.npz", model)


def test_outputs_that_are_no_probabilities_are_refused():
    model = linear("sparse_categorical_crossentropy", 4, "exponential")
    posterior = posterior_of(model, samples(model))
    for use in (posterior.predict, lambda x: posterior.evaluate(x, Y)):
        with pytest.raises(ValueError, match="outputs of the model must be probabilities"):
            use(X)


@pytest.mark.parametrize("copying", [copy.deepcopy, pickle.dumps])
def test_copies_are_refused_in_words(posterior, copying):
    with pytest.raises(TypeError, match=r"Posterior\.save\(path\)"):
        copying(posterior)
    shallow = copy.copy(posterior)
    assert shallow.samples is posterior.samples


ERROR = sgmcmc.keras.expected_calibration_error


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        ((["a"], [1]), TypeError, "confidence must be an array of numbers"),
        (([], []), ValueError, "confidence must be an array that is not empty"),
        (([0.5, 1.5], [1, 0]), ValueError, r"confidence must be in \[0, 1\]"),
        (([0.5, np.nan], [1, 0]), ValueError, r"confidence must be in \[0, 1\]"),
        (([0.5], [1, 0]), ValueError, r"is_correct must be of the shape of confidence, \(1,\)"),
        (([0.5], [2]), ValueError, r"is_correct must be in \[0, 1\]"),
        (([0.5], [1], [-1.0]), ValueError, "weights must be finite and not negative"),
        (([0.5], [1], [0.0]), ValueError, "weights must be not all zero"),
        (([0.5], [1], None, 0), ValueError, "num_bins must be at least 1"),
        (([0.5], [1], None, 1.5), TypeError, "num_bins must be an integer"),
    ],
)
def test_calibration(arguments, error, words):
    with pytest.raises(error, match=words):
        ERROR(*arguments)


@pytest.mark.parametrize("temperature", ["hot", [1.0, 2.0], 0.0, -1.0, np.nan])
def test_temperatures(posterior, temperature):
    with pytest.raises((TypeError, ValueError), match="temperature must be a positive finite"):
        Posterior(posterior.model, posterior.variables, posterior.samples, temperature=temperature)


@pytest.mark.parametrize("inputs", [3, "x", X, [keras.Input([3]), X]])
def test_inputs_of_a_model_of_the_posterior(posterior, inputs):
    with pytest.raises(TypeError, match="inputs must be a keras.Input, or a nest of them"):
        posterior.to_keras_model(inputs=inputs)


def relu(x):
    """Has the name of one of Keras' activations."""
    return keras.ops.sin(x)


def test_an_activation_of_the_name_of_one_of_keras():
    layers = [keras.layers.Dense(2, relu, name="hidden"), keras.layers.Dense(4)]
    model = keras.Sequential([keras.Input([3]), *layers])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="function 'relu' of the layer 'hidden' has the name of"):
        posterior_of(model, samples(model)).to_keras_model()
