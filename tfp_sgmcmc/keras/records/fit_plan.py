"""The lines that a verbose `fit` prints: its plan, its phases, and the checks that failed.

The plan predicts the number of samples, and the memory and disk that they take.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import keras
import tensorflow as tf

from tfp_sgmcmc.internal import memory
from tfp_sgmcmc.keras.chain.chain_state import Status
from tfp_sgmcmc.keras.chain.collection import NEVER, Collection
from tfp_sgmcmc.keras.records.sample_log import stored_arrays
from tfp_sgmcmc.storage.zarr_store import bytes_on_disk


class FitPlan(NamedTuple):
    """The number of samples that a `fit` adds, and the bytes that they take.

    Attributes:
      num_samples: number of samples, counting all chains of a step as one; None if the number of
        batches is unknown.
      is_exact: whether `num_samples` is exact. Otherwise it is an upper bound, because `keep`, a
        `mixing_distance` or a `sampling_threshold` decides during the run.
      bytes_of_sample: bytes of one sample, with all chains and moving statistics.
      memory: bytes of the samples in host memory; 0 with a `directory`, None if unknown.
      device: bytes on the device of samples that wait for the host, and of several chains.
      disk: bytes of the files of samples; 0 without a `directory`, None if unknown.
      directory: the directory of the samples, or None.
    """

    num_samples: int | None
    is_exact: bool
    bytes_of_sample: int
    memory: int | None
    device: int
    disk: int | None
    directory: str | None

    def __str__(self) -> str:
        size = memory.readable(self.bytes_of_sample)
        device = f"; {memory.readable(self.device)} on the device"
        if self.num_samples is None or self.memory is None or self.disk is None:
            return f"Samples of {size} each, of an unknown number of batches{device}."
        many = f"{'' if self.is_exact else 'at most '}{self.num_samples}"
        place = f"{memory.readable(self.memory)} in memory"
        if self.directory is not None:
            place = f"{memory.readable(self.disk)} on disk in {self.directory}"
        return f"This fit keeps {many} samples of {size} each: {place}{device}."

    def check_disk(self) -> None:
        """Raises OSError if the disk has no room for a known number of samples."""
        if self.directory is None or not self.disk or not self.is_exact:
            return
        free = _free(self.directory)
        if free is not None and self.disk > free:
            raise OSError(
                errno.ENOSPC,
                f"directory must be on a disk with room for the {self.num_samples} samples that "
                f"fit will keep: {memory.readable(self.disk)}. Received: {self.directory}, with "
                f"{memory.readable(free)} free. Keep fewer states (num_steps_between_results, "
                "num_burnin_steps), or use another disk.",
            )


def make_plan(
    collection: Collection,
    recorded: Sequence[keras.Variable],
    num_chains: int | None,
    directory: str | os.PathLike[str] | None,
    num_samples: int | None,
    most_steps: int,
) -> FitPlan:
    """Returns the plan of a fit that keeps `num_samples` of the `recorded` variables.

    `most_steps` is the number of steps of its longest execution.
    """
    chains = [] if num_chains is None else [num_chains]
    sizes = [math.prod([*chains, *v.shape]) * tf.as_dtype(v.dtype).size for v in recorded]
    numbers = 8 + tf.as_dtype(recorded[0].dtype).size  # the step, and its size
    device = collection.num_slots(most_steps) * (sum(sizes) + numbers)
    device += 0 if num_chains is None else sum(sizes)
    known, stored = num_samples, stored_arrays([v.path for v in recorded], recorded, num_chains)
    return FitPlan(
        num_samples,
        num_samples is not None and collection.is_planned,
        sum(sizes),
        0 if directory is not None else known and known * sum(sizes),
        device,
        0 if directory is None else known and bytes_on_disk(stored, known),
        None if directory is None else os.fspath(directory),
    )


def num_due(
    collection: Collection,
    before: int,
    first: int,
    batches: int | None,
    epochs: int,
    burnin_epochs: int,
) -> int | None:
    """Returns how many samples the remaining epochs keep at most; None if that is unknown.

    Args:
      collection: selects the states to keep.
      before: steps so far.
      first: the first step that may be kept, as far as the chain knows.
      batches: steps of an epoch, or None.
      epochs: remaining epochs.
      burnin_epochs: how many of them belong to the burn-in.
    """
    if batches is None:
        return None
    if burnin_epochs:
        first = max(before + batches * burnin_epochs, collection.num_burnin_steps)
    elif collection.is_open:  # a threshold may end burn-in at any later step
        first = min(first, max(before, collection.num_burnin_steps))
    after = before + batches * epochs
    if collection.distance is not None:
        return max(0, after - max(first, before))
    return collection.num_due(first, after) - collection.num_due(first, before)


def _free(path: Any) -> int | None:
    """Returns the free bytes on the disk of a path, or None if unknown."""
    place = Path(path).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return None


class Phase:
    """Reports when a pilot, burn-in or sampling has begun."""

    def __init__(self) -> None:
        self._last: Literal["pilot", "burn-in", "sampling"] | None = None

    def line(self, status: Status, is_pilot: bool, burnin_epochs: int) -> str | None:
        """Returns a line if the phase has changed since the last call.

        Args:
          status: the status of the chain.
          is_pilot: whether the chain belongs to a pilot.
          burnin_epochs: remaining epochs of the burn-in, including the pilot.
        """
        last = self._last
        if is_pilot:
            self._last = "pilot"
        else:
            self._last = "sampling" if status.first_kept <= status.num_steps else "burn-in"
        if self._last == last or (last is None and self._last == "sampling"):
            return None
        if self._last == "pilot":
            return f"Pilot. It and the burn-in take {burnin_epochs} epochs."
        if self._last == "sampling":
            kept = "" if not status.num_kept else f" ({status.num_kept} samples so far)"
            return f"Sampling since step {status.first_kept}{kept}."
        if status.first_kept < NEVER:
            return f"Burn-in until step {status.first_kept}."
        if burnin_epochs:
            return f"Burn-in for {burnin_epochs} epochs."
        return "Burn-in until the sampling threshold is reached."


class CheckResults:
    """Holds the latest result of each check, for the logs and for printed lines."""

    def __init__(self) -> None:
        self._failed: dict[str, bool] = {}
        self._printed: list[str] = []

    def record(self, check: str, has_failed: bool | None) -> None:
        """Records the result of a check; None if nothing was measured."""
        if has_failed is not None:
            self._failed[check] = has_failed

    @property
    def failed(self) -> list[str]:
        """The names of the checks whose latest result is a failure."""
        return [name for name, has_failed in self._failed.items() if has_failed]

    @property
    def logs(self) -> dict[str, float]:
        """The number of failed checks; empty if none was made."""
        return {"failed_checks": float(sum(self._failed.values()))} if self._failed else {}

    def line(self) -> str | None:
        """Returns a line with the failed checks, if they have changed since the last call.

        >>> results = CheckResults()
        >>> results.record("step size", True)
        >>> results.line(), results.line()
        ('Failed checks: step size.', None)
        >>> results.record("step size", False)
        >>> results.line()
        'All checks pass again.'
        """
        failed = self.failed
        if failed == self._printed:
            return None
        self._printed = failed
        return f"Failed checks: {', '.join(failed)}." if failed else "All checks pass again."
