"""`time_*` and `peakmem_*`: the steps and the compilation of every sampler."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.suite.profiles import PROFILE

PROBLEM = "synthetic"


def chain(sampler: str, num_chains: int, batch_size: int, num_steps: int) -> Any:
    """Returns a compiled chain. The state of one chain has no dimension for chains."""
    import tensorflow as tf

    from benchmarks.common import problems
    from benchmarks.suite import chains

    _, methods = chains.methods(PROBLEM, batch_size)
    shape = [problems.data(PROBLEM)[0].shape[1]]
    start = tf.zeros(shape if num_chains == 1 else [num_chains, *shape])
    return chains.Chain(methods[sampler].make_kernel(), start, num_steps)


class Steps:
    """Time and memory of a compiled call: 500 steps of one chain, 50 of many.

    The time is the processor's, which other work on the machine changes least.
    """

    version = "2"
    timer = staticmethod(time.process_time)
    params = [PROFILE.samplers, PROFILE.chains, PROFILE.batch_sizes]
    param_names = ["sampler", "chains", "n"]
    number = rounds = 1  # each round compiles, which takes longer than the timed call
    repeat = (3, 10, 5.0)

    def setup(self, sampler: str, chains: int, n: int) -> None:
        if not hasattr(self, "run"):  # asv calls this before each sample
            self.run = chain(sampler, chains, n, 500 if chains == 1 else 50)
            self.run()

    def time_steps(self, sampler: str, chains: int, n: int) -> None:
        self.run()

    def peakmem_steps(self, sampler: str, chains: int, n: int) -> None:
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
