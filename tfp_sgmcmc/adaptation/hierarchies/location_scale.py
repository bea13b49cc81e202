"""Finds effects whose prior is a location plus a width times a fixed distribution."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.adaptation.hierarchies.prior_scale import prior_slopes
from tfp_sgmcmc.internal.nest import State, flatten_events, unflatten_events
from tfp_sgmcmc.targets import MinibatchLogProb
from tfp_sgmcmc.targets.base import kept_program

_RADIUS = 2.0  # of uniform states around one
_OFFSETS = (0.0, 0.1, 0.7, 3.0, 15.0, 100.0)  # of an effect from those states
_MOST_OFFSET = {tf.float32: 15.0, tf.float64: 100.0}
_MOST_NUMBERS = 4e6  # slopes that are evaluated at once
_FEWEST_ROWS, _MOST_ROWS, _LEAST_POINTS = 4, 8, 6
_FEW = 20  # effects, of which each has a clear part in the slope along their common scale
_CLEAR = 1000  # units of the last place; a smaller part of a slope is too rough to use
# Moves of an entry that may change slopes, and the states where they are made. The longer one tells
# of one effect among many, the shorter one where the density overflows.
_STEPS, _STEP_ROWS = (0.3, 3.0), 4
# Relative residuals that rounding explains, and parts of slopes that are above it.
ROUNDING = {tf.float32: (2e-3, 2e-2), tf.float64: (1e-7, 1e-5)}


class LocationScale(NamedTuple):
    r"""How locations and widths of effects depend on other entries of a flat state.

    \[
    m_e = a_e + \sum_r (A_{er} \theta_r + C_{er} c_r), \qquad
    \log w_e = \sum_r (B_{er} \theta_r + D_{er} \log c_r)
    \]

    where c are the model's parameters at the unconstrained \( \theta \), entry by entry.

    Attributes:
      entries: the places of the effects.
      offset: a, `[effects]`.
      location: A and C, `[2, effects, D]`.
      log_width: B and D, `[2, effects, D]`.
    """

    entries: tuple[int, ...]
    offset: np.ndarray
    location: np.ndarray
    log_width: np.ndarray

    def joined(self, other: LocationScale) -> LocationScale | None:
        """Returns both laws as one, or None if effects of one depend on those of the other."""
        for law, entries in ((self, other.entries), (other, self.entries)):
            if law.location[..., entries].any() or law.log_width[..., entries].any():
                return None
        entries = self.entries + other.entries
        order = np.argsort(entries)
        offset = np.concatenate([self.offset, other.offset])[order]
        location, log_width = (
            np.concatenate(pair, axis=1)[:, order]
            for pair in ((self.location, other.location), (self.log_width, other.log_width))
        )
        return LocationScale(tuple(sorted(entries)), offset, location, log_width)


def find_location_scale(
    problem: MinibatchLogProb,
    state: State,
    names: list[str],
    only: tuple[int, ...],
    model: tuple[MinibatchLogProb, State],
) -> LocationScale | None:
    r"""Returns effects whose prior is that of a location plus a width times z, or None.

    Of such a prior, with z of any fixed density, and no matter which,

    \[
    \partial_r \log p = c - \partial_e \log p \, \bigl(\partial_r m_e + (\theta_e - m_e) \,
    \partial_r \log w_e\bigr)
    \]

    as a function of the effect \( \theta_e \) alone, for every other entry r. Both derivatives
    follow by least squares, and residuals above rounding tell other priors. The forms of m and w
    are then fitted to the derivatives at several states, again to rounding.

    Args:
      problem: the target, with a prior.
      state: one unconstrained state.
      names: the name of the part of each entry of a flat state.
      only: entries that may be effects.
      model: the target and state whose parameters are c. In coordinates of a law that was found
        before, all but its effects have the same parameters.
    """
    flat = flatten_events(state, 0).numpy().astype(np.float64)
    dim, dtype = len(flat), tf.nest.flatten(state)[0].dtype
    rounding, rows = ROUNDING[dtype], rows_around(flat, _MOST_ROWS)
    candidates, stand_for = _candidates(dependence(problem, state), names, only)
    if not len(candidates):
        return None
    most = _MOST_OFFSET[dtype]  # farther away rounding hides what is near
    offsets = np.array([sign * x for sign in (-1, 1) for x in _OFFSETS if x <= most])
    size = len(candidates) * len(offsets) * dim
    rows = rows[: int(np.clip(_MOST_NUMBERS / size, _FEWEST_ROWS, _MOST_ROWS))]
    share = min(1.0, _FEW / len(candidates))  # an effect's part falls with their number
    among = rounding[0] * share, rounding[1] * share
    found = _Motions(problem, state, rows, candidates, offsets, among)
    apart = found.apart([names[j] for j in candidates], stand_for)
    if not apart:
        return None
    others = np.setdiff1d(np.arange(dim), candidates[apart])
    features = _Features(*model, rows, others)
    laws = {int(candidates[i]): features.law(found, i, rows, rounding[0]) for i in apart}
    entries = tuple(sorted(e for e, law in laws.items() if law is not None))
    if not entries:
        return None
    kept = [law for e in entries if (law := laws[e]) is not None]
    offset, location, log_width = (np.stack(x) for x in zip(*kept, strict=True))
    return LocationScale(entries, offset, np.swapaxes(location, 0, 1), np.swapaxes(log_width, 0, 1))


def parameters_of(problem: MinibatchLogProb, like: State, flat: tf.Tensor) -> tf.Tensor:
    """Returns the model's parameters at flat states, entry by entry; of other shapes the states."""
    state = unflatten_events(flat, like, 0)
    there, lead = problem.constrain(state), flat.shape.rank - 1
    try:
        tf.nest.assert_same_structure(there, state)
    except (TypeError, ValueError):
        vector = flatten_events(there, lead)
        return vector if vector.shape[-1] == flat.shape[-1] else flat
    pairs = zip(tf.nest.flatten(there), tf.nest.flatten(state), strict=True)
    same = [c if c.shape[lead:] == x.shape[lead:] else x for c, x in pairs]
    return flatten_events(tf.nest.pack_sequence_as(state, same), lead)


def dependence(problem: MinibatchLogProb, state: State) -> np.ndarray:
    """Returns whether the prior's slope along another entry depends on an entry, `[D, D]`."""
    return kept_program(problem, "dependence", state, lambda: _dependence(problem, state))


def _dependence(problem: MinibatchLogProb, state: State) -> np.ndarray:
    rows = rows_around(flatten_events(state, 0).numpy().astype(np.float64), _STEP_ROWS)
    dim, least = rows.shape[-1], ROUNDING[tf.nest.flatten(state)[0].dtype][1]
    moves = np.concatenate([np.zeros([1, dim]), *(step * np.eye(dim) for step in _STEPS)])
    ends = rows[:, np.newaxis] + moves
    slopes = prior_slopes(problem, state, ends.reshape(-1, dim)).reshape(ends.shape)
    with np.errstate(all="ignore"):
        change = np.abs(slopes[:, 1:] - slopes[:, :1]) > least * np.abs(slopes[:, :1])
    change = change.any(axis=0).reshape(len(_STEPS), dim, dim).any(axis=0)
    return change & ~np.eye(dim, dtype=bool)


def rows_around(flat: np.ndarray, count: int) -> np.ndarray:
    """Returns states around one, `[count, D]`, of which a smaller count gives the first ones.

    In every other one all entries are moved alike, down first and then up, so that the widths of
    many effects are about the same. Elsewhere the narrowest effects hide all others in the prior's
    slopes along what they depend on together.
    """
    offsets = np.random.default_rng(0).uniform(-_RADIUS, _RADIUS, [count, len(flat)])
    moves = 0.75 * _RADIUS * (-1.0) ** np.arange(1, 1 + count // 2)
    offsets[1::2] = offsets[1::2] / 4 + moves[:, np.newaxis]
    return flat + offsets


def _candidates(
    depends: np.ndarray, names: list[str], only: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns entries that may be effects, and how many each of them stands for.

    Entries of a part that depend on each other, as those of a Gaussian process, are no effects, and
    the first of them shows whether they look like effects one by one.
    """
    entries = np.intersect1d(np.flatnonzero(depends.any(axis=1)), only)
    of = np.array(names)[entries]
    within = depends[np.ix_(entries, entries)] & (of[:, np.newaxis] == of)
    crowded = (within | within.T).any(axis=1)
    first = [np.flatnonzero(crowded & (of == name))[:1] for name in np.unique(of[crowded])]
    picked = np.sort(np.concatenate([np.flatnonzero(~crowded), *first]).astype(int))
    sizes = [np.sum(crowded & (of == of[i])) if crowded[i] else 1 for i in picked]
    return entries[picked], np.array(sizes, dtype=int)


class _Motions:
    """How every other entry moves and widens the candidates' priors at some states.

    Attributes:
      velocity: derivatives of the effect's place at fixed z, `[rows, candidates, D]`.
      widening: derivatives of its log width.
      moved: whether a candidate's location or width depends on an entry, `[candidates, D]`.
      widened: whether its width does.
      usable: whether a row tells of a candidate, `[rows, candidates]`.
    """

    def __init__(
        self,
        problem: MinibatchLogProb,
        like: State,
        rows: np.ndarray,
        candidates: np.ndarray,
        offsets: np.ndarray,
        rounding: tuple[float, float],
    ):
        self._candidates, dim = candidates, rows.shape[-1]
        moves = offsets[:, np.newaxis] * np.eye(dim)[candidates][:, np.newaxis]
        points = rows[:, np.newaxis, np.newaxis] + moves
        slopes = prior_slopes(problem, like, points.reshape(-1, dim)).reshape(points.shape)
        with np.errstate(all="ignore"):
            of_own = slopes[:, np.arange(len(candidates)), :, candidates].swapaxes(0, 1)
            columns = np.stack([np.ones_like(of_own), of_own, offsets * of_own], axis=-1)
            sizes = np.abs(columns[..., 1:]).sum(axis=-1)
            finite = np.isfinite(slopes).all(axis=-1) & np.isfinite(sizes)
            sizes = np.where(finite, sizes, np.nan)
            usual = np.nanquantile(np.where(finite, sizes, np.inf), 0.25, axis=-1, keepdims=True)
            weights = np.where(finite, 1 / (usual + sizes), 0.0)[..., np.newaxis]
            weights = np.nan_to_num(weights, posinf=0.0)
            x = weights * np.where(finite[..., np.newaxis], columns, 0.0)
            y = weights * np.where(finite[..., np.newaxis], slopes, 0.0)
            norms = np.maximum(np.linalg.norm(x, axis=-2, keepdims=True), 1e-300)
            left, values, right = np.linalg.svd(x / norms, full_matrices=False)
            self.usable = (values[..., -1] > np.sqrt(rounding[0]) / 10) & (
                finite.sum(axis=-1) >= _LEAST_POINTS
            )
            parts = np.swapaxes(left, -1, -2) @ y / np.maximum(values, 1e-300)[..., np.newaxis]
            found = np.swapaxes(right, -1, -2) @ parts
            residuals = np.abs(y - (x / norms) @ found).max(axis=-2)
        found = found / np.swapaxes(norms, -1, -2)
        largest = np.abs(x).max(axis=-2)[..., np.newaxis]
        usable, own = self.usable[..., np.newaxis], np.eye(dim, dtype=bool)[candidates]
        size = np.maximum(np.abs(y).max(axis=-2), 1e-300)
        is_explained = (residuals <= rounding[0] * size) | own | ~usable
        shares = np.abs(found[:, :, 1:]) * largest[:, :, 1:] / size[:, :, np.newaxis]
        is_above = (shares > rounding[1]) & ~own[:, np.newaxis] & usable[:, :, np.newaxis]
        self.velocity, self.widening = -found[:, :, 1], -found[:, :, 2]
        self.moved, self.widened = is_above.any(axis=(0, 2)), is_above[:, :, 1].any(axis=0)
        resolution = np.finfo(tf.nest.flatten(like)[0].dtype.as_numpy_dtype).eps
        self._is_clear = shares.max(axis=2) > _CLEAR * resolution
        enough = self.usable.sum(axis=0) >= _FEWEST_ROWS
        self._is_effect = is_explained.all(axis=(0, 2)) & self.widened.any(axis=-1) & enough

    def apart(self, names: list[str], stand_for: np.ndarray) -> list[int]:
        """Returns effects, those of the largest parts first, none of which moves another one."""
        self._share_scales(names)
        effects, found, sizes = np.flatnonzero(self._is_effect), list[int](), dict[str, int]()
        for i in effects:
            sizes[names[i]] = sizes.get(names[i], 0) + int(stand_for[i])
        for name in sorted(sizes, key=lambda name: -sizes[name]):
            more = [*found, *(int(i) for i in effects if names[i] == name)]
            between = self.moved[np.ix_(more, self._candidates[more])]
            is_apart = not (between & ~np.eye(len(more), dtype=bool)).any()
            if is_apart and (stand_for[more] == 1).all():
                found = more
            elif not found:  # correlated effects: what is given them is no effect
                return []
        return found

    def _share_scales(self, names: list[str]) -> None:
        """Lets entries that widen most effects of a part widen all, and leaves out rough states.

        Of many effects, only a few at a state are so narrow that the slope along their common scale
        is clearly theirs.
        """
        for name in set(names):
            part = np.array([x == name for x in names]) & self._is_effect
            if part.any():
                is_common = self.widened[part].mean(axis=0) > 0.5
                self.widened[part] |= is_common
                self.moved[part] |= is_common
        is_clear = self.usable & (self._is_clear | ~self.moved).all(axis=-1)
        self.usable = np.where(is_clear.sum(axis=0) >= _FEWEST_ROWS, is_clear, self.usable)


class _Features:
    """Functions of single entries that locations and logarithms of widths are made of."""

    def __init__(
        self, problem: MinibatchLogProb, like: State, rows: np.ndarray, others: np.ndarray
    ):
        self._others, dim = others, rows.shape[-1]
        dtype = tf.nest.flatten(like)[0].dtype
        with tf.GradientTape() as tape:
            at = tf.constant(rows, dtype)
            tape.watch(at)
            c = parameters_of(problem, like, at)
        slopes = tape.gradient(c, at)
        slopes = np.zeros(rows.shape) if slopes is None else slopes.numpy().astype(np.float64)
        c, eye = c.numpy().astype(np.float64), np.eye(dim, dtype=bool)
        mixed = np.where(eye, rows[1], rows[0])
        there = parameters_of(problem, like, tf.constant(mixed, dtype)).numpy()
        alone = (np.isclose(there, np.where(eye, c[1], c[0]), rtol=1e-6) | ~eye).all(axis=0)
        alone &= np.isclose(there, c[0], rtol=1e-6)[~eye].reshape(dim, dim - 1).all(axis=1)
        bent = alone & (np.ptp(slopes, axis=0) > 1e-4 * np.abs(slopes).max(axis=0))
        with np.errstate(all="ignore"):
            logs = np.where(c > 0, slopes / c, 0.0)
        bent_log = bent & (c > 0).all(axis=0)
        bent_log &= np.ptp(logs, axis=0) > 1e-4 * np.abs(logs).max(axis=0)
        self._values = np.stack([rows, np.where(bent, c, 0.0)], axis=1)
        self._slopes = np.stack([np.ones_like(rows), np.where(bent, slopes, 0.0)], axis=1)
        self._log_slopes = np.stack([np.ones_like(rows), np.where(bent_log, logs, 0.0)], axis=1)

    def law(
        self, motions: _Motions, effect: int, rows: np.ndarray, rounding: float
    ) -> tuple[float, np.ndarray, np.ndarray] | None:
        """Returns offset, location and log width `[2, D]` of an effect, or None if none fits."""
        used, dim = motions.usable[:, effect], rows.shape[-1]
        of = [int(r) for r in self._others if motions.moved[effect, r]]
        log_width = np.zeros([2, dim])
        widening = np.where(motions.widened[effect], motions.widening[used, effect], 0.0)
        for r in np.flatnonzero(motions.widened[effect]):
            x = self._log_slopes[used][:, :, r]
            found = _least_squares(x, widening[:, r])
            if not _fits(x, found, widening[:, r], rounding):
                return None
            log_width[:, r] = _without_rounding(x, found, rounding)
        # velocity - widening * (place - m) is the derivative of m, which is linear in what m has.
        # A part of m that is in proportion to w only moves z, so scales are not looked for in m.
        place = rows[used, motions._candidates[effect]]
        terms = [r for r in of if not motions.widened[effect, r]]
        equations, wanted = [], []
        for r in of:
            derivative = np.zeros([used.sum(), 2, dim])
            derivative[:, :, r] = self._slopes[used][:, :, r]
            derivative -= widening[:, r, np.newaxis, np.newaxis] * self._values[used]
            equations.append(
                np.c_[-widening[:, r], derivative[:, 0, terms], derivative[:, 1, terms]]
            )
            wanted.append(motions.velocity[used, effect, r] - widening[:, r] * place)
        x, y = np.concatenate(equations), np.concatenate(wanted)
        found = _least_squares(x, y)
        sizes = np.abs(widening[:, of] * place[:, np.newaxis]).max()
        if not _fits(x, found, y, rounding, sizes):
            return None
        found = _without_rounding(x, found, rounding)
        location = np.zeros([2, dim])
        location[:, terms] = found[1:].reshape(2, len(terms))
        return found[0], location, log_width


def _fits(
    x: np.ndarray, found: np.ndarray, y: np.ndarray, rounding: float, size: float = 0.0
) -> bool:
    """Returns whether y, made of terms of some `size`, is x times what was found."""
    sizes = np.abs(x) @ np.abs(found) + np.abs(y)
    return bool((np.abs(x @ found - y) <= 10 * rounding * (size + sizes.max())).all())


def _without_rounding(x: np.ndarray, found: np.ndarray, rounding: float) -> np.ndarray:
    """Returns coefficients as halves where they are, and 0 for terms that only rounding leaves."""
    sizes = np.abs(x).max(axis=0) * np.abs(found)
    halves = np.round(2 * found) / 2
    found = np.where(np.abs(found - halves) < rounding * np.abs(halves), halves, found)
    return np.where(sizes > 10 * rounding * sizes.max(), found, 0.0)


def _least_squares(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns coefficients, of which those of columns that say nothing new are zero."""
    scale = np.linalg.norm(x, axis=0)
    scale[scale == 0] = 1.0
    return np.linalg.lstsq(x / scale, y, rcond=1e-8)[0] / scale
