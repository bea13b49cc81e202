"""The overhead of `SamplerCallback` in `model.fit`: SGLD against plain Adam and SGD, step by step.

A 784-100-10 network on MNIST, batches of 128 (468 steps an epoch), equal settings on all sides.
Each side is compiled in a first epoch that is not counted; then epochs are timed in turn. "SGD,
callback" is the callback with SGD's arithmetic as its kernel and without prior. It separates the
time of the callback from the time of the 79,510 normals and the prior. "SGLD, Traces" keeps a
sample every 50 steps, and writes traces and the predictions of 100 rows for TensorBoard after each
epoch. "SGLD, noise" compares gradient noise and injected noise every 100 steps. Ratios are ratios
of medians. `--bar` draws Keras' progress bar on all sides, into a file that nobody reads.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow_probability as tfp

import datasets
import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.tables import Table
from benchmarks.common.timing import in_turn, seconds

BATCH_SIZE = 128
NUM_EXAMPLES = 60_000 // BATCH_SIZE * BATCH_SIZE  # without the short last batch


class SGDKernel(tfp.mcmc.TransitionKernel):
    """SGD's arithmetic as a kernel, which samples nothing."""

    is_calibrated = False

    def __init__(self, target: Any, step_size: float):
        self._target, self._step_size = target, step_size

    def bootstrap_results(self, init_state: Any) -> Any:
        return self._target.bootstrap(init_state)

    def one_step(self, current_state: Any, previous_kernel_results: Any, seed: Any = None) -> Any:
        estimate = self._target.estimate(current_state, seed, with_scores=False)
        moved = zip(current_state, estimate.gradient, strict=True)
        return [x + self._step_size * g for x, g in moved], estimate.target_state


def sampler(
    make_kernel_fn: Callable[[Any], Any], prior: Any, seed: int, noise_every: int | None = None
) -> list[Any]:
    """Returns the callback, which keeps no sample, so that only its steps are timed."""
    return [
        sgmcmc.keras.SamplerCallback(
            make_kernel_fn,
            prior=prior,
            collect=sgmcmc.keras.Collect(10**9, 0, noise_every=noise_every),
            seed=seed,
            num_examples=NUM_EXAMPLES,
        )
    ]


def traced(make_kernel_fn: Callable[[Any], Any], prior: Any, folder: str, seed: int) -> list[Any]:
    """Returns the callback with samples every 50 steps, and `Traces` with a probe."""
    callback = sgmcmc.keras.SamplerCallback(
        make_kernel_fn,
        prior=prior,
        collect=sgmcmc.keras.Collect(0, 49),
        seed=seed,
        num_examples=NUM_EXAMPLES,
    )
    return [callback, sgmcmc.keras.Traces(callback, folder, probe=datasets.mnist()[2][:100])]


def timer(
    optimizer: str,
    callbacks: list[Any],
    steps_per_execution: int,
    jit_compile: bool,
    seed: int,
    verbose: int,
) -> Callable[[], float]:
    """Returns a function that runs an epoch and returns milliseconds a step."""
    keras.utils.set_random_seed(seed)
    x, y = (part[:NUM_EXAMPLES] for part in datasets.mnist()[:2])
    model = keras.Sequential(
        [keras.Input([784]), keras.layers.Dense(100, activation="relu"), keras.layers.Dense(10)]
    )
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=steps_per_execution,
        jit_compile=jit_compile,
    )

    def epoch() -> Any:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            return model.fit(x, y, batch_size=BATCH_SIZE, verbose=verbose, callbacks=callbacks)

    return lambda: 1e3 * seconds(epoch) * BATCH_SIZE / NUM_EXAMPLES


def sgld(target: Any) -> sgmcmc.SGLD:
    return sgmcmc.SGLD(target, 1e-6)


def run(
    *,
    steps_per_execution: tuple[int, ...] = (1, 50),
    no_jit: bool = False,
    bar: bool = False,
    repeats: int = 5,
    seed: int = 0,
) -> Iterator[tuple[Any, ...]]:
    """Times all sides in turn.

    Args:
      no_jit: compile without XLA.
      bar: draw the progress bar.
    """
    normal = tfp.distributions.Normal(0.0, 1.0)
    for steps in steps_per_execution:
        with tempfile.TemporaryDirectory() as folder:
            sides = {
                "Adam": ("adam", []),
                "SGD": ("sgd", []),
                "SGLD, callback": ("sgd", sampler(sgld, normal, seed)),
                "SGLD, Traces": ("sgd", traced(sgld, normal, folder, seed)),
                "SGLD, noise": ("sgd", sampler(sgld, normal, seed, noise_every=100)),
                "SGD, callback": ("sgd", sampler(lambda t: SGDKernel(t, 5e-7), None, seed)),
            }
            epochs = {
                name: timer(*side, steps, not no_jit, seed, int(bar))
                for name, side in sides.items()
            }
            times = in_turn(epochs, repeats)
        medians = {name: statistics.median(values) for name, values in times.items()}
        for name, median in medians.items():
            ratios = (median / medians[base] for base in ("Adam", "SGD"))
            yield steps, name, min(times[name]), median, *ratios


def show(rows: Iterator[tuple[Any, ...]]) -> Table:
    print("milliseconds a step")
    columns = {"steps per execution": "20d", "": "18s", "least": ".3f", "median": ".3f"}
    return command_line.print_table({**columns, "to Adam": "8.2f", "to SGD": "8.2f"}, rows)


if __name__ == "__main__":
    command_line.main(__doc__, run, show, table="cost.callback_overhead")
