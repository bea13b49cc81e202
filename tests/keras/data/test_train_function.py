"""After a fit, however it ended, the model trains as if it had never been sampled."""

import os
import signal
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tfp_sgmcmc.internal import replicas
from tfp_sgmcmc.keras import batch_steps

RNG = np.random.default_rng(0)
X = RNG.normal(size=[40, 3]).astype(np.float32)
Y = RNG.integers(0, 4, size=[40])


class Boom(Exception):
    pass


def make_model(run_eagerly=True):
    compiled = {"jit_compile": False, "run_eagerly": run_eagerly}
    return small_models.affine(optimizer=keras.optimizers.SGD(0.1), **compiled)


def make_sampler(kernel=None):
    return small_models.sampler(kernel or small_models.sgld(1e-4), num_examples=40)


def assert_trains_as_ever(model):
    """Two epochs of plain SGD change it as they change an untouched model of equal weights."""
    assert "train_step" not in vars(model)
    untouched = make_model(model.run_eagerly)
    untouched.set_weights(model.get_weights())
    histories = [
        m.fit(X, Y, batch_size=20, epochs=2, shuffle=False, verbose=0).history
        for m in (model, untouched)
    ]
    assert histories[0] == histories[1]
    small_models.assert_equal(model.get_weights(), untouched.get_weights())


def raising(hook, error, at=2):
    """Returns a callback whose `hook` raises after `at` calls."""
    calls = []

    def method(*args, **kwargs):
        calls.append(hook)
        if len(calls) > at:
            raise error

    callback = keras.callbacks.Callback()
    setattr(callback, hook, method)
    return callback


class Data(keras.utils.PyDataset):
    """Batches of 8 examples, of which the third raises `error` if there is one."""

    def __init__(self, error=None):
        super().__init__()
        self.error = error

    def __len__(self):
        return 5

    def __getitem__(self, i):
        if i == 2 and self.error is not None:
            raise self.error
        return X[8 * i : 8 * i + 8], Y[8 * i : 8 * i + 8]


@pytest.mark.thorough
@pytest.mark.parametrize("run_eagerly", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_after_a_fit_that_ends_well(run_eagerly):
    model, callback = make_model(run_eagerly), make_sampler()
    loss = model.loss
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[callback], validation_data=(X, Y))
    assert callback.samples[0].shape == (10, 3, 4)
    assert loss.reduction == "sum_over_batch_size"
    assert_trains_as_ever(model)


def test_the_model_is_its_own_between_batches():
    """Other callbacks and validation see the train function of Keras."""
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.own = self.model.train_function

        def look(self, *args, **kwargs):
            seen.append(self.model.train_function is self.own)

        on_train_batch_end = on_test_batch_begin = on_epoch_end = look

    model = make_model()
    model.fit(
        X, Y, batch_size=20, verbose=0, callbacks=[make_sampler(), Look()], validation_data=(X, Y)
    )
    assert len(seen) == 5 and all(seen)


@pytest.mark.parametrize(
    "hook, sampler_first",
    [("on_train_batch_begin", True),
     pytest.param("on_train_batch_begin", False, marks=pytest.mark.thorough),
     pytest.param("on_epoch_end", False, marks=pytest.mark.thorough),
     *(pytest.param(hook, True, marks=pytest.mark.slow)
       for hook in ("on_train_batch_end", "on_epoch_begin", "on_test_batch_end"))],
)  # fmt: skip
def test_error_in_another_callback(hook, sampler_first):
    model, callback = make_model(), make_sampler()
    callbacks = [callback, raising(hook, Boom(), at=0 if hook == "on_epoch_end" else 2)]
    with pytest.raises(Boom):
        model.fit(
            X, Y, batch_size=8, epochs=9, verbose=0, validation_data=(X, Y),
            callbacks=callbacks if sampler_first else callbacks[::-1],
        )  # fmt: skip
    assert len(callback.samples[0]) >= 2
    assert_trains_as_ever(model)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "hook",
    [
        pytest.param("on_train_begin", marks=pytest.mark.thorough),
        pytest.param("on_train_end", marks=pytest.mark.thorough),
        "set_params",
    ],
)
def test_error_before_or_after_the_batches(hook):
    model = make_model()
    with pytest.raises(Boom):
        model.fit(X, Y, verbose=0, callbacks=[make_sampler(), raising(hook, Boom(), at=0)])
    assert_trains_as_ever(model)


def test_keyboard_interrupt_keeps_the_samples():
    model, callback = make_model(), make_sampler()
    with pytest.raises(KeyboardInterrupt):
        model.fit(
            X, Y, batch_size=8, verbose=0,
            callbacks=[callback, raising("on_train_batch_end", KeyboardInterrupt())],
        )  # fmt: skip
    assert len(callback.samples[0]) == 3
    assert_trains_as_ever(model)


@pytest.mark.thorough
def test_error_in_the_training_data():
    model, callback = make_model(), make_sampler()
    with pytest.raises(tf.errors.OpError, match="Boom"):
        model.fit(Data(Boom("Boom")), shuffle=False, verbose=0, callbacks=[callback])
    assert_trains_as_ever(model)


@pytest.mark.thorough
def test_error_in_the_validation_data():
    model, callback = make_model(), make_sampler()
    with pytest.raises(tf.errors.OpError, match="Boom"):
        model.fit(
            Data(), shuffle=False, verbose=0, callbacks=[callback],
            validation_data=Data(Boom("Boom")),
        )  # fmt: skip
    assert len(callback.samples[0]) == 5
    assert_trains_as_ever(model)


def test_error_while_the_step_is_traced():
    def kernel(target):
        if target.batch is not None:
            raise Boom
        return sgmcmc.SGLD(target, step_size=1e-4)

    model = make_model()
    with pytest.raises(Boom):
        model.fit(X, Y, verbose=0, callbacks=[make_sampler(kernel)])
    assert_trains_as_ever(model)


@pytest.mark.thorough
def test_sampling_again_after_an_error():
    model, callback = make_model(), make_sampler()
    with pytest.raises(Boom):
        model.fit(
            X, Y, batch_size=8, verbose=0, callbacks=[callback, raising("on_epoch_end", Boom(), 0)]
        )
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[callback])
    assert len(callback.samples[0]) == 10


@pytest.mark.slow
def test_a_real_interrupt():
    """A process gets SIGINT in the middle of a fit, at an arbitrary instruction."""
    program = textwrap.dedent("""
        import sys, numpy as np, keras, tfp_sgmcmc as sgmcmc
        keras.utils.set_random_seed(0)
        x = np.ones([64, 3], np.float32)
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        model.compile(loss=lambda y, f: (y - f) ** 2, jit_compile=False)
        sampler = sgmcmc.keras.SamplerCallback(
            lambda target: sgmcmc.SGLD(target, 1e-4, temperature=0.), 64, None, 0, seed=0)
        ready = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: epoch or print("ready", flush=True))
        try:
            model.fit(x, x[:, :1], batch_size=1, epochs=10**6, verbose=0,
                      callbacks=[sampler, ready])
        except KeyboardInterrupt:
            pass
        num_samples = len(sampler.samples[0])
        assert num_samples >= 64
        model.compile(optimizer=keras.optimizers.SGD(0.), loss="mse", jit_compile=False)
        before = model.get_weights()
        model.fit(x, x[:, :1], verbose=0)
        assert all((a == b).all() for a, b in zip(before, model.get_weights()))
        assert len(sampler.samples[0]) == num_samples
        print("restored")
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=120)[0] == "restored\n"
    finally:
        process.kill()


@pytest.mark.parametrize("are_several", [True, False])
def test_a_lost_worker_is_explained(are_several, monkeypatch):
    """In one process the error is TensorFlow's, whatever it is about."""

    def lose(iterator):
        raise tf.errors.UnavailableError(None, None, "connection reset")

    monkeypatch.setattr(replicas, "are_several", lambda strategy: are_several)
    steps, nothing = batch_steps.BatchSteps(None, None, None), lambda: None
    function = batch_steps.BatchTrainFunction(make_model(), steps, False, nothing, nothing)
    function._function = lose
    error = RuntimeError if are_several else tf.errors.UnavailableError
    words = "Another worker of this fit was lost. .*connection reset" if are_several else "conn"
    with pytest.raises(error, match=words):
        function(iter([]))
