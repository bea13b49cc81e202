"""NUTS that adapts its step and a diagonal, then a dense, metric in windows."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.adaptation.pilot import PilotChains
from tfp_sgmcmc.adaptation.prior_scale import NotNearGaussian, check_proper, state_at
from tfp_sgmcmc.adaptation.typical_set import TypicalStarts
from tfp_sgmcmc.internal.nest import State, unflatten_events
from tfp_sgmcmc.targets import MinibatchLogProb

MAX_TREE_DEPTH = 8
_ACCEPTANCE = 0.9  # small steps, as curved posteriors make larger ones diverge
_FIRST_STEP = 0.1
_ADAPTATION_STEPS = 40  # of the step size at the begin of a window
_WINDOWS = (25, 50, 100, 200, 300)  # draws of each chain
_DENSE_FROM = 3  # the number of the window whose draws first give a dense metric
_MOST_DENSE = 100  # entries of a state
_FINAL_STEPS = 150  # of the step size in the final metric
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
    """

    center: State
    covariance: np.ndarray
    step_size: float
    start: np.ndarray
    draws: np.ndarray
    seconds_per_draw: float


def run_nuts_pilot(
    problem: MinibatchLogProb,
    like: State,
    starts: TypicalStarts,
    dtype: tf.DType,
    seed: tf.Tensor,
    jit_compile: bool,
    reason: NotNearGaussian,
) -> NUTSPilot:
    """Adapts step size and metric in windows, each with the metric of the last one's draws.

    Raises:
      ValueError: the log posterior is not finite where the pilot goes, or its integral is not.
    """
    problem = problem.with_minibatches(problem.num_examples)
    dim = starts.states.shape[-1]
    is_small = dim <= _MOST_DENSE

    def adaptive(settings: Any) -> Any:  # one program for all windows
        step, shift, root = settings

        def log_prob(z: tf.Tensor) -> tf.Tensor:
            moved = tf.linalg.matvec(root, z) if is_small else root * z
            return problem(unflatten_events(shift + moved, like, 0))

        sampler = tfp.mcmc.NoUTurnSampler(log_prob, step, max_tree_depth=MAX_TREE_DEPTH)
        return tfp.mcmc.DualAveragingStepSizeAdaptation(
            sampler, 10**6, target_accept_prob=tf.constant(_ACCEPTANCE, dtype)
        )

    mean, covariance, step = starts.states.mean(axis=0), starts.variance, _FIRST_STEP
    theta, chains, seconds = starts.states[np.newaxis], None, np.nan
    for number in range(len(_WINDOWS) + 1):
        is_last = number == len(_WINDOWS)
        root = _root(covariance)
        z = _whitened(theta[-1], mean, root)
        settings = step, mean, np.diag(root) if is_small and root.ndim == 1 else root
        at, fresh = tf.constant(z, dtype), random.fold_in(seed, number)
        if chains is None:
            chains = PilotChains(adaptive, settings, at, fresh, jit_compile)
        else:
            chains.restart(settings, at, fresh)
        chains.burn_in(_FINAL_STEPS if is_last else _ADAPTATION_STEPS)
        step = float(np.exp(np.mean(chains.position.results.log_averaging_step)))
        if is_last:
            last = chains.position.state.numpy()
            draws = theta.reshape(-1, dim)
            return NUTSPilot(state_at(mean, like), covariance, step, last, draws, seconds)
        began = time.perf_counter()
        kept = chains.draw(_WINDOWS[number], 1)
        seconds = (time.perf_counter() - began) / _WINDOWS[number]
        if kept is None:
            raise ValueError(
                "The log posterior must be finite around its mode. Received: NaN or infinite "
                f"values in {dtype.name} in a pilot of NUTS, after this was found: {reason}. "
                + _REMEDY[dtype == tf.float64]
            )
        kept = kept.astype(np.float64)
        theta = mean + (kept @ root.T if root.ndim == 2 else kept * root)
        draws = theta.reshape(-1, dim)
        mean, covariance = draws.mean(axis=0), np.maximum(draws.var(axis=0), 1e-300)
        if number == 1:
            axes = np.linalg.svd((draws - mean) / np.sqrt(covariance), full_matrices=False)[2]
            check_proper(problem, state_at(mean, like), np.sqrt(covariance) * axes[0])
        if number >= _DENSE_FROM and is_small:
            covariance = _shrunk(draws)
    raise AssertionError


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


def _whitened(theta: np.ndarray, mean: np.ndarray, root: np.ndarray) -> np.ndarray:
    off = (theta - mean).T
    return np.linalg.solve(root, off).T if root.ndim == 2 else off.T / root
