r"""The discriminative restricted Boltzmann machine with sums over a minibatch in closed form.

The log posterior is that of `drbm.target`. Gradients, and the variances of single examples' scores,
come from sums over the minibatch, so that no score is in memory and each hidden unit needs one
logarithm and one division for each class. With \( m_j = \max(0, \max_y o_{jy}) \) and
\( u_j = \max_y U_{jy} \),

\[
r_{jy} = e^{-m_j} + e^{o_{jy} - m_j}
= e^{-m_j} + e^{c_j + \sum_i W_{ji} x_i + u_j - m_j} e^{U_{jy} - u_j}, \qquad
\log(1 + e^{o_{jy}}) = m_j + \log r_{jy}, \qquad
\sigma(o_{jy}) = 1 - \frac{e^{-m_j}}{r_{jy}} ,
\]

where no exponential is above 1, and \( \sum_j m_j \) is the same for all classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import drbm
from benchmarks.common.drbm import Weights
from tfp_sgmcmc.covariance.factored_scores import FactoredScores
from tfp_sgmcmc.targets.base import GradientEstimate, value_and_gradient


class SummedScores(FactoredScores):
    """Scores of one part of which only sums are known, for the diagonal of their covariance.

    Args:
      total: their sum over the n examples, `[chains..., event...]`.
      squares: the sum of their squares, in the same shape.
      num_rows: n.
    """

    def __init__(self, total: tf.Tensor, squares: tf.Tensor, num_rows: int):
        self._total, self._squares, self._count = total, squares, num_rows

    @property
    def num_rows(self) -> int:
        return self._count

    def rows(self) -> tf.Tensor:
        raise ValueError("Only the sums of these scores are known. Use covariance='diag'.")

    def mean(self) -> tf.Tensor:
        return self._total / self._count

    def variances(self) -> tf.Tensor:
        spread = (self._squares - self._total**2 / self._count) / (self._count - 1)
        spread = tf.where(spread < 0, tf.zeros_like(spread), spread)  # by rounding; NaN stays
        event_ndims = self._total.shape.rank - 1
        return tf.reshape(spread, tf.concat([tf.shape(spread)[:-event_ndims], [-1]], axis=0))

    def _rows(self, inputs: tf.Tensor, gradients: tf.Tensor) -> tf.Tensor:
        return self.rows()

    def _sum(self) -> tf.Tensor:
        return self._total

    def _sum_of_squares(self) -> tf.Tensor:
        return self._squares


def sums(weights: Weights, x: Any, y: Any) -> tuple[tf.Tensor, Weights, Weights]:
    """Returns the log likelihood of a minibatch, its gradient, and the sum of squared scores.

    Args:
      weights: parts `[chains, ...]`.
      x: features `[n, F]`.
      y: classes `[n]`.
    """
    classes, transpose = weights.d.shape[-1], tf.linalg.matrix_transpose
    largest = tf.reduce_max(weights.U, axis=-1, keepdims=True)  # [chains, H, 1]
    top = tf.matmul(weights.W, x, transpose_b=True) + weights.c[..., tf.newaxis] + largest
    shift = tf.maximum(top, 0)  # [chains, H, n]
    none = tf.exp(-shift)[:, tf.newaxis]
    by_class = tf.exp(transpose(weights.U - largest))[..., tf.newaxis]
    r = none + tf.exp(top - shift)[:, tf.newaxis] * by_class  # [chains, C, H, n]
    r = tf.maximum(r, np.finfo(np.float32).tiny)
    logits = tf.reduce_sum(tf.math.log(r), axis=2) + weights.d[..., tf.newaxis]
    log_p = tf.nn.log_softmax(logits, axis=1)
    chosen = transpose(tf.one_hot(y, classes, dtype=log_p.dtype))
    delta = chosen - tf.exp(log_p)  # [chains, C, n]
    rest = delta[:, :, tf.newaxis] * (none / r)
    of_U = delta[:, :, tf.newaxis] - rest
    of_c = -tf.reduce_sum(rest, axis=1)  # [chains, H, n], as the sum of delta is 0

    def of_parts(power: int) -> Weights:
        features = tf.broadcast_to(x**power, tf.concat([tf.shape(delta)[:1], tf.shape(x)], axis=0))
        return Weights(
            tf.matmul(of_c**power, features),
            transpose(tf.reduce_sum(of_U**power, axis=3)),
            tf.reduce_sum(of_c**power, axis=2),
            tf.reduce_sum(delta**power, axis=2),
        )

    return tf.reduce_sum(log_p * chosen, axis=[1, 2]), of_parts(1), of_parts(2)


class Target(sgmcmc.MinibatchLogProb):
    """The log posterior of `Weights`, with one minibatch for all chains.

    The prior is N(0, I / precision). Scores serve `covariance="diag"` alone.
    """

    def __init__(self, x: np.ndarray, y: np.ndarray, batch_size: int, precision: float = 1.0):
        data = {"x": x.astype(np.float32), "y": y.astype(np.int32)}

        def log_prior(W: tf.Tensor, U: tf.Tensor, c: tf.Tensor, d: tf.Tensor) -> tf.Tensor:
            return drbm.gaussian_log_prior(W, U, c, d, precision)

        super().__init__(log_prior, drbm.log_likelihood, data, batch_size, shared_batch=True)

    def estimate_from(
        self,
        rows_of: Callable[[Any, Any], Any],
        state: Any,
        probe: Any,
        with_scores: bool,
        total: int,
    ) -> GradientEstimate:
        prior, gradient, _ = value_and_gradient(self.log_prior, state)
        batch, n = rows_of(self, prior.shape), self.batch_size
        value, first, second = sums(Weights(*state), batch["x"], batch["y"])
        gradient = Weights(*(p + total / n * s for p, s in zip(gradient, first, strict=True)))
        scores: Any = ()
        if with_scores:
            pairs = zip(first, second, strict=True)
            scores = Weights(*(SummedScores(*pair, num_rows=n) for pair in pairs))
        return GradientEstimate(gradient, prior + total / n * value, scores)
