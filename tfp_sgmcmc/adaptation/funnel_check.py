"""Moves along a funnel, which leave the posterior as it is, but not draws that miss its neck."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.linalg

from tfp_sgmcmc.diagnostics.convergence import batch_means_standard_error

_MOVES, _REFIT, _LENGTHS = 40, 8, (0.3, 1.0)  # in standard deviations of the entry that moves
_MOST_DRAWS, _MOST_TERMS = 4000, 2e7  # rows of data times evaluated log posteriors
_LEAST_RATE, _ROUNDS = 0.2, 5  # of logarithms of a width by a deviation, and of its fit
_MOST_ENTRIES, _DRAWS_PER_ENTRY = 100, 30  # for which covariances are compared


class FunnelCheck(NamedTuple):
    """How moves along a funnel change the entry that its width depends on.

    Attributes:
      entry: the place of the entry in a flat state.
      shift: the change of its mean, in standard deviations of the draws.
      shift_error: the standard error.
      widening: the relative change of its standard deviation.
      widening_error: the standard error.
    """

    entry: int
    shift: float
    shift_error: float
    widening: float
    widening_error: float

    def is_wrong(self, least: float, errors: float) -> bool:
        """Returns whether a change is above `least` by some standard errors."""
        pairs = (self.shift, self.shift_error), (self.widening, self.widening_error)
        return any(abs(x) > least + errors * error for x, error in pairs)


def funnel_check(
    log_prob_fn: Callable[[np.ndarray], np.ndarray],
    draws: np.ndarray,
    num_examples: int,
    rng: np.random.Generator,
) -> FunnelCheck | None:
    r"""Returns what moves along the funnel do to draws; None if there is none.

    The entry s with which the widths of the others change most is moved, and the others with it,

    \[
    s' = s + \delta, \qquad x_k' = e^{\beta_k \delta} x_k, \qquad
    x = V^T \theta_{-s} - a - b s,
    \]

    where V diagonalises the covariances of the others at low and at high s, and \( \beta_k \) is
    the change of the logarithm of a width along s. A Metropolis test with the Jacobian
    \( e^{\delta \sum_k \beta_k} \) leaves the posterior invariant. Chains that cannot enter a
    narrow neck, and leave no trace of it in R-hat or divergences, have draws that spread into it.

    Args:
      log_prob_fn: log posteriors of flat states, `[K, D]`.
      draws: flat unconstrained states, `[results, chains, D]`.
      num_examples: N, which decides how many draws are moved.
      rng: random numbers.
    """
    (num_results, num_chains, dim), size = draws.shape, draws.shape[0] * draws.shape[1]
    if not 2 <= dim <= min(_MOST_ENTRIES, size // _DRAWS_PER_ENTRY):
        return None
    flat = draws.reshape(-1, dim)
    mean, deviation = flat.mean(axis=0), flat.std(axis=0)
    if not (deviation > 0).all():
        return None
    z = (flat - mean) / deviation
    funnels = (_Funnel(z, j) for j in range(dim))
    funnel = max(funnels, key=lambda f: float(np.sum(f.rates**2)))
    if not funnel.rates.any():
        return None
    most = np.clip(_MOST_TERMS / _MOVES / num_examples, 400, _MOST_DRAWS)
    rows = np.linspace(0, num_results - 1, min(num_results, int(most) // num_chains)).astype(int)
    moved = z.reshape(draws.shape)[rows].reshape(-1, dim)
    before = moved[:, funnel.entry]
    value = log_prob_fn(mean + deviation * moved)
    for turn in range(_MOVES):
        if turn and turn % _REFIT == 0:  # the moved draws know more of the neck
            funnel = _Funnel(moved, funnel.entry)
        delta = _LENGTHS[turn % len(_LENGTHS)] * rng.standard_normal(len(moved))
        proposed = funnel.moved(moved, delta)
        there = log_prob_fn(mean + deviation * proposed)
        with np.errstate(all="ignore"):
            rise = there - value + delta * funnel.rates.sum()
            accepted = np.log(rng.random(len(moved))) < np.nan_to_num(rise, nan=-np.inf)
        moved = np.where(accepted[:, np.newaxis], proposed, moved)
        value = np.where(accepted, there, value)
    after = moved[:, funnel.entry]
    changes = np.stack([after - before, (after**2 - before**2) / 2], axis=-1)
    errors = batch_means_standard_error(changes.reshape(len(rows), num_chains, 2))
    shift, widening = changes.mean(axis=0)
    return FunnelCheck(
        funnel.entry, float(shift), float(errors[0]), float(widening), float(errors[1])
    )


class _Funnel:
    """How the others widen along one entry of standardized draws, `[n, D]`."""

    def __init__(self, z: np.ndarray, entry: int):
        self.entry = entry
        s, others = z[:, entry], np.delete(z, entry, axis=1)
        low, high = np.quantile(s, [1 / 3, 2 / 3])
        residuals = others - s[:, np.newaxis] * (others.T @ (s - s.mean()) / s.var() / len(s))
        narrow, wide = (np.atleast_2d(np.cov(residuals[x].T)) for x in (s < low, s > high))
        ridge = 1e-9 * np.eye(len(narrow))
        squares, self._basis = scipy.linalg.eigh(wide + ridge, narrow + ridge)
        self._inverse = np.linalg.inv(self._basis)
        self.rates = np.log(np.maximum(squares, 1e-12)) / 4  # the thirds are two deviations apart
        x, s = others @ self._basis, s[:, np.newaxis]
        for _ in range(_ROUNDS):  # narrow places decide on the line, and logarithms on the rates
            weights = np.exp(np.clip(-2 * self.rates * s, -50, 50))
            weights /= weights.sum(axis=0)
            center, middle = (weights * s).sum(axis=0), (weights * x).sum(axis=0)
            products = weights * (s - center)
            self._slope = (products * x).sum(axis=0) / (products * s).sum(axis=0)
            self._level = middle - self._slope * center
            logs = np.log(np.maximum(np.abs(x - self._level - self._slope * s), 1e-300))
            self.rates = ((s - s.mean()) * logs).mean(axis=0) / s.var()
        self.rates[np.abs(self.rates) < _LEAST_RATE] = 0.0

    def moved(self, z: np.ndarray, delta: np.ndarray) -> np.ndarray:
        """Returns z with `delta` added to the entry, and the others rescaled."""
        s, others = z[:, [self.entry]], np.delete(z, self.entry, axis=1)
        delta = delta[:, np.newaxis]
        x = others @ self._basis - self._level - self._slope * s
        x = x * np.exp(np.clip(delta * self.rates, -50, 50))
        others = (x + self._level + self._slope * (s + delta)) @ self._inverse
        return np.insert(others, self.entry, (s + delta)[:, 0], axis=1)
