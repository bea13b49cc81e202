"""The worker processes that share one chain, and what they agree on."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from tfp_sgmcmc.internal.replicas import Replicas
from tfp_sgmcmc.sampling.loop import Position, as_tensors

_MOST_STEPS = 2**24  # which a float holds exactly
_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)


class ProcessGroup:
    """The worker processes that take the steps of a run together.

    Worker 0 chooses the seed and the pace, and alone writes a directory. It sends the others what
    it read there, so they need not see its files.

    Args:
      replicas: the replicas of the kernel's target; None for one replica in one process.

    Attributes:
      replicas: as given.
      is_first: whether this is worker 0, or the only one.
    """

    def __init__(self, replicas: Replicas | None = None):
        self.replicas = replicas
        several = replicas is not None and replicas.num_workers > 1
        self._others = replicas if several else None
        self.is_first = self._others is None or self._others.is_first

    def check_same(self, describe: Callable[[], dict[str, Any]]) -> None:
        """Raises ValueError if a JSON value in `describe()` differs between workers."""
        if self._others is not None:
            self._others.check_same(self._others.together("describe its call", describe))

    def run_on_first(self, action: str, fn: Callable[[], Any]) -> Any:
        """Returns `fn()` on worker 0, and None on others; if it raises, all workers raise.

        `action` names what `fn` does, for the error on the other workers.
        """
        if self._others is None:
            return fn()
        return self._others.together(action, fn if self.is_first else lambda: None)

    def broadcast(self, nest: Any) -> Any:
        """Returns worker 0's nest of tensors (or None)."""
        if self._others is None:
            return nest
        leaves = [x for x in tree.flatten(nest) if x is not None]
        found = iter(self._others.from_first(leaves))
        return as_tensors(tree.map_structure(lambda x: None if x is None else next(found), nest))

    def agree_on_steps(
        self, max_steps: int, is_interrupted: bool, position: Position
    ) -> tuple[int, bool]:
        """Returns worker 0's number of steps for the next call, and whether any was interrupted.

        Raises:
          RuntimeError: the chains of two workers differ.
        """
        if self._others is None:
            return max_steps, is_interrupted
        check = 0
        for x in tree.flatten(position.state):
            check = zlib.crc32(np.asarray(x).tobytes(), check)
        steps, step = min(max_steps, _MOST_STEPS), int(position.step)
        found = self._others.exchange(
            [steps, is_interrupted, check >> 16, check & 0xFFFF, step >> 24, step & 0xFFFFFF]
        )
        for worker, row in enumerate(found):
            if np.any(row[2:] != found[0][2:]):
                raise RuntimeError(
                    f"The chains of workers 0 and {worker} differ by step {step}. All workers must "
                    "have processors and libraries that compute the same numbers from the same "
                    "state, because each of them takes every step."
                )
        return int(found[0][0]), bool(np.any(found[:, 1]))

    @contextmanager
    def explain_lost_worker(self, remains: Callable[[], str]) -> Generator[None]:
        """Raises RuntimeError in place of TensorFlow's error when another worker is lost.

        `remains()` is a sentence about what remains of the run.
        """
        try:
            yield
        except _LOST as error:
            if self._others is None:
                raise
            raise RuntimeError(
                "Another worker of this run was lost. Start all workers again with the same "
                f"arguments. {remains()} TensorFlow's error: {error.message[:300]}"
            ) from error
