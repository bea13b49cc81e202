"""What the noise of minibatches will do to the draws, known before a chain is run."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.state import flatten_events, unflatten_events
from tfp_sgmcmc.targets.control_variate import ControlVariate

_MOST_EXAMPLES = 20_000  # whose remainders are evaluated at every state


def remainder_covariance(control: ControlVariate, states: np.ndarray, seed: int = 0) -> np.ndarray:
    r"""Returns the covariance of a second-order gradient estimate from one example.

    \[
    C = \frac 1 K \sum_{k=1}^K \Bigl( \sum_{i=1}^N \frac{s_i s_i^T}{q_i}
      - \sum_i s_i \sum_i s_i^T \Bigr)(\theta_k)
    \]

    with the remainders \( s_i \) and probabilities \( q_i \) of `ControlVariate` (1/N without
    `importance`). A minibatch of n examples, drawn with replacement, has the covariance C / n.
    Data of more than 20,000 examples are represented by as many that are drawn by \( q_i \).

    Args:
      control: a `ControlVariate` of order 2.
      states: the \( \theta_k \), `[K, D]`, with the parts of a state side by side.
      seed: of the examples that represent larger data.

    Returns:
      C, `[D, D]`, in double precision.
    """
    order_2, target = control.second_order, control.target
    flat = flatten_events(control.center, 0)
    points = tf.constant(states, flat.dtype)
    at = unflatten_events(points, control.center, 0)
    total, (num_states, dim) = target.num_examples, points.shape
    q = order_2.probabilities
    q = np.full(total, 1 / total) if q is None else q
    picked, weights = np.arange(total), 1 / q
    if total > _MOST_EXAMPLES:
        picked = np.random.default_rng(seed).choice(total, _MOST_EXAMPLES, p=q)
        weights = 1 / (_MOST_EXAMPLES * q[picked] ** 2)
    size = max(1, min(target.chunk_size // num_states, len(picked), 2**24 // (num_states * dim)))

    @tf.function(autograph=False, jit_compile=True)
    def moments(rows: tf.Tensor, squares: tf.Tensor, ones: tf.Tensor) -> tuple[tf.Tensor, ...]:
        found = order_2._of_examples(at, target.rows(rows), size)
        flat_rows = tf.reshape(found * tf.sqrt(squares)[:, tf.newaxis], [-1, dim])
        return tf.matmul(flat_rows, flat_rows, transpose_a=True), tf.einsum(
            "knd,n->kd", found, ones
        )

    second, first = np.zeros([dim, dim]), np.zeros([num_states, dim])
    for start in range(0, len(picked), size):
        rows = picked[start : start + size]
        left = size - len(rows)  # a graph of one shape: what is missing has weight zero
        of_squares = np.pad(weights[start : start + size], (0, left))
        of_sums = np.pad((weights * q[picked])[start : start + size], (0, left))
        rows = np.pad(rows, (0, left), mode="edge")
        parts = moments(
            *(
                tf.constant(x, t)
                for x, t in zip(
                    (rows, of_squares, of_sums), (tf.int32, flat.dtype, flat.dtype), strict=True
                )
            )
        )
        second += parts[0].numpy()
        first += parts[1].numpy()
    return (second - first.T @ first) / num_states
