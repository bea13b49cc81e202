"""The cost of single examples' scores in a step of `fit`: a gradient with and without them.

Each row times one compiled evaluation of a model's log posterior and gradient on a batch, and the
same with the diagonal of the covariance of the gradient noise. The models are a 784-100-10 network,
whose variances of scores have a closed form; a small convolutional network, which sums them in
chunks; and a network with layer normalisation, in which each example needs its own backward pass
(with 16 groups, each group needs one).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.timing import in_turn
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
) -> dict[bool, Callable[[], Any]]:
    """Returns the compiled gradient without (False) and with (True) the covariance statistic."""
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
        initial = Diag().init(state, 0, target.num_scores)
        sigma, _ = Diag().evaluate(initial, estimate.scores, estimate.noise_scale, state, 0)
        return estimate.gradient, sigma.diag_part()

    compiled = tf.function(evaluate, jit_compile=jit_compile, autograph=False)
    return {s: lambda with_scores=s: compiled(x, y, state, with_scores) for s in (False, True)}


def microseconds(step: Callable[[], Any], at_least: float) -> float:
    """Returns the microseconds of a call, averaged over calls that take `at_least` seconds."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < at_least:
        tf.nest.flatten(step())[0].numpy()
        count += 1
    return 1e6 * (time.perf_counter() - start) / count


def run(
    *,
    rows: tuple[str, ...] = tuple(ROWS),
    batch_sizes: tuple[int, ...] = (128, 500),
    no_jit: bool = False,
    repeats: int = 5,
    seconds: float = 1.0,
) -> Iterator[tuple[Any, ...]]:
    """Times both evaluations in turn.

    Args:
      no_jit: compile without XLA.
      seconds: seconds of each repeat.
    """
    for name in rows:
        for batch_size in batch_sizes:
            pair = steps(*ROWS[name], batch_size, not no_jit)
            sides = {s: lambda step=step: microseconds(step, seconds) for s, step in pair.items()}
            times = in_turn(sides, repeats)
            plain, scored = (statistics.median(times[s]) for s in (False, True))
            yield name, batch_size, plain, scored, scored / plain


def show(rows: Iterator[tuple[Any, ...]]) -> None:
    print("microseconds a call, medians")
    columns = {"model": "22s", "n": "5d", "gradient": "10.0f", "with scores": "12.0f"}
    command_line.print_table({**columns, "ratio": "6.2f"}, rows)


if __name__ == "__main__":
    command_line.main(__doc__, run, show, choices={"rows": ROWS})
