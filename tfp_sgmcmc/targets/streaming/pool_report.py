"""How a pool of rows was drawn, and the error that it leaves."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

# Errors by the pool, in standard deviations of a mean and as a share of a standard deviation.
MOST_MEAN_ERROR, MOST_WIDTH_ERROR = 0.02, 0.01


class Pass(NamedTuple):
    """A pass over the data.

    Attributes:
      num_rows: the rows that were read.
      seconds: the time that it took.
    """

    num_rows: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class PoolReport:
    """How a pool was drawn, and the error that it leaves.

    Attributes:
      num_examples: N.
      num_rows: M, the rows in memory.
      passes: the passes over the data that were made.
      mean_error: standard error that the pool causes in posterior means, in standard deviations,
        in the worst direction of whitened coordinates. 0 if all rows are in memory.
      width_error: the same of standard deviations, as a share.
      offset: the distance from the center to the mode, in standard deviations.
    """

    num_examples: int
    num_rows: int
    passes: tuple[Pass, ...]
    mean_error: float = 0.0
    width_error: float = 0.0
    offset: float = 0.0

    @property
    def lines(self) -> tuple[str, ...]:
        """What was done, in plain words."""
        seconds = ", ".join(f"{p.seconds:.3g} s" for p in self.passes)
        read, count = self.passes[0], len(self.passes)
        rate = read.num_rows / max(read.seconds, 1e-9)
        took = (
            f"{count} pass{'es' * (count > 1)} over the {self.num_examples} rows on disk took "
            f"{seconds} (the first, which only reads, {rate:.3g} rows a second)."
        )
        dropped = self.num_examples - read.num_rows
        if dropped:
            took += f" The dataset drops the last {dropped} rows, which do not fill a batch."
        if self.num_rows == read.num_rows:
            return (f"{took} All rows fit into memory and were loaded.",)
        return (
            f"{took} The sum of all log likelihoods is known exactly to second order at a center "
            f"{self.offset:.2g} standard deviations from the mode. What is beyond is estimated by "
            f"a pool of {self.num_rows} rows in memory, which were drawn in proportion to it. The "
            f"pool's standard errors are {self.mean_error:.1g} standard deviations in means and "
            f"{100 * self.width_error:.1g} % in standard deviations. Below, the examples are "
            "those of the pool.",
        )

    @property
    def flags(self) -> tuple[str, ...]:
        """A warning if the pool is too small."""
        if self.mean_error < MOST_MEAN_ERROR and self.width_error < MOST_WIDTH_ERROR:
            return ()
        return (
            f"The pool of {self.num_rows} rows is too small: its standard errors are "
            f"{self.mean_error:.2g} standard deviations in means and "
            f"{100 * self.width_error:.2g} % in standard deviations. Raise memory= of the "
            "StreamedLogProb.",
        )
