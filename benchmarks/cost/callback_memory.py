"""Memory of the samples that `SamplerCallback` keeps, in memory and streamed to a directory.

A network of about a million parameters, SGLD, every second step kept. Given is the peak of resident
memory beyond that of the same steps without a kept sample. Linux only.
"""

from __future__ import annotations

import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.memory import peak, start_peak


def measure(num_samples: int = 200, width: int = 1000) -> dict[str, float]:
    """Returns the MB that keeping `num_samples` samples adds, on a disk and in memory."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=[256, 64]).astype(np.float32), rng.integers(0, 10, 256)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for place, directory in (("on a disk", folder), ("in memory", None)):
            model = keras.Sequential(
                [
                    keras.Input([64]),
                    keras.layers.Dense(width, "relu"),
                    keras.layers.Dense(width, "relu"),
                    keras.layers.Dense(10),
                ]
            )
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(loss=loss, jit_compile=True)
            callback = sgmcmc.keras.SamplerCallback(
                lambda target: sgmcmc.SGLD(target, 1e-7),
                prior=None,
                collect=sgmcmc.keras.Collect(20, 1),
                output=directory,
                seed=0,
                num_examples=256,
            )  # fmt: skip

            def fit(steps: int, model: Any = model, callback: Any = callback) -> None:
                data = tf.data.Dataset.from_tensor_slices((x, y)).batch(128).repeat()
                model.fit(
                    data, steps_per_epoch=2, epochs=steps // 2, verbose=0, shuffle=False,
                    callbacks=[callback],
                )  # fmt: skip

            fit(20)
            before = start_peak()
            fit(2 * num_samples)
            assert len(callback.samples[0]) == num_samples
            found[place] = peak() - before
            found["a sample"] = sum(w.nbytes for w in model.get_weights()) / 1e6
    return found


def show(found: dict[str, float]) -> None:
    command_line.print_table({"": "", "MB": ".0f"}, list(found.items()))


if __name__ == "__main__":
    command_line.main(__doc__, measure, show)
