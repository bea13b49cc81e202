"""Time and memory in N, D and the number of chains: SGLD on the mean of a Gaussian, n = 100."""

from __future__ import annotations

from typing import Any

from benchmarks.suite.profiles import PROFILE

BATCH_SIZE = 100
NUM_STEPS = 200


def chain(num_examples: int = 1000, dimension: int = 10, num_chains: int = 1) -> Any:
    """A compiled chain on examples from N(0, I)."""
    import numpy as np
    import tensorflow as tf

    import tfp_sgmcmc as sgmcmc
    from benchmarks.suite import chains

    x = np.random.default_rng(0).standard_normal([num_examples, dimension], np.float32)
    target = sgmcmc.MinibatchLogProb(
        lambda theta: -0.5 * tf.reduce_sum(theta**2, axis=-1),
        lambda theta, x: -0.5 * tf.reduce_sum((x - theta[..., None, :]) ** 2, axis=-1),
        x,
        BATCH_SIZE,
    )
    shape = [dimension] if num_chains == 1 else [num_chains, dimension]
    return chains.Chain(sgmcmc.SGLD(target, 0.1 / num_examples), tf.zeros(shape), NUM_STEPS)


class _Scaling:
    version = "1"
    number = 1
    timeout = 1800.0
    run: Any = None

    def start(self, **size: int) -> None:
        if self.run is None:  # asv calls `setup` before each sample
            self.run = chain(**size)
            self.run()


class Examples(_Scaling):
    """Up to 400 MB of data; a step should not notice."""

    params = PROFILE.num_examples
    param_names = ["N"]

    def setup(self, num_examples: int) -> None:
        self.start(num_examples=num_examples)

    def time_200_steps(self, num_examples: int) -> None:
        self.run()

    def peakmem_200_steps(self, num_examples: int) -> None:
        self.run()


class Dimensions(_Scaling):
    """Up to 4 GB of data; a step costs D n."""

    params = PROFILE.dimensions
    param_names = ["D"]

    def setup(self, dimension: int) -> None:
        self.start(dimension=dimension)

    def time_200_steps(self, dimension: int) -> None:
        self.run()

    def peakmem_200_steps(self, dimension: int) -> None:
        self.run()


class Chains(_Scaling):
    """Each chain has its own minibatches."""

    params = PROFILE.scaled_chains
    param_names = ["chains"]

    def setup(self, num_chains: int) -> None:
        self.start(num_chains=num_chains)

    def time_200_steps(self, num_chains: int) -> None:
        self.run()

    def peakmem_200_steps(self, num_chains: int) -> None:
        self.run()
