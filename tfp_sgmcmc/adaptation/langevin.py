"""The choice of minibatch and step for second-order control variates."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.adaptation import coordinates as to
from tfp_sgmcmc.adaptation.chains import Chains
from tfp_sgmcmc.adaptation.coordinates import Coordinates
from tfp_sgmcmc.adaptation.excess_variance import (
    NUM_STATES,
    Excess,
    Noise,
    excess_of,
    excess_of_parameters,
    temperature,
)
from tfp_sgmcmc.adaptation.hmc import TimedHMC
from tfp_sgmcmc.adaptation.pilot import Pilot
from tfp_sgmcmc.adaptation.prepared import Prepared, prepare
from tfp_sgmcmc.adaptation.reasons import NotQuadratic
from tfp_sgmcmc.adaptation.selection import (
    FRICTION,
    MOST_WORST,
    STEP_SIZES,
    Setting,
    cheapest,
    safe_settings,
)
from tfp_sgmcmc.adaptation.trials import Trials
from tfp_sgmcmc.kernels import UnderdampedLangevin
from tfp_sgmcmc.targets import ControlVariate, MinibatchLogProb

_PILOT_DRAWS = 400
_MOST_PILOTS = 5
_UNEXPLAINED = 0.015  # excess variance beyond the noise's, which says that the step is too large


class Langevin:
    """Chooses minibatch and step of `UnderdampedLangevin`, and tries them in pilots.

    Args:
      problem: the target.
      found: the coordinates to begin with.
      trials: makes chains.
      seed: of the states at which noise is predicted.
    """

    def __init__(
        self, problem: MinibatchLogProb, found: Coordinates, trials: Trials, seed: tf.Tensor
    ):
        self._problem, self.found, self._trials, self._seed = problem, found, trials, seed

    def __call__(self) -> Prepared | None:
        """Returns the cheapest safe setting whose pilot was sound; None if HMC is cheaper, or none.

        `found` then has the coordinates that were last tried.

        Raises:
          NotQuadratic: draws wander far from the mode.
        """
        steps, covariance, predicted = STEP_SIZES, None, np.eye(0)
        for _ in range(_MOST_PILOTS):
            if covariance is None:
                if (found := self._predicted()) is None:
                    return None
                covariance = predicted = found
            chosen = cheapest(
                safe_settings(covariance, self._problem.num_examples, steps), self._seconds
            )
            if chosen is None:
                return None
            if self._seconds(chosen.batch_size) * chosen.steps_per_draw > self._hmc.seconds:
                return None
            of_pilot = 1 - self._of_parameters(covariance, chosen)
            pilot = self._pilot(chosen, of_pilot)
            smaller = tuple(x for x in steps if x < chosen.step_size)
            if pilot is None:
                steps = smaller
                continue
            covariance = self._noise.at(pilot.z, blocks=2)
            measured = excess_of(covariance, chosen.step_size, chosen.batch_size)
            is_kinked = self.found.kind == "widths"
            if is_kinked or not pilot.fits:
                if pilot.wanders and not is_kinked:
                    raise NotQuadratic(pilot.wandering)
                if self.found.kind != "pilot":
                    self.found = to.at_draws(self._problem, self.found, pilot.z)
                    covariance = None
                    continue
            explained = measured.mean + of_pilot - 1
            if pilot.fit.excess - explained > _UNEXPLAINED + 2.5 * pilot.fit.error:
                steps = smaller
                continue
            # More than chance and the pilot's wider starts explain; else with what was measured.
            if not (measured.mean < 1.5 * chosen.mean + 0.002):
                continue
            if not (measured.worst < min(2 * chosen.worst + 0.02, 1.5 * MOST_WORST)):
                continue
            if pilot.convergence.rhat > 1.1 or pilot.fit.excess < -0.03 - 3 * pilot.fit.error:
                return None
            unexplained = pilot.fit.excess - explained
            here = Setting(chosen.batch_size, chosen.step_size, *measured)
            fewest = self._fewest(covariance, here)
            noise = self._of_parameters(covariance, fewest)
            t = temperature(noise, unexplained, pilot.fit.error)
            before = excess_of(predicted, fewest.step_size, fewest.batch_size)
            return self._prepared(fewest, chosen.batch_size, t, pilot, before)
        return None

    def _predicted(self) -> np.ndarray | None:
        """Makes control variates; returns their noise at draws of Laplace's approximation."""
        dim, dtype = self._trials.dim, self._trials.dtype
        zero = tf.zeros([dim], dtype)
        draws = random.normal([NUM_STATES, dim], tf.float64, self._seed).numpy()
        self._timed: dict[int, Chains] = {}
        try:
            self._control = ControlVariate(self.found.target, zero, order=2, importance="pilot")
            self._noise = Noise(self._control)
            covariance = self._noise.at(draws)
        except ValueError:  # remainders that are not finite at draws of the approximation
            return None
        if not np.isfinite(covariance).all():
            return None
        self._hmc = TimedHMC(self._problem, self.found, self._trials)
        return covariance

    def _seconds(self, n: int) -> float:
        """Returns the time of a step with n examples."""
        name = f"UnderdampedLangevin with n = {n}"
        if n not in self._timed:
            control = self._control.with_batch_size(n)
            self._timed[n] = self._trials.chains(
                lambda x: UnderdampedLangevin(control, x[0], FRICTION, temperature=x[1]), (1.0, 1.0)
            )
            self._trials.seconds(name, self._timed[n])
        return self._trials.milliseconds[name] / 1e3

    def _fewest(self, covariance: np.ndarray, here: Setting) -> Setting:
        """Returns the setting with as few examples as the noise at a pilot's draws allows.

        `here` is the pilot's, with that noise. Predictions have fewer draws, of Laplace's
        approximation.
        """
        found = safe_settings(covariance, self._problem.num_examples, (here.step_size,))
        return min([here, *found], key=lambda s: s.batch_size)

    def _of_parameters(self, covariance: np.ndarray, chosen: Setting) -> float:
        assert self.found.factor is not None
        sizes = chosen.step_size, chosen.batch_size
        return excess_of_parameters(covariance, self.found.factor, *sizes)

    def _pilot(self, chosen: Setting, temperature: float) -> Pilot | None:
        self._gradients = self._trials.gradients(self._control.with_batch_size(chosen.batch_size))
        settings = chosen.step_size, temperature
        chains = self._timed[chosen.batch_size]
        draws = functools.partial(self._trials.pilot, chains, self._gradients, settings)
        return draws(chosen.steps_per_draw, _PILOT_DRAWS)

    def _prepared(
        self,
        chosen: Setting,
        size_of_pilot: int,
        temperature: float,
        pilot: Pilot,
        predicted: Excess,
    ) -> Prepared:
        n, control = chosen.batch_size, self._control.with_batch_size(chosen.batch_size)
        arguments: dict[str, Any] = {
            "step_size": chosen.step_size,
            "friction": FRICTION,
            "temperature": round(temperature, 4),
        }
        line = (
            f"A step takes {n} of the {self._problem.num_examples} examples"
            + f" ({size_of_pilot} in the pilot)" * (n < size_of_pilot)
            + ", those more often whose log likelihood is far from its quadratic. Their noise was "
            f"predicted to make variances {100 * predicted.mean:.2g} % too large on average and "
            f"{100 * predicted.worst:.2g} % in the worst direction; at the pilot's draws it is "
            f"{100 * chosen.mean:.2g} % and {100 * chosen.worst:.2g} %. By this and by the "
            f"gradients at these draws, a temperature of {arguments['temperature']:.4g} makes the "
            "parameters' variances right on average."
        )
        return prepare(
            UnderdampedLangevin(control, **arguments),
            self.found,
            self._gradients if n == size_of_pilot else self._trials.gradients(control),
            pilot,
            self._trials.milliseconds,
            [line],
            noise=self._noise,
            sampler="UnderdampedLangevin",
            arguments=arguments,
            batch_size=n,
            stride=chosen.steps_per_draw,
            predicted_excess=predicted,
            measured_excess=Excess(chosen.mean, chosen.worst),
        )
