"""Coordinates in which the posterior is about N(0, I): by the Hessian, or by a pilot's draws."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.state import State, flatten_events, unflatten_events
from tfp_sgmcmc.targets import MinibatchLogProb, find_center, whiten
from tfp_sgmcmc.targets.base import value_and_gradient
from tfp_sgmcmc.targets.laplace import laplace_bijector
from tfp_sgmcmc.targets.low_rank import LowRank
from tfp_sgmcmc.targets.quadratic import (
    MOST_DIMENSIONS,
    Matrices,
    Quadratic,
    hessian_products,
    matrices,
    quadratic_of,
)
from tfp_sgmcmc.targets.whitened import whiten_by

_ROUNDS = 8


class Coordinates(NamedTuple):
    """A whitened target and the way back.

    Attributes:
      target: the target of z.
      bijector: from z to the user's parameters.
      center: the unconstrained state at z = 0.
      factor: L in theta = center + L z, or None beyond 4096 entries.
      precision: the inverse of L L^T.
      kind: "hessian", or "widths" and "pilot" where a prior has kinks.
      num_passes: passes over the data that finding the center took.
    """

    target: MinibatchLogProb
    bijector: Any
    center: State
    factor: np.ndarray | None
    precision: np.ndarray | None
    kind: str
    num_passes: int


def at_mode(problem: MinibatchLogProb, state: State) -> Coordinates:
    """Returns coordinates that are whitened by the Hessian at a mode.

    Where it is not negative definite, because the prior has kinks, the prior's curvature is that
    over the posterior's width.

    Raises:
      ValueError: there is no mode, or the curvature there is of no use.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the pilot finds out whether the center is of use
        center, report = find_center(problem, state)
        passes = report.num_passes
        if report.converged:  # at kinks a search for the last digits never ends
            center, report = find_center(problem, center, tolerance=0.01, max_iterations=20)
            passes += report.num_passes
    if flatten_events(center, 0).shape[0] > MOST_DIMENSIONS:
        return Coordinates(*whiten(problem, center), center, None, None, "low rank", passes)
    try:
        found = matrices(hessian_products(problem, center), flatten_events(center, 0).numpy())
    except (LookupError, NotImplementedError) as error:
        raise ValueError(f"the log posterior has no second derivatives ({error})") from error
    if not np.isfinite(found.posterior).all():
        raise ValueError("the Hessian at the mode is not finite")
    least = np.linalg.eigvalsh(-found.posterior)[0]
    kind, precision = "hessian", -found.posterior
    if not least > 1e-6 * np.abs(np.diag(found.posterior)).max():
        kind, precision = "widths", _curved_over_widths(problem, center, found)
    if kind == "hessian":
        factor = np.linalg.cholesky(np.linalg.inv(precision))
        whitened = whiten_by(problem, center, quadratic_of(found, _dtype(center)))
        return Coordinates(*whitened, center, factor, precision, kind, passes)
    return _by_precision(problem, center, found.likelihood, precision, kind, passes)


def at_draws(problem: MinibatchLogProb, before: Coordinates, z: np.ndarray) -> Coordinates:
    r"""Returns coordinates centered at the mean of a pilot's draws, `[results, chains, D]`.

    The likelihood's Hessian is that at the mean. The prior's curvature is, entry by entry,
    \( -E[(\theta_j - \bar\theta_j) \partial_j \log p(\theta)] / \operatorname{var} \theta_j \),
    which is the curvature of a normal prior exactly, and 1 / E|theta_j| for a Laplace prior of
    scale 1 at zero.
    """
    assert before.factor is not None
    like = before.center
    theta = flatten_events(like, 0).numpy() + z.reshape(-1, z.shape[-1]) @ before.factor.T
    center = unflatten_events(tf.constant(theta.mean(axis=0), _dtype(like)), like, 0)
    slopes = _prior_slopes(problem, like, theta)
    offsets = theta - theta.mean(axis=0)
    curvature = -(offsets * slopes).mean(axis=0) / np.maximum(offsets.var(axis=0), 1e-300)
    found = matrices(hessian_products(problem, center), flatten_events(center, 0).numpy())
    prior = found.likelihood - found.posterior
    precision = prior + np.diag(np.maximum(curvature, 0) - np.diag(prior)) - found.likelihood
    return _by_precision(problem, center, found.likelihood, precision, "pilot", before.num_passes)


def _by_precision(
    problem: MinibatchLogProb,
    center: State,
    likelihood: np.ndarray,
    precision: np.ndarray,
    kind: str,
    num_passes: int,
) -> Coordinates:
    """Returns coordinates in which `precision`, `[D, D]`, is I.

    `likelihood` is the Hessian of the likelihood at the center.

    Raises:
      ValueError: the precision is not positive definite.
    """
    if not np.linalg.eigvalsh(precision)[0] > 0:
        raise ValueError("the curvature of the log posterior at its mode is not positive")
    quadratic = Quadratic(*(tf.constant(h, _dtype(center)) for h in (likelihood, -precision)))
    target, bijector = whiten_by(problem, center, quadratic)
    factor = np.linalg.cholesky(np.linalg.inv(precision))
    return Coordinates(target, bijector, center, factor, precision, kind, num_passes)


def scaled(
    problem: MinibatchLogProb, center: State, variance: np.ndarray
) -> tuple[MinibatchLogProb, Any]:
    """Returns the target of z, theta = center + sqrt(variance) z, and the way back."""
    dtype = _dtype(center)
    diagonal = tf.constant(1 / variance, dtype)
    quadratic = LowRank(diagonal, tf.zeros([len(variance), 0], dtype), tf.zeros([0], dtype))
    bijector = laplace_bijector(problem.bijector, center, quadratic)
    return problem.with_bijector(bijector), bijector


def prior_widths(problem: MinibatchLogProb, found: Coordinates) -> np.ndarray:
    """Returns the prior's width along each entry, at most 100 of the posterior's, `[D]`."""
    assert found.factor is not None
    flat = flatten_events(found.center, 0).numpy()
    most = 100 * np.sqrt((found.factor**2).sum(axis=-1))
    widths = most / 10
    for _ in range(_ROUNDS):
        widths = np.minimum(
            np.maximum(_prior_curvature(problem, found.center, flat, widths), 1e-300) ** -0.5, most
        )
    return widths


def _prior_curvature(
    problem: MinibatchLogProb, like: State, flat: np.ndarray, widths: np.ndarray
) -> np.ndarray:
    """Returns the mean curvature of the prior over `widths` along each entry, `[D]`."""
    away = np.diag(widths)
    up, down = (_prior_slopes(problem, like, flat + sign * away) for sign in (1, -1))
    return np.nan_to_num(np.diag(down - up) / (2 * widths))


def _curved_over_widths(problem: MinibatchLogProb, center: State, found: Matrices) -> np.ndarray:
    """Returns a precision with the prior's curvature over the posterior's widths, by iteration."""
    flat = flatten_events(center, 0).numpy()
    widths, prior = np.ones(len(flat)), found.likelihood - found.posterior
    precision = -found.posterior
    for _ in range(_ROUNDS):
        curvature = _prior_curvature(problem, center, flat, widths)
        precision = prior + np.diag(np.maximum(curvature, 0) - np.diag(prior)) - found.likelihood
        if not np.linalg.eigvalsh(precision)[0] > 0:
            raise ValueError("the curvature of the log posterior at its mode is not positive")
        widths = np.sqrt(np.diag(np.linalg.inv(precision)))
    return precision


def _dtype(state: State) -> tf.DType:
    return tf.nest.flatten(state)[0].dtype


def _prior_slopes(problem: MinibatchLogProb, like: State, theta: np.ndarray) -> np.ndarray:
    """Returns gradients of the log prior at rows `[K, D]`."""
    dtype = _dtype(like)
    states = unflatten_events(tf.constant(theta, dtype), like, 0)
    slopes = value_and_gradient(problem.log_prior, states, connected=False)[1]
    return flatten_events(slopes, 1).numpy().astype(np.float64)
