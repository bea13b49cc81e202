"""Starts near the typical set, on ways uphill from dispersed points."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tfp_sgmcmc.diagnostics.vector_functions import (
    ValuesAndGradients,
    value_and_gradient_of_vectors,
)
from tfp_sgmcmc.internal.nest import State, flatten_events, unflatten_events
from tfp_sgmcmc.targets import MinibatchLogProb
from tfp_sgmcmc.targets.data import evenly_spread

_STARTS_PER_CHAIN = 2
_RADIUS = 2.0  # of the uniform starts, in units of the scales at the user's start
_LOOKS = (0, 1, 2, 4, 8, 16, 32, 64)  # gradients after which a place is judged
_NUM_DRAWS = 16  # for the evidence of a place
_STEP = 0.05  # of finite differences, in scales
_MOST_AXES, _NUM_SIGNS = 1024, 4  # entries that move one by one, or moves of all at once
_FAR_HIGHER = 10.0  # nats
_MOST_ENTRIES = 50_000_000  # rows of data times states that are evaluated for curvatures


class TypicalStarts(NamedTuple):
    """Starts of chains, and a diagonal metric.

    Attributes:
      states: flat states, `[chains, D]`.
      variance: variances of the normal distribution around the best place, `[D]`.
    """

    states: np.ndarray
    variance: np.ndarray


def typical_starts(
    problem: MinibatchLogProb, state: State, num_chains: int, seed: np.ndarray, jit_compile: bool
) -> TypicalStarts:
    r"""Returns draws of normal distributions that fit the posterior at places on the way to a mode.

    As in Pathfinder, the places are those that gradient steps pass, from points around the user's
    start, and each is judged by a normal distribution q with the curvature there:

    \[ E_q[\log p(\theta, x) - \log q(\theta)]. \]

    The mode itself is no good start where the density has its peak in a corner that has hardly any
    mass, as at the neck of a funnel.

    Args:
      problem: the target.
      state: the user's start.
      num_chains: number of chains.
      seed: two integers.
      jit_compile: whether XLA compiles the gradient.

    References:
      L. Zhang, B. Carpenter, A. Gelman, A. Vehtari. Pathfinder: Parallel quasi-Newton variational
      inference. Journal of Machine Learning Research, 2022. Equation 2; here the curvature is the
      Hessian's diagonal by finite differences.
    """
    rng = np.random.default_rng(seed.astype(np.uint32))
    flat = flatten_events(state, 0).numpy().astype(np.float64)
    dim = len(flat)
    evaluate = value_and_gradient_of_vectors(problem, state, jit_compile, in_blocks=False)

    def at(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(all="ignore"):  # ascents turn back where derivatives are not finite
            return evaluate(theta)

    scale = np.minimum(_variances(at, flat[np.newaxis], np.ones(dim))[0], 1.0) ** 0.5
    size = _STARTS_PER_CHAIN * num_chains
    begin = flat + _RADIUS * scale * rng.uniform(-1, 1, [size, dim])
    begin[0] = flat
    places = _on_the_way(at, begin, scale)
    most = max(1, _MOST_ENTRIES // (2 * dim * size * max(1, problem.num_examples)))
    places = places[evenly_spread(len(places), most)]
    shape = places.shape[:2]
    places = places.reshape(-1, dim)
    variance = _variances(at, places, scale)
    deviation = np.sqrt(variance)
    # A Newton step along each axis, at most two deviations long.
    means = places + deviation * np.clip(deviation * np.nan_to_num(at(places)[1]), -2, 2)
    draws = means + deviation * rng.standard_normal([_NUM_DRAWS, *means.shape])
    with np.errstate(invalid="ignore"):
        values, slopes = at(draws.reshape(-1, dim))
        is_finite = np.isfinite(values) & np.isfinite(slopes).all(axis=-1)
        values, is_finite = (x.reshape(_NUM_DRAWS, -1) for x in (values, is_finite))
        bounds = values.mean(axis=0) + np.log(deviation).sum(axis=-1)
    bounds = np.where(np.isfinite(bounds), bounds, -np.inf).reshape(shape)
    best = int(np.argmax(bounds))
    # Each chain takes the best place of its two ways, unless it is far worse than the best of all.
    by_chain = bounds.reshape(shape[0], num_chains, _STARTS_PER_CHAIN)
    chosen = []
    for chain in range(num_chains):
        row, way = np.unravel_index(np.argmax(by_chain[:, chain]), by_chain[:, chain].shape)
        place = int(row) * shape[1] + chain * _STARTS_PER_CHAIN + int(way)
        near = bounds.ravel()[place] > bounds.ravel()[best] - 10 - dim
        chosen.append(place if near else best)
    # Chains cannot leave a state whose density or gradient is NaN, so finite draws come first.
    order = np.argsort(rng.random([_NUM_DRAWS, 1]) + ~is_finite[:, chosen], axis=0)
    turn = [chosen[:chain].count(place) % _NUM_DRAWS for chain, place in enumerate(chosen)]
    picked = order[turn, np.arange(num_chains)]
    good = is_finite[picked, chosen][:, np.newaxis]
    states = np.where(good, draws[picked, chosen], places[chosen])
    return TypicalStarts(states, variance[best])


def far_above(
    problem: MinibatchLogProb, center: State, jit_compile: bool, states: np.ndarray
) -> tuple[State, float] | None:
    """Returns the highest of flat states, `[K, D]`, and its height above `center`, if large."""
    flat = flatten_events(center, 0).numpy()
    states = np.concatenate([flat[np.newaxis], states]).astype(flat.dtype)
    with np.errstate(all="ignore"):
        evaluate = value_and_gradient_of_vectors(problem, center, jit_compile, in_blocks=False)
        values = np.nan_to_num(evaluate(states)[0], nan=-np.inf)
    best = 1 + int(np.argmax(values[1:]))
    gain = float(values[best] - values[0])
    return (unflatten_events(states[best], center, 0), gain) if gain > _FAR_HIGHER else None


def _variances(at: ValuesAndGradients, places: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Returns one over the sizes of the curvatures along all entries, at places `[K, D]`.

    Beyond 1024 entries all move together, with random signs, and each entry's mean fall counts.
    """
    dim = places.shape[-1]
    is_exact = dim <= _MOST_AXES
    signs = np.random.default_rng(0).choice([-1.0, 1.0], [_NUM_SIGNS, dim])
    offsets = _STEP * (np.diag(scale) if is_exact else scale * signs)
    ends = places[:, np.newaxis, np.newaxis] + np.stack([offsets, -offsets])
    slopes = at(ends.reshape(-1, dim))[1].reshape(ends.shape)
    with np.errstate(all="ignore"):
        falls = slopes[:, 1] - slopes[:, 0]
        if is_exact:
            falls = np.diagonal(falls, axis1=-2, axis2=-1)
        else:
            falls = (signs * falls).mean(axis=-2)
        curvature = np.abs(falls) / (2 * _STEP * scale)
    curvature = np.where(np.isfinite(curvature), curvature, 0.0)
    # A flat direction is at most a hundred scales wide.
    return 1 / np.maximum(curvature, 1e-4 / scale**2)


def _on_the_way(at: ValuesAndGradients, begin: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Returns places of ascents, `[looks, starts, D]`, with steps of Barzilai and Borwein."""
    z, places = begin / scale, []
    value, gradient = at(begin)
    gradient = gradient * scale
    with np.errstate(all="ignore"):
        value = np.where(np.isfinite(value), value, -np.inf)
        gradient = np.nan_to_num(gradient, posinf=0.0, neginf=0.0)
        step = 0.1 / np.maximum(np.linalg.norm(gradient, axis=-1), 1e-30)
        for count in range(_LOOKS[-1] + 1):
            if count in _LOOKS:
                places.append(z * scale)
            moved = z + step[:, np.newaxis] * gradient
            there, slope = at(moved * scale)
            slope = slope * scale
            good = (there >= value) & np.isfinite(slope).all(axis=-1)
            offset, change = moved - z, gradient - slope
            curvature = (offset * change).sum(axis=-1)
            wanted = (offset**2).sum(axis=-1) / np.maximum(curvature, 1e-12)
            step = np.where(good, np.minimum(wanted, 8 * step), step / 4)
            keep = good[:, np.newaxis]
            z, gradient = np.where(keep, moved, z), np.where(keep, slope, gradient)
            value = np.where(good, there, value)
    return np.stack(places)
