"""Attacks on stored draws, resumed runs and shards."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest.mock
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.robustness.attacks import attack, told
from tfp_sgmcmc.internal import extras
from tfp_sgmcmc.sampling.shards import shard_worker
from tfp_sgmcmc.storage.lock import SIGNATURE, Lease

tfd = tfp.distributions
DATA = np.random.default_rng(0).normal(2.0, 1.0, size=[1000]).astype(np.float32)
QUIET: dict[str, Any] = dict(seed=0, progress_bar=False)
EAGER: dict[str, Any] = QUIET | dict(jit_compile=False, preflight_check=False)


def log_likelihood(mean: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
    return tfd.Normal(mean[..., tf.newaxis], 1.0).log_prob(tf.cast(batch, tf.float32))


def target(data: Any = DATA, batch_size: int = 50) -> sgmcmc.MinibatchLogProb:
    prior = tfd.Normal(0.0, 10.0).log_prob
    return sgmcmc.MinibatchLogProb(prior, log_likelihood, data, batch_size)


def kernel() -> sgmcmc.SGLD:
    return sgmcmc.SGLD(target(), 1e-4)


def chosen(folder: Path, data: Any = DATA, **options: Any) -> sgmcmc.SampleResult:
    """Returns a run of `sample` in a directory."""
    given: dict[str, Any] = QUIET | {"directory": folder} | options
    return sgmcmc.sample(target(data), tf.constant(0.0), 100, **given)


def stored(folder: Path, data: Any = DATA) -> sgmcmc.SampleResult:
    made = sgmcmc.SGLD(target(data), 1e-4)
    return sgmcmc.sample_chain(made, tf.zeros([]), 20, directory=folder, **EAGER)


def new_folder() -> Path:
    return Path(tempfile.mkdtemp())


class Inline(Executor):
    """Makes each call at once."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future:
        future: Future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def in_shards(folder: Path | None, make: Any = kernel, num_results: int = 4) -> Any:
    return sgmcmc.sample_shards(
        make, tf.zeros([]), num_results, num_chains=4, chains_per_shard=2, executor=Inline(),
        directory=folder, **EAGER,
    )  # fmt: skip


@attack("stored draws")
def the_folder_is_gone() -> None:
    with tempfile.TemporaryDirectory() as folder:
        result = stored(Path(folder))
    told(folder, lambda: np.asarray(result.states), ValueError)


@attack("stored draws")
def a_chunk_is_gone() -> None:
    result = stored(folder := new_folder())
    (folder / "samples.zarr" / "posterior" / "state" / "c.0.0").unlink()
    told("is missing", lambda: np.asarray(result.states), ValueError)


@attack("stored draws")
def another_run_is_in_its_place() -> None:
    result, other = stored(folder := new_folder()), new_folder()
    stored(other, DATA + 100)
    shutil.rmtree(folder)
    shutil.copytree(other, folder)
    told("of another run", lambda: np.asarray(result.states), ValueError)


@attack("stored draws")
def the_process_changes_its_folder() -> None:
    before = Path.cwd()
    try:
        os.chdir(new_folder())
        result = stored(Path("run"))
        os.chdir(new_folder())
        stored(Path("run"), DATA + 100)
        assert abs(np.asarray(result.states).mean()) < 10
    finally:
        os.chdir(before)


@attack("stored draws")
def a_byte_of_a_chunk_is_changed() -> None:
    result = stored(folder := new_folder())
    chunk = folder / "samples.zarr" / "posterior" / "state" / "c.0.0"
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(content)
    told(str(chunk.parent), lambda: np.asarray(result.states), ValueError)


@attack("stored draws")
def the_folder_of_shards_is_renamed() -> None:
    result = in_shards(folder := new_folder() / "run")
    expected = result.states[:]
    folder.rename(moved := folder.with_name("moved"))
    told(str(folder), lambda: result.states[:], ValueError)
    moved.rename(folder)
    np.testing.assert_array_equal(result.states[:], expected)


@attack("stored draws")
def a_result_is_pickled() -> None:
    result = stored(new_folder())
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(result)).states, result.states)


@attack("resumed choices", quick=False)
def another_call_goes_on_before_the_first_checkpoint() -> None:
    chosen(folder := new_folder() / "run")
    cut = new_folder()
    shutil.copy(folder / "choices.npz", cut)
    (cut / "run.lock").write_text(f"{SIGNATURE}1\n")
    told("num_chains: 4, but here 6", lambda: chosen(cut, num_chains=6), ValueError)
    told("log posterior", lambda: chosen(cut, DATA + 1), ValueError)
    told("num_examples", lambda: chosen(cut, DATA[:999]), ValueError)
    assert chosen(cut).is_complete


@attack("shards and leases")
def a_worker_died_at_its_first_steps() -> None:
    for text in ("", SIGNATURE):
        in_shards(folder := new_folder() / "run")
        shutil.rmtree(folder / "shard-1")
        (folder / "shard-1").mkdir()
        (folder / "shard-1" / "run.lease").write_text(text)
        assert in_shards(folder).is_complete


@attack("shards and leases")
def processes_of_one_number_begin_at_once() -> None:
    folder = new_folder()
    found: list[Any] = [None] * 16

    def look(i: int) -> None:
        found[i] = shard_worker._first_problem(folder, {"number": i})

    with unittest.mock.patch("os.getpid", lambda: 1):
        threads = [threading.Thread(target=look, args=(i,)) for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found[0] is not None and all(x == found[0] for x in found)


@attack("shards and leases")
def the_client_died_and_calls_again() -> None:
    in_shards(folder := new_folder() / "run", num_results=2)
    held = Lease(folder / "shard-1" / "run.lock")
    threading.Timer(1.0, held.release).start()
    assert in_shards(folder).is_complete


@attack("shards and leases")
def a_scheduler_unpickles_the_call() -> None:
    packed = extras.pack_call("make_kernel", shard_worker.run_shard, 3)
    program = "import pickle, sys; pickle.load(sys.stdin.buffer); "
    program += "sys.exit('tensorflow' in sys.modules)"
    submitted = pickle.dumps((extras.make_call, packed))
    assert subprocess.run([sys.executable, "-c", program], input=submitted).returncode == 0


@attack("shards and leases")
def a_target_in_shards() -> None:
    """One worker chooses. The mean and the standard deviation are within 5 standard errors."""
    told("chooses the settings of a target", lambda: in_shards(None, target()), TypeError)
    found = sgmcmc.sample(
        target, tf.zeros([]), 300, num_chains=8, chains_per_shard=2, executor=Inline(), **QUIET
    )
    mean, sd = DATA.mean() / (1 + 0.01 / len(DATA)), (len(DATA) + 0.01) ** -0.5
    draws, error = np.asarray(found.states), 5 / (0.6 * 2400) ** 0.5
    assert found.is_trusted and draws.shape == (300, 8)
    assert abs(draws.mean() - mean) < error * sd and abs(draws.std() / sd - 1) < error


@attack("shards and leases")
def growing_batches_in_shards() -> None:
    made = sgmcmc.SGLD(sgmcmc.GrowingBatch(target(), growth=1.2), 1e-4)
    found = in_shards(None, lambda: made, 60)
    assert found.is_complete and np.isfinite(found.states[:]).all()


@attack("shards and leases")
def a_pool_is_given_a_lambda() -> None:
    with unittest.mock.patch("importlib.util.find_spec", lambda name: None):
        told("install cloudpickle", lambda: in_shards(None, lambda: kernel()), TypeError)
