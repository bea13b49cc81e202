"""Draws of an expert who tunes by hand and knows the exact moments."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.common.chains import compiled
from benchmarks.no_knobs.accuracy import Accuracy, effective, judge
from benchmarks.no_knobs.problems import Problem
from benchmarks.no_knobs.references import Reference
from tfp_sgmcmc.internal.nest import call_with_state, flatten_events, unflatten_events

NUM_CHAINS, FRICTION, THINNING = 4, 1.5, 2
HMC_GRID = ((0.3, 5), (0.5, 3), (0.4, 4), (0.8, 2), (1.0, 2), (1.0, 1))  # step, leapfrog steps
STEPS, SIZES, IMPORTANCES = (1.0, 0.5), (100, 300), (None, "pilot")
NUM_RESULTS = 100  # draws of a chain and of a compiled call
LEAST_BLOCKS, MOST_BLOCKS = 4, 40  # compiled calls


class ByHand(NamedTuple):
    """A setting and what came of it.

    Attributes:
      setting: in words.
      milliseconds: processor time for an effective sample.
      accuracy: the errors of the draws; None for HMC on all data, which has no bias.
    """

    setting: str
    milliseconds: float
    accuracy: Accuracy | None

    @property
    def is_good(self) -> bool:
        return self.accuracy is None or self.accuracy.is_good


def all_settings(problem: Problem, reference: Reference, seconds: float) -> list[ByHand]:
    """Returns all settings that ran, each for about `seconds`, the cheapest good one first."""
    found = [*hmc(problem, reference, seconds), *control_variates(problem, reference, seconds)]
    return sorted(found, key=lambda x: (not x.is_good, x.milliseconds))


def hmc(problem: Problem, reference: Reference, seconds: float) -> Iterator[ByHand]:
    """Yields runs of HMC on all data, in coordinates in which the posterior has the moments 0, I.

    The expert takes the exact moments for these, which are at least as good as Laplace's.
    """
    mean = tf.constant(reference.mean, tf.float32)
    factor = tf.constant(np.linalg.cholesky(reference.covariance), tf.float32)
    target, state = problem.target(chunk_size=problem.num_examples), problem.state()

    def log_prob(z: tf.Tensor) -> tf.Tensor:
        theta = mean + tf.linalg.matmul(z, factor, transpose_b=True)
        return call_with_state(target, unflatten_events(theta, state, 0))

    make = lambda h, steps: tfp.mcmc.HamiltonianMonteCarlo(log_prob, h, steps)  # noqa: E731
    run = Timed(make, normal_start(problem.dimension), 1, seconds)
    for h, steps in HMC_GRID:
        cost = run(tf.constant(h), tf.constant(steps))[0]
        yield ByHand(f"HMC, h = {h:g}, {steps} steps", cost, None)


def control_variates(problem: Problem, reference: Reference, seconds: float) -> Iterator[ByHand]:
    """Yields runs of BAOAB on control variates of second order, centred and whitened at the mode.

    There are none where the mode is no center: the Hessian is not negative definite.
    """
    for size in sorted({min(n, problem.num_examples) for n in SIZES}):
        target, state = problem.target(batch_size=size), problem.state()
        try:
            center, _ = sgmcmc.find_center(target, state)
            whitened, bijector = sgmcmc.whiten(target, center)
        except ValueError:
            return
        for importance in IMPORTANCES:
            control = sgmcmc.ControlVariate(
                whitened, tf.zeros([problem.dimension]), order=2, importance=importance
            )
            make = functools.partial(_baoab, control)
            run = Timed(make, normal_start(problem.dimension), THINNING, seconds)
            for h in STEPS:
                cost, z = run(tf.constant(h))
                parts = target.unconstrain(bijector.forward(tf.constant(z)))
                draws = np.asarray(flatten_events(parts, 2), np.float64)
                how = "pilot" if importance else "uniform"
                setting = f"order 2, h = {h:g}, n = {size}, {how}"
                yield ByHand(setting, cost, judge(draws, reference))


def normal_start(dimension: int) -> tf.Tensor:
    z = np.random.default_rng(0).standard_normal([NUM_CHAINS, dimension])
    return tf.constant(z, tf.float32)


def _baoab(control: Any, h: tf.Tensor) -> Any:
    return sgmcmc.UnderdampedLangevin(control, h, FRICTION)


class Timed:
    """Runs chains for about `seconds`, compiled once for all settings.

    `kernel` is a kernel, or makes it from the settings.
    """

    def __init__(self, kernel: Any, start: Any, thinning: int, seconds: float):
        self.run = compiled(kernel, NUM_RESULTS, thinning)
        self.start, self.seconds = start, seconds

    def __call__(self, *setting: tf.Tensor) -> tuple[float, np.ndarray]:
        """Returns milliseconds of an effective sample, and the draws after two calls of burn-in."""
        state, blocks, begin, used = self.start, [], 0.0, 0.0
        for i in itertools.count(-2):
            if i == 0:
                begin = time.process_time()
            found = self.run(state, None, tf.constant([i + 2, 3]), *setting).all_states
            state = tf.nest.map_structure(lambda x: x[-1], found)
            if i < 0:
                continue
            blocks.append(flatten_events(found, 2).numpy())
            used = time.process_time() - begin
            if i >= LEAST_BLOCKS - 1 and (used > self.seconds or i >= MOST_BLOCKS):
                break
        draws = np.concatenate(blocks)
        with np.errstate(invalid="ignore", divide="ignore"):
            size = effective(draws) if np.isfinite(draws).all() else 0.0
        return 1e3 * used / size if size > 0 else np.inf, draws
