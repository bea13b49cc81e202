"""The scores by which `tune` compares candidates: Stein discrepancies of their states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.diagnostics import gradients_at, squared_kernel_stein_discrepancy
from tfp_sgmcmc.state import State, flatten_events
from tfp_sgmcmc.targets import FullDataLogProb, Target

_ROWS_A_COLUMN = 10  # fewest rows for each column to estimate a correlation from
_LEAST_VARIANCE = 1e-12  # relative to the largest


class Comparison:
    """Squared kernel Stein discrepancies of several candidates' states.

    A score is the absolute value of the U-statistic. The statistic estimates a number that is not
    negative, but can itself be negative: slightly for good chains, and without bound if steps
    overshoot, because the gradients at successive states then have opposite signs.

    Parameters are divided by their deviations, and the discrepancy's preconditioner is their
    correlation (see `spread`), the same for all candidates. Otherwise the narrowest direction of a
    posterior would decide alone, although its mean and covariance hardly depend on it. Each state
    gets a separate minibatch, even if the target's chains share them. Otherwise the gradients would
    not be independent, and the discrepancy would be biased.

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
        self._at_all = tf.function(lambda states: gradients_at(target, states), autograph=False)
        self._at_minibatches = tf.function(
            lambda states, seed: gradients_at(target, states, seed),
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
        map_fn: Callable[[Callable[[int], float], Iterable[int]], Iterable[float]] = map,
    ) -> np.ndarray:
        """Returns the scores: lower is better, infinite if states or gradients are not finite.

        Each candidate has a nest of parts `[results, chains..., event...]`, and a seed that names
        its minibatches. `map_fn` takes them one after the other, as `map` does, or several at a
        time.
        """
        rows = [_rows(x, 1 + self._chain_ndims) for x in states]
        finite = [bool(np.isfinite(x).all()) for x in rows]
        scores = np.full(len(rows), np.inf)
        if not any(finite):
            return scores
        deviations, correlation = spread([x for x, ok in zip(rows, finite, strict=True) if ok])

        def score(i: int) -> float:
            x, g = rows[i] / deviations, self.gradients(states[i], seeds[i]) * deviations
            found = abs(float(self._discrepancy(x, g, correlation)))
            return found if np.isfinite(found) else np.inf

        at = np.flatnonzero(finite)
        scores[at] = list(map_fn(score, at))
        return scores

    def gradients(self, states: State, seed: tf.Tensor) -> np.ndarray:
        """Returns gradients at the states of all chains, `[results * chains, D]`."""
        ndims = 1 + self._chain_ndims
        if self._is_exact:
            return _rows(self._at_all(states), ndims)
        pooled = tf.nest.map_structure(lambda x: tf.reshape(x, [-1, *x.shape[ndims:]]), states)
        return _rows(self._at_minibatches(pooled, seed), 1)


def spread(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns deviations and correlation of the states whose total variance is the median.

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
