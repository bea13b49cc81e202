"""Recognises centred hierarchies by their prior, and says how to write them non-centred."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.adaptation.prior_scale import prior_slopes
from tfp_sgmcmc.internal.nest import State, part_names
from tfp_sgmcmc.targets import MinibatchLogProb

_NUM_ROWS = 24
_MOST_ENTRIES = 200
_STEP = 0.05  # of finite differences, in standard deviations
_LEAST_CORRELATION = 0.97  # of ranks
_LEAST_SPREAD = 0.5  # of the log curvature


class CenteredHierarchy(NamedTuple):
    """Parts of a state: effects whose prior is as wide as a scale says, around a location."""

    effects: str
    scale: str
    location: str | None

    @property
    def remedy(self) -> str:
        """How to write it non-centred, in three lines."""
        e, s, m = self.effects, self.scale, self.location or "mu"
        line = f"{e} = {m}[..., None] + {s}[..., None] * {e}_raw"
        return (
            f"The hierarchy is centred: the width of the prior of {e} depends on {s}. Write it "
            f"non-centred, with the part {e}_raw in place of {e}:\n"
            f"  in log_prior_fn: tfd.Normal(0., 1.).log_prob({e}_raw), in place of the prior of "
            f"{e}\n"
            f"  in log_likelihood_fn: {line}\n"
            f"  of the draws: {line}"
        )


def find_centered_hierarchy(
    problem: MinibatchLogProb, like: State, draws: np.ndarray
) -> CenteredHierarchy | None:
    """Returns the parts of a centred hierarchy, or None.

    Given its scale, a centred effect has a normal prior, whose curvature is one over the scale's
    square. So the curvatures of the log prior along the effects have the ranks of one other entry.

    Args:
      problem: the target.
      like: a state, for the structure.
      draws: flat draws, `[draws, D]`.
    """
    dim = draws.shape[-1]
    if dim > _MOST_ENTRIES or dim < 2:
        return None
    rows, steps = draws[np.linspace(0, len(draws) - 1, _NUM_ROWS).astype(int)], draws.std(axis=0)
    falls = _falls(problem, like, rows, _STEP * steps)
    logs = _log_curvature(falls)
    varies = np.isfinite(logs).all(axis=0) & (np.nan_to_num(logs).std(axis=0) > _LEAST_SPREAD)
    related = np.abs(np.corrcoef(_ranks(logs).T, _ranks(rows).T)[:dim, dim:])
    np.fill_diagonal(related, 0.0)
    names = _entry_names(like)
    entries = [j for j in np.flatnonzero(varies) if related[j].max() > _LEAST_CORRELATION]
    if not entries:
        return None
    pairs = [(names[j], names[int(np.argmax(related[j]))]) for j in entries]
    effects, scale = max(pairs, key=pairs.count)
    entry = entries[pairs.index((effects, scale))]
    # Other entries of the draws are related to both, too. At one scale the curvature is the same.
    at_one = rows.copy()
    of_scale = int(np.argmax(related[entry]))
    at_one[:, of_scale] = np.median(rows[:, of_scale])
    again = _log_curvature(_falls(problem, like, at_one, _STEP * steps))[:, entry]
    if not again.std() < 0.1 * logs[:, entry].std():
        return None
    # The location moves the effects: their slopes change along it as along themselves, reversed.
    along = np.median(falls[:, :, entry] / falls[:, [entry], entry], axis=0)
    others = [
        names[k]
        for k in np.flatnonzero(np.abs(along + 1) < 0.05)
        if names[k] not in (effects, scale)
    ]
    return CenteredHierarchy(effects, scale, others[0] if others else None)


def _falls(
    problem: MinibatchLogProb, like: State, rows: np.ndarray, steps: np.ndarray
) -> np.ndarray:
    """Returns minus the derivatives along entry i of the prior's slopes j, `[rows, i, j]`."""
    ends = rows[:, np.newaxis, np.newaxis] + np.stack([np.diag(steps), -np.diag(steps)])
    slopes = prior_slopes(problem, like, ends.reshape(-1, len(steps))).reshape(ends.shape)
    return (slopes[:, 1] - slopes[:, 0]) / (2 * steps)[:, np.newaxis]


def _log_curvature(falls: np.ndarray) -> np.ndarray:
    """Returns logarithms of the curvature along each entry, NaN where it is negative."""
    with np.errstate(all="ignore"):
        return np.log(np.diagonal(falls, axis1=-2, axis2=-1))


def _ranks(x: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(x, axis=0), axis=0).astype(np.float64)


def _entry_names(like: State) -> list[str]:
    """Returns the name of the part of each entry of a flat state."""
    names = [name.removeprefix("state").strip("[']") or "theta" for name in part_names(like)]
    sizes = [x.shape.num_elements() for x in tf.nest.flatten(like)]
    return [name for name, size in zip(names, sizes, strict=True) for _ in range(size)]
