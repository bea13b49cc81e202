"""The choice of a sampler where the posterior is near the quadratic at its mode."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.kernels import UnderdampedLangevin
from tfp_sgmcmc.sampling.automatic import coordinates as to
from tfp_sgmcmc.sampling.automatic.chains import Chains
from tfp_sgmcmc.sampling.automatic.choices import Choices
from tfp_sgmcmc.sampling.automatic.coordinates import Coordinates
from tfp_sgmcmc.sampling.automatic.modes import far_starts, other_mode
from tfp_sgmcmc.sampling.automatic.pilot import Pilot, dispersed_starts, run_pilot
from tfp_sgmcmc.sampling.automatic.prepared import NotQuadratic, Prepared
from tfp_sgmcmc.sampling.automatic.selection import (
    FRICTION,
    HMC_STRIDE,
    STEP_SIZES,
    Setting,
    cheapest,
    excess_variance_factor,
    leapfrog,
    safe_settings,
)
from tfp_sgmcmc.state import State, flatten_events
from tfp_sgmcmc.targets import ControlVariate, FullDataLogProb, MinibatchLogProb
from tfp_sgmcmc.targets.predicted_noise import remainder_covariance

_PREDICTION_DRAWS = 16
_PILOT_DRAWS = 200
_MOST_PILOTS = 5
_UNEXPLAINED = 0.015  # excess variance beyond the noise's, which says that the step is too large
_LEAST_ACCEPTED = 0.6


class Choice:
    """Chooses kernel, minibatch and step for a posterior, and tries them in pilots.

    Args:
      problem: the target.
      state: one unconstrained state to begin at.
      num_chains: number of chains.
      seed: the seed of all that is drawn before the run.
      jit_compile: whether XLA compiles the steps.
    """

    def __init__(
        self,
        problem: MinibatchLogProb,
        state: State,
        num_chains: int,
        seed: tf.Tensor,
        jit_compile: bool,
    ):
        self._problem, self._state, self._num_chains = problem, state, num_chains
        self._jit_compile, self._num_pilots = jit_compile, 0
        parts = tf.nest.flatten(state)
        self._dim, self._dtype = sum(x.shape.num_elements() for x in parts), parts[0].dtype
        self._start_seed, self._noise_seed, self._pilot_seed, self._mode_seed = random.split(
            seed, 4
        )
        self._found: Coordinates | None = None
        #: Measured milliseconds of a step of all chains, by what was timed.
        self.milliseconds: dict[str, float] = {}
        self.flags: list[str] = []

    def __call__(self, num_results: int) -> Prepared:
        """Returns the cheapest kernel whose pilot was sound.

        Raises:
          NotQuadratic: no mode with a curvature of use was found, or draws wander far from it.
        """
        try:
            found = to.at_mode(self._problem, self._state)
        except ValueError as error:
            raise NotQuadratic(str(error)) from error
        self._found = found
        self._look_for_modes(found)
        prepared = None
        if self._problem.num_examples > 1 and found.factor is not None:
            prepared = self._with_minibatches(found)
        if prepared is None:
            prepared = self.with_all_examples(num_results)
        return prepared

    def _look_for_modes(self, found: Coordinates) -> None:
        if found.factor is None:  # too many parameters for a search from the prior's widths
            return
        like, inverse = found.center, np.linalg.inv(found.factor)
        first = flatten_events(self._state, 0).numpy() - flatten_events(like, 0).numpy()
        widths = to.prior_widths(self._problem, found)
        starts = far_starts(self._dim, inverse @ first, inverse * widths, self._mode_seed.numpy())
        other = other_mode(found.target, starts, self._dtype)
        if other is not None:
            self.flags.append(
                "The posterior has several modes: another one was found "
                f"{other.distance:.0f} standard deviations from the first, with a log posterior "
                f"that differs by {other.log_prob:.1f}. These chains stay near one. "
                "ReplicaExchangeSGLD moves between modes."
            )

    def _with_minibatches(self, found: Coordinates) -> Prepared | None:
        """Returns the cheapest safe minibatch and step; None if HMC is cheaper or none is safe."""
        steps, predicted, covariance = STEP_SIZES, None, None
        control: Any = None
        timed: dict[int, Chains] = {}
        while self._num_pilots < _MOST_PILOTS:
            if control is None:
                zero = tf.zeros([self._dim], self._dtype)
                draws = random.normal([_PREDICTION_DRAWS, self._dim], tf.float64, self._noise_seed)
                try:
                    control = ControlVariate(found.target, zero, order=2, importance="pilot")
                    covariance, timed = remainder_covariance(control, draws.numpy()), {}
                except ValueError:  # remainders that are not finite at draws of the approximation
                    return None
                if not np.isfinite(covariance).all():
                    return None
                of_hmc = self._time_hmc(found)
            assert covariance is not None
            settings = safe_settings(covariance, self._problem.num_examples, steps)
            chosen = cheapest(settings, functools.partial(self._seconds, control, timed))
            if chosen is None:
                return None
            cost = self._seconds(control, timed, chosen.batch_size) * chosen.steps_per_draw
            if cost > HMC_STRIDE * of_hmc:
                return None
            predicted = predicted or (chosen.mean, chosen.worst)
            h, n = chosen.step_size, chosen.batch_size
            smaller = control.with_batch_size(n)
            pilot = self._pilot(timed[n], smaller, h, chosen.steps_per_draw, _PILOT_DRAWS)
            fewer = tuple(x for x in steps if x < h)
            if pilot is None:
                steps = fewer
                continue
            measured, covariance = self._measured(control, pilot, chosen)
            kinked = found.kind == "widths"
            if kinked or not 0.8 < pilot.fit.radius < 1.3:
                if pilot.wanders and not kinked:
                    raise NotQuadratic(_wandering(pilot))
                if found.kind != "pilot":
                    found = self._found = to.at_draws(self._problem, found, pilot.z)
                    control = None
                    continue
            if pilot.fit.excess - measured[0] > _UNEXPLAINED + 2.5 * pilot.fit.error:
                steps = fewer
                continue
            if measured[0] > 1.5 * chosen.mean + 0.002 or measured[1] > 2 * chosen.worst + 0.02:
                continue  # with the noise that was measured in place of that predicted
            if pilot.convergence.rhat > 1.1 or pilot.fit.excess < -0.03 - 3 * pilot.fit.error:
                return None
            return self._langevin(found, smaller, chosen, pilot, predicted, measured)
        return None

    def _measured(
        self, control: ControlVariate, pilot: Pilot, chosen: Setting
    ) -> tuple[tuple[float, float], np.ndarray]:
        """Returns mean and largest excess variance by the noise at draws, and its covariance."""
        flat = pilot.z.reshape(-1, self._dim)
        picked = flat[np.linspace(0, len(flat) - 1, 2 * _PREDICTION_DRAWS).astype(int)]
        covariance = remainder_covariance(control, picked)
        factor = excess_variance_factor(chosen.step_size) / chosen.batch_size
        eigenvalues = factor * np.linalg.eigvalsh(covariance)
        return (float(eigenvalues.mean()), float(eigenvalues[-1])), covariance

    def _langevin(
        self,
        found: Coordinates,
        control: ControlVariate,
        chosen: Setting,
        pilot: Pilot,
        predicted: tuple[float, float],
        measured: tuple[float, float],
    ) -> Prepared:
        h, n = chosen.step_size, chosen.batch_size
        kernel = UnderdampedLangevin(control, step_size=h, friction=FRICTION)
        choices = self._choices(
            found,
            pilot,
            sampler="UnderdampedLangevin",
            arguments={"step_size": h, "friction": FRICTION},
            batch_size=n,
            num_steps_between_results=_stride(chosen.steps_per_draw, pilot) - 1,
            predicted_excess=predicted,
            measured_excess=measured,
        )
        line = (
            f"A step takes {n} of the {self._problem.num_examples} examples, those more often "
            "whose log likelihood is far from its quadratic. Their noise was predicted to make "
            f"variances {100 * predicted[0]:.2g} % too large on average and "
            f"{100 * predicted[1]:.2g} % in "
            f"the worst direction; at the pilot's draws it is {100 * measured[0]:.2g} % and "
            f"{100 * measured[1]:.2g} %."
        )
        return self._prepared(kernel, found, control, choices, pilot, [line])

    def with_all_examples(self, num_results: int) -> Prepared:
        """Returns HMC on all examples, with a step that its pilot accepts.

        Raises:
          NotQuadratic: there is none, or draws wander.
        """
        if self._found is None:
            raise NotQuadratic("no mode was found")
        found, self._num_pilots = self._found, 0
        self._time_hmc(found)
        h, count = self._leapfrog
        target = FullDataLogProb(found.target)
        num_draws = int(np.clip(num_results // 2, 50, _PILOT_DRAWS))
        pilot, accepted = None, 0.0
        for _ in range(_MOST_PILOTS):
            pilot = self._pilot(self._hmc, target, h, 1, num_draws)
            accepted = 0.0 if pilot is None else _acceptance(pilot.z)
            if accepted >= _LEAST_ACCEPTED:
                break
            h *= 0.7
        if pilot is None or accepted < _LEAST_ACCEPTED / 2:
            raise NotQuadratic("HMC in the coordinates of the mode is hardly ever accepted")
        if pilot.wanders:
            raise NotQuadratic(_wandering(pilot))
        arguments = {"step_size": h, "num_leapfrog_steps": count}
        kernel = tfp.mcmc.HamiltonianMonteCarlo(found.target, **arguments)
        choices = self._choices(
            found,
            pilot,
            sampler="HamiltonianMonteCarlo",
            arguments=arguments,
            batch_size=None,
            num_steps_between_results=_stride(1, pilot) - 1,
        )
        line = (
            f"All {self._problem.num_examples} examples are used in every step, and a Metropolis "
            f"test accepts {100 * accepted:.0f} %, so that only the number of draws limits the "
            "accuracy."
        )
        return self._prepared(kernel, found, target, choices, pilot, [line])

    def _choices(self, found: Coordinates, pilot: Pilot, **settings: Any) -> Choices:
        return Choices(
            coordinates=found.kind,
            center=tf.nest.map_structure(lambda x: x.numpy(), found.center),
            hessian=None
            if found.kind == "hessian" or found.precision is None
            else -found.precision,
            start=pilot.z[-1],
            num_burnin_steps=0,
            milliseconds=self.milliseconds,
            **settings,
        )

    def _prepared(
        self,
        kernel: Any,
        found: Coordinates,
        target: Any,
        choices: Choices,
        pilot: Pilot,
        lines: list[str],
    ) -> Prepared:
        where = {
            "hessian": "The curvature there gives",
            "low rank": "The largest curvatures there give",
            "pilot": "The prior has kinks there, so a pilot's draws and the data's curvature give",
        }[found.kind if found.kind != "widths" else "pilot"]
        costs = ", ".join(f"{k}: {v:.3g} ms" for k, v in self.milliseconds.items())
        stride, fits = choices.num_steps_between_results + 1, pilot.fit
        told = [
            f"A mode of the posterior was found in {found.num_passes} passes over the data. "
            f"{where} coordinates in which all {self._dim} parameters are about N(0, I), so that "
            "one step size suits every posterior.",
            *lines,
            f"{choices.sampler} with step {choices.arguments['step_size']:.2g} keeps every "
            f"{stride}. state. Measured times of a step of all chains: {costs}.",
            f"A pilot from dispersed starts had {fits.temperature:.3f} +- {fits.error:.3f} of the "
            f"posterior's variance, by its gradients, and {fits.radius:.2f} of the variance that "
            "the curvature at the center says (Laplace's approximation).",
        ]
        return Prepared(kernel, found.bijector, target, choices, tuple(told), tuple(self.flags))

    def _pilot(
        self, chains: Chains, target: Any, h: float, stride: int, num_draws: int
    ) -> Pilot | None:
        self._num_pilots += 1
        start = dispersed_starts(self._num_chains, self._dim, self._dtype, self._start_seed)
        seed = random.fold_in(self._pilot_seed, self._num_pilots)
        return run_pilot(chains, target, h, stride, start, num_draws, seed)

    def _chains(self, kernel_fn: Any, h: float) -> Chains:
        start = dispersed_starts(self._num_chains, self._dim, self._dtype, self._start_seed)
        return Chains(kernel_fn, h, start, self._pilot_seed, self._jit_compile)

    def _seconds(self, control: ControlVariate, timed: dict[int, Chains], n: int) -> float:
        """Returns the time of a step with n examples; `timed` holds the chains that have one."""
        name = f"UnderdampedLangevin with n = {n}"
        if n not in timed:
            smaller = control.with_batch_size(n)
            timed[n] = self._chains(lambda h: UnderdampedLangevin(smaller, h, FRICTION), 1.0)
            self.milliseconds[name] = 1e3 * timed[n].seconds_per_step()
        return self.milliseconds[name] / 1e3

    def _time_hmc(self, found: Coordinates) -> float:
        """Returns the time of a step of HMC."""
        h, count = self._leapfrog = leapfrog(self._dim)
        self._hmc = self._chains(
            lambda e: tfp.mcmc.HamiltonianMonteCarlo(found.target, e, count), h
        )
        seconds = self._hmc.seconds_per_step()
        self.milliseconds["HamiltonianMonteCarlo"] = 1e3 * seconds
        return seconds


def _stride(stride: int, pilot: Pilot) -> int:
    """Returns the steps between draws, more if the pilot's draws were far from independent.

    The worst of many entries of independent draws looks 1.6 times worse than it is.
    """
    return stride * int(np.clip(np.ceil(pilot.inefficiency / 1.6), 1, 20))


def _acceptance(z: np.ndarray) -> float:
    return float(np.mean(np.any(z[1:] != z[:-1], axis=-1)))


def _wandering(pilot: Pilot) -> str:
    return (
        f"a pilot's draws went {pilot.fit.radius:.3g} times as far in the mean square as the "
        f"curvature at the mode says, and R-hat of its chains was {pilot.convergence.rhat:.2f}"
    )
