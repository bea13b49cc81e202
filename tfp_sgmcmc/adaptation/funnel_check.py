"""Moves along a funnel, which leave the posterior as it is, but not draws that miss its neck."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tfp_sgmcmc.diagnostics.convergence import batch_means_standard_error
from tfp_sgmcmc.diagnostics.vector_functions import LogProbs
from tfp_sgmcmc.targets.data import evenly_spread

NUM_MOVES, _REFIT = 80, 8
_LENGTHS = (1.0, 2.0, 3.0)  # of moves, in standard deviations of the entry
_MOST_DRAWS, _MOST_TERMS = 4000, 4e7  # rows of data times evaluated log posteriors
_LEAST_RATE, _ROUNDS = 0.2, 5  # of logarithms of a width by a deviation, and of its fit
_ENDS = (0.02, 0.98)  # probabilities of the quantiles beyond which widths change evenly
_FUNNELS, _LEAST_SHARE = 3, 0.3  # entries that are moved, by their squared rates beside the most
_TAIL, _LEAST_TAIL = 0.01, 0.005  # the probability of a tail, and its change that may be
_BULK = (0.05, 0.95)  # tails are cut at twice the distance of these quantiles from them
_MOST_ENTRIES, _DRAWS_PER_ENTRY = 100, 30  # for which covariances are compared


class FunnelCheck(NamedTuple):
    """How moves along a funnel change the entry that its widths depend on.

    Attributes:
      entry: the place of the entry in a flat state.
      shift: the change of its mean, in standard deviations of the draws. Far tails are cut.
      shift_error: the standard error.
      widening: the relative change of its standard deviation.
      widening_error: the standard error.
      tail: the change of the share of draws below the 1 % quantile, or above the 99 % quantile,
        whichever grows more.
      tail_error: the standard error.
    """

    entry: int
    shift: float
    shift_error: float
    widening: float
    widening_error: float
    tail: float
    tail_error: float

    @property
    def clearest(self) -> float:
        """The largest change in its standard errors; a tail that shrinks does not count."""
        pairs = (abs(self.shift), self.shift_error), (abs(self.widening), self.widening_error)
        pairs += ((self.tail, self.tail_error),)
        return max(x / max(error, 1e-12) for x, error in pairs)

    def is_wrong(self, least: float, errors: float) -> bool:
        """Returns whether a change is above `least`, or a tail grows, by some standard errors."""
        pairs = (self.shift, self.shift_error), (self.widening, self.widening_error)
        is_changed = any(abs(x) > least + errors * error for x, error in pairs)
        return is_changed or self.tail > _LEAST_TAIL + errors * self.tail_error


def funnel_check(
    log_prob_fn: LogProbs,
    draws: np.ndarray,
    num_examples: int,
    rng: np.random.Generator,
    num_moves: int = NUM_MOVES,
) -> FunnelCheck | None:
    r"""Returns what moves along the funnel do to draws; None if there is none.

    The entry s with which the widths of the others change most is moved, and the others with it,

    \[
    s' = s + \delta, \qquad \frac{x_k' - m_k(s')}{w_k(s')} = \frac{x_k - m_k(s)}{w_k(s)}, \qquad
    x = V^T \theta_{-s},
    \]

    where V diagonalises the covariances of the others at low and at high s, and the locations m and
    the logarithms of the widths w are quadratic in s. A Metropolis test with the Jacobian
    \( \prod_k w_k(s') / w_k(s) \) leaves the posterior invariant, whatever m, w and the
    distribution of the effects are. Chains that cannot enter a narrow neck, and leave no trace of
    it in R-hat or divergences, have draws that spread into it. Where several entries have widths
    that depend on them, each is moved in turn, and the one with the clearest change is returned.

    Args:
      log_prob_fn: log posteriors of flat states, `[K, D]`.
      draws: flat unconstrained states, `[results, chains, D]`.
      num_examples: N, which decides how many draws are moved.
      rng: random numbers.
      num_moves: how often each draw is moved.
    """
    (num_results, num_chains, dim), size = draws.shape, draws.shape[0] * draws.shape[1]
    if not 2 <= dim <= min(_MOST_ENTRIES, size // _DRAWS_PER_ENTRY):
        return None
    flat = draws.reshape(-1, dim)
    mean, deviation = flat.mean(axis=0), flat.std(axis=0)
    if not (deviation > 0).all() or len(np.unique(flat, axis=0)) < _DRAWS_PER_ENTRY * dim:
        return None  # draws stick
    z = (flat - mean) / deviation
    funnels = sorted((_Funnel(z, j, rounds=1) for j in range(dim)), key=lambda f: -f.strength)
    if not funnels[0].strength:
        return None
    most = np.clip(_MOST_TERMS / NUM_MOVES / num_examples, 400, _MOST_DRAWS)
    picked = z.reshape(draws.shape)[evenly_spread(num_results, max(2, int(most) // num_chains))]
    least = _LEAST_SHARE * funnels[0].strength
    found = [
        _moved(lambda z: log_prob_fn(mean + deviation * z), picked, funnel.entry, rng, num_moves)
        for funnel in funnels[:_FUNNELS]
        if funnel.strength >= least
    ]
    return max(found, key=lambda check: check.clearest)


def _moved(
    log_prob_fn: LogProbs,
    draws: np.ndarray,
    entry: int,
    rng: np.random.Generator,
    num_moves: int,
) -> FunnelCheck:
    """Returns what moves along one entry do to standardized draws, `[results, chains, D]`.

    Each half of the chains moves by what the other half knows of the funnel, because draws that
    decide on their own moves drift.
    """
    moved = draws.reshape(-1, draws.shape[-1])
    before, value = moved[:, entry], log_prob_fn(moved)
    places = np.arange(len(moved)).reshape(draws.shape[:2])
    axis = 1 if draws.shape[1] > 1 else 0  # of chains, or of the results of one chain
    halves = [part.ravel() for part in np.array_split(places, 2, axis=axis)]
    for turn in range(num_moves):
        if turn % _REFIT == 0:  # the moved draws know more of the neck
            funnels = [_Funnel(moved[half], entry) for half in halves]
        delta = _LENGTHS[turn % len(_LENGTHS)] * rng.standard_normal(len(moved))
        proposed, jacobian = np.empty_like(moved), np.empty(len(moved))
        for half, funnel in zip(halves, reversed(funnels), strict=True):
            proposed[half], jacobian[half] = funnel.moved(moved[half], delta[half])
        there = log_prob_fn(proposed)
        with np.errstate(all="ignore"):
            rise = there - value + jacobian
            accepted = np.log(rng.random(len(moved))) < np.nan_to_num(rise, nan=-np.inf)
        accepted &= there < np.inf  # a density that overflows would keep all that come there
        moved = np.where(accepted[:, np.newaxis], proposed, moved)
        value = np.where(accepted, there, value)
    after = moved[:, entry]
    low, high = np.quantile(before, [_TAIL, 1 - _TAIL])
    tails = [
        1.0 * (sign * after < sign * x) - (sign * before < sign * x)
        for sign, x in ((1, low), (-1, high))
    ]
    before, after = _with_moments(before, after)
    parts = after - before, (after**2 - before**2) / 2, *tails
    changes = np.stack(parts, axis=-1)
    errors = batch_means_standard_error(changes.reshape(*draws.shape[:2], len(parts)))
    means = changes.mean(axis=0)
    picked = [0, 1, 2 + int(means[3] > means[2])]  # the tail that grows more
    return FunnelCheck(entry, *np.stack([means, errors], axis=1)[picked].ravel().tolist())


def _with_moments(before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns both in units of the first one's deviation, without tails far beyond the bulk.

    Of tails without moments no error of a mean can be told.
    """
    low, high = np.quantile(before, _BULK)
    ends = low - 2 * (high - low), high + 2 * (high - low)
    before, after = np.clip(before, *ends), np.clip(after, *ends)
    center, deviation = before.mean(), before.std()
    return (before - center) / deviation, (after - center) / deviation


class _Funnel:
    """How the others move and widen along one entry of standardized draws, `[n, D]`.

    Attributes:
      entry: the place of the entry.
      strength: the sum of squares of the rates at which logarithms of widths change along it.
    """

    def __init__(self, z: np.ndarray, entry: int, rounds: int = _ROUNDS):
        self.entry = entry
        s, others = z[:, entry], np.delete(z, entry, axis=1)
        low, high = np.quantile(s, [1 / 3, 2 / 3])
        residuals = others - s[:, np.newaxis] * (others.T @ (s - s.mean()) / s.var() / len(s))
        narrow, wide = (np.atleast_2d(np.cov(residuals[x].T)) for x in (s < low, s > high))
        ridge = 1e-9 * np.eye(len(narrow))
        whiten = np.linalg.inv(np.linalg.cholesky(narrow + ridge))
        squares, vectors = np.linalg.eigh(whiten @ (wide + ridge) @ whiten.T)
        self._basis = whiten.T @ vectors
        self._inverse = np.linalg.inv(self._basis)
        self._ends = np.quantile(s, _ENDS)
        powers, x = self._powers(s), others @ self._basis
        least_squares = np.linalg.pinv(powers)
        # The thirds are two deviations apart.
        log_width = np.outer(s, np.log(np.maximum(squares, 1e-12)) / 4)
        for _ in range(rounds):  # narrow places decide on the locations, and these on the widths
            weights = np.exp(np.clip(-2 * (log_width - log_width.mean(axis=0)), -20, 20))
            self._location = _fits(powers, x, weights)
            off = np.maximum(np.abs(x - powers @ self._location), 1e-300)
            self._width = least_squares @ np.log(off)
            log_width = powers @ self._width
        rates = (s - s.mean()) @ log_width / s.var() / len(s)
        self.strength = float(np.sum(rates[np.abs(rates) > _LEAST_RATE] ** 2))

    def _powers(self, s: np.ndarray) -> np.ndarray:
        """Returns 1, s and its square, which is continued by its tangents beyond both ends."""
        end = np.clip(s, *self._ends)
        return np.stack([np.ones_like(s), s, end**2 + 2 * end * (s - end)], axis=-1)

    def moved(self, z: np.ndarray, delta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns z with `delta` added to the entry, and the logarithm of the Jacobian, `[n]`."""
        s, others = z[:, self.entry], np.delete(z, self.entry, axis=1)
        here, there = self._powers(s), self._powers(s + delta)
        growth = np.clip((there - here) @ self._width, -50, 50)
        x = (others @ self._basis - here @ self._location) * np.exp(growth)
        others = (x + there @ self._location) @ self._inverse
        return np.insert(others, self.entry, s + delta, axis=1), growth.sum(axis=1)


def _fits(powers: np.ndarray, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns coefficients of weighted least squares for each column of x, `[powers, columns]`."""
    num, pairs = powers.shape[-1], powers[:, :, np.newaxis] * powers[:, np.newaxis]
    squares = (weights.T @ pairs.reshape(len(powers), -1)).reshape(-1, num, num)
    products = (weights * x).T @ powers
    ridge = 1e-9 * np.trace(squares, axis1=1, axis2=2)[:, np.newaxis, np.newaxis]
    squares += ridge * np.eye(num)
    return np.linalg.solve(squares, products[..., np.newaxis])[..., 0].T
