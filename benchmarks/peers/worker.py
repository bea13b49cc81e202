"""A side of a comparison: a process that is asked for timings in JSON lines."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from benchmarks.peers.steps_settings import accuracy

ROOT = Path(__file__).resolve().parents[2]


class Case(NamedTuple):
    """A chain to be timed."""

    batch_size: int  # n
    num_chains: int  # number of chains; 1 stands for a state without chain dimension
    shared_batch: bool  # whether all chains share minibatches
    replacement: bool  # whether minibatches are drawn with replacement
    keep_all: bool  # whether every state is returned, or only the last
    num_steps: int  # steps of a call
    sampler: str = "SGLD"  # name of the sampler


Runner = Callable[[int], list[np.ndarray]]  # seed -> parts of the last states of all chains


def serve(make_runner: Callable[[Case, np.ndarray, np.ndarray], Runner], versions: str) -> None:
    """Answers requests from standard input until it ends; the first one of a case also compiles.

    The data are in the file that the command line names. An answer also gives the accuracy of the
    last states on the training data, because a chain that does not move is fast, too. If
    `make_runner` raises NotImplementedError, the answer is that the side lacks the case.
    """
    data = np.load(sys.argv[1])
    x, y = data["x"], data["y"]
    runners: dict[Case, Runner] = {}
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of libraries goes to standard error
    print(json.dumps({"versions": versions}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        case = Case(*request["case"])
        if case not in runners:
            try:
                runners[case] = make_runner(case, x, y)
            except NotImplementedError as error:
                print(json.dumps({"lacks": str(error)}), file=answers)
                continue
            runners[case](0)
        start = time.perf_counter()
        last = runners[case](request["seed"])
        seconds = time.perf_counter() - start
        answer = {"us": 1e6 * seconds / case.num_steps, "accuracy": accuracy(last, x, y)}
        print(json.dumps(answer), file=answers)


class Worker:
    """A running side, restricted to `cores` if these are given (Linux only)."""

    def __init__(self, python: Path | str, module: str, data: Path, cores: set[int] | None):
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (it outlives this call)
        self._process = subprocess.Popen(
            [python, "-m", module, data],
            cwd=ROOT,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            preexec_fn=None if cores is None else lambda: os.sched_setaffinity(0, cores),
        )
        self.versions: str = self._answer()["versions"]

    def time(self, case: Case, seed: int) -> float:
        """Returns microseconds a step of one call, or NaN if this side lacks the case.

        Raises:
          RuntimeError: the process ended, or the last states do not classify the data.
        """
        _pipe(self._process.stdin).write(json.dumps({"case": case, "seed": seed}) + "\n")
        _pipe(self._process.stdin).flush()
        answer = self._answer()
        if "lacks" in answer:
            return math.nan
        if not answer["accuracy"] >= 0.9:  # also true for NaN
            raise RuntimeError(f"accuracy {answer['accuracy']:.3f} in {case}: not the posterior")
        return answer["us"]

    def close(self) -> None:
        self._process.communicate()
        self._errors.close()

    def _answer(self) -> dict[str, Any]:
        line = _pipe(self._process.stdout).readline()
        if not line:
            self._errors.seek(0)
            raise RuntimeError(f"{self._process.args} ended:\n{self._errors.read()}")
        return json.loads(line)


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
