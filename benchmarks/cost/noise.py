"""The cost of a step's noise: normals, three-point numbers, and no noise at all.

SGLD and BAOAB on a 784-100-10 network (79,510 parameters, n = 128) and on logistic regression
(D = 129, n = 100), with random data, one chain, compiled by XLA. The sides run in turn, and the
times are processor time of all threads. "none" is a step of gradient ascent. Ratios are medians
of the ratios to normals in the same turn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.chains import compiled
from benchmarks.common.logistic import gaussian_log_prior, log_likelihood
from benchmarks.common.tables import Table
from benchmarks.common.timing import in_turn
from benchmarks.cost.callback_overhead import SGDKernel

Problem = tuple[sgmcmc.MinibatchLogProb, list[tf.Tensor], float, int]


def logistic() -> Problem:
    """Returns target, start, SGLD's step size, and a factor of the number of steps."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal([10_000, 129]), rng.integers(0, 2, [10_000])
    data = {"x": x.astype(np.float32), "y": y.astype(np.float32)}
    target = sgmcmc.MinibatchLogProb(gaussian_log_prior, log_likelihood, data, 100)
    return target, [tf.zeros([129])], 1e-4, 100


def network() -> Problem:
    """Returns the same for a network of one hidden layer."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal([6_000, 784]), rng.integers(0, 10, [6_000])

    def log_prior(*weights: tf.Tensor) -> tf.Tensor:
        return -tf.add_n([tf.reduce_sum(w**2) for w in weights]) / 2

    def log_likelihood(*weights: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        w1, b1, w2, b2 = weights
        logits = tf.nn.relu(batch["x"] @ w1 + b1) @ w2 + b2
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(batch["y"], logits)

    data = {"x": x.astype(np.float32), "y": y.astype(np.int32)}
    target = sgmcmc.MinibatchLogProb(
        log_prior, lambda *w: log_likelihood(*w[:-1], batch=w[-1]), data, 128
    )
    shapes = ([784, 100], [100], [100, 10], [10])
    start = [tf.constant(rng.normal(scale=0.03, size=s), tf.float32) for s in shapes]
    return target, start, 1e-6, 1


PROBLEMS: dict[str, Callable[[], Problem]] = {"784-100-10": network, "logistic": logistic}


def kernels(target: Any, step_size: float) -> dict[str, dict[str, Any]]:
    """Returns kernels by sampler and noise."""
    none = SGDKernel(target, step_size / 2)
    noises: dict[str, Any] = {"normal": {}, "three-point": {"noise": "three_point"}}
    h = step_size**0.5
    return {
        "SGLD": {n: sgmcmc.SGLD(target, step_size, **o) for n, o in noises.items()}
        | {"none": none},
        "BAOAB": {n: sgmcmc.UnderdampedLangevin(target, h, **o) for n, o in noises.items()},
    }


def timer(kernel: Any, state: Any, num_steps: int) -> Callable[[], float]:
    """Returns a function that takes steps and returns microseconds of processor time for each."""
    chain = compiled(kernel, 1, num_steps)

    def run() -> float:
        start = time.process_time()
        tf.nest.map_structure(np.asarray, chain(state, None, tf.constant([0, 1])).all_states)
        return 1e6 * (time.process_time() - start) / num_steps

    return run


def run(*, steps: int = 60, repeats: int = 15) -> Iterator[tuple[Any, ...]]:
    """Times all sides in turn.

    Args:
      steps: steps of the network in a turn; logistic regression takes 100 times as many.
    """
    for problem, make in PROBLEMS.items():
        target, state, step_size, factor = make()
        for sampler, sides in kernels(target, step_size).items():
            timers = {n: timer(kernel, state, factor * steps) for n, kernel in sides.items()}
            times = in_turn(timers, repeats)
            for noise, found in times.items():
                ratios = [a / b for a, b in zip(found, times["normal"], strict=True)]
                middle = statistics.median
                yield problem, sampler, noise, min(found), middle(found), middle(ratios)


def show(rows: Iterator[tuple[Any, ...]]) -> Table:
    print("microseconds of processor time a step")
    columns = {"posterior": "12s", "sampler": "8s", "noise": "12s", "least": ".1f"}
    return command_line.print_table({**columns, "median": ".1f", "to normal": "9.2f"}, rows)


if __name__ == "__main__":
    command_line.main(__doc__, run, show, table="cost.noise")
