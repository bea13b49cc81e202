"""A run whose chains are cut into shards: their seeds, starts and directories."""

from __future__ import annotations

import functools
import inspect
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tree

from tfp_sgmcmc import random
from tfp_sgmcmc.internal.checks import integer
from tfp_sgmcmc.sampling.loop import state_tensors
from tfp_sgmcmc.sampling.shards.executors import local_devices, run_by_executor, run_in_threads
from tfp_sgmcmc.sampling.shards.shard_worker import MANIFEST, Task, mismatch
from tfp_sgmcmc.sampling.shards.sharded_result import ShardedResult, gather
from tfp_sgmcmc.sampling.steps import Plan
from tfp_sgmcmc.storage.directory import Resume

DEFAULT_CHAINS = 32  # in a shard


def sample_shards(
    kernel: Any,
    initial_state: Any,
    plan: Plan,
    *,
    seed: Any,
    num_chains: int | None,
    chains_per_shard: int | None,
    executor: Any,
    trace_fn: Callable[[Any, Any], Any] | None,
    jit_compile: bool,
    progress_bar: bool | None,
    directory: str | os.PathLike[str] | None,
    resume: Resume,
    checkpoint_seconds: float,
    preflight_check: bool,
) -> ShardedResult:
    """Runs each shard as a run of its own; see `sample`, whose arguments are checked already."""
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise TypeError(
            "executor must have a method submit(function, argument), as executors of "
            "concurrent.futures and the Client of dask.distributed have it, which "
            'python -m pip install "tfp_sgmcmc[distributed]" installs. Received: a '
            f"{type(executor).__name__}."
        )
    make_kernel = _maker(kernel, executor)
    state = tree.map_structure(np.asarray, state_tensors(initial_state))
    count = _num_chains(state) if num_chains is None else num_chains
    chains_per_shard = _shard_size(chains_per_shard, count, executor)
    folder = None if directory is None else Path(directory).absolute()
    chosen = _open(folder, resume, seed, count, chains_per_shard)
    edges = range(0, count, chains_per_shard)
    sizes = [min(chains_per_shard, count - edge) for edge in edges]
    # Derived here, because the function gives other numbers inside XLA.
    seeds = [_numbers(random.fold_in(tf.constant(chosen), i)) for i in range(len(sizes))]
    is_one = num_chains is not None
    tasks = [
        Task(
            index=i,
            make_kernel=make_kernel,
            initial_state=state if is_one else _slice(state, edge, edge + size),
            num_chains=size if is_one else None,
            reference=state if is_one else tree.map_structure(lambda x: x[0], state),
            seed=seeds[i],
            plan=plan,
            trace_fn=trace_fn,
            jit_compile=jit_compile,
            directory=None if folder is None else os.fspath(folder / f"shard-{i}"),
            is_shared=executor is not None,
            checkpoint_seconds=checkpoint_seconds,
            preflight_check=preflight_check,
        )
        for i, (edge, size) in enumerate(zip(edges, sizes, strict=True))
    ]
    began = time.perf_counter()
    if executor is None:
        finished = run_in_threads(tasks, progress_bar)
    else:
        finished = run_by_executor(executor, tasks, progress_bar)
    outcomes = finished.outcomes
    errors = {x.index: mismatch(x.problem, x.index, outcomes[0].problem) for x in outcomes}
    failures = finished.failures | {i: error for i, error in errors.items() if error is not None}
    good = [x for x in outcomes if x.index not in failures]
    if not good:
        raise next(iter(failures.values()), KeyboardInterrupt())
    for number, error in sorted(failures.items()):
        warnings.warn(f"Shard {number} failed, and its chains are left out: {error}", stacklevel=3)
    left = sum(x.num_results < plan.num_results for x in good) + len(tasks) - len(good)
    if finished.is_interrupted:
        warnings.warn(f"Interrupted: {left} of {len(tasks)} shards are not complete.", stacklevel=3)
    return gather(
        good,
        failures,
        seeds,
        chosen,
        folder,
        is_complete=left == 0,
        kernel=kernel if isinstance(kernel, tfp.mcmc.TransitionKernel) else None,
        seconds=time.perf_counter() - began,
    )


def _maker(kernel: Any, executor: Any) -> Callable[[], tfp.mcmc.TransitionKernel]:
    """Returns the function that makes the kernel on a worker."""
    if isinstance(kernel, tfp.mcmc.TransitionKernel):
        if executor is None:
            return lambda: kernel
        raise TypeError(
            "kernel must be a function without arguments that makes the kernel, and loads its "
            "data, on the worker, if there is an executor. Received: a "
            f"{type(kernel).__name__}."
        )
    try:
        inspect.signature(kernel).bind()
    except (TypeError, ValueError) as error:
        raise TypeError(
            "kernel must be a kernel, or a function without arguments that makes one, if the "
            f"chains are cut into shards. Received: {kernel!r}."
        ) from error
    # In this process one kernel serves all shards.
    return functools.cache(kernel) if executor is None else kernel


def _num_chains(state: Any) -> int:
    """Returns the length of the leading axis of all parts of a state."""
    shapes = [x.shape for x in tree.flatten(state)]
    if any(not shape or shape[0] != shapes[0][0] for shape in shapes):
        raise ValueError(
            "initial_state must have a leading axis of chains of the same length in all parts, or "
            f"num_chains must be given, if the chains are cut into shards. Received: {shapes}."
        )
    return shapes[0][0]


def _shard_size(given: int | None, num_chains: int, executor: Any) -> int:
    if given is not None:
        return integer("chains_per_shard", given, 1)
    devices = local_devices()
    if executor is None and "CPU" not in devices[0]:  # one program for the chains of each
        return -(-num_chains // len(devices))
    return min(DEFAULT_CHAINS, num_chains)


def _open(
    folder: Path | None, resume: Resume, seed: Any, num_chains: int, chains_per_shard: int
) -> tuple[int, int]:
    """Writes or compares the manifest of the run; returns its seed."""
    cut = {"num_chains": num_chains, "chains_per_shard": chains_per_shard}
    chosen = None if seed is None else _numbers(random.as_seed(seed))
    if folder is None:
        return chosen or _numbers(random.as_seed(random.fresh_seed()))
    path = folder / MANIFEST
    if not path.exists():
        if resume in ("must", True):
            raise ValueError(f"The directory {folder} holds no run, but resume is {resume!r}.")
        if folder.exists() and any(folder.iterdir()):
            names = ", ".join(sorted(p.name for p in folder.iterdir())[:3])
            raise ValueError(
                f"directory must be new, empty or hold a run in shards. Received: {folder}, which "
                f"holds other files ({names})."
            )
        chosen = chosen or _numbers(random.as_seed(random.fresh_seed()))
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{MANIFEST}.partial"
        partial.write_text(json.dumps({"seed": chosen, **cut}), encoding="utf-8")
        partial.replace(path)
        return chosen
    if resume in ("never", False):
        raise ValueError(
            f"The directory {folder} holds a run already, but resume is {resume!r}. resume='auto' "
            "goes on with the run."
        )
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        before = (int(saved["seed"][0]), int(saved["seed"][1]))
        found = {name: int(saved[name]) for name in cut}
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ValueError(f"{path} is damaged ({error}). Restore it from a copy.") from error
    for name, value in {"seed": chosen or before, **cut}.items():
        if value != {"seed": before, **found}[name]:
            raise ValueError(
                f"The run in {folder} belongs to another run, and this run cannot go on from it. "
                f"It has {name}: {({'seed': before} | found)[name]}, but here {value}."
            )
    return before


def _numbers(seed: tf.Tensor) -> tuple[int, int]:
    first, second = seed.numpy().tolist()
    return first, second


def _slice(state: Any, start: int, stop: int) -> Any:
    return tree.map_structure(lambda x: x[start:stop], state)
