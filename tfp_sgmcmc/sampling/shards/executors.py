"""Runs the tasks of all shards by threads or by an executor, and shows one progress bar."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tree

from tfp_sgmcmc.internal import xla
from tfp_sgmcmc.internal.shipped_call import pack_call, submit_call
from tfp_sgmcmc.sampling.loop import Loop, Position
from tfp_sgmcmc.sampling.progress import defer_interrupt, progress
from tfp_sgmcmc.sampling.run import ProgressHooks
from tfp_sgmcmc.sampling.shards.shard_worker import ShardDraws, ShardTask, run_shard

_POLL_SECONDS = 0.2


class FinishedShards(NamedTuple):
    """The draws and errors of all shards.

    Attributes:
      draws: of the shards that ended well or were interrupted, in order.
      failures: number of a shard -> the error that ended it.
      is_interrupted: whether Ctrl-C ended the run.
    """

    draws: list[ShardDraws]
    failures: dict[int, Exception]
    is_interrupted: bool


class LoopCache:
    """The loops of one kernel, so that shards of the same shape on a device compile once."""

    def __init__(self) -> None:
        self._loops: dict[Any, Loop] = {}

    def __call__(
        self, kernel_fn: Any, trace_fn: Any, start: Position, *args: Any, **kw: Any
    ) -> Loop:
        leaves = [x for x in tree.flatten(tuple(start)) if x is not None]
        key = tuple((tuple(x.shape), x.dtype, x.device) for x in leaves)
        if key not in self._loops:
            self._loops[key] = Loop(kernel_fn, trace_fn, start, *args, **kw)
        return self._loops[key]


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
    loops, lock = LoopCache(), threading.Lock()
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
                return run_shard(task, ProgressHooks(show, interrupt, lock), loops)
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
        try:
            return _collect(
                futures,
                tasks,
                lambda: show_progress(sum(future.done() for future in futures), None),
                threading.Event(),
            )
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
    return FinishedShards(draws, failures, interrupt.is_set())
