"""HMC on all examples, with a step size that pilots accept."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.adaptation.coordinates import Coordinates, whiten_by_covariance
from tfp_sgmcmc.adaptation.pilot import Gradients, PilotDraws, PilotRuns
from tfp_sgmcmc.adaptation.priors.prior_scale import NotNearGaussian
from tfp_sgmcmc.adaptation.settings import PreparedKernel, prepare_kernel
from tfp_sgmcmc.targets import FullDataLogProb, MinibatchLogProb

_STRIDE = 2  # steps of HMC between nearly independent draws
_PILOT_DRAWS = 400
_LEAST_DRAWS = 200  # of all chains; the R-hat of fewer is above a pilot's bound by chance
_DRAWS_PER_ENTRY = 100  # of all chains, so that a covariance is known well
_MOST_PILOTS = 5
_LEAST_ACCEPTED = 0.6


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
        least = max(50, math.ceil(_LEAST_DRAWS / runs.num_chains))
        num_draws = int(np.clip(num_results // 2, least, _PILOT_DRAWS))
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
