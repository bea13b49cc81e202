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
from tfp_sgmcmc.sampling.automatic.chains import Chains, Gradients
from tfp_sgmcmc.sampling.automatic.choices import Choices
from tfp_sgmcmc.sampling.automatic.coordinates import scaled
from tfp_sgmcmc.sampling.automatic.pilot import dispersed_starts
from tfp_sgmcmc.sampling.automatic.prepared import Prepared
from tfp_sgmcmc.sampling.automatic.proper import check_proper
from tfp_sgmcmc.sampling.automatic.reasons import NotQuadratic
from tfp_sgmcmc.state import State, flatten_events, unflatten_events
from tfp_sgmcmc.targets import FullDataLogProb, MinibatchLogProb, find_center, largest_curvature
from tfp_sgmcmc.xla import traced

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

    Raises:
      ValueError: the log posterior is not finite where the pilot goes, or its integral is not.
    """
    start_seed, pilot_seed = random.split(random.fold_in(seed, 1), 2)
    center = _center(problem, state)
    dim, dtype = flatten_events(center, 0).shape[0], tf.nest.flatten(center)[0].dtype
    variance = _variances(problem, center)
    start = dispersed_starts(num_chains, dim, dtype, start_seed)
    target, bijector = scaled(problem, center, variance)
    words = f"The run does without a quadratic at the mode, because {reason}."
    seconds = _seconds(target, start, jit_compile)
    if seconds * _LEAPFROG_STEPS * (num_results + 500) > _MOST_SECONDS:
        n = min(_BATCH_SIZE, problem.num_examples)
        batches = target.with_minibatches(n)
        kernel, settings = _nogin(batches, start, n)
        line = (
            f"NOGIN, which makes up for the noise of minibatches, uses {n} of the "
            f"{problem.num_examples} examples, as a step with all of them takes too long."
        )
    else:
        center, variance, kernel, bijector, settings = _nuts(
            problem, center, variance, start, pilot_seed, jit_compile, reason
        )
        line = (
            f"NoUTurnSampler uses all {problem.num_examples} examples, with a step of "
            f"{settings['arguments']['step_size']:.2g} that was adapted in coordinates scaled by "
            "a pilot's draws."
        )
        batches = FullDataLogProb(kernel.parameters["target_log_prob_fn"])
    choices = Choices(
        center=tf.nest.map_structure(lambda x: x.numpy(), center),
        hessian=-1 / variance,
        milliseconds={"gradient of all data": 1e3 * seconds},
        **settings,
    )
    gradients = Gradients(batches, jit_compile)
    return Prepared(kernel, bijector, gradients, choices, (words, line), (_promise(reason),))


def _promise(reason: NotQuadratic) -> str:
    """Returns what cannot be promised, in words that fit the reason."""
    if reason.has_shape:
        return (
            f"Nothing can be promised for this posterior, because {reason}. A funnel or several "
            "modes look like that, and these draws may miss parts of them. Reparameterise the "
            "model, or use ReplicaExchangeSGLD for several modes, and compare."
        )
    return (
        "What minibatches and steps do to these draws was not predicted and could not be checked "
        f"beforehand, because {reason}. See the report, and compare with a second run."
    )


def _nuts(
    problem: MinibatchLogProb,
    center: State,
    variance: np.ndarray,
    start: tf.Tensor,
    seed: tf.Tensor,
    jit_compile: bool,
    reason: NotQuadratic,
) -> tuple[State, np.ndarray, Any, Any, dict[str, Any]]:
    """Returns center and variances of a pilot, NUTS in these units, and its settings."""
    like, dim, dtype = center, start.shape[-1], start.dtype
    mean = flatten_events(center, 0).numpy().astype(np.float64)
    problem = problem.with_minibatches(problem.num_examples)

    def adaptive(settings: Any) -> Any:  # one program for all rounds
        e, shift, scale = settings

        def log_prob(z: tf.Tensor) -> tf.Tensor:
            return problem(unflatten_events(shift + scale * z, like, 0))

        nuts = tfp.mcmc.NoUTurnSampler(log_prob, e, max_tree_depth=_MOST_DEPTH)
        return tfp.mcmc.DualAveragingStepSizeAdaptation(nuts, _ADAPTATION_STEPS)

    step, chains = 0.1, None
    for number in range(_ROUNDS):
        settings, fresh = (step, mean, np.sqrt(variance)), random.fold_in(seed, number)
        if chains is None:
            chains = Chains(adaptive, settings, start, fresh, jit_compile)
        else:
            chains.restart(settings, start, fresh)
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
            start = tf.constant((theta[-len(start) :] - mean) / np.sqrt(variance), dtype)
            axes = np.linalg.svd((theta - mean) / np.sqrt(variance), full_matrices=False)[2]
            check_proper(problem, _unflat(mean, like), np.sqrt(variance) * axes[0])
    center = _unflat(mean, like)
    target, bijector = scaled(problem, center, variance)
    arguments = {"step_size": step, "max_tree_depth": _MOST_DEPTH}
    return (
        center,
        variance,
        tfp.mcmc.NoUTurnSampler(target, **arguments),
        bijector,
        {
            "sampler": "NoUTurnSampler",
            "arguments": arguments,
            "batch_size": None,
            "coordinates": "pilot",
            "start": z[-1],
            "num_burnin_steps": 0,
            "num_steps_between_results": 0,
        },
    )


def _nogin(batches: MinibatchLogProb, start: tf.Tensor, n: int) -> tuple[Any, dict[str, Any]]:
    """Returns NOGIN with a step that is stable at the largest curvature, and its settings."""
    curvature = largest_curvature(batches, tf.zeros_like(start[0]))
    step = float(0.5 / np.sqrt(max(curvature, 1.0)))
    arguments: dict[str, Any] = {"step_size": step, "friction": 1.0}
    return NOGIN(batches, **arguments), {
        "sampler": "NOGIN",
        "arguments": arguments,
        "batch_size": n,
        "coordinates": "scores",
        "start": start.numpy(),
        "num_burnin_steps": _BURN_IN,
        "num_steps_between_results": _STRIDE - 1,
    }


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


def _seconds(target: MinibatchLogProb, z: tf.Tensor, jit_compile: bool) -> float:
    """Returns the time of a gradient of all data at all chains."""
    gradient = traced(lambda z: tfp.math.value_and_gradient(target, z), jit_compile)
    gradient(z)
    began = time.perf_counter()
    gradient(z)[0].numpy()
    return time.perf_counter() - began
