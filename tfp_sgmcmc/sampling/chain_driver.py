"""`sample_chain`: runs a kernel, in memory or in a directory that it can resume."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from tfp_sgmcmc import random
from tfp_sgmcmc.internal.checks import boolean, eager, function, integer, optional
from tfp_sgmcmc.sampling.loop import check_kernel, replicas_of, target_of
from tfp_sgmcmc.sampling.process_group import ProcessGroup
from tfp_sgmcmc.sampling.result import SampleResult
from tfp_sgmcmc.sampling.run import run_kernel, seed_of
from tfp_sgmcmc.sampling.run_fingerprint import describe_call
from tfp_sgmcmc.sampling.steps import StepPlan
from tfp_sgmcmc.storage.directory import Directory, RunDirectory, as_directory


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
      jit_compile: whether XLA compiles the steps, which is much faster.
      preflight_check: whether to run `preflight`. It reads the whole data once (the first batch
        only for a `StreamedLogProb`).

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
