"""HMC and NUTS on all examples, with step sizes that pilots accept."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.adaptation.coordinates import Coordinates, whiten_by_covariance
from tfp_sgmcmc.adaptation.pilot import Gradients, PilotChains, PilotDraws, PilotRuns
from tfp_sgmcmc.adaptation.prior_scale import NotNearGaussian, check_proper, state_at
from tfp_sgmcmc.adaptation.settings import PreparedKernel, prepare_kernel
from tfp_sgmcmc.internal.nest import State, flatten_events, unflatten_events
from tfp_sgmcmc.targets import FullDataLogProb, MinibatchLogProb

_STRIDE = 2  # steps of HMC between nearly independent draws
_PILOT_DRAWS = 400
_DRAWS_PER_ENTRY = 100  # of all chains, so that a covariance is known well
_MOST_PILOTS = 5
_LEAST_ACCEPTED = 0.6
_NUTS_ADAPTATION_STEPS, _NUTS_DRAWS, _NUTS_ROUNDS = 150, 100, 2
NUTS_DEPTH = 8  # largest depth of a tree


def leapfrog(dim: int) -> tuple[float, int]:
    """Returns the step and the number of steps of HMC for a standard normal in `dim` dimensions.

    With step e, the energy error has the standard deviation e^2 sqrt(D) / 4. A deviation of 0.38
    gives an acceptance probability of 0.85.

    >>> leapfrog(1), leapfrog(124), leapfrog(1000)
    ((0.79, 2), (0.37, 4), (0.22, 7))
    """
    step = min(0.8, (1.5**2 / dim) ** 0.25)
    count = steps_for(step)
    return round(min(step, 1.57 / count), 2), count


def steps_for(step: float) -> int:
    """Returns the number of leapfrog steps over a time of about pi / 2: draws are independent."""
    return max(2, round(1.5 / step))


class TimedHMC:
    """HMC in whitened coordinates, timed with the step that suits a standard normal.

    Attributes:
      seconds: time of a nearly independent draw of each chain.

    Args:
      problem: the target.
      found: the coordinates.
      runs: makes chains.
    """

    def __init__(self, problem: MinibatchLogProb, found: Coordinates, runs: PilotRuns):
        self._problem, self._found, self._runs = problem, found, runs
        self._settings = leapfrog(runs.dim)
        self._chains = runs.timed_chains(
            "HamiltonianMonteCarlo",
            lambda x: tfp.mcmc.HamiltonianMonteCarlo(found.target, x[0], tf.cast(x[1], tf.int32)),
            self._settings,
        )
        self.seconds = _STRIDE * runs.milliseconds["HamiltonianMonteCarlo"] / 1e3

    def __call__(self, num_results: int) -> PreparedKernel:
        """Returns HMC with an accepted step, if needed in coordinates of a pilot's draws.

        Raises:
          NotNearGaussian: no step is accepted, or draws wander.
        """
        found, runs, (h, count) = self._found, self._runs, self._settings
        gradients = Gradients(FullDataLogProb(found.target), runs.jit_compile)
        num_draws = int(np.clip(num_results // 2, 50, _PILOT_DRAWS))
        pilot, accepted = None, 0.0
        for _ in range(_MOST_PILOTS):
            pilot = runs.pilot(self._chains, gradients, (h, count), 1, num_draws)
            accepted = 0.0 if pilot is None else _acceptance(pilot)
            if accepted >= _LEAST_ACCEPTED:
                break
            h = 0.7 * h
            count = steps_for(h)
        if pilot is None or accepted < _LEAST_ACCEPTED / 2:
            raise NotNearGaussian("HMC in the coordinates of the mode is hardly ever accepted")
        if pilot.wanders:
            raise NotNearGaussian(pilot.wandering)
        poor = not pilot.fits or h < self._settings[0]  # a normal would have accepted the first h
        if found.factor is not None and found.kind != "covariance" and poor:
            more = min(num_results // 2, _DRAWS_PER_ENTRY * runs.dim // pilot.z.shape[1])
            if more > num_draws:
                longer = runs.pilot(self._chains, gradients, (h, count), 1, more)
                pilot = pilot if longer is None else longer
            recentred = whiten_by_covariance(self._problem, found, pilot.z)
            return TimedHMC(self._problem, recentred, runs)(num_results)
        arguments = {"step_size": h, "num_leapfrog_steps": count}
        line = (
            f"All {found.target.num_examples} examples are used in every step, and a Metropolis "
            f"test accepts {100 * accepted:.0f} %, so that only the number of draws limits the "
            "accuracy."
        )
        return prepare_kernel(
            tfp.mcmc.HamiltonianMonteCarlo(found.target, **arguments),
            found,
            gradients,
            pilot,
            runs,
            line,
            sampler="HamiltonianMonteCarlo",
            arguments=arguments,
            batch_size=None,
            stride=1,
        )


def _acceptance(pilot: PilotDraws) -> float:
    return float(np.mean(np.any(pilot.z[1:] != pilot.z[:-1], axis=-1)))


class NUTSPilot(NamedTuple):
    """The result of a pilot of NUTS.

    Attributes:
      center: mean of the first round's draws.
      variance: their variances, `[D]`.
      step_size: step size in coordinates that these standardize.
      start: the last z of all chains, `[chains, D]`.
      seconds_per_draw: seconds of a draw of all chains.
    """

    center: State
    variance: np.ndarray
    step_size: float
    start: np.ndarray
    seconds_per_draw: float


def run_nuts_pilot(
    problem: MinibatchLogProb,
    center: State,
    variance: np.ndarray,
    start: tf.Tensor,
    seed: tf.Tensor,
    jit_compile: bool,
    reason: NotNearGaussian,
) -> NUTSPilot:
    """Adapts the step size of NUTS twice, the second time in coordinates scaled by draws.

    Raises:
      ValueError: the log posterior is not finite where the pilot goes, or its integral is not.
    """
    like, dim, dtype = center, start.shape[-1], start.dtype
    mean = flatten_events(center, 0).numpy().astype(np.float64)
    problem = problem.with_minibatches(problem.num_examples)

    def adaptive(settings: Any) -> Any:  # one program for all rounds
        e, shift, scale = settings

        def log_prob(z: tf.Tensor) -> tf.Tensor:
            return problem(unflatten_events(shift + scale * z, like, 0))

        sampler = tfp.mcmc.NoUTurnSampler(log_prob, e, max_tree_depth=NUTS_DEPTH)
        return tfp.mcmc.DualAveragingStepSizeAdaptation(sampler, _NUTS_ADAPTATION_STEPS)

    step, chains = 0.1, None
    for number in range(_NUTS_ROUNDS):
        settings, fresh = (step, mean, np.sqrt(variance)), random.fold_in(seed, number)
        if chains is None:
            chains = PilotChains(adaptive, settings, start, fresh, jit_compile)
        else:
            chains.restart(settings, start, fresh)
        chains.burn_in(_NUTS_ADAPTATION_STEPS + 20)
        began = time.perf_counter()
        z = chains.draw(_NUTS_DRAWS, 1)
        seconds = (time.perf_counter() - began) / _NUTS_DRAWS
        if z is None:
            raise ValueError(
                "The log posterior must be finite around its mode. Received: NaN or infinite "
                f"values in a pilot of NUTS, after this was found: {reason}."
            )
        step = float(np.mean(chains.position.results.new_step_size))
        if number < _NUTS_ROUNDS - 1:
            theta = mean + np.sqrt(variance) * z.reshape(-1, dim)
            mean, variance = theta.mean(axis=0), np.maximum(theta.var(axis=0), 1e-12)
            start = tf.constant((theta[-len(start) :] - mean) / np.sqrt(variance), dtype)
            axes = np.linalg.svd((theta - mean) / np.sqrt(variance), full_matrices=False)[2]
            check_proper(problem, state_at(mean, like), np.sqrt(variance) * axes[0])
    return NUTSPilot(state_at(mean, like), variance, step, z[-1], seconds)
