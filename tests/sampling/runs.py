"""Short chains for the tests of the driver."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc


def target(**options: Any) -> sgmcmc.MinibatchLogProb:
    """Returns a target for a normal mean of three entries and the log standard deviation."""
    x = np.random.default_rng(0).normal(2.0, 1.0, size=[40, 3]).astype(np.float32)

    def log_prior(mean: tf.Tensor, log_sd: tf.Tensor) -> tf.Tensor:
        return -0.005 * tf.reduce_sum(mean**2, axis=-1) - log_sd**2

    def log_likelihood(mean: tf.Tensor, log_sd: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        log_sd = log_sd[..., tf.newaxis]
        squares = tf.reduce_sum((batch - mean[..., tf.newaxis, :]) ** 2, axis=-1)
        return -0.5 * squares * tf.exp(-2.0 * log_sd) - 3.0 * log_sd

    return sgmcmc.MinibatchLogProb(log_prior, log_likelihood, x, 10, **options)


def state() -> dict[str, tf.Tensor]:
    return {"mean": tf.zeros([3]), "log_sd": tf.zeros([])}


def kernel() -> sgmcmc.NOGIN:
    """Returns a kernel with momenta, a learnt covariance and epochs, which must be carried over."""
    return sgmcmc.NOGIN(
        target(reshuffle="epoch"), step_size=0.02, friction=1.0, num_estimation_steps=0
    )


def quick_kernel() -> sgmcmc.SGNHT:
    """Returns a kernel with momenta and a thermostat; drawing with replacement traces fast."""
    return sgmcmc.SGNHT(target(replacement=True), step_size=0.02)


def trace(state: Any, results: Any) -> dict[str, tf.Tensor]:
    return {"norm": results.gradient_norm, "double": 2.0 * state["mean"]}


class Walk(tfp.mcmc.TransitionKernel):
    """x <- growth x + a normal number: a cheap kernel that is not part of the library."""

    is_calibrated = False

    def __init__(self, growth: float = 0.5):
        self.parameters = {"growth": growth}
        self.num_traces = 0

    def bootstrap_results(self, init_state: Any) -> Any:
        return {"number": tf.zeros([], tf.int32), "nothing": None, "empty": ()}

    def one_step(self, current_state: Any, previous_kernel_results: Any, seed: Any = None) -> Any:
        self.num_traces += 1
        noise = sgmcmc.random.normal_like(current_state, seed)
        number = previous_kernel_results["number"] + 1
        growth = self.parameters["growth"]
        moved = tf.nest.map_structure(lambda x, z: growth * x + z, current_state, noise)
        return moved, {**previous_kernel_results, "number": number}


def assert_equal(x: Any, y: Any) -> None:
    tf.nest.map_structure(np.testing.assert_array_equal, x, y)


def at_call(count: int, action: Callable[[], None], real: Callable[..., Any]) -> Any:
    """Returns `real`, which acts before its call number `count`."""
    calls = itertools.count(1)

    def patched(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == count:
            action()
        return real(*args, **kwargs)

    return patched


def killed_run(directory: str | os.PathLike[str] | None, num_results: int) -> sgmcmc.SampleResult:
    """Runs under XLA and writes a checkpoint every few milliseconds."""
    return sgmcmc.sample_chain(
        sgmcmc.SGLD(sgmcmc.FullDataLogProb(lambda x: -tf.reduce_sum(x**2)), 0.1),
        tf.zeros([3]),
        num_results,
        trace_fn=lambda state, results: results.gradient_norm,
        seed=5,
        directory=directory and sgmcmc.Directory(directory, seconds_between_commits=0.02),
        progress_bar=False,
    )


if __name__ == "__main__":
    killed_run(sys.argv[1], 10**8)
