"""The Hessians of a log posterior at the center of second-order control variates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.state import State, flatten_events, unflatten_events
from tfp_sgmcmc.targets.base import value_and_gradient
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb

GUARD = 1.5
_MOST_DIMENSIONS = 4096
_BLOCK = 64  # columns of a Hessian that are evaluated at once


class Quadratic(NamedTuple):
    r"""The Hessians at a center, in flat coordinates of D entries.

    Attributes:
      likelihood: \( H_l \), the Hessian of the sum of all log likelihoods, `[D, D]`.
      posterior: H, the Hessian of the log posterior, `[D, D]`.
    """

    likelihood: tf.Tensor
    posterior: tf.Tensor

    def weight(self, offset: tf.Tensor) -> tf.Tensor:
        r"""Returns \( w = \min(1, 1.5 D / (d^T (-H) d)) \) for offsets d, `[chains..., 1]`."""
        product = tf.linalg.matvec(self.posterior, offset)
        square = -tf.reduce_sum(offset * product, axis=-1, keepdims=True)
        most = tf.constant(GUARD * offset.shape[-1], offset.dtype)
        return most / tf.maximum(square, most)

    def factor(self) -> np.ndarray:
        r"""Returns the Cholesky factor of \( (-H)^{-1} \), `[D, D]`, in `float64`."""
        return np.linalg.cholesky(np.linalg.inv(-self.posterior.numpy().astype(np.float64)))


def quadratic_at(target: MinibatchLogProb, center: State) -> Quadratic:
    """Returns the Hessians at `center`, by D Hessian-vector products with all data.

    Raises:
      ValueError: D is above 4096; a second derivative is not finite; the log likelihood has no
        second derivatives; the Hessian of the log posterior is not negative definite.
    """
    flat = flatten_events(center, 0)
    dim = flat.shape[0]
    if dim > _MOST_DIMENSIONS:
        raise ValueError(
            f"A center of at most {_MOST_DIMENSIONS} entries is needed for order=2, which keeps "
            f"D x D matrices. Received: D = {dim}. Use order=1."
        )
    size = max(1, target.chunk_size // min(dim, _BLOCK))

    @tf.function(autograph=False)
    def products(probes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        state = unflatten_events(tf.broadcast_to(flat, probes.shape), center, 0)
        probe = unflatten_events(probes, center, 0)
        likelihood = target.sum_over_chunks(state, size, probe)[2]
        prior = value_and_gradient(target.log_prior, state, probe, connected=False)[2]
        return flatten_events(likelihood, 1), flatten_events(prior, 1)

    identity = np.eye(dim, dtype=flat.dtype.as_numpy_dtype)
    rows = [products(tf.constant(identity[i : i + _BLOCK])) for i in range(0, dim, _BLOCK)]
    likelihood, prior = (np.concatenate(x).astype(np.float64) for x in zip(*rows, strict=True))
    likelihood, posterior = (h + h.T for h in (likelihood / 2, (likelihood + prior) / 2))
    _check(likelihood, posterior)
    return Quadratic(*(tf.constant(h, flat.dtype) for h in (likelihood, posterior)))


def _check(likelihood: np.ndarray, posterior: np.ndarray) -> None:
    if not np.isfinite(posterior).all():
        raise ValueError(
            "The second derivatives at the center must be finite for order=2. Received: NaN or "
            "infinite ones. Use order=1, or another center."
        )
    if not likelihood.any():
        raise ValueError(
            "log_likelihood_fn must have second derivatives for order=2. Received: zeros at the "
            "center, as of a piecewise linear function. Use order=1."
        )
    largest = np.linalg.eigvalsh(posterior)[-1]
    if largest >= 0:
        raise ValueError(
            "The Hessian of the log posterior at the center must be negative definite for order=2. "
            f"Received: an eigenvalue of {largest:.3g}. Use a mode as center (`find_center`), or "
            "order=1."
        )
