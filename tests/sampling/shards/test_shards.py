"""Chains in shards: the same draws as each shard alone, whoever runs them and whatever fails."""

import importlib.util
import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.sampling import runs
from tests.sampling.runs import Walk, assert_equal
from tfp_sgmcmc.internal import extras
from tfp_sgmcmc.sampling.shards import shard_driver, shard_worker
from tfp_sgmcmc.sampling.shards.shard_worker import (
    SegmentMoments,
    batch_means_sample_size,
    concatenate,
    rhat,
)
from tfp_sgmcmc.sampling.shards.sharded_result import ShardedDraws
from tfp_sgmcmc.storage import lock, zarr_store
from tfp_sgmcmc.storage.directory import SAMPLES

EAGER: dict[str, Any] = dict(seed=7, jit_compile=False, progress_bar=False)
FORKS = ProcessPoolExecutor(1, multiprocessing.get_context("fork"))  # starts no process by itself
START = {"x": tf.reshape(tf.range(10.0), [5, 2]), "y": tf.range(5.0)}


class Inline(Executor):
    """Runs each task at once, in the order given by `order`."""

    def __init__(self, fail: int | None = None):
        self.fail, self.count = fail, 0

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future:
        future: Future = Future()
        try:
            self.count += 1
            if self.count - 1 == self.fail:
                raise OSError("the worker is gone")
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def number(state: Any, results: Any) -> Any:
    return {"number": results["number"], "x": 2 * state["x"]}


def in_shards(kernel: Any = None, num_results: int = 50, **options: Any) -> Any:
    return sgmcmc.sample_shards(
        kernel or Walk(), START, num_results, trace_fn=number, **EAGER | options
    )


@pytest.fixture(scope="module")
def in_memory() -> Any:
    return in_shards(chains_per_shard=2)


@pytest.mark.thorough
def test_each_shard_is_a_run_of_its_own(tmp_path: Path, in_memory: Any) -> None:
    result = in_shards(chains_per_shard=2, directory=tmp_path / "run")
    assert result.is_complete and result.shards == (0, 1, 2) and not result.failures
    assert result.seeds == tuple(
        tuple(sgmcmc.random.fold_in(tf.constant(result.seed), i).numpy()) for i in range(3)
    )
    assert len(set(result.seeds)) == 3
    states = tf.nest.map_structure(np.asarray, result.states)
    assert_equal(states, tf.nest.map_structure(np.asarray, in_memory.states))
    for i in range(3):
        chains = slice(2 * i, 2 * i + 2)
        alone = sgmcmc.sample_chain(
            Walk(), {k: x[chains] for k, x in START.items()}, 50, trace_fn=number,
            **EAGER | {"seed": result.seeds[i]},
        )  # fmt: skip
        assert_equal({k: x[:, chains] for k, x in states.items()}, alone.states)
        np.testing.assert_array_equal(np.asarray(result.trace["x"])[:, chains], alone.trace["x"])
        assert_equal({k: x[chains] for k, x in result.final_state.items()}, alone.final_state)
    np.testing.assert_array_equal(result.trace["number"], np.arange(1, 51))
    # Control: shards draw different numbers.
    assert np.abs(states["x"][-1, 0] - states["x"][-1, 2]).min() > 1e-3


def test_the_same_draws_from_an_executor_and_after_a_failure(
    tmp_path: Path, in_memory: Any
) -> None:
    expected = in_memory
    folder = tmp_path / "run"
    with pytest.warns(UserWarning, match="Shard 1 failed, and its chains are left out: the worker"):
        partial = in_shards(Walk, chains_per_shard=2, executor=Inline(fail=1), directory=folder)
    assert not partial.is_complete and partial.shards == (0, 2)
    assert isinstance(partial.failures[1], OSError) and "shard 1 failed" in repr(partial)
    chains = np.asarray(expected.states["y"])[:, [0, 1, 4]]
    np.testing.assert_array_equal(partial.states["y"], chains)

    whole = in_shards(
        Walk,
        chains_per_shard=2,
        executor=Inline(),
        seed=None,
        directory=sgmcmc.Directory(folder, resume="must"),
    )
    assert whole.is_complete and whole.seed == expected.seed
    assert_equal(
        tf.nest.map_structure(np.asarray, whole.states),
        tf.nest.map_structure(np.asarray, expected.states),
    )
    more = in_shards(Walk, 80, chains_per_shard=2, executor=Inline(), directory=folder)
    np.testing.assert_array_equal(more.states["x"][:50], expected.states["x"][:])
    pytest.importorskip("xarray")
    posterior = sgmcmc.open_shards(folder)
    np.testing.assert_array_equal(posterior["y"].transpose("draw", "chain"), more.states["y"])
    again = more.to_inference_data().posterior
    np.testing.assert_array_equal(again["x"], posterior["x"])
    in_memory = expected.to_inference_data().posterior
    np.testing.assert_array_equal(in_memory["x"], posterior["x"][:, :50])

    # Before its first checkpoint a shard shows nothing, and the others are read without a warning.
    shown = folder / "shard-0" / SAMPLES / "zarr.json"
    metadata = json.loads(shown.read_text())
    assert metadata.pop("consolidated_metadata")
    shown.write_text(json.dumps(metadata))
    np.testing.assert_array_equal(sgmcmc.open_shards(folder)["x"], posterior["x"][2:])


@pytest.mark.thorough
def test_all_chains_may_start_at_one_point() -> None:
    kernel = sgmcmc.SGLD(sgmcmc.FullDataLogProb(lambda x: -tf.reduce_sum(x**2, axis=-1)), 0.1)
    options = EAGER | {"preflight_check": False}
    result = sgmcmc.sample_shards(
        kernel, tf.zeros([3]), 40, num_chains=3, chains_per_shard=2, **options
    )
    assert result.states.shape == (40, 3, 3) and result.weights.shape == (40,)
    assert result.rhat().shape == (3,)
    options["seed"] = result.seeds[1]
    alone = sgmcmc.sample_chain(kernel, tf.zeros([3]), 40, num_chains=1, **options)
    np.testing.assert_array_equal(np.asarray(result.states)[:, 2:], alone.states)


GROWTHS: list[float] = []


def another_walk() -> Walk:
    """Returns a kernel that differs from call to call; a function of a module is not copied."""
    return Walk(GROWTHS.pop(0))


def test_workers_with_another_problem_are_refused_by_name(tmp_path: Path) -> None:
    for directory in (None, tmp_path / "run"):
        GROWTHS[:] = [0.5, 0.25]
        with pytest.warns(UserWarning, match="Shard 1 failed.*kernel.growth: 0.5, but here 0.25"):
            result = in_shards(
                another_walk,
                num_results=2,
                chains_per_shard=3,
                executor=Inline(),
                directory=directory,
            )
        assert result.shards == (0,)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"chains_per_shard": 0}, ValueError, "chains_per_shard"),
        ({"chains_per_shard": 2.0}, TypeError, "chains_per_shard"),
        ({"executor": Inline()}, TypeError, "make_kernel must be a function without arguments"),
        ({"executor": 3}, TypeError, "executor must have a method submit.*pip install"),
        ({"executor": FORKS}, ValueError, r"hangs in a process that was forked.*'spawn'"),
        ({"kernel": lambda x: x, "executor": Inline()}, TypeError, "without arguments"),
        ({"kernel": lambda: 3, "executor": Inline()}, TypeError, "must return a tfp.mcmc"),
        ({"kernel": runs.target()}, TypeError, r"sample\(target, .*chooses the settings"),
        ({"initial_state": {"x": tf.zeros([2, 3]), "y": tf.zeros([])}}, ValueError, "leading axis"),
        ({"initial_state": {"x": tf.zeros([2, 3]), "y": tf.zeros([3])}}, ValueError, "same length"),
        ({"initial_state": {"x": tf.zeros([0, 2]), "y": tf.zeros([0])}}, ValueError, "of chains"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], error: type, message: str) -> None:
    start = options.pop("initial_state", START)
    with pytest.raises(error, match=message):
        sgmcmc.sample_shards(
            options.pop("kernel", Walk()), start, 3, **EAGER | {"chains_per_shard": 2} | options
        )


def test_a_directory_of_another_run_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(ValueError, match="holds no run, but resume is 'must'"):
        in_shards(chains_per_shard=2, directory=sgmcmc.Directory(folder, resume="must"))
    in_shards(num_results=5, chains_per_shard=2, directory=folder)
    for options, message in (
        ({"seed": 8}, "has seed"),
        ({"chains_per_shard": 3}, "has chains_per_shard: 2, but here 3"),
        ({"directory": sgmcmc.Directory(folder, resume="never")}, "holds a run already"),
        ({"kernel": Walk(0.25)}, "kernel.growth: 0.5, but here 0.25"),
    ):
        with pytest.raises(ValueError, match=message):
            in_shards(**{"chains_per_shard": 2, "directory": folder} | options)
    for text in ("[]", "[" * 100_000, '{"seed": [0, 1e999], "num_chains": 5}'):
        (folder / "shards.json").write_text(text)
        with pytest.raises(ValueError, match="shards.json is damaged"):
            in_shards(chains_per_shard=2, directory=folder)
    (folder / "shards.json").unlink()
    with pytest.raises(ValueError, match="shards.json is missing"):
        in_shards(chains_per_shard=2, directory=folder)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ValueError, match="which holds other files"):
        in_shards(chains_per_shard=2, directory=tmp_path)
    with pytest.raises(ValueError, match="must hold a run in shards"):
        sgmcmc.open_shards(tmp_path)
    with pytest.raises(ValueError, match="a run of sample_chain or sample: xarray.open_zarr"):
        sgmcmc.open_shards(folder / "shard-0")


def test_the_first_of_two_calls_begins_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two calls find a new directory. Both take the seed of the one that writes it first."""
    write = shard_driver.add_text

    def late(path: Path, text: str) -> None:
        write(path, json.dumps({"seed": [0, 5], "num_chains": 4, "chains_per_shard": 2}))
        write(path, text)

    (tmp_path / "shards.json.0.partial").write_text("")  # of a process that was killed
    monkeypatch.setattr(shard_driver, "add_text", late)
    assert shard_driver.open_manifest(tmp_path, "auto", None, 4, 2) == (0, 5)
    assert sorted(path.name for path in tmp_path.iterdir())[0] == "shards.json"
    with pytest.raises(ValueError, match="has seed"):
        shard_driver.open_manifest(tmp_path, "auto", 8, 4, 2)


def test_workers_name_what_changed_since_an_earlier_call(tmp_path: Path) -> None:
    options = dict(num_results=5, chains_per_shard=3, executor=Inline(), directory=tmp_path)
    in_shards(Walk, **options)
    with pytest.raises(ValueError, match="belongs to another run.*It has kernel.growth: 0.5"):
        in_shards(lambda: Walk(0.25), **options)


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    for name in ("file", "lost"):
        with pytest.raises(ValueError, match=f"The directory {tmp_path / name} cannot be used"):
            in_shards(directory=tmp_path / name)


def test_a_damaged_problem_is_named_and_written_again(tmp_path: Path) -> None:
    options = dict(num_results=5, chains_per_shard=3, executor=Inline(), directory=tmp_path)
    expected = in_shards(Walk, **options)
    problem = tmp_path / "problem.json"
    for content in (b"", b"null", b"\xff\xfe\x00"):
        problem.write_bytes(content)
        with pytest.raises(ValueError, match="problem.json is damaged .* Remove it"):
            in_shards(Walk, **options)
    problem.write_text(json.dumps({"initial_state": {"about": 3, "within": "x"}}))
    with pytest.raises(ValueError, match="must sample the same problem"):
        in_shards(Walk, **options)
    with pytest.raises(ValueError, match="must sample the same problem"):
        in_shards(Walk, **options | {"num_results": 9})
    assert sgmcmc.open_shards(tmp_path).sizes["draw"] == 5  # no step was taken
    problem.unlink()
    assert_equal(in_shards(Walk, **options).states, expected.states)


@pytest.mark.parametrize("name", ["shards.json", "problem.json", "shard-0/run.lock"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, name: str) -> None:
    options = dict(num_results=5, chains_per_shard=6, executor=Inline(), directory=tmp_path)
    in_shards(Walk, **options)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=f"Remove it.*{tmp_path / name}|{tmp_path / name}.*it"):
        in_shards(Walk, **options)


@pytest.mark.parametrize("name", ["problem.lease", "shard-0/run.lease"])
def test_a_lost_link_in_the_place_of_a_lease_is_not_waited_for(tmp_path: Path, name: str) -> None:
    options = dict(num_results=5, chains_per_shard=6, executor=Inline(), directory=tmp_path)
    in_shards(Walk, **options)
    (tmp_path / "problem.json").unlink()
    (tmp_path / name).symlink_to(tmp_path / "nowhere")
    with pytest.raises((OSError, ValueError), match=f"Remove it.*{tmp_path / name}"):
        in_shards(Walk, **options)


def test_damaged_shards_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_shards(num_results=5, chains_per_shard=3, directory=tmp_path)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "zarr", None)
        with pytest.raises(ModuleNotFoundError, match="Draws on disk need zarr. Install it"):
            sgmcmc.open_shards(tmp_path)
    for name in ("shard-1.bak", "shard-01", "shard-x"):  # folders of someone else
        shutil.copytree(tmp_path / "shard-1", tmp_path / name)
    assert sgmcmc.open_shards(tmp_path).sizes["chain"] == 5
    store = tmp_path / "shard-0" / SAMPLES
    for file in (store / "zarr.json", store / "posterior" / "x" / "c.0.0.0"):
        content = file.read_bytes()
        for damage in (b"", b"[]"):
            file.write_bytes(damage)
            with pytest.raises(ValueError, match=f"{file}.*Restore it from a copy"):
                sgmcmc.open_shards(tmp_path)
        file.unlink()
        with pytest.raises(ValueError, match=f"{file}.*Restore it from a copy"):
            sgmcmc.open_shards(tmp_path)
        file.write_bytes(content)
    assert sgmcmc.open_shards(tmp_path).sizes["chain"] == 5


@pytest.fixture
def place_of_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes runs in the folders 0 and 1, and returns the place of a shard's draws in them."""
    monkeypatch.setattr(zarr_store, "_CHUNK_ROWS", 2)
    for seed in (0, 1):
        in_shards(num_results=5, chains_per_shard=6, seed=seed, directory=tmp_path / str(seed))
    return Path("shard-0", SAMPLES, "posterior", "x")


def test_draws_of_another_run_are_not_opened(tmp_path: Path, place_of_draws: Path) -> None:
    place = place_of_draws
    file = next(p.name for p in (tmp_path / "0" / place).iterdir() if ".1" in p.name)
    shutil.copy(tmp_path / "1" / place / file, tmp_path / "0" / place / file)
    with pytest.raises(ValueError, match=f"{file} must have the checksum.*Restore it from a copy"):
        sgmcmc.open_shards(tmp_path / "0")


def test_draws_that_are_not_those_of_the_checkpoint_are_not_opened(
    tmp_path: Path, place_of_draws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last chunk, which is partly filled, has no checksum in the checkpoint."""
    place = place_of_draws
    first, _, last = sorted((tmp_path / "0" / place).glob("c.*"))
    whole = last.read_bytes()
    shutil.copy(tmp_path / "1" / place / last.name, last)
    with pytest.raises(ValueError, match=r"shard-0.*/x has other draws from number 4 on than the"):
        sgmcmc.open_shards(tmp_path / "0")
    last.write_bytes(whole)
    changed = bytearray(first.read_bytes())
    changed[0] ^= 1
    first.write_bytes(changed)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # no dask: all is read
    with pytest.raises(ValueError, match=r"shard-0.* is damaged .* checksum.*Restore it from a co"):
        sgmcmc.open_shards(tmp_path / "0")


def test_a_file_in_the_place_of_a_shard_fails_that_shard(tmp_path: Path) -> None:
    in_shards(num_results=5, chains_per_shard=3, directory=tmp_path)
    shutil.rmtree(tmp_path / "shard-1")
    (tmp_path / "shard-1").write_text("")
    with pytest.warns(UserWarning, match="Shard 1 failed.*shard-1 cannot be used"):
        assert in_shards(num_results=5, chains_per_shard=3, directory=tmp_path).shards == (0,)


class Elsewhere(Inline):
    """Runs tasks where the directory of the run is another one."""

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future:
        run_shard, (task,) = pickle.loads(args[0])
        there = Path(task.directory).parents[1] / "elsewhere" / Path(task.directory).name
        moved = pickle.dumps((run_shard, (task._replace(directory=str(there)),)))
        return super().submit(function, moved, **kwargs)


def test_a_directory_that_workers_do_not_share_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="directory must be on a file system that all.*elsewhere"):
        in_shards(Walk, chains_per_shard=2, executor=Elsewhere(), directory=tmp_path / "run")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.thorough
def test_the_manifest_names_how_chains_were_cut(tmp_path: Path) -> None:
    in_shards(num_results=2, chains_per_shard=4, directory=tmp_path / "run")
    saved = json.loads((tmp_path / "run" / "shards.json").read_text())
    assert saved == {"seed": [0, 7], "num_chains": 5, "chains_per_shard": 4}


def test_sharded_draws_are_indexed_as_an_array() -> None:
    parts = [np.random.default_rng(i).normal(size=[6 + i, 1 + i, 3, 2]) for i in range(3)]
    draws = ShardedDraws(parts)
    whole = np.concatenate([part[:6] for part in parts], axis=1)
    assert draws.shape == whole.shape == (6, 6, 3, 2) and len(draws) == 6 and draws.ndim == 4
    np.testing.assert_array_equal(draws, whole)
    for index in (
        0, -1, slice(None), slice(1, 4), slice(4, 1, -1), slice(None, None, -2), slice(-2, None),
        (0, 3), (slice(None), 5), (slice(1, 5, 2), -1, 2), (slice(None), slice(1, 4)), (2, ..., 1),
        (slice(None), np.array([0, 4])), np.array([1, 3]), whole[:, 0, 0, 0] > 0,
    ):  # fmt: skip
        np.testing.assert_array_equal(draws[index], whole[index])
    for index in (6, -7, (0, 6)):
        with pytest.raises(IndexError):
            draws[index]


def test_moments_of_shards_are_those_of_all_draws() -> None:
    x = np.random.default_rng(0).normal(size=[803, 6, 2]).cumsum(axis=0) / 10
    parts = [SegmentMoments.of(x[:, :4]), SegmentMoments.of(x[:, 4:])]
    whole = concatenate(parts)
    used = x[3:].reshape([20, 40, 6, 2])
    np.testing.assert_allclose(whole.means, used.mean(axis=1))
    np.testing.assert_allclose(whole.variances, used.var(axis=1))

    halves = np.concatenate([x[3:403], x[403:]], axis=1)
    within = halves.var(axis=0, ddof=1).mean(axis=0)
    between = 400 * halves.mean(axis=0).var(axis=0, ddof=1)
    expected = np.sqrt((399 / 400 * within + between / 400) / within)
    np.testing.assert_allclose(rhat(whole), expected)
    assert np.all(expected > 1.5)  # a walk does not forget its start

    with pytest.raises(ValueError, match="equally many draws"):
        concatenate([parts[0], SegmentMoments.of(x[:400, :1])])
    with pytest.raises(ValueError, match="at least 40 draws"):
        SegmentMoments.of(x[:39])


def test_effective_sample_size_of_autoregression() -> None:
    """AR(1) with coefficient r has ESS N (1 - r) / (1 + r).

    With C K = 320 segments the relative standard error is 0.08. False alarms 1e-6 for a bound of 5
    standard errors, 0.4. Power: without autocorrelation the estimate would be 3 times as large.
    """
    r, rng = 0.5, np.random.default_rng(1)
    z = rng.normal(size=[8_000, 16])
    x = np.zeros_like(z)
    x[0] = z[0] / np.sqrt(1 - r**2)
    for t in range(1, len(x)):
        x[t] = r * x[t - 1] + z[t]
    expected = x.size * (1 - r) / (1 + r)
    assert abs(batch_means_sample_size(SegmentMoments.of(x)) / expected - 1) < 0.4
    assert abs(batch_means_sample_size(SegmentMoments.of(z)) / expected - 3) < 3 * 0.4  # control


def test_sixteen_copies_of_a_chain_are_worth_one() -> None:
    """20 segments give the size with an error of 32 %, and 16 chains would be worth 16 times it."""
    x = np.repeat(np.random.default_rng(2).normal(size=[8_000, 1]), 16, axis=1)
    assert batch_means_sample_size(SegmentMoments.of(x)) < 3 * 8_000


def test_a_scheduler_that_unpickles_a_call_imports_no_tensorflow() -> None:
    packed = extras.pack_call("make_kernel", shard_worker.run_shard, 3)
    submitted = pickle.dumps((extras.make_call, packed))
    program = (
        "import pickle, sys; pickle.loads(sys.stdin.buffer.read()); "
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], input=submitted).returncode == 0


@pytest.mark.parametrize("has_cloudpickle", [False, True])
def test_a_lambda_is_sent_by_cloudpickle_or_refused(
    has_cloudpickle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_cloudpickle:
        pytest.importorskip("cloudpickle")
        assert in_shards(lambda: Walk(), 2, chains_per_shard=3, executor=Inline()).is_complete
        return
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TypeError, match="make_kernel must be a function that can be .*cloudpickle"):
        in_shards(lambda: Walk(), 2, chains_per_shard=3, executor=Inline())


def test_processes_of_equal_number_agree_on_the_first_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers share process numbers, and some file systems have no links."""
    monkeypatch.delattr(os, "link")
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.02)
    found: list[Any] = [None] * 8
    start = threading.Barrier(8)

    def look(i: int) -> None:
        start.wait()
        found[i] = shard_worker._first_problem(tmp_path, {"number": i})

    threads = [threading.Thread(target=look, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is not None and all(x == found[0] for x in found)
    assert [path.name for path in tmp_path.iterdir()] == ["problem.json"]


def test_shards_that_workers_of_an_earlier_call_run_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client died, and its tasks run on. The next call says so, and takes their draws."""
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.02)
    folder = tmp_path / "run"
    options: dict[str, Any] = dict(chains_per_shard=3, directory=folder)
    first = in_shards(Walk, 2, executor=Inline(), **options)
    held = lock.Lease(folder / "shard-1" / "run.lock")
    threading.Timer(0.2, held.release).start()
    message = rf"Shards \[1\] are held by workers of an earlier call \(process {os.getpid()} on "
    with pytest.warns(UserWarning, match=message):
        again = in_shards(Walk, 4, executor=Inline(), **options)
    assert again.is_complete and not held.is_held
    np.testing.assert_array_equal(again.states["x"][:2], first.states["x"][:])


def test_threads_do_not_write_what_a_worker_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(shard_worker, "EXPIRY_SECONDS", 0.05)
    folder = tmp_path / "run"
    in_shards(num_results=2, chains_per_shard=3, directory=folder)
    held = lock.Lease(folder / "shard-1" / "run.lock")
    with pytest.warns(UserWarning, match="Shard"):
        found = in_shards(num_results=4, chains_per_shard=3, directory=folder)
    assert found.shards == (0,) and "is in use by process" in str(found.failures[1])
    held.release()
