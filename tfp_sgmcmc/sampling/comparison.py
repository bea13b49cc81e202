"""How `tune` compares candidates: Stein discrepancies of their states, in whitened coordinates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.covariance.operators import flatten_parts
from tfp_sgmcmc.diagnostics import gradients_at, squared_kernel_stein_discrepancy
from tfp_sgmcmc.targets import FullDataLogProb, Target
from tfp_sgmcmc.targets.base import State

# Rows for each column that a full covariance is estimated from; deviations alone are, from fewer.
_ROWS_A_COLUMN = 10
_LEAST_VARIANCE = 1e-12  # relative to the largest; chains that hardly moved have less


class Comparison:
    """Squared kernel Stein discrepancies (U) of several candidates' states.

    In coordinates in which the chains have covariance I (see `whitening`), for all candidates the
    same: in others the narrowest direction of a posterior would decide alone. Gradients from
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
            lambda x, g: squared_kernel_stein_discrepancy(x, g, scale=scale), autograph=False
        )

    def __call__(self, states: Sequence[State], seeds: Sequence[tf.Tensor]) -> np.ndarray:
        """The lower the better; infinite where states or gradients are not finite.

        Args:
          states: of each candidate, `[results, chains..., event...]` a part.
          seeds: that name the minibatches of each.
        """
        rows = [self._rows(x) for x in states]
        finite = [bool(np.isfinite(x).all()) for x in rows]
        scores = np.full(len(rows), np.inf)
        if not any(finite):
            return scores
        forth, back = whitening([x for x, ok in zip(rows, finite, strict=True) if ok])
        dtype = tf.nest.flatten(states[0])[0].dtype
        for i in np.flatnonzero(finite):
            gradients = self.gradients(states[i], seeds[i])
            x = _times(rows[i] - rows[i].mean(axis=0), forth)
            score = self._discrepancy(
                tf.constant(x, dtype), tf.constant(_times(gradients, back), dtype)
            ).numpy()
            scores[i] = score if np.isfinite(score) else np.inf
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


def whitening(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    r"""Factors that take states to covariance I, and gradients along.

    \[
    \theta' = C^{-1/2} \theta, \qquad g' = C^{1/2} g
    \]

    C is the covariance of one candidate's states: of that whose trace is the (lower) median, since
    those of some have not spread yet and those of others have spread too far.

    >>> x = np.random.default_rng(0).normal(size=[1000, 2]) * [1.0, 5.0]
    >>> forth, back = whitening([x, 0.01 * x, 100.0 * x])
    >>> np.cov(x @ forth, rowvar=False).round(6) + 0.0, (forth @ back).round(6) + 0.0
    (array([[1., 0.], [0., 1.]]), array([[1., 0.], [0., 1.]]))

    Args:
      rows: states of each candidate, `[n, D]`.

    Returns:
      Symmetric `[D, D]`; or where n is below 10 D, of the deviations alone, `[D]`.
    """
    traces = [np.var(x, axis=0).sum() for x in rows]
    x = rows[np.argsort(traces, kind="stable")[(len(rows) - 1) // 2]]
    if len(x) < _ROWS_A_COLUMN * x.shape[1]:
        deviations = np.sqrt(_floored(np.var(x, axis=0)))
        return 1 / deviations, deviations
    variances, axes = np.linalg.eigh(np.cov(x, rowvar=False).reshape(x.shape[1], -1))
    deviations = np.sqrt(_floored(variances))
    return axes / deviations @ axes.T, axes * deviations @ axes.T


def _floored(variances: np.ndarray) -> np.ndarray:
    most = variances.max()
    return np.maximum(variances, _LEAST_VARIANCE * most) if most > 0 else np.ones_like(variances)


def _rows(nest: State, lead_ndims: int) -> np.ndarray:
    flat = flatten_parts(tf.nest.flatten(nest), lead_ndims).numpy().astype(np.float64)
    return flat.reshape(-1, flat.shape[-1])


def _times(rows: np.ndarray, factor: np.ndarray) -> np.ndarray:
    return rows * factor if factor.ndim == 1 else rows @ factor
