"""Time and memory in N, D and the number of chains: SGLD on the mean of a Gaussian, n = 100.

A step computes the same at every N. But it waits for memory once the data, or the addresses of
their pages, outgrow a cache of the processor; `benchmarks/README.md` has the figures.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.suite.profiles import PROFILE

BATCH_SIZE = 100
NUMBERS = PROFILE.lengths.numbers
LEAST_STEPS, MOST_STEPS = 10, 10_000  # starting a call takes a millisecond
NUM_CALLS = 5


class _Scaling:
    version = "2"
    timeout = 1800.0
    unit = "seconds"
    size: str

    def setup(self, size: int) -> None:
        self.run, self.num_steps = chain(**{self.size: size})

    def track_seconds_per_step(self, size: int) -> float:
        return min(self._seconds() for _ in range(NUM_CALLS)) / self.num_steps

    def peakmem_steps(self, size: int) -> None:
        self.run()

    def _seconds(self) -> float:
        begin = time.perf_counter()
        self.run()
        return time.perf_counter() - begin


class Examples(_Scaling):
    """Scaling in N, with up to 400 MB of data."""

    params = PROFILE.num_examples
    param_names = ["N"]
    size = "num_examples"


class Dimensions(_Scaling):
    """Scaling in D, with up to 4 GB of data; the cost of a step is proportional to D n."""

    params = PROFILE.dimensions
    param_names = ["D"]
    size = "dimension"


class Chains(_Scaling):
    """Scaling in the number of chains, each of which has its own minibatches."""

    params = PROFILE.scaled_chains
    param_names = ["chains"]
    size = "num_chains"


def chain(
    num_examples: int = 1000,
    dimension: int = 10,
    num_chains: int = 1,
    batch_size: int = BATCH_SIZE,
) -> tuple[Any, int]:
    """Returns a compiled chain on examples from N(0, I), and the number of steps of a call."""
    import tensorflow as tf

    import tfp_sgmcmc as sgmcmc
    from benchmarks.suite import chains
    from tfp_sgmcmc import random

    num_steps = NUMBERS // (batch_size * dimension * num_chains)
    num_steps = min(MOST_STEPS, max(LEAST_STEPS, num_steps))
    target = sgmcmc.MinibatchLogProb(
        lambda theta: -0.5 * tf.reduce_sum(theta**2, axis=-1),
        lambda theta, x: -0.5 * tf.reduce_sum((x - theta[..., None, :]) ** 2, axis=-1),
        random.normal([num_examples, dimension], tf.float32, random.as_seed(0)),
        batch_size,
    )
    start = tf.zeros([dimension] if num_chains == 1 else [num_chains, dimension])
    run = chains.Chain(sgmcmc.SGLD(target, 0.1 / num_examples), start, num_steps)
    run()
    return run, num_steps
