"""Linear regression, in which control variates leave noise that is linear in theta.

Examples y_i ~ N(x_i . theta, 1), prior theta ~ N(0, I). The score of example i differs between
theta and an anchor phi by -H_i (theta - phi) with H_i = x_i x_i^T. With d = theta - mean and
a = phi - mean, a step of SGLD that knows the full gradient at phi is therefore

  d' = F d + eps/2 W (d - a) + sqrt(eps) z,   F = I - eps/2 A,   A = I + sum_i H_i,

where W = sum_i H_i - N/n sum_{i in S} H_i is independent in each step, with mean zero and the
covariance c Cov_i(H_i). In equilibrium, E[d] = 0 and second moments satisfy a closed linear
equation for every law of W.
"""

from typing import Any

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc


class LinearRegression:
    """N examples, D = 2, and the exact moments of SGLD with control variates."""

    def __init__(self, num_examples: int = 12, seed: int = 0):
        generator = np.random.default_rng(seed)
        self.x = generator.standard_normal([num_examples, 2]) * [1.0, 0.6]
        self.y = self.x @ [1.0, -0.5] + generator.standard_normal(num_examples)
        self.hessians = self.x[:, :, np.newaxis] * self.x[:, np.newaxis, :]
        self.hessian = np.eye(2) + self.hessians.sum(axis=0)  # A
        self.mean = np.linalg.solve(self.hessian, self.x.T @ self.y)
        centred = self.hessians - self.hessians.mean(axis=0)
        # [(a, b), (c, d)]: covariance of H_ac and H_bd. It maps v v^T to the covariance of H v.
        self._spread = np.einsum("iac,ibd->abcd", centred, centred).reshape(4, 4)
        self.num_examples = num_examples

    def target(self, batch_size: int, dtype: Any = tf.float32, **options: Any) -> Any:
        return sgmcmc.MinibatchLogProb(
            lambda theta: -0.5 * tf.reduce_sum(theta**2, axis=-1),
            lambda theta, batch: -0.5 * (batch["y"] - tf.linalg.matvec(batch["x"], theta)) ** 2,
            {"x": self.x, "y": self.y},
            batch_size,
            dtype=dtype,
            **options,
        )

    def _step(self, moments: np.ndarray, target: Any, step_size: float) -> np.ndarray:
        """Maps E[X X^T], X = (d, a), to its value after one step of SGLD with a fixed anchor."""
        total = self.num_examples
        divisor = total if target.replacement else total - 1  # of the V that c multiplies
        contraction = np.eye(4)
        contraction[:2, :2] -= step_size / 2 * self.hessian
        between = np.concatenate([np.eye(2), -np.eye(2)], axis=1)
        distance = between @ moments @ between.T
        noise = target.noise_scale / divisor * (self._spread @ distance.ravel()).reshape(2, 2)
        result = contraction @ moments @ contraction.T
        result[:2, :2] += step_size * np.eye(2) + step_size**2 / 4 * noise
        return result

    def covariance(
        self, target: Any, step_size: float, center: np.ndarray | None = None, period: int = 1
    ) -> np.ndarray:
        """Returns E[d d^T] in equilibrium, with a fixed anchor or one that follows the chain.

        With `center`, the anchor stays there. Without it, the anchor moves to the state every
        `period` steps, and the equilibrium is the one at these moves.
        """

        def advance(second: np.ndarray) -> np.ndarray:
            """Returns E[d d^T] a period later, which is affine in E[d d^T] because E[d] = 0."""
            moments = np.tile(second, [2, 2])
            if center is not None:
                offset = center - self.mean
                moments = np.block(
                    [[second, np.zeros([2, 2])], [np.zeros([2, 2]), np.outer(offset, offset)]]
                )
            for _ in range(period):
                moments = self._step(moments, target, step_size)
            return moments[:2, :2]

        constant = advance(np.zeros([2, 2]))
        basis = np.eye(4).reshape(4, 2, 2)
        linear = np.stack([(advance(b) - constant).ravel() for b in basis], axis=1)
        assert np.max(np.abs(np.linalg.eigvals(linear))) < 1
        return np.linalg.solve(np.eye(4) - linear, constant.ravel()).reshape(2, 2)
