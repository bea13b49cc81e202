"""How cost grows with the size of a problem, in each direction alone.

Each size runs in a process of its own, on one core. The directions are

  N         microseconds of a step of SGLD on the mean of a Gaussian, n = 100, D = 10,
  D         the same at N = 1,000,
  n         the same at N = 100,000, D = 10,
  chains    the same at N = 1,000, D = 10, each chain with minibatches of its own,
  parts     seconds that tracing and compiling SGLD takes for a state of so many parts,
  kept      seconds that `report` takes for so many stored draws of four chains, D = 10,
  whiten    seconds that `whiten` takes at N = 10,000 for so many dimensions, and
  weights   milliseconds of a step of SGLD in `fit`, n = 32, for a network with so many weights.

`slope` is the exponent between the two largest sizes, and `cliff` the first size at which the
exponent from the size before is above 1.3; it is empty if there is none.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import command_line
from benchmarks.common.environment import use_one_core
from benchmarks.common.memory import in_new_process
from benchmarks.common.tables import Table
from benchmarks.common.timing import processor_seconds

_CLIFF = 1.3
_REPEATS = 5


class Direction(NamedTuple):
    """Sizes, and a function of a size that returns a cost in `unit`."""

    unit: str
    sizes: tuple[int, ...]
    cost: Callable[[int], float]


class Row(NamedTuple):
    """The costs of a direction's sizes."""

    direction: str
    unit: str
    sizes: tuple[int, ...]
    costs: tuple[float, ...]

    @property
    def slopes(self) -> np.ndarray:
        """The exponents between neighbouring sizes."""
        return np.diff(np.log(self.costs)) / np.diff(np.log(self.sizes))

    @property
    def cliff(self) -> str:
        """The first size behind a steep growth, or nothing."""
        steep = np.flatnonzero(self.slopes > _CLIFF)
        return f"{self.sizes[steep[0] + 1]:,}" if steep.size else ""


def _step(**sizes: int) -> float:
    from benchmarks.suite.scaling import chain

    run, num_steps = chain(**sizes)
    return 1e6 * min(processor_seconds(run)[0] for _ in range(_REPEATS)) / num_steps


def _target(num_examples: int, dimension: int, parts: int = 1) -> Any:
    import tensorflow as tf

    import tfp_sgmcmc as sgmcmc

    x = np.random.default_rng(0).standard_normal([num_examples, dimension]).astype(np.float32)

    def log_prior(theta: tf.Tensor) -> tf.Tensor:
        return -0.5 * tf.reduce_sum(theta**2, axis=-1)

    def log_likelihood(theta: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        return -0.5 * tf.reduce_sum((batch - theta[..., tf.newaxis, :]) ** 2, axis=-1)

    functions: tuple[Callable[..., Any], ...] = log_prior, log_likelihood
    if parts > 1:
        functions = (
            lambda *theta: sum(log_prior(part) for part in theta),
            lambda *state: log_likelihood(tf.concat(state[:-1], axis=-1), state[-1]),
        )
    return sgmcmc.MinibatchLogProb(*functions, x, min(100, num_examples))


def _parts(number: int) -> float:
    import tensorflow as tf

    import tfp_sgmcmc as sgmcmc

    kernel = sgmcmc.SGLD(_target(1000, number, number), 1e-4)
    start = [tf.zeros([1])] * number if number > 1 else tf.zeros([1])
    options: dict[str, Any] = {"progress_bar": False, "preflight_check": False}
    return processor_seconds(lambda: sgmcmc.sample_chain(kernel, start, 2, seed=0, **options))[0]


def _kept(number: int) -> float:
    import tfp_sgmcmc as sgmcmc

    target = _target(1000, 10)
    draws = np.random.default_rng(1).standard_normal([number // 4, 4, 10]).astype(np.float32)
    return processor_seconds(lambda: sgmcmc.report({"theta": draws / 1000**0.5}, target))[0]


def _whiten(dimension: int) -> float:
    """Times `whiten` of a logistic regression with 10,000 rows."""
    import tensorflow as tf

    import tfp_sgmcmc as sgmcmc
    from benchmarks.common.logistic import as_batch, gaussian_log_prior, log_likelihood

    rng = np.random.default_rng(0)
    x = rng.standard_normal([10_000, dimension]).astype(np.float32)
    data = as_batch(x, rng.integers(2, size=len(x)))
    target = sgmcmc.MinibatchLogProb(gaussian_log_prior, log_likelihood, data, 100)
    return processor_seconds(lambda: sgmcmc.whiten(target, tf.zeros([dimension])))[0]


def _weights(number: int) -> float:
    import keras

    import tfp_sgmcmc as sgmcmc

    width = max(1, number // 110)
    layers = [keras.Input([100]), keras.layers.Dense(width, "relu"), keras.layers.Dense(9)]
    model = keras.Sequential(layers)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.default_rng(0)
    x = rng.standard_normal([3200, 100]).astype(np.float32)
    y = rng.integers(9, size=3200)
    sampler = sgmcmc.keras.SamplerCallback(
        lambda target: sgmcmc.SGLD(target, 1e-6), prior=None, seed=0,
        collect=sgmcmc.keras.Collect(num_burnin_steps=10**9, num_steps_between_results=0),
    )  # fmt: skip
    fit = lambda: model.fit(x, y, batch_size=32, verbose=0, callbacks=[sampler])  # noqa: E731
    fit()  # compiles
    return 1e3 * min(processor_seconds(fit)[0] for _ in range(3)) / 100


DIRECTIONS: Mapping[str, Direction] = {
    "N": Direction("us", (10**3, 10**4, 10**5, 10**6, 10**7), lambda x: _step(num_examples=x)),
    "D": Direction("us", (10, 10**2, 10**3, 10**4, 10**5), lambda x: _step(dimension=x)),
    "n": Direction(
        "us", (10, 10**2, 10**3, 10**4), lambda x: _step(num_examples=10**5, batch_size=x)
    ),
    "chains": Direction("us", (1, 4, 16, 64, 256, 1024), lambda x: _step(num_chains=x)),
    "parts": Direction("s", (1, 10, 30, 100), _parts),
    "kept": Direction("s", (10**3, 10**4, 10**5, 10**6), _kept),
    "whiten": Direction("s", (10, 100, 300, 1000), _whiten),
    "weights": Direction("ms", (10**3, 10**4, 10**5, 10**6, 10**7), _weights),
}


def measure(direction: str, size: int) -> float:
    """Returns the cost of one size, on one core of this process."""
    use_one_core()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return DIRECTIONS[direction].cost(size)


def run(*, directions: tuple[str, ...] = tuple(DIRECTIONS), largest: int = 10**7) -> list[Row]:
    """Measures each size of each direction.

    Args:
      directions: names.
      largest: the largest size.
    """
    rows = []
    for name in directions:
        unit, sizes, _ = DIRECTIONS[name]
        sizes = tuple(size for size in sizes if size <= largest)
        costs = tuple(in_new_process(measure, name, size) for size in sizes)
        rows.append(Row(name, unit, sizes, costs))
        print(rows[-1], flush=True)
    return rows


def show(rows: list[Row]) -> Table:
    """Prints the table."""
    lines: list[tuple[str, ...]] = [
        (
            row.direction,
            row.unit,
            ", ".join(
                f"{cost:.3g} at {size:,}" for size, cost in zip(row.sizes, row.costs, strict=True)
            ),
            f"{row.slopes[-1]:.2f}" if len(row.sizes) > 1 else "",
            row.cliff,
        )
        for row in rows
    ]
    table = Table(("direction", "unit", "cost at each size", "slope", "cliff"), lines)
    print(table.markdown())
    return table


if __name__ == "__main__":
    chosen = {"directions": DIRECTIONS}
    command_line.main(__doc__, run, show, choices=chosen, table="cost.growth")
