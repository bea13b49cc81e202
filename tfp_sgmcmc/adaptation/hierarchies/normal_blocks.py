"""Finds blocks of effects with a joint normal prior whose covariance is not the same everywhere."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.adaptation.hierarchies.location_scale import ROUNDING, dependence, rows_around
from tfp_sgmcmc.adaptation.hierarchies.prior_scale import prior_slopes
from tfp_sgmcmc.internal.nest import State, flatten_events
from tfp_sgmcmc.targets import MinibatchLogProb

_NUM_ROWS = 4
_MOST_IN_BLOCK = 8
_PROBES = (-1.0, 0.3, 2.0)  # multiples of a state's effects at which slopes must be linear
_LEAST_CHANGE = 1e-3  # of a precision, in the units of its diagonal


class NormalBlocks(NamedTuple):
    """Effects that are normal given all other entries, in blocks that are independent.

    Attributes:
      blocks: the places of the effects, `[blocks, K]`.
      is_shared: whether all blocks have one covariance.
      scales: names of the parts that the covariance depends on.
      locations: names of the other parts that move the effects.
    """

    blocks: np.ndarray
    is_shared: bool
    scales: tuple[str, ...]
    locations: tuple[str, ...]

    @property
    def entries(self) -> tuple[int, ...]:
        """The places of all effects."""
        return tuple(sorted(int(j) for j in self.blocks.ravel()))


def find_normal_blocks(
    problem: MinibatchLogProb, state: State, names: list[str], only: tuple[int, ...]
) -> NormalBlocks | None:
    """Returns correlated effects, as intercepts and slopes of groups, or None.

    Effects depend on each other in blocks of at most eight entries. The slopes of the log prior are
    linear in a block's entries, and the matrix of their coefficients, the negative precision, is
    not the same everywhere.

    Args:
      problem: the target, with a prior.
      state: one unconstrained state.
      names: the name of the part of each entry of a flat state.
      only: entries that may be effects.
    """
    flat = flatten_events(state, 0).numpy().astype(np.float64)
    depends = dependence(problem, state)
    rows = rows_around(flat, _NUM_ROWS)
    rounding = ROUNDING[tf.nest.flatten(state)[0].dtype][0]
    chosen = np.zeros(len(flat), dtype=bool)
    may_be = np.isin(np.arange(len(flat)), only) & depends.any(axis=1)
    sizes = {name: sum(may_be[j] for j in np.flatnonzero(_of(names, name))) for name in names}
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        more = chosen | (may_be & _of(names, name))
        if sizes[name] and _are_blocks(depends, more, chosen):
            blocks = _blocks(depends, more)
            if not len(blocks) or _precisions(problem, state, rows, blocks, rounding) is not None:
                chosen = more
    blocks = _blocks(depends, chosen)
    found = _precisions(problem, state, rows, blocks, rounding) if len(blocks) else None
    if found is None or not np.ptp(_in_units(found[0], 0), axis=0).max() > _LEAST_CHANGE:
        return None
    is_shared = bool(np.ptp(_in_units(found[0], 1), axis=1).max() < 10 * rounding)
    scales, locations = list[str](), list[str]()
    for name in dict.fromkeys(names):
        is_other = _of(names, name) & ~np.isin(np.arange(len(flat)), blocks)
        moved = _precisions(problem, state, np.where(is_other, rows[::-1], rows), blocks, np.inf)
        if moved is None or not is_other.any():
            continue
        for at, of in enumerate((scales, locations)):
            units = np.abs(found[at]).max() + np.abs(moved[at]).max()
            if np.abs(moved[at] - found[at]).max() > _LEAST_CHANGE * units:
                of.append(name)
                break
    return NormalBlocks(blocks, is_shared, tuple(scales), tuple(locations))


def _of(names: list[str], name: str) -> np.ndarray:
    return np.array(names) == name


def _are_blocks(depends: np.ndarray, more: np.ndarray, before: np.ndarray) -> bool:
    """Returns whether `more` entries have small blocks, none of which joins two blocks `before`."""
    labels, was = _labels(depends, more), _labels(depends, before)
    if np.bincount(labels[more]).max() > _MOST_IN_BLOCK:
        return False
    joined = {(labels[j], was[j]) for j in np.flatnonzero(before)}
    return len(joined) == len({label for label, _ in joined})


def _labels(depends: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Returns the first entry of each entry's component in the graph of the chosen ones."""
    graph = (depends | depends.T) & chosen & chosen[:, np.newaxis]
    graph |= np.eye(len(graph), dtype=bool)
    labels, before = np.arange(len(graph)), None
    while before is None or (labels != before).any():
        labels, before = np.where(graph, labels, len(graph)).min(axis=1), labels
    return labels


def _blocks(depends: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Returns the components of the size that most have, at least 2, `[blocks, K]`."""
    labels = _labels(depends, chosen)
    counts = np.where(np.bincount(labels) > 1, np.bincount(labels), 0)
    if not counts.any():
        return np.zeros([0, 1], dtype=int)
    of_sizes = np.bincount(counts[counts > 0])
    kept = np.flatnonzero(counts == np.argmax(of_sizes))
    return np.stack([np.flatnonzero(labels == label) for label in kept])


def _precisions(
    problem: MinibatchLogProb, like: State, rows: np.ndarray, blocks: np.ndarray, rounding: float
) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns precisions `[rows, blocks, K, K]` and slopes at zero; None if priors are not normal.

    Each block's slopes are those at its zero minus its precision times its entries.
    """
    size = blocks.shape[-1]
    is_effect = np.isin(np.arange(rows.shape[-1]), blocks)
    zero, units = np.where(is_effect, 0.0, rows), np.zeros([size, rows.shape[-1]])
    for k in range(size):
        units[k, blocks[:, k]] = 1.0
    probes = np.multiply.outer(np.array(_PROBES), rows * is_effect)
    units = np.broadcast_to(units[:, np.newaxis], [size, *rows.shape])
    points = zero + np.concatenate([0 * probes[:1], units, probes])
    slopes = prior_slopes(problem, like, points.reshape(-1, rows.shape[-1]))
    slopes = slopes.reshape(points.shape)[..., blocks]  # [points, rows, blocks, K]
    if not np.isfinite(slopes).all():
        return None
    precision = np.moveaxis(slopes[0] - slopes[1 : size + 1], 0, -1)
    at = probes[..., blocks]
    expected = slopes[0] - np.einsum("rbij,prbj->prbi", precision, at)
    sizes = np.abs(slopes[0]) + np.einsum("rbij,prbj->prbi", np.abs(precision), np.abs(at))
    if (np.abs(slopes[size + 1 :] - expected) > 10 * rounding * sizes.max()).any():
        return None
    if np.isinf(rounding):
        return precision, slopes[0]
    diagonal = np.diagonal(precision, axis1=-2, axis2=-1)
    if not (diagonal > 0).all():
        return None
    unit = np.sqrt(diagonal[..., np.newaxis] * diagonal[..., np.newaxis, :])
    is_normal = np.linalg.eigvalsh(precision / unit).min() > rounding
    return (precision, slopes[0]) if is_normal else None


def _in_units(precision: np.ndarray, axis: int) -> np.ndarray:
    """Returns precisions with entries in units of their diagonals' mean along an axis."""
    unit = np.diagonal(precision, axis1=-2, axis2=-1).mean(axis=axis, keepdims=True) ** 0.5
    return precision / unit[..., np.newaxis] / unit[..., np.newaxis, :]
