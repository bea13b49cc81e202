"""`sample`: draws from a posterior, with all settings chosen for it."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.adaptation.settings import SampleCall
from tfp_sgmcmc.adaptation.settings_file import forget
from tfp_sgmcmc.adaptation.sharded_target_driver import (
    KernelGivenError,
    sample_target_in_shards,
)
from tfp_sgmcmc.adaptation.target_arguments import check_target
from tfp_sgmcmc.adaptation.target_driver import sample_target
from tfp_sgmcmc.internal.checks import boolean, eager, integer, optional, require
from tfp_sgmcmc.sampling.result import SampleResult
from tfp_sgmcmc.sampling.run import check_options, sample_chain
from tfp_sgmcmc.sampling.shards.shard_driver import sample_shards
from tfp_sgmcmc.storage.directory import Directory, RunDirectory, as_directory

# What XLA says of an operation that it has no kernel for.
_UNSUPPORTED = re.compile(r"unsupported operations when trying to compile.*?: (\w+)", re.DOTALL)
_OF_KERNELS = ("num_burnin_steps", "num_steps_between_results", "trace_fn")
Door = TypeVar("Door", bound=Callable[..., SampleResult])


def accept_deprecated_calls(door: Door) -> Door:
    """Makes `sample` take a kernel, `resume` and `checkpoint_seconds` for one release."""

    def warn(old: str, new: str) -> None:
        message = f"{old} is deprecated, use {new}. The next release will not accept the old call."
        warnings.warn(message, DeprecationWarning, stacklevel=3)

    @functools.wraps(door)
    def sample(*args: Any, **options: Any) -> SampleResult:
        for name in ("kernel", "target"):
            if not args and name in options:
                args = (options.pop(name),)
        if not args:
            return door(**options)
        if {"resume", "checkpoint_seconds"} & {*options}:
            warn(
                "sample(..., resume=..., checkpoint_seconds=...)",
                "directory=Directory(path, resume=..., seconds_between_commits=...)",
            )
            options["directory"] = _directory(options)
        # None was the default of these.
        unset = "num_chains", "min_ess", "chains_per_shard", "executor"
        options = {k: x for k, x in options.items() if x is not None or k not in unset}
        is_kernel = isinstance(args[0], tfp.mcmc.TransitionKernel)
        if {"chains_per_shard", "executor"} & {*options}:
            with contextlib.suppress(KernelGivenError):
                if not is_kernel and not {*_OF_KERNELS} & {*options}:
                    return door(*args, **options)
            warn("sample(kernel, ..., chains_per_shard=..., executor=...)", "sample_shards(...)")
            return sample_shards(*args, **options)
        if is_kernel:
            warn("sample(kernel, ...)", "sample_chain(kernel, ...)")
            return sample_chain(*args, **options)
        for name in _OF_KERNELS:
            neutral = None if name == "trace_fn" else 0
            value = options.pop(name, neutral)
            expected = f"{neutral} for a target, because sample chooses it; see sample_chain"
            require(name, value, value == neutral, expected)
        return door(*args, **options)

    return cast(Door, sample)


def _directory(options: dict[str, Any]) -> Directory | None:
    """Takes the deprecated options for a directory out of `options`, and returns the directory."""
    path, resume = options.get("directory"), options.pop("resume", "auto")
    directory = Directory(
        "." if path is None else path, resume, options.pop("checkpoint_seconds", 10.0)
    )
    if path is not None:
        return directory
    if resume in ("must", True):
        raise ValueError(
            f"resume must be 'auto', 'never' or False if directory is None. Received: {resume!r}."
        )
    return None


@accept_deprecated_calls
def sample(
    target: Any,
    initial_state: Any = None,
    num_results: int = 1000,
    *,
    bijector: Any = None,
    num_chains: int = 4,
    chains_per_shard: int | None = None,
    executor: Any = None,
    min_ess: int = 400,
    seed: Any = None,
    directory: Directory | str | os.PathLike[str] | None = None,
    progress_bar: bool | None = None,
    jit_compile: bool | None = None,
    preflight_check: bool = True,
) -> SampleResult:
    r"""Samples a target with settings that it chooses and checks.

    - Coordinates: it finds a mode and whitens by the Hessian there (`whiten`), by low rank beyond
      4096 entries. Where the prior has kinks, or a pilot's draws are far wider or narrower than the
      Hessian predicts, it takes the mean of the draws and the Hessian there, or for HMC their
      covariance.
    - Independent draws: up to N D = 10^7, if that takes seconds, a normal distribution with heavy
      tails is fitted to the posterior, and its draws are weighed by the exact posterior. If the
      Pareto k of the weights is below 0.5 (0.7 from an efficiency of 0.7) and their efficiency at
      least 0.2, they are the proposals of `IndependentMetropolis`, and `result.certificate` holds
      the proof. Otherwise the fit gives the coordinates of what follows. Wide draws, with 2 to 32
      times the deviations, show if the fit is that of a narrow peak on a broad shelf.
    - Several modes: where a climb from one of 16 to 144 dispersed starts comes to another mode, or
      wide draws come near one, climbs go on until three have come to each, and 80 in a row to no
      new one. They also begin at the modes with entries exchanged, because labels of components
      often can be. The proposals are then a mixture with a component for each mode, up to twelve,
      fitted and weighed in the same way.
    - Sampler otherwise: `UnderdampedLangevin` with second-order control variates
      (`ControlVariate`), or HMC on all data where that is cheaper by measured times of a step.
    - Minibatch n, step h and temperature: the cheapest n and h whose gradient noise is predicted to
      make variances at most 3 % too large on average and 5 % in the worst direction. A temperature
      of about 1 corrects the average. A pilot of all chains from dispersed starts measures the
      noise and the variance of the draws, and the choice is made again where they are larger than
      predicted.
    - Steps between draws: enough to make draws nearly independent.

    For R draws of each of C chains, the effective sample size of the worst parameter must reach

    \[ \min(\mathtt{min\_ess},\, R C / 2). \]

    If it does not, if chains disagree, or if importance weights or the gradients at the draws show
    that means or variances are off, the draws are made again: with more steps, if that takes a
    minute at most, or with all examples. What remains is in `result.flags`, each with a grade, a
    cause and a remedy: "wrong" for a check that failed, which takes away `result.is_trusted`,
    "doubt" for what could not be checked, both with a warning, and "note" for what is unusual and
    fine. `result.explanation` lists what was done and why, and `result.choices` holds all settings,
    with the program that does the same by hand. The choice depends on measured times, so other
    machines may choose differently. The same choices and seed give the same chain.

    Where the curvature at a mode does not describe the posterior (funnels, several modes,
    likelihoods without second derivatives), NUTS on all data starts anew from places near the
    typical set, in coordinates of a pilot's covariance, for an hour at most, or `NOGIN` samples
    large data, with a flag. Divergences are counted in `result.trace`, and flagged, and a centred
    hierarchy is shown how to be written non-centred. A flat direction is refused.
    Another mode or a shelf that was found is flagged, unless the draws come there often. No check
    sees modes that no climb and no wide draw finds, or tails beyond the wide draws.

    The target keeps its compiled programs, so a second call for the same target compiles nothing.
    Make a new target after a change of anything that its functions close over.

    With `chains_per_shard` or an `executor`, the chains run in shards, side by side, with settings
    that one worker chooses. Each shard checks its draws where the data are.

    Use `sample_chain` to run a kernel with settings that you choose.

    Examples:
      >>> import numpy as np, tensorflow as tf, tensorflow_probability as tfp
      >>> import tfp_sgmcmc as sgmcmc
      >>> tfd = tfp.distributions
      >>> x = np.random.default_rng(0).normal(2., 1., size=[1000]).astype(np.float32)
      >>> target = sgmcmc.MinibatchLogProb(
      ...     log_prior_fn=tfd.Normal(0., 10.).log_prob,
      ...     log_likelihood_fn=lambda t, batch: tfd.Normal(t[..., None], 1.).log_prob(batch),
      ...     data=x, batch_size=50)
      >>> result = sgmcmc.sample(target, tf.constant(0.), 500, seed=0, progress_bar=False)
      >>> result.states.shape, result.is_trusted
      ((500, 4), True)
      >>> bool(abs(result.states.std() / (1000 / x.var() + 0.01) ** -0.5 - 1) < 0.1)
      True

    Args:
      target: a `MinibatchLogProb` or a `StreamedLogProb`, whose batch size is not used, a
        `FullDataLogProb`, a callable that returns the log posterior, or a joint distribution with
        pinned data, `joint.experimental_pin(y=y)`. A stream is read a few times, and then
        represented by rows in memory; see `draw_pool`. What is compiled for a target is kept with
        it. With a callable it is used again while the callable gives the same numbers.
      initial_state: one point: a tensor or a nest of tensors, unconstrained if there is a bijector.
        It may be left out for a pinned joint distribution, and for a target that `from_joint` made.
      num_results: number of draws of each chain, including those already in `directory`.
      bijector: for a callable, bijectors from unconstrained parts to its arguments, as in
        `MinibatchLogProb`. The callable gets constrained parts and leaves out the Jacobian.
      num_chains: number of chains, which start at dispersed places.
      chains_per_shard: number of chains of each shard, as in `sample_shards`. With an executor,
        None is 32. Without one, None runs all chains as one program, and makes wrong draws again,
        as shards do not.
      executor: None, or an object with `submit(function, argument)`, such as a dask `Client`. Then
        `target` is a function without arguments that returns the target, and one worker chooses the
        settings. See `sample_shards`.
      min_ess: the effective sample size to reach for the worst parameter, over all chains.
      seed: an integer or two. None takes the seed of the run in `directory`, or draws a new one by
        `random.fresh_seed`. `result.seed` holds it.
      directory: a path, or a `Directory` with a path, a rule for resuming, and the seconds between
        checkpoints; see `sample_chain`. None keeps the draws in memory.
      progress_bar: whether to show progress and the choices. None shows them if tqdm is installed.
      jit_compile: whether XLA compiles the steps, which is mostly much faster. None does so, unless
        the log posterior factorises matrices of 32 rows or more on a CPU, which TensorFlow does
        faster without XLA; in shards, None always compiles. If the log posterior uses an operation
        that XLA does not know, the run goes on without it, with a warning.
      preflight_check: whether to run `preflight`, which reads the whole data once.

    Returns:
      A `SampleResult`, or a `ShardedResult` of shards. Its draws are in the structure of
      `initial_state`, and constrained if there is a bijector.

    Raises:
      ValueError: a number is out of range; the state does not fit the target; the log posterior is
        flat along a line, so its integral is not finite; `directory` holds other files, a
        damaged run, or another run.
      TypeError: an argument has the wrong type.
      MemoryError: the draws would not fit into memory.
      ModuleNotFoundError: zarr or tqdm is needed and not installed.
      NonFiniteChainError: a state or the log posterior became NaN or infinite.
      OSError: `directory` cannot be written any more; the message counts the results that are safe.
    """
    eager("sample")
    is_sharded = chains_per_shard is not None or executor is not None
    if not is_sharded:  # first, as its message tells arguments in the order of tfp.mcmc
        check_target(target, bijector)
    integer("num_results", num_results, 1)
    integer("num_chains", num_chains, 1)
    integer("min_ess", min_ess, 1)
    optional(boolean, "jit_compile", jit_compile)
    check_options(num_chains, None, progress_bar, True, preflight_check)
    first = target, initial_state, num_results, bijector, num_chains, min_ess
    call = SampleCall(*first, seed, progress_bar, jit_compile, preflight_check)
    if is_sharded:
        return sample_target_in_shards(call, chains_per_shard, executor, directory)
    place = as_directory(directory)
    seconds = 10.0 if place is None else place.seconds_between_commits
    opened = contextlib.nullcontext() if place is None else RunDirectory(place.path, place.resume)
    with opened as run:
        try:
            return sample_target(call, run, seconds)
        except tf.errors.InvalidArgumentError as error:
            missing = _UNSUPPORTED.search(error.message)
            if jit_compile is False or missing is None:
                raise
            warnings.warn(
                f"XLA cannot compile {missing[1]}, which the log posterior uses, so the run does "
                "without XLA, which is slower. jit_compile=False says so beforehand.",
                stacklevel=3,
            )
        if run is not None and not run.has_run:
            forget(run.path)  # the settings of the attempt with XLA
        return sample_target(call._replace(jit_compile=False), run, seconds)
