"""The covariance of second-order gradient estimates, computed before a chain runs."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.nest import flatten_events, unflatten_events
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.targets.control_variates.control_variate import ControlVariate

_MOST_EXAMPLES = 20_000  # whose remainders are evaluated at every state


class RemainderCovariance:
    r"""Computes the covariance of a second-order gradient estimate from one example.

    \[
    C = \frac 1 K \sum_{k=1}^K \Bigl( \sum_{i=1}^N \frac{s_i s_i^T}{q_i}
      - \sum_i s_i \sum_i s_i^T \Bigr)(\theta_k)
    \]

    with the remainders \( s_i \) and probabilities \( q_i \) of `ControlVariate` (1/N without
    `importance`). A minibatch of n examples, drawn with replacement, has the covariance C / n.
    Data of more than 20,000 examples are represented by as many that are drawn by \( q_i \).
    All calls share one compiled program.

    Args:
      control: a `ControlVariate` of order 2.
      num_states: K.
    """

    def __init__(self, control: ControlVariate, num_states: int):
        self._control, self._num_states = control, num_states
        order_2, target = control.second_order, control.target
        flat = flatten_events(control.center, 0)
        self._dtype, total, dim = flat.dtype, target.num_examples, flat.shape[0]
        q = order_2.probabilities
        q = np.full(total, 1 / total) if q is None else q
        self._picked, self._weights = np.arange(total), 1 / q
        if total > _MOST_EXAMPLES:
            self._picked = np.random.default_rng(0).choice(total, _MOST_EXAMPLES, p=q)
            self._weights = 1 / (_MOST_EXAMPLES * q[self._picked] ** 2)
        self._ones = self._weights * q[self._picked]
        most = min(target.chunk_size // num_states, 2**24 // (num_states * dim))
        self._size = size = max(1, min(len(self._picked), most))

        def moments(
            points: tf.Tensor, rows: tf.Tensor, squares: tf.Tensor, ones: tf.Tensor
        ) -> tuple[tf.Tensor, ...]:
            at = unflatten_events(points, control.center, 0)
            found = order_2.of_examples(at, target.rows(rows), size)
            flat_rows = tf.reshape(found * tf.sqrt(squares)[:, tf.newaxis], [-1, dim])
            return tf.matmul(flat_rows, flat_rows, transpose_a=True), tf.einsum(
                "knd,n->kd", found, ones
            )

        self._moments = traced(moments, jit_compile=True)

    def __call__(self, states: np.ndarray) -> np.ndarray:
        r"""Returns C, `[D, D]`, in double precision.

        Args:
          states: the \( \theta_k \), `[K, D]`, with the parts of a state side by side.
        """
        points, dim = tf.constant(states, self._dtype), states.shape[-1]
        second, first = np.zeros([dim, dim]), np.zeros([self._num_states, dim])
        for start in range(0, len(self._picked), self._size):
            rows, squares, ones = (
                x[start : start + self._size] for x in (self._picked, self._weights, self._ones)
            )
            left = self._size - len(rows)  # padding of weight zero keeps the graph's shape
            parts = self._moments(
                points,
                tf.constant(np.pad(rows, (0, left), mode="edge"), tf.int32),
                *(tf.constant(np.pad(x, (0, left)), self._dtype) for x in (squares, ones)),
            )
            second += parts[0].numpy()
            first += parts[1].numpy()
        return (second - first.T @ first) / self._num_states
