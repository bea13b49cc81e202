"""What the scores of single examples cost in a step of `fit`: a gradient with and without them.

Each row times one compiled evaluation of a model's log posterior and gradient on a batch, beside
the same with the diagonal of the covariance of the gradient noise. Rows are a 784-100-10 network,
whose scores' variances have a closed form, a small convolutional network, for which they are summed
up in chunks, and a network with layer normalisation, in which each example has its own backward
pass (with 16 groups: each group).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.environment import describe
from tfp_sgmcmc.covariance import Diag
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.model.example_scores import ExampleScores

NUM_EXAMPLES = 60_000


def dense(normalised: bool = False) -> keras.Model:
    hidden = keras.layers.Dense(100, activation="relu")
    norm = [keras.layers.LayerNormalization()] if normalised else []
    layers = [keras.layers.Flatten(), hidden, *norm, keras.layers.Dense(10)]
    return keras.Sequential([keras.Input([28, 28, 1]), *layers])


def convolutional() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input([28, 28, 1]),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )


ROWS: dict[str, tuple[Callable[[], keras.Model], int | None]] = {
    "784-100-10": (dense, None),
    "ConvNet": (convolutional, None),
    "LayerNorm": (lambda: dense(normalised=True), None),
    "LayerNorm, 16 groups": (lambda: dense(normalised=True), 16),
}


def steps(
    make: Callable[[], keras.Model], num_groups: int | None, batch_size: int, jit_compile: bool
) -> list[Callable[[], Any]]:
    """The gradient alone, and with the covariance statistic, each compiled."""
    keras.utils.set_random_seed(0)
    model = make()
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    generator = np.random.default_rng(0)
    x = tf.constant(generator.normal(size=[batch_size, 28, 28, 1]), tf.float32)
    y = tf.constant(generator.integers(0, 10, size=[batch_size]))
    internals.build(model, x, y, None)
    scores = ExampleScores(model, num_groups)
    state = [tf.convert_to_tensor(v.value) for v in model.trainable_variables]

    def evaluate(x: tf.Tensor, y: tf.Tensor, state: list[tf.Tensor], with_scores: bool) -> Any:
        target = sgmcmc.keras.ModelLogProb(
            model, NUM_EXAMPLES, lambda _: tf.zeros([]), (x, y, None), scores=scores
        )
        estimate = target.estimate(state, tf.constant([0, 0]), with_scores=with_scores)
        if not with_scores:
            return estimate.gradient
        own = Diag().init(state, 0, target.num_scores)
        sigma, _ = Diag().evaluate(own, estimate.scores, estimate.noise_scale, state, 0)
        return estimate.gradient, sigma.diag_part()

    compiled = tf.function(evaluate, jit_compile=jit_compile, autograph=False)
    return [lambda with_scores=s: compiled(x, y, state, with_scores) for s in (False, True)]


def microseconds(step: Callable[[], Any], at_least: float) -> float:
    """Of one call, over calls that take `at_least` seconds."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < at_least:
        tf.nest.flatten(step())[0].numpy()
        count += 1
    return 1e6 * (time.perf_counter() - start) / count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[128, 500])
    parser.add_argument("--no-jit", action="store_true", help="compile without XLA")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each repeat")
    arguments = parser.parse_args()
    print(describe())
    print(f"microseconds a call, median of {arguments.repeats}")
    print(f"{'model':>22} {'n':>5} {'gradient':>10} {'with scores':>12} {'ratio':>6}")
    for name in arguments.rows:
        for batch_size in arguments.batch_sizes:
            pair = steps(*ROWS[name], batch_size, not arguments.no_jit)
            for step in pair:
                step()
            times: list[list[float]] = [[], []]
            for _ in range(arguments.repeats):
                for step, values in zip(pair, times, strict=True):
                    values.append(microseconds(step, arguments.seconds))
            plain, scored = map(statistics.median, times)
            row = f"{name:>22} {batch_size:>5} {plain:>10.0f} {scored:>12.0f}"
            print(f"{row} {scored / plain:>6.2f}", flush=True)


if __name__ == "__main__":
    main()
