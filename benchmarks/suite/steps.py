"""`time_*`: steps of every sampler, and its compilation."""

from __future__ import annotations

from typing import Any

from benchmarks.suite.profiles import PROFILE

PROBLEM = "synthetic"


def chain(sampler: str, num_chains: int, batch_size: int, num_steps: int) -> Any:
    """A compiled chain; one chain has a state without a dimension for chains."""
    import tensorflow as tf

    from benchmarks.suite import chains, problems

    _, methods = chains.methods(PROBLEM, batch_size)
    shape = [problems.data(PROBLEM)[0].shape[1]]
    start = tf.zeros(shape if num_chains == 1 else [num_chains, *shape])
    return chains.Chain(methods[sampler].make_kernel(), start, num_steps)


class Steps:
    """Seconds of 500 steps in one call, compiled before."""

    version = "1"
    params = [PROFILE.samplers, PROFILE.chains, PROFILE.batch_sizes]
    param_names = ["sampler", "chains", "n"]
    number = 1

    def setup(self, sampler: str, chains: int, n: int) -> None:
        if not hasattr(self, "run"):  # asv calls this before each sample
            self.run = chain(sampler, chains, n, 500)
            self.run()

    def time_500_steps(self, sampler: str, chains: int, n: int) -> None:
        self.run()


class Compilation:
    """Seconds from a kernel to the end of its first step."""

    version = "1"
    params = PROFILE.compiled
    param_names = ["sampler"]
    number = repeat = rounds = 1
    warmup_time = 0

    def setup(self, sampler: str) -> None:
        chain("SGLD, eps 2e-5", 1, 100, 1)()  # loads the compiler

    def time_first_step(self, sampler: str) -> None:
        chain(sampler, 1, 100, 1)()
