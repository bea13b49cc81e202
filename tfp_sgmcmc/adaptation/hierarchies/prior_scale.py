"""The prior's width along each entry, and whether the posterior has a finite integral."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.nest import (
    State,
    call_with_state,
    flatten_events,
    part_names,
    unflatten_events,
)
from tfp_sgmcmc.internal.xla import by_blocks, traced
from tfp_sgmcmc.targets import MinibatchLogProb
from tfp_sgmcmc.targets.base import kept_program, value_and_gradient
from tfp_sgmcmc.targets.laplace.quadratic import Hessians, inverse, least_eigenvalue

NOT_CURVED = "the curvature of the log posterior at its mode is not positive"
_ROUNDS = 8
_BLOCK = 100  # states at which a log posterior is evaluated at once
_NEAR, _FAR = 1e4, 1e6  # deviations from the center at which densities are compared


class NotNearGaussian(Exception):
    """Raised where the quadratic at the mode does not help to sample a posterior.

    Args:
      reason: why, as a clause.
      has_shape: whether the posterior's shape is the reason, as for a funnel or several modes.
      remedy: what to do about it; None if that is not known.
      place: a `Place` that draws may miss, if that is the reason.

    Attributes:
      center: the unconstrained state where the search for a mode ended, if there was one.
    """

    def __init__(
        self, reason: str, has_shape: bool = True, remedy: str | None = None, place: Any = None
    ):
        super().__init__(reason)
        self.has_shape, self.remedy, self.place = has_shape, remedy, place
        self.center: State | None = None


class ImproperError(ValueError):
    """Raised if the posterior has no finite integral, so that it cannot be sampled."""


def prior_widths(problem: MinibatchLogProb, center: State, deviations: np.ndarray) -> np.ndarray:
    """Returns the prior's width along each entry, at most 100 posterior `deviations`, `[D]`."""
    flat, most = flatten_events(center, 0).numpy(), 100 * deviations
    widths = most / 10
    for _ in range(_ROUNDS):
        curvature = np.maximum(_prior_curvature(problem, center, flat, widths), 1e-300)
        widths = np.minimum(curvature**-0.5, most)
    return widths


def _prior_curvature(
    problem: MinibatchLogProb, like: State, flat: np.ndarray, widths: np.ndarray
) -> np.ndarray:
    """Returns the mean curvature of the prior over `widths` along each entry, `[D]`."""
    away = np.diag(widths)
    up, down = (prior_slopes(problem, like, flat + sign * away) for sign in (1, -1))
    return np.nan_to_num(np.diag(down - up) / (2 * widths))


def curved_over_widths(problem: MinibatchLogProb, center: State, found: Hessians) -> np.ndarray:
    """Returns a precision with the prior's curvature over the posterior's widths, by iteration.

    Raises:
      NotNearGaussian: the precision is not positive definite.
    """
    flat, precision = flatten_events(center, 0).numpy(), -found.posterior
    widths = np.ones(len(flat))
    for _ in range(_ROUNDS):
        precision = with_prior_curvature(found, _prior_curvature(problem, center, flat, widths))
        widths = np.sqrt(np.diag(inverse(precision)))
    return precision


def with_prior_curvature(found: Hessians, curvature: np.ndarray) -> np.ndarray:
    """Returns the posterior's precision with the prior's curvature of each entry, `[D]`, replaced.

    Raises:
      NotNearGaussian: the precision is not positive definite.
    """
    prior = found.likelihood - found.posterior
    precision = prior + np.diag(np.maximum(curvature, 0) - np.diag(prior)) - found.likelihood
    if not least_eigenvalue(precision) > len(precision) * np.finfo(precision.dtype).eps:
        raise NotNearGaussian(NOT_CURVED)
    return precision


def prior_slopes(problem: MinibatchLogProb, like: State, theta: np.ndarray) -> np.ndarray:
    """Returns gradients of the log prior at rows `[K, D]`."""
    return _slopes(problem, problem.model_log_prior, "slopes of the prior", like, theta)


def effect_slopes(problem: MinibatchLogProb, like: State, theta: np.ndarray) -> np.ndarray:
    """Returns gradients of `density_of_effects` at rows `[K, D]`."""
    if problem.has_prior:
        return prior_slopes(problem, like, theta)
    return _slopes(problem, density_of_effects(problem), "slopes of effects", like, theta)


def density_of_effects(problem: MinibatchLogProb) -> Callable[[State], tf.Tensor]:
    """Returns the log prior, or the log posterior of a plain callable, whose prior is not known."""
    if problem.has_prior:
        return problem.model_log_prior
    return lambda state: call_with_state(problem, state)


def _slopes(
    problem: MinibatchLogProb,
    density_fn: Callable[[State], tf.Tensor],
    name: str,
    like: State,
    theta: np.ndarray,
) -> np.ndarray:
    """Returns gradients at rows, in blocks of one shape so that one trace serves all."""

    def of_rows(rows: tf.Tensor) -> tf.Tensor:
        at = unflatten_events(rows, like, 0)
        return flatten_events(value_and_gradient(density_fn, at, connected=False)[1], 1)

    evaluate = kept_program(problem, name, like, lambda: traced(of_rows))
    dtype = tf.nest.flatten(like)[0].dtype
    (found,) = by_blocks(lambda block: [evaluate(block)], theta, _BLOCK, dtype)
    return found.astype(np.float64)


def check_proper(
    problem: Any, center: State, direction: np.ndarray, start: State | None = None
) -> None:
    """Raises ImproperError if the density hardly falls along a line through `center`.

    A density that falls more slowly than 1 / t along a line has no finite integral. So the log
    posterior must fall by log(100) between 10^4 and 10^6 times `direction`, `[D]`, to both sides.
    The direction should be about one standard deviation long, given the other directions. Where the
    model raises, as a Cholesky factorisation far from the center may, the density counts as zero.

    Deep in the neck of a funnel, 10^6 standard deviations are little of what the posterior spans.
    So nothing is judged by a line shorter than the way from the `start` of a search to `center`.
    """
    flat = flatten_events(center, 0).numpy()
    if start is not None:
        longest = np.argmax(np.abs(direction))
        way = np.abs(flat - flatten_events(start, 0).numpy())[longest]
        if _FAR * np.abs(direction[longest]) < way:
            return
    ends = np.outer([_NEAR, _FAR, -_NEAR, -_FAR], direction)
    values = _log_probs(problem, flat + ends, center)
    with np.errstate(invalid="ignore"):
        falls = values[::2] - values[1::2]
    is_proper = (falls > np.log(_FAR / _NEAR)) | ~np.isfinite(values[1::2])
    if is_proper.all():
        return
    parts = tf.nest.flatten(unflatten_events(direction, center, 0))
    name = part_names(center)[int(np.argmax([np.abs(x).max() for x in parts]))]
    least = np.min(falls[~is_proper])
    change = f"falls by only {least:.3g}"
    cure = "Neither prior nor data inform it. Give a proper prior, or remove redundant parameters."
    if least < -1.0:
        change, cure = f"rises by {-least:.3g}", "Look for a wrong sign in prior and likelihood."
    raise ImproperError(
        f"The posterior must have a finite integral. Received: a log posterior that {change} "
        f"between {_NEAR:.0e} and {_FAR:.0e} standard deviations along a line that changes {name} "
        f"most. {cure}"
    )


def _log_probs(problem: Any, rows: np.ndarray, like: State) -> np.ndarray:
    """Returns log posteriors at `rows`, `[K, D]`, with -inf where the model raises."""
    try:
        return call_with_state(problem, unflatten_events(rows, like, 0)).numpy().astype(np.float64)
    except Exception as error:
        if not any(isinstance(x, tf.errors.OpError) for x in (error, error.__cause__)):
            raise
    if len(rows) == 1:
        return np.array([-np.inf])
    return np.concatenate([_log_probs(problem, row[np.newaxis], like) for row in rows])
