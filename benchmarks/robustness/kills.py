"""Runs of `sample` and `fit` that are killed at random moments and go on, compared bit for bit.

A process runs in a directory and gets a SIGKILL at a random moment after its first checkpoint.
Another process then makes the same call. A run that has come to its end is compared with one that
was never killed, and the next run begins. The aim is that all runs end, and that no bit differs.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tqdm
import tree
import zarr.codecs

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from tfp_sgmcmc.keras import Collect, NegativeLogLikelihood, SamplerCallback

_LONGEST_WAIT = 0.6  # seconds after a checkpoint of the process
_MOST_SECONDS = 120.0  # of a process, which otherwise hangs
_IMPORTED = (tqdm, zarr.codecs)  # before processes are forked, which then start fast
N = 60


class Row(NamedTuple):
    """The outcome for the runs of one kind.

    Attributes:
      kind: `sample` or `fit`.
      kills: number of processes that were killed.
      runs: number of runs that came to their end.
      equal: number of these that equal one that was never killed.
      failures: what processes said that ended by themselves before the end of their run.
    """

    kind: str
    kills: int
    runs: int
    equal: int
    failures: list[str]


def run_sample(directory: Path | None) -> list[Any]:
    """Returns draws, trace and last results of NOGIN, which carries momenta, Sigma and epochs."""
    x = np.random.default_rng(0).normal(size=[N, 3]).astype(np.float32)
    target = sgmcmc.MinibatchLogProb(
        lambda t: -0.5 * tf.reduce_sum(t**2, -1),
        lambda t, batch: -0.5 * tf.reduce_sum((batch - t[..., tf.newaxis, :]) ** 2, -1),
        x,
        10,
        reshuffle="epoch",
    )
    result = sgmcmc.sample_chain(
        sgmcmc.NOGIN(target, 0.02),
        tf.zeros([3]),
        200_000,
        seed=5,
        num_chains=2,
        num_steps_between_results=1,
        trace_fn=lambda state, results: results.gradient_norm,
        directory=directory and sgmcmc.Directory(directory, seconds_between_commits=0.02),
        progress_bar=False,
        preflight_check=False,
    )
    kept = result.states, result.trace, result.final_state, result.final_kernel_results
    return [np.asarray(v) for v in tree.flatten(kept) if v is not None]


def run_fit(directory: Path | None) -> list[Any]:
    """Returns samples and weights of a network with dropout, in two fits."""
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=[N, 2]).astype(np.float32)
    y = (x[:, :1] > 0).astype(np.float32)
    layers = [keras.layers.Dense(3, "tanh"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input([2]), *layers], name="killed")
    model.compile(
        loss=NegativeLogLikelihood(lambda out: tfp.distributions.Bernoulli(logits=out)),
        jit_compile=False,
    )
    callback = SamplerCallback(
        lambda target: sgmcmc.SGNHT(target, step_size=1e-3, friction=1.0),
        prior=tfp.distributions.Normal(0.0, 1.0),
        collect=Collect(5, 1),
        output=directory and sgmcmc.Directory(directory, seconds_between_commits=0.02),
        num_examples=N,
        seed=3,
    )
    for epochs in (100, 50):
        model.fit(
            x, y, batch_size=10, epochs=epochs, shuffle=False, verbose=0, callbacks=[callback]
        )
    samples = [np.asarray(s) for s in callback.samples]
    return [*samples, callback.result.trace["step"], *model.get_weights()]


KINDS: dict[str, Callable[[Path | None], list[Any]]] = {"sample": run_sample, "fit": run_fit}


def start(run: Callable[[Path | None], list[Any]], directory: Path | None, output: Path) -> int:
    """Runs in another process, which writes its result or its error; returns its number."""
    child = os.fork()
    if child:
        return child
    try:
        found = run(directory)
        with output.with_suffix(".new").open("wb") as file:
            np.savez(file, *found)
        output.with_suffix(".new").rename(output)
    except BaseException:
        output.with_suffix(".error").write_text(traceback.format_exc())
    finally:
        os._exit(0)


def end(child: int, checkpoint: Path | None, rng: np.random.Generator) -> bool:
    """Waits for a process; kills it if it goes on after a checkpoint. Returns whether it did."""

    def changed() -> int:
        return checkpoint.stat().st_mtime_ns if checkpoint and checkpoint.exists() else 0

    before, kill_at, began = changed(), np.inf, time.monotonic()
    while not os.waitpid(child, os.WNOHANG)[0]:
        now = time.monotonic()
        if checkpoint and kill_at == np.inf and changed() != before:
            kill_at = now + rng.uniform(0.0, _LONGEST_WAIT)
        if now >= kill_at or now - began > _MOST_SECONDS:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return now >= kill_at
        time.sleep(0.002)
    return False


def killed(kind: str, kills: int, folder: Path) -> Row:
    """Kills runs of a kind until there are `kills` kills, and lets the last run come to its end."""
    rng, output = np.random.default_rng(0), folder / "found.npz"
    end(start(KINDS[kind], None, folder / "whole.npz"), None, rng)
    whole = loaded(folder / "whole.npz")
    count = runs = equal = 0
    failures: list[str] = []
    while whole and (count < kills or not runs) and not failures and equal == runs:
        directory = folder / f"run{runs}"
        while not output.exists() and not failures:
            checkpoint = directory / "checkpoint.npz" if count < kills else None
            count += end(start(KINDS[kind], directory, output), checkpoint, rng)
            failures += errors(folder)
        found = loaded(output)
        output.unlink(missing_ok=True)
        runs += 1
        equal += len(found) == len(whole) and all(map(same_bits, found, whole))
    return Row(kind, count, runs, equal, failures + errors(folder))


def loaded(path: Path) -> list[np.ndarray]:
    if not path.exists():
        return []
    with np.load(path) as file:
        return [file[name] for name in file.files]


def same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def errors(folder: Path) -> list[str]:
    found = [path.read_text() for path in folder.glob("*.error")]
    for path in folder.glob("*.error"):
        path.unlink()
    return found


def rows(quick: bool = False) -> Iterator[Row]:
    """Kills each kind of run 50 times, or 3 times."""
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            yield killed(kind, 3 if quick else 50, Path(folder))


def run(*, quick: bool = False) -> Iterator[Row]:
    """Kills runs.

    Args:
      quick: kills each kind of run 3 times in place of 50.
    """
    return rows(quick)


def show(coming: Iterator[Row]) -> None:
    """Prints the table as it comes; raises SystemExit if the aim is missed."""
    found: list[Row] = []

    def lines() -> Iterator[tuple[Any, ...]]:
        for row in coming:
            found.append(row)
            yield (*row[:-1], len(row.failures))

    columns = {"run": "s", "kills": "d", "ended": "d", "equal": "d", "failed": "d"}
    command_line.print_table(columns, lines())
    for row in found:
        print(*row.failures, sep="\n", end="")
    bad = [row.kind for row in found if row.failures or row.equal < row.runs or not row.runs]
    if bad:
        raise SystemExit(f"Runs of {' and '.join(bad)} failed, or differ from those not killed.")


def main() -> None:
    command_line.main(__doc__, run, show)


if __name__ == "__main__":
    main()
