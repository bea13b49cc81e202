"""`sample` on data in files, with nothing chosen, against the exact posterior.

Regressions with a constant and standard normal features, prior N(0, I), in `.npy` files of rows in
random order, or sorted by the label. Each row of the table is a process that calls
`sample(streamed, zeros, num_results)`. It gives

  sampler  what `sample` chose,
  rows in memory   all, or those of the pool,
  passes   over the files before the first draw,
  mean     the largest error of a posterior mean, in standard deviations,
  sd       the largest error of a standard deviation, in percent,
  ESS      the median effective sample size of all chains. With 10,000 the standard errors of means
           and standard deviations by chance are 0.01 and 0.7 %,
  s        seconds of the call, compilation included,
  set-up   seconds of `draw_pool` alone, compilation included, which is a part of the call,
  read     seconds of as many passes that only read,
  gradients  seconds of as many passes that read and compute a gradient, without compilation,
  MB       peak of resident memory of the process, and before the target was made,
  exact    standard error of the exact means, in standard deviations.

The exact posterior of linear regression is known in closed form. That of the others is a normal
distribution at the mode, corrected by importance weights, in double precision with NumPy, and
computed for at most 4,000,000 examples. The aim is 0.03 standard deviations and 2 %. Linux only.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.memory import in_new_process, peak, start_peak
from benchmarks.common.regression_files import BLOCK, MODELS, ORDERS, Exact, write
from benchmarks.common.tables import Table
from tfp_sgmcmc.targets.data import untuned

tfd = tfp.distributions
_MOST_MEAN, _MOST_SD = 0.03, 2.0


class Row(NamedTuple):
    """A row of the table in the module's docstring."""

    case: str
    sampler: str
    num_rows: int
    passes: int
    mean: float
    sd: float
    size: float
    seconds: float
    setup: float
    read: float
    gradients: float
    megabytes: float
    megabytes_before: float
    exact_error: float
    flags: tuple[str, ...]


LIKELIHOODS: dict[str, Callable[..., tf.Tensor]] = {
    "linear": lambda eta, y: tfd.Normal(eta, 1.0).log_prob(y),
    "logistic": lambda eta, y: tfd.Bernoulli(eta).log_prob(y),
    "poisson": lambda eta, y: tfd.Poisson(log_rate=eta).log_prob(y),
}


def stream(
    folder: Path, model: str, num_examples: int, memory: int, copies: int = 1
) -> tuple[Any, ...]:
    """Returns the target as a newcomer writes it, its dataset, and the times when passes began."""
    files, starts = sorted(folder.glob("x-*.npy")), list[float]()
    dim = np.load(files[0], mmap_mode="r").shape[1]

    def read() -> Iterator[Any]:
        starts.append(time.perf_counter())
        for file in copies * files:
            x = np.load(file, mmap_mode="r")
            y = np.load(file.with_name(file.name.replace("x-", "y-")), mmap_mode="r")
            for i in range(0, len(x), BLOCK):
                yield x[i : i + BLOCK], y[i : i + BLOCK]

    block = tf.TensorSpec([None, dim], tf.float32), tf.TensorSpec([None], tf.float32)
    dataset = tf.data.Dataset.from_generator(read, output_signature=block)
    options: dict[str, Any] = {"memory": memory} if memory else {}
    target = sgmcmc.StreamedLogProb(
        tfd.MultivariateNormalDiag(tf.zeros(dim)).log_prob,
        sgmcmc.LinearModel(LIKELIHOODS[model]),
        dataset,
        copies * num_examples,
        batch_size=500,
        files=files,
        **options,
    )
    return target, dataset, starts


def measure(
    folder: Path,
    case: str,
    num_examples: int,
    memory: int,
    num_results: int,
    exact: Exact,
    copies: int = 1,
) -> Row:
    """Samples in this process."""
    before, model = start_peak(), case.split(",")[0]
    target, dataset, starts = stream(folder, model, num_examples, memory, copies)
    start, first, began = tf.zeros([len(exact.mean)]), len(starts), time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the flags are printed
        result = sgmcmc.sample(target, start, num_results, seed=0, progress_bar=False)
    seconds, passes = time.perf_counter() - began, len(starts) - first
    draws, megabytes = np.asarray(result.states, np.float64), peak()
    means, sds = draws.mean((0, 1)), draws.std((0, 1))
    size = float(np.median(result.summary().ess_bulk))
    flags = tuple(f"{flag.grade}: {flag}" for flag in result.flags)
    sampler = result.choices.sampler
    num_rows, setup, read, gradients = 0, float("nan"), float("nan"), float("nan")
    if copies == 1:
        began = time.perf_counter()
        num_rows = sgmcmc.draw_pool(target, start)[1].num_rows
        setup = time.perf_counter() - began
        slope = gradient(model, start)
        read = passes * seconds_of_pass(dataset, lambda x, y: None)
        seconds_of_pass(dataset, slope)  # which compiles
        gradients = passes * seconds_of_pass(dataset, slope)
    return Row(
        case, sampler, num_rows, passes, np.abs((means - exact.mean) / exact.sd).max(),
        100 * np.abs(sds / exact.sd - 1).max(), size, seconds, setup, read, gradients, megabytes,
        before, exact.error, flags,
    )  # fmt: skip


def gradient(model: str, start: tf.Tensor) -> Callable[[Any, Any], Any]:
    """Returns a compiled function of a block: the gradient of its log likelihood."""

    @tf.function(jit_compile=True)
    def gradient(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(start)
            value = tf.reduce_sum(LIKELIHOODS[model](tf.linalg.matvec(x, start), y))
        return tape.gradient(value, start)

    return gradient


def seconds_of_pass(dataset: tf.data.Dataset, use: Callable[[Any, Any], Any]) -> float:
    """Returns the time of a pass that calls `use` with each block.

    As in the library, it does not wait for the thread that tunes a dataset.
    """
    began = time.perf_counter()
    for x, y in untuned(dataset.prefetch(2)):
        use(x, y)
    return time.perf_counter() - began


def run(
    *,
    models: tuple[str, ...] = MODELS,
    orders: tuple[str, ...] = ORDERS,
    memory: tuple[int, ...] = (0, 8_400_000),
    num_examples: int = 1_000_000,
    num_features: int = 20,
    num_files: int = 20,
    num_results: int = 6_000,
    copies: int = 1,
) -> list[Row]:
    """Samples each case in a new process.

    Args:
      models: regressions.
      orders: of the rows in the files.
      memory: bytes of rows that are kept in memory; 0 for the default, 256 MB.
      num_examples: N.
      num_features: D.
      num_files: the number of files.
      num_results: draws of each chain.
      copies: how often a pass reads the files, to have more rows than the disk holds. The exact
        posterior is then known for linear regression only, and the set-up is not timed alone.
    """
    found = []
    for model in models:
        for order in orders:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                options = model, order, num_examples, num_features, num_files, copies
                exact = in_new_process(write, folder, *options)
                for most in memory:
                    case = f"{model}, {order}"
                    given = folder, case, num_examples, most, num_results, exact, copies
                    found.append(in_new_process(measure, *given))
                    print(found[-1], flush=True)
    return found


def show(rows: list[Row]) -> Table:
    """Prints the table and the flags; raises SystemExit if the aim is missed."""
    formats = {
        "": "<18", "sampler": "s", "rows in memory": "d", "passes": "d", "mean": ".4f", "sd": ".2f",
        "ESS": ".0f", "s": ".1f", "set-up": ".1f", "read": ".1f", "gradients": ".1f", "MB": ".0f",
        "before": ".0f", "exact": ".1g",
    }  # fmt: skip
    table = command_line.print_table(formats, [row[:-1] for row in rows])
    for row in rows:
        for flag in row.flags:
            print(f"{row.case}: {flag}")
    bad = [row.case for row in rows if row.mean > _MOST_MEAN or row.sd > _MOST_SD]
    if bad:
        raise SystemExit(f"Missed {_MOST_MEAN} standard deviations or {_MOST_SD} %: {bad}.")
    return table


if __name__ == "__main__":
    named = {"models": MODELS, "orders": ORDERS}
    command_line.main(__doc__, run, show, choices=named, table="accuracy.streams")
