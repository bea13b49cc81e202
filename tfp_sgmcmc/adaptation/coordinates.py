"""Coordinates in which the posterior is about N(0, I): by the Hessian, or by a pilot's draws."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.adaptation.prior_scale import NOT_CURVED, curved_over_widths, prior_slopes
from tfp_sgmcmc.adaptation.proper import check_proper
from tfp_sgmcmc.adaptation.reasons import NotQuadratic
from tfp_sgmcmc.internal.nest import State, flatten_events, unflatten_events
from tfp_sgmcmc.targets import MinibatchLogProb, find_center, whiten
from tfp_sgmcmc.targets.laplace.laplace import laplace_bijector
from tfp_sgmcmc.targets.laplace.low_rank_hessian import LowRankHessian
from tfp_sgmcmc.targets.laplace.mode import MOST_NEWTON_DIMENSIONS
from tfp_sgmcmc.targets.laplace.quadratic import (
    MOST_DIMENSIONS,
    Hessians,
    Quadratic,
    hessian_products,
    matrices,
    quadratic_of,
)
from tfp_sgmcmc.targets.laplace.whitening import whiten_by

_NEWTON_STEPS, _NEAR = 4, 0.03  # steps to the mode end at so many deviations from it


class Coordinates(NamedTuple):
    """A whitened target and the way back.

    Attributes:
      target: the target of z.
      bijector: from z to the user's parameters.
      center: the unconstrained state at z = 0.
      factor: L in theta = center + L z, or None beyond 4096 entries.
      precision: the inverse of L L^T.
      kind: "hessian" at a mode, "low rank" beyond 4096 entries, "widths" where a prior has kinks,
        "pilot" by the data's curvature at the mean of a pilot's draws, or "covariance" by these.
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
      NotQuadratic: there is no mode, or the curvature there is of no use.
      ImproperError: the density does not fall along a line through the mode.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the pilot finds out whether the center is of use
        try:
            center, report = find_center(problem, state)
        except ValueError as error:
            raise NotQuadratic(f"no mode was found ({error})", has_shape=False) from error
    passes, dim = report.num_passes, flatten_events(center, 0).shape[0]
    if dim > MOST_DIMENSIONS:
        try:
            target, bijector = whiten(problem, center)
        except ValueError as error:
            raise NotQuadratic(str(error)) from error
        return Coordinates(target, bijector, center, None, None, "low rank", passes)
    try:
        center, found, more = _newton(problem, center)
    except (LookupError, NotImplementedError) as error:
        reason = f"the log posterior has no second derivatives ({error})"
        raise NotQuadratic(reason, has_shape=False) from error
    if not np.isfinite(found.posterior).all():
        raise NotQuadratic("the Hessian at the mode is not finite", has_shape=False)
    kind, precision = "hessian", -found.posterior
    least, passes = np.linalg.eigvalsh(precision)[0], passes + more
    if not least > 1e-6 * np.abs(np.diag(precision)).max():
        check_proper(problem, center, _flattest(precision))
        kind, precision = "widths", curved_over_widths(problem, center, found)
    if kind == "hessian":
        factor = np.linalg.cholesky(np.linalg.inv(precision))
        try:
            whitened = whiten_by(problem, center, quadratic_of(found, _dtype(center)))
        except ValueError as error:
            raise NotQuadratic(str(error), has_shape=False) from error
        return Coordinates(*whitened, center, factor, precision, kind, passes)
    return _by_precision(problem, center, found.likelihood, precision, kind, passes)


def _newton(problem: MinibatchLogProb, center: State) -> tuple[State, Hessians, int]:
    """Returns a center nearer to the mode, the Hessians there, and the passes that it took.

    The Hessian is needed anyway, and Newton's steps are exact in its own units. They end where they
    get no shorter, as at kinks.
    """
    products = hessian_products(problem, center)
    flat = flatten_events(center, 0).numpy()
    found, count = matrices(products, flat), 1
    step, length = _step(found)
    for _ in range(_NEWTON_STEPS if len(flat) <= MOST_NEWTON_DIMENSIONS else 0):
        if not _NEAR < length < np.inf:
            break
        moved = (flat + step).astype(flat.dtype)
        there, count = matrices(products, moved), count + 1
        step, shorter = _step(there)
        if not shorter < 0.5 * length:
            break
        flat, found, length = moved, there, shorter
    return unflatten_events(tf.constant(flat), center, 0), found, count * len(flat)


def _step(found: Hessians) -> tuple[np.ndarray, float]:
    """Returns Newton's step and its length in standard deviations; infinite without a mode."""
    precision = -found.posterior
    if not np.isfinite(precision).all():
        return 0 * found.gradient, np.inf
    eigenvalues, vectors = np.linalg.eigh(precision)
    if not eigenvalues[0] > 1e-12 * eigenvalues[-1]:
        return 0 * found.gradient, np.inf
    step = vectors @ ((vectors.T @ found.gradient) / eigenvalues)
    return step, float(np.sqrt(max(step @ found.gradient, 0.0)))


def _flattest(precision: np.ndarray) -> np.ndarray:
    """Returns the direction of least curvature in units of the entries' deviations, `[D]`."""
    diagonal = np.abs(np.diag(precision))
    units = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    return units * np.linalg.eigh(precision * np.outer(units, units))[1][:, 0]


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
    slopes = prior_slopes(problem, like, theta)
    offsets = theta - theta.mean(axis=0)
    curvature = -(offsets * slopes).mean(axis=0) / np.maximum(offsets.var(axis=0), 1e-300)
    found = matrices(hessian_products(problem, center), flatten_events(center, 0).numpy())
    prior = found.likelihood - found.posterior
    precision = prior + np.diag(np.maximum(curvature, 0) - np.diag(prior)) - found.likelihood
    return _by_precision(problem, center, found.likelihood, precision, "pilot", before.num_passes)


def at_covariance(problem: MinibatchLogProb, before: Coordinates, z: np.ndarray) -> Coordinates:
    r"""Returns coordinates with the mean and covariance of draws z, `[results, chains, D]`.

    The covariance S of the n draws, in the coordinates before, is drawn towards its mean variance,
    \( (n S + \operatorname{tr}(S) I) / (n + D) \), because few draws tell it only roughly. The
    target knows no curvature: it is for samplers that take all examples.
    """
    assert before.factor is not None
    like, draws = before.center, z.reshape(-1, z.shape[-1])
    num, dim = draws.shape
    covariance = np.cov(draws, rowvar=False).reshape(dim, dim)
    covariance = (num * covariance + np.trace(covariance) * np.eye(dim)) / (num + dim)
    flat = flatten_events(like, 0).numpy() + before.factor @ draws.mean(axis=0)
    center = unflatten_events(tf.constant(flat, _dtype(like)), like, 0)
    factor = before.factor @ np.linalg.cholesky(covariance)
    precision = np.linalg.inv(factor @ factor.T)
    posterior = tf.constant(-precision, _dtype(like))
    whitened = _linear(problem, center, Quadratic(tf.zeros_like(posterior), posterior))
    return Coordinates(*whitened, center, factor, precision, "covariance", before.num_passes)


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
      NotQuadratic: the precision is not positive definite.
    """
    if not np.linalg.eigvalsh(precision)[0] > 0:
        raise NotQuadratic(NOT_CURVED)
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
    quadratic = LowRankHessian(diagonal, tf.zeros([len(variance), 0], dtype), tf.zeros([0], dtype))
    return _linear(problem, center, quadratic)


def _linear(
    problem: MinibatchLogProb, center: State, quadratic: Quadratic | LowRankHessian
) -> tuple[MinibatchLogProb, Any]:
    """Returns the target of z and the way back, without the curvature at z = 0."""
    bijector = laplace_bijector(problem.bijector, center, quadratic)
    return problem.with_bijector(bijector), bijector


def _dtype(state: State) -> tf.DType:
    return tf.nest.flatten(state)[0].dtype
