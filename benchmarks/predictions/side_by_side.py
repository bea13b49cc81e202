"""Adam with early stopping for several networks in one compiled program, as `fit` does it for one.

Each network has its initial weights and its order of the rows. It is much faster than `fit` for
small networks, which spend most of its time outside the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

RATE, BETA_1, BETA_2, EPSILON = 1e-3, 0.9, 0.999, 1e-7  # as in `keras.optimizers.Adam`
Parts = list[Any]


class Trainer:
    """Trains two or more networks of one architecture; it compiles once for data of one shape.

    Args:
      model: a compiled model without moving statistics, which stays as it is. Weights that are not
        trainable keep its values. Dropout is the same for all networks, and another in each step.
      batch_size: rows of a batch; the last one of an epoch may have fewer.
      rate: the learning rate.
    """

    def __init__(self, model: keras.Model, batch_size: int, rate: float = RATE):
        self._model, self._batch_size, self._rate = model, batch_size, rate
        self._others = [v.numpy() for v in model.non_trainable_variables]
        seeds = {id(v) for v in model.variables} - {id(v) for v in model.weights}
        self._is_seed = [id(v) in seeds for v in model.non_trainable_variables]
        self._epoch = tf.function(self._take_epoch, jit_compile=True)

    def __call__(
        self,
        starts: Sequence[Sequence[np.ndarray]],
        train: tuple[np.ndarray, np.ndarray],
        validation: tuple[np.ndarray, np.ndarray],
        epochs: int,
        patience: int,
        seed: Sequence[int],
        visit: Callable[[Parts], None] | None = None,
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Returns the best weights, `[networks, ...]` for each variable, and the epochs taken.

        `visit` gets the weights of all networks after each epoch.
        """
        weights = [tf.constant(np.stack(values)) for values in zip(*starts, strict=True)]
        count, rows, rng = len(starts), len(train[0]), np.random.default_rng(seed)
        moments = [[tf.zeros_like(w) for w in weights] for _ in range(2)]
        best, least = [w.numpy() for w in weights], np.full(count, np.inf)
        since, taken = np.zeros(count, int), np.zeros(count, int)
        data = [*map(tf.constant, (*train, *validation))]
        padding = -rows % self._batch_size
        steps = tf.zeros([])
        for _ in range(epochs):
            order = np.stack([rng.permutation(rows) for _ in range(count)])
            order = np.pad(order, [(0, 0), (0, padding)], constant_values=-1).astype(np.int32)
            weights, moments, steps, loss = self._epoch(weights, moments, steps, order, *data)
            if visit is not None:
                visit(weights)
            is_running = since < patience
            is_better = is_running & (loss.numpy() < least)
            least = np.where(is_better, loss, least)
            for kept, now in zip(best, weights, strict=True):
                kept[is_better] = now.numpy()[is_better]
            since = np.where(is_running, np.where(is_better, 0, since + 1), since)
            taken += is_running
            if (since >= patience).all():
                break
        return best, taken

    def _take_epoch(
        self, weights: Parts, moments: list[Parts], steps: Any, order: Any, x: Any, y: Any,
        x_validation: Any, y_validation: Any,
    ) -> tuple[Parts, list[Parts], Any, Any]:  # fmt: skip
        """Returns weights, moments and steps after an epoch, and the validation losses."""
        size = self._batch_size

        def take_step(k: Any, steps: Any, weights: Parts, m: Parts, v: Parts) -> Any:
            rows = tf.slice(order, [0, k * size], [order.shape[0], size])  # of a known shape
            is_row = tf.cast(rows >= 0, tf.float32)
            rows = tf.maximum(rows, 0)
            shares = is_row / tf.reduce_sum(is_row, axis=1, keepdims=True)
            with tf.GradientTape() as tape:
                tape.watch(weights)
                losses = self._losses(weights, tf.gather(x, rows), tf.gather(y, rows), steps)
                loss = tf.reduce_sum(shares * losses)
            found = zip(tape.gradient(loss, weights), weights, strict=True)
            gradient = [tf.reshape(g, w.shape) for g, w in found]
            steps += 1
            m = [BETA_1 * a + (1 - BETA_1) * g for a, g in zip(m, gradient, strict=True)]
            v = [BETA_2 * a + (1 - BETA_2) * g**2 for a, g in zip(v, gradient, strict=True)]
            rate = self._rate * tf.sqrt(1 - BETA_2**steps) / (1 - BETA_1**steps)
            moved = zip(weights, m, v, strict=True)
            weights = [w - rate * a / (tf.sqrt(b) + EPSILON) for w, a, b in moved]
            return k + 1, steps, weights, m, v

        count = order.shape[1] // size
        _, steps, weights, m, v = tf.while_loop(
            lambda k, *_: k < count, take_step, (0, steps, list(weights), *map(list, moments))
        )
        validation = [
            tf.repeat(a[tf.newaxis], order.shape[0], 0) for a in (x_validation, y_validation)
        ]
        loss = tf.reduce_mean(self._losses(weights, *validation), axis=1)
        return weights, [m, v], steps, loss

    def _losses(self, weights: Parts, x: Any, y: Any, step: Any = None) -> tf.Tensor:
        """Returns the loss of each row by its network, `[networks, rows]`.

        Without a step the layers behave as for predictions.

        The loss is not vectorized: in a loop, XLA would compile some losses anew for each `y`.
        """

        others: Parts = list(self._others)
        if step is not None:
            for i in np.flatnonzero(self._is_seed):
                others[i] += tf.cast(tf.stack([0.0, step]), others[i].dtype)

        def outputs_of_one(given: tuple[Parts, Any]) -> tf.Tensor:
            call = self._model.stateless_call
            return call(given[0], others, given[1], training=step is not None)[0]

        outputs = tf.vectorized_map(outputs_of_one, (list(weights), x))
        rows = [tf.reshape(a, [-1, *a.shape[2:]]) for a in (y, outputs)]
        loss = self._model.loss
        losses = type(loss).from_config({**loss.get_config(), "reduction": "none"})(*rows)
        return tf.reshape(losses, tf.shape(x)[:2])
