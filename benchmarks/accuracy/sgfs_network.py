"""Stochastic gradient Fisher scoring of a 784-30-10 network on MNIST: 23,860 parameters.

With `diag`, the state is the network's parameter list, as Keras has it. With `block`, one block of
V for each part of the state, the state is a list of 40 vectors, each with the weights into one unit
and its bias. That makes 30 blocks of 785 x 785 and 10 of 31 x 31, 74 MB in `float32`. A single
block for the weights of the first layer would take 2.2 GB.

Each row is measured in a new process: the time of a step without compilation, the peak of resident
memory (everything included), the log posterior of all training data at the start and at the end,
and the test accuracy of the mean prediction over the second half of the chain. Linux only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import command_line
from benchmarks.common.memory import in_new_process, peak

INPUTS, HIDDEN, CLASSES = 784, 30, 10
ROWS = [("diag", 25), ("diag", None), ("block", 25), ("block", None)]


class Result(NamedTuple):
    """The measurements of a run: milliseconds, MB, two log posteriors in nats, and a fraction."""

    step_ms: float
    peak_mb: float
    first_log_prob: float
    last_log_prob: float
    accuracy: float
    num_frozen: int


def run(
    kind: str,
    *,
    num_groups: int | None = 25,
    num_steps: int = 300,
    batch_size: int = 500,
    alpha: float = 100.0,
    solver: str = "auto",
    seed: int = 0,
    jit_compile: bool = False,
) -> Result:
    """Samples the posterior with N(0, 1) priors on all parameters."""
    import tensorflow as tf

    import datasets
    import tfp_sgmcmc as sgmcmc

    x, y, x_test, y_test = datasets.mnist()

    def layers(parts: tuple[Any, ...]) -> Any:
        if kind == "diag":
            return parts
        first, second = (tf.stack(p, axis=-1) for p in (parts[:HIDDEN], parts[HIDDEN:]))
        return first[:-1], first[-1], second[:-1], second[-1]

    def log_probs(parts: tuple[Any, ...], x: Any) -> Any:
        w1, b1, w2, b2 = layers(parts)
        return tf.nn.log_softmax(tf.nn.relu(x @ w1 + b1) @ w2 + b2)

    def log_likelihood(*args: Any) -> Any:
        *parts, batch = args
        return tf.gather(log_probs(tuple(parts), batch["x"]), batch["y"], axis=1, batch_dims=1)

    target = sgmcmc.MinibatchLogProb(
        lambda *parts: -0.5 * tf.add_n([tf.reduce_sum(p**2) for p in parts]),
        log_likelihood,
        {"x": x, "y": y.astype(np.int32)},
        batch_size,
        num_groups=num_groups,
    )
    covariance = {"diag": sgmcmc.covariance.Diag(), "block": sgmcmc.covariance.Block(solver=solver)}
    kernel = sgmcmc.SGFS(target, alpha=alpha, covariance=covariance[kind], num_estimation_steps=0)
    state = initial_state(kind, seed)

    @tf.function(jit_compile=jit_compile, autograph=False)
    def step(state: Any, results: Any, i: Any) -> Any:
        return kernel.one_step(state, results, seed=tf.stack([seed, i]))

    first = float(target(*state))
    results = kernel.bootstrap_results(state)
    times, probabilities = [], np.zeros([len(x_test), CLASSES])
    for i in range(num_steps):
        start = time.perf_counter()
        state, results = step(state, results, tf.constant(i))
        _ = results.step.numpy()
        times.append(time.perf_counter() - start)
        if i >= num_steps // 2 and i % 10 == 0:
            probabilities += np.exp(log_probs(tuple(state), x_test))
    return Result(
        step_ms=1e3 * float(np.median(times[1:])),
        peak_mb=peak(),
        first_log_prob=first,
        last_log_prob=float(target(*state)),
        accuracy=float(np.mean(probabilities.argmax(axis=1) == y_test)),
        num_frozen=int(results.num_frozen),
    )


def initial_state(kind: str, seed: int) -> list[np.ndarray]:
    """Returns He's initial weights, as a parameter list or as one vector for each unit."""
    generator = np.random.default_rng(seed)
    parts = []
    for rows, columns in ((INPUTS, HIDDEN), (HIDDEN, CLASSES)):
        weights = generator.standard_normal([rows, columns]) * (2 / rows) ** 0.5
        parts += [weights.astype(np.float32), np.zeros([columns], np.float32)]
    if kind == "diag":
        return parts
    w1, b1, w2, b2 = parts
    return [np.append(w, b) for w, b in zip([*w1.T, *w2.T], [*b1, *b2], strict=True)]


def compare(
    *,
    num_steps: int = 300,
    batch_size: int = 500,
    alpha: float = 100.0,
    solver: str = "auto",
    seed: int = 0,
    jit_compile: bool = False,
) -> Iterator[tuple[Any, ...]]:
    """Measures all rows.

    Args:
      solver: solver of the blocks: cg, cholesky, ...
      jit_compile: compile by XLA.
    """
    options = {"num_steps": num_steps, "batch_size": batch_size, "alpha": alpha, "solver": solver}
    options |= {"seed": seed, "jit_compile": jit_compile}
    for kind, num_groups in ROWS:
        found = in_new_process(run, kind, num_groups=num_groups, **options)
        yield kind, num_groups or batch_size, *found


def show(rows: Iterator[tuple[Any, ...]]) -> None:
    columns = {
        "V": "6s", "scores": "7d", "ms a step": "9.1f", "peak MB": "8.0f", "log p": "10.0f",
        "at end": "10.0f", "accuracy": "9.4f", "frozen": "7d",
    }  # fmt: skip
    command_line.print_table(columns, rows)


if __name__ == "__main__":
    command_line.main(__doc__, compare, show)
