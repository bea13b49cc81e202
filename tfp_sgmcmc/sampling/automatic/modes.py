"""Other modes of the posterior, looked for from places far from the first."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random

_NUM_STARTS = 8
_FAR = 4.0  # deviations of Laplace's approximation, from which a place is another one
_DEPTH = 10.0  # of the log posterior, below which a mode has hardly any mass
_RADII = (5.0, 15.0)  # of the starts, in deviations of an entry


class OtherMode(NamedTuple):
    """A place where searches ended, far from the center.

    Attributes:
      distance: its distance from the center, in deviations of Laplace's approximation there.
      log_prob: log posterior there, less that at the center.
    """

    distance: float
    log_prob: float


def other_mode(target: Any, dim: int, dtype: tf.DType, seed: tf.Tensor) -> OtherMode | None:
    """Climbs from eight dispersed starts; returns the highest other mode, or None.

    `target` is the log posterior of z, which is near N(0, I) at the center.
    """
    radii = np.repeat(_RADII, _NUM_STARTS // 2)[:, np.newaxis]
    starts = tf.cast(radii * random.normal([_NUM_STARTS, dim], tf.float64, seed), dtype)

    @tf.function(autograph=False, jit_compile=True)
    def climb(starts: tf.Tensor) -> tuple[tf.Tensor, ...]:
        def descent(z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return tfp.math.value_and_gradient(lambda z: -target(z), z)

        found = tfp.optimizer.lbfgs_minimize(
            descent, starts, tolerance=0.1, max_iterations=60, max_line_search_iterations=20
        )
        return found.position, found.objective_value, found.objective_gradient, target(starts * 0)

    z, values, gradients, at_center = (x.numpy().astype(np.float64) for x in climb(starts))
    heights = -values - at_center
    is_mode = np.isfinite(heights) & (np.abs(gradients).max(axis=-1) < 1.0)
    distances = np.linalg.norm(z, axis=-1)
    others = is_mode & (distances > _FAR) & (heights > -_DEPTH)
    if not others.any():
        return None
    best = int(np.argmax(np.where(others, heights, -np.inf)))
    return OtherMode(float(distances[best]), float(heights[best]))
