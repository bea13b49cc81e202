"""The log posterior of examples in shards, with equally many of each in every minibatch.

`load_shards` loads the shards that a process holds, and checks that all fit together.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import __version__, random
from tfp_sgmcmc.internal.nest import State
from tfp_sgmcmc.internal.replicas import Replicas, device_scope
from tfp_sgmcmc.targets.data import as_tensors, assert_finite, checksum, form_of, leading_axis
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb, noise_scale


def load_shards(
    load_shard: Callable[[int], Any],
    num_shards: int,
    dtype: Any,
    replicas: Replicas | None,
    arguments: dict[str, Any],
) -> tuple[dict[int, Any], np.ndarray, int, list[str]]:
    """Loads the shards of this process; replica r holds the shards s with s % R == r.

    Returns the shards' data by number, their numbers of rows `[S]`, the bytes of a row, and a
    checksum of the rows of each shard. Of shards elsewhere there are no data.

    Args:
      load_shard: shard number -> nest of arrays.
      num_shards: S.
      dtype: dtype to which floating arrays are cast; None keeps them.
      replicas: all replicas; None means one replica, which holds all shards.
      arguments: JSON values that must be the same on all workers.

    Raises:
      ValueError: a shard is empty or not finite; shards have different forms; workers differ; or a
        worker could not load its shards.
      TypeError: the data are not numeric.
    """

    def load() -> tuple[dict[int, Any], dict[str, Any]]:
        shards, described = {}, {}
        for replica in [0] if replicas is None else replicas.held:
            for s in range(replica, num_shards, 1 if replicas is None else replicas.count):
                name = f"load_shard({s})"
                with device_scope(replicas, replica):
                    shards[s] = as_tensors(load_shard(s), dtype, name)
                rows = leading_axis(shards[s], name)
                for leaf in tf.nest.flatten(shards[s]):
                    assert_finite(leaf, name)
                # Names in JSON are strings.
                described[str(s)] = [rows, *form_of(shards[s]), checksum(shards[s])]
        return shards, described

    if replicas is None:
        held, found = load()
    else:
        versions = {"version of tfp_sgmcmc": __version__, "version of TensorFlow": tf.__version__}
        replicas.check_same(versions | arguments)
        held, own = replicas.together("load its shards", load)
        found = {s: x for worker in replicas.all(own) for s, x in worker.items()}
    sizes, forms, row_bytes, checksums = zip(
        *(found[str(s)] for s in range(num_shards)), strict=True
    )
    for s, form in enumerate(forms):
        if form != forms[0]:
            raise ValueError(
                "All shards must have the same arrays but for their leading axis. Received: "
                f"{forms[0]} in shard 0, {form} in shard {s}."
            )
    _warn_of_equal(checksums)
    return held, np.array(sizes, np.int64), row_bytes[0], list(checksums)


def _warn_of_equal(checksums: Sequence[str]) -> None:
    first: dict[str, int] = {}
    for s, found in enumerate(checksums):
        if first.setdefault(found, s) != s:
            warnings.warn(
                "load_shard should return other rows for each shard. Received: the same for shards "
                f"{first[found]} and {s}, which then count twice.",
                stacklevel=4,
            )
            return


class Strata(NamedTuple):
    r"""How a minibatch is drawn from all shards.

    Attributes:
      sizes: number of examples of each shard, \( N_s \), `[S]`.
      per_shard: number of examples of each shard in a minibatch, m = n / S.
      rows_per_shard: number of scores of each shard: m, or its number of groups.
      replacement: whether examples are drawn with replacement.
    """

    sizes: np.ndarray
    per_shard: int
    rows_per_shard: int
    replacement: bool

    @property
    def weights(self) -> np.ndarray:
        r"""Factors \( N_s S / N \) of the shards' sums, relative to N/n times the sum of all."""
        return self.sizes * len(self.sizes) / self.sizes.sum()

    @property
    def noise_scale(self) -> float:
        """c of the whole minibatch: N (N - n) / n, or N^2 / n with replacement."""
        n = len(self.sizes) * self.per_shard
        return noise_scale(int(self.sizes.sum()), n, self.replacement)

    def check(self, num_examples: int) -> None:
        """Raises ValueError unless shards have N rows in all, and each as many as are drawn."""
        total, count = int(self.sizes.sum()), len(self.sizes)
        if total != num_examples:
            sizes = ", ".join(map(str, self.sizes[:10])) + (" ..." if count > 10 else "")
            raise ValueError(
                f"num_examples must be {total}, the number of rows of all shards. Received: "
                f"{num_examples}, and shards of {sizes} rows."
            )
        smallest = int(self.sizes.argmin())
        if not self.replacement and self.sizes[smallest] < self.per_shard:
            raise ValueError(
                f"batch_size must be at most {count * self.sizes[smallest]}, because it takes "
                f"equally many rows of each shard, and shard {smallest} has "
                f"{self.sizes[smallest]}. Received: {count * self.per_shard} with {count} shards."
            )

    def spreads(self, q: int) -> np.ndarray:
        r"""Returns factors \( a_s \) of q weighted scores about their shard's mean, `[S]`.

        With G = S q rows in all, the rows \( \bar y + a_s (y_i - \bar y_s) \) have the
        sample covariance (divisor G - 1, about one mean) whose product with c estimates
        \( \sum_s N_s (N_s - m) / m \, V_s \), the covariance of the stratified gradient.
        """
        total, count = self.sizes.sum(), len(self.sizes)
        n = count * self.per_shard
        squares = np.full(count, (count * q - 1) / ((q - 1) * count))
        if not self.replacement and total > n:
            squares *= (self.sizes - self.per_shard) / self.sizes * total / (total - n)
        return np.sqrt(squares)


class Shard(NamedTuple):
    """A shard whose examples are drawn independently of other shards.

    Attributes:
      number: its number, which with a seed determines its draws; None for all examples.
      start: its first example, in the order of all shards.
      size: number of its examples.
    """

    number: int | None
    start: int
    size: int


def shards_of(part: MinibatchLogProb) -> list[Shard]:
    """Returns the shards that a part of a target holds, or all examples as a single one."""
    if isinstance(part, StratifiedLogProb):
        return part.shards
    return [Shard(None, 0, part.num_examples)]


class StratifiedLogProb(MinibatchLogProb):
    """The rows of some shards, or of all, as a part of a `ShardedLogProb`.

    N, n and the number of scores count these rows. Sums over a minibatch have the scale of sums
    over all shards.

    Args:
      functions: log prior and log likelihood.
      shards: the shards' data, nests of tensors.
      numbers: the shards' numbers, which with a seed determine their draws.
      strata: how a minibatch is drawn.
      options: further arguments of `MinibatchLogProb`.
    """

    def __init__(
        self,
        functions: tuple[Callable[..., Any], Callable[..., Any]],
        shards: Sequence[Any],
        numbers: Sequence[int],
        strata: Strata,
        options: dict[str, Any],
    ):
        # A single shard is not copied.
        data = tf.nest.map_structure(lambda *x: x[0] if len(x) == 1 else tf.concat(x, 0), *shards)
        size = len(numbers) * strata.per_shard
        super().__init__(*functions, data, size, **options)
        self._numbers = list(numbers)
        self.number = self._numbers[0]
        self._set(strata)

    def _set(self, strata: Strata) -> None:
        held, m = len(self._numbers), strata.per_shard
        self._strata, self.batch_size = strata, held * m
        self.num_scores, self.group_size = held * strata.rows_per_shard, m // strata.rows_per_shard
        self.noise_scale = strata.noise_scale
        self._sum_scale = strata.sizes.sum() / (len(strata.sizes) * m)
        dtype = next((x.dtype for x in tf.nest.flatten(self._data) if x.dtype.is_floating), None)
        weights = strata.weights[self._numbers]
        self.row_weights = None
        if not np.all(weights == 1):
            self.row_weights = tf.constant(np.repeat(weights, m), dtype or tf.float32)

    def with_strata(self, strata: Strata) -> Self:
        """Returns this part with minibatches that are drawn as `strata` describes."""
        other = copy.copy(self)
        other.replacement, other._score_fn = strata.replacement, None
        other._set(strata)
        return other

    @property
    def shards(self) -> list[Shard]:
        """The shards that this part holds, in the order of their rows."""
        sizes = self._strata.sizes
        ends = np.cumsum(sizes)
        return [Shard(s, int(ends[s] - sizes[s]), int(sizes[s])) for s in self._numbers]

    def draw(self, seed: tf.Tensor, positions: tf.Tensor, chain_shape: Any) -> tf.Tensor:
        """Returns the indices of a minibatch: m rows of each shard, in the order of `shards`.

        `positions` is not used, because only whole minibatches are drawn.
        """
        del positions
        draw = random.uniform_indices if self.replacement else random.permuted_indices
        chains, first, found = [] if self.shared_batch else chain_shape, 0, []
        for number in self._numbers:
            own = random.numbered_seed(seed, tf.constant(number, tf.int32))
            size = int(self._strata.sizes[number])
            found.append(first + draw(own, tf.range(self._strata.per_shard), size, chains))
            first += size
        return found[0] if len(found) == 1 else tf.concat(found, axis=-1)

    def scaled_sum(self, state: State, batch: Any, chain_shape: Any, total: int) -> tf.Tensor:
        """Returns the sum of these shards' log likelihoods, weighted by N_s/m for shard s."""
        del total
        values = self.log_likelihood(state, batch, self.batch_size, chain_shape)
        return self._sum_scale * tf.reduce_sum(self.weighted(values), axis=-1)

    def scores(
        self, state: State, batch: Any, chain_shape: Any, weights: Any = None
    ) -> tuple[tf.Tensor, State]:
        dtype = tf.nest.flatten(state)[0].dtype
        own = None if self.row_weights is None else tf.cast(self.row_weights, dtype)
        both = own if weights is None else weights if own is None else own * weights
        return super().scores(state, batch, chain_shape, both)

    def gathered(self, fn: Callable[[Any], Any], axis: int) -> Any:
        """Returns the rows `fn(self)`, rescaled to the covariance of a stratified sum."""
        rows = fn(self)
        return self.restored(self.spread(rows, axis), self.sums(rows, axis), axis)

    def sums(self, rows: Any, axis: int) -> Any:
        """Returns the sums of rows."""
        return tf.nest.map_structure(lambda x: tf.reduce_sum(x, axis), rows)

    def spread(self, rows: Any, axis: int) -> Any:
        """Returns rows minus the means of their shards, times the shards' spread."""

        def of(x: tf.Tensor) -> tf.Tensor:
            held = len(self._numbers)
            q = x.shape[axis] // held
            if q == 1:  # one row per shard has no covariance within the shard
                return x
            shape, behind, inner = tf.shape(x), x.shape.rank - axis - 1, [held, q]
            spreads = self._strata.spreads(q)[self._numbers]
            apart = tf.reshape(x, tf.concat([shape[:axis], inner, shape[axis + 1 :]], 0))
            apart -= tf.reduce_mean(apart, axis=axis + 1, keepdims=True)
            factors = tf.constant(spreads.reshape([-1, *[1] * (behind + 1)]), x.dtype)
            return tf.ensure_shape(tf.reshape(apart * factors, shape), x.shape)

        return tf.nest.map_structure(of, rows)

    def restored(self, rows: Any, sums: Any, axis: int) -> Any:
        """Adds the mean of the original rows, given their `sums`, to the spread rows."""

        def of(x: tf.Tensor, t: tf.Tensor) -> tf.Tensor:
            count = x.shape[axis]
            if count == len(self._strata.sizes):
                return x
            return x + tf.expand_dims(t / count, axis)

        return tf.nest.map_structure(of, rows, sums)
