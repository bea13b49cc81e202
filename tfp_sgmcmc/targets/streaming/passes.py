"""The work of passes over the rows of a stream, each of which can be sent to a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.nest import State, flatten_events, unflatten_events
from tfp_sgmcmc.targets.data import assert_finite_rows, form_of
from tfp_sgmcmc.targets.streamed import StreamedLogProb
from tfp_sgmcmc.targets.streaming.block_sums import BlockDerivatives, Sums, map_blocks, sum_blocks
from tfp_sgmcmc.targets.streaming.pool_error import KeepingProbabilities
from tfp_sgmcmc.targets.streaming.row_remainders import RowRemainders
from tfp_sgmcmc.targets.streaming.row_samples import PoissonSample, Reservoir

Show = Callable[[int], None]


class Size(NamedTuple):
    """Returns the number of rows of a part, and their names, dtypes and shapes, without a pass."""

    name = "size"

    def __call__(
        self, target: StreamedLogProb, part: int, show: Show
    ) -> tuple[tuple[int, str], int]:
        return (target.num_examples, form_of(target.row_spec)[0]), 0


class ReadRows(NamedTuple):
    """Returns random rows of a part, all of them in order if they fit, and the rows it read.

    Attributes:
      most: the number of rows to keep of each part.
      seed: integers.
    """

    most: tuple[int, ...]
    seed: tuple[int, ...]
    name = "reading"

    def __call__(self, target: StreamedLogProb, part: int, show: Show) -> tuple[Any, int]:
        kept = Reservoir(self.most[part], np.random.default_rng([*self.seed, part]))
        for rows in target.blocks(target.block_rows):
            assert_finite_rows(rows, kept.num_seen)
            kept.add(rows)
            show(kept.num_seen)
        return kept.rows(), kept.num_seen


class SumGradients(NamedTuple):
    """Returns the sum of the rows' gradients at a state, and the rows that were read.

    Attributes:
      state: a state of arrays.
      jit_compile: whether XLA compiles the evaluation of blocks.
    """

    state: State
    jit_compile: bool
    name = "gradient"

    def __call__(self, target: StreamedLogProb, part: int, show: Show) -> tuple[Sums, int]:
        state, size = tf.nest.map_structure(tf.constant, self.state), target.block_rows
        slopes = BlockDerivatives(target.of_one_batch, state, size, False, self.jit_compile)
        return sum_blocks(target, flatten_events(state, 0).numpy(), slopes, size, show)


class DrawnRows(NamedTuple):
    """Rows of a pool with their probabilities, and the sums over all rows at the center."""

    rows: Any
    probabilities: np.ndarray
    sums: Sums


class DrawRows(NamedTuple):
    """Returns `DrawnRows` of a part, and the rows that were read.

    Attributes:
      center: a state of arrays, the center of the expansion.
      factor: L, `[D, D]`; see `RowRemainders`.
      draw_seed: two integers, of the draws at which remainders are computed.
      probabilities: of rows to be kept.
      seed: integers, of the rows that are kept.
      jit_compile: whether XLA compiles the evaluation of blocks.
    """

    center: State
    factor: np.ndarray
    draw_seed: np.ndarray
    probabilities: KeepingProbabilities
    seed: tuple[int, ...]
    jit_compile: bool
    name = "Hessian and pool"

    def __call__(self, target: StreamedLogProb, part: int, show: Show) -> tuple[DrawnRows, int]:
        model, size = target.of_one_batch, target.block_rows
        center = tf.nest.map_structure(tf.constant, self.center)
        options = self.factor, tf.constant(self.draw_seed), self.jit_compile
        remainders = RowRemainders(model, center, *options)
        derivatives = BlockDerivatives(model, center, size, True, self.jit_compile)
        sample = PoissonSample(np.random.default_rng([*self.seed, part]))
        total, seen = None, 0

        def of_block(rows: Any, weights: np.ndarray | None) -> tuple[Sums, np.ndarray]:
            return derivatives.with_norms(remainders, rows, weights)

        for rows, count, (sums, norms) in map_blocks(target, of_block, size, show):
            total = sums if total is None else total.plus(sums)
            sample.add(rows, self.probabilities(norms[:count]))
            seen += count
        assert total is not None  # an epoch has N rows
        # Rows of the dataset's last, dropped batch are represented by the others.
        scale = target.num_examples / seen
        probabilities = sample.probabilities / scale
        return DrawnRows(sample.take_rows(), probabilities, total.times(scale)), seen


def joined(parts: list[Any]) -> Any:
    """Returns the rows of all parts, as arrays."""
    if len(parts) == 1:
        return parts[0]
    return tf.nest.map_structure(lambda *x: np.concatenate(x), *parts)


def as_arrays(state: State) -> State:
    return tf.nest.map_structure(lambda x: x.numpy(), state)


def as_state(theta: np.ndarray, like: State) -> State:
    """Returns a flat state, `[D]`, in the structure of `like`."""
    dtype = tf.nest.flatten(like)[0].dtype
    return unflatten_events(tf.constant(theta, dtype), like, 0)
