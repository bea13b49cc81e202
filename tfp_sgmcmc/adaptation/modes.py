"""Searches for other modes of the posterior, from places far from the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tfp_sgmcmc.diagnostics.vector_functions import value_and_gradient_of_vectors
from tfp_sgmcmc.internal.nest import State, flatten_events
from tfp_sgmcmc.targets import MinibatchLogProb

_FAR = 4.0  # distance, in deviations of Laplace's approximation, from which a mode is another one
_DIP = 0.5  # nats below the lower of two modes, on the line between them
_DEPTH = 10.0  # difference of the log posterior from which a mode has hardly any mass
_RADII = (5.0, 15.0)  # of the nearer starts, in deviations of an entry
NUM_STARTS = 16
_NUM_GRADIENTS, _FLAT = 100, 0.03  # of a climb at most, and the gradient at which it ends


class OtherMode(NamedTuple):
    """A mode far from the center.

    Attributes:
      distance: its distance from the center, in deviations of Laplace's approximation there.
      log_prob: its log posterior minus the log posterior at the center.
    """

    distance: float
    log_prob: float


def value_and_gradient_of_z(
    problem: MinibatchLogProb, center: State, factor: np.ndarray, jit_compile: bool
) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Returns the function of z, `[K, D]`, that gives log posteriors and gradients.

    The state is center + L z with the factor L. The compiled function is that of the state, so it
    serves every center.
    """
    flat = flatten_events(center, 0).numpy()
    evaluate = value_and_gradient_of_vectors(problem, center, jit_compile, in_blocks=False)

    def of_z(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, gradient = evaluate(flat + z @ factor.T)
        with np.errstate(all="ignore"):  # climbs turn back where derivatives are not finite
            return value, gradient @ factor

    return of_z


def far_starts(dim: int, first: np.ndarray, widths: np.ndarray, seed: Any) -> np.ndarray:
    """Returns z of sixteen starts, `[16, D]`.

    Four lie near the center. The others are spread like the prior, around the center and around the
    user's start.

    Args:
      dim: D.
      first: z of the user's start, `[D]`.
      widths: linear map from a standard normal to z with the prior's widths, `[D, D]`.
      seed: an integer or two, of the normals.
    """
    rng = np.random.default_rng(np.atleast_1d(seed).astype(np.uint32))
    near = np.repeat(_RADII, 2)[:, np.newaxis] * rng.standard_normal([4, dim])
    wide = rng.standard_normal([NUM_STARTS - 4, dim]) @ widths.T
    wide[::2] += first
    return np.concatenate([near, wide])


def find_other_mode(
    value_and_gradient_fn: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], starts: np.ndarray
) -> OtherMode | None:
    """Climbs from `starts`, `[K, D]`; returns the highest other mode, or None.

    The function returns the log posterior of z and its gradient at `[K + 1, D]`. The posterior of z
    is near N(0, I) at the center. The steps are those of Barzilai and Borwein, halved where the log
    posterior falls. Where the log posterior does not dip on the line to the center, a climb ended
    in a flat tail, and not at another mode.
    """
    at = value_and_gradient_fn
    z = np.concatenate([0 * starts[:1], starts])
    value, gradient = at(z)
    with np.errstate(all="ignore"):
        step = np.linalg.norm(z, axis=-1) / np.maximum(np.linalg.norm(gradient, axis=-1), 1e-30)
        step = np.minimum(0.1 * step, 1.0)
        for _ in range(_NUM_GRADIENTS):
            if (np.abs(gradient).max(axis=-1) < _FLAT).all():
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
    heights, distances = value - value[0], np.linalg.norm(z - z[0], axis=-1)
    is_mode = np.isfinite(heights) & (np.abs(gradient).max(axis=-1) < 1.0)
    others = is_mode & (distances > _FAR) & (heights > -_DEPTH)
    # Between two modes the log posterior is lower. A flat tail has no such dip.
    share = np.linspace(0, 1, len(z))[:, np.newaxis]
    for i in sorted(np.flatnonzero(others), key=lambda i: -heights[i]):
        between, _ = at(z[0] + share * (z[i] - z[0]))
        if not between.min() > min(value[0], value[i]) - _DIP:
            return OtherMode(float(distances[i]), float(heights[i]))
    return None
