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
from tfp_sgmcmc.sampling.loop import Loop, Position
from tfp_sgmcmc.sampling.progress import counter, held_back
from tfp_sgmcmc.sampling.run import Watch
from tfp_sgmcmc.sampling.shards.shard_worker import Outcome, Task, run_shard

_LOOK_SECONDS = 0.2


class Finished(NamedTuple):
    """What became of all shards.

    Attributes:
      outcomes: those of the shards that ended well, or were interrupted, in order.
      failures: number of a shard -> the error that ended it.
      is_interrupted: whether Ctrl-C ended the run.
    """

    outcomes: list[Outcome]
    failures: dict[int, Exception]
    is_interrupted: bool


class Programs:
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


def run_in_threads(tasks: Sequence[Task], progress_bar: bool | None) -> Finished:
    """Runs shards in this process, one at a time on each device.

    TensorFlow releases Python's lock while it takes steps, so that threads use all cores. One
    thread at a time traces and compiles.
    """
    devices = local_devices()
    if len(tasks) < len(devices):
        devices = devices[: len(tasks)]
    free, programs, lock = list(devices), Programs(), threading.Lock()
    steps = [0] * len(tasks)
    total = sum(task.plan.num_steps for task in tasks)
    last: list[Position] = []

    def run_one(task: Task, interrupt: threading.Event) -> Outcome | None:
        if interrupt.is_set():
            return None
        device = free.pop()

        def show(position: Position) -> None:
            steps[task.index] = int(position.step)
            last[:] = [position]

        try:
            with lock, tf.device(device):
                return run_shard(task, Watch(show, interrupt, lock), programs)
        finally:
            free.append(device)

    with (
        held_back() as interrupt,
        concurrent.futures.ThreadPoolExecutor(len(devices)) as pool,
        counter(progress_bar, total) as count,
    ):
        futures = [pool.submit(run_one, task, interrupt) for task in tasks]

        def look() -> None:
            count(sum(steps), *last or [None])

        return _collect(futures, tasks, look, interrupt)


def run_by_executor(executor: Any, tasks: Sequence[Task], progress_bar: bool | None) -> Finished:
    """Runs shards by an executor with `submit`, such as a dask `Client` or a process pool.

    dask gives the task of a worker that died to another one, as often as its configuration
    `distributed.scheduler.allowed-failures` says.
    """
    # dask would take two equal calls for one, and remember it.
    options = {"pure": False} if type(executor).__module__.startswith("distributed.") else {}
    with counter(progress_bar, len(tasks), unit="shard") as count:
        futures = [executor.submit(run_shard, task, **options) for task in tasks]

        def look() -> None:
            count(sum(future.done() for future in futures), None)

        try:
            return _collect(futures, tasks, look, threading.Event())
        except KeyboardInterrupt:
            for future in futures:
                future.cancel()
            raise


def _collect(
    futures: Sequence[Any],
    tasks: Sequence[Task],
    look: Callable[[], None],
    interrupt: threading.Event,
) -> Finished:
    while not all(future.done() for future in futures):
        time.sleep(_LOOK_SECONDS)
        look()
    look()
    outcomes, failures = [], dict[int, Exception]()
    for task, future in zip(tasks, futures, strict=True):
        try:
            found = future.result()
        except Exception as error:  # of any kind: it is named, and the other shards are kept
            failures[task.index] = error
            continue
        if found is not None:
            outcomes.append(found)
    return Finished(outcomes, failures, interrupt.is_set())
