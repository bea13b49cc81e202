"""The steps of a run, and how many of them one call takes."""

from __future__ import annotations

from typing import NamedTuple


class Plan(NamedTuple):
    """The steps of a run.

    Attributes:
      num_results: number of draws to keep.
      num_burnin_steps: number of steps before the one of the first draw.
      stride: steps from one kept draw to the next.
    """

    num_results: int
    num_burnin_steps: int
    stride: int

    @property
    def num_steps(self) -> int:
        return self.num_burnin_steps + 1 + (self.num_results - 1) * self.stride

    def next(self, step: int, done: int, max_rows: int, max_steps: int) -> tuple[int, int]:
        """Returns the number of draws that the next call keeps, and of steps to the first of them.

        >>> plan = Plan(num_results=10, num_burnin_steps=5, stride=2)
        >>> plan.next(step=0, done=0, max_rows=100, max_steps=4)  # 4 steps, nothing kept
        (0, 4)
        >>> plan.next(step=4, done=0, max_rows=100, max_steps=8)  # steps 6, 8, 10, 12 are kept
        (4, 2)

        Args:
          step: number of steps taken.
          done: number of draws kept.
          max_rows: largest number of draws that a call can keep.
          max_steps: number of steps that a call should take.
        """
        first = self.num_burnin_steps + 1 + done * self.stride - step
        if first > max_steps:
            return 0, max_steps
        rows = 1 + (max_steps - first) // self.stride
        return min(rows, max_rows, self.num_results - done), first


class Pace:
    """The number of steps in a call that takes `seconds`; it begins with one step."""

    _MOST_GROWTH = 8

    def __init__(self, seconds: float):
        self._seconds = seconds
        self.max_steps = 1

    def took(self, steps: int, seconds: float) -> None:
        """Learns how long the last call took."""
        wanted = int(self._seconds * steps / max(seconds, 1e-9))
        self.max_steps = max(1, min(wanted, self._MOST_GROWTH * self.max_steps, 2**30))
