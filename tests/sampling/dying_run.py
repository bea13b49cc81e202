"""A short run that `os._exit` ends at each of its writes in turn; see `test_crash.py`.

`python -m tests.sampling.dying_run FOLDER FIRST:STEP[:mutated]...` ends it at points FIRST,
FIRST + STEP, ... and prints for each argument the number of points, or what failed. The mutated run
commits its state before the draws that led to it.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr.codecs

from tfp_sgmcmc.storage import zarr_store
from tfp_sgmcmc.storage.directory import RunDirectory
from tfp_sgmcmc.storage.stored_draws import Variable

NUM_ROUNDS, ROWS, DEAD = 3, 3, 9
VARIABLES = {
    "posterior": {"w": Variable((2,), "float32")},
    "sample_stats": {"a": Variable((), "float64")},
}


def walk(state: Any, count: int) -> list[Any]:
    """Returns the next states; only the checkpoint carries them from process to process."""
    states = []
    for _ in range(count):
        state = state * 1.5 - 0.25
        states.append(state)
    return states


def run(path: Path, mutated: bool) -> tuple[np.ndarray, np.ndarray]:
    with RunDirectory(path) as directory:
        saved = directory.start(VARIABLES, {"seed": 0})
        state, done = np.float64(1.0), 0
        if saved is not None:
            state, done = saved.restore("state", state), int(saved.restore("round", np.int64(0)))
        for number in range(done + 1, NUM_ROUNDS + 1):
            x = np.array(walk(state, ROWS))
            state = x[-1]
            carried = {"state": state, "round": np.int64(number)}
            if mutated:
                directory.commit(carried)
            directory.append(
                {"posterior": {"w": np.stack([x, -x], axis=1)}, "sample_stats": {"a": x}}
            )
            directory.commit(carried, finish=number == NUM_ROUNDS)
        return tuple(
            np.asarray(directory.draws(group, name))
            for group, name in (("posterior", "w"), ("sample_stats", "a"))
        )


def in_child(action: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_at(path: Path, count: int, mutated: bool) -> None:
    """Runs until a file below `path` is written, renamed or removed for the n-th time."""
    seen = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if not writes and event not in ("os.rename", "os.remove", "os.link", "os.mkdir"):
            return
        if str(path) in str(arguments[0]):
            seen += 1
            if seen == count:
                os._exit(DEAD)

    sys.addaudithook(hook)
    run(path, mutated)


def go_on(path: Path, mutated: bool) -> None:
    w, a = run(path, mutated)
    np.testing.assert_array_equal(a, walk(np.float64(1.0), NUM_ROUNDS * ROWS))
    np.testing.assert_array_equal(w, np.stack([a, -a], axis=1).astype(np.float32))


def deaths(path: Path, first: int, step: int, mutated: bool = False) -> object:
    """Returns the number of points at which the run died, or a sentence about what failed."""
    for number in itertools.count():
        point = first + number * step
        ended = in_child(functools.partial(die_at, path, point, mutated))
        if ended not in (0, DEAD):
            return f"the run failed with {ended}"
        differ = in_child(functools.partial(go_on, path, mutated))
        shutil.rmtree(path)
        if differ:
            return f"after a death at point {point} the draws differ"
        if ended == 0:
            return number
    return None


if __name__ == "__main__":
    assert zarr.codecs  # imported before any fork
    zarr_store._CHUNK_ROWS = 4
    os.fsync = lambda descriptor: None  # only a machine that stops needs it
    for argument in sys.argv[2:]:
        first, step, *mutated = argument.split(":")
        print(deaths(Path(sys.argv[1]) / "run", int(first), int(step), bool(mutated)))
