"""Damped Newton steps towards a mode of a posterior."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.targets.laplace.quadratic import matrices

MOST_NEWTON_DIMENSIONS = 1024
_MOST_HALVINGS = 20
_ROUNDING = 8  # in units of the last place of the log posterior


def newton_step(
    log_posterior: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
    products: Callable[..., Any],
    theta: tf.Tensor,
    log_prob: tf.Tensor,
) -> tuple[tf.Tensor, int] | None:
    r"""Returns \( \theta + a |-H|^{-1} \nabla \log p \), and the number of passes over the data.

    |-H| has the absolute eigenvalues of -H, so that the step leaves saddles, too. a is halved from
    1 until the log posterior rises by a share of what the slope promises. Returns None where no
    such a is found, or the second derivatives do not exist or are not finite.

    Args:
      log_posterior: theta, `[D]` -> log posterior and its gradient.
      products: the function of `hessian_products`.
      theta: the start, `[D]`.
      log_prob: the log posterior there.
    """
    try:
        _, posterior, gradient = matrices(products, theta.numpy())
    except (LookupError, NotImplementedError):
        return None
    if not np.isfinite(posterior).all():
        return None
    resolution = np.finfo(theta.dtype.as_numpy_dtype).eps
    eigenvalues, vectors = np.linalg.eigh(-posterior)
    eigenvalues = np.abs(eigenvalues)
    eigenvalues = np.maximum(eigenvalues, resolution * eigenvalues.max())
    along = vectors.T @ gradient
    step, slope = vectors @ (along / eigenvalues), np.sum(along**2 / eigenvalues)
    start, passes = float(log_prob), len(gradient)
    rounding = _ROUNDING * resolution * abs(start)
    for halvings in range(_MOST_HALVINGS):
        share = 0.5**halvings
        reached = theta + tf.constant(share * step, theta.dtype)
        value, _ = log_posterior(reached)
        passes += 1
        if float(value) >= start + 1e-4 * share * slope - rounding:  # false for NaN
            return reached, passes
    return None
