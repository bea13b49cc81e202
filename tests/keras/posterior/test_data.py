"""Data sets, generators and nests in `predict`, `evaluate`, `outputs` and `log_likelihood`."""

import contextlib
import io
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tests.keras.small_models import CROSSENTROPY, linear, unit_normal

N, S, B = 10, 5, 4
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, 3]).astype(np.float32)
Y = RNG.integers(0, 4, size=[N])
WEIGHTS = RNG.uniform(0.5, 2.0, size=[N])
KERNELS = RNG.normal(size=[S, 3, 4]).astype(np.float32)


class Rows(keras.utils.PyDataset):
    """Batches of arrays; without an end if `length` is None."""

    def __init__(self, *arrays, length=3):
        super().__init__()
        self.arrays, self.length, self.epochs = arrays, length, 0

    @property
    def num_batches(self):
        return self.length

    def __getitem__(self, i):
        start = B * (i % 3)
        return tuple(a[start : start + B] for a in self.arrays)

    def on_epoch_end(self):
        self.epochs += 1


def generator(*arrays, count=3):
    data = Rows(*arrays)
    return (data[i] for i in range(count))


def dataset(*arrays):
    return tf.data.Dataset.from_tensor_slices(arrays if len(arrays) > 1 else arrays[0]).batch(B)


FORMS = {"dataset": dataset, "PyDataset": Rows, "generator": generator}


@pytest.fixture(
    scope="module", params=[None, pytest.param(1, marks=pytest.mark.slow)], ids=["one", "chains"]
)
def posterior(request):
    kernels = KERNELS if request.param is None else KERNELS[:, None]
    weights = RNG.uniform(0.1, 1.0, size=[S])
    model = linear(run_eagerly=False, jit_compile=False)
    made = small_models.posterior_of(model, [kernels], request.param)
    return made.with_samples(made.samples, weights)


def assert_same(some, others):
    some, others = keras.tree.flatten(some), keras.tree.flatten(others)
    for a, b in zip(some, others, strict=True):
        assert np.array_equal(a, b) if b is not None else a is None


@pytest.mark.parametrize(
    "form, is_read_in_blocks",
    [
        ("dataset", True),
        pytest.param("PyDataset", False, marks=pytest.mark.thorough),
        ("generator", False),
        pytest.param("dataset", False, marks=pytest.mark.thorough),
        pytest.param("PyDataset", True, marks=pytest.mark.thorough),
        pytest.param("generator", True, marks=pytest.mark.thorough),
    ],
)
def test_data_in_batches_are_as_good_as_arrays(posterior, form, is_read_in_blocks, monkeypatch):
    """Equal bit for bit; labels and weights are left out where they are not needed."""
    make = FORMS[form]
    given = {"x": (X,), "x, y": (X, Y), "x, y, w": (X, Y, WEIGHTS)}
    if is_read_in_blocks:  # of one batch, each through several chunks of samples
        monkeypatch.setattr("tfp_sgmcmc.keras.posterior.batches._BLOCK_ENTRIES", 1)
        monkeypatch.setattr("tfp_sgmcmc.keras.posterior.sample_loops._CHUNK_BYTES", 2 * 12 * 4)
    whole = posterior.predict(X, B)
    for arrays in given.values():
        assert_same(posterior.predict(make(*arrays)), whole)
    assert_same(posterior.outputs(make(X)), posterior.outputs(X, B))
    assert posterior.evaluate(make(X, Y)) == posterior.evaluate(X, Y, batch_size=B)
    assert posterior.evaluate(make(X, Y, WEIGHTS)) == posterior.evaluate(X, Y, WEIGHTS, B)
    assert posterior.evaluate(X, Y) != posterior.evaluate(X, Y, WEIGHTS)
    assert_same(posterior.log_likelihood(make(X, Y)), posterior.log_likelihood(X, Y, B))


def test_the_samples_on_disk_are_read_once_for_a_block(monkeypatch):
    class Stored:
        shape, dtype, reads = KERNELS.shape, KERNELS.dtype, 0

        def __getitem__(self, item):
            self.reads += 1
            return KERNELS[item]

    monkeypatch.setattr("tfp_sgmcmc.keras.posterior.sample_loops._CHUNK_BYTES", 3 * 12 * 4)
    stored = Stored()
    small_models.posterior_of(linear(), [stored]).predict(generator(X))
    assert stored.reads == 2  # chunks


def test_steps(posterior):
    expected = posterior.predict(X[: 2 * B], B)
    endless = dataset(X).repeat()
    for x in (dataset(X), endless, Rows(X, length=None), generator(X, count=10**9)):
        assert_same(posterior.predict(x, steps=2), expected)
    assert_same(posterior.predict(X, B, steps=2), expected)
    assert len(posterior.predict(X, steps=3).mean) == N  # batches of ceil(10 / 3), as in Keras
    taken = generator(X, count=10**9)
    posterior.predict(taken, steps=1)
    np.testing.assert_array_equal(next(taken)[0], X[B : 2 * B])  # no batch was taken in advance
    with pytest.warns(UserWarning, match="The data ended after 3 of 7 batches"):
        assert_same(posterior.predict(generator(X), steps=7), posterior.predict(X, B))


def test_a_py_dataset_is_told_the_end_of_its_epoch(posterior):
    data = Rows(X)
    posterior.predict(data)
    assert data.epochs == 1


@pytest.mark.thorough
def test_nests_of_inputs_and_labels():
    inputs = {"a": keras.Input([3], name="a"), "b": keras.Input([3], name="b")}
    units = {"kind": 4, "value": 1}
    layers = {n: keras.layers.Dense(u, use_bias=False, name=n) for n, u in units.items()}
    model = keras.Model(inputs, {"kind": layers["kind"](inputs["a"]),
                                 "value": layers["value"](inputs["b"])})  # fmt: skip
    model.compile(loss={"kind": CROSSENTROPY, "value": unit_normal}, run_eagerly=True)
    posterior = small_models.posterior_of(model, [KERNELS, KERNELS[..., :1]])
    x, y = {"a": X, "b": 2 * X}, {"kind": Y, "value": X[:, :1]}
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(B)
    whole = posterior.predict(x, B)
    assert_same(posterior.predict(data), whole)
    assert_same(posterior.predict(data.map(lambda x, y: x)), whole)  # elements are dicts
    assert posterior.evaluate(data) == posterior.evaluate(x, y, batch_size=B)
    assert posterior.evaluate(data, steps=2) != posterior.evaluate(data)


def test_sequences_of_several_lengths():
    """Batches are padded to different lengths; masked steps do not count."""
    embedding = keras.layers.Embedding(4, 4, mask_zero=True)
    model = keras.Sequential([keras.Input([None], dtype="int32"), embedding])
    model.compile(loss=CROSSENTROPY, run_eagerly=True)
    tables = RNG.normal(size=[S, 4, 4]).astype(np.float32)
    posterior = small_models.posterior_of(model, [tables])
    long, labels = np.array([[1, 2, 3], [3, 0, 0]]), np.array([[1, 0, 1], [0, 1, 1]])
    short = long[1:, :1]
    padded = posterior.evaluate(np.concatenate([long, [[3, 0, 0]]]), labels[[0, 1, 1]])
    batches = iter([(long, labels), (short, labels[1:, :1])])
    found = posterior.evaluate(batches)
    np.testing.assert_allclose(found[:3], padded[:3], rtol=1e-6)
    with pytest.raises(ValueError, match=r"outputs of one shape.*\(2, 3, 4\).*\(1, 1, 4\)"):
        posterior.predict(iter([(long,), (short,)]))


def test_the_progress_bar(posterior):
    def printed(data, **arguments):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            posterior.predict(data, **arguments)
        return out.getvalue()

    assert printed(X) == printed(X, verbose=0) == ""  # no terminal
    for data in (dataset(X), generator(X)):
        shown = printed(data, verbose=1)
        assert "3/3" in shown and shown.count("\n") == 1
    assert printed(dataset(X), verbose=2).startswith("3/3")


def test_a_notebook_gets_the_progress_of_sample_chain(posterior, monkeypatch, capsys):
    """Bars of Keras go back by backspaces, which exported notebooks show as boxes."""
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    posterior.predict(dataset(X))
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("100 % of 3 batches in ") and err.count("\n") == 1
    posterior.predict(generator(X))  # of unknown length
    assert "3/3" in capsys.readouterr().out


ENDLESS = {
    "a tf.data.Dataset": lambda: dataset(X).repeat(),
    "a PyDataset": lambda: Rows(X, length=None),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_data_without_an_end(posterior, kind):
    with pytest.raises(ValueError, match=f"steps must be given with {kind} that has no end"):
        posterior.predict(ENDLESS[kind]())


def test_a_generator_without_an_end(posterior, monkeypatch):
    monkeypatch.setattr("tfp_sgmcmc.keras.posterior.batches._MOST_BATCHES", 7)
    monkeypatch.setattr("tfp_sgmcmc.keras.posterior.batches._BLOCK_ENTRIES", 1)
    with pytest.raises(ValueError, match="must end within 7 batches. .* Pass steps="):
        posterior.predict(generator(X, count=10**9))
    posterior.predict(generator(X, count=7))
    posterior.predict(generator(X, count=9), steps=9)


@pytest.mark.parametrize(
    "data",
    [
        lambda: dataset(X).take(0),
        lambda: dataset(X).filter(lambda x: False),
        lambda: Rows(X, length=0),
        lambda: generator(X, count=0),
    ],
)
def test_data_without_batches(posterior, data):
    with pytest.raises(ValueError, match="x must have at least one batch"):
        posterior.predict(data())


@pytest.mark.parametrize("form", FORMS)
def test_data_that_do_not_fit(posterior, form):
    make = FORMS[form]
    for arguments in ({"batch_size": 4}, {"y": Y}, {"sample_weight": WEIGHTS}):
        (name,) = arguments
        with pytest.raises(ValueError, match=f"{name} must be None with a"):
            posterior.evaluate(make(X, Y), **arguments)
    with pytest.raises(ValueError, match="batch_size must be None with a"):
        posterior.predict(make(X), 4)
    for use in (posterior.evaluate, posterior.log_likelihood):
        with pytest.raises(ValueError, match="x must have labels.*Received: batches without y"):
            use(make(X))
    with pytest.raises(ValueError, match=r"x must have shape \['rows', 3\]"):
        posterior.predict(make(X[:, :2]))
    bad = np.where(np.arange(N)[:, None] == 6, np.nan, X)
    with pytest.raises(ValueError, match="x must have finite entries. .* in row 6"):
        posterior.predict(make(bad))
    for use in (posterior.evaluate, posterior.log_likelihood, posterior.calibrate):
        with pytest.raises(ValueError, match=r"y must hold .* in 0 .. 3.* Received: .* labels"):
            use(make(X, Y + 5))
        with pytest.raises(TypeError, match="y must hold numbers. Received: strings"):
            use(make(X, Y.astype(str)))
    with pytest.raises(ValueError, match="not all zero"):
        posterior.evaluate(make(X, Y, 0 * WEIGHTS))
    with pytest.raises(ValueError, match="not negative"):
        posterior.evaluate(make(X, Y, -WEIGHTS))


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        ({"steps": 0}, ValueError, "steps must be at least 1"),
        ({"steps": 2.5}, TypeError, "steps must be an integer"),
        ({"verbose": 3}, ValueError, "verbose must be 'auto', 0, 1 or 2. Received: 3"),
        ({"verbose": "loud"}, ValueError, "verbose must be 'auto', 0, 1 or 2"),
    ],
)
def test_unfit_arguments(posterior, arguments, error, words):
    with pytest.raises(error, match=words):
        posterior.predict(X, **arguments)


@pytest.mark.slow
def test_a_callback_predicts_from_a_data_set():
    model = small_models.affine(unit_normal)
    callback = small_models.sampler(small_models.sgld(1e-2), N, num_burnin_steps=2)
    small_models.fit(model, callback, X, np.eye(4)[Y], batch_size=B)
    pair = callback.predict(dataset(X, Y))
    assert isinstance(pair, sgmcmc.keras.Prediction)
    assert_same(pair, callback.predict(X, B))
    outputs = callback.posterior.outputs
    assert_same(outputs(generator(X)), outputs(X, B))
