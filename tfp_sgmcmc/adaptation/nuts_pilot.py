"""NUTS for an automatic run, with a step and a metric that a pilot adapts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.adaptation.hierarchies.prior_scale import NotNearGaussian, check_proper
from tfp_sgmcmc.adaptation.pilot_steps import Affine, PilotSteps, log_prob_of_z, start_with
from tfp_sgmcmc.adaptation.settings import trace_divergences
from tfp_sgmcmc.adaptation.typical_set import TypicalStarts
from tfp_sgmcmc.internal.nest import State, unflatten_events
from tfp_sgmcmc.sampling.loop import Loop, Position
from tfp_sgmcmc.targets import MinibatchLogProb
from tfp_sgmcmc.targets.base import kept_program

MAX_TREE_DEPTH = 8
_ACCEPTANCE = 0.9  # small steps, as curved posteriors make larger ones diverge
_FEWER_REJECTED = 5.0  # times, after a window in which trajectories diverged
_FIRST_STEP = 0.1
_ADAPTATION_STEPS = 40  # of the step size at the begin of a window
_WINDOWS = (25, 50, 100, 200, 300)  # draws of each chain
_DENSE_FROM = 3  # the number of the window whose draws first give a dense metric
_MOST_DENSE = 100  # entries of a state
_FINAL_STEPS = 150  # of the step size in the final metric
_ALWAYS = 2**31 - 1
_SLOTS = 50  # draws that a call of the compiled program can keep
_REMEDY = (
    "A Cholesky factorisation may fail in float32 and not in float64: give the target "
    "dtype='float64' and a float64 start, or add a larger number to the diagonal.",
    "Check log_prior_fn and log_likelihood_fn.",
)


class NUTSPilot(NamedTuple):
    """The result of a pilot of NUTS.

    Attributes:
      center: mean of the last window's draws.
      covariance: their covariance, `[D, D]`, or variances, `[D]`.
      step_size: step size in coordinates that these whiten.
      start: the last z of all chains, `[chains, D]`.
      draws: flat draws of the last window, `[draws, D]`.
      seconds_per_draw: seconds of a draw of all chains.
      chains: the compiled chains.
    """

    center: State
    covariance: np.ndarray
    step_size: float
    start: np.ndarray
    draws: np.ndarray
    seconds_per_draw: float
    chains: _Chains


def run_nuts_pilot(
    problem: MinibatchLogProb,
    like: State,
    starts: TypicalStarts,
    seed: tf.Tensor,
    jit_compile: bool,
    reason: NotNearGaussian,
) -> NUTSPilot:
    """Adapts step size and metric in windows, each with the metric of the last one's draws.

    Raises:
      ValueError: the log posterior is not finite where the pilot goes, or its integral is not.
    """
    dim, dtype = starts.states.shape[-1], tf.nest.flatten(like)[0].dtype
    is_small = dim <= _MOST_DENSE
    chains = _Chains(problem, like, is_small, len(starts.states), jit_compile)
    mean, covariance, step = starts.states.mean(axis=0), starts.variance, _FIRST_STEP
    acceptance = _ACCEPTANCE
    theta, seconds = starts.states[np.newaxis], np.nan
    for number, num_draws in enumerate(_WINDOWS):
        chains.restart(mean, covariance, theta[-1], step, acceptance)
        fresh = random.fold_in(seed, number)
        chains.adapt(_ADAPTATION_STEPS, fresh)
        began = time.perf_counter()
        found, diverged = chains.draw(num_draws, fresh)
        seconds = (time.perf_counter() - began) / num_draws
        step = chains.step_size
        if found is None:
            raise ValueError(
                "The log posterior must be finite around its mode. Received: NaN or infinite "
                f"values in {dtype.name} in a pilot of NUTS, after this was found: {reason}. "
                + _REMEDY[dtype == tf.float64]
            )
        theta, draws = found, found.reshape(-1, dim)
        mean, covariance = draws.mean(axis=0), np.maximum(draws.var(axis=0), 1e-300)
        if number == 1:
            axes = np.linalg.svd((draws - mean) / np.sqrt(covariance), full_matrices=False)[2]
            at = unflatten_events(mean, like, 0)
            check_proper(problem, at, np.sqrt(covariance) * axes[0])
        if number >= _DENSE_FROM:
            covariance = _shrunk(draws) if is_small else covariance
            # Chains stay out of places that their steps are too large for.
            acceptance = 1 - (1 - acceptance) / _FEWER_REJECTED if diverged else acceptance
    chains.restart(mean, covariance, theta[-1], step, acceptance)
    chains.adapt(_FINAL_STEPS, random.fold_in(seed, len(_WINDOWS)))
    return NUTSPilot(
        unflatten_events(mean, like, 0),
        covariance,
        chains.step_size,
        chains.z.astype(dtype.as_numpy_dtype),
        theta.reshape(-1, dim),
        seconds,
        chains,
    )


class _Chains:
    """Chains of NUTS in coordinates that are arguments of one compiled program.

    The program is kept with the target. It serves all windows and the run that follows.

    Args:
      problem: the target, with all examples.
      like: one unconstrained state.
      is_dense: whether roots of metrics are matrices.
      num_chains: number of chains.
      jit_compile: whether XLA compiles the steps.
    """

    def __init__(
        self,
        problem: MinibatchLogProb,
        like: State,
        is_dense: bool,
        num_chains: int,
        jit_compile: bool,
    ):
        self._problem, self._like, self._is_dense = problem, like, is_dense
        self._dtype = tf.nest.flatten(like)[0].dtype
        self._name = f"NUTS of {num_chains} chains, jit_compile={jit_compile}"
        self._jit_compile = jit_compile

    @property
    def z(self) -> np.ndarray:
        return self._position.state.numpy().astype(np.float64)

    @property
    def step_size(self) -> float:
        """The average over late steps, for a run that does not adapt."""
        return float(np.exp(self._position.results.log_averaging_step[0]))

    def restart(
        self,
        shift: np.ndarray,
        covariance: np.ndarray,
        states: np.ndarray,
        step: float,
        acceptance: float,
    ) -> None:
        """Puts the chains to flat states, with a step size to begin with and a target of its size.

        The coordinates are shift + root z, where root is that of a covariance, or of variances.
        """
        root, off = _root(covariance), (states - shift).T
        z = np.linalg.solve(root, off).T if root.ndim == 2 else off.T / root
        root = np.diag(root) if self._is_dense and root.ndim == 1 else root
        self._affine = Affine(shift, root)
        values = self._affine.tensors(self._dtype)
        start = start_with(
            self._adaptive, self._problem, self._like, self._affine, z, self._jit_compile
        )

        def make() -> Loop:
            options = self._jit_compile, _SLOTS
            return Loop(self._kernel, _trace, start, *options, values=values)

        loop = kept_program(self._problem, self._name, self._like, make)
        self._loop, first = loop.with_values(values), tf.constant(step, self._dtype)
        results = start.results._replace(
            new_step_size=first,
            log_shrinkage_target=[tf.math.log(10 * first)],
            target_accept_prob=tf.constant(acceptance, self._dtype),
        )
        self._position = start._replace(results=results)

    def adapt(self, num_steps: int, seed: tf.Tensor) -> None:
        """Takes steps that adapt the step size."""
        self._position = self._loop(self._position, 1, num_steps, 1, seed)[0]

    def draw(self, num_draws: int, seed: tf.Tensor) -> tuple[np.ndarray | None, bool]:
        """Returns flat states, `[num_draws, chains, D]`, and whether any trajectory diverged.

        The states are None if any is NaN or infinite.
        """
        found, all_good, diverged = [], True, False
        for first in range(0, num_draws, _SLOTS):
            rows = min(_SLOTS, num_draws - first)
            self._position, kept, health = self._loop(self._position, rows, 1, 1, seed)
            all_good &= health.is_good
            found.append(kept[0][:rows])
            diverged |= bool(kept[1][0]["diverging"][:rows].any())
        if not all_good:
            return None, diverged
        return self._affine.moved(np.concatenate(found).astype(np.float64)), diverged

    def steps_of_run(self, affine: Affine) -> PilotSteps:
        """Returns the program for a run in these coordinates."""
        values, adapted = affine.tensors(self._dtype), self._position.results
        given = self._problem, self._like, self._loop, values, values, self._jit_compile
        return _NUTSSteps(*given, adapted)

    def _kernel(self, affine: Affine) -> tfp.mcmc.TransitionKernel:
        return self._adaptive(log_prob_of_z(self._problem, self._like, affine))

    def _adaptive(self, log_prob_fn: Callable[[tf.Tensor], tf.Tensor]) -> Any:
        nuts = tfp.mcmc.NoUTurnSampler(log_prob_fn, tf.ones([], self._dtype), MAX_TREE_DEPTH)
        return tfp.mcmc.DualAveragingStepSizeAdaptation(nuts, _ALWAYS, _ACCEPTANCE)


def _trace(z: tf.Tensor, results: Any) -> tuple[Any, tf.Tensor]:
    inner = results.inner_results
    return trace_divergences(z, inner), inner.step_size


class _NUTSSteps(PilotSteps):
    """A pilot's steps of NUTS without their adaptation.

    Args:
      given: as for `PilotSteps`, and any results of the pilot's kernel.
    """

    def __init__(self, *given: Any):
        *of_steps, self._adapted = given
        super().__init__(*of_steps)

    def to_pilot(self, position: Position) -> Position:
        results = self._adapted._replace(
            inner_results=position.results,
            new_step_size=position.results.step_size,
            step=tf.constant(1),
            num_adaptation_steps=tf.constant(0),  # before this step, so that no more follow
        )
        return position._replace(results=results)

    def from_pilot(self, position: Position) -> Position:
        return position._replace(results=position.results.inner_results)

    def of_run(self, kept: Any) -> Any:
        z, (trace, step_size), _ = kept
        return z, trace, step_size


def _shrunk(draws: np.ndarray) -> np.ndarray:
    """Returns the covariance of draws, with smaller correlations where there are few draws."""
    covariance = np.atleast_2d(np.cov(draws.T))
    weight = len(draws) / (len(draws) + 5 * draws.shape[-1])
    return weight * covariance + (1 - weight) * np.diag(np.diag(covariance))


def _root(covariance: np.ndarray) -> np.ndarray:
    """Returns the lower triangular factor of a covariance, or the roots of variances."""
    if covariance.ndim == 1:
        return np.sqrt(covariance)
    scale = np.sqrt(np.diag(covariance))
    return scale[:, np.newaxis] * np.linalg.cholesky(covariance / np.outer(scale, scale))
