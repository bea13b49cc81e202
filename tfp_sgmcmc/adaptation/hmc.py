"""HMC on all examples, with a step that its pilot accepts."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.adaptation import coordinates as to
from tfp_sgmcmc.adaptation.coordinates import Coordinates
from tfp_sgmcmc.adaptation.pilot import Pilot
from tfp_sgmcmc.adaptation.prepared import Prepared, prepare
from tfp_sgmcmc.adaptation.reasons import NotQuadratic
from tfp_sgmcmc.adaptation.selection import HMC_STRIDE, leapfrog, steps_for
from tfp_sgmcmc.adaptation.trials import Trials
from tfp_sgmcmc.targets import FullDataLogProb, MinibatchLogProb

_PILOT_DRAWS = 400
_DRAWS_PER_ENTRY = 100  # of all chains, so that a covariance is known well
_MOST_PILOTS = 5
_LEAST_ACCEPTED = 0.6


class TimedHMC:
    """HMC in whitened coordinates, timed with the step that suits a standard normal.

    Attributes:
      seconds: of a nearly independent draw of each chain.

    Args:
      problem: the target.
      found: the coordinates.
      trials: makes chains.
    """

    def __init__(self, problem: MinibatchLogProb, found: Coordinates, trials: Trials):
        self._problem, self._found, self._trials = problem, found, trials
        self._settings = leapfrog(trials.dim)
        self._chains = trials.chains(
            lambda x: tfp.mcmc.HamiltonianMonteCarlo(found.target, x[0], tf.cast(x[1], tf.int32)),
            self._settings,
        )
        self.seconds = HMC_STRIDE * trials.seconds("HamiltonianMonteCarlo", self._chains)

    def __call__(self, num_results: int) -> Prepared:
        """Returns it with a step that is accepted, where needed in coordinates of a pilot's draws.

        Raises:
          NotQuadratic: there is none, or draws wander.
        """
        found, trials, (h, count) = self._found, self._trials, self._settings
        gradients = trials.gradients(FullDataLogProb(found.target))
        num_draws = int(np.clip(num_results // 2, 50, _PILOT_DRAWS))
        pilot, accepted = None, 0.0
        for _ in range(_MOST_PILOTS):
            pilot = trials.pilot(self._chains, gradients, (h, count), 1, num_draws)
            accepted = 0.0 if pilot is None else _acceptance(pilot)
            if accepted >= _LEAST_ACCEPTED:
                break
            h = 0.7 * h
            count = steps_for(h)
        if pilot is None or accepted < _LEAST_ACCEPTED / 2:
            raise NotQuadratic("HMC in the coordinates of the mode is hardly ever accepted")
        if pilot.wanders:
            raise NotQuadratic(pilot.wandering)
        poor = not pilot.fits or h < self._settings[0]  # a normal would have accepted the first h
        if found.factor is not None and found.kind != "covariance" and poor:
            more = min(num_results // 2, _DRAWS_PER_ENTRY * trials.dim // pilot.z.shape[1])
            if more > num_draws:
                longer = trials.pilot(self._chains, gradients, (h, count), 1, more)
                pilot = pilot if longer is None else longer
            recentred = to.at_covariance(self._problem, found, pilot.z)
            return TimedHMC(self._problem, recentred, trials)(num_results)
        arguments = {"step_size": h, "num_leapfrog_steps": count}
        line = (
            f"All {found.target.num_examples} examples are used in every step, and a Metropolis "
            f"test accepts {100 * accepted:.0f} %, so that only the number of draws limits the "
            "accuracy."
        )
        return prepare(
            tfp.mcmc.HamiltonianMonteCarlo(found.target, **arguments),
            found,
            gradients,
            pilot,
            trials.milliseconds,
            [line],
            sampler="HamiltonianMonteCarlo",
            arguments=arguments,
            batch_size=None,
            stride=1,
        )


def _acceptance(pilot: Pilot) -> float:
    return float(np.mean(np.any(pilot.z[1:] != pilot.z[:-1], axis=-1)))
