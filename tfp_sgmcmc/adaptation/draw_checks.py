"""The checks of the draws of an automatic run."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.adaptation.draw_statistics import Convergence, Fit, convergence, fit
from tfp_sgmcmc.adaptation.excess_variance import Excess, excess_of, guarded_share
from tfp_sgmcmc.adaptation.prepared import Prepared
from tfp_sgmcmc.adaptation.selection import MOST_WORST
from tfp_sgmcmc.internal.nest import flatten_events
from tfp_sgmcmc.sampling.result import SampleResult

_MOST_TESTED = 500  # results at which gradients are taken
_LEAST_RESULTS = 50
# What is not told apart from sound draws: relative variance, and standard deviations.
_NOTED_EXCESS, _NOTED_SHIFT = 0.04, 0.05


class Verdict(NamedTuple):
    """What the checks of the draws found.

    Attributes:
      flags: what is wrong, in plain words.
      line: how good the draws are.
      lacking: the goal over the effective sample size.
      along: figures of the run for `Choices`.
    """

    flags: list[str]
    line: str
    lacking: float
    along: dict[str, Any]


def judge(result: SampleResult, prepared: Prepared, seed: tf.Tensor, goal: float) -> Verdict:
    """Returns what is wrong with the draws, whose effective sample size should reach `goal`."""
    if result.num_results < _LEAST_RESULTS:
        flag = f"Fewer than {_LEAST_RESULTS} draws of a chain cannot be checked. Ask for more."
        line = f"{result.num_results} draws of each chain were taken."
        return Verdict([flag], line, 0.0, {})
    found, fits, z = _figures(result, prepared, seed)
    line = (
        f"The draws of all chains are worth {found.ess:.0f} independent ones for the worst "
        f"parameter, R-hat is {found.rhat:.3f}, and their gradients say that the variance is "
        f"{fits.temperature:.3f} +- {fits.error:.3f} of the posterior's."
    )
    flags, along = _flags(found, fits, goal), {}
    if prepared.noise is not None:
        c = prepared.choices
        share, covariance = guarded_share(z), prepared.noise.at(z, blocks=4)
        excess = excess_of(covariance, c.arguments["step_size"], c.batch_size or 1)
        along = {"guarded_share": share, "run_excess": excess}
        line += (
            f" The noise at these draws makes variances {100 * excess.mean:.2g} % too large on "
            "average before the temperature is lowered, and the control variates were held back at "
            f"{100 * share:.2g} % of them."
        )
        flags += _flags_of_noise(excess, Excess(*(c.measured_excess or excess)))
    return Verdict(flags, line, goal / found.ess, along)


def _flags_of_noise(excess: Excess, of_pilot: Excess) -> list[str]:
    """Returns a flag if the noise is larger than that which the temperature makes up for."""
    if excess.mean - of_pilot.mean < _NOTED_EXCESS and excess.worst < 2 * MOST_WORST:
        return []
    return [
        f"The noise of minibatches grew along the run: it makes variances {100 * excess.mean:.2g} "
        f"% too large on average and {100 * excess.worst:.2g} % in the worst direction, at the "
        f"pilot's draws {100 * of_pilot.mean:.2g} % and {100 * of_pilot.worst:.2g} %."
    ]


def _figures(
    result: SampleResult, prepared: Prepared, seed: tf.Tensor
) -> tuple[Convergence, Fit, np.ndarray]:
    """Returns figures of all draws and of the gradients at some, which are the third, as z."""
    states = tf.nest.map_structure(np.asarray, result.states)
    flat = flatten_events(tf.nest.map_structure(tf.convert_to_tensor, states), 2).numpy()
    most = min(len(flat), _MOST_TESTED if prepared.is_noisy else max(50, len(flat) // 10))
    picked = np.unique(np.linspace(0, len(flat) - 1, most).astype(int))
    z = coordinates(tf.nest.map_structure(lambda x: x[picked], states), prepared.bijector)
    return convergence(flat), fit(z, prepared.gradients(z, seed)), z


def coordinates(states: Any, bijector: Any) -> np.ndarray:
    """Returns z of draws."""
    return bijector.inverse(tf.nest.map_structure(tf.convert_to_tensor, states)).numpy()


def _flags(found: Convergence, fits: Fit, goal: float) -> list[str]:
    """Returns what is wrong with the draws, in plain words."""
    flags = []
    if not found.rhat <= found.limit:
        flags.append(
            f"The chains disagree: R-hat is {found.rhat:.3f}. Do not trust these draws. The "
            "posterior may have several modes or a funnel; ReplicaExchangeSGLD moves between modes."
        )
    if not found.ess >= goal:
        flags.append(
            f"The draws are worth {found.ess:.0f} independent ones for the worst parameter, fewer "
            f"than {goal:.0f}. Ask for more results."
        )
    if not abs(fits.excess) <= _NOTED_EXCESS + 3 * fits.error:
        way = "wide" if fits.excess > 0 else "narrow"
        flags.append(
            f"The draws are too {way}: by their gradients, the variance is {fits.temperature:.3f} "
            f"+- {fits.error:.3f} of the posterior's on average."
        )
    if not fits.shift**2 <= _NOTED_SHIFT**2 + 4 * fits.shift_error**2:
        flags.append(
            f"The means are off by about {fits.shift:.2f} standard deviations, by their gradients."
        )
    return flags
