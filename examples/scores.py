"""What the examples print: the test scores of one network and of the average over a posterior."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras

import tfp_sgmcmc as sgmcmc


def at_the_weights(model: keras.Model) -> sgmcmc.keras.Posterior:
    """Returns a posterior whose single sample is what the model's weights are now."""
    variables = model.trainable_variables
    return sgmcmc.keras.Posterior(model, variables, [v.numpy()[None] for v in variables])


def compared(trained: Any, sampled: Any, kind: str = "posterior") -> dict[str, float]:
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
