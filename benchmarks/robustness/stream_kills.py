"""Runs on a stream that get a SIGKILL at any moment, and go on by the same call.

`sample` reads files in three passes, draws a pool of rows, tries kernels in pilots and then takes
steps, in a directory. Each run is killed up to 8 times at random moments of one of these phases,
and another process makes the same call. The table has the number of kills in each phase. A run that
came to its end is compared with one that nobody killed, which begins with the same pool and the
same choices (these depend on times that pilots took). `sample_chain` takes SGLD's batches from a
stream that is shuffled anew in each epoch. The aim is that all runs end, and that no bit differs.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.tables import Table
from benchmarks.robustness.kills import errors, loaded, same_bits, start
from tfp_sgmcmc.storage.lock import SIGNATURE

N, D, FILES = 4_000, 3, 8
_MOST_SECONDS = 120.0  # of a process, which otherwise hangs
_KILLS_OF_A_RUN = 8
_COMMIT = 0.02
PHASES = ("passes", "pilots", "steps")


class Row(NamedTuple):
    """The outcome for the runs of a function; kills by phase in the order of `PHASES`."""

    function: str
    kills: tuple[int, ...]
    runs: int
    equal: int
    failures: list[str]


def stream(folder: Path) -> sgmcmc.StreamedLogProb:
    """Returns Poisson regression on files of rows that are sorted by the label."""
    files = [folder / f"part-{i}.npz" for i in range(FILES)]

    def read() -> Iterator[Any]:
        for file in files:
            with np.load(file) as part:
                time.sleep(0.02)  # as from a slow disk, so that passes are hit
                yield part["x"], part["y"]

    block = tf.TensorSpec([None, D], tf.float32), tf.TensorSpec([None], tf.float32)
    rows = tf.data.Dataset.from_generator(read, output_signature=block)

    def shuffled(epoch: int) -> tf.data.Dataset:
        return rows.unbatch().shuffle(N, seed=epoch).batch(100, drop_remainder=True)

    is_chain = folder.name == "sample_chain"
    return sgmcmc.StreamedLogProb(
        lambda w: -0.5 * tf.reduce_sum(w**2, axis=-1),
        sgmcmc.LinearModel(lambda eta, y: y * eta - tf.exp(eta)),
        shuffled if is_chain else rows,
        N,
        batch_size=100,
        memory=400 * 4 * (D + 1),
        files=files,
    )


def write(folder: Path) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    x = rng.normal(size=[N, D]).astype(np.float32)
    y = rng.poisson(np.exp(x @ [0.5, -0.5, 0.2])).astype(np.float32)
    for i, part in enumerate(np.array_split(np.argsort(y), FILES)):
        np.savez(folder / f"part-{i}.npz", x=x[part], y=y[part])


def run_sample(files: Path, directory: Path | None) -> list[Any]:
    result = sgmcmc.sample(
        stream(files),
        tf.zeros([D]),
        20_000,
        seed=1,
        jit_compile=False,
        min_ess=100,
        progress_bar=False,
        directory=directory and sgmcmc.Directory(directory, seconds_between_commits=_COMMIT),
    )
    return [np.asarray(result.states)]


def run_chain(files: Path, directory: Path | None) -> list[Any]:
    result = sgmcmc.sample_chain(
        sgmcmc.SGLD(stream(files), 1e-5),
        tf.zeros([2, D]),
        400,
        seed=1,
        jit_compile=False,
        preflight_check=False,
        progress_bar=False,
        directory=directory and sgmcmc.Directory(directory, seconds_between_commits=_COMMIT),
    )
    return [np.asarray(result.states), np.asarray(result.final_state)]


FUNCTIONS: dict[str, Callable[[Path, Path | None], list[Any]]] = {
    "sample": run_sample,
    "sample_chain": run_chain,
}


def phase(function: str, directory: Path) -> int:
    """Returns the number of the phase that a run has reached."""
    if function == "sample_chain" or (directory / "choices.npz").exists():
        return 2
    return int((directory / "pool.npz").exists())


def wait(child: int, seconds: float, is_time: Callable[[], bool] = lambda: True) -> bool:
    """Waits for a process, and kills it so many seconds after `is_time()`; returns whether it did.

    A process that takes far too long is killed, too.
    """
    began, since = time.monotonic(), None
    while not os.waitpid(child, os.WNOHANG)[0]:
        now = time.monotonic()
        if since is None and is_time():
            since = now
        if (since is not None and now - since > seconds) or now - began > _MOST_SECONDS:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return True
        time.sleep(0.002)
    return False


def durations(function: str, child: int, directory: Path) -> list[float]:
    """Waits for a run that nobody kills; returns the seconds of its phases."""
    began, seconds = time.monotonic(), [0.0] * len(PHASES)
    while not os.waitpid(child, os.WNOHANG)[0]:
        now = time.monotonic()
        seconds[phase(function, directory)] += now - began
        began = now
        time.sleep(0.002)
    return seconds


def unkilled(run: Callable[..., Any], directory: Path, folder: Path) -> list[np.ndarray]:
    """Returns the result of a run that nobody kills, with the pool and the choices of another."""
    other, output = folder / "other", folder / "unkilled.npz"
    shutil.rmtree(other, ignore_errors=True)
    if (directory / "choices.npz").exists():
        other.mkdir()
        (other / "run.lock").write_text(f"{SIGNATURE}1\n")
        for name in ("pool.npz", "choices.npz"):
            shutil.copy(directory / name, other)
    wait(start(run, other, output), _MOST_SECONDS)
    found = loaded(output)
    output.unlink(missing_ok=True)
    return found


def killed(function: str, kills: int, seconds: float, folder: Path) -> Row:
    """Kills processes so often or so long, and lets the last run come to its end."""
    rng, output, files = np.random.default_rng(0), folder / "found.npz", folder / function
    write(files)

    def run(directory: Path | None) -> list[Any]:
        return FUNCTIONS[function](files, directory)

    began = time.monotonic()
    lengths = durations(function, start(run, folder / "first", output), folder / "first")
    phases = [2] if function == "sample_chain" else [0, 1, 2]
    output.unlink(missing_ok=True)
    counts, runs, equal, failures = [0] * len(PHASES), 0, 0, errors(folder)
    while (
        sum(counts) < kills
        and time.monotonic() - began < seconds
        and not failures
        and equal == runs
    ):
        directory, wanted = folder / f"run{runs}", phases[runs % len(phases)]
        left = min(_KILLS_OF_A_RUN, kills - sum(counts))
        while not output.exists() and not failures:
            child, kill_after = start(run, directory, output), _MOST_SECONDS
            if left:
                kill_after = rng.uniform(0.0, lengths[wanted])
            is_time = functools.partial(_has_begun, function, directory, wanted)
            if wait(child, kill_after, is_time) and not output.exists():
                counts[phase(function, directory)] += 1
                left = max(0, left - 1)
            failures += errors(folder)
        found = loaded(output)
        output.unlink(missing_ok=True)
        expected = unkilled(run, directory, folder)
        runs += 1
        equal += bool(found) and all(map(same_bits, found, expected))
        shutil.rmtree(directory)
    return Row(function, tuple(counts), runs, equal, failures + errors(folder))


def _has_begun(function: str, directory: Path, wanted: int) -> bool:
    """Returns whether a run has reached a phase, or one after it."""
    return phase(function, directory) >= wanted


def rows(kills: int, seconds: float, functions: tuple[str, ...]) -> Iterator[Row]:
    for function in functions:
        with tempfile.TemporaryDirectory() as folder:
            yield killed(function, kills, seconds, Path(folder))


def run(
    *,
    quick: bool = False,
    kills: int = 100,
    seconds: float = 3600.0,
    functions: tuple[str, ...] = (*FUNCTIONS,),
) -> Iterator[Row]:
    """Kills runs.

    Args:
      quick: kills `sample` 3 times, and nothing else.
      kills: the number of kills of each function.
      seconds: when to stop if there are fewer by then.
      functions: the rows.
    """
    return rows(3, seconds, ("sample",)) if quick else rows(kills, seconds, functions)


def show(coming: Iterator[Row]) -> Table:
    """Prints the table as it comes; raises SystemExit if the aim is missed."""
    found: list[Row] = []

    def lines() -> Iterator[tuple[Any, ...]]:
        for row in coming:
            found.append(row)
            yield row.function, *row.kills, row.runs, row.equal, len(row.failures)

    columns = {"killed": "12s", **dict.fromkeys(PHASES, "d"), "ended": "d", "equal": "d"}
    printed = command_line.print_table(columns | {"failed": "d"}, lines())
    for row in found:
        print(*row.failures, sep="\n", end="")
    bad = [row.function for row in found if row.failures or row.equal < row.runs or not row.runs]
    if bad:
        raise SystemExit(f"Runs of {' and '.join(bad)} failed, or differ from those not killed.")
    return printed


if __name__ == "__main__":
    named = {"functions": tuple(FUNCTIONS)}
    command_line.main(__doc__, run, show, choices=named, table="robustness.stream_kills")
