"""Coordinates in which the posterior is about N(0, I), by the Hessian or by a pilot's draws."""

from __future__ import annotations

import warnings
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.adaptation.hierarchies import prior_scale
from tfp_sgmcmc.adaptation.hierarchies.centered_hierarchy import hierarchy_around
from tfp_sgmcmc.adaptation.hierarchies.noncentering import repeats_prior
from tfp_sgmcmc.internal.nest import (
    State,
    entry_names,
    flatten_events,
    num_entries,
    unflatten_events,
)
from tfp_sgmcmc.targets import MinibatchLogProb, find_center, whiten
from tfp_sgmcmc.targets.base import ExpansionError, kept_program
from tfp_sgmcmc.targets.laplace.laplace import laplace_bijector, whiten_by
from tfp_sgmcmc.targets.laplace.low_rank_hessian import LowRankHessian
from tfp_sgmcmc.targets.laplace.mode import MAX_ITERATIONS, MOST_NEWTON_DIMENSIONS
from tfp_sgmcmc.targets.laplace.newton import NEAR_ENOUGH
from tfp_sgmcmc.targets.laplace.quadratic import (
    MOST_DIMENSIONS,
    Hessians,
    Quadratic,
    hessian_products,
    least_eigenvalue,
    precision_of,
    quadratic_in,
    quadratic_of,
    root_of_inverse,
    to_unit_diagonal,
)

_RIDGE = 100.0  # nats; where more is expected, it is no ridge
_SHARES = (1.0, 0.5, 0.0)  # of the user's start, where the search for a mode begins
_FEW_STEPS = 50  # of a search for a mode, where Hessians take long
_NEWTON_STEPS, _NEAR = 4, 0.03  # steps to the mode end within so many deviations of it
# Eigenvalues of a Hessian with unit diagonal that rounding does not explain.
_LEAST = {tf.float32: 1e-6, tf.float64: 1e-11}
_ROUNDED = 100  # times that; a smaller eigenvalue, of either sign, may be rounding
_REFUSED_SPACING = 5.0  # standard deviations between two numbers of the dtype
_SCALE = "Centre and scale the inputs, and give correlated columns an orthogonal basis (QR)."
FINER_NUMBERS = "Give the target dtype='float64' and a float64 start, or centre the data."
_DOUBLE = "Give the target dtype='float64' and a float64 start. " + _SCALE


class Coordinates(NamedTuple):
    """A whitened target and the way back.

    Attributes:
      target: the target of z.
      bijector: from z to the user's parameters.
      center: the unconstrained state at z = 0.
      factor: L in theta = center + L z, or None beyond 4096 entries.
      precision: the inverse of L L^T.
      kind: "hessian" at a mode, "low rank" beyond 4096 entries, "widths" where a prior has kinks,
        "pilot" by the data's curvature at the mean of a pilot's draws or of a fitted normal
        distribution, or "covariance" by the covariance of a pilot's draws.
      num_passes: passes over the data that finding the center took.
    """

    target: MinibatchLogProb
    bijector: Any
    center: State
    factor: np.ndarray | None
    precision: np.ndarray | None
    kind: str
    num_passes: int


def whiten_at_mode(problem: MinibatchLogProb, state: State) -> Coordinates:
    """Returns coordinates that are whitened by the Hessian at a mode.

    Where the Hessian is not negative definite because the prior has kinks, the prior's mean
    curvature over the posterior's width replaces its second derivatives.

    Raises:
      NotNearGaussian: there is no mode, or the curvature at the mode cannot be used.
      ImproperError: the density does not fall along a line through the mode.
      ValueError: the posterior is much narrower than numbers of its dtype are far apart.
    """
    center, passes = _find_center(problem, state)
    try:
        return _whiten_at(problem, state, center, passes)
    except prior_scale.NotNearGaussian as reason:
        reason.center = center
        raise


def _whiten_at(problem: MinibatchLogProb, state: State, center: State, passes: int) -> Coordinates:
    dim = num_entries(center)
    if dim > MOST_DIMENSIONS:
        try:
            target, bijector = whiten(problem, center)
        except ExpansionError as error:
            raise prior_scale.NotNearGaussian(str(error)) from error
        return Coordinates(target, bijector, center, None, None, "low rank", passes)
    try:
        center, found, more = _newton(problem, center)
    except (LookupError, NotImplementedError) as error:
        if isinstance(error, KeyError | IndexError):  # of the user's functions, not of TensorFlow
            raise
        reason = f"the log posterior has no second derivatives ({error})"
        raise prior_scale.NotNearGaussian(reason, has_shape=False) from error
    if not np.isfinite(found.posterior).all():
        reason = (
            "the Hessian at the mode is not finite, as of log(x) or x ** k where x = 0, even in a "
            "branch that tf.where leaves out"
        )
        raise prior_scale.NotNearGaussian(reason, has_shape=False)
    precision, passes, dtype = -found.posterior, passes + more, _dtype(center)
    eigenvalue = least_eigenvalue(precision)
    if not eigenvalue > _LEAST[dtype] and not found.is_resolved:
        scaled, scale = to_unit_diagonal(precision)
        flattest = np.linalg.eigh(scaled)[1][:, 0] / scale
        prior_scale.check_proper(problem, center, flattest, state)
        try:
            precision = prior_scale.curved_over_widths(problem, center, found)
        except prior_scale.NotNearGaussian as error:
            with np.errstate(all="ignore"):
                offsets = np.abs(found.gradient) / np.sqrt(np.abs(np.diag(found.posterior)))
            is_rounded = abs(eigenvalue) < _ROUNDED * _LEAST[dtype] and offsets.max() < 1.0
            if dtype != tf.float32 or not is_rounded:
                raise  # a symmetry, clearly a saddle, or not near a mode
            raise _rounded(dtype, eigenvalue) from error
        return _by_precision(problem, center, found, precision, "widths", passes)
    try:
        quadratic = quadratic_of(found, dtype)
    except ExpansionError as error:
        reason = "the likelihood has no curvature at the mode, as where it is piecewise linear"
        raise prior_scale.NotNearGaussian(reason, has_shape=False) from error
    _check_spacing(problem, center, precision)
    return _by_quadratic(problem, center, quadratic, precision, "hessian", passes)


def _check_spacing(problem: MinibatchLogProb, center: State, precision: np.ndarray) -> None:
    """Raises ValueError if a parameter's numbers are far apart for a precision at the mode."""
    flat = flatten_events(center, 0).numpy()
    conditional = np.maximum(np.diag(precision), 1e-300) ** -0.5  # at most the deviation
    if widest_spacing(problem, center, flat, conditional)[0] <= _REFUSED_SPACING:
        return
    deviation = np.sqrt(np.abs(np.diag(np.linalg.inv(precision))))
    widest, cause = widest_spacing(problem, center, flat, deviation)
    if widest > _REFUSED_SPACING:
        raise ValueError(f"{cause} {FINER_NUMBERS}")


def widest_spacing(
    problem: MinibatchLogProb, like: State, at: np.ndarray, deviation: np.ndarray
) -> tuple[float, str]:
    """Returns how many deviations apart numbers of the dtype are, at most, and where, in words.

    Args:
      problem: the target.
      like: a state of one chain.
      at: a flat unconstrained state, in the dtype of the states.
      deviation: its entries' standard deviations; one that is not positive counts as wide.
    """
    with np.errstate(all="ignore"):  # some parameters overflow
        spacing = np.spacing(np.abs(at)).astype(np.float64)
        share = np.where(deviation > 0, spacing / deviation, 0)
    worst = int(np.argmax(np.where(np.isnan(share), 0, share)))
    name = entry_names(like)[worst] + " (unconstrained)" * (problem.bijector is not None)
    return float(share[worst]), (
        f"{name} is too large for {at.dtype}: near {at[worst]:.6g} its numbers are "
        f"{spacing[worst]:.2g} apart, and its standard deviation is {deviation[worst]:.2g}."
    )


def _find_center(problem: MinibatchLogProb, state: State) -> tuple[State, int]:
    """Returns the end of the search from `state`, and the passes over the data that it took.

    A start where the likelihood explodes can lead to where all gradients vanish. So a search that
    finds no mode is repeated from starts nearer to the origin, unless it was climbing a ridge when
    its steps were used up. The higher end counts. A centred hierarchy without a mode has one in
    other coordinates, so Newton's few steps suffice here.
    """
    best, passes, failure = None, 0, None
    hierarchy = hierarchy_around(problem, state)
    if hierarchy is not None and hierarchy.is_joint:
        raise prior_scale.NotNearGaussian(
            f"the covariance of {hierarchy.effects} depends on {hierarchy.scale}, which is as "
            "narrow as a funnel where that is small"
        )
    # Hessians of a prior whose slopes it repeats take long, and a mode is found in a dozen steps.
    limit = _FEW_STEPS if repeats_prior(problem.bijector) else None
    method: Literal["auto", "newton"] = "auto" if hierarchy is None else "newton"
    is_origin = not flatten_events(state, 0).numpy().any()  # no other start is nearer to it
    for share in _SHARES[:1] if is_origin else _SHARES:
        start = tf.nest.map_structure(lambda x, share=share: share * x, state)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the pilot finds out whether the center is good enough
            try:
                found = find_center(problem, start, method, max_iterations=limit)
            except ExpansionError as error:
                failure = failure or error
                continue
        passes += found[1].num_passes
        if best is None or found[1].log_prob > best[1].log_prob:
            best = found
        if best[1].converged:
            return best[0], passes
        if hierarchy is not None:
            raise prior_scale.NotNearGaussian(
                f"the search for a mode found none, as where the width of {hierarchy.effects} "
                f"depends on {hierarchy.scale}"
            )
        used_up = found[1].num_newton_steps >= (limit or MAX_ITERATIONS["newton"])
        if used_up and NEAR_ENOUGH < found[1].expected_gain < _RIDGE:
            break
    if best is not None and (part := best[1].unbounded) is not None:
        raise prior_scale.NotNearGaussian(
            f"the log posterior rises without end while {part} becomes narrower, as where the "
            "scale of effects falls to zero"
        )
    if best is None:
        reason = f"no mode was found ({failure})"
        raise prior_scale.NotNearGaussian(reason, has_shape=False) from failure
    return best[0], passes


def _newton(problem: MinibatchLogProb, center: State) -> tuple[State, Hessians, int]:
    """Returns a center nearer to the mode, the Hessians there, and the passes over the data.

    The Hessian is needed anyway. Newton's steps end where they stop getting shorter, as at kinks.
    Where rounding hides flat directions, only a Hessian that is evaluated anew tells how far away
    the mode is.
    """
    products = hessian_products(problem, center)
    flat = flatten_events(center, 0).numpy()
    found, count = products.matrices(flat), 1
    step, length = _step(found)
    for _ in range(_NEWTON_STEPS if len(flat) <= MOST_NEWTON_DIMENSIONS else 0):
        if not _NEAR < length < np.inf:
            break
        moved = (flat + step).astype(flat.dtype)
        there, count = products.matrices(moved), count + 1
        step, shorter = _step(there)
        if not shorter < 0.5 * length:
            break
        flat, found, length = moved, there, shorter
    return unflatten_events(flat, center, 0), found, count * len(flat)


def _step(found: Hessians) -> tuple[np.ndarray, float]:
    """Returns Newton's step and its length in standard deviations, infinite without a mode."""
    precision = -found.posterior
    if not np.isfinite(precision).all():
        return 0 * found.gradient, np.inf
    scaled, scale = to_unit_diagonal(precision)
    eigenvalues, vectors = np.linalg.eigh(scaled)
    if not eigenvalues[0] > 1e-12 * eigenvalues[-1]:
        return 0 * found.gradient, np.inf
    step = vectors @ ((vectors.T @ (found.gradient / scale)) / eigenvalues) / scale
    return step, float(np.sqrt(max(step @ found.gradient, 0.0)))


def _rounded(dtype: tf.DType, eigenvalue: float) -> prior_scale.NotNearGaussian:
    return prior_scale.NotNearGaussian(
        f"rounding in {dtype.name} hides the curvature along one direction: scaled to a unit "
        f"diagonal, the Hessian at the mode has an eigenvalue of {eigenvalue:.0e}",
        has_shape=False,
        remedy=_DOUBLE if dtype == tf.float32 else _SCALE,
    )


def with_known_remedy(
    reason: prior_scale.NotNearGaussian, found: Coordinates | None
) -> prior_scale.NotNearGaussian:
    """Returns the reason, or rounding where the coordinates `found` are nearly degenerate."""
    if reason.remedy is not None or found is None or found.precision is None:
        return reason
    dtype, eigenvalue = _dtype(found.center), least_eigenvalue(found.precision)
    return _rounded(dtype, eigenvalue) if eigenvalue < _ROUNDED * _LEAST[dtype] else reason


def whiten_at_draws(problem: MinibatchLogProb, before: Coordinates, z: np.ndarray) -> Coordinates:
    r"""Returns coordinates centered at the mean of a pilot's draws, `[results, chains, D]`.

    The likelihood's Hessian is evaluated at the mean. The prior's curvature is, entry by entry,
    \( -E[(\theta_j - \bar\theta_j) \partial_j \log p(\theta)] / \operatorname{var} \theta_j \),
    which is exact for a normal prior, and 1 / E|theta_j| for a Laplace prior of scale 1 at zero.

    Raises:
      NotNearGaussian: the precision is not positive definite.
    """
    assert before.factor is not None
    theta = flatten_events(before.center, 0).numpy() + z.reshape(-1, z.shape[-1]) @ before.factor.T
    mean = theta.mean(axis=0)
    center, offsets = unflatten_events(mean, before.center, 0), theta - mean
    slopes = prior_scale.prior_slopes(problem, before.center, theta)
    curvature = -(offsets * slopes).mean(axis=0) / np.maximum(offsets.var(axis=0), 1e-300)
    found = hessian_products(problem, center).matrices(flatten_events(center, 0).numpy())
    precision = prior_scale.with_prior_curvature(found, curvature)
    return _by_precision(problem, center, found, precision, "pilot", before.num_passes)


def whiten_by_normal(
    problem: MinibatchLogProb, before: Coordinates, mean: np.ndarray, factor: np.ndarray
) -> Coordinates:
    """Returns coordinates in which a normal distribution fitted to the posterior is N(0, I).

    The likelihood's Hessian is evaluated at the mean.
    """
    center = unflatten_events(mean, before.center, 0)
    found = hessian_products(problem, center).matrices(flatten_events(center, 0).numpy())
    precision = precision_of(factor)
    return _by_precision(problem, center, found, precision, "pilot", before.num_passes)


def whiten_by_covariance(
    problem: MinibatchLogProb, before: Coordinates, z: np.ndarray
) -> Coordinates:
    r"""Returns coordinates with the mean and covariance of draws z, `[results, chains, D]`.

    The covariance S of n draws, in the previous coordinates, is shrunk towards its mean variance,
    \( (n S + \operatorname{tr}(S) I) / (n + D) \), because few draws estimate it only roughly. The
    target has no known curvature, so it suits only samplers that use all examples.
    """
    assert before.factor is not None
    draws = z.reshape(-1, z.shape[-1])
    num, dim = draws.shape
    covariance = np.cov(draws, rowvar=False).reshape(dim, dim)
    covariance = (num * covariance + np.trace(covariance) * np.eye(dim)) / (num + dim)
    flat = flatten_events(before.center, 0).numpy() + before.factor @ draws.mean(axis=0)
    center = unflatten_events(flat, before.center, 0)
    factor = before.factor @ np.linalg.cholesky(covariance)
    precision = precision_of(factor)
    whitened = standardize(problem, center, -precision)
    return Coordinates(*whitened, center, factor, precision, "covariance", before.num_passes)


def _by_precision(
    problem: MinibatchLogProb,
    center: State,
    found: Hessians,
    precision: np.ndarray,
    kind: str,
    num_passes: int,
) -> Coordinates:
    """Returns coordinates in which `precision`, `[D, D]`, is I."""
    quadratic = quadratic_in(_dtype(center), found._replace(posterior=-precision))
    return _by_quadratic(problem, center, quadratic, precision, kind, num_passes)


def _by_quadratic(
    problem: MinibatchLogProb,
    center: State,
    quadratic: Quadratic,
    precision: np.ndarray,
    kind: str,
    num_passes: int,
) -> Coordinates:
    # The same coordinates are the same target, which keeps its programs for another call.
    kept = kept_program(problem, "coordinates", center, dict[str, Any])
    key = flatten_events(center, 0).numpy().tobytes() + precision.tobytes() + kind.encode()
    if kept.get("key") != key:
        kept.update(key=key, whitened=whiten_by(problem, center, quadratic))
    factor = root_of_inverse(precision)
    return Coordinates(*kept["whitened"], center, factor, precision, kind, num_passes)


def standardize(
    problem: MinibatchLogProb, center: State, hessian: np.ndarray
) -> tuple[MinibatchLogProb, Any]:
    """Returns the target of z in which `hessian`, `[D, D]` or its diagonal, is -I.

    The target does not know its curvature at z = 0, unlike `whiten`'s. The bijector from z follows.
    """
    dtype = _dtype(center)
    quadratic: Quadratic | LowRankHessian
    if hessian.ndim == 1:
        parts = (-hessian, np.zeros([len(hessian), 0]), np.zeros(0))
        quadratic = LowRankHessian(*(tf.constant(x, dtype) for x in parts))
    else:
        quadratic = quadratic_in(dtype, Hessians(0 * hessian, hessian, 0 * hessian[0]))
    bijector = laplace_bijector(problem.bijector, center, quadratic)
    return problem.with_bijector(bijector), bijector


def _dtype(state: State) -> tf.DType:
    return tf.nest.flatten(state)[0].dtype
