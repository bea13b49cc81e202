"""Attacks that end processes, clocks that go back, and two processes in one directory."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import time
import unittest.mock
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.robustness.attacks import attack, told
from benchmarks.robustness.attacks_on_fits import PRIOR, X, Y, network
from benchmarks.robustness.attacks_on_runs import (
    DATA,
    EAGER,
    QUIET,
    kernel,
    log_likelihood,
    new_folder,
    target,
)
from tfp_sgmcmc.keras import Collect, IndependentBatches, SamplerCallback
from tfp_sgmcmc.storage.lock import Lease

# New processes are forked from one that has imported the libraries. It must not import this module,
# which makes tensors: TensorFlow's threads do not survive a fork, and a new process waits for them.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["tfp_sgmcmc.adaptation.drivers", "tfp_sgmcmc.keras.callback", "tensorflow_probability"]
)
COMMIT = 0.05  # seconds


def begun(run: Callable[..., Any], *arguments: Any) -> Any:
    """Returns a process that runs a function of a module."""
    process = _CONTEXT.Process(target=run, args=arguments)
    process.start()
    return process


def killed(run: Callable[..., Any], folder: Path, seconds: float, number: signal.Signals) -> bool:
    """Ends a process that runs `run(folder)` after so many seconds.

    Returns whether it was ended so; False if it was over before. Raises RuntimeError if it failed.
    """
    process = begun(run, folder)
    process.join(seconds)
    if not process.is_alive():
        if process.exitcode:
            raise RuntimeError(f"the process ended by itself, with status {process.exitcode}")
        return False
    os.kill(process.pid, number)
    process.join()
    return True


def sample_into(folder: Path, num_results: int = 400) -> Any:
    place = sgmcmc.Directory(folder, seconds_between_commits=COMMIT)
    return sgmcmc.sample(target(), tf.constant(0.0), num_results, directory=place, **QUIET)


def shards_into(folder: Path) -> Any:
    return sgmcmc.sample_shards(
        kernel(), tf.zeros([]), 4000, num_chains=4, chains_per_shard=2, **EAGER,
        directory=sgmcmc.Directory(folder, seconds_between_commits=COMMIT),
    )  # fmt: skip


def fit_into(folder: Path, sampler: Any = "auto", epochs: int = 40) -> Any:
    place = sgmcmc.Directory(folder, seconds_between_commits=COMMIT)
    options: dict[str, Any] = dict(collect=Collect(num_burnin_epochs=epochs // 2), output=place)
    callback = SamplerCallback(sampler, prior=PRIOR, seed=0, **options)
    batches = IndependentBatches(X, Y, batch_size=16)
    keras.utils.set_random_seed(1)
    network().fit(batches, epochs=epochs, verbose=0, callbacks=[callback])
    return callback.result


def fit_sgld_into(folder: Path) -> Any:
    return fit_into(folder, sgld, 400)


def sgld(target: Any) -> Any:
    return sgmcmc.SGLD(target, 1e-3)


def _seconds(run: Callable[[Path], Any]) -> tuple[float, Any]:
    """Returns the time of a process that nobody ends, and its folder."""
    folder, began = new_folder() / "run", time.monotonic()
    process = begun(run, folder)
    process.join()
    assert process.exitcode == 0
    return time.monotonic() - began, folder


@attack("signals", quick=False)
def sigterm_in_every_phase_of_sample() -> None:
    """Before the choice, in pilots, between choice and checkpoint, and in the run."""
    whole, _ = _seconds(sample_into)
    for share in np.linspace(0.05, 0.95, 10):
        folder = new_folder() / "run"
        killed(sample_into, folder, float(share * whole), signal.SIGTERM)
        found = sample_into(folder)
        assert found.is_complete and found.num_results == 400
        assert abs(np.asarray(found.states).mean() - DATA.mean()) < 0.02


@attack("signals", quick=False)
def sigterm_in_every_phase_of_fit() -> None:
    whole, expected = _seconds(fit_sgld_into)
    expected = fit_sgld_into(expected).samples[0]
    for share in np.linspace(0.1, 0.95, 6):
        folder = new_folder() / "run"
        killed(fit_sgld_into, folder, float(share * whole), signal.SIGTERM)
        np.testing.assert_array_equal(fit_sgld_into(folder).samples[0], expected)


@attack("signals", quick=False)
def sigterm_in_every_phase_of_shards() -> None:
    whole, expected = _seconds(shards_into)
    expected = shards_into(expected).states[:]
    for share in np.linspace(0.1, 0.95, 6):
        folder = new_folder() / "run"
        killed(shards_into, folder, float(share * whole), signal.SIGTERM)
        np.testing.assert_array_equal(shards_into(folder).states[:], expected)


@attack("signals", quick=False)
def auto_is_killed_in_its_pilot() -> None:
    whole, _ = _seconds(fit_into)
    folder = new_folder() / "run"
    for share in (0.2, 0.4, 0.6, 0.8):
        killed(fit_into, folder, share * whole, signal.SIGKILL)
    assert np.isfinite(np.asarray(fit_into(folder).samples[0])).all()


def _die_once(parent: Path) -> None:
    """Ends this process if it is the first other than the one whose number `parent` holds."""
    if os.getpid() != int(parent.read_text()):
        with contextlib.suppress(FileExistsError):
            parent.with_name("dead").touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)


def part_of_stream(i: int, dies: Path | None = None) -> sgmcmc.StreamedLogProb:
    """Returns a third of the rows; the process that first reads the middle third again dies."""
    x = DATA[i::3]

    def read() -> Any:
        yield from np.array_split(x, 5)
        if dies is not None and i == 1:
            _die_once(dies)

    rows = tf.data.Dataset.from_generator(read, output_signature=tf.TensorSpec([None], tf.float32))
    prior = tfp.distributions.Normal(0.0, 10.0).log_prob
    return sgmcmc.StreamedLogProb(prior, log_likelihood, rows, len(x), batch_size=50, memory=400)


def target_of_worker(dies: Path) -> sgmcmc.MinibatchLogProb:
    _die_once(dies)
    return target()


@contextlib.contextmanager
def _two_workers() -> Generator[tuple[Any, Path]]:
    """Yields a client of dask, and a file for `_die_once`, which one worker must have obeyed."""
    from dask.distributed import Client, LocalCluster

    dies = new_folder() / "parent"
    dies.write_text(str(os.getpid()))
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client, dies
    assert dies.with_name("dead").exists()


@attack("shards and leases", quick=False)
def a_worker_dies_while_it_chooses() -> None:
    """The other worker chooses the same, and its draws are those of one process."""
    arguments = tf.zeros([]), 100
    options: dict[str, Any] = QUIET | dict(num_chains=4, chains_per_shard=2)
    expected = sgmcmc.sample(target(), *arguments, **options)
    with _two_workers() as (client, dies):
        make = functools.partial(target_of_worker, dies)
        found = sgmcmc.sample(make, *arguments, executor=client, **options)
    np.testing.assert_array_equal(np.asarray(found.states), np.asarray(expected.states))


@attack("shards and leases", quick=False)
def a_worker_dies_in_a_pass_over_its_part() -> None:
    """dask gives the part to the other worker, and the pool is that of one process."""
    options: dict[str, Any] = dict(num_parts=3, jit_compile=False)
    expected, _ = sgmcmc.draw_pool(part_of_stream, tf.zeros([]), **options)
    with _two_workers() as (client, dies):
        make = functools.partial(part_of_stream, dies=dies)
        found, _ = sgmcmc.draw_pool(make, tf.zeros([]), executor=client, **options)
    z = tf.linspace(1.8, 2.2, 9)
    np.testing.assert_array_equal(found(z), expected(z))


def _until(path: Path, process: Any) -> None:
    while not path.exists():
        assert process.is_alive(), "the first process ended by itself"
        time.sleep(0.01)


@attack("signals", quick=False)
def two_processes_in_one_directory() -> None:
    for run, arguments in ((sample_into, (200_000,)), (fit_into, (sgld, 100_000))):
        folder = new_folder() / "run"
        process = begun(run, folder, *arguments)
        try:
            _until(folder / "checkpoint.npz", process)
            told(f"in use by process {process.pid}", lambda r=run, f=folder: r(f), ValueError)
        finally:
            process.kill()
            process.join()


@attack("clocks")
def the_clock_goes_back() -> None:
    """The time of day falls by a day at each look, in runs, their files and a lease."""
    now = iter(range(10**9, 0, -86_400))
    with unittest.mock.patch("time.time", lambda: float(next(now))):
        folder, expected = new_folder(), sgmcmc.sample_chain(kernel(), tf.zeros([]), 40, **EAGER)
        for num_results in (20, 40):
            found = sgmcmc.sample_chain(
                kernel(), tf.zeros([]), num_results, **EAGER,
                directory=sgmcmc.Directory(folder, seconds_between_commits=1e-3),
            )  # fmt: skip
            for i, path in enumerate(sorted(folder.rglob("*"))):
                os.utime(path, (1000.0 - i, 1000.0 - i))
        np.testing.assert_array_equal(found.states, expected.states)
        held = Lease(folder / "run.lock")
        os.utime(folder / "run.lease", (1.0, 1.0))
        told("in use by process", lambda: Lease(folder / "run.lock", patience=3.0), ValueError)
        held.release()
