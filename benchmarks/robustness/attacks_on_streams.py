"""Attacks on data in files: damage, rows that are not finite, and passes that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.robustness.attacks import attack, told
from benchmarks.robustness.attacks_on_runs import QUIET, new_folder

X = np.random.default_rng(0).normal(size=[2000, 2]).astype(np.float32)
Y = np.sort(np.random.default_rng(1).normal(size=2000)).astype(np.float32)


def stream(read: Callable[[], Iterator[Any]], **options: Any) -> sgmcmc.StreamedLogProb:
    """Returns linear regression on blocks of rows, of which a tenth fits into memory."""
    given: dict[str, Any] = {"batch_size": 50, "memory": 2400} | options
    block = tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None], tf.float32)
    return sgmcmc.StreamedLogProb(
        lambda w: -0.5 * tf.reduce_sum(w**2, axis=-1),
        sgmcmc.LinearModel(lambda eta, y: -0.5 * (y - eta) ** 2),
        tf.data.Dataset.from_generator(read, output_signature=block),
        len(X),
        **given,
    )


def blocks(x: np.ndarray = X) -> Iterator[Any]:
    for i in range(0, len(x), 300):
        yield x[i : i + 300], Y[: len(x)][i : i + 300]


def chosen(target: sgmcmc.StreamedLogProb) -> Any:
    return sgmcmc.sample(target, tf.zeros([2]), 100, jit_compile=False, min_ess=50, **QUIET)


def in_files(folder: Path) -> tuple[list[Path], Callable[[], sgmcmc.StreamedLogProb]]:
    files = [folder / f"part-{i}.npz" for i in range(4)]
    for file, x, y in zip(files, np.split(X, 4), np.split(Y, 4), strict=True):
        np.savez(file, x=x, y=y)

    def read() -> Iterator[Any]:
        for file in files:
            with np.load(file) as part:
                yield part["x"], part["y"]

    return files, lambda: stream(read, files=files)


@attack("streams")
def a_file_is_cut_off_before_a_run_and_within_it() -> None:
    files, make = in_files(new_folder())
    target, content = make(), files[2].read_bytes()
    files[2].write_bytes(content[:1000])
    told(f"{files[2]} has 1000 bytes", lambda: chosen(target), sgmcmc.StreamReadError)
    told(f"{files[2]} is damaged", lambda: chosen(make()), sgmcmc.StreamReadError)


@attack("streams")
def a_row_is_not_finite() -> None:
    x = X.copy()
    x[1234, 1] = np.nan
    target = stream(lambda: blocks(x))
    told("first in example 1234", lambda: chosen(target), ValueError)
    told("first in example 1234", lambda: sgmcmc.preflight(target, tf.zeros([2])), ValueError)


@attack("streams")
def a_pass_has_fewer_rows() -> None:
    once = blocks()
    told("must begin at the first example", lambda: chosen(stream(lambda: once)), ValueError)
    told("epoch 0 has 1700", lambda: chosen(stream(lambda: blocks(X[:1700]))), ValueError)


@attack("streams")
def a_kernel_would_take_epochs_for_independent_batches() -> None:
    kernel = sgmcmc.NOGIN(stream(blocks), 0.01)
    told(
        "must be independent for NOGIN",
        lambda: sgmcmc.sample_chain(kernel, tf.zeros([2]), 10, **QUIET),
        ValueError,
    )


@attack("streams")
def files_are_sorted_by_the_label() -> None:
    """A mean within 6 standard errors and a width within 6 of those of the exact posterior."""
    precision = X.T.astype(np.float64) @ X + np.eye(2)
    mean, sd = np.linalg.solve(precision, X.T @ Y), np.sqrt(np.diag(np.linalg.inv(precision)))
    z = (np.asarray(chosen(stream(blocks)).states).reshape(-1, 2) - mean) / sd
    assert np.abs(z.mean(0)).max() < 6 / 50**0.5 and np.abs(z.std(0) - 1).max() < 6 / 100**0.5
