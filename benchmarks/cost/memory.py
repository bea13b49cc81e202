"""Memory that the exact log posterior and its gradient take beyond the data.

Logistic regression on synthetic data, by default N = 1,000,000 and D = 100 in float32 (400 MB).
Each mode is measured in a new process. The peak of resident memory during one evaluation,
compilation included, is compared with the memory before it, when data and target exist already.
Linux only.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.logistic import gaussian_log_prior, log_likelihood
from benchmarks.common.memory import in_new_process, peak, start_peak

MODES = {"eager": None, "tf.function": False, "XLA": True}


def added_memory(mode: str, num_examples: int, num_features: int, seed: int) -> tuple[float, float]:
    """Returns the MB (10^6 bytes) that value and gradient add to this process, and of the data."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((num_examples, num_features), np.float32)
    y = (rng.random(num_examples) < 0.5).astype(np.float32)
    data = tf.nest.map_structure(tf.convert_to_tensor, {"x": x, "y": y})
    del x, y
    target = sgmcmc.MinibatchLogProb(gaussian_log_prior, log_likelihood, data, batch_size=100)

    def value_and_gradient(theta: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(theta)
            value = target(theta)
        return value, tape.gradient(value, theta)

    compiled = MODES[mode]
    if compiled is not None:
        value_and_gradient = tf.function(value_and_gradient, jit_compile=compiled)
    theta = tf.zeros([num_features])
    before = start_peak()
    value, gradient = value_and_gradient(theta)
    np.testing.assert_allclose(value, -num_examples * np.log(2), rtol=1e-4)
    assert np.all(np.isfinite(gradient))
    return peak() - before, num_examples * (num_features + 1) * 4 / 1e6


def run(
    *,
    modes: tuple[str, ...] = tuple(MODES),
    num_examples: int = 1_000_000,
    num_features: int = 100,
    seed: int = 0,
) -> Iterator[tuple[str, float, float]]:
    """Measures one mode after the other."""
    for mode in modes:
        yield mode, *in_new_process(added_memory, mode, num_examples, num_features, seed)


def show(rows: Iterator[tuple[str, float, float]]) -> None:
    command_line.print_table({"": "12s", "added MB": "6.1f", "data MB": ".0f"}, rows)


if __name__ == "__main__":
    command_line.main(__doc__, run, show, choices={"modes": MODES})
