"""The search for other modes of a posterior, by climbs from places far from the first."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfp_sgmcmc.diagnostics.vector_functions import ValuesAndGradients

FAR = 4.0  # distance, in deviations of Laplace's approximation, from which a mode is another one
_DIP = 0.5  # nats below the lower of two modes, on the line between them
_DEPTH = 10.0  # difference of the log posterior from which a mode has hardly any mass
_RADII = (5.0, 15.0)  # of the nearer starts, in deviations of an entry
NUM_STARTS = 16
NUM_GRADIENTS, _FLAT = 100, 0.03  # of a climb at most, and the gradient at which it ends
_SEVERAL = 10  # gradients after which the speed of climbs is looked at
_MOST_MODES = 12
FEWEST_ROUNDS, _MOST_ROUNDS = 5, 30  # of sixteen climbs
LEAST_ARRIVALS = 3  # climbs to a mode; one that is hardly reached tells of others not reached
GRADIENTS_OF_ROUND = NUM_STARTS * NUM_GRADIENTS  # at most
_SAME = 1.0  # deviations between two ends at one mode


class OtherMode(NamedTuple):
    """A mode far from the center.

    Attributes:
      log_prob: its log posterior minus the log posterior at the center.
      z: where it is.
      log_mass: the logarithm of its mass over that of the mode at the center, by Laplace's
        approximations; 0 if that is not known.
      factor: a Cholesky factor of the covariance of z by Laplace's approximation there, `[D, D]`;
        None if that is not known.
    """

    log_prob: float
    z: np.ndarray
    log_mass: float = 0.0
    factor: np.ndarray | None = None


class Climbs(NamedTuple):
    """Ends of climbs; the first is the mode at the center, z = 0.

    Attributes:
      z: where they are, `[K + 1, D]`.
      log_probs: the log posteriors there, `[K + 1]`.
      is_mode: which of them are modes that are not far lower than the first, `[K + 1]`.
    """

    z: np.ndarray
    log_probs: np.ndarray
    is_mode: np.ndarray


def far_starts(
    dim: int, first: np.ndarray, widths: np.ndarray, seed: Any, number: int = 0
) -> np.ndarray:
    """Returns z of sixteen starts, `[16, D]`.

    In rounds 0, 2, ... four lie near the center. The others are spread like the prior, around the
    center and around the user's start. In rounds 1, 3, ... they lie at distances between, because
    far out all climbs may lead to the widest mode.

    Args:
      dim: D.
      first: z of the user's start, `[D]`.
      widths: linear map from a standard normal to z with the prior's widths, `[D, D]`.
      seed: an integer or two, of the normals.
      number: the number of the round.
    """
    seeds = [*np.atleast_1d(seed), *([number] if number else [])]
    rng = np.random.default_rng(np.array(seeds).astype(np.uint32))
    if number % 2 == 0:
        near = np.repeat(_RADII, 2)[:, np.newaxis] * rng.standard_normal([4, dim])
        wide = rng.standard_normal([NUM_STARTS - 4, dim]) @ widths.T
        wide[::2] += first
        return np.concatenate([near, wide])
    starts = rng.standard_normal([NUM_STARTS, dim]) @ widths.T
    distances = np.linalg.norm(starts, axis=1, keepdims=True)
    share = rng.uniform(size=[NUM_STARTS, 1])  # on a logarithmic scale
    starts *= np.minimum((_RADII[0] / distances) ** share, 1.0)
    starts[::2] += (1 - share[::2]) * first
    return starts


def find_other_mode(value_and_gradient_fn: ValuesAndGradients, ends: Climbs) -> OtherMode | None:
    """Returns the highest other mode where climbs ended, or None.

    The function returns the log posterior of z and its gradient at `[K + 1, D]`. Where the log
    posterior does not dip on the line to the center, a climb ended in a flat tail, and not at
    another mode.
    """
    z, log_probs, is_mode = ends
    heights, distances = log_probs - log_probs[0], np.linalg.norm(z, axis=-1)
    others = np.flatnonzero(is_mode & (distances > FAR))
    # Between two modes the log posterior is lower. A flat tail has no such dip.
    share = np.linspace(0, 1, len(z))[:, np.newaxis]
    for i in sorted(others, key=lambda i: -heights[i]):
        between, _ = value_and_gradient_fn(share * z[i])
        if has_dip(between):
            return OtherMode(float(heights[i]), z[i])
    return None


def has_dip(log_probs: np.ndarray) -> bool:
    """Returns whether log posteriors along a line are somewhere lower than at both of its ends."""
    return not log_probs.min() > min(log_probs[0], log_probs[-1]) - _DIP


def climb(value_and_gradient_fn: ValuesAndGradients, starts: np.ndarray) -> Climbs:
    """Climbs from `starts`, `[K, D]`, and from the center, which is a mode.

    The posterior of z is near N(0, I) at the center. The steps are those of Barzilai and Borwein,
    halved where the log posterior falls. The climbs end when each has come to a mode, or rises so
    slowly that it would not come near the height of the first.
    """
    at = value_and_gradient_fn
    z = np.concatenate([0 * starts[:1], starts])
    value, gradient = at(z)
    before = value
    with np.errstate(all="ignore"):
        step = np.linalg.norm(z, axis=-1) / np.maximum(np.linalg.norm(gradient, axis=-1), 1e-30)
        step = np.minimum(0.1 * step, 1.0)
        for number in range(NUM_GRADIENTS):
            ended = np.abs(gradient).max(axis=-1) < _FLAT
            if number % _SEVERAL == 0:
                rounds_left = (NUM_GRADIENTS - number) / _SEVERAL
                within_reach = value + rounds_left * (value - before)
                ended |= (number > 0) & (within_reach < value[0] - _DEPTH)
                before = value
            if ended.all():
                break
            moved = z + step[:, np.newaxis] * gradient
            there, slope = at(moved)
            good = (there >= value - 1e-3 * np.abs(value)) & np.isfinite(slope).all(axis=-1)
            offset, change = moved - z, gradient - slope
            curvature = (offset * change).sum(axis=-1)
            wanted = (offset**2).sum(axis=-1) / np.maximum(curvature, 1e-12)
            step = np.where(good, np.clip(wanted, 1e-6, 4 * step + 1e-3), step / 4)
            keep = good[:, np.newaxis]
            z, gradient = np.where(keep, moved, z), np.where(keep, slope, gradient)
            value = np.where(good, there, value)
    heights = value - value[0]
    is_mode = np.isfinite(heights) & (np.abs(gradient).max(axis=-1) < 1.0) & (heights > -_DEPTH)
    return Climbs(z, value, is_mode)


class Search(NamedTuple):
    """A search for modes other than the one at z = 0.

    Attributes:
      value_and_gradient_fn: z, `[K + 1, D]` -> log posteriors and gradients.
      ends_fn: number of a round -> where climbs from dispersed starts end.
      refine: returns a mode with its mass and its factor, or None if it has hardly any mass.
      exchange: z, `[K, D]`, generator -> z where entries of state parts changed places.
    """

    value_and_gradient_fn: ValuesAndGradients
    ends_fn: Callable[[int], Climbs]
    refine: Callable[[OtherMode], OtherMode | None]
    exchange: Callable[[np.ndarray, np.random.Generator], np.ndarray]


def every_other_mode(search: Search) -> list[OtherMode] | None:
    """Returns all modes that a search finds, or None if some may be unseen.

    Climbs go on until three have come to each mode, and 80 in a row to no new one. By the estimate
    of Good and Turing, the share of climbs that would end at a mode not seen is about that of the
    climbs to modes seen once, which is then zero. Every other round begins at the modes with
    entries exchanged, and at recombinations of the modes, entry by entry. Labels of components can
    often be exchanged, and starts that are spread like the prior hardly find all such modes.

    References:
      I. J. Good. The population frequencies of species and the estimation of population parameters.
      Biometrika, 1953.
    """
    modes, arrivals, dismissed = list[OtherMode](), list[int](), list[np.ndarray]()
    last_new = -1
    for number in range(_MOST_ROUNDS):
        if number % 2 and modes:
            starts = _varied(modes, search.exchange, np.random.default_rng(number))
            ends = climb(search.value_and_gradient_fn, starts)
        else:
            ends = search.ends_fn(number)
        for z, log_prob in zip(ends.z[ends.is_mode], ends.log_probs[ends.is_mode], strict=True):
            distance = float(np.linalg.norm(z))
            if distance < FAR or any(np.linalg.norm(z - x) < _SAME for x in dismissed):
                continue
            near = _nearest(modes, z, FAR)
            if near is None:
                rough = OtherMode(float(log_prob - ends.log_probs[0]), z)
                mode = search.refine(rough)
                if mode is None:
                    dismissed.append(z)
                    continue
                if mode.factor is None:
                    return None
                near = _nearest(modes, mode.z, _SAME)
                if near is None:
                    near, last_new = len(modes), number
                    modes.append(mode)
                    arrivals.append(0)
            arrivals[near] += 1
        if len(modes) >= _MOST_MODES:
            return None
        is_quiet = number - last_new >= FEWEST_ROUNDS
        if is_quiet and all(x >= LEAST_ARRIVALS for x in arrivals):
            return modes
    return None


def _varied(
    modes: Sequence[OtherMode],
    exchange: Callable[[np.ndarray, np.random.Generator], np.ndarray],
    rng: np.random.Generator,
) -> np.ndarray:
    """Returns starts: modes with entries exchanged, and with entries of random modes, by turns.

    Their noise is a third of the modes' spread.
    """
    places = np.stack([np.zeros_like(modes[0].z), *(mode.z for mode in modes)])
    shape = NUM_STARTS, places.shape[1]
    chosen = rng.integers(len(places), size=shape)
    chosen[::2] = chosen[::2, :1]
    starts = np.take_along_axis(places, chosen, axis=0)
    starts[::2] = exchange(starts[::2], rng)
    return starts + rng.standard_normal(shape) * places.std(axis=0) / 3


def exchanged(
    flat: np.ndarray, shapes: Sequence[tuple[int, ...]], rng: np.random.Generator
) -> np.ndarray:
    """Returns flat states, `[K, D]`, where the first axis of all parts is in a random order.

    Parts with equally long first axes have the same order, as those of a mixture's components.
    """
    states = flat.copy()
    for row in states:
        orders = {shape[0]: rng.permutation(shape[0]) for shape in shapes if shape}
        begin = 0
        for shape in shapes:
            end = begin + math.prod(shape)
            if shape:
                row[begin:end] = row[begin:end].reshape(shape)[orders[shape[0]]].ravel()
            begin = end
    return states


def _nearest(modes: Sequence[OtherMode], z: np.ndarray, most: float) -> int | None:
    """Returns the number of the mode within `most` of its own deviations, if there is one."""
    if not modes:
        return None
    offsets = np.stack([z - mode.z for mode in modes])[..., np.newaxis]
    factors = np.array([mode.factor for mode in modes])
    distances = np.linalg.norm(np.linalg.solve(factors, offsets)[..., 0], axis=-1)
    nearest = int(distances.argmin())
    return nearest if distances[nearest] < most else None
