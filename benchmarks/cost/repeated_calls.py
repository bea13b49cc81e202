"""Memory maps and resident memory that repeated calls leave behind. Linux only.

`sample` has a new target with other data of one shape in each call, N = 569 and D = 10. `fit` has a
new callback in each call on one model of 178 weights, N = 512, two epochs. All calls are in one
process. A row follows after each tenth of the calls, of what is left when garbage is collected.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.logistic import as_batch, gaussian_log_prior, log_likelihood
from benchmarks.common.memory import start_peak


def run(
    *, calls: str = "sample", num_calls: int = 60, most_mb: float = 0.0
) -> Iterator[tuple[int, int, float]]:
    """Calls one function again and again.

    Args:
      calls: of `sample` or of `fit`.
      num_calls: number of calls.
      most_mb: exit with 1 if there are more maps after the last call than after the first tenth of
        the calls, or so many MB more; 0 compares nothing.
    """
    call = _sample if calls == "sample" else _fits()
    rows = []
    for index in range(1, num_calls + 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call(index)
        if index % max(1, num_calls // 10) == 0:
            gc.collect()  # which Python does now and then
            maps = Path("/proc/self/maps").read_text().count("\n")
            rows.append((index, maps, start_peak()))
            yield rows[-1]
    (_, first_maps, first_mb), (_, last_maps, last_mb) = rows[0], rows[-1]
    if most_mb and (last_maps > first_maps or last_mb > first_mb + most_mb):
        sys.exit(
            f"Expected at most {first_maps} maps and {first_mb + most_mb:.0f} MB after the last "
            f"call. Received: {last_maps} maps, {last_mb:.0f} MB"
        )


def _sample(index: int, num_examples: int = 569, dim: int = 10) -> None:
    rng = tf.random.Generator.from_seed(index)
    x = rng.normal([num_examples, dim])
    y = tf.cast(rng.uniform([num_examples]) < tf.sigmoid(x[:, 0]), tf.float32)
    data = as_batch(x.numpy(), y.numpy())
    target = sgmcmc.MinibatchLogProb(gaussian_log_prior, log_likelihood, data, 100)
    sgmcmc.sample(target, tf.zeros([dim]), 500, seed=index, progress_bar=False)


def _fits() -> Callable[[int], None]:
    rng = tf.random.Generator.from_seed(0)
    x = rng.normal([512, 8]).numpy()
    y = (x[:, 0] > 0).astype("int32")
    layers = keras.layers
    model = keras.Sequential([keras.Input([8]), layers.Dense(16, "relu"), layers.Dense(2)])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    def fit(index: int) -> None:
        sampler = sgmcmc.keras.SamplerCallback(
            lambda target: sgmcmc.SGLD(target, 1e-5), prior=None, seed=index
        )
        model.fit(x, y, batch_size=64, epochs=2, verbose=0, callbacks=[sampler])

    return fit


def show(rows: Iterator[tuple[int, int, float]]) -> None:
    command_line.print_table({"calls": "5d", "maps": "6d", "RSS, MB": "7.0f"}, rows)


if __name__ == "__main__":
    command_line.main(__doc__, run, show, choices={"calls": ["sample", "fit"]})
