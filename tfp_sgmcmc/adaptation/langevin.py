"""The choice of minibatch and step for second-order control variates."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.adaptation.coordinates import Coordinates, whiten_at_draws
from tfp_sgmcmc.adaptation.excess_variance import (
    FRICTION,
    MOST_WORST,
    NUM_STATES,
    STEP_SIZES,
    BatchAndStep,
    ExcessVariance,
    cheapest,
    excess_of,
    excess_of_parameters,
    noise_covariance,
    safe_settings,
    temperature,
)
from tfp_sgmcmc.adaptation.hmc import TimedHMC
from tfp_sgmcmc.adaptation.pilot import Gradients, PilotChains, PilotDraws, PilotRuns
from tfp_sgmcmc.adaptation.priors.prior_scale import NotNearGaussian
from tfp_sgmcmc.adaptation.settings import PreparedKernel, prepare_kernel
from tfp_sgmcmc.kernels import UnderdampedLangevin
from tfp_sgmcmc.targets import ControlVariate, MinibatchLogProb
from tfp_sgmcmc.targets.base import ExpansionError
from tfp_sgmcmc.targets.control_variates.noise_prediction import RemainderCovariance

_PILOT_DRAWS = 400
_MOST_PILOTS = 5
_UNEXPLAINED = 0.015  # excess variance beyond that of noise, from which the step is too large


class _Dropped(Exception):
    """Ends the search for settings of `UnderdampedLangevin`; its text is the reason, a clause."""


class LangevinSelector:
    """Chooses minibatch and step of `UnderdampedLangevin`, and tries them in pilots.

    Attributes:
      found: the coordinates that were tried last.

    Args:
      problem: the target.
      found: the coordinates to begin with.
      runs: makes chains.
      seed: seed of the states at which noise is predicted.
    """

    def __init__(
        self, problem: MinibatchLogProb, found: Coordinates, runs: PilotRuns, seed: tf.Tensor
    ):
        self._problem, self.found, self._runs, self._seed = problem, found, runs, seed

    def __call__(self) -> PreparedKernel | None:
        """Returns the cheapest safe setting whose pilot was sound; None if HMC is to be used.

        The reason is then in `runs.dropped`.

        Raises:
          NotNearGaussian: draws wander far from the mode.
        """
        try:
            return self._search()
        except _Dropped as reason:
            self._runs.dropped.append(
                f"UnderdampedLangevin with minibatches was dropped, because {reason}."
            )
            return None

    def _search(self) -> PreparedKernel:
        steps, covariance, predicted = STEP_SIZES, None, np.eye(0)
        for _ in range(_MOST_PILOTS):
            if covariance is None:
                covariance = predicted = self._predict()
            settings = safe_settings(covariance, self._problem.num_examples, steps)
            chosen = cheapest(settings, self._seconds)
            if chosen is None:
                raise _Dropped("no batch size up to half of the data makes its noise small enough")
            if self._seconds(chosen.batch_size) * chosen.steps_per_draw > self._hmc.seconds:
                raise _Dropped("HMC takes less time for an independent draw")
            of_pilot = 1 - self._of_parameters(covariance, chosen)
            pilot = self._pilot(chosen, of_pilot)
            smaller = tuple(x for x in steps if x < chosen.step_size)
            if pilot is None:
                steps = smaller
                continue
            covariance = noise_covariance(self._remainders, pilot.z, blocks=2)
            measured = excess_of(covariance, chosen.step_size, chosen.batch_size)
            is_kinked = self.found.kind == "widths"
            if is_kinked or not pilot.fits:
                if pilot.wanders and not is_kinked:
                    raise NotNearGaussian(pilot.wandering)
                if self.found.kind != "pilot":
                    self.found = whiten_at_draws(self._problem, self.found, pilot.z)
                    covariance = None
                    continue
            unexplained = pilot.fit.excess - (measured.mean + of_pilot - 1)
            if unexplained > _UNEXPLAINED + 2.5 * pilot.fit.error:
                steps = smaller
                continue
            # More noise than chance and the pilot's wider starts explain: choose by what was
            # measured.
            if not (measured.mean < 1.5 * chosen.mean + 0.002):
                continue
            if not (measured.worst < min(2 * chosen.worst + 0.02, 1.5 * MOST_WORST)):
                continue
            if pilot.convergence.rhat > 1.1:
                raise _Dropped(f"R-hat of a pilot's chains was {pilot.convergence.rhat:.2f}")
            if pilot.fit.excess < -0.03 - 3 * pilot.fit.error:
                raise _Dropped("a pilot's draws were too narrow, by their gradients")
            here = BatchAndStep(chosen.batch_size, chosen.step_size, *measured)
            fewest = self._fewest(covariance, here)
            noise = self._of_parameters(covariance, fewest)
            t = temperature(noise, unexplained, pilot.fit.error)
            before = excess_of(predicted, fewest.step_size, fewest.batch_size)
            return self._prepared(fewest, chosen.batch_size, t, pilot, before)
        raise _Dropped(f"none of {_MOST_PILOTS} pilots was sound")

    def _predict(self) -> np.ndarray:
        """Makes control variates; returns their noise at draws of Laplace's approximation."""
        dim, dtype = self._runs.dim, self._runs.dtype
        draws = random.normal([NUM_STATES, dim], tf.float64, self._seed).numpy()
        self._timed: dict[int, PilotChains] = {}
        zero = tf.zeros([dim], dtype)
        try:
            self._control = ControlVariate(self.found.target, zero, order=2, importance="pilot")
        except ExpansionError as error:
            raise _Dropped(f"control variates cannot be made ({error})") from error
        self._remainders = RemainderCovariance(self._control, NUM_STATES)
        covariance = noise_covariance(self._remainders, draws, blocks=1)
        if not np.isfinite(covariance).all():
            raise _Dropped("its noise is NaN or infinite at draws of Laplace's approximation")
        self._hmc = TimedHMC(self._problem, self.found, self._runs)
        return covariance

    def _seconds(self, n: int) -> float:
        """Returns the time of a step with n examples."""
        name = f"UnderdampedLangevin with n = {n}"
        if n not in self._timed:
            control = self._control.with_batch_size(n)
            self._timed[n] = self._runs.timed_chains(
                name,
                lambda x: UnderdampedLangevin(control, x[0], FRICTION, temperature=x[1]),
                (1.0, 1.0),
            )
        return self._runs.milliseconds[name] / 1e3

    def _fewest(self, covariance: np.ndarray, here: BatchAndStep) -> BatchAndStep:
        """Returns the setting with the fewest examples that the noise at a pilot's draws allows.

        `here` is the pilot's setting with that noise. Predictions rest on fewer draws, which come
        from Laplace's approximation.
        """
        found = safe_settings(covariance, self._problem.num_examples, (here.step_size,))
        return min([here, *found], key=lambda s: s.batch_size)

    def _of_parameters(self, covariance: np.ndarray, chosen: BatchAndStep) -> float:
        assert self.found.factor is not None
        sizes = chosen.step_size, chosen.batch_size
        return excess_of_parameters(covariance, self.found.factor, *sizes)

    def _gradients(self, n: int) -> Gradients:
        return Gradients(self._control.with_batch_size(n), self._runs.jit_compile)

    def _pilot(self, chosen: BatchAndStep, temperature: float) -> PilotDraws | None:
        self._pilot_gradients = self._gradients(chosen.batch_size)
        return self._runs.pilot(
            self._timed[chosen.batch_size],
            self._pilot_gradients,
            (chosen.step_size, temperature),
            chosen.steps_per_draw,
            _PILOT_DRAWS,
        )

    def _prepared(
        self,
        chosen: BatchAndStep,
        size_of_pilot: int,
        temperature: float,
        pilot: PilotDraws,
        predicted: ExcessVariance,
    ) -> PreparedKernel:
        n = chosen.batch_size
        arguments: dict[str, Any] = {
            "step_size": chosen.step_size,
            "friction": FRICTION,
            "temperature": round(temperature, 4),
        }
        line = (
            f"A step takes {n} of the {self._problem.num_examples} examples"
            + f" ({size_of_pilot} in the pilot)" * (n < size_of_pilot)
            + ", more often those whose log likelihood is far from its quadratic. Their noise was "
            f"predicted to make variances {100 * predicted.mean:.2g} % too large on average and "
            f"{100 * predicted.worst:.2g} % in the worst direction; at the pilot's draws it is "
            f"{100 * chosen.mean:.2g} % and {100 * chosen.worst:.2g} %. Based on this and on the "
            f"gradients at these draws, a temperature of {arguments['temperature']:.4g} makes the "
            "parameters' variances right on average."
        )
        return prepare_kernel(
            UnderdampedLangevin(self._control.with_batch_size(n), **arguments),
            self.found,
            self._pilot_gradients,  # unbiased for any n, and XLA takes long to compile others
            pilot,
            self._runs,
            line,
            noise=self._remainders,
            sampler="UnderdampedLangevin",
            arguments=arguments,
            batch_size=n,
            stride=chosen.steps_per_draw,
            predicted_excess=predicted,
            measured_excess=ExcessVariance(chosen.mean, chosen.worst),
        )
