"""Time of a step of the samplers as programs: run here, and by JAX's runtime on its device.

    python -m benchmarks.devices --quick
    python -m benchmarks.devices --python .venvs/blackjax/bin/python
    python -m benchmarks.devices --folder programs --device-kind GPU

Each row is a kernel on a model, for a number of chains and a size of minibatches, which
`sgmcmc.export_program` writes as a file. "here" is the time of a step in TensorFlow on its first
device, "there" that of the same file run by `benchmarks.devices.run_program` with another Python
that has JAX, and "apart" the largest difference of the draws of both, in standard deviations of the
draws. "rows" is the rate at which "here" reads the examples of its minibatches, as a share of the
rate at which a sum over 400 MB is read in the same run: near 1, memory is what limits a step. "nan"
stands for what was not measured: minibatches of more than 4 GB, chains that became infinite.

"exact" is a test: draws of NOGIN of a normal mean, whose variance is known, must have that variance
(a chi-square test with a false-alarm rate of 1e-6).

The second line writes programs for GPUs. Take the folder to a machine that has one, with NumPy and
JAX but no TensorFlow, and time them there:

    python -m benchmarks.devices.run_program programs/*.npz --seconds 0.5
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from scipy import stats

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.logistic import gaussian_log_prior, log_likelihood, score
from benchmarks.common.tables import Table

N, D, PIXELS = 100_000, 129, 784
MOST_BYTES = 4e9  # of a row's minibatches or scores
SECONDS, MOST_STEPS = 1.0, 20_000  # for a call
ROOT = Path(__file__).resolve().parents[2]


class Case(NamedTuple):
    """A row of the table."""

    model: str
    sampler: str
    num_chains: int
    batch_size: int


class Row(NamedTuple):
    """Microseconds a step of a case; NaN for what was not measured."""

    case: Case
    compile_seconds: float
    here: float
    there: float
    apart: float
    rows: float


KERNELS: dict[str, Callable[[Any], Any]] = {
    "SGLD": lambda target: sgmcmc.SGLD(target, 1e-6),
    "SGHMC diag": lambda target: sgmcmc.SGHMC(target, 1e-6, 50.0, covariance="diag"),
    "NOGIN diag": lambda target: sgmcmc.NOGIN(target, 1e-3, covariance="diag"),
    "NOGIN full": lambda target: sgmcmc.NOGIN(target, 1e-3),
    "CCAdL diag": lambda target: sgmcmc.CCAdL(target, 1e-4, covariance="diag"),
    "control variates": lambda target: sgmcmc.UnderdampedLangevin(
        sgmcmc.ControlVariate(target, [tf.zeros([D])], order=2), 1e-3
    ),
}
USES_SCORES = ("SGHMC diag", "NOGIN diag", "NOGIN full", "CCAdL diag")
CASES = (
    *(
        # Control variates of order 2 differentiate the scores.
        Case(f"logistic{', differentiated' * (sampler == 'control variates')}", sampler, chains, n)
        for sampler in KERNELS
        for chains in (1, 64, 4096)
        for n in (100, 16_384)
    ),
    *(Case(model, "SGLD", 1, 128) for model in ("network, 79,510", "network, 10 million")),
    *(Case("network, 79,510", name, 1, 128) for name in ("SGHMC diag", "NOGIN diag")),
)
QUICK = (Case("logistic", "SGLD", 1, 100), Case("logistic", "NOGIN diag", 64, 100))


def logistic(batch_size: int, score_fn: Any = score) -> tuple[Any, list[tf.Tensor]]:
    rng = np.random.default_rng(0)
    data = {
        "x": rng.standard_normal([N, D]).astype(np.float32),
        "y": rng.integers(0, 2, [N]).astype(np.float32),
    }
    target = sgmcmc.MinibatchLogProb(
        gaussian_log_prior, log_likelihood, data, batch_size, score_fn=score_fn
    )
    return target, [tf.zeros([D])]


def network(widths: tuple[int, ...], batch_size: int) -> tuple[Any, list[tf.Tensor]]:
    """Returns a classifier of random pixels, with tanh between layers."""
    rng = np.random.default_rng(0)
    data = (rng.random([10_000, PIXELS], np.float32), rng.integers(0, 10, [10_000]))
    pairs = [*zip(widths[:-1], widths[1:], strict=True)]
    state = [
        tf.constant(rng.standard_normal(shape, np.float32) * shape[0] ** -0.5)
        for pair in pairs
        for shape in (pair, pair[1:])
    ]

    def log_prior(*parts: tf.Tensor) -> tf.Tensor:
        sums = [tf.reduce_sum(w**2, [-2, -1][i % 2 :]) for i, w in enumerate(parts)]
        return -0.5 * tf.add_n(sums)

    def log_likelihood(*args: tf.Tensor) -> tf.Tensor:
        *parts, (x, y) = args
        for i in range(0, len(parts), 2):
            x = tf.linalg.matmul(x, parts[i]) + parts[i + 1][..., tf.newaxis, :]
            x = tf.tanh(x) if i + 2 < len(parts) else x
        labels = tf.broadcast_to(y, tf.shape(x)[:-1])
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x)

    return sgmcmc.MinibatchLogProb(log_prior, log_likelihood, data, batch_size), state


MODELS: dict[str, Callable[[int], tuple[Any, list[tf.Tensor]]]] = {
    "logistic": logistic,
    "logistic, differentiated": lambda n: logistic(n, score_fn=None),
    "network, 79,510": lambda n: network((PIXELS, 100, 10), n),
    "network, 10 million": lambda n: network((PIXELS, 2700, 2900, 10), n),
}


def run(
    *, python: str = "", folder: str = "", device_kind: str = "", quick: bool = False
) -> Iterator[Row]:
    """Yields rows.

    Args:
      python: an interpreter that has JAX; empty measures nothing there.
      folder: keeps the programs; empty is a folder that is deleted.
      device_kind: writes programs for this kind of device; empty is this machine's, if a Python is
        given.
      quick: two rows.
    """
    check_exact()
    speed = read_speed()
    print(f"a sum reads {speed / 1e9:.1f} GB/s")
    with contextlib.ExitStack() as stack:
        kept = Path(folder or stack.enter_context(tempfile.TemporaryDirectory()))
        kept.mkdir(exist_ok=True)
        for case in QUICK if quick else CASES:
            try:
                yield measured(case, python, kept, device_kind or None, speed)
            except sgmcmc.NonFiniteChainError:
                yield Row(case, *[math.nan] * 5)


def measured(case: Case, python: str, folder: Path, device_kind: str | None, speed: float) -> Row:
    """Exports, compiles and times a case."""
    width = D if case.model.startswith("logistic") else PIXELS
    read = 4 * case.num_chains * case.batch_size * width
    if read * (2 if case.sampler in USES_SCORES else 1) > MOST_BYTES:
        return Row(case, *[math.nan] * 5)
    target, state = MODELS[case.model](case.batch_size)
    kernel, steps = KERNELS[case.sampler](target), 2
    state = [tf.broadcast_to(x, [case.num_chains, *x.shape]) for x in state]
    result = sampled(kernel, state, steps)
    # A call has a cost of its own, so a few steps tell little.
    while result.timings.seconds < SECONDS / 2 and steps < MOST_STEPS:
        steps = int(min(MOST_STEPS, steps * SECONDS / max(result.timings.seconds, 1e-6)))
        result = sampled(kernel, state, steps)
    here, draws = result.timings.seconds, np.asarray(result.states[0])
    there, apart = math.nan, math.nan
    path = folder / (re.sub(r"\W+", "_", "_".join(map(str, case))) + ".npz")
    if python or device_kind:
        sgmcmc.export_program(
            kernel, state, 1, path, device_kind=device_kind, num_burnin_steps=steps - 1,
            num_steps_between_results=steps - 1,
        )  # fmt: skip
    if python:
        there, found = by_jax(python, path, steps)
        scale = max(float(np.std(draws)), 1e-30)
        apart = float(np.max(np.abs(found - draws))) / scale
    return Row(
        case,
        result.timings.compile_seconds,
        1e6 * here / steps,
        there,
        apart,
        read * steps / here / speed,
    )


def sampled(kernel: Any, state: list[tf.Tensor], steps: int) -> sgmcmc.SampleResult:
    """Returns a run of so many steps, which keeps the last state alone."""
    return sgmcmc.sample_chain(
        kernel, state, 1, seed=0, num_burnin_steps=steps - 1, progress_bar=False,
        preflight_check=False,
    )  # fmt: skip


def by_jax(python: str, path: Path, steps: int) -> tuple[float, np.ndarray]:
    """Returns the microseconds of a step of the second call, and the first call's draws.

    Raises:
      ValueError: a call did not take `steps` steps.
    """
    output = path.with_suffix(".draws.npz")
    command = [python, "-m", "benchmarks.devices.run_program", path, "--calls", "2", "--output"]
    text = subprocess.run(
        [*command, output], check=True, capture_output=True, text=True, cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    ).stdout  # fmt: skip
    calls = re.findall(r"(\d+) steps, ([\d.]+) us a step", text)
    if [int(taken) for taken, _ in calls] != [steps, steps]:
        raise ValueError(f"Each of two calls must take {steps} steps. Received: {text}")
    with np.load(output) as file:
        draws = file["kept_0"][:1]
    return float(calls[-1][1]), draws


def read_speed() -> float:
    """Returns the bytes a second at which a sum over 400 MB reads them, the best of 5."""
    x, seconds = tf.zeros([10**8]), []
    for _ in range(5):
        began = time.perf_counter()
        tf.reduce_sum(x).numpy()
        seconds.append(time.perf_counter() - began)
    return 4e8 / min(seconds)


def check_exact(num_chains: int = 1000) -> None:
    """Ends the program if draws of NOGIN have another variance than the exact one."""
    data = np.random.default_rng(0).standard_normal([200]).astype(np.float32)
    target = sgmcmc.MinibatchLogProb(
        lambda theta: -0.5 * theta**2,
        lambda theta, x: -0.5 * (x - theta[..., tf.newaxis]) ** 2,
        data,
        batch_size=20,
        replacement=True,
    )
    variance = np.full([num_chains], 1 / 201)
    # The covariance is the same at every state, so that its running mean over 10,000 scores comes
    # within 1 %, and NOGIN within that of being exact at every step size.
    known = sgmcmc.covariance.Full(sgmcmc.covariance.RunningMean())
    kernel = sgmcmc.NOGIN(target, step_size=0.05, covariance=known, num_estimation_steps=500)
    result = sgmcmc.sample_chain(
        kernel, tf.zeros([num_chains]), 1, num_burnin_steps=2000, seed=0, progress_bar=False
    )
    mean = data.sum() / 201
    statistic = float(np.sum((np.asarray(result.states[0]) - mean) ** 2 / variance))
    low, high = stats.chi2.ppf([0.5e-6, 1 - 0.5e-6], num_chains)
    if not low < statistic < high:
        sys.exit(f"NOGIN's variance is {statistic / num_chains:.3f} of the exact one.")
    print(f"exact: NOGIN's variance is {statistic / num_chains:.3f} of the exact one, as it may be")


def show(rows: Iterator[Row]) -> Table:
    columns = {
        "model": "", "sampler": "", "chains": "d", "n": "d", "compile s": ".1f", "here us": ".1f",
        "there us": ".1f", "apart": ".1g", "rows": ".2f",
    }  # fmt: skip
    return command_line.print_table(columns, ((*row.case, *row[1:]) for row in rows))


if __name__ == "__main__":
    command_line.main(__doc__, run, show, table="devices")
