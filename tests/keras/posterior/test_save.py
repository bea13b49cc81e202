"""Posteriors and models in files, and posteriors for ArviZ."""

import io
import json
import sys
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tests.keras.small_models import assert_equal, heteroscedastic_normal

# Keras converts to NumPy in model.save in a way that NumPy 2 warns about.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy")

tfd = tfp.distributions
Posterior = sgmcmc.keras.Posterior
N, C = 20, 2
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, 3]).astype(np.float32)
Y = RNG.normal(size=[N, 1]).astype(np.float32)


def not_registered(out):
    return tfd.Normal(out, 1.0)


def network(fn=heteroscedastic_normal, units=2, width=4, dtype=None, body="body"):
    layers = [
        keras.layers.Dense(width, name=body, dtype=dtype),
        keras.layers.BatchNormalization(name="norm", dtype=dtype),
        keras.layers.Dense(units, name="head", dtype=dtype),
    ]
    model = keras.Sequential([keras.Input([3]), *layers], name="net")
    loss = sgmcmc.keras.NegativeLogLikelihood(fn)
    model.compile(loss=loss, run_eagerly=True)
    model.optimizer.build(model.trainable_variables)  # fit does this
    return model


@pytest.fixture(scope="module")
def posterior():
    """Samples of weights and moving statistics, as a fit of two chains leaves them."""
    model = network()
    norm = model.get_layer("norm")
    variables = [*model.trainable_variables, norm.moving_mean, norm.moving_variance]
    samples = [RNG.uniform(0.5, 2.0, size=[4, C, *v.shape]).astype(np.float32) for v in variables]
    return Posterior(model, variables, samples, C)


def check_equal(loaded, posterior):
    assert loaded.num_chains == posterior.num_chains
    assert [s.dtype for s in loaded.samples] == [s.dtype for s in posterior.samples]
    assert_equal(loaded.samples, posterior.samples)


@pytest.mark.thorough
def test_model_and_posterior_come_back_as_they_were(posterior, tmp_path):
    """The likelihood's function is registered, so that Keras loads it."""
    posterior.model.save(tmp_path / "model.keras")
    posterior.save(tmp_path / "posterior.npz")
    model = keras.models.load_model(tmp_path / "model.keras")
    assert model.loss.make_distribution_fn is heteroscedastic_normal
    model.compile(loss=model.loss, run_eagerly=True)  # Keras does not save run_eagerly
    loaded = Posterior.load(tmp_path / "posterior.npz", model)
    check_equal(loaded, posterior)
    assert [v.path for v in loaded.variables][::7] == ["body/kernel", "norm/moving_variance"]
    assert all(v is w for v, w in zip(loaded.variables, model.trainable_variables, strict=False))
    assert loaded.evaluate(X, Y) == posterior.evaluate(X, Y)
    assert_equal(loaded.predict(X)[:2], posterior.predict(X)[:2])


def test_the_file_is_numpy_s_without_pickle(posterior, tmp_path, monkeypatch):
    three_kernels_of_four = 3 * C * 12 * 4
    monkeypatch.setattr("tfp_sgmcmc.storage.npz._PIECE_BYTES", three_kernels_of_four)
    posterior.save(tmp_path / "posterior.npz")
    assert [p.name for p in tmp_path.iterdir()] == ["posterior.npz"]
    with np.load(tmp_path / "posterior.npz", allow_pickle=False) as file:
        paths = [v["path"] for v in json.loads(file["header.json"])["variables"]]
        assert [f"net/{path}" for path in paths] == [v.path for v in posterior.variables]
        for i, values in enumerate(posterior.samples):
            np.testing.assert_array_equal(file[str(i)], values)


def test_bfloat16_comes_back_bit_by_bit(tmp_path):
    model = network(dtype="bfloat16")
    bfloat16 = tf.bfloat16.as_numpy_dtype
    samples = [RNG.normal(size=[3, *v.shape]).astype(bfloat16) for v in model.trainable_variables]
    own = small_models.posterior_of(model, samples)
    own.save(tmp_path / "posterior")
    check_equal(Posterior.load(tmp_path / "posterior", model), own)
    # From zarr, samples come in single precision.
    wide = Posterior(model, own.variables, [s.astype(np.float32) for s in samples])
    wide.save(tmp_path / "wide")
    assert (tmp_path / "wide").read_bytes() == (tmp_path / "posterior").read_bytes()


def test_a_posterior_of_version_0_1_0(tmp_path):
    variables = [{"path": "head/kernel", "shape": [1, 1], "dtype": "bfloat16"}]
    header = {"format": "tfp_sgmcmc.keras.Posterior", "version": 1, "num_chains": 2}
    with zipfile.ZipFile(tmp_path / "posterior.npz", "w") as file:
        file.writestr("header.json", json.dumps({**header, "variables": variables}))
        with file.open("0.npy", "w", force_zip64=True) as entry:
            np.save(entry, np.array([[[[0x3FC0]], [[0xC000]]]], np.uint16))
    head = keras.layers.Dense(1, name="head", use_bias=False, dtype="bfloat16")
    model = keras.Sequential([keras.Input([1]), head], name="net")
    loaded = Posterior.load(tmp_path / "posterior.npz", model)
    assert loaded.num_chains == 2 and loaded.variables == [head.kernel]
    expected = np.array([[[[1.5]], [[-2.0]]]]).astype(tf.bfloat16.as_numpy_dtype)
    np.testing.assert_array_equal(loaded.samples[0], expected)
    assert loaded.samples[0].dtype == expected.dtype


@pytest.mark.parametrize(
    "other, words",
    [
        (dict(body="trunk"), "trunk/kernel is in the model only.*body/kernel is in the file only"),
        (
            dict(width=5),
            r"body/kernel is float32 \(3, 4\) in the file, float32 \(3, 5\) in the model",
        ),
        (dict(dtype="bfloat16"), r"float32 \(3, 4\) in the file, bfloat16 \(3, 4\) in the model"),
    ],
)
def test_samples_of_another_model_are_refused(posterior, tmp_path, other, words):
    posterior.save(tmp_path / "posterior.npz")
    with pytest.raises(ValueError, match=f"of another model: .*{words}"):
        Posterior.load(tmp_path / "posterior.npz", network(**other))


def test_a_model_that_is_made_again_is_told_by_the_order_of_its_layers(tmp_path):
    """Unless a layer that was not sampled could be taken for one that was."""

    def made(is_whole=True):
        first, second = (keras.layers.Dense(2, trainable=k or is_whole) for k in (False, True))
        model = keras.Sequential([keras.Input([2]), first, keras.layers.ReLU(), second])
        model.compile(loss=lambda y, f: 0.5 * tf.square(y - f))
        return model

    x = np.random.default_rng(0).normal(size=[4, 2]).astype(np.float32)
    for is_whole in (True, False):
        model, again = made(is_whole), made(is_whole)
        variables = model.trainable_variables
        draws = [np.random.default_rng(1).normal(size=[3, *v.shape]).astype(v.dtype)
                 for v in variables]  # fmt: skip
        saved = Posterior(model, variables, draws)
        saved.save(tmp_path / "posterior.npz")
        if is_whole:
            loaded = Posterior.load(tmp_path / "posterior.npz", again)
            assert [v.path for v in loaded.variables] != [v.path for v in variables]
            np.testing.assert_array_equal(loaded.predict(x).mean, saved.predict(x).mean)
        else:
            with pytest.raises(ValueError, match="of another model"):
                Posterior.load(tmp_path / "posterior.npz", again)


def test_a_model_that_trains_more_is_refused(posterior, tmp_path):
    posterior.save(tmp_path / "posterior.npz")
    model = network()
    model.add(keras.layers.Dense(1, name="more"))
    with pytest.raises(ValueError, match="more/kernel is in the model only"):
        Posterior.load(tmp_path / "posterior.npz", model)
    model.get_layer("more").trainable = False  # then no samples are expected
    assert len(Posterior.load(tmp_path / "posterior.npz", model)) == 4


def damaged(data):
    """Returns files by the damage that they have."""
    middle = bytearray(data)
    middle[len(data) // 2] ^= 1  # a bit of a sample
    other = io.BytesIO()
    np.savez(other, np.zeros([3]))
    pickled = io.BytesIO(data)
    with zipfile.ZipFile(pickled) as whole, zipfile.ZipFile(other, "w") as file:
        file.writestr("header.json", whole.read("header.json"))
        with file.open("0.npy", "w") as entry:
            np.save(entry, np.array([{}], object), allow_pickle=True)
    plain = io.BytesIO()
    np.savez(plain, np.zeros([3]))
    return {
        "short": data[:-50],
        "flipped": bytes(middle),
        "empty": b"",
        "text": b"samples",
        "plain": plain.getvalue(),
        "pickled": other.getvalue(),
    }


@pytest.mark.parametrize("name", ["short", "flipped", "empty", "text", "plain", "pickled"])
def test_a_damaged_file_is_refused(posterior, tmp_path, name):
    path = tmp_path / "posterior.npz"
    posterior.save(path)
    path.write_bytes(damaged(path.read_bytes())[name])
    with pytest.raises(ValueError, match="posterior.npz is damaged, or was not written by") as e:
        Posterior.load(path, posterior.model)
    assert name != "pickled" or "allow_pickle=False" in str(e.value)


def test_no_file(posterior, tmp_path):
    with pytest.raises(FileNotFoundError):
        Posterior.load(tmp_path / "posterior.npz", posterior.model)


def test_a_model_with_a_lambda_is_told_what_to_do(tmp_path):
    model = network(lambda out: tfd.Normal(out, 1.0), units=1)
    with pytest.raises(ValueError, match="is a lambda.*register_keras_serializable"):
        model.save(tmp_path / "model.keras")


def test_a_model_with_a_function_that_is_not_registered(tmp_path):
    network(not_registered, units=1).save(tmp_path / "model.keras")
    with pytest.raises(TypeError, match="Could not locate function 'not_registered'"):
        keras.models.load_model(tmp_path / "model.keras")
    model = keras.models.load_model(
        tmp_path / "model.keras", custom_objects={"not_registered": not_registered}
    )
    assert model.loss.make_distribution_fn is not_registered


class TestInferenceData:
    def test_groups_by_chain_and_draw(self, posterior):
        pytest.importorskip("arviz", exc_type=ImportError)
        data = posterior.to_inference_data(posterior.log_likelihood(X, Y))
        trained = {v.path: s for v, s in zip(posterior.variables, posterior.samples, strict=True)}
        names = {v.path.replace("/", "."): v.path for v in posterior.model.trainable_variables}
        assert set(data.posterior.data_vars) == set(names)
        for name, path in names.items():
            values = data.posterior[name]
            assert values.dims[:2] == ("chain", "draw")
            np.testing.assert_array_equal(values, np.moveaxis(trained[path], 1, 0))
        assert data.log_likelihood["y"].shape == (C, 4, N)

    def test_one_chain(self, posterior):
        pytest.importorskip("arviz", exc_type=ImportError)
        samples = [s[:, 0] for s in posterior.samples]
        data = Posterior(posterior.model, posterior.variables, samples).to_inference_data()
        np.testing.assert_array_equal(data.posterior["net.head.bias"][0], samples[5])
        assert [*(data.children if hasattr(data, "children") else data.groups())] == ["posterior"]

    def test_variables_that_share_a_path(self, posterior):
        pytest.importorskip("arviz", exc_type=ImportError)
        twice = [posterior.variables[0]] * 2
        double = Posterior(posterior.model, twice, [posterior.samples[0]] * 2, C)
        with pytest.raises(ValueError, match="share a path.*net/body/kernel, net/body/kernel"):
            double.to_inference_data()

    def test_without_arviz(self, posterior, monkeypatch):
        monkeypatch.setitem(sys.modules, "arviz", None)
        with pytest.raises(ImportError, match=r'pip install "tfp_sgmcmc\[results\]"'):
            posterior.to_inference_data()


def test_a_loaded_model_with_a_sequential_part(tmp_path):
    """Keras leaves the name of a model within a model out of the paths of variables it loads."""
    base = keras.Sequential([keras.Input([3]), keras.layers.Dense(2, name="conv")], name="base")
    inputs = keras.Input([3])
    model = keras.Model(inputs, keras.layers.Dense(1, name="head")(base(inputs)), name="net")
    model.compile("sgd", loss="binary_crossentropy")
    samples = [RNG.normal(size=[2, *v.shape]).astype(np.float32) for v in model.variables]
    Posterior(model, model.trainable_variables, samples).save(tmp_path / "samples.npz")
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    found = Posterior.load(tmp_path / "samples.npz", loaded)
    assert_equal(found.samples, samples)
    assert [v.shape for v in found.variables] == [v.shape for v in model.variables]
    other = keras.Model(inputs, keras.layers.Dense(1, name="other")(base(inputs)), name="net")
    with pytest.raises(ValueError, match="head/kernel is in the file only"):
        Posterior.load(tmp_path / "samples.npz", other)


def test_other_weights_that_are_not_sampled_are_reported_once(tmp_path):
    """As those of a base that was frozen while the head was sampled."""

    def made(seed):
        keras.utils.set_random_seed(seed)
        base = keras.layers.Dense(2, name="base", trainable=False)
        model = keras.Sequential([keras.Input([3]), base, keras.layers.Dense(1, name="head")])
        model.compile(loss=sgmcmc.keras.losses.GaussianNLL(scale=1.0), run_eagerly=True)
        return model, base

    model, base = made(0)
    head = model.get_layer("head").trainable_variables
    found = Posterior(model, head, [np.ones([2, *v.shape], np.float32) for v in head])
    found.save(tmp_path / "head.npz")
    Posterior.load(tmp_path / "head.npz", made(0)[0]).predict(X, verbose=0)
    with pytest.warns(UserWarning, match="that are not sampled are others"):
        Posterior.load(tmp_path / "head.npz", made(1)[0])
    found.predict(X, verbose=0)
    base.kernel.assign_add([[1.0, 0.0]] * 3)
    with pytest.warns(UserWarning, match="that are not sampled are others"):
        found.predict(X, verbose=0)
    found.predict(X, verbose=0)
