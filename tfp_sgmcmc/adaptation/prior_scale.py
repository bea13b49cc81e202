"""How wide a prior is along each entry, where its derivatives at one point do not say it."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.adaptation.reasons import NotQuadratic
from tfp_sgmcmc.internal.nest import State, flatten_events, unflatten_events
from tfp_sgmcmc.targets import MinibatchLogProb
from tfp_sgmcmc.targets.base import value_and_gradient
from tfp_sgmcmc.targets.laplace.quadratic import Hessians

NOT_CURVED = "the curvature of the log posterior at its mode is not positive"
_ROUNDS = 8


def prior_widths(problem: MinibatchLogProb, center: State, deviations: np.ndarray) -> np.ndarray:
    """Returns the prior's width along each entry, at most 100 posterior `deviations`, `[D]`."""
    flat, most = flatten_events(center, 0).numpy(), 100 * deviations
    widths = most / 10
    for _ in range(_ROUNDS):
        widths = np.minimum(
            np.maximum(_prior_curvature(problem, center, flat, widths), 1e-300) ** -0.5, most
        )
    return widths


def _prior_curvature(
    problem: MinibatchLogProb, like: State, flat: np.ndarray, widths: np.ndarray
) -> np.ndarray:
    """Returns the mean curvature of the prior over `widths` along each entry, `[D]`."""
    away = np.diag(widths)
    up, down = (prior_slopes(problem, like, flat + sign * away) for sign in (1, -1))
    return np.nan_to_num(np.diag(down - up) / (2 * widths))


def curved_over_widths(problem: MinibatchLogProb, center: State, found: Hessians) -> np.ndarray:
    """Returns a precision with the prior's curvature over the posterior's widths, by iteration."""
    flat = flatten_events(center, 0).numpy()
    widths, prior = np.ones(len(flat)), found.likelihood - found.posterior
    precision = -found.posterior
    for _ in range(_ROUNDS):
        curvature = _prior_curvature(problem, center, flat, widths)
        precision = prior + np.diag(np.maximum(curvature, 0) - np.diag(prior)) - found.likelihood
        if not np.linalg.eigvalsh(precision)[0] > 0:
            raise NotQuadratic(NOT_CURVED)
        widths = np.sqrt(np.diag(np.linalg.inv(precision)))
    return precision


def prior_slopes(problem: MinibatchLogProb, like: State, theta: np.ndarray) -> np.ndarray:
    """Returns gradients of the log prior at rows `[K, D]`."""
    dtype = tf.nest.flatten(like)[0].dtype
    states = unflatten_events(tf.constant(theta, dtype), like, 0)
    slopes = value_and_gradient(problem.log_prior, states, connected=False)[1]
    return flatten_events(slopes, 1).numpy().astype(np.float64)
