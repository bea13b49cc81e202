"""Minibatches for a running chain: the driver's side of `StreamedLogProb`."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import tree

from tfp_sgmcmc.targets import Target
from tfp_sgmcmc.targets.streamed import StreamedLogProb, StreamState


class Feed:
    """Exchanges the batches in a kernel's results when its steps have used them.

    Args:
      target: whose batches they are; with any other there is nothing to do.
      results: of the kernel, where the run starts or goes on.
      must_repeat: whether to warn of a dataset with which the run could not go on.

    Raises:
      ValueError: the dataset gives other batches now than those in the results, of which some were
        used.
    """

    def __init__(self, target: Target | None, results: Any, must_repeat: bool = False):
        self._target = target if isinstance(target, StreamedLogProb) else None
        if self._target is None:
            return
        found: list[StreamState] = []
        tree.traverse(lambda x: found.append(x) if isinstance(x, StreamState) else None, results)
        leaves, batches = tree.flatten(results), tree.flatten(found[0].batches)
        # Where they are, found once: `tree.traverse` leaves reference cycles behind, which hold
        # what it saw, batches of many megabytes, until the garbage collector comes.
        self._batches = [_index(leaves, x) for x in batches]
        self._position = _index(leaves, found[0].position)
        self._must_repeat = must_repeat
        step, size = int(found[0].position), self._target.batches_per_read
        start = max(step - 1, 0) // size * size  # of the batches in the results
        self._reads = self._target.reads(start)
        if step and not _are_same(batches, tree.flatten(next(self._reads))):
            raise ValueError(
                f"The run cannot go on from step {step}: the dataset gives other batches now than "
                f"it gave before (those of the steps {start} .. {start + size - 1} were compared). "
                f"{_REPEATABLE}"
            )

    def __call__(self, results: Any) -> tuple[Any, int | None]:
        """Returns results that have batches left, and for how many steps (None: for ever)."""
        if self._target is None:
            return results, None
        leaves = tree.flatten(results)
        step = int(leaves[self._position])
        used = step % self._target.batches_per_read
        if used == 0:
            new = tree.flatten(next(self._reads))
            before = [leaves[at] for at in self._batches]
            # Before the first step, they were read once already.
            if step == 0 and self._must_repeat and not _are_same(before, new):
                warnings.warn(
                    "The dataset gives other batches when it is read again, so that this run "
                    f"cannot go on when it is cut off. {_REPEATABLE}",
                    stacklevel=4,
                )
            for at, batch in zip(self._batches, new, strict=True):
                leaves[at] = batch
            results = tree.unflatten_as(results, leaves)
        return results, self._target.batches_per_read - used


_REPEATABLE = (
    "The order of an epoch has to depend on its number alone, as that of "
    "`lambda epoch: examples.shuffle(buffer_size, seed=epoch).batch(n, drop_remainder=True)`, "
    "given in place of a dataset that shuffles by itself."
)


def _are_same(batches: list[Any], others: list[Any]) -> bool:
    """Whether all bits are; a NaN is one like any other number."""

    def bits(x: Any) -> np.ndarray:
        return np.asarray(x).view(np.uint8)

    return all(np.array_equal(bits(x), bits(y)) for x, y in zip(batches, others, strict=True))


def _index(leaves: list[Any], wanted: Any) -> int:
    return next(i for i, x in enumerate(leaves) if x is wanted)
