"""Sentences about bias: where draws are too wide, too narrow or off, and by how much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.diagnostics.gradient_tests import (
    Deviations,
    GradientTestResults,
    run_gradient_tests,
)
from tfp_sgmcmc.diagnostics.stein import gradients_at
from tfp_sgmcmc.targets.base import Target
from tfp_sgmcmc.targets.data import evenly_spread

# Smaller deviations are not mentioned, and larger ones are problems.
NOTED_WIDTH, WRONG_WIDTH = 1.04, 1.15  # ratios
NOTED_SHIFT, WRONG_SHIFT = 0.1, 0.25  # standard deviations

_WIDE = "the step is too large, the gradients are too noisy, or burn-in was too short"
_NARROW = "the chain has not spread yet, or it sampled another target than the one given here"


Finding = tuple[int, str]  # 2 for a problem and 1 for a note, and a sentence


class EntryTests(NamedTuple):
    """Results of tests of entries by their gradients.

    Attributes:
      names: names of the entries, such as "w[3]".
      log_width: logarithm of the draws' width over the target's.
      shift: mean of the draws less the target's, in standard deviations.
      is_width_wrong: whether the test of the width rejects.
      is_shift_wrong: whether the test of the mean rejects.
    """

    names: tuple[str, ...]
    log_width: np.ndarray
    shift: np.ndarray
    is_width_wrong: np.ndarray
    is_shift_wrong: np.ndarray


class Bias(NamedTuple):
    """The bias that the gradients show in the draws.

    Attributes:
      problems: deviations that spoil the draws.
      notes: deviations that are certain but small.
      temperature: the configurational temperature and its standard error.
      is_hot: whether the draws are too wide, in a problem or a note.
      tested: the entries that were tested; None if gradients are not finite.
    """

    problems: Sequence[str] = ()
    notes: Sequence[str] = ()
    temperature: tuple[float, float] = (math.nan, math.nan)
    is_hot: bool = False
    tested: EntryTests | None = None


def draws_and_gradients(
    states: Any, target: Target, num_gradients: int, seed: Any
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns draws and gradients of each part, `[draws, chains, event...]`, at some results."""
    num_draws = len(tf.nest.flatten(states)[0])
    picked = evenly_spread(num_draws, num_gradients)
    states = tf.nest.map_structure(lambda x: tf.convert_to_tensor(np.asarray(x)[picked]), states)
    chain_ndims = len(target.chain_shape(tf.nest.map_structure(lambda x: x[0], states)))
    gradients = gradients_at(target, states, seed)

    def as_arrays(nest: Any) -> list[np.ndarray]:
        parts = (np.asarray(x, np.float64) for x in tf.nest.flatten(nest))
        return [x.reshape(len(x), -1, *x.shape[1 + chain_ndims :]) for x in parts]

    return as_arrays(states), as_arrays(gradients)


def find_bias(
    x: np.ndarray,
    g: np.ndarray,
    variables: Sequence[str],
    labels: Sequence[str],
    temperature: float,
    time: float,
    dependence: float = 1.0,
) -> Bias:
    """Tests draws and gradients `[draws, chains, D]`; see `gradient_tests`.

    `variables` are the names of the variables of the D entries, and `labels` names of the entries,
    such as "w[3]".
    """
    broken = ~np.isfinite(g).all(axis=-1)
    if broken.any():
        line = (
            f"The gradient of the log posterior is NaN or infinite at {broken.sum()} of the "
            f"{broken.size} draws where it was taken."
        )
        return Bias([line])
    outcome = run_gradient_tests(x, g / temperature, time, dependence)
    value, error = (temperature * t for t in outcome.temperature)
    found = _whole(outcome.mean, f"{value:.3g} +- {error:.2g}, not {temperature:g}")
    width = float(outcome.mean.log_width[0])
    is_wide, is_narrow = bool(found) and width > 0, bool(found) and width < 0
    found += _entries(outcome.entries, np.array(variables), labels, is_general=bool(found))
    directions = _directions(outcome, labels, {level for level, _ in found})
    found += _chains(outcome.by_chain) + directions
    if outcome.far is not None:
        result, chain, entry = outcome.far
        share = result / max(1, len(x) - 1)
        where = (
            "at the start: drop more burn-in"
            if share < 0.1
            else f"{100 * share:.0f} % into the run"
        )
        line = (
            f"{labels[entry]} of chain {chain} lies so far out that the target has almost "
            f"no mass there, {where}."
        )
        found.append((2, line))
    problems, notes = ([text for of, text in found if of == level] for level in (2, 1))
    d = outcome.entries
    hot = bool(np.any((d.log_width_surely > 0) & d.is_width_wrong)) or is_wide
    if problems and hot:
        problems.append(f"Where draws are too wide, {_WIDE}.")
    if problems and (is_narrow or np.any((d.log_width_surely < 0) & d.is_width_wrong)):
        problems.append(f"Where draws are too narrow, {_NARROW}.")
    tested = EntryTests(tuple(labels), d.log_width, d.shift, d.is_width_wrong, d.is_shift_wrong)
    return Bias(problems, [] if problems else notes, (value, error), hot, tested)


def _whole(mean: Deviations, temperature: str) -> list[Finding]:
    """Returns what the average width says against the draws."""
    level, size = int(_width_level(mean)[0]), _by(float(mean.log_width[0]))
    if level == 2:
        return [(2, f"The draws are {size} on average (temperature {temperature}).")]
    line = (
        f"The draws are biased, but near: {size} on average (temperature {temperature}). A smaller "
        "step or less gradient noise makes the bias smaller."
    )
    return [(1, line)] if level else []


def _entries(
    found: Deviations, variables: np.ndarray, labels: Sequence[str], is_general: bool
) -> list[Finding]:
    """Returns the worst entry of each variable, the three worst variables at most."""
    widths, shifts = _width_level(found), _shift_level(found)
    reported = list[Finding]()
    # The largest of many small deviations looks larger than it is.
    of_width = np.where(widths == 1, found.log_width_surely, found.log_width)
    of_shift = np.where(shifts == 1, found.shift_surely, found.shift)
    for levels, deviations, describe, least in (
        (widths, of_width, _by, 2 if is_general else 1),  # a small average is reported
        (shifts, of_shift, _off_by, 1),
    ):
        lines = []
        for name in dict.fromkeys(variables):
            is_of = variables == name
            level = int(levels[is_of].max())
            if level < least:
                continue
            here = np.flatnonzero(is_of & (levels == level))
            worst = here[np.argmax(np.abs(deviations[here]))]
            line = (
                f"{name}: {len(here)} of {is_of.sum()} entries are off. The worst is "
                f"{labels[worst]}, {describe(deviations[worst])}."
            )
            lines.append((level, float(np.abs(deviations[worst])), line))
        for level in (2, 1):
            of_level = sorted((x for x in lines if x[0] == level), key=lambda x: -x[1])
            reported += [(level, text) for _, _, text in of_level[:3]]
            if len(of_level) > 3:
                line = f"The same holds for {len(of_level) - 3} more variables."
                reported.append((level, line))
    return reported


def _chains(by_chain: Deviations) -> list[Finding]:
    """Returns the chains that are too wide or too narrow, unless all are."""
    levels = _width_level(by_chain)
    bad = np.flatnonzero(levels == 2)
    if not 0 < len(bad) < len(levels):
        return []
    worst = bad[np.argmax(np.abs(by_chain.log_width[bad]))]
    chains = ", ".join(str(c) for c in bad[:5])
    line = (
        f"{len(bad)} of {len(levels)} chains are unlike the target ({chains}). The worst is "
        f"{worst}, {_by(by_chain.log_width[worst])} on average."
    )
    return [(2, line)]


def _directions(
    outcome: GradientTestResults, labels: Sequence[str], reported: set[int]
) -> list[Finding]:
    """Returns the worst combinations of entries, unless what is `reported` is as bad."""
    of, found = outcome.of_directions, list[Finding]()
    for levels, deviations, describe in (
        (_width_level(of), of.log_width, _by),
        (_shift_level(of), of.shift, _off_by),
    ):
        level = int(levels.max(initial=0))
        if not level or max(reported, default=0) >= level:
            continue
        worst = int(np.argmax(np.where(levels == level, np.abs(deviations), -1)))
        weights = np.abs(outcome.directions[worst].weights)
        leading = [i for i in np.argsort(-weights)[:3] if weights[i] > 0.3 * weights.max()]
        mostly = ", ".join(labels[i] for i in leading)
        line = f"A combination of entries, mostly {mostly}, is off: {describe(deviations[worst])}."
        found.append((level, line))
        reported = {*reported, level}
    return found


def _width_level(found: Deviations) -> np.ndarray:
    """Returns 0 (right, or too near to mention), 1 (a note) or 2 (a problem) for each."""
    size = np.abs(found.log_width_surely)
    wrong = found.is_width_wrong
    return wrong * (1 * (size > math.log(NOTED_WIDTH)) + (size > math.log(WRONG_WIDTH)))


def _shift_level(found: Deviations) -> np.ndarray:
    size = np.abs(found.shift_surely)
    return found.is_shift_wrong * (1 * (size > NOTED_SHIFT) + (size > WRONG_SHIFT))


def _by(log_width: float) -> str:
    """Returns "about 9 % too wide", or "2.5 times too wide" for large ratios."""
    ratio, word = math.exp(abs(log_width)), "wide" if log_width > 0 else "narrow"
    if log_width < -10:
        return "hardly spread at all"
    if ratio > 1.5:
        return f"{ratio:.3g} times too {word}"
    percent = abs(math.expm1(log_width))
    return f"about {100 * percent:.0f} % too {word}"


def _off_by(shift: float) -> str:
    return f"its mean is off by about {abs(shift):.2g} standard deviations"
