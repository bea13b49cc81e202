r"""The shape of the upper tail of weights, which tells whether their averages can be trusted.

References:
  J. Zhang and M. A. Stephens. A new and efficient estimation method for the generalized Pareto
  distribution. Technometrics, 2009.
  A. Vehtari, D. Simpson, A. Gelman, Y. Yao and J. Gabry. Pareto smoothed importance sampling.
  Journal of Machine Learning Research, 2024.
"""

from __future__ import annotations

import math

import numpy as np

_LEAST_TAIL = 5


def pareto_shape(log_weights: np.ndarray) -> float:
    r"""Returns k of a generalized Pareto distribution fitted to the largest of S weights.

    The tail has \( M = \min(0.2 S, 3 \sqrt S) \) weights (Vehtari et al. 2024, equation 10), whose
    exceedances \( x_1 \le \dots \le x_M \) over the largest other weight are fitted by the mean of
    the profile posterior of Zhang and Stephens (2009, section 4), and k is shrunk towards 1/2 by
    ten observations. Weights have a finite variance if k < 1/2, and averages with S weights are
    accurate up to about k = 0.7.

    Examples:
      >>> uniform = np.random.default_rng(0).uniform(size=4000)
      >>> bool(abs(pareto_shape(-0.3 * np.log(uniform)) - 0.3) < 0.15)  # weights u^-0.3
      True

    Args:
      log_weights: `[S]`, minus infinity for a weight of zero.

    Returns:
      k: infinity if a weight is NaN or infinite or fewer than five exceed the others, and minus
      infinity if the weights of the tail are equal.
    """
    log_weights = np.asarray(log_weights, np.float64)
    size = log_weights.size
    num_tail = math.ceil(min(0.2 * size, 3 * size**0.5))
    if num_tail < _LEAST_TAIL or np.isnan(log_weights).any() or not log_weights.max() < np.inf:
        return np.inf
    ordered = np.sort(log_weights)
    weights = np.exp(ordered[-num_tail - 1 :] - ordered[-1])
    x = weights[1:] - weights[0]
    if x[-1] <= np.finfo(float).eps:
        return -np.inf
    if x[_LEAST_TAIL - 1 - len(x)] <= 0:
        return np.inf
    k = _fit(np.maximum(x, np.finfo(float).tiny))
    return (num_tail * k + 5) / (num_tail + 10)


def _fit(x: np.ndarray) -> float:
    """Returns k of ascending exceedances by the estimator of Zhang and Stephens."""
    count = len(x)
    num_points = 30 + int(count**0.5)
    quartile = x[int(count / 4 + 0.5) - 1]
    points = 1 - np.sqrt(num_points / (np.arange(1, num_points + 1) - 0.5))
    theta = points / (3 * quartile) + 1 / x[-1]
    shapes = np.log1p(-theta[:, np.newaxis] * x).mean(axis=1)
    log_likelihood = count * (np.log(-theta / shapes) - shapes - 1)
    with np.errstate(over="ignore"):  # of points that have no weight
        posterior = 1 / np.exp(log_likelihood - log_likelihood[:, np.newaxis]).sum(axis=1)
    mean = float(np.sum(theta * posterior))
    return float(np.log1p(-mean * x).mean())
