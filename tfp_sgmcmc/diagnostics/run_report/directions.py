"""Combinations of entries in which draws may be off, though no single entry shows it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_MOST_DIRECTIONS = 50  # principal directions that are looked at
_MOST_DRAWS = 400
_EXTREMES = 2  # widest and narrowest directions, of each half


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


def directions(x: np.ndarray, g: np.ndarray) -> list[Direction]:
    r"""Finds directions in one half of the draws, and returns their series on the other half.

    The half that chose a direction would exaggerate it; the other half tests it without bias. With
    C the covariance of the draws in one half, those are chosen in which
    \( -C^{-1/2} \operatorname{cov}(\theta, g) C^{1/2} \) is largest and smallest, and the one in
    which \( C^{1/2} E[g] \) is largest. Halves are every other chain, or halves of a single chain.

    Args:
      x: draws `[draws, chains, D]`, with standard deviations near 1.
      g: gradients of the log posterior there.
    """
    num_draws, num_chains, size = x.shape
    if size < 2 or num_draws < 8:
        return []
    if num_chains > 1:
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
    picked = np.linspace(0, len(x) - 1, min(len(x), max(_MOST_DRAWS, 4 * min(size, 50)))).astype(
        int
    )
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
