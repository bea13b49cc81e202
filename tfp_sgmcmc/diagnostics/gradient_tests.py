r"""Tests of each entry against the gradients, with one error rate for all tests.

Under \( p(\theta)^{1/T} \), for each entry i and each constant a,

\[ E[\partial_i \log p] = 0, \qquad -E[(\theta_i - a)\, \partial_i \log p] = T \]

Wrong means violate the first identity, and wrong widths the second. Combinations of entries have
the same identities.
"""

from __future__ import annotations

import functools
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import tensorflow_probability as tfp

from tfp_sgmcmc.diagnostics.convergence import batch_means_standard_error
from tfp_sgmcmc.targets.data import evenly_spread

FALSE_ALARMS = 1e-3  # the probability that any test of a report on sound draws rejects
_MOST_WINDOWS, _LEAST_WINDOWS = 20, 4
_TIMES_IN_WINDOW = 5
_MOST_FOR_COVARIANCE = 200  # entries
# Under the target, -(theta - a) g falls off exponentially or faster, with heavy tails too.
_FAR = 60.0  # of its scale
_MOST_MEDIAN = 3.0  # of a number with mean 1 that is hardly ever negative
_MOST_DIRECTIONS = 50  # principal directions that are searched
_MOST_DRAWS = 400
_EXTREMES = 2  # widest and narrowest directions, of each half


class Deviations(NamedTuple):
    """Deviations of the entries from the target; all are 0 in expectation for sound draws.

    Attributes:
      log_width: logarithm of the draws' width over the target's, `[K]`.
      log_width_surely: the same, less the size that the largest of K has by chance.
      is_width_wrong: whether the test rejects, `[K]`.
      shift: mean of the draws less the target's, in standard deviations, `[K]`.
      shift_surely: the same, less the size that the largest of K has by chance.
      is_shift_wrong: whether the test rejects, `[K]`.
    """

    log_width: np.ndarray
    log_width_surely: np.ndarray
    is_width_wrong: np.ndarray
    shift: np.ndarray
    shift_surely: np.ndarray
    is_shift_wrong: np.ndarray


class Direction(NamedTuple):
    """A combination of entries, and two series that test it.

    Attributes:
      weights: weight of each entry, in its standard deviations, `[D]`.
      width: series with mean 1 under the target, `[draws, chains, 1]`.
      shift: series with mean 0 under the target, in standard deviations, `[draws, chains, 1]`.
    """

    weights: np.ndarray
    width: np.ndarray
    shift: np.ndarray


class GradientTestResults(NamedTuple):
    """The results of all tests of a run.

    Attributes:
      entries: each entry of the state, from all chains.
      mean: the mean over entries, from all chains; it has a width only.
      by_chain: the mean over entries of each chain; it has widths only.
      directions: combinations of entries.
      of_directions: their deviations.
      far: (result, chain, entry) of the draw that lies farthest out, or None if none is too far.
      temperature: the configurational temperature and its standard error, over T.
    """

    entries: Deviations
    mean: Deviations
    by_chain: Deviations
    directions: list[Direction]
    of_directions: Deviations
    far: tuple[int, int, int] | None
    temperature: tuple[float, float]


def run_gradient_tests(
    x: np.ndarray, g: np.ndarray, time: float, dependence: float = 1.0
) -> GradientTestResults:
    """Tests draws x and gradients g of the tempered log posterior, both `[draws, chains, D]`.

    Args:
      x: draws; each entry must move.
      g: gradients there, or unbiased estimates.
      time: integrated autocorrelation time of the slowest entry, as a number of these draws.
      dependence: the largest `chain_dependence`; chains count for as many as they are worth.
    """
    num_draws, num_chains, size = x.shape
    windows = int(np.clip(num_draws / (_TIMES_IN_WINDOW * time), _LEAST_WINDOWS, _MOST_WINDOWS))
    windows = min(windows, num_draws)
    scale = x.std(axis=(0, 1))
    x = (x - np.median(x, axis=(0, 1))) / scale
    g = g * scale
    widths = -x * g
    far, clipped = _clipped(widths)
    shifts = _clipped(g - np.median(g, axis=(0, 1)))[1] + np.median(g, axis=(0, 1))
    if 1 < size <= min(_MOST_FOR_COVARIANCE, num_draws * num_chains / (5 * max(time, 1))):
        shifts = shifts @ np.cov(x.reshape(-1, size), rowvar=False)  # a step of Newton's method
    else:
        shifts = shifts / np.maximum(g.std(axis=(0, 1)), 1e-300)
    found = _directions(x, g, dependence == 1)
    num_tests = 2 * size + 1 + num_chains + 2 * len(found)
    mean, whole = clipped.mean(axis=-1, keepdims=True), widths.mean(axis=-1)
    chains = np.split(mean, num_chains, axis=1)
    of_directions = []
    for d in found:
        fewer, width = max(2, windows * len(d.width) // num_draws), _clipped(d.width)[1]
        of_directions.append(_deviations(width, d.shift, fewer, num_tests, dependence))
    error = float(batch_means_standard_error(whole, windows)) * dependence**0.5
    return GradientTestResults(
        _deviations(clipped, shifts, windows, num_tests, dependence),
        _deviations(mean, None, windows, num_tests, dependence),
        _stack([_deviations(of_one, None, windows, num_tests) for of_one in chains]),
        found,
        _stack(of_directions),
        far,
        (float(whole.mean()), error),
    )


def _clipped(series: np.ndarray) -> tuple[tuple[int, int, int] | None, np.ndarray]:
    """Returns the place of the farthest value, if it is too far, and the values clipped.

    The scale comes from quartiles, which a few bad draws or one bad chain hardly change. So a bad
    chain cannot hide in the variance that it causes. Under the target, the scale is at least 1.
    """
    quartiles = np.quantile(series, [0.25, 0.75], axis=(0, 1))
    limit = _FAR * np.maximum((quartiles[1] - quartiles[0]) / 1.349, 1)
    ratio = np.abs(series) / limit
    if ratio.max(initial=0) <= 1:
        return None, series
    # The gradient far out points back. Around another, narrow mode it points both ways.
    points_both_ways = (series > limit).any(axis=(0, 1)) & (series < -limit).any(axis=(0, 1))
    ratio = np.where(points_both_ways, 0.0, ratio)
    if ratio.max() <= 1:
        return None, np.clip(series, -limit, limit)
    place = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    far = (int(place[0]), int(place[1]), int(place[2]))
    return far, np.clip(series, -limit, limit)


def _deviations(
    widths: np.ndarray,
    shifts: np.ndarray | None,
    windows: int,
    num_tests: int,
    dependence: float = 1.0,
) -> Deviations:
    """Tests the means of series `[draws, chains, K]`: widths have mean 1, and shifts 0."""
    larger, chains = dependence**0.5, max(1, round(widths.shape[1] / dependence))
    value, error = widths.mean(axis=(0, 1)), larger * batch_means_standard_error(widths, windows)
    critical = _critical_value(chains * (windows - 1), num_tests)
    share = 0.5 + 0.5 ** (1 + 1 / len(value))
    by_chance = NormalDist().inv_cdf(share)  # the median of the largest of K
    is_wrong = np.abs(_width_score(value, error)) > critical
    # By Markov's inequality, the median of a positive number with mean 1 is at most 2. This finds
    # chains that explode, whose errors grow as their means do.
    quartile, median = np.quantile(widths, [0.25, 0.5], axis=(0, 1))
    hot = (median > _MOST_MEDIAN) & (quartile > 0)
    nearer = value - np.sign(value - 1) * by_chance * error
    surely = np.where(value > 1, np.maximum(nearer, 1), np.minimum(nearer, 1))
    value, surely = (np.where(hot, np.maximum(v, median), v) for v in (value, surely))
    smallest = 1e-12
    logs = [0.5 * np.log(np.maximum(v, smallest)) for v in (value, surely)]
    if shifts is None:
        nothing = np.zeros_like(value)
        return Deviations(*logs, is_wrong | hot, nothing, nothing, nothing > 0)
    shift = -shifts.mean(axis=(0, 1))  # the gradient points back
    shift_error = larger * batch_means_standard_error(shifts, windows)
    shift_nearer = np.sign(shift) * np.maximum(np.abs(shift) - by_chance * shift_error, 0)
    is_off = np.abs(shift) > critical * shift_error
    return Deviations(*logs, is_wrong | hot, shift, shift_nearer, is_off)


@functools.lru_cache  # it takes 0.1 s
def _critical_value(freedom: int, num_tests: int) -> float:
    """Returns the size of Student's t that any of some two-sided tests exceeds by chance."""
    student = tfp.distributions.StudentT(np.float64(freedom), np.float64(0.0), np.float64(1.0))
    return float(student.quantile(1 - FALSE_ALARMS / (2 * num_tests)))


def _width_score(value: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Returns the deviation from 1 in standard errors.

    Below 1 the logarithm is tested if the error is small. The estimated error of a chi-squared
    variable shrinks with its mean, which would make small means look too significant.
    """
    with np.errstate(all="ignore"):
        plain = np.where(value == 1, 0.0, (value - 1) / error)
        logarithm = value * np.log(np.maximum(value, 1e-300)) / error
    return np.where((value > 0) & (value < 1) & (error < 0.3 * value), logarithm, plain)


def _stack(parts: list[Deviations]) -> Deviations:
    if not parts:
        return Deviations(*(np.zeros(0) for _ in Deviations._fields))
    return Deviations(*(np.concatenate(fields) for fields in zip(*parts, strict=True)))


def _directions(x: np.ndarray, g: np.ndarray, independent: bool) -> list[Direction]:
    r"""Finds directions in one half of the draws, and returns their series on the other half.

    The half that chose a direction would exaggerate it; the other half tests it without bias. With
    covariance C of the draws in one half, it chooses the directions in which
    \( -C^{-1/2} \operatorname{cov}(\theta, g) C^{1/2} \) is largest and smallest, and the one in
    which \( C^{1/2} E[g] \) is largest. Halves are every other chain, or halves in time of a single
    chain and of chains that depend on each other.

    Args:
      x: draws `[draws, chains, D]`, with standard deviations near 1.
      g: gradients of the log posterior there.
      independent: whether chains are.
    """
    num_draws, num_chains, size = x.shape
    if size < 2 or num_draws < 8:
        return []
    if num_chains > 1 and independent:
        halves = [(slice(None), slice(0, None, 2)), (slice(None), slice(1, None, 2))]
    else:
        halves = [(slice(0, num_draws // 2),), (slice(num_draws // 2, None),)]
    found = []
    for chosen_from, tested_on in (halves, halves[::-1]):
        found += _chosen(x[chosen_from], g[chosen_from], x[tested_on], g[tested_on])
    return found


def _chosen(x: np.ndarray, g: np.ndarray, y: np.ndarray, h: np.ndarray) -> list[Direction]:
    """Chooses directions by draws x and gradients g, and returns their series on y and h."""
    size = x.shape[-1]
    x, g = x.reshape(-1, size), g.reshape(-1, size)
    picked = evenly_spread(len(x), max(_MOST_DRAWS, 4 * min(size, 50)))
    mean = x[picked].mean(axis=0)
    _, sds, axes = np.linalg.svd(x[picked] - mean, full_matrices=False)
    sds = sds / np.sqrt(len(picked) - 1)
    keep = min(_MOST_DIRECTIONS, len(picked) // 10, int(np.sum(sds > 1e-6 * sds[0])))
    if keep < 2:
        return []
    into, back = axes[:keep].T / sds[:keep], axes[:keep].T * sds[:keep]
    z, s = (x - mean) @ into, g @ back
    ratio = -(z - z.mean(axis=0)).T @ (s - s.mean(axis=0)) / len(z)
    vectors = np.linalg.eigh((ratio + ratio.T) / 2)[1]
    few = min(_EXTREMES, keep // 2)
    chosen = [*vectors[:, :few].T, *vectors[:, -few:].T]
    off = s.mean(axis=0)
    chosen.append(off / max(float(np.linalg.norm(off)), 1e-300))
    found = []
    for w in chosen:
        along, slope = y @ (into @ w), h @ (back @ w)
        width = -(along - np.median(along)) * slope
        found.append(Direction(back @ w, width[..., np.newaxis], slope[..., np.newaxis]))
    return found
