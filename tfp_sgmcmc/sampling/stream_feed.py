"""Supplies a running chain with the minibatches of a `StreamedLogProb`."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import tree

from tfp_sgmcmc.internal.nest import instances
from tfp_sgmcmc.targets import Target
from tfp_sgmcmc.targets.streamed import StreamedLogProb, StreamState


class Feed:
    """Replaces the batches in a kernel's results when its steps have used them.

    Args:
      target: the kernel's target. A target other than a `StreamedLogProb` needs no feed.
      results: the kernel's results where the run starts or resumes.
      must_repeat: whether to warn if the dataset gives other batches when it is read again.

    Raises:
      TypeError: the kernel takes no batches from the stream.
      ValueError: some batches in the results were used, and the dataset now gives other batches.
    """

    def __init__(self, target: Target | None, results: Any, must_repeat: bool = False):
        self._target = target if isinstance(target, StreamedLogProb) else None
        if self._target is None:
            return
        found: list[StreamState] = instances(results, StreamState)
        if not found:
            raise TypeError(
                "The kernel of a StreamedLogProb must take its batches, as the kernels of this "
                f"library do. Received: a kernel with {type(results).__name__}, which takes all "
                f"rows.{self._target.wrapping_advice}"
            )
        leaves, batches = tree.flatten(results), tree.flatten(found[0].batches)
        # Searched only once, because `tree.traverse` leaves reference cycles that hold batches of
        # many megabytes until the garbage collector runs.
        self._batches = [_index(leaves, x) for x in batches]
        self._position = _index(leaves, found[0].position)
        self._must_repeat = must_repeat
        step, size = int(found[0].position), self._target.batches_per_read
        start = max(step - 1, 0) // size * size  # first step of the batches in the results
        self._reads = self._target.reads(start)
        if step and not _are_same(batches, tree.flatten(next(self._reads))):
            raise ValueError(
                f"The run cannot go on from step {step}: the dataset gives other batches now than "
                f"before (the batches of steps {start} .. {start + size - 1} were compared). "
                f"{_REPEATABLE}"
            )

    def __call__(self, results: Any) -> tuple[Any, int | None]:
        """Returns results with unused batches, and their number of steps (None for no limit)."""
        if self._target is None:
            return results, None
        leaves = tree.flatten(results)
        step = int(leaves[self._position])
        used = step % self._target.batches_per_read
        if used == 0:
            new = tree.flatten(next(self._reads))
            before = [leaves[at] for at in self._batches]
            # The batches before the first step were read once already.
            if step == 0 and self._must_repeat and not _are_same(before, new):
                warnings.warn(
                    "The dataset gives other batches when it is read again, so this run cannot "
                    f"resume if it is cut off. {_REPEATABLE}",
                    stacklevel=5,
                )
            for at, batch in zip(self._batches, new, strict=True):
                leaves[at] = batch
            results = tree.unflatten_as(results, leaves)
        return results, self._target.batches_per_read - used


_REPEATABLE = (
    "The order of an epoch must depend only on its number. Instead of a dataset that shuffles by "
    "itself, give a function such as "
    "`lambda epoch: examples.shuffle(buffer_size, seed=epoch).batch(n, drop_remainder=True)`."
)


def _are_same(batches: list[Any], others: list[Any]) -> bool:
    """Returns whether all bits are equal, including those of NaNs."""
    pairs = zip(batches, others, strict=True)
    bits = ([np.asarray(x).view(np.uint8) for x in pair] for pair in pairs)
    return all(np.array_equal(x, y) for x, y in bits)


def _index(leaves: list[Any], wanted: Any) -> int:
    return next(i for i, x in enumerate(leaves) if x is wanted)
