"""Runs a kernel whose settings are known, from its start to its result.

`sample_chain` runs it in memory, or in a directory that it can resume.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, cast

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tree

from tfp_sgmcmc import random
from tfp_sgmcmc.internal.checks import boolean, eager, function, integer, optional
from tfp_sgmcmc.kernels.base import StochasticGradientKernel, check_kernel
from tfp_sgmcmc.kernels.independent_metropolis import IndependentMetropolis
from tfp_sgmcmc.sampling.independent_loop import IndependentLoop
from tfp_sgmcmc.sampling.loop import (
    Position,
    chain_shape_of,
    repeat_chains,
    replicas_of,
    start_of,
    target_of,
)
from tfp_sgmcmc.sampling.programs import kept_loop
from tfp_sgmcmc.sampling.progress import progress
from tfp_sgmcmc.sampling.result import (
    CountedRecords,
    MemoryRecords,
    Records,
    SampleResult,
    Timings,
    check_memory,
    kept_arrays,
    open_records,
)
from tfp_sgmcmc.sampling.run_fingerprint import (
    describe_batches,
    describe_call,
    describe_kernel,
    describe_run,
)
from tfp_sgmcmc.sampling.steps import Feed, ProcessGroup, StepPlan, take_steps
from tfp_sgmcmc.storage.directory import Directory, RunDirectory, as_directory
from tfp_sgmcmc.targets import Target, preflight
from tfp_sgmcmc.targets.validation.step_size_check import judge_step
from tfp_sgmcmc.targets.validation.stream_check import refuse_epochs


def sample_chain(
    kernel: Any,
    initial_state: Any,
    num_results: int,
    *,
    num_burnin_steps: int = 0,
    num_steps_between_results: int = 0,
    num_chains: int | None = None,
    trace_fn: Callable[[Any, Any], Any] | None = None,
    seed: Any = None,
    directory: Directory | str | os.PathLike[str] | None = None,
    progress_bar: bool | None = None,
    jit_compile: bool = True,
    preflight_check: bool = True,
) -> SampleResult:
    r"""Runs a kernel and returns its draws.

    The arguments are named as in `tfp.mcmc.sample_chain`. This function adds a progress bar, a
    check of the target, draws on disk, and exact resume.

    With b = `num_burnin_steps` and k = `num_steps_between_results`, draw i is the state after

    \[ t_i = b + 1 + (k + 1)\, i, \quad i = 0, 1, 2, \dots \]

    steps, and step t draws its random numbers from `random.fold_in(seed, t)`. So 10 steps and 10
    more give the same chain as 20, in one process or in two.

    Before the first step, `preflight` checks that the target's minibatches add up to its full data
    and that the step size is stable. The step size is checked again at the last state. Ctrl-C ends
    the run after the current steps and returns the draws so far. `sgmcmc.report(result, target)`
    summarises on one page whether the draws can be trusted.

    With a `directory`, draws are written to disk as they come, and memory does not grow with their
    number. If the run is cut off, even by `kill -9`, the same call resumes it from the last
    checkpoint, bit for bit. A finished run continues when more results are asked for. The draws are
    a zarr store that other programs can open at any time:
    `xarray.open_zarr(path / "samples.zarr", group="posterior")`.

    If the target is a `ShardedLogProb`, call this function on all workers with the same arguments.
    Each step then runs on all replicas of the strategy in whose scope the call is. Worker 0 chooses
    the seed if it is None, and alone writes `directory`; the results of the other workers then hold
    no draws. If a worker is lost, the others raise, and the same call on all workers resumes.

    Examples:
      >>> import numpy as np, tensorflow as tf, tensorflow_probability as tfp
      >>> import tfp_sgmcmc as sgmcmc
      >>> tfd = tfp.distributions
      >>> x = np.random.default_rng(0).normal(2., 1., size=[1000]).astype(np.float32)
      >>> target = sgmcmc.MinibatchLogProb(
      ...     log_prior_fn=tfd.Normal(0., 10.).log_prob,
      ...     log_likelihood_fn=lambda t, batch: tfd.Normal(t[..., None], 1.).log_prob(batch),
      ...     data=x, batch_size=50)
      >>> result = sgmcmc.sample_chain(
      ...     sgmcmc.SGLD(target, step_size=1e-4), tf.zeros([]), num_results=2000, num_chains=4,
      ...     num_burnin_steps=200, seed=0, progress_bar=False,
      ...     trace_fn=lambda _, results: {"gradient_norm": results.gradient_norm})
      >>> result.states.shape, result.trace["gradient_norm"].shape, result.weights.shape
      ((2000, 4), (2000, 4), (2000,))
      >>> bool(abs(result.states.mean() - x.mean()) < 0.02)
      True

      A run in a directory continues when more results are asked for:

      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     for num_results in (10, 30):
      ...         result = sgmcmc.sample_chain(
      ...             sgmcmc.SGLD(target, step_size=1e-4), tf.zeros([]), num_results, seed=0,
      ...             jit_compile=False, directory=folder, progress_bar=False)
      ...     last = result.states[-1]  # reads this draw only
      >>> result.num_results, int(result.final_kernel_results.step)
      (30, 30)
      >>> bool(last == result.final_state)
      True

    Args:
      kernel: a kernel of this library or of `tfp.mcmc`.
      initial_state: a tensor or a nest of tensors. Without `num_chains`, its leading axes may
        count chains.
      num_results: number of draws of each chain, including those already in `directory`.
      num_burnin_steps: number of steps before the first one that may be kept.
      num_steps_between_results: number of steps between two that are kept.
      num_chains: C; repeats every part of `initial_state` to `[C, ...]`. The chains start at the
        same place and differ by their random numbers only.
      trace_fn: state, kernel results -> nest of tensors to keep with each draw.
      seed: an integer or two. None takes the seed of the run in `directory`, or draws a new one by
        `random.fresh_seed`. `result.seed` holds it.
      directory: a path, or a `Directory` with a path, a rule for resuming, and the seconds between
        checkpoints. None keeps the draws in memory.
      progress_bar: whether to show steps a second, the time left and the latest log posterior (the
        root mean square of the state if the kernel has no estimate): a bar in a terminal, a widget
        in a notebook, and elsewhere a line every ten seconds. None shows them if tqdm is installed.
      jit_compile: whether XLA compiles the steps, which is mostly much faster. Where the log
        posterior factorises matrices of 32 rows or more on a CPU, False is faster.
      preflight_check: whether to run `preflight`. It reads the whole data once (of a
        `StreamedLogProb` one epoch, for at most 30 s).

    Returns:
      A `SampleResult`.

    Raises:
      ValueError: a number is out of range; a state, target or trace does not fit; `directory` holds
        other files, a damaged run, or a run with another kernel, seed, start, trace, prior or
        likelihood, which the message names; workers were called with different arguments.
      TypeError: an argument has the wrong type.
      MemoryError: the draws or the kernel's results would not fit into memory.
      ModuleNotFoundError: zarr or tqdm is needed and not installed.
      NonFiniteChainError: a state or the log posterior became NaN or infinite. `samples` holds the
        results before, which are also in `directory`.
      OSError: `directory` cannot be written any more; the message counts the results that are safe.
      RuntimeError: another worker was lost, or its chain differs from the one here.
    """
    eager("sample_chain")
    check_kernel("kernel", kernel)
    plan = StepPlan.checked(num_results, num_burnin_steps, num_steps_between_results)
    check_options(num_chains, trace_fn, progress_bar, jit_compile, preflight_check)
    seed = None if seed is None else random.as_seed(seed)
    place = as_directory(directory)
    workers = ProcessGroup(replicas_of(target_of(kernel)))
    workers.check_same(
        lambda: describe_call(
            kernel,
            initial_state,
            seed=None if seed is None else seed.numpy().tolist(),
            plan=list(plan),
            num_chains=num_chains,
            jit_compile=jit_compile,
            preflight_check=preflight_check,
            directory=place is not None,
            trace_fn=trace_fn is not None,
        )
    )
    with contextlib.ExitStack() as stack:
        run = None
        if place is not None:
            run = workers.run_on_first(
                f"open {place.path}",
                lambda: stack.enter_context(RunDirectory(place.path, place.resume)),
            )
        return run_kernel(
            kernel,
            initial_state,
            plan,
            seed=workers.broadcast(seed_of(seed, run)),
            num_chains=num_chains,
            trace_fn=trace_fn,
            jit_compile=jit_compile,
            progress_bar=progress_bar,
            run=run,
            checkpoint_seconds=10.0 if place is None else place.seconds_between_commits,
            preflight_check=preflight_check,
            workers=workers,
            on_disk=place is not None,
        )


def check_options(
    num_chains: Any, trace_fn: Any, progress_bar: Any, jit_compile: Any, preflight_check: Any
) -> None:
    """Raises TypeError or ValueError for a wrong option that the doors share."""
    optional(integer, "num_chains", num_chains, 1)
    if trace_fn is not None:
        function("trace_fn", trace_fn, "state, kernel results -> nest of tensors")
    optional(boolean, "progress_bar", progress_bar)
    boolean("jit_compile", jit_compile)
    boolean("preflight_check", preflight_check)


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
    loop: Any = None,
    start_fn: Callable[[tfp.mcmc.TransitionKernel, Any], Position] = start_of,
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
      loop: a `Loop` that was compiled for another run, or another callable with its attributes.
        None takes the one that the kernel keeps.
      start_fn: kernel, initial state -> the position before the first step.
      chain_shape: the shape of the chains, for a kernel whose results do not show it.
      workers: the workers that make this call together. Worker 0 alone has the `run`.
      on_disk: whether worker 0 has a `run`.
    """
    workers, on_disk = workers or ProcessGroup(), on_disk or run is not None
    began = time.perf_counter()
    position = workers.broadcast(start_fn(kernel, repeat_chains(initial_state, num_chains)))
    target, replicas = target_of(kernel), workers.replicas
    if replicas is None and isinstance(kernel, IndependentMetropolis):
        loop = cast(Any, IndependentLoop(kernel, trace_fn, position, jit_compile, view))
    elif loop is None:
        loop = kept_loop(kernel, trace_fn, position, jit_compile, view, replicas)
    if num_chains is None:
        chain_shape = chain_shape_of(kernel, position) or chain_shape
    else:
        chain_shape = (num_chains,)
        is_ours = isinstance(kernel, StochasticGradientKernel)
        if is_ours and (found := chain_shape_of(kernel, position))[:1] != chain_shape:
            raise ValueError(
                "initial_state must be the state of one chain if num_chains is given. Received: "
                f"num_chains={num_chains}, for which the log posterior has the shape "
                f"{[*found]} instead of [{num_chains}]."
            )
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
            "jit_compile": jit_compile and replicas is None,
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
