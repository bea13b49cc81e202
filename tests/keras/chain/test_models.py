"""`SamplerCallback` works with the models, data and callbacks that `fit` takes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness.fast_settings import fast_settings
from tests.keras import small_models
from tests.keras.small_models import CROSSENTROPY, assert_close, assert_equal, sequential
from tfp_sgmcmc.keras.chain.chain import Chain

N = 20
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, 3]).astype(np.float32)
Y = RNG.integers(0, 4, size=[N])


def sampler(step_size=1e-3, temperature=1.0, **arguments):
    arguments = {"num_examples": N, "prior": small_models.standard_normal(), **arguments}
    return small_models.sampler(small_models.sgld(step_size, temperature), **arguments)


class WithoutTrainingArgument(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(5, "tanh")
        self.out = keras.layers.Dense(4)

    def call(self, x):
        return self.out(self.hidden(x))


class WithTrainingArgument(WithoutTrainingArgument):
    """A model that leaves it to Keras' call context to pass `training` on."""

    def __init__(self):
        super().__init__()
        self.dropout = keras.layers.Dropout(0.5, seed=0)

    def call(self, x, training=False):
        return self.out(self.dropout(self.hidden(x)))


def functional():
    inputs = keras.Input([3])
    return keras.Model(inputs, keras.layers.Dense(4)(keras.layers.Dense(5, "tanh")(inputs)))


def two_layers(**compiled):
    keras.utils.set_random_seed(1)
    return sequential(keras.layers.Dense(5), keras.layers.Dense(4), **compiled)


MODELS = {
    "sequential": two_layers,
    "unbuilt": lambda: keras.Sequential([keras.layers.Dense(5), keras.layers.Dense(4)]),
    "functional": functional,
    "subclassed": WithoutTrainingArgument,
    "training argument": WithTrainingArgument,
}


@pytest.mark.parametrize(
    "kind, jit_compile, batch_size",
    [
        pytest.param("unbuilt", "auto", 8, marks=pytest.mark.thorough),  # a shorter last batch
        pytest.param("training argument", "auto", 10, marks=pytest.mark.slow),
        *(
            pytest.param(kind, "auto", 8, marks=pytest.mark.slow)
            for kind in ("functional", "sequential", "subclassed")
        ),
        pytest.param("training argument", False, 8, marks=pytest.mark.slow),
    ],
)
def test_models(kind, jit_compile, batch_size):
    keras.utils.set_random_seed(1)
    model = MODELS[kind]()
    model.compile(loss=CROSSENTROPY, jit_compile=jit_compile)
    callback = sampler()
    model.fit(X, Y, batch_size=batch_size, epochs=2, verbose=0, callbacks=[callback])
    steps = 2 * -(-N // batch_size)
    shapes = [(3, 5), (5,), (5, 4), (4,)]
    assert [s.shape for s in callback.samples] == [(steps, *shape) for shape in shapes]
    for weight, samples in zip(model.trainable_variables, callback.samples, strict=True):
        np.testing.assert_array_equal(weight, samples[-1])
        assert np.abs(np.diff(samples, axis=0)).reshape(steps - 1, -1).max(axis=1).min() > 0
    assert callback.predict(X).mean.shape == (N, 4)


def test_dropout_is_active_where_the_call_context_says_so():
    """With a linear loss and temperature 0, steps can differ only by their masks."""
    model = WithTrainingArgument()
    model.compile(loss=lambda y, f: f, run_eagerly=True)
    callback = sampler(temperature=0.0, step_size=1e-4, prior=None)
    model.fit(X, np.zeros([N, 4]), batch_size=N, epochs=3, verbose=0, callbacks=[callback])
    moves = np.diff(callback.samples[2], axis=0)
    assert np.abs(moves[0] - moves[1]).max() > 0.1 * np.abs(moves).max()


@pytest.mark.thorough
def test_embedding_outside_xla():
    """Gradients of lookups come as slices and must reach the kernel as tensors."""
    layers = keras.layers.Embedding(6, 3), keras.layers.Flatten(), keras.layers.Dense(4)
    model = keras.Sequential([keras.Input([2], dtype="int32"), *layers])
    model.compile(loss=CROSSENTROPY, jit_compile=False)
    callback = sampler(prior=None, temperature=0.0)
    before = model.get_weights()[0]
    model.fit(np.tile([[1, 3]], [N, 1]), Y, batch_size=N, verbose=0, callbacks=[callback])
    changed = np.abs(callback.samples[0][0] - before).max(axis=-1) > 0
    assert changed.tolist() == [False, True, False, True, False, False]


class Cell(keras.layers.Layer):
    """A user's recurrent cell without `build`: Keras makes its weights at the first call."""

    state_size = 2

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x, states):
        state = self.dense(x) + states[0]
        return state, [state]


@pytest.mark.filterwarnings("ignore:`build..` was called on layer")
@pytest.mark.parametrize("ensemble", fast_settings([False, True], False))
def test_weights_that_a_first_call_makes_are_sampled(ensemble):
    inputs = keras.Input([2, 3])
    model = keras.Model(inputs, keras.layers.Dense(4)(keras.layers.RNN(Cell())(inputs)))
    model.compile(loss=CROSSENTROPY, jit_compile=False)
    assert len(model.trainable_variables) == 2
    callback = sgmcmc.keras.SamplerCallback(seed=0) if ensemble else sampler()
    x = np.stack([X, X], axis=1)
    model.fit(x, Y, batch_size=10, epochs=2, verbose=0, callbacks=[callback])
    shapes = [v.shape for v in model.trainable_variables]
    assert [a.shape[-len(s) :] for a, s in zip(callback.samples, shapes, strict=True)] == shapes
    assert len(shapes) == 4


def test_frozen_layers_stay():
    model = two_layers()
    model.layers[0].trainable = False
    model.compile(loss=CROSSENTROPY, run_eagerly=True)
    frozen = model.layers[0].get_weights()
    callback = sampler()
    model.fit(X, Y, verbose=0, callbacks=[callback])
    assert [s.shape for s in callback.samples] == [(1, 5, 4), (1, 4)]
    assert callback.result.non_trainable_samples == {}
    assert_equal(model.layers[0].get_weights(), frozen)


def two_outputs():
    inputs = keras.Input([3])
    regular = {"kernel_regularizer": "l2"}
    outputs = {
        "a": keras.layers.Dense(4, name="a", **regular)(inputs),
        "b": keras.layers.Dense(1, name="b")(inputs),
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer=keras.optimizers.SGD(0.0),
        loss={"a": CROSSENTROPY, "b": small_models.unit_normal},
        loss_weights={"a": 1.0, "b": 0.3},
        metrics={"a": ["accuracy"], "b": ["mae"]},
        weighted_metrics={"b": ["mse"]},
        run_eagerly=True,
        steps_per_execution=2,
    )
    return model, {"a": Y, "b": X[:, :1]}


def one_output(reduction):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    sgd = keras.optimizers.SGD(0.0)
    return two_layers(loss=loss, optimizer=sgd, metrics=["accuracy"], run_eagerly=True), Y


class Size(keras.layers.Layer):
    """A layer that updates a metric and passes a mask on."""

    def __init__(self):
        super().__init__()
        self.size = keras.metrics.Mean(name="size")
        self.supports_masking = True

    def call(self, x):
        self.size.update_state(keras.ops.abs(x))
        return x


def masked():
    x = keras.layers.Masking()(keras.layers.RepeatVector(2)(inputs := keras.Input([3])))
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(Size()(x)))
    loss = keras.losses.BinaryCrossentropy()
    model.compile(keras.optimizers.SGD(0.0), loss, weighted_metrics=["mae"], run_eagerly=True)
    return model, np.repeat(X[:, :1, np.newaxis] > 0, 2, axis=1).astype(np.float32)


@pytest.mark.parametrize(
    "make, num_chains",
    [
        pytest.param(two_outputs, None, marks=pytest.mark.thorough),
        pytest.param(lambda: one_output("sum"), None, marks=pytest.mark.slow),
        pytest.param(lambda: one_output("sum_over_batch_size"), None, marks=pytest.mark.thorough),
        (masked, None),
        pytest.param(masked, 2, marks=pytest.mark.slow),
    ],
    ids=["two outputs", "sum", "sum_over_batch_size", "masked", "masked, of chains"],
)
def test_logs_are_those_of_plain_fit(make, num_chains):
    """The chain's steps are too small to move the weights, and SGD has rate 0."""
    model, y = make()
    weights = RNG.uniform(0.5, 2.0, size=[N]).astype(np.float32)
    sample_weight = {"a": weights, "b": weights} if isinstance(y, dict) else weights
    x = X
    if make is masked:  # some rows are masked, and Keras cannot weight the others
        x, sample_weight = X * (np.arange(N)[:, np.newaxis] % 3 > 0).astype(np.float32), None
    still = sampler(step_size=1e-30, temperature=0.0, num_examples=16, num_chains=num_chains)
    histories = [
        model.fit(
            x, y, batch_size=8, epochs=2, shuffle=False, sample_weight=sample_weight, verbose=0,
            validation_split=0.2, callbacks=callbacks,
        ).history
        for callbacks in ([], [still])
    ]  # fmt: skip
    added = {"samples", "step_size", "temperature"}
    assert histories[1].keys() - histories[0].keys() == added
    for name, values in histories[0].items():
        np.testing.assert_allclose(histories[1][name], values, rtol=1e-5, err_msg=name)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return X[5 * i : 5 * i + 5], Y[5 * i : 5 * i + 5]


def generator():
    while True:
        yield from (Batches()[i] for i in range(4))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "data, arguments",
    [
        (lambda: tf.data.Dataset.from_tensor_slices((X, Y)).batch(5), {}),
        pytest.param(Batches, {}, marks=pytest.mark.thorough),
        pytest.param(generator, {"steps_per_epoch": 4}, marks=pytest.mark.thorough),
    ],
    ids=["tf.data", "PyDataset", "generator"],
)
def test_data(data, arguments, from_arrays):
    """The chain equals the chain of the same batches from arrays."""
    samples = samples_of(x=data(), **arguments)
    assert [len(s) for s in samples] == [8] * 4
    assert_close(samples, from_arrays)


@pytest.fixture(scope="module")
def from_arrays():
    return samples_of(x=X, y=Y, batch_size=5)


def samples_of(x, y=None, **arguments):
    callback, model = sampler(), two_layers(run_eagerly=True, steps_per_execution=2)
    small_models.fit(model, callback, x, y, epochs=2, **arguments)
    return callback.samples


# Keras 3 causes this warning with NumPy 2.4 when it saves a model.
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_other_callbacks(tmp_path, capsys):
    model = two_layers(metrics=["accuracy"], run_eagerly=True)
    callback = sampler(step_size=1e-4)
    others = [
        keras.callbacks.EarlyStopping("loss", min_delta=1e9, patience=2),
        keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.weights.h5", save_weights_only=True),
        keras.callbacks.ModelCheckpoint(tmp_path / "model.keras"),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        keras.callbacks.TerminateOnNaN(),
    ]  # fmt: skip
    history = model.fit(X, Y, batch_size=10, epochs=9, verbose=2, callbacks=[callback, *others])
    num_epochs = len(history.history["loss"])
    assert num_epochs == 3 and len(callback.samples[0]) == 6
    assert capsys.readouterr().out.count("accuracy") == num_epochs
    assert len((tmp_path / "log.csv").read_text().splitlines()) == num_epochs + 1
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_equal(loaded.get_weights(), model.get_weights())
    model.load_weights(tmp_path / "1.weights.h5")
    assert_equal(model.get_weights(), [s[1] for s in callback.samples])


# The callback of Keras makes an array of a tf.Variable, which does not take `copy`.
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_tensorboard(tmp_path):
    model, callback = two_layers(), sampler()
    board = keras.callbacks.TensorBoard(tmp_path, update_freq="batch")
    model.fit(X, Y, batch_size=5, verbose=0, callbacks=[callback, board])
    assert len(callback.samples[0]) == 4
    tags = {
        value.tag
        for file in tmp_path.rglob("events.out.tfevents.*")
        for record in tf.data.TFRecordDataset(str(file))
        for value in tf.compat.v1.Event.FromString(record.numpy()).summary.value
    }
    assert {"epoch_loss", "epoch_step_size", "epoch_temperature"} <= tags


class CountsTraces(keras.layers.Dense):
    traces = 0

    def call(self, x):
        type(self).traces += not tf.executing_eagerly()
        return super().call(x)


@pytest.mark.parametrize("steps_per_execution", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_step_is_traced_once(steps_per_execution, monkeypatch):
    """All variables, with those that a forward pass assigns, are created before the trace."""
    traces = []
    step = Chain.step
    monkeypatch.setattr(Chain, "step", lambda *a: traces.append(a) or step(*a))
    layers = keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), keras.layers.Dense(4)
    compiled = {"jit_compile": False, "steps_per_execution": steps_per_execution}
    model = sequential(*layers, optimizer="adam", metrics=["accuracy"], **compiled)
    callback = sampler()
    model.fit(X, Y, batch_size=10, verbose=0, callbacks=[callback])
    assert len(traces) == 1
    assert len(callback.samples[0]) > 1


@pytest.mark.thorough
def test_further_fits_trace_nothing_anew_until_compile():
    model = sequential(CountsTraces(4), jit_compile=False)
    callback = sampler()

    def traces_of_a_fit() -> int:
        before = CountsTraces.traces
        model.fit(X, Y, batch_size=10, verbose=0, callbacks=[callback])
        return CountsTraces.traces - before

    assert traces_of_a_fit() > 0
    assert traces_of_a_fit() == 0
    model.compile(loss=CROSSENTROPY, steps_per_execution=2, jit_compile=False)
    assert traces_of_a_fit() > 0
    assert len(callback.samples[0]) == 6
