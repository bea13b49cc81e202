"""Shared by the examples: a network trained by Adam, and its test scores beside an ensemble's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import tfp_sgmcmc as sgmcmc


def at_the_weights(model: keras.Model) -> sgmcmc.keras.Posterior:
    """Returns a posterior whose single sample is what the model's weights are now."""
    variables = model.trainable_variables
    return sgmcmc.keras.Posterior(model, variables, [v.numpy()[None] for v in variables])


def train(model: keras.Model, x: Any, y: np.ndarray, patience: int = 20) -> int:
    """Trains until the loss of 15 % of the rows stops falling; returns the number of epochs."""
    cut = round(0.15 * len(y))

    def part(rows: slice) -> tuple[Any, np.ndarray]:
        return keras.tree.map_structure(lambda a: a[rows], x), y[rows]

    stop = keras.callbacks.EarlyStopping(patience=patience, restore_best_weights=True)
    history = model.fit(
        *part(slice(cut, None)), validation_data=part(slice(cut)), epochs=300, callbacks=[stop],
        verbose=0,
    )  # fmt: skip
    return len(history.epoch)


def compared(trained: Any, sampled: Any, kind: str = "ensemble") -> dict[str, float]:
    """Returns the numbers of two results of `Posterior.evaluate`, of Adam's weights and samples.

    `kind` says what the samples are.
    """
    both = {"Adam": trained._asdict(), kind: sampled._asdict()}
    return {
        f"{name}: {key.replace('_', ' ')}": value
        for key in trained._fields
        for name, found in both.items()
        if isinstance(value := found[key], float)
    }


def show(main: Callable[[], dict[str, float]]) -> None:
    """Runs an example and prints what it returns, and the seconds it took."""
    start = time.perf_counter()
    for name, value in main().items():
        print(f"{name:40} {value:.3f}")
    print(f"{'seconds':40} {time.perf_counter() - start:.1f}")
