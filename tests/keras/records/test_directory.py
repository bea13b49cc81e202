"""Chains in a directory: a script that was stopped and runs again leaves the same samples."""

import errno
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness.fast_settings import fast_settings
from tests.keras import small_models
from tests.keras.small_models import BINARY_CROSSENTROPY, assert_equal, sequential

N, B, EPOCHS = 12, 4, (2, 1)  # two fits, 3 steps an epoch
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, 2]).astype(np.float32)
Y = (X[:, :1] > 0).astype(np.float32)


def make_model(*hidden):
    keras.utils.set_random_seed(1)
    layers = [layer() for layer in hidden]
    return sequential(*layers, keras.layers.Dense(1), loss=BINARY_CROSSENTROPY, inputs=2)


# Layers with state: the seed of the masks, and moving statistics.
HIDDEN = (
    lambda: keras.layers.Dropout(0.2),
    lambda: keras.layers.BatchNormalization(center=False, scale=False),
)


def sampler(directory, **changes):
    arguments = {"num_burnin_steps": 1, "num_steps_between_results": 1, "directory": directory}
    arguments |= {"prior": small_models.standard_normal(), "seconds_between_commits": 0.0}
    return small_models.sampler(
        lambda target: sgmcmc.SGNHT(target, step_size=1e-2, friction=1.0), N, **arguments | changes
    )


def script(directory, callbacks=(), **changes):
    """Runs what a user would run repeatedly, and returns all that it leaves."""
    model, callback = make_model(*HIDDEN), sampler(directory, **changes)
    for epochs in EPOCHS:
        model.fit(
            X, Y, batch_size=B, shuffle=False, epochs=epochs, verbose=0,
            callbacks=[*callbacks, callback],
        )  # fmt: skip
    return left(model, callback)


def left(model, callback):
    moving = callback.result.non_trainable_samples.values()
    samples = [np.asarray(s) for s in (*callback.samples, *moving)]
    return [*samples, callback.result.trace["step"], *model.get_weights()]


class Snapshots(keras.callbacks.Callback):
    """Copies a directory in the states in which a process that is killed would leave it."""

    def __init__(self, directory, snapshots):
        super().__init__()
        self.directory, self.snapshots, self.count = directory, snapshots, 0

    def on_train_batch_end(self, batch, logs=None):
        if self.count % 3 == 1:  # the second of an epoch's three batches
            shutil.copytree(self.directory, self.snapshots / str(self.count))
        self.count += 1


@pytest.fixture(scope="module")
def in_memory():
    return script(None)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Returns the folder of a finished run, its copies in the middle of each epoch, and its end."""
    folder = tmp_path_factory.mktemp("watched")
    expected = script(folder / "run", [Snapshots(folder / "run", folder / "snapshots")])
    return folder / "run", sorted((folder / "snapshots").iterdir()), expected


@pytest.mark.thorough
def test_a_script_run_again_leaves_the_same_chain(watched, in_memory):
    run, _, expected = watched
    assert_equal(expected, in_memory)
    assert list(expected[-5]) == [1, 3, 5, 7]  # steps, before the four weights
    assert_equal(script(run), expected)  # nothing was left to do


# In each of the first fit's two epochs, and in the second fit.
@pytest.mark.parametrize("epoch", fast_settings(range(3), 1))
def test_a_script_that_was_stopped_leaves_the_same_chain(watched, epoch):
    _, snapshots, expected = watched
    assert len(snapshots) == 3
    assert_equal(script(snapshots[epoch]), expected)


@pytest.mark.slow
def test_chains_go_on(tmp_path):
    """Stacked weights, moving statistics, seeds of dropout and kernel results are restored."""

    def fits(directory, *numbers):
        for epochs in numbers:
            model, callback = make_model(*HIDDEN), sampler(directory, num_chains=2)
            model.fit(X, Y, batch_size=N, shuffle=False, epochs=epochs, verbose=0,
                      callbacks=[callback])  # fmt: skip
        return left(model, callback)

    assert_equal(fits(tmp_path / "twice", 1, 2), fits(tmp_path / "once", 2))


@pytest.mark.slow
def test_another_seed_leaves_another_chain(tmp_path, in_memory):
    """Negative control of the comparison."""
    with pytest.raises(AssertionError):
        assert_equal(in_memory, script(tmp_path, seed=1))


@pytest.mark.thorough
def test_resident_batches_go_on_where_they_were(tmp_path):
    def fits(directory, *numbers):
        for epochs in numbers:
            model, callback = make_model(), sampler(directory)
            data = callback.resident(X, Y, batch_size=5, steps_per_call=2)  # 2 steps an epoch
            model.fit(data, epochs=epochs, verbose=0, callbacks=[callback])
        return left(model, callback)

    assert_equal(fits(tmp_path / "twice", 1, 2), fits(tmp_path / "once", 2))


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Returns a run of two epochs: its directory, model and callback."""
    path = tmp_path_factory.mktemp("run") / "run"
    model, callback = make_model(), sampler(path)
    model.fit(X, Y, batch_size=B, shuffle=False, epochs=2, verbose=0, callbacks=[callback])
    return path, model, callback


def test_samples_can_be_read_by_others(stored):
    xarray = pytest.importorskip("xarray")
    path, _, callback = stored
    with xarray.open_zarr(path / "samples.zarr", group="posterior") as found:
        (kernel,) = (v for v in found.data_vars.values() if v.shape[2:] == (2, 1))
        assert kernel.dims[:2] == ("chain", "draw")
        np.testing.assert_array_equal(kernel.values[0], np.asarray(callback.samples[0]))


def test_posterior_reads_from_the_directory(stored):
    _, model, callback = stored
    copy = sgmcmc.keras.Posterior(
        model, callback.posterior.variables, [np.asarray(s) for s in callback.posterior.samples]
    )
    assert not isinstance(callback.samples[0], np.ndarray)
    np.testing.assert_array_equal(callback.predict(X).mean, copy.predict(X).mean)


class Stop(Exception):
    pass


def test_an_exception_keeps_the_samples_and_the_callback_goes_on(tmp_path):
    model, callback = make_model(), sampler(tmp_path)

    def stop(batch, logs):
        if batch == 1:
            raise Stop

    with pytest.raises(Stop):
        model.fit(
            X, Y, batch_size=B, shuffle=False, verbose=0,
            callbacks=[callback, keras.callbacks.LambdaCallback(on_train_batch_end=stop)],
        )  # fmt: skip
    assert len(callback.samples[0]) == 1
    model.fit(X, Y, batch_size=B, epochs=2, shuffle=False, verbose=0, callbacks=[callback])
    assert list(callback.result.trace["step"]) == [1, 3, 5, 7]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "error", [pytest.param(Stop, marks=pytest.mark.thorough), KeyboardInterrupt]
)
def test_after_a_fit_that_failed_the_same_process_opens_the_directory_again(tmp_path, error):
    """As in a notebook, whose second try makes a new callback while the old one is still there."""

    def fail(epoch, logs):
        if epoch == 1:
            raise error

    first = sampler(tmp_path)
    failing = keras.callbacks.LambdaCallback(on_epoch_end=fail)
    arguments = {"batch_size": B, "shuffle": False, "epochs": 3, "verbose": 0}
    with pytest.raises(error):
        make_model().fit(X, Y, callbacks=[failing, first], **arguments)
    second = sampler(tmp_path)
    make_model().fit(X, Y, callbacks=[second], **arguments)
    assert list(second.result.trace["step"]) == [1, 3, 5, 7]


def test_after_a_full_disk_the_same_process_opens_the_directory_again(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    arguments = {"batch_size": B, "shuffle": False, "epochs": 2, "verbose": 0}
    with monkeypatch.context() as patch:
        patch.setattr("tfp_sgmcmc.storage.checkpoint.save", full)
        with pytest.raises(OSError, match="No space left"):
            make_model().fit(X, Y, callbacks=[sampler(tmp_path)], **arguments)
    callback = sampler(tmp_path)
    make_model().fit(X, Y, callbacks=[callback], **arguments)
    assert list(callback.result.trace["step"]) == [1, 3, 5]


@pytest.mark.thorough
def test_the_seed_is_optional_and_a_run_goes_on_with_its_own(tmp_path):
    arguments = {"batch_size": B, "shuffle": False, "verbose": 0}
    callback = sampler(tmp_path, seed=None)
    make_model().fit(X, Y, epochs=1, callbacks=[callback], **arguments)
    again = sampler(tmp_path, seed=None)
    make_model().fit(X, Y, epochs=2, callbacks=[again], **arguments)
    assert again.seed == callback.seed
    whole = sampler(None, seed=callback.seed)
    make_model().fit(X, Y, epochs=2, callbacks=[whole], **arguments)
    assert_equal([np.asarray(s) for s in again.samples], whole.samples)


@pytest.mark.filterwarnings("ignore:step_size must be below")
@pytest.mark.parametrize(
    "slope",
    [1e5, pytest.param(1e9, marks=pytest.mark.thorough)],
    ids=["after samples", "before the first"],
)
def test_a_chain_that_breaks_down_lets_go_of_the_directory(tmp_path, slope):
    for _ in range(2):
        callback = sampler(tmp_path, prior=lambda state: slope * tf.reduce_sum(state[0] ** 4))
        with pytest.raises(sgmcmc.NonFiniteChainError):
            make_model().fit(X, Y, epochs=1000, verbose=0, callbacks=[callback])
        assert all(np.isfinite(s[:]).all() for s in callback.samples)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"seed": 1}, "seed"),
        ({"num_burnin_steps": 5}, "num_burnin_steps: 1, but here 5"),
        ({"num_chains": 2}, "num_chains: None, but here 2"),
    ],
)
def test_a_run_with_other_numbers_is_refused_and_left_as_it_is(stored, changes, words):
    path = stored[0]
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match=words):
        make_model().fit(X, Y, batch_size=B, verbose=0, callbacks=[sampler(path, **changes)])
    assert before.keys() == {p for p in path.rglob("*") if p.is_file()}
    assert all(p.read_bytes() == old for p, old in before.items() if p.name != "run.lock")


@pytest.mark.parametrize(
    "of_fit, of_callback, of_compile, words",
    [
        ({"batch_size": 6}, {}, {}, "batch_size: 4, but here 6"),
        ({"shuffle": True}, {}, {}, "shuffle: False, but here True"),
        ({"x": X + 1}, {}, {}, "any fit, x"),
        ({"y": 1 - Y}, {}, {}, "any fit, y"),
        ({"sample_weight": np.ones(N)}, {}, {}, "any fit, sample_weight: None, but here"),
        ({}, {"prior": lambda state: 0.0 * tf.reduce_sum(state[0])}, {}, "log prior"),
        ({}, {"keep": lambda step: step % 2 == 0}, {}, "keep"),
        ({}, {}, {"loss": small_models.unit_normal}, "log posterior at fixed weights"),
    ],
)
def test_a_changed_problem_is_refused_by_name(stored, of_fit, of_callback, of_compile, words):
    """`benchmarks/robustness/resumes.py` has more changes."""
    model, callback = make_model(), sampler(stored[0], **of_callback)
    if of_compile:
        model.compile(**of_compile, run_eagerly=True)
    given = {"x": X, "y": Y, "batch_size": B, "shuffle": False, **of_fit}
    with pytest.raises(ValueError, match=f"belongs to another run.*{words}"):
        model.fit(**given, epochs=2, verbose=0, callbacks=[callback])


def test_another_kernel_is_refused(stored):
    other = sampler(stored[0])
    other._settings._make_kernel_fn = lambda target: sgmcmc.SGLD(target, step_size=1e-2)
    with pytest.raises(ValueError, match="kernel: SGNHT, but here SGLD"):
        make_model().fit(X, Y, batch_size=B, epochs=2, verbose=0, callbacks=[other])


def test_another_model_is_refused(stored):
    other = keras.layers.Dense(1, use_bias=False, name="other")
    model = sequential(other, loss=BINARY_CROSSENTROPY, inputs=2)
    with pytest.raises(ValueError, match="must be a run of this model"):
        model.fit(X, Y, batch_size=B, verbose=0, callbacks=[sampler(stored[0])])


def test_a_model_that_is_not_built_is_refused(tmp_path):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(loss=BINARY_CROSSENTROPY, run_eagerly=True)
    with pytest.raises(ValueError, match="must be built before fit"):
        model.fit(X, Y, batch_size=B, verbose=0, callbacks=[sampler(tmp_path)])


# NumPy warns about the variables that Keras itself writes.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_backup_and_restore(tmp_path, watched):
    """BackupAndRestore is refused alone, and changes nothing before a sampler with a directory."""
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    for callbacks, words in (
        ([backup, sampler(None)], r"SamplerCallback\(output=\"run\"\) saves all of the chain"),
        ([sampler(tmp_path / "a"), backup], "must come before SamplerCallback"),
    ):
        with pytest.raises(ValueError, match=words):
            make_model().fit(X, Y, batch_size=B, verbose=0, callbacks=callbacks)
    assert_equal(script(tmp_path / "b", [backup]), watched[-1])


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path):
    """After seven SIGKILLs during fits, a last run leaves the chain of an uninterrupted run."""
    source = Path(__file__).read_text().split("class Stop(")[0]
    program = tmp_path / "program.py"
    program.write_text(
        source + "import signal, threading, time\n"
        "directory, output, seconds = sys.argv[1:]\n"
        "class Begun(keras.callbacks.Callback):\n"
        "    def on_train_batch_begin(self, batch, logs=None):\n"
        "        begun.set()\n"
        "begun = threading.Event()\n"
        "def kill():\n"
        "    begun.wait(); time.sleep(float(seconds)); os.kill(os.getpid(), signal.SIGKILL)\n"
        "if float(seconds):\n"
        "    threading.Thread(target=kill, daemon=True).start()\n"
        "found = script(directory, [Begun()])\n"
        "np.savez(output, *found)\n"
    )

    def run(directory, output, seconds):
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
        command = [sys.executable, program, directory, output, str(seconds)]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    done = run(tmp_path / "whole", tmp_path / "whole.npz", 0)
    assert done.returncode == 0, done.stderr
    killed = 0
    for seconds in np.random.default_rng(0).uniform(0.05, 0.8, size=7):
        killed += run(tmp_path / "killed", tmp_path / "killed.npz", seconds).returncode == -9
    assert killed >= 3
    assert run(tmp_path / "killed", tmp_path / "killed.npz", 0).returncode == 0
    with np.load(tmp_path / "whole.npz") as whole, np.load(tmp_path / "killed.npz") as other:
        assert_equal([whole[k] for k in whole], [other[k] for k in other])


def test_after_a_refused_resume_the_same_callback_goes_on(tmp_path):
    """A call with other data, its correction, and then the rest of the epochs alone."""
    arguments = {"batch_size": B, "shuffle": False, "verbose": 0}
    make_model().fit(X, Y, epochs=2, callbacks=[sampler(tmp_path)], **arguments)
    model, again = make_model(), sampler(tmp_path)
    with pytest.raises(ValueError, match="belongs to another run"):
        model.fit(X + 1, Y, epochs=3, callbacks=[again], **arguments)
    assert not again.samples or len(again.samples[0]) in (0, 3)
    model.fit(X, Y, epochs=3, callbacks=[again], **arguments)
    assert list(again.result.trace["step"]) == [1, 3, 5, 7]
    assert again.result._num_before == 6  # the steps of the first process count for no time


def test_a_fit_that_took_no_step_does_not_count(tmp_path):
    """Otherwise the next process would take its only `fit` for one that was completed."""

    def fail(batch, logs=None):
        raise Stop

    arguments = {"batch_size": B, "shuffle": False, "verbose": 0}
    model, callback = make_model(), sampler(tmp_path)
    failing = keras.callbacks.LambdaCallback(on_train_batch_begin=fail)
    with pytest.raises(Stop):
        model.fit(X, Y, epochs=2, callbacks=[callback, failing], **arguments)
    model.fit(X, Y, epochs=2, callbacks=[callback], **arguments)
    again = sampler(tmp_path)
    make_model().fit(X, Y, epochs=3, callbacks=[again], **arguments)
    assert list(again.result.trace["step"]) == [1, 3, 5, 7]


def test_weights_that_another_callback_restores_before_the_end_are_told(tmp_path):
    """EarlyStopping before the sampler sets the best weights, which the directory then keeps."""

    class Restores(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            self.model.set_weights([0 * w for w in self.model.get_weights()])

    callbacks = [Restores(), sampler(tmp_path)]
    with pytest.warns(UserWarning, match="must have the weights that fit has left"):
        make_model().fit(X, Y, batch_size=B, verbose=0, callbacks=callbacks)


@pytest.mark.parametrize("method", ["on_epoch_end", "on_train_batch_end"])
@pytest.mark.parametrize("is_first", [False, True])
def test_weights_that_another_callback_changes_during_fit_are_told(method, is_first):
    """As clipping or pruning does, in a list before or behind the sampler."""

    def halve(*_, **__):
        model.set_weights([0.5 * w for w in model.get_weights()])

    model, callback = make_model(), sampler(None)
    callbacks = [keras.callbacks.LambdaCallback(**{method: halve}), callback]
    arguments = {"batch_size": B, "epochs": 2, "verbose": 0}
    with pytest.warns(UserWarning, match="another callback that changes weights"):
        model.fit(X, Y, callbacks=callbacks[:: 1 if is_first else -1], **arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_model().fit(X, Y, callbacks=[sampler(None)], **arguments)


@pytest.mark.parametrize("is_stored", [False, True])
def test_an_interrupt_while_samples_are_taken_loses_none(tmp_path, is_stored, monkeypatch):
    callback = sampler(tmp_path if is_stored else None)
    model = make_model()
    arguments = {"batch_size": B, "shuffle": False, "verbose": 0, "callbacks": [callback]}
    model.fit(X, Y, epochs=1, **arguments)
    rings = callback.recorder.chain.rings
    read, calls = type(rings).read, []

    def interrupted(self, num_taken, num_kept, before):
        if num_kept > num_taken and not calls:
            calls.append(num_kept)
            raise KeyboardInterrupt
        return read(self, num_taken, num_kept, before)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(rings), "read", interrupted)
        model.fit(X, Y, epochs=2, **arguments)
    model.fit(X, Y, epochs=2, **arguments)
    steps = list(callback.result.trace["step"])
    assert steps == list(range(1, steps[-1] + 1, 2)) and len(calls) == 1
