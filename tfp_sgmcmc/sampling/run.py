"""Runs a kernel whose settings are known, from its start to its result."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tree

from tfp_sgmcmc import random
from tfp_sgmcmc.kernels.fingerprint import describe_kernel
from tfp_sgmcmc.kernels.independent_metropolis import IndependentMetropolis
from tfp_sgmcmc.sampling.draw_records import (
    CountedRecords,
    MemoryRecords,
    Records,
    check_memory,
    open_records,
)
from tfp_sgmcmc.sampling.independent_loop import IndependentLoop
from tfp_sgmcmc.sampling.kept_loop import kept_loop
from tfp_sgmcmc.sampling.loop import (
    Loop,
    Position,
    chain_shape_of,
    repeat_chains,
    start_of,
    target_of,
)
from tfp_sgmcmc.sampling.process_group import ProcessGroup
from tfp_sgmcmc.sampling.progress import progress
from tfp_sgmcmc.sampling.result import SampleResult, Timings, kept_arrays
from tfp_sgmcmc.sampling.run_fingerprint import describe_batches, describe_run
from tfp_sgmcmc.sampling.steps import StepPlan, take_steps
from tfp_sgmcmc.sampling.stream_feed import Feed
from tfp_sgmcmc.storage.directory import RunDirectory
from tfp_sgmcmc.targets import Target, preflight
from tfp_sgmcmc.targets.validation.step_size_check import judge_step
from tfp_sgmcmc.targets.validation.stream_check import refuse_epochs


class ProgressHooks(NamedTuple):
    """Replacements for the progress bar and Ctrl-C where threads run side by side.

    Attributes:
      show: receives each new position.
      interrupt: ends the run when it is set.
      lock: a lock that the caller holds. It is free only while steps are taken, so one thread at a
        time traces and compiles.
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
    plan: StepPlan,
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
    hooks: ProgressHooks | None = None,
    make_loop: Callable[..., Loop] | None = None,
    chain_shape: tuple[int, ...] = (),
    workers: ProcessGroup | None = None,
    on_disk: bool = False,
) -> SampleResult:
    """Takes the steps of `plan`, in memory or in the directory of `run`.

    The arguments are those of `sample_chain`, checked.

    Args:
      view: a function of the state whose value is kept as the draw, with the leading axes of the
        state; None keeps the state itself.
      hooks: replacements for the progress bar and Ctrl-C.
      make_loop: may return a loop that was compiled for another run. None takes the one that the
        kernel keeps.
      chain_shape: the shape of the chains, for a kernel whose results do not show it.
      workers: the workers that make this call together. Worker 0 alone has the `run`.
      on_disk: whether worker 0 has a `run`.
    """
    workers, on_disk = workers or ProcessGroup(), on_disk or run is not None
    began = time.perf_counter()
    position = workers.broadcast(start_of(kernel, repeat_chains(initial_state, num_chains)))
    target = target_of(kernel)
    options = {} if workers.replicas is None else {"replicas": workers.replicas}
    is_alone = workers.replicas is None
    if is_alone and isinstance(kernel, IndependentMetropolis):
        loop: Any = IndependentLoop(kernel, trace_fn, position, jit_compile, view)
    elif make_loop is None:
        loop = kept_loop(kernel, trace_fn, position, jit_compile, view, **options)
    else:
        loop = make_loop(lambda _: kernel, trace_fn, position, jit_compile, view=view, **options)
    if num_chains is not None:
        chain_shape = (num_chains,)
    else:
        chain_shape = chain_shape_of(kernel, position) or chain_shape
    kept = kept_arrays(loop.kept, chain_shape)
    check_memory(kept, plan.num_results, position, on_disk)
    if preflight_check:
        refuse_epochs(kernel, target, position.results)
    is_new = bool(workers.broadcast(tf.constant(run is None or not run.has_run)))
    if target is not None and preflight_check and is_new:
        preflight(target, position.state, kernel=kernel)
    attributes = {"tuning_steps": plan.num_burnin_steps}
    records: Records = MemoryRecords(kept, 0 if on_disk else plan.num_results)
    if on_disk:
        fingerprint = {
            **describe_kernel(kernel),
            **describe_run(kernel, loop, position),
            "seed": seed.numpy().tolist(),
            "num_burnin_steps": plan.num_burnin_steps,
            "num_steps_between_results": plan.stride - 1,
            # Not even noise depends on the number of replicas if XLA does not compile steps.
            "jit_compile": jit_compile and workers.replicas is None,
        }
        describe = describe_batches(target, position.state)
        opened = workers.run_on_first(
            f"open the run in {None if run is None else run.path}",
            lambda: run and open_records(run, kept, fingerprint, attributes, position, describe),
        )
        records, position = opened or (CountedRecords(kept), position)
        number, position = workers.broadcast((tf.constant(records.num_draws), position))
        if isinstance(records, CountedRecords):
            records.num_draws = int(number)
    first_step, sampling_began = int(position.step), time.perf_counter()
    if records.num_draws < plan.num_results:
        feed = Feed(target, position.results, run is not None)
        loop(position, 0, 1, plan.stride, seed)  # compiles
        sampling_began = time.perf_counter()
        stepping = contextlib.nullcontext() if hooks is None else hooks.stepping()
        progress_bar = progress_bar if workers.is_first else False
        with progress(progress_bar, plan.num_steps, first_step) as bar, stepping:
            show = hooks.show if hooks else lambda position: bar(int(position.step), position)
            position = take_steps(
                loop,
                plan,
                seed,
                position,
                records,
                feed,
                show,
                checkpoint_seconds,
                hooks and hooks.interrupt,
                workers,
            )
    seconds = time.perf_counter() - sampling_began

    _warn_of_skipped(position.results)
    if target is not None and preflight_check and int(position.step) > first_step:
        _warn_of_step(kernel, target, position.state, position.results)
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
    """Returns the given seed, else the seed of the run in a directory, else a new one."""
    if given is not None:
        return random.as_seed(given)
    saved = None if run is None else run.saved()
    before = None if saved is None else saved.header["fingerprint"].get("seed")
    return random.as_seed(random.fresh_seed() if before is None else before)


def _warn_of_skipped(results: Any) -> None:
    """Warns if minibatches were left out of the covariance of the gradient noise."""
    skipped = [
        np.asarray(x)
        for path, x in tree.flatten_with_path(results)
        if path and path[-1] == "num_skipped"
    ]
    count = sum(int(x.sum()) for x in skipped)
    if not count:
        return
    step = getattr(results, "step", None)
    chains = max(x.size for x in skipped)
    taken = "" if step is None else f" of {int(np.max(np.asarray(step))) * chains}"
    warnings.warn(
        f"{count}{taken} minibatches had gradients of single examples that are NaN or infinite. "
        "The covariance of the gradient noise uses only the remaining examples. Check "
        "log_likelihood_fn for overflow at the states that the chain visits.",
        stacklevel=4,
    )


def _warn_of_step(kernel: Any, target: Target, state: Any, results: Any) -> None:
    """Warns if the last step size is not stable at the last state.

    The check before the run sees the start only, and a chain can move to where the log posterior is
    more curved.
    """
    try:
        found = judge_step(kernel, target, state, results)
    except (LookupError, NotImplementedError):  # no second derivatives, as warned at the start
        return
    except (ValueError, tf.errors.OpError) as error:  # the draws must not be lost for this
        warnings.warn(
            f"The curvature of the log posterior at the last state cannot be found: {error}",
            stacklevel=4,
        )
        return
    if found is not None and not found.is_stable:
        warnings.warn(
            f"step_size must be below {np.min(found.largest_stable_step):.3g} for "
            f"{type(kernel).__name__} at the last state, where the largest curvature of the log "
            f"posterior is {found.largest_curvature:.4g}. Received: {found.step_size:.3g}. The "
            "draws may be far too wide, although they are finite. Run again with a smaller step.",
            stacklevel=4,
        )
