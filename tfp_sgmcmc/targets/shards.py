"""The shards of a data set: which ones a process holds, and whether all fit together."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import __version__
from tfp_sgmcmc.internal.replicas import Replicas
from tfp_sgmcmc.targets.data import as_tensors, assert_finite, checksum, form_of, leading_axis
from tfp_sgmcmc.targets.stratified import Strata


class Shards(NamedTuple):
    """The shards of a data set.

    Attributes:
      held: the data of those that this process holds, by number.
      sizes: number of rows of each shard, `[S]`.
      row_bytes: bytes of a row.
      checksums: a checksum of the rows of each shard.
    """

    held: dict[int, Any]
    sizes: np.ndarray
    row_bytes: int
    checksums: list[str]


def load_shards(
    load_shard: Callable[[int], Any],
    num_shards: int,
    dtype: Any,
    replicas: Replicas | None,
    arguments: dict[str, Any],
) -> Shards:
    """Loads the shards that the replicas of this process hold, r those with s % R == r.

    Args:
      load_shard: shard number -> nest of arrays.
      num_shards: S.
      dtype: what floating arrays are cast to; None keeps them.
      replicas: all replicas; None is one replica, which holds all shards.
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
                with on_device_of(replicas, replica):
                    shards[s] = as_tensors(load_shard(s), dtype, name)
                rows = leading_axis(shards[s], name)
                for leaf in tf.nest.flatten(shards[s]):
                    assert_finite(leaf, name)
                # JSON has strings for names.
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
    return Shards(held, np.array(sizes, np.int64), row_bytes[0], list(checksums))


def on_device_of(replicas: Replicas | None, replica: int) -> Any:
    """Returns a context in which tensors are made on the device of a replica of this process."""
    return tf.device(None if replicas is None else replicas.device_of(replica))


def on_device_of_part(target: Any, part: Any) -> Any:
    """Returns a context in which tensors are made where a part of a target is."""
    replicas = getattr(target, "replicas", None)
    return contextlib.nullcontext() if replicas is None else on_device_of(replicas, part.number)


def check_sizes(strata: Strata, num_examples: int) -> None:
    """Raises ValueError unless the shards have N rows, and each has as many as are drawn of it."""
    total, count = int(strata.sizes.sum()), len(strata.sizes)
    if total != num_examples:
        sizes = ", ".join(map(str, strata.sizes[:10])) + (" ..." if count > 10 else "")
        raise ValueError(
            f"num_examples must be {total}, the number of rows of all shards. Received: "
            f"{num_examples}, and shards of {sizes} rows."
        )
    smallest = int(strata.sizes.argmin())
    if not strata.replacement and strata.sizes[smallest] < strata.per_shard:
        raise ValueError(
            f"batch_size must be at most {count * strata.sizes[smallest]}, because it takes "
            f"equally many rows of each shard, and shard {smallest} has {strata.sizes[smallest]}. "
            f"Received: {count * strata.per_shard} with {count} shards."
        )


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
