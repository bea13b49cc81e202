"""The run of a kernel whose settings are known: its start, its steps, and its result."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tree

from tfp_sgmcmc import random
from tfp_sgmcmc.kernels.fingerprint import describe_kernel
from tfp_sgmcmc.sampling.aftermath import warn_of_skipped, warn_of_step
from tfp_sgmcmc.sampling.draw_records import (
    CountedRecords,
    MemoryRecords,
    Records,
    check_memory,
    open_records,
)
from tfp_sgmcmc.sampling.introspection import chain_shape_of, target_of
from tfp_sgmcmc.sampling.loop import Loop, Position, start_of, state_tensors
from tfp_sgmcmc.sampling.process_group import Gang
from tfp_sgmcmc.sampling.progress import progress
from tfp_sgmcmc.sampling.result import SampleResult, Timings, kept_arrays
from tfp_sgmcmc.sampling.run_fingerprint import describe_batches, describe_run
from tfp_sgmcmc.sampling.steps import Plan, take_steps
from tfp_sgmcmc.sampling.stream_feed import Feed
from tfp_sgmcmc.storage.directory import RunDirectory
from tfp_sgmcmc.targets import preflight
from tfp_sgmcmc.targets.streamed import StreamedLogProb


class Watch(NamedTuple):
    """What takes the place of a progress bar and of Ctrl-C where threads run side by side.

    Attributes:
      show: is called with each new position.
      interrupt: ends the run when it is set.
      lock: the caller holds it. It is free only while steps are taken, so that one thread at a time
        traces and compiles.
    """

    show: Callable[[Position], None]
    interrupt: threading.Event
    lock: threading.Lock

    @contextlib.contextmanager
    def stepping(self) -> Generator[None]:
        self.lock.release()
        try:
            yield
        finally:
            self.lock.acquire()


def run_kernel(
    kernel: tfp.mcmc.TransitionKernel,
    initial_state: Any,
    plan: Plan,
    *,
    seed: tf.Tensor,
    num_chains: int | None,
    trace_fn: Callable[[Any, Any], Any] | None,
    jit_compile: bool,
    progress_bar: bool | None,
    run: RunDirectory | None,
    checkpoint_seconds: float,
    preflight_check: bool,
    view: Callable[[Any], Any] | None = None,
    watch: Watch | None = None,
    make_loop: Callable[..., Loop] = Loop,
    chain_shape: tuple[int, ...] = (),
    gang: Gang | None = None,
    on_disk: bool = False,
) -> SampleResult:
    """Takes the steps of `plan`, in memory or in the directory of `run`.

    The arguments are those of `sample`, checked. Draws are `view(state)`, with the leading axes of
    the state; None keeps the state itself. `watch` is told of steps in place of a progress bar.
    `make_loop` may return a loop that was compiled for another run of the same kernel.
    `chain_shape` is for a kernel that does not tell how many chains its state has. `gang` is of the
    workers that call this together, of which worker 0 has the `run`; `on_disk` tells all of it.
    """
    gang, on_disk = gang or Gang(), on_disk or run is not None
    if num_chains is not None:
        initial_state = tf.nest.map_structure(
            lambda x: tf.broadcast_to(x, [num_chains, *x.shape]), state_tensors(initial_state)
        )
    began = time.perf_counter()
    position, target = start_of(kernel, initial_state), target_of(kernel)
    position = gang.of_first(position)
    options = {} if gang.replicas is None else {"replicas": gang.replicas}
    loop = make_loop(lambda _: kernel, trace_fn, position, jit_compile, view=view, **options)
    if num_chains is not None:
        chain_shape = (num_chains,)
    else:
        chain_shape = chain_shape_of(kernel, position) or chain_shape
    kept = kept_arrays(loop.kept, chain_shape)
    check_memory(kept, plan.num_results, position, on_disk)
    # The whole data of a stream may be too large for a check.
    checked = target.of_one_batch if isinstance(target, StreamedLogProb) else target
    is_new = bool(gang.of_first(tf.constant(run is None or not run.has_run)))
    if checked is not None and preflight_check and is_new:
        preflight(checked, position.state, kernel=kernel)
    attributes = {"tuning_steps": plan.num_burnin_steps}
    records: Records = MemoryRecords(kept, plan.num_results)
    if on_disk:
        fingerprint = {
            **describe_kernel(kernel),
            **describe_run(kernel, loop, position),
            "seed": seed.numpy().tolist(),
            "num_burnin_steps": plan.num_burnin_steps,
            "num_steps_between_results": plan.stride - 1,
            # Not even noise depends on the number of replicas if XLA does not compile steps.
            "jit_compile": jit_compile and gang.replicas is None,
        }
        describe = describe_batches(target, position.state)
        opened = gang.by_first(
            f"open the run in {None if run is None else run.path}",
            lambda: run and open_records(run, kept, fingerprint, attributes, position, describe),
        )
        records, position = opened or (CountedRecords(kept), position)
        number, position = gang.of_first((tf.constant(records.num_draws), position))
        if isinstance(records, CountedRecords):
            records.num_draws = int(number)
    first_step, sampling_began = int(position.step), time.perf_counter()
    if records.num_draws < plan.num_results:
        feed = Feed(target, position.results, run is not None)
        loop(position, 0, 1, plan.stride, seed)  # compiles
        sampling_began = time.perf_counter()
        stepping = contextlib.nullcontext() if watch is None else watch.stepping()
        progress_bar = progress_bar if gang.is_first else False
        with progress(progress_bar, plan.num_steps, first_step) as bar, stepping:
            show, interrupt = (bar, None) if watch is None else (watch.show, watch.interrupt)
            position = take_steps(
                loop, plan, seed, position, records, feed, show, checkpoint_seconds, interrupt, gang
            )
    seconds = time.perf_counter() - sampling_began

    warn_of_skipped(position.results)
    if target is not None and preflight_check and int(position.step) > first_step:
        warn_of_step(kernel, target, position.state, position.results)
    draws = records.draws(min(plan.num_results, records.num_draws))
    states, trace, weights = tree.unflatten_as(loop.kept, draws)
    steps = int(position.step) - first_step
    return SampleResult(
        states=states,
        trace=None if trace_fn is None else trace,
        weights=weights if tree.flatten(loop.kept[2]) else None,
        is_complete=records.num_draws >= plan.num_results,
        final_state=position.state if view is None else view(position.state),
        final_kernel_results=position.results,
        timings=Timings(sampling_began - began, seconds, steps / seconds if steps else np.nan),
        directory=None if run is None else run.path,
        kernel=kernel,
        seed=tuple(seed.numpy().tolist()),
        _kept=kept,
        _attributes=attributes,
    )


def seed_of(given: Any, run: RunDirectory | None) -> tf.Tensor:
    """Returns the given seed, that of the run in a directory, or a new one."""
    if given is not None:
        return random.as_seed(given)
    saved = None if run is None else run.saved()
    before = None if saved is None else saved.header["fingerprint"].get("seed")
    return random.as_seed(random.fresh_seed() if before is None else before)
