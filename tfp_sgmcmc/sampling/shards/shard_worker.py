r"""Runs one shard of a run on a worker, and takes moments of its draws.

Each chain is cut into K = 20 equal segments. Only their means \( m_{ck} \) and variances are kept,
so R-hat and ESS of all shards need no draws of other workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tree

from tfp_sgmcmc.diagnostics.convergence import (
    RunningMoments,
    chain_dependence,
    rhat_of_moments,
)
from tfp_sgmcmc.internal.checks import a_type
from tfp_sgmcmc.sampling.result import SampleResult
from tfp_sgmcmc.sampling.run import ProgressHooks, run_kernel
from tfp_sgmcmc.sampling.run_fingerprint import describe_kernel, describe_target
from tfp_sgmcmc.sampling.steps import StepPlan
from tfp_sgmcmc.storage.checkpoint import differences
from tfp_sgmcmc.storage.directory import RunDirectory
from tfp_sgmcmc.storage.lock import EXPIRY_SECONDS, Lease, read_object, replace_text

NUM_SEGMENTS = 20
_BLOCK = 4096  # draws that are in memory at once

MANIFEST, PROBLEM = "shards.json", "problem.json"


class SegmentMoments(NamedTuple):
    """Means and variances of the segments of each chain.

    Attributes:
      length: number of draws in each segment. The first draws are left out if they fill no segment.
      means: means of the segments, `[K, chains, event...]`, `float64`.
      variances: variances of the segments, divided by `length`, with the same shape.
    """

    length: int
    means: np.ndarray
    variances: np.ndarray

    @classmethod
    def of(cls, draws: Any) -> SegmentMoments:
        """Returns the moments of draws `[draws, chains, event...]`, an array or `StoredDraws`.

        Raises:
          ValueError: there are fewer than two draws for each segment.
        """
        length = len(draws) // NUM_SEGMENTS
        if length < 2:
            raise ValueError(
                f"draws must hold at least {2 * NUM_SEGMENTS} draws. Received: {len(draws)}."
            )
        first = len(draws) - NUM_SEGMENTS * length
        found = [
            _mean_and_variance(draws, first + k * length, first + (k + 1) * length)
            for k in range(NUM_SEGMENTS)
        ]
        return cls(length, *(np.stack(part) for part in zip(*found, strict=True)))


def concatenate(shards: Iterable[SegmentMoments]) -> SegmentMoments:
    """Returns the moments of the chains of all shards, which have equally many draws.

    Raises:
      ValueError: the shards have different numbers of draws.
    """
    parts = list(shards)
    if len({part.length for part in parts}) != 1:
        lengths = ", ".join(str(part.length * len(part.means)) for part in parts)
        raise ValueError(f"Shards must have equally many draws. Received: {lengths}.")
    means = np.concatenate([part.means for part in parts], axis=1)
    return SegmentMoments(
        parts[0].length, means, np.concatenate([p.variances for p in parts], axis=1)
    )


def rhat(moments: SegmentMoments) -> np.ndarray:
    """Returns the split R-hat of each entry, `[event...]`, by `rhat_of_moments` of half chains.

    It is the R-hat of the draws themselves. Rank-normalised R-hat would need all draws in one
    place.
    """
    halves = np.stack(np.split(moments.means, 2))  # [2, K/2, chains, event...]
    num_draws = moments.length * halves.shape[1]
    variances = np.stack(np.split(moments.variances, 2)).mean(axis=1) + halves.var(axis=1)
    variances *= num_draws / (num_draws - 1)
    means, variances = (np.concatenate(x) for x in (halves.mean(axis=1), variances))
    return rhat_of_moments(means, variances, num_draws)


def batch_means_sample_size(moments: SegmentMoments) -> np.ndarray:
    r"""Returns the effective sample size of each entry's mean, all chains together, `[event...]`.

    By batch means: with C chains of K segments of length L, and v the variance of all draws,

    \[ \mathrm{ESS} = C K L \frac{v}{\hat\sigma^2}, \quad
       \hat\sigma^2 = \frac{L}{C K - 1} \sum_{c, k} (m_{ck} - \bar m)^2 . \]

    It is divided by `chain_dependence` of the segments' means. Its relative standard error is
    \( \sqrt{2 / (C K - 1)} \). Segments must be much longer than the autocorrelation time,
    otherwise the estimate is too large. (Flegal & Jones, Batch means and spectral variance
    estimators in Markov chain Monte Carlo, Annals of Statistics 2010, eq. 4.)
    """
    flat = moments.means.reshape([-1, *moments.means.shape[2:]])
    variance = moments.variances.mean(axis=(0, 1)) + flat.var(axis=0)
    total = len(flat) * moments.length
    alike = chain_dependence(moments.means)
    with np.errstate(divide="ignore", invalid="ignore"):
        return total * variance / (moments.length * flat.var(axis=0, ddof=1)) / alike


def _mean_and_variance(draws: Any, start: int, stop: int) -> Sequence[np.ndarray]:
    """Returns mean and variance of draws `start` to `stop`, read in blocks."""
    moments = RunningMoments()
    for at in range(start, stop, _BLOCK):
        moments.add(np.asarray(draws[at : min(at + _BLOCK, stop)]))
    return moments.mean, moments.squares / moments.count


class CheckedKernel(NamedTuple):
    """A kernel with what is done with its draws on the worker.

    Attributes:
      kernel: the kernel.
      view: a function of the state whose value is kept as the draw.
      check: a function of the shard's result. What it returns is sent back.
    """

    kernel: tfp.mcmc.TransitionKernel
    view: Callable[[Any], Any]
    check: Callable[[SampleResult], Any]


class ShardTask(NamedTuple):
    """The arguments of a shard, which are sent to a worker; the data are not among them.

    Attributes:
      index: number of the shard.
      make_kernel: a function without arguments that returns the kernel, or a `CheckedKernel`.
      initial_state: nest of arrays, the start of the shard's chains.
      num_chains: number of chains that start at `initial_state`; None if its leading axis counts
        chains.
      reference: a start that all shards share, near which their posteriors are compared.
      seed: the shard's seed.
      plan: the steps of each chain.
      trace_fn: as in `sample_chain`.
      jit_compile: as in `sample_chain`.
      directory: the shard's directory; None keeps the draws in memory.
      is_shared: whether several hosts may write the directory.
      checkpoint_seconds: approximate seconds between checkpoints.
      preflight_check: as in `sample_chain`.
    """

    index: int
    make_kernel: Callable[[], tfp.mcmc.TransitionKernel | CheckedKernel]
    initial_state: Any
    num_chains: int | None
    reference: Any
    seed: tuple[int, int]
    plan: StepPlan
    trace_fn: Callable[[Any, Any], Any] | None
    jit_compile: bool
    directory: str | None
    is_shared: bool
    checkpoint_seconds: float
    preflight_check: bool


class ShardDraws(NamedTuple):
    """The draws of a shard, which a worker sends back, or where they are in a directory.

    Attributes:
      index: number of the shard.
      result: the result of the shard's run, without the last kernel results.
      moments: the moments of each part of the state; None if there are too few draws.
      problem: the fingerprint of the kernel, data and posterior, if the worker made them.
      process: the number of the worker's process.
      checked: what the check of a `CheckedKernel` returned; None without one.
    """

    index: int
    result: SampleResult
    moments: list[SegmentMoments] | None
    problem: dict[str, Any]
    process: int
    checked: Any = None


def run_shard(task: ShardTask, hooks: ProgressHooks | None = None) -> ShardDraws:
    """Runs or resumes one shard.

    Raises:
      ValueError: the kernel, data or posterior here differ from those of another shard, the
        caller's directory is not here, or as in `sample_chain`.
      NonFiniteChainError: as in `sample_chain`.
    """
    if task.is_shared and task.directory is not None:
        folder = Path(task.directory).parent
        if not (folder / MANIFEST).exists():  # which the caller wrote
            raise ValueError(
                "directory must be on a file system that all workers share. Received: "
                f"{os.fspath(folder)!r}, where the worker on {socket.gethostname()} does not find "
                f"{MANIFEST}."
            )
    made = task.make_kernel()
    kernel, view, check = made if isinstance(made, CheckedKernel) else (made, None, None)
    if not isinstance(kernel, tfp.mcmc.TransitionKernel):
        raise TypeError(
            f"make_kernel must return a tfp.mcmc.TransitionKernel. Received: {a_type(kernel)}."
        )
    # Shards in one process share a kernel.
    problem = _problem(kernel, task.reference) if task.is_shared else {}
    plan = task.plan
    with contextlib.ExitStack() as stack:
        run, error = None, None
        if task.directory is not None:
            # A lease even for threads, because a worker of an earlier call may still run the shard.
            # Threads do not wait for it to end, as Ctrl-C does not interrupt them.
            patience = None if task.is_shared else 2 * EXPIRY_SECONDS
            run = stack.enter_context(
                RunDirectory(task.directory, is_shared=True, patience=patience)
            )
            if task.is_shared:
                first = _first_problem(Path(task.directory).parent, problem)
                error = mismatch(problem, task.index, first)
                # The shard's checkpoint holds the start as well, and is compared first if there is
                # one: another call, with other settings, began the run. No step is taken.
                saved = run.saved() if error else None
                if error and saved is None:
                    raise error
                if saved is not None:
                    plan = plan._replace(num_results=saved.header.get("num_draws", 0))
        result = run_kernel(
            kernel,
            tf.nest.map_structure(tf.convert_to_tensor, task.initial_state),
            plan,
            seed=tf.constant(task.seed),
            num_chains=task.num_chains,
            trace_fn=task.trace_fn,
            jit_compile=task.jit_compile,
            progress_bar=False,
            run=run,
            checkpoint_seconds=task.checkpoint_seconds,
            preflight_check=task.preflight_check and task.index == 0,
            hooks=hooks,
            chain_shape=tree.flatten(task.initial_state)[0].shape[:1],
            view=view,
        )
        if error:
            raise error
        enough = result.num_results >= 2 * NUM_SEGMENTS
        final_state = tf.nest.map_structure(np.asarray, result.final_state)
        return ShardDraws(
            index=task.index,
            result=dataclasses.replace(result, final_state=final_state, final_kernel_results=None),
            moments=[SegmentMoments.of(x) for x in tree.flatten(result.states)] if enough else None,
            problem=problem,
            process=os.getpid(),
            checked=None if check is None else check(result),
        )


def mismatch(problem: dict[str, Any], index: int, expected: dict[str, Any]) -> ValueError | None:
    """Returns an error if a shard's problem differs from the first shard's, or None."""
    found = differences(expected, problem)
    if not found:
        return None
    return ValueError(
        f"Shard {index} must sample the same problem as the other shards. They have {found}."
    )


def _problem(kernel: tfp.mcmc.TransitionKernel, reference: Any) -> dict[str, Any]:
    """Returns JSON values that identify a kernel, its data and its posterior."""
    state = tf.nest.map_structure(tf.convert_to_tensor, reference)
    found = {**describe_kernel(kernel), **describe_target(kernel, state)}
    return json.loads(json.dumps(found))  # which turns tuples into lists


def _first_problem(folder: Path, problem: dict[str, Any]) -> dict[str, Any]:
    """Returns the problem of the shard that began first, and writes it if this is the first."""
    path = folder / PROBLEM
    if not path.exists():
        lease = Lease(path.with_suffix(".lock"))
        try:
            if not path.exists():
                replace_text(path, json.dumps(problem))
        finally:
            lease.release()
    return read_object(path, "Remove it, and the same call writes it again.")
