"""Checks of the draws of an automatic run."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.adaptation.excess_variance import (
    MOST_WORST,
    ExcessVariance,
    excess_of,
    guarded_share,
    noise_covariance,
)
from tfp_sgmcmc.adaptation.pilot import Convergence, GradientFit, convergence, gradient_fit
from tfp_sgmcmc.adaptation.settings import PreparedKernel
from tfp_sgmcmc.internal.nest import flatten_events
from tfp_sgmcmc.sampling.result import SampleResult

_MOST_TESTED = 500  # results at which gradients are taken
_LEAST_RESULTS = 50
# Errors that sound draws may show: of the relative variance, and in standard deviations.
_NOTED_EXCESS, _NOTED_SHIFT = 0.04, 0.05


class DrawCheck(NamedTuple):
    """The results of the checks of draws.

    Attributes:
      flags: what is wrong, in plain words.
      line: how good the draws are.
      lacking: the goal divided by the effective sample size.
      measured: figures of the run for `Choices`.
    """

    flags: list[str]
    line: str
    lacking: float
    measured: dict[str, Any]


def check_draws(
    result: SampleResult, prepared: PreparedKernel, seed: tf.Tensor, goal: float
) -> DrawCheck:
    """Checks convergence, gradients and noise; the effective sample size should reach `goal`."""
    if result.num_results < _LEAST_RESULTS:
        flag = f"Fewer than {_LEAST_RESULTS} draws of a chain cannot be checked. Ask for more."
        line = f"{result.num_results} draws of each chain were taken."
        return DrawCheck([flag], line, 0.0, {})
    states = tf.nest.map_structure(np.asarray, result.states)
    flat = flatten_events(tf.nest.map_structure(tf.convert_to_tensor, states), 2).numpy()
    most = min(len(flat), _MOST_TESTED if prepared.is_noisy else max(50, len(flat) // 10))
    picked = np.unique(np.linspace(0, len(flat) - 1, most).astype(int))
    z = whitened(tf.nest.map_structure(lambda x: x[picked], states), prepared.bijector)
    found, fit = convergence(flat), gradient_fit(z, prepared.gradients(z, seed))
    line = (
        f"The draws of all chains are worth {found.ess:.0f} independent ones for the worst "
        f"parameter, R-hat is {found.rhat:.3f}, and their variance is {fit.temperature:.3f} +- "
        f"{fit.error:.3f} of the posterior's by their gradients."
    )
    flags, measured = _flags(found, fit, goal), {}
    if prepared.noise is not None:
        c = prepared.choices
        share, covariance = guarded_share(z), noise_covariance(prepared.noise, z, blocks=4)
        excess = excess_of(covariance, c.arguments["step_size"], c.batch_size or 1)
        measured = {"guarded_share": share, "run_excess": excess}
        line += (
            f" The noise at these draws makes variances {100 * excess.mean:.2g} % too large on "
            "average before the temperature corrects them, and the guard of the control variates "
            f"was at work at {100 * share:.2g} % of them."
        )
        flags += _flags_of_noise(excess, ExcessVariance(*(c.measured_excess or excess)))
    return DrawCheck(flags, line, goal / found.ess, measured)


def whitened(states: Any, bijector: Any) -> np.ndarray:
    """Returns z of draws."""
    return bijector.inverse(tf.nest.map_structure(tf.convert_to_tensor, states)).numpy()


def _flags_of_noise(excess: ExcessVariance, of_pilot: ExcessVariance) -> list[str]:
    """Returns a flag if the noise is larger than the temperature corrects."""
    if excess.mean - of_pilot.mean < _NOTED_EXCESS and excess.worst < 2 * MOST_WORST:
        return []
    return [
        f"The noise of minibatches grew along the run: it makes variances {100 * excess.mean:.2g} "
        f"% too large on average and {100 * excess.worst:.2g} % in the worst direction, at the "
        f"pilot's draws {100 * of_pilot.mean:.2g} % and {100 * of_pilot.worst:.2g} %."
    ]


def _flags(found: Convergence, fit: GradientFit, goal: float) -> list[str]:
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
    if not abs(fit.excess) <= _NOTED_EXCESS + 3 * fit.error:
        way = "wide" if fit.excess > 0 else "narrow"
        flags.append(
            f"The draws are too {way}: by their gradients, their variance is {fit.temperature:.3f} "
            f"+- {fit.error:.3f} of the posterior's on average."
        )
    if not fit.shift**2 <= _NOTED_SHIFT**2 + 4 * fit.shift_error**2:
        flags.append(
            f"The means are off by about {fit.shift:.2f} standard deviations, by their gradients."
        )
    return flags
