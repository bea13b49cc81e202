"""Errors of estimated posterior moments against reference moments."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfp_sgmcmc.diagnostics.base import real_array


def relative_mean_error(estimate: Any, reference: Any) -> float:
    r"""Computes E1, the relative error of a posterior mean.

    \[ E_1 = \sum_i |\hat\mu_i - \mu_i| \Big/ \sum_i |\mu_i| \]

    Examples:
      >>> relative_mean_error([1., 2.2], [1., 2.])
      0.06666666666666672

    Args:
      estimate: estimated mean, `[D]`.
      reference: reference mean, `[D]`.

    Raises:
      ValueError: the shapes differ, or the reference is zero or not finite.
      TypeError: an argument is not an array of real numbers.

    References:
      S. Ahn, A. Korattikara and M. Welling. Bayesian posterior sampling via stochastic gradient
      Fisher scoring. ICML, 2012. Equation 14.
    """
    return _relative_error("mean", estimate, reference)


def relative_covariance_error(estimate: Any, reference: Any) -> float:
    r"""Computes E2, the relative error of a posterior covariance; see `relative_mean_error`.

    \[ E_2 = \sum_{ij} |\hat C_{ij} - C_{ij}| \Big/ \sum_{ij} |C_{ij}| \]

    Examples:
      >>> relative_covariance_error([[2., 0.], [0., 1.]], [[1., 0.], [0., 1.]])
      0.5

    Args:
      estimate: estimated covariance, `[D, D]`.
      reference: reference covariance, `[D, D]`.

    Raises:
      ValueError: the shapes differ, or the reference is zero or not finite.
      TypeError: an argument is not an array of real numbers.
    """
    return _relative_error("covariance", estimate, reference)


def squared_variance_error(samples: Any, variances: Any) -> Any:
    r"""Computes the mean squared relative error of the variances that a chain gives.

    \[ \frac1D \sum_{i=1}^D \left( \frac{\hat v_i}{v_i} - 1 \right)^2 \]

    Its mean over independent chains contains both bias and Monte Carlo error.

    Examples:
      >>> squared_variance_error([[0., 0.], [2., 4.]], variances=[1., 2.])  # estimates: 1 and 4
      0.5

    Args:
      samples: `[results, chains..., D]`.
      variances: positive reference variances, `[D]`.

    Returns:
      A number, or `[chains...]`; infinite for a chain with NaN or infinite entries.

    Raises:
      ValueError: the reference has another shape, or is not positive and finite.
      TypeError: an argument is not an array of real numbers.

    References:
      C. Matthews and J. Weare. Langevin Markov chain Monte Carlo with stochastic gradients.
      arXiv:1805.08863, 2018. Section 5.1.
    """
    samples, variances = real_array("samples", samples), real_array("variances", variances)
    if samples.ndim < 2 or not samples.size or samples.shape[-1:] != variances.shape:
        raise ValueError(
            "samples must have shape [results, chains..., D] and variances [D]. Received: shapes "
            f"{samples.shape} and {variances.shape}."
        )
    if not np.all((variances > 0) & np.isfinite(variances)):
        raise ValueError(f"variances must be positive numbers. Received: {variances}.")
    with np.errstate(all="ignore"):
        errors = np.mean((samples.var(axis=0) / variances - 1) ** 2, axis=-1)
    errors = np.where(np.isfinite(errors), errors, np.inf)
    return float(errors) if errors.ndim == 0 else errors


def _relative_error(what: str, estimate: Any, reference: Any) -> float:
    estimate, reference = real_array("estimate", estimate), real_array("reference", reference)
    if estimate.shape != reference.shape:
        raise ValueError(
            f"estimate must have the shape of reference, the {what}: {reference.shape}. "
            f"Received: shape {estimate.shape}."
        )
    if not np.all(np.isfinite(reference)):
        raise ValueError(f"reference must be finite numbers. Received: {reference}.")
    scale = np.sum(np.abs(reference))
    if scale == 0:
        raise ValueError(f"The reference {what} must not be zero.")
    return float(np.sum(np.abs(estimate - reference)) / scale)
