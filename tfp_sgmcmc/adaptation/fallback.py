"""What is left where the quadratic at the mode is of no use: NUTS, or NOGIN on large data."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.adaptation.chains import Gradients
from tfp_sgmcmc.adaptation.coordinates import scaled
from tfp_sgmcmc.adaptation.nuts import nuts
from tfp_sgmcmc.adaptation.pilot import dispersed_starts
from tfp_sgmcmc.adaptation.prepared import Prepared
from tfp_sgmcmc.adaptation.reasons import NotQuadratic
from tfp_sgmcmc.adaptation.settings import Choices
from tfp_sgmcmc.internal.nest import State, flatten_events
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.kernels import NOGIN
from tfp_sgmcmc.targets import FullDataLogProb, MinibatchLogProb, find_center, largest_curvature

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
    seconds, most = _seconds(target, start, jit_compile), num_results
    if seconds * _LEAPFROG_STEPS * (num_results + 500) > _MOST_SECONDS:
        n = min(_BATCH_SIZE, problem.num_examples)
        batches = target.with_minibatches(n)
        kernel, settings = _nogin(batches, start, n)
        line = (
            f"NOGIN, which makes up for the noise of minibatches, uses {n} of the "
            f"{problem.num_examples} examples, as a step with all of them takes too long."
        )
    else:
        center, variance, kernel, bijector, settings, seconds_per_draw = nuts(
            problem, center, variance, start, pilot_seed, jit_compile, reason
        )
        most = max(1, int(_MOST_SECONDS / seconds_per_draw))
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
    flags = [_promise(reason)]
    if most < num_results:
        flags.append(
            f"Only {most} of {num_results} draws are taken, which is as many as an hour allows. "
            "With a directory, the same call goes on from there."
        )
    return Prepared(
        kernel,
        bijector,
        Gradients(batches, jit_compile),
        choices,
        (words, line),
        tuple(flags),
        most_results=most,
    )


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


def _seconds(target: MinibatchLogProb, z: tf.Tensor, jit_compile: bool) -> float:
    """Returns the time of a gradient of all data at all chains."""
    gradient = traced(lambda z: tfp.math.value_and_gradient(target, z), jit_compile)
    gradient(z)
    began = time.perf_counter()
    gradient(z)[0].numpy()
    return time.perf_counter() - began
