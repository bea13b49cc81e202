"""HMC for an automatic run, with a step and coordinates that pilots choose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.adaptation.coordinates import Coordinates, whiten_by_covariance
from tfp_sgmcmc.adaptation.hierarchies.prior_scale import NotNearGaussian
from tfp_sgmcmc.adaptation.pilot import (
    Gradients,
    HMCChains,
    PilotChains,
    PilotDraws,
    PilotRuns,
    gradients_of,
    seconds_of_second,
)
from tfp_sgmcmc.adaptation.pilot_steps import Affine, PilotSteps, log_prob_of_z
from tfp_sgmcmc.adaptation.settings import PreparedKernel, prepare_kernel
from tfp_sgmcmc.diagnostics.vector_functions import value_and_gradient_of_z
from tfp_sgmcmc.internal.nest import flatten_events
from tfp_sgmcmc.targets import FullDataLogProb, MinibatchLogProb
from tfp_sgmcmc.targets.base import kept_program

_NAME, _GRADIENT = "HamiltonianMonteCarlo", "gradient of all data"
_COMPILATION = 3.0  # seconds, at least
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


def least_seconds(dim: int, num_chains: int, of_gradient: float) -> float:
    """Returns half of what the gradients of a nearly independent draw of each chain take.

    `of_gradient` is the time of the gradient at one state, in a call with several states. HMC takes
    longer than this unless more states at once make a gradient cheaper by half.
    """
    return 0.5 * _STRIDE * leapfrog(dim)[1] * num_chains * of_gradient


class TimedHMC:
    """HMC in whitened coordinates, with the step that suits a standard normal, or a smaller one.

    Args:
      problem: the target.
      found: the coordinates.
      runs: makes chains.
    """

    def __init__(self, problem: MinibatchLogProb, found: Coordinates, runs: PilotRuns):
        self._problem, self._found, self._runs = problem, found, runs
        self._first, self._of_z, self._affine = leapfrog(runs.dim), None, None
        self._gradients: Any = Gradients(FullDataLogProb(found.target), runs.jit_compile)
        if found.factor is not None:
            flat = flatten_events(found.center, 0).numpy().astype(np.float64)
            self._affine = Affine(flat, found.factor)
            of_z = found.center, found.factor, runs.jit_compile
            self._of_z = value_and_gradient_of_z(problem, *of_z)
            self._gradients = gradients_of(self._of_z)

    @property
    def seconds(self) -> float:
        """The time of a nearly independent draw of each chain, in a compiled program."""
        self._runs.time_steps(_NAME, self._chains, self._settings(*self._first))
        return _STRIDE * self._runs.milliseconds[_NAME] / 1e3

    @property
    def _chains(self) -> PilotChains:
        """Chains of a program that serves all affine coordinates, and is kept with the target."""
        problem, found, jit_compile = self._problem, self._found, self._runs.jit_compile

        def kernel(settings: Sequence[Any]) -> Any:
            step, count, *affine = settings
            log_prob_fn: Any = found.target
            if affine:
                log_prob_fn = log_prob_of_z(problem, found.center, *affine)
            return tfp.mcmc.HamiltonianMonteCarlo(log_prob_fn, step, tf.cast(count, tf.int32))

        return kept_program(
            found.target if self._affine is None else problem,
            f"{_NAME} of {self._runs.num_chains} chains, {jit_compile=}",
            found.center,
            lambda: PilotChains(kernel, jit_compile),
        )

    def _settings(self, step: float, count: int) -> Sequence[Any]:
        return (step, count) if self._affine is None else (step, count, self._affine)

    def _pilot(self, step: float, count: int, num_draws: int) -> PilotDraws | None:
        """Runs a pilot, in NumPy where that takes less time than to compile its steps."""
        compiled = self._chains
        chains: PilotChains | HMCChains = compiled
        seconds = num_draws * count * self._runs.milliseconds.get(_GRADIENT, np.inf) / 1e3
        if self._of_z is not None and not compiled.is_compiled and seconds < _COMPILATION:
            chains = HMCChains(self._of_z)
        settings = self._settings(step, count)
        return self._runs.pilot(chains, self._gradients, settings, 1, num_draws)

    def _steps_of_run(self, step: float, count: int) -> PilotSteps | None:
        if self._affine is None:
            return None
        chains = self._chains
        if not chains.is_compiled:  # else they ran the last pilot, with these settings
            self._runs.restart(chains, self._settings(step, count))
        given = chains.loop, chains.settings, chains.settings[2]
        return PilotSteps(self._problem, self._found.center, *given, self._runs.jit_compile)

    def __call__(self, num_results: int) -> PreparedKernel:
        """Returns HMC with an accepted step, if needed in coordinates of a pilot's draws.

        Raises:
          NotNearGaussian: no step is accepted, or draws wander.
        """
        found, runs, (h, count) = self._found, self._runs, self._first
        if self._of_z is not None:
            at, z = self._of_z, np.zeros([runs.num_chains, runs.dim])
            runs.milliseconds[_GRADIENT] = 1e3 * seconds_of_second(lambda: at(z))
        least = max(50, math.ceil(_LEAST_DRAWS / runs.num_chains))
        num_draws = int(np.clip(num_results // 2, least, _PILOT_DRAWS))
        pilot, accepted = None, 0.0
        for number in range(_MOST_PILOTS):
            if number:
                h = 0.7 * h
                count = steps_for(h)
            pilot = self._pilot(h, count, num_draws)
            if pilot is not None:
                accepted = float(np.mean(np.any(pilot.z[1:] != pilot.z[:-1], axis=-1)))
                if accepted >= _LEAST_ACCEPTED:
                    break
        if pilot is None or accepted < _LEAST_ACCEPTED / 2:
            raise NotNearGaussian("HMC in the coordinates of the mode is hardly ever accepted")
        if pilot.wanders:
            raise NotNearGaussian(pilot.wandering)
        poor = not pilot.fits or h < self._first[0]  # a normal would have accepted the first h
        if self._affine is not None and found.kind != "covariance" and poor:
            more = min(num_results // 2, _DRAWS_PER_ENTRY * runs.dim // pilot.z.shape[1])
            if more > num_draws:
                longer = self._pilot(h, count, more)
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
            self._gradients,
            pilot,
            runs,
            line,
            arguments=arguments,
            batch_size=None,
            stride=1,
            loop=self._steps_of_run(h, count),
        )
