"""How `tune` compares candidates: by Stein discrepancies of their states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.diagnostics import gradients_at, squared_kernel_stein_discrepancy
from tfp_sgmcmc.state import State, flatten_events
from tfp_sgmcmc.targets import FullDataLogProb, Target

# Rows for each column that a correlation is estimated from.
_ROWS_A_COLUMN = 10
_LEAST_VARIANCE = 1e-12  # relative to the largest


class Comparison:
    """Squared kernel Stein discrepancies of several candidates' states.

    They are absolute values of the U-statistic: what it estimates is not negative. It can be: by a
    little in chains that are good, and without bound where steps overshoot, as the gradients at
    successive states then have opposite signs.

    Parameters are divided by their deviations, and the discrepancy's preconditioner is their
    correlation (see `spread`), for all candidates the same: else the narrowest direction of a
    posterior would decide alone, which in its mean and covariance hardly counts. Gradients from
    minibatches are those of a minibatch of its own for each state, be it of a target whose chains
    share them; else they were not independent, and the discrepancy biased.

    Args:
      target: whose gradients are taken.
      chain_ndims: number of leading axes of its states that count chains.
      exact_gradients: whether over all examples.
      scale: c of the kernel.
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
        """The lower the better; infinite where states or gradients are not finite.

        Args:
          states: of each candidate, `[results, chains..., event...]` a part.
          seeds: that name the minibatches of each.
          map_fn: takes the candidates one after the other, as `map`, or several at a time.
        """
        rows = [self._rows(x) for x in states]
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
        """Gradients at the states of all chains, `[results * chains, D]`."""
        if self._is_exact:
            return self._rows(self._at_all(states))
        ndims = 1 + self._chain_ndims
        pooled = tf.nest.map_structure(lambda x: tf.reshape(x, [-1, *x.shape[ndims:]]), states)
        return _rows(self._at_minibatches(pooled, seed), 1)

    def _rows(self, states: State) -> np.ndarray:
        return _rows(states, 1 + self._chain_ndims)


def spread(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray | None]:
    """Deviations and correlation of one candidate's states: of those whose variance is the median.

    States of some candidates have not spread yet, and those of others have spread too far.

    >>> x = np.random.default_rng(0).normal(size=[1000, 2]) * [1.0, 5.0]
    >>> deviations, correlation = spread([x, 0.01 * x, 100.0 * x])
    >>> deviations.round(1), correlation.round(1) + 0.0
    (array([1. , 4.9]), array([[1., 0.], [0., 1.]]))

    Args:
      rows: states of each candidate, `[n, D]`.

    Returns:
      `[D]`, and `[D, D]` or, where n is below 10 D, None.
    """
    variances = [np.var(x, axis=0) for x in rows]
    middle = np.argsort([v.sum() for v in variances], kind="stable")[(len(rows) - 1) // 2]
    x, most = rows[middle], variances[middle].max()
    # Parameters that hardly moved are divided by something, too.
    least = _LEAST_VARIANCE * most if most > 0 else 1.0
    deviations = np.sqrt(np.maximum(variances[middle], least))
    if len(x) < _ROWS_A_COLUMN * x.shape[1]:
        return deviations, None
    z = (x - x.mean(axis=0)) / deviations
    return deviations, z.T @ z / len(z)


def _rows(nest: State, lead_ndims: int) -> np.ndarray:
    flat = flatten_events(tf.nest.flatten(nest), lead_ndims).numpy().astype(np.float64)
    return flat.reshape(-1, flat.shape[-1])
