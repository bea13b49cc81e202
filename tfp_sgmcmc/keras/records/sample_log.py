"""The samples that a chain has left so far: in host memory, or on a disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfp_sgmcmc.storage.checkpoint import Checkpoint, check_same, load
from tfp_sgmcmc.storage.directory import CHECKPOINT, Resume, RunDirectory
from tfp_sgmcmc.storage.variable import Variable

_GROUP, _NUMBERS = "posterior/", "variables"
_BLOCK_BYTES = 2**25  # of samples read at once
_SCOPES = ("any fit, ", "fit ")  # of values that describe the problem


def stored_settings(path: str | os.PathLike[str] | None) -> dict[str, Any]:
    """Returns the settings of the run in a directory, by name; empty if there is no run."""
    if path is None or not (Path(path) / CHECKPOINT).is_file():
        return {}
    return load(Path(path) / CHECKPOINT).header["fingerprint"]


class SampleLog:
    """Samples in memory."""

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
        """The steps that left the samples, counted from 0, `[num_samples]`."""
        return self._joined()[-2] if self._chunks else np.zeros([0], np.int64)

    @property
    def step_sizes(self) -> np.ndarray:
        """The sizes of these steps, `[num_samples]`; NaN if the kernel has none."""
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

    def append(
        self,
        recorded: Sequence[keras.Variable],
        values: list[np.ndarray],
        steps: np.ndarray,
        step_sizes: np.ndarray,
    ) -> None:
        """Adds new samples of the recorded variables, with the steps that left them."""
        del recorded
        self._chunks.append([*values, steps, step_sizes])

    def _joined(self) -> list[np.ndarray]:
        if len(self._chunks) > 1:
            self._chunks = [[np.concatenate(parts) for parts in zip(*self._chunks, strict=True)]]
        return self._chunks[0] if self._chunks else []


class StoredSampleLog:
    """Samples on a disk, with all that a chain needs to go on from them.

    It is used as `SampleLog` is. Arrays read from the disk what is sliced out of them.

    Args:
      path: a directory, which is made if there is none.
      fingerprint: values that must be the same for the chain to go on.
      num_chains: C, or None for samples without an axis of chains.
      resume: see `Directory`; later fits of a callback go on with its own run.

    Raises:
      ValueError: `RunDirectory` refuses the path.
      ModuleNotFoundError: zarr is not installed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fingerprint: Mapping[str, Any],
        num_chains: int | None,
        resume: Resume = "auto",
    ):
        self.resume: Resume = resume
        self.path, self.fingerprint, self.num_chains = path, dict(fingerprint), num_chains
        self._problem: dict[str, Any] = {}  # as described by the fits so far
        self._saved_problem: dict[str, Any] = {}
        self._run: RunDirectory  # opened by the first fit
        self._is_open = False
        self._numbers: dict[int, int] = {}  # positions of the model's variables, by id
        self._names: list[str] = []  # names of the recorded variables; none before the first sample

    def open(
        self,
        model: keras.Model,
        kernel_description: Mapping[str, Any],
        problem: Mapping[str, Any],
    ) -> tuple[Checkpoint | None, list[keras.Variable]]:
        """Locks the directory; returns the saved chain, and the variables recorded there.

        Args:
          model: the model.
          kernel_description: values that must be the same for the chain to go on.
          problem: values that must be as far as they were known before. Their names begin with
            "any fit" or "fit" and a number.
        """
        self._problem |= problem
        self.fingerprint |= kernel_description
        if self._is_open:  # by a fit that was interrupted
            if self._names:
                self._run.add_to_fingerprint(self._problem)
            return None, []
        num_before = len(self)
        run = RunDirectory(self.path, self.resume)
        try:
            saved_run = run.saved()
            if saved_run is not None:
                before = saved_run.header["fingerprint"]
                # Numbers first: shapes of samples may differ because of them.
                both = {n: before[n] for n in self.fingerprint if n in before}
                check_same(f"The run in {self.path}", both, {n: self.fingerprint[n] for n in both})
                self._saved_problem = {n: x for n, x in before.items() if n.startswith(_SCOPES)}
            recorded, names = self._saved_variables(run, model)
            saved = self._start(run, recorded, names) if recorded else None
            if num_before not in (0, run.num_committed):
                raise ValueError(
                    f"The run in {self.path} must have the {num_before} samples that this "
                    f"callback left there. Received: {run.num_committed}, so another callback went "
                    "on with it. Make a new callback."
                )
        except BaseException:
            run.close()
            raise
        self._run, self._is_open, self.resume = run, True, "auto"
        return saved, recorded

    def describe(self, kernel_description: Mapping[str, Any]) -> None:
        """Takes on a kernel that was chosen after `open`, before the first sample."""
        self.fingerprint |= kernel_description

    def close(self) -> None:
        """Releases the directory; the samples can still be read."""
        self._run.close()
        self._is_open = False

    def __len__(self) -> int:
        return self._run.num_draws if self._names else 0

    @property
    def values(self) -> list[Any]:
        """Arrays `[num_samples, ...]` on the disk; samples in memory are written there first."""
        if not self._names:
            return []
        self._run.store.finish()
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
        self._run.store.finish()
        return np.asarray(self._run.draws("sample_stats", name))

    def append(
        self,
        recorded: Sequence[keras.Variable],
        values: list[np.ndarray],
        steps: np.ndarray,
        step_sizes: np.ndarray,
    ) -> None:
        self._start_new(recorded)
        posterior = dict(zip(self._names, values, strict=True))
        stats = {"step": steps, "step_size": step_sizes.astype(np.float64)}
        self._run.append({"posterior": posterior, "sample_stats": stats})

    def commit(
        self, recorded: Sequence[keras.Variable], nests: Mapping[str, Any], finish: bool
    ) -> None:
        """Makes samples and chain safe (see `RunDirectory.commit`)."""
        self._start_new(recorded)
        self._run.commit(nests, finish)

    def _start_new(self, recorded: Sequence[keras.Variable]) -> None:
        """Starts the run, unless it has started, once it is known what is recorded."""
        if not self._names:
            self._start(self._run, recorded, [v.path.replace("/", ".") for v in recorded])

    def _start(
        self, run: RunDirectory, recorded: Sequence[keras.Variable], names: list[str]
    ) -> Checkpoint | None:
        groups = stored_arrays(names, recorded, self.num_chains)
        if len(groups["posterior"]) < len(recorded):
            raise ValueError(
                "The variables' paths must differ; give the layers different names. Received: "
                f"{', '.join(v.path for v in recorded)}."
            )
        self._names = names
        numbers = [self._numbers[id(v)] for v in recorded]
        known = {n: self._problem.get(n, x) for n, x in self._saved_problem.items()}
        saved = run.start(
            groups,
            {**self.fingerprint, **known, _NUMBERS: numbers},
        )
        run.add_to_fingerprint(self._problem)
        return saved

    def _saved_variables(
        self, run: RunDirectory, model: keras.Model
    ) -> tuple[list[keras.Variable], list[str]]:
        """Returns the variables that a run has samples of, and their names in the run.

        A variable is identified by its position: Keras gives it another name if the model is made
        a second time in one process.
        """
        self._numbers = {id(v): i for i, v in enumerate(model.variables)}
        checkpoint = run.saved()
        if checkpoint is None:
            return [], []
        saved = checkpoint.header["fingerprint"]
        names = [n.removeprefix(_GROUP) for n in saved if n.startswith(_GROUP)]
        return recorded_variables(checkpoint, model), names


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
    """Returns the variables that a run has samples of.

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
