"""Sentences about bias: where draws are too wide, too narrow or off, and by how much."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.diagnostics.gradient_tests import (
    Deviations,
    GradientTestResults,
    run_gradient_tests,
)
from tfp_sgmcmc.diagnostics.stein import gradients_at
from tfp_sgmcmc.targets.base import as_target
from tfp_sgmcmc.targets.data import evenly_spread

# Smaller deviations are not mentioned, and larger ones are problems.
NOTED_WIDTH, WRONG_WIDTH = 1.04, 1.15  # ratios
NOTED_SHIFT, WRONG_SHIFT = 0.1, 0.25  # standard deviations

_WIDE = "the step is too large, the gradients are too noisy, or burn-in was too short"
_NARROW = "the chain has not spread yet, or it sampled another target than the one given here"


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

    problems: list[str]
    notes: list[str]
    temperature: tuple[float, float]
    is_hot: bool = False
    tested: EntryTests | None = None


class Entries(NamedTuple):
    """The names and indices of the entries that are tested.

    Attributes:
      names: variable of each entry.
      indices: index of each entry within its variable.
      sizes: number of tested entries of each variable, by name.
    """

    names: list[str]
    indices: list[tuple[int, ...]]
    sizes: dict[str, int]

    def label(self, i: int) -> str:
        index = ", ".join(str(k) for k in self.indices[i])
        return f"{self.names[i]}[{index}]" if index else self.names[i]


def draws_and_gradients(
    states: Any, target_log_prob_fn: Any, num_gradients: int, seed: Any
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns draws and gradients of each part, `[draws, chains, event...]`, at some results."""
    target = as_target(target_log_prob_fn, full_data_expected=True)
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
    entries: Entries,
    temperature: float,
    time: float,
    dependence: float = 1.0,
) -> Bias:
    """Tests draws and gradients `[draws, chains, D]`; see `gradient_tests`."""
    broken = ~np.isfinite(g).all(axis=-1)
    if broken.any():
        return Bias(
            [
                f"The gradient of the log posterior is NaN or infinite at {broken.sum()} of the "
                f"{broken.size} draws where it was taken."
            ],
            [],
            (math.nan, math.nan),
        )
    outcome = run_gradient_tests(x, g / temperature, time, dependence)
    value, error = (temperature * t for t in outcome.temperature)
    problems, notes = list[str](), list[str]()
    is_wide, is_narrow = _whole(outcome, value, error, temperature, problems, notes)
    flagged = _entries(outcome.entries, entries, problems, notes, is_wide or is_narrow)
    flagged |= {int(_width_level(outcome.mean)[0])}
    _chains(outcome, problems)
    _directions(outcome, entries, problems, notes, flagged)
    if outcome.far is not None:
        result, chain, entry = outcome.far
        share = result / max(1, len(x) - 1)
        where = (
            "at the start: drop more burn-in"
            if share < 0.1
            else f"{100 * share:.0f} % into the run"
        )
        problems.append(
            f"{entries.label(entry)} of chain {chain} lies so far out that the target has almost "
            f"no mass there, {where}."
        )
    d = outcome.entries
    hot = bool(np.any((d.log_width_surely > 0) & d.is_width_wrong)) or is_wide
    if problems and hot:
        problems.append(f"Where draws are too wide, {_WIDE}.")
    if problems and (is_narrow or np.any((d.log_width_surely < 0) & d.is_width_wrong)):
        problems.append(f"Where draws are too narrow, {_NARROW}.")
    tested = EntryTests(
        tuple(entries.label(i) for i in range(len(entries.names))),
        d.log_width,
        d.shift,
        d.is_width_wrong,
        d.is_shift_wrong,
    )
    return Bias(problems, [] if problems else notes, (value, error), hot, tested)


def _whole(
    outcome: GradientTestResults,
    value: float,
    error: float,
    temperature: float,
    problems: list[str],
    notes: list[str],
) -> tuple[bool, bool]:
    """Reports the average width; returns whether draws are too wide, and whether too narrow."""
    level = _width_level(outcome.mean)[0]
    if not level:
        return False, False
    width = float(outcome.mean.log_width[0])
    size, found = _by(width), f"temperature {value:.3g} +- {error:.2g}, not {temperature:g}"
    if level == 2:
        problems.append(f"The draws are {size} on average ({found}).")
    else:
        notes.append(
            f"The draws are biased, but near: {size} on average ({found}). A smaller step or less "
            "gradient noise makes the bias smaller."
        )
    return width > 0, width < 0


def _entries(
    found: Deviations,
    entries: Entries,
    problems: list[str],
    notes: list[str],
    is_general: bool,
) -> set[int]:
    """Reports the worst entry of each variable; returns the levels that were reported."""
    widths, shifts = _width_level(found), _shift_level(found)
    names = np.array(entries.names)
    reported = set()
    # The largest of many small deviations looks larger than it is.
    of_width = np.where(widths == 1, found.log_width_surely, found.log_width)
    of_shift = np.where(shifts == 1, found.shift_surely, found.shift)
    for levels, sizes, describe, least in (
        (widths, np.abs(of_width), lambda i: _by(of_width[i]), is_general),
        (shifts, np.abs(of_shift), lambda i: _off_by(of_shift[i]), False),
    ):
        lines = []
        for name, size in entries.sizes.items():
            here = np.flatnonzero((names == name) & (levels > 0))
            if not len(here):
                continue
            level = int(levels[here].max())
            here = here[levels[here] == level]
            if level == 1 and least:  # the average is reported
                continue
            worst = here[np.argmax(sizes[here])]
            lines.append(
                (
                    level,
                    float(sizes[worst]),
                    f"{name}: {len(here)} of {size} entries are off. The worst is "
                    f"{entries.label(worst)}, {describe(worst)}.",
                )
            )
        for level, into in ((2, problems), (1, notes)):
            of_level = sorted((x for x in lines if x[0] == level), key=lambda x: -x[1])
            into += [text for _, _, text in of_level[:3]]
            if len(of_level) > 3:
                into.append(f"The same holds for {len(of_level) - 3} more variables.")
            if of_level:
                reported.add(level)
    return reported


def _chains(outcome: GradientTestResults, problems: list[str]) -> None:
    """Reports the chains that are too wide or too narrow, unless all are."""
    levels = _width_level(outcome.by_chain)
    bad = np.flatnonzero(levels == 2)
    if 0 < len(bad) < len(levels):
        worst = bad[np.argmax(np.abs(outcome.by_chain.log_width[bad]))]
        chains = ", ".join(str(c) for c in bad[:5])
        problems.append(
            f"{len(bad)} of {len(levels)} chains are unlike the target ({chains}). The worst is "
            f"{worst}, {_by(outcome.by_chain.log_width[worst])} on average."
        )


def _directions(
    outcome: GradientTestResults,
    entries: Entries,
    problems: list[str],
    notes: list[str],
    reported: set[int],
) -> None:
    """Reports the worst combination of entries, unless single entries are as bad."""
    found = outcome.of_directions
    for levels, sizes, describe in (
        (_width_level(found), np.abs(found.log_width), lambda i: _by(found.log_width[i])),
        (_shift_level(found), np.abs(found.shift), lambda i: _off_by(found.shift[i])),
    ):
        level = int(levels.max(initial=0))
        if not level or any(x >= level for x in reported):
            continue
        worst = int(np.argmax(np.where(levels == level, sizes, -1)))
        weights = np.abs(outcome.directions[worst].weights)
        leading = [i for i in np.argsort(-weights)[:3] if weights[i] > 0.3 * weights.max()]
        labels = ", ".join(entries.label(int(i)) for i in leading)
        line = f"A combination of entries, mostly {labels}, is off: {describe(worst)}."
        (problems if level == 2 else notes).append(line)
        reported.add(level)


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
