"""Scores of the candidates of `tune`: Stein discrepancies of their states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.diagnostics import squared_kernel_stein_discrepancy
from tfp_sgmcmc.internal.nest import State, call_with_state, flatten_events
from tfp_sgmcmc.targets import FullDataLogProb, Target
from tfp_sgmcmc.targets.base import value_and_gradient

_ROWS_A_COLUMN = 10  # fewest rows for each column to estimate a correlation from
_LEAST_VARIANCE = 1e-12  # relative to the largest
_MOST_BELOW = 100.0  # distance of the mean log posterior to the best one's, for each parameter
_STANDARD_ERRORS = 5.0


class SteinComparison:
    """Computes squared kernel Stein discrepancies of several candidates' states.

    A score is the absolute value of the U-statistic. The statistic estimates a nonnegative number,
    but can itself be negative: slightly for good chains, and without bound if steps overshoot,
    because the gradients at successive states then have opposite signs.

    Where a chain was thrown far away, gradients may hardly grow while the distances between states
    do, and the discrepancy goes to zero. So a candidate has an infinite score if its mean log
    posterior is lower than the best one's by 100 for each parameter, and by more than minibatch
    noise explains. Draws of a posterior differ by about a half for each parameter.

    Parameters are divided by their standard deviations, and the discrepancy's preconditioner is
    their correlation (see `spread`), the same for all candidates. Otherwise the narrowest direction
    of a posterior alone would decide, although mean and covariance hardly depend on it. Each state
    gets a separate minibatch, even if the target's chains share them. Otherwise the gradients would
    be dependent, and the discrepancy would be biased.

    Args:
      target: the target whose gradients are taken.
      chain_ndims: number of leading axes of its states that count chains.
      exact_gradients, scale: see `tune`.
      jit_compile: whether XLA compiles the gradients from minibatches.
    """

    def __init__(
        self,
        target: Target,
        chain_ndims: int,
        exact_gradients: bool,
        scale: float,
        jit_compile: bool,
    ):
        self._chain_ndims = chain_ndims
        self._is_exact = exact_gradients or isinstance(target, FullDataLogProb)
        self._at_all = tf.function(
            lambda states: _estimates_at(target, states, None, chain_ndims), autograph=False
        )
        self._at_minibatches = tf.function(
            lambda states, seed: _estimates_at(target, states, seed, 0),
            autograph=False,
            jit_compile=jit_compile,
        )
        self._discrepancy = tf.function(
            lambda x, g, m: squared_kernel_stein_discrepancy(x, g, preconditioner=m, scale=scale),
            autograph=False,
        )

    def __call__(
        self,
        states: Sequence[State],
        seeds: Sequence[tf.Tensor],
        map_fn: Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]] = map,
    ) -> np.ndarray:
        """Returns the scores. Lower is better.

        A score is infinite if states, gradients or log posteriors are not finite, or if a chain was
        thrown far away.

        Each candidate has a nest of parts `[results, chains..., event...]`, and a seed for its
        minibatches. `map_fn` evaluates candidates one after the other, like `map`, or in parallel.
        """
        rows = [_rows(x, 1 + self._chain_ndims) for x in states]
        scores = np.full(len(rows), np.inf)
        finite = np.flatnonzero([np.isfinite(x).all() for x in rows])
        found = dict(
            zip(finite, map_fn(lambda i: self.estimates(states[i], seeds[i]), finite), strict=True)
        )
        near = _not_thrown({i: x[0] for i, x in found.items()}, rows[0].shape[1])
        if not near:
            return scores
        deviations, correlation = spread([rows[i] for i in near])

        def score(i: int) -> float:
            x, g = rows[i] / deviations, found[i][1] * deviations
            value = abs(float(self._discrepancy(x, g, correlation)))
            return value if np.isfinite(value) else np.inf

        scores[near] = list(map_fn(score, near))
        return scores

    def estimates(self, states: State, seed: tf.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Returns log posteriors `[results * chains]`, and gradients `[results * chains, D]`."""
        ndims = 1 + self._chain_ndims
        if self._is_exact:
            log_probs, gradients = self._at_all(states)
            return np.ravel(log_probs).astype(np.float64), _rows(gradients, ndims)
        pooled = tf.nest.map_structure(lambda x: tf.reshape(x, [-1, *x.shape[ndims:]]), states)
        log_probs, gradients = self._at_minibatches(pooled, seed)
        return np.asarray(log_probs, np.float64), _rows(gradients, 1)


def _estimates_at(target: Target, states: State, seed: Any, chain_ndims: int) -> Any:
    """Returns log posterior and gradient, one state of all chains after the other."""
    first = tf.nest.flatten(states)[0]
    specs = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape[1:], x.dtype), states)

    def at(number: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
        if seed is None:
            return value_and_gradient(lambda s: call_with_state(target, s), state)[:2]
        estimate = target.estimate(state, random.fold_in(seed, number), with_scores=False)
        return estimate.log_prob, estimate.gradient

    return tf.map_fn(
        lambda pair: at(*pair),
        (tf.range(first.shape[0]), states),
        fn_output_signature=(tf.TensorSpec(first.shape[1 : 1 + chain_ndims], first.dtype), specs),
        parallel_iterations=1,
    )


def _not_thrown(log_probs: Mapping[int, np.ndarray], size: int) -> list[int]:
    """Returns the candidates whose mean log posterior is not far below the best one's."""
    finite = {i: x for i, x in log_probs.items() if np.isfinite(x).all()}
    means = {i: x.mean() for i, x in finite.items()}
    errors = {i: _STANDARD_ERRORS * x.std() / np.sqrt(x.size) for i, x in finite.items()}
    least = max((means[i] - errors[i] for i in finite), default=0.0) - _MOST_BELOW * size
    return [i for i in finite if means[i] + errors[i] >= least]


def spread(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns deviations and correlation of the candidate whose total variance is the median.

    The states of some candidates have not spread yet, and others have spread too far.

    >>> x = np.random.default_rng(0).normal(size=[1000, 2]) * [1.0, 5.0]
    >>> deviations, correlation = spread([x, 0.01 * x, 100.0 * x])
    >>> deviations.round(1), correlation.round(1) + 0.0
    (array([1. , 4.9]), array([[1., 0.], [0., 1.]]))

    Args:
      rows: for each candidate, its states `[n, D]`.

    Returns:
      Deviations `[D]`, and the correlation `[D, D]`, or None if n is below 10 D.
    """
    variances = [np.var(x, axis=0) for x in rows]
    middle = np.argsort([v.sum() for v in variances], kind="stable")[(len(rows) - 1) // 2]
    x, most = rows[middle], variances[middle].max()
    # Parameters that hardly moved must be divided by a positive number as well.
    least = _LEAST_VARIANCE * most if most > 0 else 1.0
    deviations = np.sqrt(np.maximum(variances[middle], least))
    if len(x) < _ROWS_A_COLUMN * x.shape[1]:
        return deviations, None
    z = (x - x.mean(axis=0)) / deviations
    return deviations, z.T @ z / len(z)


def _rows(nest: State, lead_ndims: int) -> np.ndarray:
    flat = flatten_events(tf.nest.flatten(nest), lead_ndims).numpy().astype(np.float64)
    return flat.reshape(-1, flat.shape[-1])
