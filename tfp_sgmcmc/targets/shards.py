"""Loads the shards of a data set that a process holds, and checks that all fit together."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import __version__
from tfp_sgmcmc.internal.replicas import Replicas, device_scope
from tfp_sgmcmc.targets.data import as_tensors, assert_finite, checksum, form_of, leading_axis


class Shards(NamedTuple):
    """The shards of a data set.

    Attributes:
      held: the data of the shards in this process, by number.
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
    """Loads the shards of this process; replica r holds the shards s with s % R == r.

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
    return Shards(held, np.array(sizes, np.int64), row_bytes[0], list(checksums))


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
