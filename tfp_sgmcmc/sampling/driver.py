"""`sample`: a chain with a progress bar, on disk if wanted, that goes on where it stopped."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tree

from tfp_sgmcmc import random
from tfp_sgmcmc.checks import boolean, function, integer, one_of, positive
from tfp_sgmcmc.sampling.aftermath import warn_of_skipped, warn_of_step
from tfp_sgmcmc.sampling.feed import Feed
from tfp_sgmcmc.sampling.introspection import chain_shape_of, target_of
from tfp_sgmcmc.sampling.loop import Loop, check_kernel, start_of, state_tensors
from tfp_sgmcmc.sampling.problem import describe_batches, describe_run
from tfp_sgmcmc.sampling.progress import progress
from tfp_sgmcmc.sampling.records import MemoryRecords, Records, check_memory, open_records
from tfp_sgmcmc.sampling.result import SampleResult, Timings, kept_arrays
from tfp_sgmcmc.sampling.steps import Plan, take_steps
from tfp_sgmcmc.storage.directory import Resume, RunDirectory
from tfp_sgmcmc.storage.fingerprint import describe_kernel
from tfp_sgmcmc.targets import preflight
from tfp_sgmcmc.targets.streamed import StreamedLogProb


def sample(
    kernel: tfp.mcmc.TransitionKernel,
    initial_state: Any,
    num_results: int,
    *,
    seed: Any = None,
    num_burnin_steps: int = 0,
    num_steps_between_results: int = 0,
    num_chains: int | None = None,
    trace_fn: Callable[[Any, Any], Any] | None = None,
    jit_compile: bool = True,
    progress_bar: bool | None = None,
    directory: str | os.PathLike[str] | None = None,
    resume: Resume = "auto",
    checkpoint_seconds: float = 10.0,
    preflight_check: bool = True,
) -> SampleResult:
    r"""Runs a kernel's chain, as `tfp.mcmc.sample_chain` does, and keeps its draws.

    The first result is the state after \( b + 1 \) steps, and another result follows every
    \( k + 1 \) steps (b is `num_burnin_steps`, k is `num_steps_between_results`). Step t draws from
    `random.fold_in(seed, t)`. So 10 steps and 10 more give the same draws as 20, in one process or
    in several. The number of results and the number of steps in a compiled call do not matter.

    Before the first step, `preflight` checks that the target's minibatches add up to its full data,
    and that the step is stable at the start, which is checked at the last state again.
    Ctrl-C ends a run after the steps that are under way, and the results so far are returned.
    `sgmcmc.report(result, target)` then says on one page whether the draws can be trusted.

    With a `directory`, draws are written to disk as they come, and memory does not grow with their
    number. When a run is cut off, even by `kill -9`, the same call goes on from the last checkpoint
    bit for bit. A finished run goes on when more results are asked for. The draws are a zarr store,
    `directory / "samples.zarr"`, which other programs can open during and after the run:
    `xarray.open_zarr(path, group="posterior")`, or for ArviZ
    `arviz.InferenceData.from_datatree(xarray.open_datatree(path, engine="zarr"))`.

    Examples:
      >>> import numpy as np, tensorflow as tf, tensorflow_probability as tfp
      >>> import tfp_sgmcmc as sgmcmc
      >>> tfd = tfp.distributions
      >>> x = np.random.default_rng(0).normal(2., 1., size=[1000]).astype(np.float32)
      >>> target = sgmcmc.MinibatchLogProb(
      ...     log_prior_fn=tfd.Normal(0., 10.).log_prob,
      ...     log_likelihood_fn=lambda t, batch: tfd.Normal(t[..., None], 1.).log_prob(batch),
      ...     data=x, batch_size=50)
      >>> result = sgmcmc.sample(
      ...     sgmcmc.SGLD(target, step_size=1e-4), tf.zeros([]), num_results=2000, num_chains=4,
      ...     num_burnin_steps=200, seed=0, progress_bar=False,
      ...     trace_fn=lambda _, results: {"gradient_norm": results.gradient_norm})
      >>> result.states.shape, result.trace["gradient_norm"].shape, result.weights.shape
      ((2000, 4), (2000, 4), (2000,))
      >>> bool(abs(result.states.mean() - x.mean()) < 0.02)
      True

      A run in a directory goes on when more results are asked for:

      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     for num_results in (10, 30):
      ...         result = sgmcmc.sample(
      ...             sgmcmc.SGLD(target, step_size=1e-4), tf.zeros([]), num_results, seed=0,
      ...             jit_compile=False, directory=folder, progress_bar=False)
      ...     last = result.states[-1]  # reads this draw only
      >>> result.num_results, int(result.final_kernel_results.step)
      (30, 30)
      >>> bool(last == result.final_state)
      True

    Args:
      kernel: a kernel of this library or of `tfp.mcmc`.
      initial_state: a tensor or a nest of tensors. If `num_chains` is None, its leading axes may
        count chains.
      num_results: number of draws to keep, including those that are in `directory` already.
      seed: an integer or two. None takes the seed of the run in `directory`, or for a new run draws
        one by `random.fresh_seed`. The result's `seed` tells it.
      num_burnin_steps: number of steps before the first one that may be kept.
      num_steps_between_results: number of steps between kept ones.
      num_chains: C; every part of `initial_state` is repeated to `[C, ...]`, so that all chains
        start at the same place and differ by their random numbers only.
      trace_fn: state, kernel results -> nest of tensors to be kept with each draw.
      jit_compile: whether XLA compiles the steps, which is much faster.
      progress_bar: whether to show steps a second, the time left and the log posterior as the
        kernel last estimated it, or the root mean square of the state if the kernel has no
        estimate. None shows the bar if tqdm is installed.
      directory: where draws and checkpoints go: a new or empty directory, or that of this run.
      resume: "auto" goes on if `directory` holds a run; "must" or True raises if it holds none;
        "never" or False raises if it holds one.
      checkpoint_seconds: approximate time between checkpoints.
      preflight_check: whether `preflight` runs. It reads the whole data once (the first batch only
        for a `StreamedLogProb`).

    Raises:
      ValueError: a number is out of range; a state, target or trace does not fit; `directory` holds
        other files, a damaged run, or a run with another kernel, seed, start, trace, prior or
        likelihood, which the message names.
      TypeError: an argument has the wrong type.
      MemoryError: the draws or the kernel's results would not fit into memory.
      ModuleNotFoundError: zarr or tqdm is needed and not installed.
      NonFiniteChainError: a state or the log posterior became NaN or infinite. `samples` holds the
        results before, which are also in `directory`.
      OSError: `directory` cannot be written any more; the message says how many results are safe.
    """
    check_kernel("kernel", kernel)
    if trace_fn is not None:
        function("trace_fn", trace_fn, "state, kernel results -> nest of tensors")
    positive("checkpoint_seconds", checkpoint_seconds)
    boolean("jit_compile", jit_compile)
    boolean("preflight_check", preflight_check)
    if progress_bar is not None:
        boolean("progress_bar", progress_bar)
    _check_resume(directory, resume)
    plan = Plan(
        integer("num_results", num_results, 1),
        integer("num_burnin_steps", num_burnin_steps, 0),
        integer("num_steps_between_results", num_steps_between_results, 0) + 1,
    )
    given_seed = None if seed is None else random.as_seed(seed)
    if num_chains is not None:
        integer("num_chains", num_chains, 1)
        initial_state = tf.nest.map_structure(
            lambda x: tf.broadcast_to(x, [num_chains, *x.shape]), state_tensors(initial_state)
        )

    with contextlib.ExitStack() as stack:
        run = None
        if directory is not None:
            run = stack.enter_context(RunDirectory(directory, resume))
        seed = _seed_of(run) if given_seed is None else given_seed
        began = time.perf_counter()
        position, target = start_of(kernel, initial_state), target_of(kernel)
        loop = Loop(lambda _: kernel, trace_fn, position, jit_compile)
        chain_shape = chain_shape_of(kernel, position) if num_chains is None else (num_chains,)
        kept = kept_arrays(loop.kept, chain_shape)
        check_memory(kept, num_results, position, run is not None)
        # The whole data of a stream may be too large for a check.
        checked = target.of_one_batch if isinstance(target, StreamedLogProb) else target
        if checked is not None and preflight_check and (run is None or not run.has_run):
            preflight(checked, position.state, kernel=kernel)
        attributes = {"tuning_steps": plan.num_burnin_steps}
        records: Records = MemoryRecords(kept, num_results)
        if run is not None:
            fingerprint = {
                **describe_kernel(kernel),
                **describe_run(kernel, loop, position),
                "seed": seed.numpy().tolist(),
                "num_burnin_steps": plan.num_burnin_steps,
                "num_steps_between_results": plan.stride - 1,
                "jit_compile": jit_compile,
            }
            describe = describe_batches(target, position.state)
            records, position = open_records(run, kept, fingerprint, attributes, position, describe)
        first_step, sampling_began = int(position.step), time.perf_counter()
        if records.num_draws < num_results:
            feed = Feed(target, position.results, run is not None)
            loop(position, 0, 1, plan.stride, seed)  # compiles
            sampling_began = time.perf_counter()
            bar = stack.enter_context(progress(progress_bar, plan.num_steps, first_step))
            position = take_steps(
                loop, plan, seed, position, records, feed, bar, checkpoint_seconds
            )
        seconds = time.perf_counter() - sampling_began

    warn_of_skipped(position.results)
    if target is not None and preflight_check and int(position.step) > first_step:
        warn_of_step(kernel, target, position.state, position.results)
    draws = records.draws(min(num_results, records.num_draws))
    states, trace, weights = tree.unflatten_as(loop.kept, draws)
    steps = int(position.step) - first_step
    return SampleResult(
        states=states,
        trace=None if trace_fn is None else trace,
        weights=weights if tree.flatten(loop.kept[2]) else None,
        is_complete=records.num_draws >= num_results,
        final_state=position.state,
        final_kernel_results=position.results,
        timings=Timings(sampling_began - began, seconds, steps / seconds if steps else np.nan),
        directory=None if directory is None else Path(directory),
        kernel=kernel,
        seed=tuple(seed.numpy().tolist()),
        _kept=kept,
        _attributes=attributes,
    )


def _seed_of(run: RunDirectory | None) -> tf.Tensor:
    """Returns the seed of the run in a directory, or a new one."""
    saved = None if run is None else run.saved()
    before = None if saved is None else saved.header["fingerprint"].get("seed")
    return random.as_seed(random.fresh_seed() if before is None else before)


def _check_resume(directory: Any, resume: Any) -> None:
    if not isinstance(resume, bool):
        one_of("resume", resume, ("auto", "must", "never"))
    if directory is None and resume in ("must", True):
        raise ValueError(
            f"resume must be 'auto', 'never' or False if directory is None. Received: {resume!r}."
        )
