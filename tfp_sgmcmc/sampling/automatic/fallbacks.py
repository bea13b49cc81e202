"""What is left where the quadratic at the mode is of no use: NUTS, or NOGIN on large data."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.kernels import NOGIN
from tfp_sgmcmc.sampling.automatic.chains import Chains
from tfp_sgmcmc.sampling.automatic.choices import Choices
from tfp_sgmcmc.sampling.automatic.coordinates import scaled
from tfp_sgmcmc.sampling.automatic.pilot import dispersed_starts
from tfp_sgmcmc.sampling.automatic.prepared import NotQuadratic, Prepared
from tfp_sgmcmc.state import State, flatten_events, unflatten_events
from tfp_sgmcmc.targets import FullDataLogProb, MinibatchLogProb, find_center, largest_curvature

_ADAPTATION_STEPS, _PILOT_DRAWS, _ROUNDS = 150, 100, 2
_MOST_DEPTH = 8
_LEAPFROG_STEPS = 30  # a guess of the gradients in a step of NUTS
_MOST_SECONDS = 3600.0
_BATCH_SIZE, _BURN_IN, _STRIDE = 1000, 2000, 20


def fall_back(
    problem: MinibatchLogProb,
    state: State,
    num_results: int,
    num_chains: int,
    seed: tf.Tensor,
    jit_compile: bool,
    reason: NotQuadratic,
) -> Prepared:
    """Returns NUTS on all data in coordinates that a pilot scales; on large data NOGIN.

    What it returns is flagged: no prediction was made for such a posterior.
    """
    start_seed, pilot_seed = random.split(random.fold_in(seed, 1), 2)
    center = _center(problem, state)
    like, dim = center, flatten_events(center, 0).shape[0]
    dtype = tf.nest.flatten(center)[0].dtype
    mean, variance = flatten_events(center, 0).numpy(), _variances(problem, center)
    start = dispersed_starts(num_chains, dim, dtype, start_seed)
    target, bijector = scaled(problem, _unflat(mean, like), variance)
    words = (
        f"The quadratic at the mode says little about this posterior: {reason}. So the run does "
        "without it."
    )
    promise = (
        f"Nothing can be promised for this posterior, because {reason}. A funnel or several modes "
        "look like that, and these draws may miss parts of them. Reparameterise the model, or use "
        "ReplicaExchangeSGLD for several modes, and compare."
    )
    if _seconds(target, start) * _LEAPFROG_STEPS * (num_results + 500) > _MOST_SECONDS:
        return _nogin(problem, target, bijector, center, start, variance, [words], promise)

    def adaptive(e: Any) -> Any:
        nuts = tfp.mcmc.NoUTurnSampler(target, e, max_tree_depth=_MOST_DEPTH)
        return tfp.mcmc.DualAveragingStepSizeAdaptation(nuts, _ADAPTATION_STEPS)

    step = 0.1
    for number in range(_ROUNDS):
        chains = Chains(adaptive, step, start, random.fold_in(pilot_seed, number), jit_compile)
        chains.burn_in(_ADAPTATION_STEPS + 20)
        z = chains.draw(_PILOT_DRAWS, 1)
        if z is None:
            raise ValueError(
                "The log posterior must be finite around its mode. Received: NaN or infinite "
                f"values in a pilot of NUTS, after this was found: {reason}."
            )
        step = float(np.mean(chains.position.results.new_step_size))
        if number < _ROUNDS - 1:
            theta = mean + np.sqrt(variance) * z.reshape(-1, dim)
            mean, variance = theta.mean(axis=0), np.maximum(theta.var(axis=0), 1e-12)
            start = tf.constant((theta[-num_chains:] - mean) / np.sqrt(variance), dtype)
            target, bijector = scaled(problem, _unflat(mean, like), variance)
    arguments = {"step_size": step, "max_tree_depth": _MOST_DEPTH}
    kernel = tfp.mcmc.NoUTurnSampler(target, **arguments)
    choices = Choices(
        sampler="NoUTurnSampler",
        arguments=arguments,
        batch_size=None,
        coordinates="pilot",
        center=tf.nest.map_structure(lambda x: x.numpy(), _unflat(mean, like)),
        hessian=-1 / variance,
        start=z[-1],
        num_burnin_steps=0,
        num_steps_between_results=0,
        milliseconds={},
    )
    line = (
        f"NoUTurnSampler uses all {problem.num_examples} examples, with a step of {step:.2g} that "
        "was adapted in coordinates scaled by a pilot's draws."
    )
    exact = FullDataLogProb(target)
    return Prepared(kernel, bijector, exact, choices, (words, line), (promise,))


def _nogin(
    problem: MinibatchLogProb,
    target: MinibatchLogProb,
    bijector: Any,
    center: State,
    start: tf.Tensor,
    variance: np.ndarray,
    words: list[str],
    promise: str,
) -> Prepared:
    n = min(_BATCH_SIZE, problem.num_examples)
    batches = target.with_minibatches(n)
    curvature = largest_curvature(batches, tf.zeros_like(start[0]))
    arguments: dict[str, Any] = {
        "step_size": float(0.5 / np.sqrt(max(curvature, 1.0))),
        "friction": 1.0,
    }
    choices = Choices(
        sampler="NOGIN",
        arguments=arguments,
        batch_size=n,
        coordinates="scores",
        center=tf.nest.map_structure(lambda x: x.numpy(), center),
        hessian=-1 / variance,
        start=start.numpy(),
        num_burnin_steps=_BURN_IN,
        num_steps_between_results=_STRIDE - 1,
        milliseconds={},
    )
    line = (
        f"NOGIN, which makes up for the noise of minibatches, uses {n} of the "
        f"{problem.num_examples} examples, as a step with all of them takes too long."
    )
    kernel = NOGIN(batches, **arguments)
    return Prepared(kernel, bijector, batches, choices, (*words, line), (promise,))


def _center(problem: MinibatchLogProb, state: State) -> State:
    """Returns a mode, or the start if none is found."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return find_center(problem, state)[0]
        except ValueError:
            return state


def _variances(problem: MinibatchLogProb, center: State) -> np.ndarray:
    """Returns variances by the squares of single examples' scores, `[D]`."""
    scores = problem.estimate(center, tf.constant([0, 0])).scores
    squares = tf.nest.map_structure(lambda s: tf.reduce_mean(s**2, axis=0), scores)
    total = problem.num_examples if problem.num_examples > 1 else 0
    return 1 / (1 + total * flatten_events(squares, 0).numpy().astype(np.float64))


def _unflat(flat: np.ndarray, like: State) -> State:
    return unflatten_events(tf.constant(flat, tf.nest.flatten(like)[0].dtype), like, 0)


def _seconds(target: MinibatchLogProb, z: tf.Tensor) -> float:
    """Returns the time of a gradient of all data at all chains."""
    gradient = tf.function(
        lambda z: tfp.math.value_and_gradient(target, z), autograph=False, jit_compile=True
    )
    gradient(z)
    began = time.perf_counter()
    gradient(z)[0].numpy()
    return time.perf_counter() - began
