"""What `SamplerCallback` adds to `model.fit`: SGLD against plain Adam and SGD, step by step.

A 784-100-10 network on MNIST, batches of 128 (468 steps an epoch), equal settings on all sides.
Each side is compiled in a first epoch that is not counted; then epochs are timed in turn. A fourth
row, the callback with SGD's arithmetic as its kernel and no prior, separates the callback's own
time from that of the 79,510 normals and the prior. Ratios are those of medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
import tensorflow_probability as tfp

import datasets
import tfp_sgmcmc as sgmcmc
from benchmarks.environment import describe

BATCH_SIZE = 128
NUM_EXAMPLES = 60_000 // BATCH_SIZE * BATCH_SIZE  # without the short last batch


class SGDKernel(tfp.mcmc.TransitionKernel):
    """SGD's arithmetic as a kernel; it samples nothing."""

    is_calibrated = False

    def __init__(self, target: Any, step_size: float):
        self._target, self._step_size = target, step_size

    def bootstrap_results(self, init_state: Any) -> tf.Tensor:
        return tf.zeros([])

    def one_step(
        self, current_state: Any, previous_kernel_results: tf.Tensor, seed: Any = None
    ) -> Any:
        gradient = self._target.estimate(current_state, seed, with_scores=False).gradient
        moved = zip(current_state, gradient, strict=True)
        return [x + self._step_size * g for x, g in moved], previous_kernel_results


def sampler(make_kernel_fn: Callable[[Any], Any], prior: Any, seed: int) -> list[Any]:
    """The callback; it keeps no sample, so as to time its steps alone."""
    return [
        sgmcmc.keras.SamplerCallback(
            make_kernel_fn, NUM_EXAMPLES, prior, num_burnin_steps=10**9, seed=seed
        )
    ]


def timer(
    optimizer: str, callbacks: list[Any], steps_per_execution: int, jit_compile: bool, seed: int
) -> Any:
    """Returns a function that runs an epoch and returns milliseconds a step."""
    keras.utils.set_random_seed(seed)
    x, y = (part[:NUM_EXAMPLES] for part in datasets.mnist()[:2])
    model = keras.Sequential(
        [
            keras.Input([784]),
            keras.layers.Dense(100, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=steps_per_execution,
        jit_compile=jit_compile,
    )

    def epoch() -> float:
        start = time.perf_counter()
        model.fit(x, y, batch_size=BATCH_SIZE, verbose=0, callbacks=callbacks)
        return 1e3 * (time.perf_counter() - start) * BATCH_SIZE / NUM_EXAMPLES

    return epoch


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps-per-execution", type=int, nargs="+", default=[1, 50])
    parser.add_argument("--no-jit", action="store_true", help="compile without XLA")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(describe())
    print(f"milliseconds a step, least / median of {arguments.repeats}")
    print(f"{'steps per execution':>20} {'':>18} {'time':>15} {'to Adam':>8} {'to SGD':>8}")
    for steps in arguments.steps_per_execution:
        normal = tfp.distributions.Normal(0.0, 1.0)
        sgld = sampler(lambda t: sgmcmc.SGLD(t, 1e-6), normal, arguments.seed)
        sgd = sampler(lambda t: SGDKernel(t, 5e-7), None, arguments.seed)
        sides = {
            "Adam": ("adam", []),
            "SGD": ("sgd", []),
            "SGLD, callback": ("sgd", sgld),
            "SGD, callback": ("sgd", sgd),
        }
        epochs = {
            name: timer(optimizer, callbacks, steps, not arguments.no_jit, arguments.seed)
            for name, (optimizer, callbacks) in sides.items()
        }
        for epoch in epochs.values():
            epoch()
        times: dict[str, list[float]] = {name: [] for name in epochs}
        for _ in range(arguments.repeats):
            for name, epoch in epochs.items():
                times[name].append(epoch())
        medians = {name: statistics.median(values) for name, values in times.items()}
        for name, median in medians.items():
            cell = f"{min(times[name]):.3f} / {median:.3f}"
            ratios = [f"{median / medians[base]:>8.2f}" for base in ("Adam", "SGD")]
            print(f"{steps:>20} {name:>18} {cell:>15} {' '.join(ratios)}", flush=True)


if __name__ == "__main__":
    main()
