"""Minibatch and step for second-order control variates, by the excess variance of their noise."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.adaptation.coordinates import Coordinates, whiten_at_draws
from tfp_sgmcmc.adaptation.hierarchies.prior_scale import NotNearGaussian
from tfp_sgmcmc.adaptation.pilot import Gradients, PilotChains, PilotDraws, PilotRuns
from tfp_sgmcmc.adaptation.settings import PreparedKernel, prepare_kernel
from tfp_sgmcmc.adaptation.timed_hmc import TimedHMC, least_seconds
from tfp_sgmcmc.diagnostics.convergence import rhat_text
from tfp_sgmcmc.kernels import UnderdampedLangevin
from tfp_sgmcmc.kernels.linear_theory import splitting_law
from tfp_sgmcmc.targets import ControlVariate, MinibatchLogProb
from tfp_sgmcmc.targets.base import ExpansionError, kept_program
from tfp_sgmcmc.targets.control_variates.control_variate import RemainderCovariance
from tfp_sgmcmc.targets.laplace.quadratic import GUARD
from tfp_sgmcmc.targets.validation.gradient_check import check_chains

NUM_STATES = 16  # at which the noise is evaluated at a time
_OF_STEPS = 0.01  # excess variance, of either sign, that a step of 1 may cause
FRICTION = 1.0
STEP_SIZES = (1.0, 0.5, 0.25)
# Limits of the excess variance; standard deviations are off by half of it. The temperature corrects
# the mean. With higher limits, a few draws far out, which no prediction sees, made means and
# standard deviations wrong.
MOST_MEAN, MOST_WORST = 0.03, 0.05
_ROUND = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
_PILOT_DRAWS = 400
_MOST_PILOTS = 5
_UNEXPLAINED = 0.015  # excess variance beyond that of noise, from which the step is too large


class BatchAndStep(NamedTuple):
    """A batch size and a step size, with the excess variance that the noise is predicted to cause.

    Attributes:
      batch_size: n.
      step_size: h, in whitened coordinates.
      mean: the mean over directions of the excess variance.
      worst: the largest excess variance of a direction.
    """

    batch_size: int
    step_size: float
    mean: float
    worst: float

    @property
    def steps_per_draw(self) -> int:
        """Number of steps between draws.

        By the exact law of a standard normal, each draw is then worth 0.98 independent draws or
        more for the mean, and 0.91 or more for the variance.
        """
        return round(2 / self.step_size)


def batch_sizes(num_examples: int) -> list[int]:
    """Returns the batch sizes to try, up to N / 2; larger ones cost as much as all data.

    >>> batch_sizes(1200), batch_sizes(60)
    ([100, 150, 200, 300, 400, 500], [30])
    """
    found = [int(100 * 10**k * r) for k in range(8) for r in _ROUND]
    half = max(1, num_examples // 2)
    return [n for n in found if n <= half] or [half]


def excess_variance_factor(step_size: float) -> float:
    """Returns the variance that noise of variance 1 adds to a whitened direction.

    >>> round(excess_variance_factor(1.0), 4), round(excess_variance_factor(0.01), 6)
    (0.7213, 0.005)
    """
    return float(splitting_law(step_size, FRICTION, 1.0, 1.0).temperature) - 1


def safe_settings(
    covariance: np.ndarray, num_examples: int, step_sizes: Sequence[float] = STEP_SIZES
) -> list[BatchAndStep]:
    r"""Returns for each step size the smallest batch size whose noise is small, if there is one.

    `covariance` is the covariance of the estimate from one example, in whitened coordinates. The
    excess over the variance 1 is predicted as `excess_variance_factor` times its eigenvalues over
    n. It must be at most 0.03 on average, which the temperature corrects, and 0.05 in the worst
    direction.

    >>> n, h, mean, worst = safe_settings(np.diag([4.0, 2.0]), 10_000)[0]
    >>> n, h, round(mean, 4), round(worst, 4)
    (100, 1.0, 0.0216, 0.0289)
    """
    eigenvalues = np.maximum(np.linalg.eigvalsh(covariance), 0)
    found = []
    for h in step_sizes:
        factor = excess_variance_factor(h)
        for n in batch_sizes(num_examples):
            mean, worst = factor * eigenvalues.mean() / n, factor * eigenvalues[-1] / n
            if mean <= MOST_MEAN and worst <= MOST_WORST:
                found.append(BatchAndStep(n, h, float(mean), float(worst)))
                break
    return found


def cheapest(
    settings: Sequence[BatchAndStep], seconds: Callable[[int], float]
) -> BatchAndStep | None:
    """Returns the setting that needs the least time for a nearly independent draw.

    `seconds(n)` measures the time of a step, once for each n: among the settings with the same n,
    the one with the largest step is the cheapest.
    """
    by_step = sorted(settings, key=lambda s: s.step_size)
    largest = {s.batch_size: s for s in by_step}.values()
    return min(largest, key=lambda s: s.steps_per_draw * seconds(s.batch_size), default=None)


class ExcessVariance(NamedTuple):
    """The variance that noise adds to the variance 1: mean over directions, and worst direction."""

    mean: float
    worst: float


def noise_covariance(remainders: RemainderCovariance, z: np.ndarray, blocks: int) -> np.ndarray:
    """Returns the mean covariance of estimates from one example at 16 states a block of `z`.

    The states are equally spaced among those of `z`, `[..., D]`.
    """
    flat = z.reshape(-1, z.shape[-1])
    picked = flat[np.linspace(0, len(flat) - 1, blocks * NUM_STATES).astype(int)]
    return np.mean([remainders(part) for part in np.split(picked, blocks)], axis=0)


def excess_of(covariance: np.ndarray, step_size: float, batch_size: int) -> ExcessVariance:
    """Returns the excess variance with n examples a step; `covariance` is that of one example."""
    factor = excess_variance_factor(step_size) / batch_size
    eigenvalues = factor * np.linalg.eigvalsh(covariance)
    return ExcessVariance(float(eigenvalues.mean()), float(eigenvalues[-1]))


def excess_of_parameters(
    covariance: np.ndarray, factor: np.ndarray, step_size: float, batch_size: int
) -> float:
    """Returns the mean over parameters of the relative excess of their variances.

    `factor` is L in theta = center + L z. Most of the parameters' variance comes from directions
    that the data hardly inform, where noise is small.
    """
    ratios = ((factor @ covariance) * factor).sum(axis=-1) / (factor**2).sum(axis=-1)
    return float(excess_variance_factor(step_size) / batch_size * ratios.mean())


def temperature(noise: float, unexplained: float, error: float) -> float:
    r"""Returns the temperature at which the parameters' variances are right on average.

    \[
    T = 1 - m - \frac{0.01^2}{0.01^2 + \sigma^2} u
    \]

    where m is the mean excess of the parameters' variances due to noise, and \( u \pm \sigma \) is
    the excess that gradients at the pilot's draws show beyond m. It comes from the finite step, and
    is about 0.01.

    >>> round(temperature(0.02, unexplained=0.01, error=0.01), 4)
    0.975
    """
    return 1 - noise - _OF_STEPS**2 / (_OF_STEPS**2 + error**2) * unexplained


def guarded_share(z: np.ndarray) -> float:
    """Returns the share of states `[..., D]` at which the guard w of control variates is below 1.

    >>> guarded_share(np.array([[1.0, 1.0], [2.0, 0.0]]))
    0.5
    """
    return float(np.mean((z**2).mean(axis=-1) > GUARD))


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
      of_gradient: seconds of the gradient of all examples at one state.
    """

    def __init__(
        self,
        problem: MinibatchLogProb,
        found: Coordinates,
        runs: PilotRuns,
        seed: tf.Tensor,
        of_gradient: float = 0.0,
    ):
        self._problem, self.found, self._runs, self._seed = problem, found, runs, seed
        self._least_of_hmc = least_seconds(runs.dim, runs.num_chains, of_gradient)

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
        two = tf.nest.map_structure(lambda x: tf.stack([x, x]), self.found.center)
        try:
            check_chains(self._problem.parts[0], two, 1)
        except Exception as error:  # whatever the user's function raises
            raise _Dropped(
                "log_likelihood_fn must also take data of shape [chains..., n, ...], as "
                f"tf.linalg.matvec(x, theta) does. It raised {type(error).__name__}: {error}"
            ) from error
        steps, covariance, predicted = STEP_SIZES, None, np.eye(0)
        for _ in range(_MOST_PILOTS):
            if covariance is None:
                covariance = predicted = self._predict()
            settings = safe_settings(covariance, self._problem.num_examples, steps)
            chosen = cheapest(settings, self._seconds)
            if not steps:
                raise _Dropped("its pilots failed at every step size")
            if chosen is None:
                raise _Dropped("no batch size up to half of the data makes its noise small enough")
            if self._seconds(chosen.batch_size) * chosen.steps_per_draw > self._hmc_seconds(chosen):
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
                rhat = rhat_text(pilot.convergence.rhat, 2)
                raise _Dropped(f"R-hat of a pilot's chains was {rhat}")
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
            self._control = kept_program(
                self.found.target,
                "control variates",
                zero,
                lambda: ControlVariate(self.found.target, zero, order=2, importance="pilot"),
            )
        except ExpansionError as error:
            raise _Dropped(f"control variates cannot be made ({error})") from error
        self._remainders = kept_program(
            self._control,
            "remainders",
            zero,
            lambda: RemainderCovariance(self._control, NUM_STATES),
        )
        covariance = noise_covariance(self._remainders, draws, blocks=1)
        if not np.isfinite(covariance).all():
            raise _Dropped("its noise is NaN or infinite at draws of Laplace's approximation")
        self._hmc: TimedHMC | None = None
        return covariance

    def _hmc_seconds(self, chosen: BatchAndStep) -> float:
        """Returns the time of a draw by HMC; infinity if its gradients alone take longer."""
        if self._seconds(chosen.batch_size) * chosen.steps_per_draw < self._least_of_hmc:
            line = (
                "HamiltonianMonteCarlo was not timed, because the gradients of a draw alone take "
                f"{1e3 * self._least_of_hmc:.2g} ms or more."
            )
            if line not in self._runs.dropped:
                self._runs.dropped.append(line)
            return np.inf
        if self._hmc is None:
            self._hmc = TimedHMC(self._problem, self.found, self._runs)
        return self._hmc.seconds

    def _seconds(self, n: int) -> float:
        """Returns the time of a step with n examples."""
        name = f"UnderdampedLangevin with n = {n}"
        if n not in self._timed:
            control = self._with_batch_size(n)
            self._timed[n] = self._runs.timed_chains(
                name,
                lambda x: UnderdampedLangevin(control, x[0], FRICTION, temperature=x[1]),
                (1.0, 1.0),
                control,
            )
        return self._runs.milliseconds[name] / 1e3

    def _with_batch_size(self, n: int) -> ControlVariate:
        make = functools.partial(self._control.with_batch_size, n)
        return kept_program(
            self.found.target, f"control variates of {n}", self._control.center, make
        )

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

    def _pilot(self, chosen: BatchAndStep, temperature: float) -> PilotDraws | None:
        estimates, jit_compile = self._with_batch_size(chosen.batch_size), self._runs.jit_compile
        self._pilot_gradients = kept_program(
            estimates,
            f"gradients, {jit_compile=}",
            estimates.center,
            lambda: Gradients(estimates, jit_compile),
        )
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
            UnderdampedLangevin(self._with_batch_size(n), **arguments),
            self.found,
            self._pilot_gradients,  # unbiased for any n, and XLA takes long to compile others
            pilot,
            self._runs,
            line,
            noise=self._remainders,
            arguments=arguments,
            batch_size=n,
            stride=chosen.steps_per_draw,
            predicted_excess=predicted,
            measured_excess=ExcessVariance(chosen.mean, chosen.worst),
        )
