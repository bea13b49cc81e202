"""The Gaussian-mean model, whose linear scores give the biased law of linear schemes exactly.

Examples x_i ~ N(theta, P^-1) with known P, prior theta ~ N(0, L^-1). The gradient of the log
posterior is b - A theta with A = L + N P, b = P sum_i x_i. A minibatch adds noise that does not
depend on theta and has the covariance

  Sigma = N^2/n V_N with replacement,   N (N-n)/n V_{N-1} without,

where V_k is the centred sum of squares of the scores divided by k. Both are exact for all N and n.
"""

from typing import Any

import numpy as np
import tensorflow as tf
from scipy.linalg import solve_discrete_lyapunov

import tfp_sgmcmc as sgmcmc

PRECISION = np.array([[1.0, 0.5, -0.3], [0.5, 2.0, 0.4], [-0.3, 0.4, 1.5]])
PRIOR_PRECISION = np.diag([0.5, 1.0, 2.0])


class GaussianMean:
    """N examples in three dimensions, and the exact moments of their posterior."""

    def __init__(self, num_examples: int = 12, seed: int = 0):
        generator = np.random.default_rng(seed)
        noise = generator.standard_normal([num_examples, 3])
        self.data = 1.0 + noise @ np.linalg.inv(np.linalg.cholesky(PRECISION))
        self.num_examples = num_examples
        self.hessian = PRIOR_PRECISION + num_examples * PRECISION  # A
        self.mean = np.linalg.solve(self.hessian, PRECISION @ self.data.sum(axis=0))
        scores = self.data @ PRECISION
        self.score_covariance = np.cov(scores, rowvar=False, ddof=1)  # V, divisor N - 1

    def noise(self, batch_size: int, replacement: bool) -> np.ndarray:
        """Returns Sigma, the covariance of the gradient estimate."""
        total = self.num_examples
        if replacement:
            return total**2 / batch_size * self.score_covariance * (total - 1) / total
        return total * (total - batch_size) / batch_size * self.score_covariance

    def target(
        self,
        batch_size: int,
        dtype: Any = tf.float32,
        parts: bool = False,
        likelihood_scale: float = 1.0,
        **options: Any,
    ) -> sgmcmc.MinibatchLogProb:
        """Returns the model as a target; with `parts`, states are `[..., 1]` and `[..., 2]`.

        A `likelihood_scale` other than one simulates the bug of an averaged likelihood. Scores are
        in closed form, which is quick to trace. `score_fn=None` computes them by mapping.
        """
        precision = tf.constant(PRECISION * likelihood_scale, dtype)
        prior_precision = tf.constant(PRIOR_PRECISION, dtype)

        def quadratic(x: tf.Tensor, matrix: tf.Tensor) -> tf.Tensor:
            return -0.5 * tf.reduce_sum(x * tf.linalg.matmul(x, matrix), axis=-1)

        def log_likelihood(theta: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
            return quadratic(batch - theta[..., tf.newaxis, :], precision)

        def log_prior(theta: tf.Tensor) -> tf.Tensor:
            return quadratic(theta[..., tf.newaxis, :], prior_precision)[..., 0]

        def scores(*state: tf.Tensor, **named: tf.Tensor) -> Any:
            *state, batch = state if state else (named[name] for name in (*"ab", "batch"))
            theta = tf.concat(state, axis=-1)
            found = tf.linalg.matmul(batch - theta[..., tf.newaxis, :], precision)
            pieces = [found[..., :1], found[..., 1:]] if parts else found
            return dict(zip("ab", pieces, strict=True)) if named else pieces

        if "num_groups" not in options:
            options = {"score_fn": scores, **options}
        functions = (log_prior, log_likelihood)
        if parts:
            functions = (
                lambda a, b: log_prior(tf.concat([a, b], axis=-1)),
                lambda a, b, batch: log_likelihood(tf.concat([a, b], axis=-1), batch),
            )
        return sgmcmc.MinibatchLogProb(*functions, self.data, batch_size, dtype=dtype, **options)

    def exact_target(self, dtype: Any = tf.float64) -> sgmcmc.FullDataLogProb:
        """Returns the log posterior, up to a constant, with exact gradients."""
        hessian, mean = (tf.constant(x, dtype) for x in (self.hessian, self.mean))
        return sgmcmc.FullDataLogProb(
            lambda x: -0.5 * tf.reduce_sum((x - mean) * ((x - mean) @ hessian), axis=-1)
        )


def sgld_covariance(
    hessian: np.ndarray,
    noise: np.ndarray,
    step_size: Any,
    matrix: Any = 1.0,
    temperature: float = 1.0,
) -> np.ndarray:
    """Solves S = F S F^T + T E^(1/2) M E^(1/2) + E/2 M Sigma M E/2, the covariance of SGLD.

    Here F = I - E/2 M A, E = diag(step_size) and M is a constant preconditioner.
    """
    contraction, drift, injected = sgld_step(hessian, step_size, matrix, temperature)
    return solve_discrete_lyapunov(contraction, injected + drift @ noise @ drift.T)


def sgld_step(
    hessian: np.ndarray, step_size: Any, matrix: Any, temperature: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns F, E/2 M, and the covariance of the injected noise."""
    size = len(hessian)
    matrix = np.asarray(matrix) * np.eye(size) if np.ndim(matrix) < 2 else np.asarray(matrix)
    step = np.diag(np.broadcast_to(step_size, [size]))
    drift = step @ matrix / 2
    root = np.sqrt(step)
    return np.eye(size) - drift @ hessian, drift, temperature * root @ matrix @ root
