"""Checks of a run's step size and last results."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.covariance.base import covariance_states
from tfp_sgmcmc.targets.validation.step_size_check import Stability, epochs_of, judge_step

_NEAR_LIMIT = 0.8  # of the largest stable step: beyond it, the step explains wrong draws
_GROWTH = 1.5


def step_faults(
    kernel: Any, states: Any, results: Any, is_hot: bool, is_off: bool
) -> tuple[list[str], list[str]]:
    """Compares the step with the largest stable one at the first, middle and last draws.

    Args:
      kernel: the kernel of the run.
      states: its draws, `[draws, chains..., event...]`.
      results: its last results.
      is_hot: whether the draws are too wide.
      is_off: whether they are wrong in any way that gradients show.

    Returns:
      Problems and notes.
    """
    num_draws = len(tf.nest.flatten(states)[0])
    found: list[Stability] = []
    for i in (0, num_draws // 2, num_draws - 1):
        state = tf.nest.map_structure(lambda x, i=i: tf.convert_to_tensor(np.asarray(x[i])), states)
        target = getattr(kernel, "target_log_prob_fn", None)
        judged = judge_step(kernel, target, state, results)
        if judged is None:
            return [], []
        found.append(judged)
    curvatures, step = [x.largest_curvature for x in found], found[-1].step_size
    limits = [float(np.min(x.largest_stable_step)) for x in found]
    share = step / min(limits)
    problems, notes = [], []
    stated = (
        f"step_size is {step:.3g}, and the largest stable one at the draws is {min(limits):.3g}."
    )
    if share > 1 or (is_off and share > _NEAR_LIMIT):
        thrown = " A chain that an unstable step throws off the mode stays where it is just stable."
        problems.append(f"The step is too large: {stated}{'' if share > 1 else thrown}")
    elif is_hot and share > _NEAR_LIMIT / 4:
        notes.append(f"A smaller step makes the draws less wide: {stated}")
    if curvatures[-1] > _GROWTH * curvatures[0] and step > 0.5 * limits[-1]:
        (problems if share > 1 else notes).append(
            f"The curvature grew along the run, from {curvatures[0]:.3g} at the first draws to "
            f"{curvatures[-1]:.3g} at the last, so that steps must become smaller."
        )
    return problems, notes


def results_faults(results: Any, trace: Any, target: Any) -> list[str]:
    """Returns faults in a run's results: skipped minibatches, NaN log posteriors, epochs."""
    faults = []
    covariances = covariance_states(results)
    skipped = sum(int(np.sum(np.asarray(c.num_skipped))) for c in covariances)
    if skipped:
        steps = sum(int(np.asarray(c.step)) * np.size(c.num_skipped) for c in covariances)
        faults.append(
            f"{skipped} of {steps} minibatches had scores that are NaN or infinite. They were left "
            "out of the gradient noise. Find the examples or states where the log likelihood is "
            "not finite."
        )
    log_probs = [getattr(results, "target_log_prob", None), _traced(trace)]
    bad = [x for x in log_probs if x is not None and np.isnan(np.asarray(x)).any()]
    if bad:
        percent = 100 * np.isnan(np.asarray(bad[-1])).mean()
        faults.append(f"The log posterior was NaN in {percent:.0f} % of the results that hold it.")
    epochs = epochs_of(target)
    if covariances and epochs is not None:
        faults.append(
            f"The minibatches were drawn by epochs (reshuffle={epochs.reshuffle!r}). Their noise "
            "cancels over an epoch, but the kernel corrects for noise that does not. Make the "
            "target with reshuffle='step'."
        )
    return faults


def _traced(trace: Any) -> Any:
    if isinstance(trace, dict):
        return trace.get("target_log_prob")
    return getattr(trace, "target_log_prob", None)
