"""The samples of a chain on several workers, of which worker 0 alone writes a directory."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.keras.distributed import messages
from tfp_sgmcmc.keras.records.sample_log import SampleLog, StoredSampleLog, recorded_variables
from tfp_sgmcmc.storage.checkpoint import Checkpoint, load


def on_worker(
    log: SampleLog | StoredSampleLog, strategy: tf.distribute.Strategy
) -> SampleLog | StoredSampleLog:
    """Returns the log of the same run for this worker; in memory, all workers have one."""
    if type(log) is not StoredSampleLog or not messages.are_several(strategy):
        return log
    kind = FirstWorkerLog if messages.is_first(strategy) else OtherWorkerLog
    return kind(strategy, log.path, log.fingerprint, log.num_chains, log.resume)


class FirstWorkerLog(StoredSampleLog):
    """Samples on the disk of worker 0, which sends the others the chain that it goes on from."""

    def __init__(self, strategy: tf.distribute.Strategy, *arguments: Any):
        super().__init__(*arguments)
        self._strategy = strategy

    def open(
        self,
        model: keras.Model,
        kernel_description: Mapping[str, Any],
        problem: Mapping[str, Any],
    ) -> tuple[Checkpoint | None, list[keras.Variable]]:
        found: list[tuple[Checkpoint | None, list[keras.Variable]]] = []

        def opened() -> bytes:
            found.append(super(FirstWorkerLog, self).open(model, kernel_description, problem))
            saved = found[0][0]
            return b"" if saved is None else saved.path.read_bytes()

        messages.of_first(self._strategy, opened)
        return found[0]


class OtherWorkerLog(StoredSampleLog):
    """Counts samples, and holds the last one alone; all are in the directory of worker 0."""

    def __init__(self, strategy: tf.distribute.Strategy, *arguments: Any):
        super().__init__(*arguments)
        self._strategy, self._count = strategy, 0
        self._last: tuple[list[np.ndarray], np.ndarray, np.ndarray] | None = None

    def open(
        self,
        model: keras.Model,
        kernel_description: Mapping[str, Any],
        problem: Mapping[str, Any],
    ) -> tuple[Checkpoint | None, list[keras.Variable]]:
        del kernel_description, problem  # compared by worker 0, and among the workers
        sent = messages.of_first(self._strategy, bytes)
        if not sent:
            return None, []
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "checkpoint.npz"
            path.write_bytes(sent)
            saved = load(path)
        self._count = int(saved.header["num_draws"])
        return saved, recorded_variables(saved, model)

    def describe(self, kernel_description: Mapping[str, Any]) -> None:
        del kernel_description

    def close(self) -> None:
        """Does nothing."""

    def __len__(self) -> int:
        return self._count

    @property
    def values(self) -> list[Any]:
        return [] if self._last is None else self._last[0]

    @property
    def steps(self) -> np.ndarray:
        return np.zeros([0], np.int64) if self._last is None else self._last[1]

    @property
    def step_sizes(self) -> np.ndarray:
        return np.zeros([0]) if self._last is None else self._last[2]

    def append(
        self,
        recorded: Sequence[keras.Variable],
        values: list[np.ndarray],
        steps: np.ndarray,
        step_sizes: np.ndarray,
    ) -> None:
        del recorded
        self._last = [x[-1:] for x in values], steps[-1:], step_sizes[-1:]
        self._count += len(steps)

    def commit(
        self, recorded: Sequence[keras.Variable], nests: Mapping[str, Any], finish: bool
    ) -> None:
        del recorded, nests, finish
