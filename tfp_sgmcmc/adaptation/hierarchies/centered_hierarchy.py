"""Recognises centred hierarchies by their prior, and says how to write them non-centred."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.adaptation.hierarchies.location_scale import dependence
from tfp_sgmcmc.adaptation.hierarchies.noncentering import Law, laws_around
from tfp_sgmcmc.adaptation.hierarchies.normal_blocks import NormalBlocks
from tfp_sgmcmc.adaptation.hierarchies.prior_scale import effect_slopes
from tfp_sgmcmc.internal.nest import State, entry_names, flatten_events
from tfp_sgmcmc.targets import MinibatchLogProb
from tfp_sgmcmc.targets.base import kept_program

_NUM_ROWS = 24
_MOST_ENTRIES = 500
_RADIUS = 2.0  # of uniform states around one
_STEP = 0.05  # of finite differences, in standard deviations
_LEAST_CORRELATION = 0.97  # of ranks
_LEAST_SPREAD = 0.5  # of the log curvature
_APART, _LINEAR = 0.01, 0.05  # relative curvatures between effects, and differences along one


class CenteredHierarchy(NamedTuple):
    """Effects whose prior is as wide as a scale says, around a location.

    Attributes:
      effects: the name of the part with most effects; of several levels one for each.
      scale: the name of the part that they depend on, or of several.
      location: the name of the part that moves them; None if there is none.
      entries: the places of all effects in a flat state, if their priors given the rest are normal,
        or a location plus a width times a fixed distribution.
      is_joint: whether some effects are correlated given the rest.
      has_prior: whether the priors of the effects are known. Of a plain log posterior, it is their
        distribution given the rest that depends on the scale.
    """

    effects: str
    scale: str
    location: str | None
    entries: tuple[int, ...] = ()
    is_joint: bool = False
    has_prior: bool = True

    @property
    def note(self) -> str:
        """The note of a run that samples the effects as variables with a fixed prior."""
        of, width = ("covariance", "its factor") if self.is_joint else ("width", "width")
        were = "were" if " and " in self.effects else "was"
        on = "other entries of it" if self.scale == self.effects else self.scale
        if self.has_prior:
            cause, law = f"The hierarchy is centred: the {of} of the prior of", "prior"
        else:
            cause, law = f"Given the rest, the {of} of", "distribution"
        return (
            f"{cause} {self.effects} depends on {on}. So {self.effects} {were} sampled as location "
            f"plus {width} times z, where the {law} of z is fixed. The draws are those of the "
            "model as it is written."
        )

    @property
    def remedy(self) -> str:
        """How to write it non-centred, in three lines."""
        parts = self.effects, self.scale, self.location or "mu"
        e, s, m = (name.replace(".", "_") for name in parts)
        line = f"{e} = {m}[..., None] + {s}[..., None] * {e}_raw"
        if not self.has_prior:
            return (
                f"Given the rest, the width of the distribution of {e} depends on {s}. If its "
                f"prior does, too, write it non-centred, with {line} in the log posterior, and "
                f"{e}_raw, which has the prior N(0, 1), in place of {e}."
            )
        return (
            f"The hierarchy is centred: the width of the prior of {e} depends on {s}. Write it "
            f"non-centred, with the part {e}_raw in place of {e}:\n"
            f"  in log_prior_fn: tfd.Normal(0., 1.).log_prob({e}_raw), in place of the prior of "
            f"{e}\n"
            f"  in log_likelihood_fn: {line}\n"
            f"  of the draws: {line}"
        )


def find_centered_hierarchy(
    problem: MinibatchLogProb, like: State, draws: np.ndarray, names: list[str] | None = None
) -> CenteredHierarchy | None:
    """Returns the parts of a centred hierarchy, or None.

    Given its scale, a centred effect has a normal prior, whose curvature is one over the scale's
    square. So the curvatures of the log prior along the effects have the ranks of one other entry.
    Normal observations add a constant, so the log posterior of a plain callable serves as well.

    Args:
      problem: the target.
      like: a state, for the structure.
      draws: flat draws, `[draws, D]`.
      names: the name of the part of each entry; None takes those of `like`.
    """
    dim = draws.shape[-1]
    if dim > _MOST_ENTRIES or dim < 2:
        return None
    rows, steps = draws[np.linspace(0, len(draws) - 1, _NUM_ROWS).astype(int)], draws.std(axis=0)
    falls = _falls(problem, like, rows, _STEP * steps)
    logs = _log_curvature(falls)
    varies = np.isfinite(logs).all(axis=0)
    logs = np.where(varies, logs, 0.0)
    varies &= logs.std(axis=0) > _LEAST_SPREAD
    if not varies.any():
        return None
    related = np.abs(np.corrcoef(_ranks(logs).T, _ranks(rows).T)[:dim, dim:])
    np.fill_diagonal(related, 0.0)
    names = entry_names(like) if names is None else names
    scales = np.argmax(related, axis=1)
    entries = [j for j in np.flatnonzero(varies) if related[j].max() > _LEAST_CORRELATION]
    # Other entries of the draws are related to both, too. At one scale the curvature is the same.
    spreads = {}
    for of_scale in {int(scales[j]) for j in entries}:
        at_one = rows.copy()
        at_one[:, of_scale] = np.median(rows[:, of_scale])
        again = _log_curvature(_falls(problem, like, at_one, _STEP * steps))
        spreads[of_scale] = again.std(axis=0)
    entries = [j for j in entries if spreads[int(scales[j])][j] < 0.1 * logs[:, j].std()]
    if not entries:
        return None
    pairs = [(names[j], names[scales[j]]) for j in entries]
    effects, scale = max(pairs, key=pairs.count)
    entry = entries[pairs.index((effects, scale))]
    # The location moves the effects: their slopes change along it as along themselves, reversed.
    along = np.median(falls[:, :, entry] / falls[:, [entry], entry], axis=0)
    others = [
        names[k]
        for k in np.flatnonzero(np.abs(along + 1) < 0.05)
        if names[k] not in (effects, scale)
    ]
    apart = _apart(falls, entries, [pair[0] for pair in pairs])
    if not _are_normal(problem, like, rows, falls, apart):
        apart = ()
    location = others[0] if others else None
    return CenteredHierarchy(effects, scale, location, apart, has_prior=problem.has_prior)


def hierarchy_around(problem: MinibatchLogProb, state: State) -> CenteredHierarchy | None:
    """Returns a centred hierarchy whose effects can be non-centred, or None.

    Effects have a location and a width that multiplies a fixed distribution, or are normal, by the
    prior around a state. It needs no place in the posterior, so it is found before any search, once
    for each target.
    """
    return kept_program(problem, "hierarchy", state, lambda: _hierarchy_around(problem, state))


def _hierarchy_around(problem: MinibatchLogProb, state: State) -> CenteredHierarchy | None:
    flat, names = flatten_events(state, 0).numpy().astype(np.float64), entry_names(state)
    if not 2 <= len(flat) <= _MOST_ENTRIES:
        return None
    try:
        if problem.has_prior and not dependence(problem, state).any():
            return None
        if laws := laws_around(problem, state):
            effects = _joined(names[j] for law in laws for j in law.entries)
            scale, location = (
                _joined(name for law in laws for name in _moved_by(law, part, names))
                for part in ("scale", "location")
            )
            entries = tuple(sorted(j for law in laws for j in law.entries))
            is_joint = any(isinstance(law, NormalBlocks) for law in laws)
            found = effects, scale, location or None, entries, is_joint
            return CenteredHierarchy(*found, problem.has_prior)
        rows = flat + np.random.default_rng(0).uniform(-_RADIUS, _RADIUS, [_NUM_ROWS, len(flat)])
        found = find_centered_hierarchy(problem, state, rows)
    except tf.errors.OpError:  # as of a factorisation that fails: these slopes are not known
        return None
    return found if found is not None and found.entries else None


def _joined(names: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(names))


def _moved_by(law: Law, part: str, names: list[str]) -> tuple[str, ...]:
    """Returns the names of the parts that a law's scale or location depends on most."""
    if isinstance(law, NormalBlocks):
        return law.scales if part == "scale" else law.locations
    weights = law.log_width if part == "scale" else law.location  # [2, effects, D]
    num_effects = (np.abs(weights).sum(axis=0) > 1e-3).sum(axis=0)
    return (names[np.argmax(num_effects)],) if weights.any() else ()


def _apart(falls: np.ndarray, entries: list[int], names: list[str]) -> tuple[int, ...]:
    """Returns the entries of parts, the largest first, given which no entry moves another one."""
    found = list[int]()
    for name in sorted(dict.fromkeys(names), key=names.count, reverse=True):
        more = [*found, *(j for j, of in zip(entries, names, strict=True) if of == name)]
        block = np.abs(falls[:, more][:, :, more])
        diagonal = np.diagonal(block, axis1=-2, axis2=-1)
        sizes = np.sqrt(diagonal[:, :, np.newaxis] * diagonal[:, np.newaxis])
        if (block - sizes * np.eye(len(more)) <= _APART * sizes).all():
            found = more
        elif not found:  # correlated effects: what is given them is no effect
            return ()
    return tuple(int(j) for j in sorted(found))


def _are_normal(
    problem: MinibatchLogProb,
    like: State,
    rows: np.ndarray,
    falls: np.ndarray,
    entries: tuple[int, ...],
) -> bool:
    """Returns whether the prior's slope along each effect is linear, given the other entries."""
    at, zero_and_one = [*entries], []
    for value in (0.0, 1.0):
        moved = rows.copy()
        moved[:, at] = value
        zero_and_one.append(effect_slopes(problem, like, moved)[:, at])
    precision = zero_and_one[0] - zero_and_one[1]
    local = np.diagonal(falls, axis1=-2, axis2=-1)[:, at]
    return bool(np.all(np.abs(precision - local) <= _LINEAR * local))


def _falls(
    problem: MinibatchLogProb, like: State, rows: np.ndarray, steps: np.ndarray
) -> np.ndarray:
    """Returns minus the derivatives along entry i of the prior's slopes j, `[rows, i, j]`."""
    ends = rows[:, np.newaxis, np.newaxis] + np.stack([np.diag(steps), -np.diag(steps)])
    slopes = effect_slopes(problem, like, ends.reshape(-1, len(steps))).reshape(ends.shape)
    return (slopes[:, 1] - slopes[:, 0]) / (2 * steps)[:, np.newaxis]


def _log_curvature(falls: np.ndarray) -> np.ndarray:
    """Returns logarithms of the curvature along each entry, NaN where it is negative."""
    with np.errstate(all="ignore"):
        return np.log(np.diagonal(falls, axis1=-2, axis2=-1))


def _ranks(x: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(x, axis=0), axis=0).astype(np.float64)
