"""`sample_shards`: cuts many chains into shards with seeds, starts and directories, and runs them.

The tasks of all shards are run by threads or by an executor, with one progress bar.
"""

from __future__ import annotations

import concurrent.futures
import functools
import inspect
import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tree

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import xla
from tfp_sgmcmc.internal.checks import a_type, eager, integer
from tfp_sgmcmc.internal.extras import Workers, check_executor, pack_call, submit_call
from tfp_sgmcmc.sampling.loop import Position, state_tensors
from tfp_sgmcmc.sampling.progress import defer_interrupt, progress
from tfp_sgmcmc.sampling.run import ProgressHooks, check_options
from tfp_sgmcmc.sampling.shards.shard_worker import (
    MANIFEST,
    ShardDraws,
    ShardTask,
    mismatch,
    run_shard,
)
from tfp_sgmcmc.sampling.shards.sharded_result import ShardedResult, gather
from tfp_sgmcmc.sampling.steps import StepPlan
from tfp_sgmcmc.storage.checkpoint import check_same
from tfp_sgmcmc.storage.directory import LEASE, Directory, Resume, as_directory, check_resume
from tfp_sgmcmc.storage.lock import EXPIRY_SECONDS, PARTIAL, add_text, holder_of, read_object
from tfp_sgmcmc.targets import Target

_DEFAULT_CHAINS = 32  # in a shard

_POLL_SECONDS = 0.2

# The draws of the shards that ended well or were interrupted, in order; the errors of the others by
# number; and whether Ctrl-C ended the run.
FinishedShards = tuple[list[ShardDraws], dict[int, Exception], bool]


def sample_shards(
    make_kernel: Any,
    initial_state: Any,
    num_results: int,
    *,
    num_chains: int | None = None,
    chains_per_shard: int | None = None,
    executor: Any = None,
    num_burnin_steps: int = 0,
    num_steps_between_results: int = 0,
    trace_fn: Callable[[Any, Any], Any] | None = None,
    seed: Any = None,
    directory: Directory | str | os.PathLike[str] | None = None,
    progress_bar: bool | None = None,
    jit_compile: bool = True,
    preflight_check: bool = True,
) -> ShardedResult:
    r"""Runs many chains in shards, side by side, and returns all their draws.

    The chains are cut into shards of `chains_per_shard`. Each shard is a separate run, as by
    `sample_chain`, with the seed

    \[ s_i = \mathrm{fold\_in}(\mathrm{seed},\, i), \]

    where i is the number of the shard. So its draws are the same on one worker or a hundred, in any
    order, and are those that `sample_chain` gives for its chains alone.

    Without an executor, the shards run by threads in this process, one for each core or
    accelerator. With an executor, such as a dask `Client`, they run on its workers. With a
    `directory`, shard i runs in `directory / "shard-i"`. A shard whose worker was killed resumes
    from there when the executor gives it to another worker, or when the same call is made again.
    A shard that fails for good is left out, with a warning.

    Examples:
      >>> import numpy as np, tensorflow as tf
      >>> import tfp_sgmcmc as sgmcmc
      >>> x = np.random.default_rng(0).normal(2., 1., size=[1000]).astype(np.float32)
      >>> def make_kernel():
      ...     target = sgmcmc.MinibatchLogProb(
      ...         log_prior_fn=lambda t: -0.005 * t**2,
      ...         log_likelihood_fn=lambda t, batch: -0.5 * (batch - t[..., None])**2,
      ...         data=x, batch_size=50)
      ...     return sgmcmc.SGLD(target, step_size=1e-4)
      >>> result = sgmcmc.sample_shards(
      ...     make_kernel, tf.zeros([]), num_results=100, num_chains=4, chains_per_shard=2, seed=0,
      ...     num_burnin_steps=200, jit_compile=False, progress_bar=False)
      >>> result.states.shape, result.shards, len(result.seeds)
      ((100, 4), (0, 1), 2)
      >>> bool(abs(np.asarray(result.states).mean() - x.mean()) < 0.05)
      True

    Args:
      make_kernel: a function without arguments that returns the kernel. With an executor it is
        called on the worker, where it also loads the data. Without one, a kernel may be given.
      initial_state: a tensor or a nest of tensors. Without `num_chains`, its leading axis counts
        chains.
      num_results: number of draws of each chain, including those already in `directory`.
      num_chains: C; starts C chains at `initial_state`.
      chains_per_shard: number of chains of each shard. None is 32, or with several accelerators in
        this process an equal share of the chains for each.
      executor: None for threads in this process, or an object with `submit(function, argument)` as
        of `concurrent.futures`. Then `directory` must be on a file system that all workers share.
      num_burnin_steps: number of steps before the first one that may be kept.
      num_steps_between_results: number of steps between two that are kept.
      trace_fn: state, kernel results -> nest of tensors to keep with each draw.
      seed: an integer or two. None takes the seed of the run in `directory`, or draws a new one.
      directory: a path, or a `Directory` with a path, a rule for resuming, and the seconds between
        checkpoints. None keeps the draws in memory.
      progress_bar: whether to show progress. None shows it if tqdm is installed.
      jit_compile: whether XLA compiles the steps, which is much faster.
      preflight_check: whether to run `preflight` in the first shard.

    Returns:
      A `ShardedResult`, whose arrays read only what is indexed. While the run is under way,
      `open_shards(directory)` reads its draws.

    Raises:
      ValueError: a number is out of range; a state, target or trace does not fit; `directory` holds
        other files or another run; workers make different kernels.
      TypeError: an argument has the wrong type.
      KeyboardInterrupt: Ctrl-C ended the run before any draw.
      Exception: the error of the first shard, if all shards failed; see `sample_chain`.
    """
    eager("sample_shards")
    check_executor(executor)
    kernel_fn = _kernel_fn(make_kernel, executor)
    plan = StepPlan.checked(num_results, num_burnin_steps, num_steps_between_results)
    check_options(num_chains, trace_fn, progress_bar, jit_compile, preflight_check)
    place = as_directory(directory)
    state = tree.map_structure(np.asarray, state_tensors(initial_state))
    count = _num_chains(state) if num_chains is None else num_chains
    chains_per_shard = shard_size(chains_per_shard, count, executor)
    folder = None if place is None else Path(place.path).absolute()
    resume = "auto" if place is None else place.resume
    chosen = open_manifest(folder, resume, seed, count, chains_per_shard)
    starts_alike = num_chains is not None
    chains = [
        slice(at, min(at + chains_per_shard, count)) for at in range(0, count, chains_per_shard)
    ]
    tasks = [
        ShardTask(
            index=i,
            make_kernel=kernel_fn,
            initial_state=state if starts_alike else _index(state, part),
            num_chains=part.stop - part.start if starts_alike else None,
            reference=state if starts_alike else _index(state, 0),
            # Derived here, because `fold_in` gives other numbers inside XLA.
            seed=random.integers_of(random.fold_in(tf.constant(chosen), i)),
            plan=plan,
            trace_fn=trace_fn,
            jit_compile=jit_compile,
            directory=None if folder is None else os.fspath(folder / f"shard-{i}"),
            is_shared=executor is not None,
            checkpoint_seconds=10.0 if place is None else place.seconds_between_commits,
            preflight_check=preflight_check,
        )
        for i, part in enumerate(chains)
    ]
    _tell_of_leases(tasks)
    began = time.perf_counter()
    if executor is None:
        ended, failures, is_interrupted = run_in_threads(tasks, progress_bar)
    else:
        ended, failures, is_interrupted = run_by_executor(executor, tasks, progress_bar)
    errors = {x.index: mismatch(x.problem, x.index, ended[0].problem) for x in ended}
    failures |= {i: error for i, error in errors.items() if error is not None}
    good = [x for x in ended if x.index not in failures]
    if not good:
        raise next(iter(failures.values()), KeyboardInterrupt())
    for number, error in sorted(failures.items()):
        warnings.warn(f"Shard {number} failed, and its chains are left out: {error}", stacklevel=2)
    left = sum(not x.result.is_complete for x in good) + len(tasks) - len(good)
    if is_interrupted:
        warnings.warn(f"Interrupted: {left} of {len(tasks)} shards are not complete.", stacklevel=2)
    return gather(
        good,
        failures,
        chosen,
        folder,
        is_complete=left == 0,
        kernel=make_kernel if isinstance(make_kernel, tfp.mcmc.TransitionKernel) else None,
        seconds=time.perf_counter() - began,
    )


def _kernel_fn(make_kernel: Any, executor: Any) -> Callable[[], tfp.mcmc.TransitionKernel]:
    """Returns the function that a worker calls for its kernel."""
    expected = "make_kernel must be a function without arguments that returns the kernel"
    if isinstance(make_kernel, tfp.mcmc.TransitionKernel):
        if executor is None:
            return lambda: make_kernel
        raise TypeError(
            f"{expected}, and loads its data, on the worker, if there is an executor. Received: "
            f"{a_type(make_kernel)}."
        )
    if isinstance(make_kernel, Target):
        raise TypeError(
            f"{expected}, or a kernel. Received: {a_type(make_kernel)}. "
            "sample(target, ..., num_chains=..., chains_per_shard=...) chooses the settings of a "
            "target, and samples it in shards."
        )
    try:
        inspect.signature(make_kernel).bind()
    except (TypeError, ValueError) as error:
        raise TypeError(f"{expected}. Received: {make_kernel!r}.") from error
    # In this process one kernel serves all shards.
    return functools.cache(make_kernel) if executor is None else make_kernel


def _num_chains(state: Any) -> int:
    """Returns the length of the leading axis of all parts of a state."""
    shapes = [x.shape for x in tree.flatten(state)]
    if any(not shape or shape[0] != shapes[0][0] for shape in shapes):
        raise ValueError(
            "initial_state must have a leading axis of chains, of the same length in all parts, if "
            f"num_chains is None. Received: shapes {shapes}."
        )
    return integer("The number of chains in initial_state", shapes[0][0], 1)


def shard_size(given: int | None, num_chains: int, executor: Any) -> int:
    """Returns the number of chains of each shard, as given or by default."""
    if given is not None:
        return integer("chains_per_shard", given, 1)
    if executor is None and "CPU" not in (devices := local_devices())[0]:
        return -(-num_chains // len(devices))  # one program for each accelerator
    return min(_DEFAULT_CHAINS, num_chains)


def open_manifest(
    folder: Path | None, resume: Resume, seed: Any, num_chains: int, chains_per_shard: int
) -> tuple[int, int]:
    """Writes or compares the manifest of the run; returns its seed."""
    cut = {"num_chains": num_chains, "chains_per_shard": chains_per_shard}
    chosen = None if seed is None else random.integers_of(random.as_seed(seed))
    if folder is None:
        return chosen or random.integers_of(random.as_seed(random.fresh_seed()))
    try:
        return _manifest(folder, resume, chosen, cut)
    except OSError as error:
        raise ValueError(f"The directory {folder} cannot be used: {error}.") from error


def _manifest(
    folder: Path, resume: Resume, chosen: tuple[int, int] | None, cut: dict[str, int]
) -> tuple[int, int]:
    path = folder / MANIFEST
    if not path.exists():
        check_resume(folder, resume, has_run=False)
        if any(folder.glob("shard-*")):
            raise ValueError(
                f"{path} is missing, and the run in shards cannot go on without it. Restore it "
                "from a copy, or start in another directory."
            )
        names = [p.name for p in folder.iterdir()] if folder.exists() else []
        if others := [n for n in names if not (n.startswith(MANIFEST) and n.endswith(PARTIAL))]:
            raise ValueError(
                f"directory must be new, empty or hold a run in shards. Received: {folder}, which "
                f"holds other files ({', '.join(sorted(others)[:3])})."
            )
        begun = chosen or random.integers_of(random.as_seed(random.fresh_seed()))
        folder.mkdir(parents=True, exist_ok=True)
        add_text(path, json.dumps({"seed": begun, **cut}))
        resume = "auto"  # another process may have written it first
    check_resume(folder, resume, has_run=True)
    saved = read_object(path, "Restore it from a copy.")
    try:
        before = (int(saved["seed"][0]), int(saved["seed"][1]))
        found = {name: int(saved[name]) for name in cut}
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise ValueError(f"{path} is damaged ({error}). Restore it from a copy.") from error
    saved, here = {"seed": [*before], **found}, {"seed": [*(chosen or before)], **cut}
    check_same(f"The run in {folder}", saved, here)
    return before


def _tell_of_leases(tasks: Sequence[ShardTask]) -> None:
    """Warns if workers of an earlier call may still run some of the shards."""
    folders = [(task.index, Path(task.directory)) for task in tasks if task.directory is not None]
    held = {i: text for i, folder in folders if (text := holder_of(folder / LEASE))}
    if held:
        first = next(iter(held.values()))
        warnings.warn(
            f"Shards {[*held]} are held by workers of an earlier call ({first}). If these still "
            "run, this call waits for them and then goes on from their draws. If they are gone, "
            f"it goes on after {EXPIRY_SECONDS:.0f} seconds.",
            stacklevel=3,
        )


def _index(state: Any, index: Any) -> Any:
    return tree.map_structure(lambda x: x[index], state)


def local_devices() -> list[str]:
    """Returns the devices that run one shard at a time each.

    They are all accelerators of the kind that code here is placed on, or this CPU for each core.
    """
    kind = xla.device_kind()
    if kind == "CPU":
        return [xla.device()] * xla.num_parallel_programs()
    return [found.name for found in tf.config.list_logical_devices(kind)]


def run_in_threads(tasks: Sequence[ShardTask], progress_bar: bool | None) -> FinishedShards:
    """Runs shards in this process, one at a time on each device.

    TensorFlow releases Python's lock while it takes steps, so threads use all cores. One thread at
    a time traces and compiles.
    """
    free = local_devices()[: len(tasks)]
    lock = threading.Lock()
    steps = [0] * len(tasks)
    total = sum(task.plan.num_steps for task in tasks)
    last: list[Position] = []

    def run_one(task: ShardTask, interrupt: threading.Event) -> ShardDraws | None:
        if interrupt.is_set():
            return None
        device = free.pop()

        def show(position: Position) -> None:
            steps[task.index] = int(position.step)
            last[:] = [position]

        try:
            with lock, tf.device(device):
                return run_shard(task, ProgressHooks(show, interrupt, lock))
        finally:
            free.append(device)

    with (
        defer_interrupt() as interrupt,
        concurrent.futures.ThreadPoolExecutor(len(free)) as pool,
        progress(progress_bar, total) as show_progress,
    ):
        futures = [pool.submit(run_one, task, interrupt) for task in tasks]
        return _collect(
            futures, tasks, lambda: show_progress(sum(steps), *last or [None]), interrupt
        )


def run_by_executor(
    executor: Any, tasks: Sequence[ShardTask], progress_bar: bool | None
) -> FinishedShards:
    """Runs shards by an executor with `submit`, such as a dask `Client` or a process pool.

    When a worker dies, dask gives its task to another worker, at most as often as dask's setting
    `distributed.scheduler.allowed-failures` allows.
    """
    with progress(progress_bar, len(tasks), unit="shard") as show_progress:
        calls = [pack_call("make_kernel", run_shard, task) for task in tasks]
        futures = [submit_call(executor, call) for call in calls]
        workers = Workers(executor)

        def show() -> None:
            show_progress(sum(future.done() for future in futures), None)
            workers.look()

        try:
            return _collect(futures, tasks, show, threading.Event())
        except KeyboardInterrupt:
            for future in futures:
                future.cancel()
            raise


def _collect(
    futures: Sequence[Any],
    tasks: Sequence[ShardTask],
    show: Callable[[], None],
    interrupt: threading.Event,
) -> FinishedShards:
    """Waits for all shards; calls `show` from time to time."""
    while not all(future.done() for future in futures):
        time.sleep(_POLL_SECONDS)
        show()
    show()
    draws, failures = [], dict[int, Exception]()
    for task, future in zip(tasks, futures, strict=True):
        try:
            found = future.result()
        except Exception as error:  # of any kind, so that the other shards are kept
            failures[task.index] = error
            continue
        if found is not None:
            draws.append(found)
    return draws, failures, interrupt.is_set()
