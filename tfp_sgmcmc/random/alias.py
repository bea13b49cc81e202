"""Draws of indices with unequal probabilities, in constant time each."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.random.indices import uniform_indices
from tfp_sgmcmc.random.seeds import GOLDEN, numbered_seed

_UNIT = 2**24  # thresholds and coins are integers below it


class AliasTable(NamedTuple):
    r"""Draws index i with probability \( q_i \), by Walker's alias method.

    A uniform index k is kept with probability `threshold[k]` \( / 2^{24} \), and otherwise
    `alias[k]` takes its place. `draw` gives the same indices in every mode.

    Examples:
      >>> import numpy as np, tensorflow as tf
      >>> table = AliasTable.from_probabilities(np.array([0.5, 0.25, 0.25, 0.]))
      >>> indices = table.draw(tf.constant([0, 1]), tf.range(1000))
      >>> np.bincount(indices, minlength=4)
      array([501, 246, 253,   0])

    Attributes:
      threshold: `int32` of shape `[N]`, in \( 0 .. 2^{24} \).
      alias: `int32` of shape `[N]`.

    References:
      M. D. Vose. A linear algorithm for generating random numbers with a given distribution. IEEE
      Transactions on Software Engineering 17, 1991.
    """

    threshold: tf.Tensor
    alias: tf.Tensor

    @classmethod
    def from_probabilities(cls, probabilities: np.ndarray) -> AliasTable:
        """Returns the table of `probabilities`, `[N]`, which need not sum to one."""
        scaled = np.asarray(probabilities, np.float64)
        scaled = scaled * (len(scaled) / scaled.sum())
        kept, alias = np.ones(len(scaled)), np.arange(len(scaled), dtype=np.int32)
        small, large = [*np.flatnonzero(scaled < 1)], [*np.flatnonzero(scaled >= 1)]
        while small and large:
            little, much = small.pop(), large.pop()
            kept[little], alias[little] = scaled[little], much
            scaled[much] -= 1 - scaled[little]
            (small if scaled[much] < 1 else large).append(much)
        return cls(tf.constant(np.rint(kept * _UNIT).astype(np.int32)), tf.constant(alias))

    def draw(self, seed: tf.Tensor, positions: tf.Tensor, chain_shape: Any = ()) -> tf.Tensor:
        """Returns indices, `[*chain_shape, n]`; arguments as for `random.uniform_indices`."""
        index = uniform_indices(seed, positions, self.alias.shape[0], chain_shape)
        other_seed = numbered_seed(seed, tf.constant(GOLDEN >> 1, tf.int32))
        coin = uniform_indices(other_seed, positions, _UNIT, chain_shape)
        keeps = coin < tf.gather(self.threshold, index)
        return tf.where(keeps, index, tf.gather(self.alias, index))

    @property
    def probabilities(self) -> np.ndarray:
        """The probabilities with which `draw` returns each index, `[N]`, thresholds rounded."""
        kept, alias = self.threshold.numpy() / _UNIT, self.alias.numpy()
        return (kept + np.bincount(alias, 1 - kept, len(alias))) / len(alias)
