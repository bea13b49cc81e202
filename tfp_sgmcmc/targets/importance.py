"""Which examples second-order control variates draw: those whose remainders are large."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.checks import require
from tfp_sgmcmc.state import State, flatten_events, unflatten_events
from tfp_sgmcmc.targets.low_rank import LowRank
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb
from tfp_sgmcmc.targets.quadratic import Quadratic
from tfp_sgmcmc.xla import traced

_NUM_DRAWS = 16
_MIXED = 0.05  # of the mean, which every example gets: remainders at other states differ


def as_probabilities(importance: Any, num_examples: int) -> np.ndarray:
    """Returns an array of N positive weights, scaled to sum to one.

    Raises:
      ValueError: the weights are not N positive finite numbers.
    """
    weights = np.asarray(importance)
    fits = weights.shape == (num_examples,) and weights.dtype.kind in "iuf"
    expected = f"None, 'pilot' or {num_examples} positive finite numbers, one for each example"
    received = f"shape {weights.shape}, dtype {weights.dtype}"
    require("importance", received, fits, expected)
    weights = weights.astype(np.float64)
    wrong = ~(np.isfinite(weights) & (weights > 0))
    require("importance", weights[wrong][:3], not wrong.any(), expected)
    return weights / weights.sum()


def pilot_probabilities(
    target: MinibatchLogProb,
    center: State,
    quadratic: Quadratic | LowRank,
    squared_norms: Any,
    seed: Any = 0,
) -> np.ndarray:
    r"""Returns probabilities in proportion to examples' remainders under Laplace's approximation.

    \[
    q_i \propto m_i + 0.05 \, \bar m, \qquad
    m_i^2 = \frac 1 {16} \sum_{k=1}^{16} s_i(\theta_k)^T (-H)^{-1} s_i(\theta_k), \qquad
    \theta_k \sim N(\hat\theta, (-H)^{-1})
    \]

    It takes as many passes over the data as draws. `squared_norms(states, rows, size)`
    returns the \( m_i^2 \) of `size` rows at the draws.
    """
    flat = flatten_events(center, 0)
    normals = random.normal([_NUM_DRAWS, flat.shape[0]], tf.float64, random.as_seed(seed))
    state = unflatten_events(flat + quadratic.root(tf.cast(normals, flat.dtype)), center, 0)
    total = target.num_examples
    size = max(1, min(target.chunk_size // _NUM_DRAWS, total))

    # Compiled by XLA, because oneDNN cannot vectorise the product of a whitened target in 32 bits.
    def squares(start: tf.Tensor) -> tf.Tensor:
        indices = tf.minimum(start + tf.range(size), total - 1)
        return squared_norms(state, target.rows(indices), size)

    compiled = traced(squares, jit_compile=True)
    found = [compiled(tf.constant(start)) for start in range(0, total, size)]
    norms = np.sqrt(np.concatenate(found)[:total].astype(np.float64))
    if not np.isfinite(norms).all():
        raise ValueError(
            "The remainders of all examples must be finite for importance='pilot'. Received: NaN "
            "or infinite ones at draws of Laplace's approximation. Use importance=None."
        )
    if not norms.any():  # a quadratic log likelihood leaves none, whichever examples are drawn
        return np.full(total, 1 / total)
    norms += _MIXED * norms.mean()
    return norms / norms.sum()
