"""Holds the samples of a chain in host memory, on disk, or on the first of several workers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import replicas
from tfp_sgmcmc.storage.checkpoint import Checkpoint, check_same, load
from tfp_sgmcmc.storage.directory import CHECKPOINT, Resume, RunDirectory
from tfp_sgmcmc.storage.stored_draws import Variable

_GROUP, _NUMBERS = "posterior/", "variables"
_BLOCK_BYTES = 2**25  # of samples read at once
_SCOPES = ("any fit, ", "fit ")  # prefixes of the names of values that describe the problem

Opened = tuple[Checkpoint | None, list[keras.Variable]]  # a saved chain, and what is recorded there


def stored_run(path: str | os.PathLike[str] | None) -> Checkpoint | None:
    """Returns the checkpoint of the run in a directory, or None if there is no run."""
    if path is None or not (Path(path) / CHECKPOINT).is_file():
        return None
    return load(Path(path) / CHECKPOINT)


class SampleLog:
    """Holds samples in memory."""

    def __init__(self) -> None:
        # The variables' values, the steps and the step sizes.
        self._chunks: list[list[np.ndarray]] = []

    def __len__(self) -> int:
        return sum(len(chunk[-1]) for chunk in self._chunks)

    @property
    def values(self) -> list[Any]:
        """Arrays `[num_samples, ...]`, one for each recorded variable."""
        return self._joined()[:-2]

    @property
    def steps(self) -> np.ndarray:
        """The steps of the samples, counted from 0, `[num_samples]`."""
        return self._joined()[-2] if self._chunks else np.zeros([0], np.int64)

    @property
    def step_sizes(self) -> np.ndarray:
        """The sizes of these steps, `[num_samples]`; NaN for a kernel without step sizes."""
        return self._joined()[-1] if self._chunks else np.zeros([0])

    def since(self, number: int) -> Iterator[tuple[list[np.ndarray], np.ndarray]]:
        """Yields blocks of the samples after the first `number`, each with its steps."""
        before = 0
        for chunk in self._chunks:
            *values, steps, _ = chunk
            skipped = max(0, number - before)
            before += len(steps)
            if skipped < len(steps):
                yield [x[skipped:] for x in values], steps[skipped:]

    def append(self, recorded: Sequence[keras.Variable], new: list[np.ndarray]) -> None:
        """Adds new samples of the recorded variables; their steps and step sizes come last."""
        del recorded
        self._chunks.append(new)

    def _joined(self) -> list[np.ndarray]:
        if len(self._chunks) > 1:
            self._chunks = [[np.concatenate(parts) for parts in zip(*self._chunks, strict=True)]]
        return self._chunks[0] if self._chunks else []


class StoredSampleLog:
    """Holds samples on disk, with everything that a chain needs to continue from them.

    It has the interface of `SampleLog`. Its arrays read slices from disk.

    Args:
      path: a directory, which is created if necessary.
      fingerprint: values that must be the same for the chain to continue.
      num_chains: C, or None for samples without an axis of chains.
      resume: see `Directory`; later fits of a callback go on with its own run.
      strategy: of several workers, to which this one, worker 0, sends the saved chain; None has no
        others.

    Raises:
      ValueError: `RunDirectory` rejects the path.
      ModuleNotFoundError: zarr is not installed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fingerprint: Mapping[str, Any],
        num_chains: int | None,
        resume: Resume = "auto",
        strategy: tf.distribute.Strategy | None = None,
    ):
        self.resume: Resume = resume
        self.strategy = strategy
        self.path, self.fingerprint, self.num_chains = path, dict(fingerprint), num_chains
        self._problem: dict[str, Any] = {}  # as described by the fits so far
        self._saved_problem: dict[str, Any] = {}
        self._run: RunDirectory  # opened by the first fit
        self._is_open = False
        self._numbers: dict[int, int] = {}  # positions of the model's variables, by id
        self._names: list[str] = []  # names of the recorded variables; none before the first sample

    def open(
        self, model: keras.Model, settings: Mapping[str, Any], problem: dict[str, Any]
    ) -> Opened:
        """Locks the directory; returns the saved chain, and the variables recorded there.

        Args:
          model: the model.
          settings: values that must be the same for the chain to continue.
          problem: values that must be the same if they were known before. Their names begin with
            "any fit" or "fit" and a number.
        """
        self._problem |= problem
        self.fingerprint |= settings
        if self.strategy is None:
            return self._open(model)
        found: list[Opened] = []

        def opened() -> bytes:
            found.append(self._open(model))
            saved = found[0][0]
            return b"" if saved is None else saved.path.read_bytes()

        replicas.of_first(self.strategy, opened)
        return found[0]

    def _open(self, model: keras.Model) -> Opened:
        if self._is_open:  # by a fit that was interrupted
            if self._names:
                self._run.add_to_fingerprint(self._problem)
            return None, []
        num_before = len(self)
        # By position, because Keras names the variables of a second model in a process otherwise.
        self._numbers = {id(v): i for i, v in enumerate(model.variables)}
        run, saved = RunDirectory(self.path, self.resume), None
        recorded: list[keras.Variable] = []
        try:
            saved_run = run.saved()
            if saved_run is not None:
                before = saved_run.header["fingerprint"]
                # Numbers first: shapes of samples may differ because of them.
                both = {n: before[n] for n in self.fingerprint if n in before}
                check_same(f"The run in {self.path}", both, {n: self.fingerprint[n] for n in both})
                self._saved_problem = {n: x for n, x in before.items() if n.startswith(_SCOPES)}
                recorded = recorded_variables(saved_run, model)
                names = [n.removeprefix(_GROUP) for n in before if n.startswith(_GROUP)]
                saved = self._start(run, recorded, names)
            if num_before not in (0, run.num_committed):
                raise ValueError(
                    f"The run in {self.path} must have the {num_before} samples that this callback "
                    f"has written. Received: {run.num_committed}, so another callback has "
                    "continued the run. Make a new callback."
                )
        except BaseException:
            run.close()
            raise
        self._run, self._is_open, self.resume = run, True, "auto"
        self.path = run.path  # absolute
        return saved, recorded

    def close(self) -> None:
        """Releases the directory; the samples can still be read."""
        self._run.close()
        self._is_open = False

    def __len__(self) -> int:
        return self._run.num_draws if self._names else 0

    @property
    def values(self) -> list[Any]:
        """Arrays `[num_samples, ...]` on disk; samples in memory are written first."""
        if not self._names:
            return []
        self._run.finish()
        return [self._run.draws("posterior", name) for name in self._names]

    @property
    def steps(self) -> np.ndarray:
        return self._numbers_of("step", np.int64)

    @property
    def step_sizes(self) -> np.ndarray:
        return self._numbers_of("step_size", np.float64)

    def since(self, number: int) -> Iterator[tuple[list[np.ndarray], np.ndarray]]:
        """Yields blocks of the samples after the first `number`, each with its steps."""
        values, steps = self.values, self.steps
        rows = max(1, _BLOCK_BYTES // max(1, sum(x[:1].nbytes for x in values)))
        for start in range(number, len(steps), rows):
            block = slice(start, start + rows)
            yield [np.asarray(x[block]) for x in values], steps[block]

    def _numbers_of(self, name: str, dtype: type[np.generic]) -> np.ndarray:
        if not self._names:
            return np.zeros([0], dtype)
        self._run.finish()
        return np.asarray(self._run.draws("sample_stats", name))

    def append(self, recorded: Sequence[keras.Variable], new: list[np.ndarray]) -> None:
        self._start_new(recorded)
        *values, steps, step_sizes = new
        posterior = dict(zip(self._names, values, strict=True))
        stats = {"step": steps, "step_size": step_sizes.astype(np.float64)}
        self._run.append({"posterior": posterior, "sample_stats": stats})

    def commit(
        self, recorded: Sequence[keras.Variable], nests: Mapping[str, Any], finish: bool
    ) -> None:
        """Saves samples and chain (see `RunDirectory.commit`)."""
        self._start_new(recorded)
        self._run.commit(nests, finish)

    def _start_new(self, recorded: Sequence[keras.Variable]) -> None:
        """Starts the run, unless it has started, once the recorded variables are known."""
        if not self._names:
            self._start(self._run, recorded, [v.path.replace("/", ".") for v in recorded])

    def _start(
        self, run: RunDirectory, recorded: Sequence[keras.Variable], names: list[str]
    ) -> Checkpoint | None:
        groups = stored_arrays(names, recorded, self.num_chains)
        if len(groups["posterior"]) < len(recorded):
            raise ValueError(
                "The variables must have different paths. Received: "
                f"{', '.join(v.path for v in recorded)}. Give the layers different names."
            )
        numbers = [self._numbers[id(v)] for v in recorded]
        known = {n: self._problem.get(n, x) for n, x in self._saved_problem.items()}
        saved = run.start(groups, {**self.fingerprint, **known, _NUMBERS: numbers})
        self._names = names
        run.add_to_fingerprint(self._problem)
        return saved


class OtherWorkerLog(SampleLog, StoredSampleLog):
    """Counts samples and holds the last one, while worker 0 holds all in its directory."""

    def __init__(self, *arguments: Any):
        SampleLog.__init__(self)
        StoredSampleLog.__init__(self, *arguments)
        self._count = 0

    def open(
        self, model: keras.Model, settings: Mapping[str, Any], problem: dict[str, Any]
    ) -> Opened:
        del settings, problem  # compared by worker 0, and among the workers
        assert self.strategy is not None  # of several workers
        sent = replicas.of_first(self.strategy, bytes)
        if not sent:
            return None, []
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "checkpoint.npz"
            path.write_bytes(sent)
            saved = load(path)
        self._count = int(saved.header["num_draws"])
        return saved, recorded_variables(saved, model)

    def close(self) -> None:
        """Does nothing."""

    def __len__(self) -> int:
        return self._count

    def append(self, recorded: Sequence[keras.Variable], new: list[np.ndarray]) -> None:
        self._chunks = []
        super().append(recorded, [x[-1:] for x in new])
        self._count += len(new[-1])

    def commit(
        self, recorded: Sequence[keras.Variable], nests: Mapping[str, Any], finish: bool
    ) -> None:
        del recorded, nests, finish


def on_worker(
    log: SampleLog | StoredSampleLog, strategy: tf.distribute.Strategy
) -> SampleLog | StoredSampleLog:
    """Returns the log that this worker uses for a stored run; each worker has its log in memory."""
    is_new = isinstance(log, StoredSampleLog) and log.strategy is None
    if not is_new or not replicas.are_several(strategy):
        return log
    kind = StoredSampleLog if replicas.is_first(strategy) else OtherWorkerLog
    return kind(log.path, log.fingerprint, log.num_chains, log.resume, strategy)


def stored_arrays(
    names: Sequence[str], recorded: Sequence[keras.Variable], num_chains: int | None
) -> dict[str, dict[str, Variable]]:
    """Returns the arrays of a store of samples, by group and name."""
    chains = () if num_chains is None else (num_chains,)
    variables = {
        name: Variable((*chains, *v.shape), v.dtype, len(chains))
        for name, v in zip(names, recorded, strict=True)
    }
    stats = {"step": Variable((), "int64", None), "step_size": Variable((), "float64", None)}
    return {"posterior": variables, "sample_stats": stats}


def recorded_variables(checkpoint: Checkpoint, model: keras.Model) -> list[keras.Variable]:
    """Returns the variables with samples in a run.

    Raises:
      ValueError: the model has no such variables.
    """
    numbers = checkpoint.header["fingerprint"].get(_NUMBERS, [])
    if not numbers or max(numbers) >= len(model.variables):
        raise ValueError(
            f"The run in {checkpoint.path.parent} must be a run of this model, which has "
            f"{len(model.variables)} variables. Received: samples of the variables {numbers}."
        )
    return [model.variables[i] for i in numbers]
