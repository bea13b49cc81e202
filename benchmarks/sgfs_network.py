"""Stochastic gradient Fisher scoring of a 784-30-10 network on MNIST: 23,860 parameters.

With `diag`, the state is the network's parameter list, as Keras has it. With `block`, one block of
V for each part of the state, it is a list of 40 vectors, the weights into each unit and its bias:
30 blocks of 785 x 785 and 10 of 31 x 31, 74 MB in `float32`, where a single block for the first
layer's weights would take 2.2 GB.

Each row is a process of its own: time a step without compilation, peak of resident memory (data,
compilation and all), the log posterior of all training data at the start and at the end, and the
test accuracy of the mean prediction over the second half of the chain. Linux only.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

INPUTS, HIDDEN, CLASSES = 784, 30, 10
ROWS = [("diag", 25), ("diag", None), ("block", 25), ("block", None)]


class Result(NamedTuple):
    """What a run measured: milliseconds, megabytes (10^6 bytes), nats, a fraction."""

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
    num_examples: int | None = None,
    jit_compile: bool = False,
) -> Result:
    """Samples from N(0, 1) priors on all parameters; arguments as on the command line."""
    import tensorflow as tf

    import datasets
    import tfp_sgmcmc as sgmcmc

    x, y, x_test, y_test = datasets.mnist()
    if num_examples is not None:
        x, y = x[:num_examples], y[:num_examples]

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
    covariance = {
        "diag": sgmcmc.covariance.Diag(),
        "block": sgmcmc.covariance.Block(solver=solver),
    }
    kernel = sgmcmc.SGFS(target, alpha=alpha, covariance=covariance[kind])
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
        peak_mb=_peak_mb(),
        first_log_prob=first,
        last_log_prob=float(target(*state)),
        accuracy=float(np.mean(probabilities.argmax(axis=1) == y_test)),
        num_frozen=int(results.num_frozen),
    )


def initial_state(kind: str, seed: int) -> list[np.ndarray]:
    """He's initial weights, as a parameter list or as a vector for each unit."""
    generator = np.random.default_rng(seed)
    parts = []
    for rows, columns in ((INPUTS, HIDDEN), (HIDDEN, CLASSES)):
        weights = generator.standard_normal([rows, columns]) * (2 / rows) ** 0.5
        parts += [weights.astype(np.float32), np.zeros([columns], np.float32)]
    if kind == "diag":
        return parts
    w1, b1, w2, b2 = parts
    return [np.append(w, b) for w, b in zip([*w1.T, *w2.T], [*b1, *b2], strict=True)]


def _peak_mb() -> float:
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=500)
    parser.add_argument("--alpha", type=float, default=100.0)
    parser.add_argument("--solver", default="auto", help="of the blocks: cg, cholesky, ...")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jit-compile", action="store_true", help="compile by XLA")
    parser.add_argument("--kind", choices=["diag", "block"], help="measure in this process")
    parser.add_argument("--num-groups", type=int, help="with --kind; single examples otherwise")
    arguments = vars(parser.parse_args())
    if arguments["kind"] is not None:
        r = run(**arguments)
        print(
            f"{arguments['kind']:>6} {arguments['num_groups'] or arguments['batch_size']:>7} "
            f"{r.step_ms:>9.1f} {r.peak_mb:>8.0f} {r.first_log_prob:>10.0f} "
            f"{r.last_log_prob:>10.0f} {r.accuracy:>9.4f} {r.num_frozen:>7}"
        )
        return
    from benchmarks.environment import describe

    print(describe())
    print(
        f"{'V':>6} {'scores':>7} {'ms a step':>9} {'peak MB':>8} {'log p':>10} {'at end':>10} "
        f"{'accuracy':>9} {'frozen':>7}",
        flush=True,
    )
    for kind, num_groups in ROWS:
        command = [sys.executable, "-m", "benchmarks.sgfs_network", *sys.argv[1:], "--kind", kind]
        if num_groups is not None:
            command += ["--num-groups", str(num_groups)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
