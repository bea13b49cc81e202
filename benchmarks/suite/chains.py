"""Compiled chains of every sampler and baseline of the suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.common import problems
from benchmarks.common.chains import compiled
from benchmarks.common.samplers import ON_ALL_DATA, samplers

NUM_LEAPFROG_STEPS = 5
MAX_TREE_DEPTH = 3


class Method(NamedTuple):
    """A way to sample a posterior."""

    make_kernel: Callable[[], Any]  # () -> kernel
    examples: int  # examples that a step evaluates; the largest number for NUTS


def methods(problem: str, batch_size: int) -> tuple[sgmcmc.MinibatchLogProb, dict[str, Method]]:
    """Returns a target, and all samplers and baselines on it by name."""
    target = problems.make_target(*problems.data(problem), batch_size)
    on_minibatches = samplers(target) | {"SGD": lambda: sgmcmc.SGLD(target, 2e-5, temperature=0.0)}
    found = {name: Method(make, batch_size) for name, make in on_minibatches.items()}
    on_all_data = {name: (make, 1) for name, make in samplers(target, ON_ALL_DATA).items()} | {
        "HMC": (
            lambda: tfp.mcmc.HamiltonianMonteCarlo(target, 0.03, NUM_LEAPFROG_STEPS),
            NUM_LEAPFROG_STEPS,
        ),
        "NUTS": (
            lambda: tfp.mcmc.NoUTurnSampler(target, 0.03, max_tree_depth=MAX_TREE_DEPTH),
            2**MAX_TREE_DEPTH - 1,
        ),
    }
    for name, (make, num_gradients) in on_all_data.items():
        found[name] = Method(make, num_gradients * target.num_examples)
    return target, found


def temperature(state: tf.Tensor, results: Any) -> tf.Tensor:
    """Returns the kinetic temperature for a trace; NaN for samplers without momenta."""
    nothing = tf.fill(state.shape[:-1], tf.constant(float("nan")))
    return getattr(results, "kinetic_temperature", nothing)


class Chain:
    """A compiled chain, which goes on with each call."""

    def __init__(self, kernel: Any, start: tf.Tensor, num_steps: int):
        self._run = compiled(kernel, 1, num_steps, trace_fn=temperature)
        self._state, self._results = start, kernel.bootstrap_results(start)

    def __call__(self) -> tf.Tensor:
        last = self._run(self._state, self._results, tf.constant([0, 1]))
        self._state, self._results = last.all_states[-1], last.final_kernel_results
        return self._state.numpy()
