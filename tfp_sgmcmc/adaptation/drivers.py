"""`sample`: a chain with a progress bar, on disk if wanted, that goes on where it stopped."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.adaptation.target_arguments import refuse_settings
from tfp_sgmcmc.adaptation.target_driver import sample_target
from tfp_sgmcmc.internal.checks import boolean, function, integer, one_of, positive, require
from tfp_sgmcmc.sampling.introspection import replicas_of, target_of
from tfp_sgmcmc.sampling.loop import check_kernel
from tfp_sgmcmc.sampling.process_group import Gang
from tfp_sgmcmc.sampling.result import SampleResult
from tfp_sgmcmc.sampling.run import run_kernel, seed_of
from tfp_sgmcmc.sampling.run_fingerprint import describe_call
from tfp_sgmcmc.sampling.shards.shard_driver import sample_shards
from tfp_sgmcmc.sampling.steps import Plan
from tfp_sgmcmc.storage.directory import Resume, RunDirectory


def sample(
    kernel: Any,
    initial_state: Any,
    num_results: int,
    *,
    seed: Any = None,
    num_burnin_steps: int = 0,
    num_steps_between_results: int = 0,
    num_chains: int | None = None,
    chains_per_shard: int | None = None,
    executor: Any = None,
    min_ess: int | None = None,
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

    **Without a kernel**, given a target, `sample` chooses all settings itself, and checks them:

    - coordinates: it finds a mode, and whitens by the Hessian there (`whiten`), by low rank beyond
      4096 entries; where the prior has kinks or a pilot's draws are far wider or narrower than the
      Hessian says, by the draws' mean and the Hessian there, or for HMC by their covariance.
    - the sampler: `UnderdampedLangevin` with second-order control variates (`ControlVariate`), or
      HMC on all data where that is cheaper by measured times of a step.
    - minibatch n, step h and temperature: the cheapest n and h whose noise is predicted to make
      variances at most 3 % too large on average and 5 % in the worst direction. A temperature of
      about 1 makes up for the average. A pilot of all chains from dispersed starts measures the
      noise and the draws' variance. The choice is made again where they are larger than predicted,
      and the run takes fewer examples where the noise is smaller.
    - the number of steps between results, such that draws are nearly independent.
    - the seed, the number of chains (4) and their starts, where they are not given.

    `num_results` draws of each chain come back, in the structure of the state, and constrained if
    the target has a bijector. The noise and the guard of the control variates are watched along the
    run. Draws are made again if chains disagree, if they are worth too few (`min_ess`), or if their
    gradients say that means or variances are off: with more steps, if that takes a minute at most,
    or with all examples. What is still wrong is in `result.flags`, with a warning.
    `result.explanation` says what was done and why, and `result.choices` holds all settings with
    the program that does the same by hand. The choice depends on measured times, so that other
    machines may choose otherwise; the same choices and seed give the same chain.

    Nothing is promised, and a flag says so, where the curvature at a mode says little of the
    posterior: funnels, several modes, likelihoods without second derivatives. NUTS on all data then
    samples, in coordinates that a pilot scales, for an hour at most, or `NOGIN` on large data. A
    flat direction is refused. No check sees modes that the search from 16 starts does not find,
    single directions whose variance is up to 10 % too large, or tails beyond what draws reach.

    **In shards**, with `chains_per_shard` or `executor`, the chains are cut into shards of that
    many, which run side by side: by threads, one for each core or accelerator, or on the workers of
    an executor. Shard i has the seed `random.fold_in(seed, i)` and runs in `directory / "shard-i"`,
    so that its draws are the same on one worker or a hundred, in any order, and those of `sample`
    for its chains alone. A shard whose worker was killed goes on from its directory when the engine
    gives it to another worker, or when the same call is made again. A `ShardedResult` comes back,
    whose arrays read only what is indexed; `open_shards(directory)` reads a run under way.

    **On replicas**, a kernel whose target is a `ShardedLogProb` takes each step on all replicas of
    the strategy in whose scope both are. All workers call `sample` alike. XLA compiles each
    replica's share of the gradient and not the steps around it, so that chains are those of one
    replica with `jit_compile=False`, up to the order of sums. Worker 0 chooses the seed if it is
    None. It alone writes to `directory`, and sends the others what it read there; their results
    then hold no draws. If a worker is lost, the others raise; the same call on all workers goes on.

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

      Without a kernel, there is nothing to choose:

      >>> result = sgmcmc.sample(target, tf.constant(0.), 500, seed=0, progress_bar=False)
      >>> result.states.shape, result.is_trusted
      ((500, 4), True)
      >>> bool(abs(result.states.std() / (1000 / x.var() + 0.01) ** -0.5 - 1) < 0.1)
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
      kernel: a kernel of this library or of `tfp.mcmc`; or a `MinibatchLogProb`, a
        `FullDataLogProb` or a plain callable, for which the run chooses the kernel. Then the
        target's batch size is not used, and `num_burnin_steps`, `num_steps_between_results` and
        `trace_fn` must not be given.
      initial_state: a tensor or a nest of tensors. If `num_chains` is None, its leading axes may
        count chains. Without a kernel it is one point, unconstrained if the target has a bijector.
      num_results: number of draws to keep, including those that are in `directory` already.
      seed: an integer or two. None takes the seed of the run in `directory`, or for a new run draws
        one by `random.fresh_seed`. The result's `seed` tells it.
      num_burnin_steps: number of steps before the first one that may be kept.
      num_steps_between_results: number of steps between kept ones.
      num_chains: C; every part of `initial_state` is repeated to `[C, ...]`, so that all chains
        start at the same place and differ by their random numbers only. Without a kernel the
        default is 4, and chains start at dispersed places.
      chains_per_shard: number of chains of each shard. None is one run, or with an executor 32.
      executor: what runs the shards: None for threads in this process, or an object with
        `submit(function, argument)` as of `concurrent.futures`, such as a dask `Client`. Then
        `kernel` is a function without arguments that makes the kernel, with data that it loads, on
        the worker, and `directory` must be on a file system that all workers share.
      min_ess: the effective sample size of the worst parameter to reach without a kernel, all
        chains together; None is 400, and at most half of the draws count.
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
      ValueError: a number is out of range; a state, target or trace does not fit; without a kernel,
        the log posterior is flat along a line, and has no finite integral; `directory` holds other
        files, a damaged run, or a run with another kernel, seed, start, trace, prior or
        likelihood, which the message names; workers were called with different arguments.
      TypeError: an argument has the wrong type.
      MemoryError: the draws or the kernel's results would not fit into memory.
      ModuleNotFoundError: zarr or tqdm is needed and not installed.
      NonFiniteChainError: a state or the log posterior became NaN or infinite. `samples` holds the
        results before, which are also in `directory`.
      OSError: `directory` cannot be written any more; the message says how many results are safe.
      RuntimeError: another worker was lost, or its chain is not the same as this one's.
    """
    is_sharded = chains_per_shard is not None or executor is not None
    is_kernel = isinstance(kernel, tfp.mcmc.TransitionKernel)
    is_automatic = callable(kernel) and not is_kernel and not is_sharded
    if is_automatic:
        refuse_settings(kernel, num_burnin_steps, num_steps_between_results, trace_fn)
        integer("min_ess", 400 if min_ess is None else min_ess, 1)
    else:
        if not is_sharded:
            check_kernel("kernel", kernel)
        require("min_ess", min_ess, min_ess is None, "None with a kernel, which needs a target")
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
    if seed is not None:
        seed = random.as_seed(seed)
    if num_chains is not None:
        integer("num_chains", num_chains, 1)

    if is_sharded:
        return sample_shards(
            kernel,
            initial_state,
            plan,
            seed=seed,
            num_chains=num_chains,
            chains_per_shard=chains_per_shard,
            executor=executor,
            trace_fn=trace_fn,
            jit_compile=jit_compile,
            progress_bar=progress_bar,
            directory=directory,
            resume=resume,
            checkpoint_seconds=checkpoint_seconds,
            preflight_check=preflight_check,
        )
    gang = Gang(None if is_automatic else replicas_of(target_of(kernel)))
    if not is_automatic:
        gang.check_same(
            lambda: describe_call(
                kernel,
                initial_state,
                seed=None if seed is None else seed.numpy().tolist(),
                plan=list(plan),
                num_chains=num_chains,
                jit_compile=jit_compile,
                preflight_check=preflight_check,
                directory=directory is not None,
                trace_fn=trace_fn is not None,
            )
        )
    with contextlib.ExitStack() as stack:
        run = None
        if directory is not None:
            run = gang.by_first(
                f"open {directory}",
                lambda: stack.enter_context(RunDirectory(directory, resume)),
            )
        if is_automatic:
            return sample_target(
                kernel,
                initial_state,
                plan.num_results,
                seed=seed,
                num_chains=4 if num_chains is None else num_chains,
                min_ess=400 if min_ess is None else min_ess,
                jit_compile=jit_compile,
                progress_bar=progress_bar,
                run=run,
                checkpoint_seconds=checkpoint_seconds,
                preflight_check=preflight_check,
            )
        return run_kernel(
            kernel,
            initial_state,
            plan,
            seed=gang.of_first(seed_of(seed, run)),
            num_chains=num_chains,
            trace_fn=trace_fn,
            jit_compile=jit_compile,
            progress_bar=progress_bar,
            run=run,
            checkpoint_seconds=checkpoint_seconds,
            preflight_check=preflight_check,
            gang=gang,
            on_disk=directory is not None,
        )


def _check_resume(directory: Any, resume: Any) -> None:
    if not isinstance(resume, bool):
        one_of("resume", resume, ("auto", "must", "never"))
    if directory is None and resume in ("must", True):
        raise ValueError(
            f"resume must be 'auto', 'never' or False if directory is None. Received: {resume!r}."
        )
