"""Settings where the quadratic at the mode does not help: NUTS, or NOGIN on large data."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.adaptation.coordinates import standardize
from tfp_sgmcmc.adaptation.hmc import NUTS_DEPTH, run_nuts_pilot
from tfp_sgmcmc.adaptation.pilot import Gradients, dispersed_starts
from tfp_sgmcmc.adaptation.prior_scale import NotNearGaussian
from tfp_sgmcmc.adaptation.settings import Choices, PreparedKernel
from tfp_sgmcmc.internal.nest import State, flatten_events
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.kernels import NOGIN
from tfp_sgmcmc.targets import FullDataLogProb, MinibatchLogProb, find_center, largest_curvature
from tfp_sgmcmc.targets.base import ExpansionError

_LEAPFROG_STEPS = 30  # a guess of the gradients in a step of NUTS
_MOST_SECONDS = 3600.0
_BATCH_SIZE, _BURN_IN, _STRIDE = 1000, 2000, 20


def sample_nonquadratic(
    problem: MinibatchLogProb,
    state: State,
    num_results: int,
    num_chains: int,
    seed: tf.Tensor,
    jit_compile: bool,
    reason: NotNearGaussian,
) -> PreparedKernel:
    """Returns NUTS on all data in coordinates that a pilot scales; on large data NOGIN.

    The result has a flag, because no prediction was made for such a posterior.

    Raises:
      ValueError: the log posterior is not finite where the pilot goes, or its integral is not.
    """
    start_seed, pilot_seed = random.split(random.fold_in(seed, 1), 2)
    center = _center(problem, state)
    flat = flatten_events(center, 0)
    variance = _variances(problem, center)
    start = dispersed_starts(num_chains, flat.shape[0], flat.dtype, start_seed)
    target, bijector = standardize(problem, center, -1 / variance)
    seconds, most = _seconds(target, start, jit_compile), num_results
    settings: dict[str, Any]
    arguments: dict[str, Any]
    if seconds * _LEAPFROG_STEPS * (num_results + 500) > _MOST_SECONDS:
        n = min(_BATCH_SIZE, problem.num_examples)
        estimates: Any = target.with_minibatches(n)
        # A step that is stable at the largest curvature.
        curvature = largest_curvature(estimates, tf.zeros_like(start[0]))
        arguments = {"step_size": float(0.5 / np.sqrt(max(curvature, 1.0))), "friction": 1.0}
        kernel = NOGIN(estimates, **arguments)
        settings = {
            "sampler": "NOGIN",
            "batch_size": n,
            "coordinates": "scores",
            "start": start.numpy(),
            "num_burnin_steps": _BURN_IN,
            "num_steps_between_results": _STRIDE - 1,
        }
        line = (
            f"NOGIN, which corrects for the noise of minibatches, uses {n} of the "
            f"{problem.num_examples} examples, because a step with all of them takes too long."
        )
    else:
        pilot = run_nuts_pilot(problem, center, variance, start, pilot_seed, jit_compile, reason)
        center, variance = pilot.center, pilot.variance
        most = max(1, int(_MOST_SECONDS / pilot.seconds_per_draw))
        all_examples = problem.with_minibatches(problem.num_examples)
        target, bijector = standardize(all_examples, center, -1 / variance)
        arguments = {"step_size": pilot.step_size, "max_tree_depth": NUTS_DEPTH}
        kernel = tfp.mcmc.NoUTurnSampler(target, **arguments)
        estimates = FullDataLogProb(target)
        settings = {
            "sampler": "NoUTurnSampler",
            "batch_size": None,
            "coordinates": "pilot",
            "start": pilot.start,
            "num_burnin_steps": 0,
            "num_steps_between_results": 0,
        }
        line = (
            f"NoUTurnSampler uses all {problem.num_examples} examples, with a step of "
            f"{pilot.step_size:.2g} that was adapted in coordinates scaled by a pilot's draws."
        )
    choices = Choices(
        arguments=arguments,
        center=tf.nest.map_structure(lambda x: x.numpy(), center),
        hessian=-1 / variance,
        milliseconds={"gradient of all data": 1e3 * seconds},
        **settings,
    )
    flags = [_caveat(reason)]
    if most < num_results:
        flags.append(
            f"Only {most} of {num_results} draws are taken, which is as many as an hour allows. "
            "With a directory, the same call goes on from there."
        )
    lines = f"The run does not use a quadratic at the mode, because {reason}.", line
    gradients = Gradients(estimates, jit_compile)
    return PreparedKernel(
        kernel, bijector, gradients, choices, lines, tuple(flags), most_results=most
    )


def _caveat(reason: NotNearGaussian) -> str:
    """Returns what remains unchecked, in words that fit the reason."""
    if reason.has_shape:
        return (
            f"These draws may miss parts of the posterior, because {reason}. A funnel or several "
            "modes look like that. Reparameterise the model, or use ReplicaExchangeSGLD for "
            "several modes, and compare."
        )
    return (
        "The error of minibatches and steps was not predicted and could not be checked "
        f"beforehand, because {reason}. See the report, and compare with a second run."
    )


def _center(problem: MinibatchLogProb, state: State) -> State:
    """Returns a mode, or the start if none is found."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return find_center(problem, state)[0]
        except ExpansionError:  # the reason says so
            return state


def _variances(problem: MinibatchLogProb, center: State) -> np.ndarray:
    """Returns variances by the squares of single examples' scores, `[D]`."""
    scores = problem.estimate(center, tf.constant([0, 0])).scores
    squares = tf.nest.map_structure(lambda s: tf.reduce_mean(s**2, axis=0), scores)
    total = problem.num_examples if problem.num_examples > 1 else 0
    return 1 / (1 + total * flatten_events(squares, 0).numpy().astype(np.float64))


def _seconds(target: MinibatchLogProb, z: tf.Tensor, jit_compile: bool) -> float:
    """Returns the time of a gradient of all data at all chains."""
    gradient = traced(lambda z: tfp.math.value_and_gradient(target, z), jit_compile)
    gradient(z)
    began = time.perf_counter()
    gradient(z)[0].numpy()
    return time.perf_counter() - began
