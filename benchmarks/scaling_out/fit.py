"""Time of a step of `fit` on two processes of this machine, beside one process.

SGLD on a dense network with synthetic data, by `WorkerBatches` under `MultiWorkerMirroredStrategy`,
each process with half of the cores of this one (at least one). The model is

    t(2) = t(1) / 2 + a

with a the time of one collective operation that sums D + 1 numbers, which is all that a step waits
for. a is measured alone, in the same processes. On one machine the halves share memory and other
work; on a network, a is that of the network. The last columns have the time between two epochs, for
one process and for two. Compare times within one run only.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.common import command_line
from benchmarks.common.environment import num_cores
from benchmarks.scaling_out import workers

MODULE = "benchmarks.scaling_out.fit"
SECONDS = 200  # for a child
SIZES = ((4, 64), (100, 512))  # hidden units and rows of a batch, of the two networks
STEPS, EPOCHS, FEATURES = 100, 5, 64


class Row(NamedTuple):
    """Times in milliseconds; see above."""

    weights: int
    batch_size: int
    one: float
    two: float
    collective: float
    model: float
    epoch_of_one: float
    epoch: float


def rows(*, quick: bool = False) -> Iterator[Row]:
    """Yields a row for each network.

    Args:
      quick: the smaller network alone.
    """
    for units, batch_size in SIZES[: 1 if quick else None]:
        arguments = (MODULE, "child", str(units), str(batch_size))
        one = workers.measured(arguments, 1, SECONDS)
        two = workers.measured(arguments, 2, SECONDS)
        yield Row(
            one["weights"],
            batch_size,
            one["step"],
            two["step"],
            two["collective"],
            one["step"] / 2 + two["collective"],
            one["epoch"],
            two["epoch"],
        )


def show(coming: Iterator[Row]) -> None:
    columns = {"weights": "d", "n": "d", "t(1), ms": ".2f", "t(2), ms": ".2f", "a, ms": ".2f"}
    columns |= {"t(1)/2 + a": ".2f", "epoch(1)": ".0f", "epoch(2)": ".0f"}
    command_line.print_table(columns, coming)


def child(units: int, batch_size: int) -> None:
    """Measures in one process, which may be one of several; prints JSON."""
    import tensorflow as tf

    cores = max(1, num_cores() // 2)
    tf.config.threading.set_intra_op_parallelism_threads(cores)
    on_several = "TF_CONFIG" in os.environ
    strategy = (
        tf.distribute.MultiWorkerMirroredStrategy() if on_several else tf.distribute.get_strategy()
    )
    import keras
    import numpy as np
    import tensorflow_probability as tfp

    import tfp_sgmcmc as sgmcmc

    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=[10_000, FEATURES]).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input([FEATURES]), keras.layers.Dense(units, "tanh"), keras.layers.Dense(10)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(loss=loss, jit_compile=False, metrics=["accuracy"])
    callback = sgmcmc.keras.SamplerCallback(
        lambda target: sgmcmc.SGLD(target, 1e-6),
        prior=tfp.distributions.Normal(0.0, 1.0),
        collect=sgmcmc.keras.Collect(0, 10 * STEPS),
        seed=0,
        num_examples=len(x),
    )  # fmt: skip
    batches = sgmcmc.keras.IndependentBatches(x, y, batch_size=batch_size, steps_per_epoch=STEPS)
    times: list[float] = []
    clock = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs=None: times.append(time.perf_counter())
    )
    model.fit(
        sgmcmc.keras.WorkerBatches(batches), epochs=EPOCHS, verbose=0, callbacks=[callback, clock]
    )
    differences = np.diff(np.reshape(times, [EPOCHS, STEPS]), axis=1)
    edges = [times[(e + 1) * STEPS] - times[(e + 1) * STEPS - 1] for e in range(1, EPOCHS - 1)]
    step = float(np.median(differences[1:]))
    found = {
        "weights": model.count_params(),
        "step": 1e3 * step,
        "collective": _collective_ms(strategy, model.count_params() + 1) if on_several else 0.0,
        "epoch": 1e3 * (statistics.median(edges) - step),
    }
    print(json.dumps(found), flush=True)


def _collective_ms(strategy: Any, size: int) -> float:
    """Returns the time in which all processes sum an array."""
    import tensorflow as tf

    def of_replica(x: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(x))

    @tf.function(autograph=False)
    def total(x: tf.Tensor) -> tf.Tensor:
        return strategy.experimental_local_results(strategy.run(of_replica, args=(x,)))[0]

    x, times = tf.zeros([size]), []
    for _ in range(STEPS):
        start = time.perf_counter()
        total(x).numpy()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[5:])


def main() -> None:
    command_line.main(__doc__, rows, show)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
