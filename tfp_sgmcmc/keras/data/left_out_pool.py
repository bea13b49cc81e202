"""The pool of training rows that some chains never see, with which an ensemble is judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from tfp_sgmcmc.internal.checks import nonnegative_weights
from tfp_sgmcmc.keras.data.training_data import Source
from tfp_sgmcmc.keras.model.internals import map_arrays
from tfp_sgmcmc.keras.model.rows_of_chains import RowsOfChains, folds, num_missed, row_hashes

_SHARE, _MOST = 0.4, 400  # of the rows, and rows


class LeftOutPool(NamedTuple):
    """The rows of the pool.

    Attributes:
      rows: decides which rows of a batch each chain sees.
      x: their inputs, a nest of arrays `[q, ...]`.
      y: their targets, in the same form.
      fold: the first of the two chains that never see a row, `[q]`; the other one follows it.
    """

    rows: RowsOfChains
    x: Any
    y: Any
    fold: np.ndarray


def left_out_pool(
    source: Source, num_examples: int, num_chains: int, key: int
) -> LeftOutPool | None:
    """Returns a pool of min(0.4 N, 400) rows; None if rows cannot be read twice alike.

    The data are read once, and data that are not arrays twice: rows that an augmentation has
    changed do not come again.

    Args:
      source: the data of `fit`.
      num_examples: N.
      num_chains: C.
      key: see `RowsOfChains`.

    Raises:
      ValueError: the rows' weights are all zero, or one is negative.
    """
    if source.passes is None:
        return None
    size = int(min(_SHARE * num_examples, _MOST))
    # All rows below this hash are candidates; fewer than `size` are so once in 10^6 times.
    share = min(1.0, (size + 5 * size**0.5 + 5) / num_examples)
    found = _candidates(source.passes(), key, int(share * 2**32))
    if found is None:
        return None
    hashes, x, y, mean_weight = found
    order = np.argsort(hashes, kind="stable")
    bound = int(hashes[order[size]]) if size < len(order) else int(share * 2**32)
    chosen = order[hashes[order] < bound]
    if not len(chosen) or not _come_again(source, key, hashes[chosen]):
        return None
    x, y = (map_arrays(lambda a: a[chosen], nest) for nest in (x, y))
    fold = np.asarray(folds(hashes[chosen], num_chains))
    num_seen = num_examples - num_missed(fold, num_chains)
    rows = RowsOfChains(bound, num_chains, key, num_seen, mean_weight)
    return LeftOutPool(rows, x, y, fold)


def _candidates(
    passes: Iterator[Any], key: int, bound: int
) -> tuple[np.ndarray, Any, Any, float] | None:
    """Returns hashes, inputs and targets of rows with hashes below a bound, and the mean weight."""
    parts, known = [], []
    for x, y, weight in passes:
        known.append(_flat_weights(weight))
        hashes = row_hashes(x, key).numpy()
        below = np.flatnonzero(hashes < bound)
        if len(below):
            nests = map_arrays(lambda a, rows=below: np.asarray(a)[rows], (x, y))
            parts.append((hashes[below], *nests))
    if not parts:
        return None
    hashes, x, y = zip(*parts, strict=True)
    flat = np.concatenate(known)
    nonnegative_weights("sample_weight", flat)
    mean = float(flat.mean(dtype=np.float64)) if len(flat) else 1.0
    return np.concatenate(hashes), _joined(x), _joined(y), mean


def _flat_weights(weight: Any) -> np.ndarray:
    """Returns the weights of a batch's rows; none if there are none, or several for a row."""
    leaves = [] if weight is None else keras.tree.flatten(weight)
    if len(leaves) != 1 or leaves[0] is None or np.prod(leaves[0].shape[1:]) != 1:
        return np.zeros(0)
    return np.ravel(leaves[0])


def _joined(nests: Sequence[Any]) -> Any:
    """Returns nests of arrays concatenated leaf by leaf; leaves may be None."""
    return keras.tree.map_structure(lambda *a: None if a[0] is None else np.concatenate(a), *nests)


def _come_again(source: Source, key: int, hashes: np.ndarray) -> bool:
    """Returns whether another pass over data that are not arrays has rows of these hashes."""
    if source.arrays is not None:
        return True
    assert source.passes is not None
    missing = set(hashes.tolist())
    for x, _, _ in source.passes():
        missing -= set(row_hashes(x, key).numpy().tolist())
        if not missing:
            return True
    return False
