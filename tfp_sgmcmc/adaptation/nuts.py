"""NUTS in coordinates that its own pilot scales."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.adaptation.chains import Chains
from tfp_sgmcmc.adaptation.coordinates import scaled
from tfp_sgmcmc.adaptation.proper import check_proper
from tfp_sgmcmc.adaptation.reasons import NotQuadratic
from tfp_sgmcmc.internal.nest import State, flatten_events, unflatten_events
from tfp_sgmcmc.targets import MinibatchLogProb

_ADAPTATION_STEPS, _PILOT_DRAWS, _ROUNDS = 150, 100, 2
_MOST_DEPTH = 8


def nuts(
    problem: MinibatchLogProb,
    center: State,
    variance: np.ndarray,
    start: tf.Tensor,
    seed: tf.Tensor,
    jit_compile: bool,
    reason: NotQuadratic,
) -> tuple[State, np.ndarray, Any, Any, dict[str, Any], float]:
    """Returns center and variances of a pilot, NUTS in these units with all settings, and its pace.

    The pace is the seconds of a draw.
    """
    like, dim, dtype = center, start.shape[-1], start.dtype
    mean = flatten_events(center, 0).numpy().astype(np.float64)
    problem = problem.with_minibatches(problem.num_examples)

    def adaptive(settings: Any) -> Any:  # one program for all rounds
        e, shift, scale = settings

        def log_prob(z: tf.Tensor) -> tf.Tensor:
            return problem(unflatten_events(shift + scale * z, like, 0))

        sampler = tfp.mcmc.NoUTurnSampler(log_prob, e, max_tree_depth=_MOST_DEPTH)
        return tfp.mcmc.DualAveragingStepSizeAdaptation(sampler, _ADAPTATION_STEPS)

    step, chains = 0.1, None
    for number in range(_ROUNDS):
        settings, fresh = (step, mean, np.sqrt(variance)), random.fold_in(seed, number)
        if chains is None:
            chains = Chains(adaptive, settings, start, fresh, jit_compile)
        else:
            chains.restart(settings, start, fresh)
        chains.burn_in(_ADAPTATION_STEPS + 20)
        began = time.perf_counter()
        z = chains.draw(_PILOT_DRAWS, 1)
        seconds = (time.perf_counter() - began) / _PILOT_DRAWS
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
        seconds,
    )


def _unflat(flat: np.ndarray, like: State) -> State:
    return unflatten_events(tf.constant(flat, tf.nest.flatten(like)[0].dtype), like, 0)
