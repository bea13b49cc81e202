"""HMC and NUTS for an automatic run, with steps and metrics that pilots choose."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.adaptation.coordinates import Coordinates, whiten_by_covariance
from tfp_sgmcmc.adaptation.hierarchies.prior_scale import NotNearGaussian, check_proper
from tfp_sgmcmc.adaptation.pilot import (
    Chains,
    Gradients,
    HMCChains,
    PilotChains,
    PilotRuns,
    gradients_of,
    seconds_of_second,
)
from tfp_sgmcmc.adaptation.pilot_steps import Affine, PilotSteps, log_prob_of_z
from tfp_sgmcmc.adaptation.settings import PreparedKernel, prepare_kernel, trace_divergences
from tfp_sgmcmc.adaptation.typical_set import TypicalStarts
from tfp_sgmcmc.diagnostics.vector_functions import (
    value_and_gradient_of_vectors,
    value_and_gradient_of_z,
)
from tfp_sgmcmc.internal.nest import State, flatten_events, unflatten_events
from tfp_sgmcmc.sampling.loop import Loop, Position, start_of
from tfp_sgmcmc.targets import FullDataLogProb, MinibatchLogProb
from tfp_sgmcmc.targets.base import kept_program

_NAME = "HamiltonianMonteCarlo"
_STRIDE = 2  # steps of HMC between nearly independent draws
_PILOT_DRAWS = 400
_LEAST_DRAWS = 200  # of all chains; the R-hat of fewer is above a pilot's bound by chance
_DRAWS_PER_ENTRY = 100  # of all chains, so that a covariance is known well
_MOST_PILOTS = 5
_LEAST_ACCEPTED = 0.6

MAX_TREE_DEPTH = 8
_ACCEPTANCE = 0.9  # small steps, as curved posteriors make larger ones diverge
_FIRST_STEP = 0.1
_ADAPTATION_STEPS = 40  # of the step size at the begin of a window
_WINDOWS = (25, 50, 100, 200, 300)  # draws of each chain
_DENSE_FROM = 3  # the number of the window whose draws first give a dense metric
_MOST_DENSE = 100  # entries of a state
_FINAL_STEPS = 150  # of the step size in the final metric
_ALWAYS = 2**31 - 1
_SLOTS = 50  # draws that a call of the compiled program can keep
_REMEDY = (
    "A Cholesky factorisation may fail in float32 and not in float64: give the target "
    "dtype='float64' and a float64 start, or add a larger number to the diagonal.",
    "Check log_prior_fn and log_likelihood_fn.",
)


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
        self._first, self._is_affine = leapfrog(runs.dim), found.factor is not None
        keeper = problem if self._is_affine else found.target
        self._compiled = kept_program(keeper, _NAME, found.center, dict[bool, PilotChains])

    @property
    def seconds(self) -> float:
        """The time of a nearly independent draw of each chain, in a compiled program."""
        self._runs.time_steps(_NAME, self._compiled_chains(), self._settings(*self._first))
        return _STRIDE * self._runs.milliseconds[_NAME] / 1e3

    def _settings(self, step: float, count: int) -> tuple[float, int, Affine | None]:
        if not self._is_affine:
            return step, count, None
        flat = flatten_events(self._found.center, 0).numpy().astype(np.float64)
        return step, count, Affine(flat, self._found.factor)

    def _compiled_chains(self) -> PilotChains:
        """Returns chains of a program that serves all coordinates with a factor."""
        problem, found, jit_compile = self._problem, self._found, self._runs.jit_compile

        def kernel(settings: tuple[tf.Tensor, tf.Tensor, Affine | None]) -> Any:
            step, count, affine = settings
            log_prob_fn: Any = found.target
            if affine is not None:
                log_prob_fn = log_prob_of_z(problem, found.center, affine)
            return tfp.mcmc.HamiltonianMonteCarlo(log_prob_fn, step, tf.cast(count, tf.int32))

        if jit_compile not in self._compiled:
            self._compiled[jit_compile] = PilotChains(kernel, jit_compile)
        return self._compiled[jit_compile]

    def __call__(self, num_results: int) -> PreparedKernel:
        """Returns HMC with an accepted step, if needed in coordinates of a pilot's draws.

        Nothing is compiled for a first pilot that fails.

        Raises:
          NotNearGaussian: no step is accepted, or draws wander.
        """
        found, runs, (h, count) = self._found, self._runs, self._first
        gradients: Any = Gradients(FullDataLogProb(found.target), runs.jit_compile)
        chains: Chains
        if found.factor is not None:
            of_z = found.center, found.factor, runs.jit_compile
            at = value_and_gradient_of_z(self._problem, *of_z)
            chains, gradients = HMCChains(at), gradients_of(at)
            z = np.zeros([runs.num_chains, runs.dim])
            runs.milliseconds["gradient of all data"] = 1e3 * seconds_of_second(lambda: at(z))
        if runs.jit_compile in self._compiled or not self._is_affine:
            chains = self._compiled_chains()
        least = max(50, math.ceil(_LEAST_DRAWS / runs.num_chains))
        num_draws = int(np.clip(num_results // 2, least, _PILOT_DRAWS))
        pilot, accepted = None, 0.0
        for _ in range(_MOST_PILOTS):
            pilot = runs.pilot(chains, gradients, self._settings(h, count), 1, num_draws)
            if pilot is not None:
                accepted = float(np.mean(np.any(pilot.z[1:] != pilot.z[:-1], axis=-1)))
                if accepted >= _LEAST_ACCEPTED:
                    break
            h = 0.7 * h
            count = steps_for(h)
        if pilot is None or accepted < _LEAST_ACCEPTED / 2:
            raise NotNearGaussian("HMC in the coordinates of the mode is hardly ever accepted")
        if pilot.wanders:
            raise NotNearGaussian(pilot.wandering)
        compiled, settings = self._compiled_chains(), self._settings(h, count)
        poor = not pilot.fits or h < self._first[0]  # a normal would have accepted the first h
        if self._is_affine and found.kind != "covariance" and poor:
            more = min(num_results // 2, _DRAWS_PER_ENTRY * runs.dim // pilot.z.shape[1])
            if more > num_draws:
                longer = runs.pilot(compiled, gradients, settings, 1, more)
                pilot = pilot if longer is None else longer
            recentred = whiten_by_covariance(self._problem, found, pilot.z)
            return TimedHMC(self._problem, recentred, runs)(num_results)
        steps = None
        if self._is_affine:
            runs.restart(compiled, settings)
            given = compiled.loop, compiled.settings, compiled.settings[2]
            steps = PilotSteps(self._problem, found.center, *given)
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
            sampler=_NAME,
            arguments=arguments,
            batch_size=None,
            stride=1,
            loop=steps,
        )


class NUTSPilot(NamedTuple):
    """The result of a pilot of NUTS.

    Attributes:
      center: mean of the last window's draws.
      covariance: their covariance, `[D, D]`, or variances, `[D]`.
      step_size: step size in coordinates that these whiten.
      start: the last z of all chains, `[chains, D]`.
      draws: flat draws of the last window, `[draws, D]`.
      seconds_per_draw: seconds of a draw of all chains.
      chains: the compiled chains.
    """

    center: State
    covariance: np.ndarray
    step_size: float
    start: np.ndarray
    draws: np.ndarray
    seconds_per_draw: float
    chains: _Chains


def run_nuts_pilot(
    problem: MinibatchLogProb,
    like: State,
    starts: TypicalStarts,
    seed: tf.Tensor,
    jit_compile: bool,
    reason: NotNearGaussian,
) -> NUTSPilot:
    """Adapts step size and metric in windows, each with the metric of the last one's draws.

    Raises:
      ValueError: the log posterior is not finite where the pilot goes, or its integral is not.
    """
    problem = problem.with_minibatches(problem.num_examples)
    dim, dtype = starts.states.shape[-1], tf.nest.flatten(like)[0].dtype
    is_small = dim <= _MOST_DENSE
    chains = _Chains(problem, like, is_small, len(starts.states), jit_compile)
    mean, covariance, step = starts.states.mean(axis=0), starts.variance, _FIRST_STEP
    theta, seconds = starts.states[np.newaxis], np.nan
    for number, num_draws in enumerate(_WINDOWS):
        chains.restart(mean, covariance, theta[-1], step)
        fresh = random.fold_in(seed, number)
        chains.adapt(_ADAPTATION_STEPS, fresh)
        began = time.perf_counter()
        found = chains.draw(num_draws, fresh)
        seconds = (time.perf_counter() - began) / num_draws
        step = chains.step_size
        if found is None:
            raise ValueError(
                "The log posterior must be finite around its mode. Received: NaN or infinite "
                f"values in {dtype.name} in a pilot of NUTS, after this was found: {reason}. "
                + _REMEDY[dtype == tf.float64]
            )
        theta, draws = found, found.reshape(-1, dim)
        mean, covariance = draws.mean(axis=0), np.maximum(draws.var(axis=0), 1e-300)
        if number == 1:
            axes = np.linalg.svd((draws - mean) / np.sqrt(covariance), full_matrices=False)[2]
            at = unflatten_events(mean, like, 0)
            check_proper(problem, at, np.sqrt(covariance) * axes[0])
        if number >= _DENSE_FROM and is_small:
            covariance = _shrunk(draws)
    chains.restart(mean, covariance, theta[-1], step)
    chains.adapt(_FINAL_STEPS, random.fold_in(seed, len(_WINDOWS)))
    return NUTSPilot(
        unflatten_events(mean, like, 0),
        covariance,
        chains.step_size,
        chains.z.astype(dtype.as_numpy_dtype),
        theta.reshape(-1, dim),
        seconds,
        chains,
    )


class _Chains:
    """Chains of NUTS in coordinates that are arguments of one compiled program.

    The program is kept with the target. It serves all windows and the run that follows.

    Args:
      problem: the target, with all examples.
      like: one unconstrained state.
      is_dense: whether roots of metrics are matrices.
      num_chains: number of chains.
      jit_compile: whether XLA compiles the steps.
    """

    def __init__(
        self,
        problem: MinibatchLogProb,
        like: State,
        is_dense: bool,
        num_chains: int,
        jit_compile: bool,
    ):
        self._problem, self._like, self._is_dense = problem, like, is_dense
        self._dtype = tf.nest.flatten(like)[0].dtype
        self._name = f"NUTS of {num_chains} chains, jit_compile={jit_compile}"
        self._jit_compile = jit_compile
        self._of_vectors = value_and_gradient_of_vectors(problem, like, jit_compile, False)

    @property
    def z(self) -> np.ndarray:
        return self._position.state.numpy().astype(np.float64)

    @property
    def step_size(self) -> float:
        """The average over late steps, for a run that does not adapt."""
        return float(np.exp(self._position.results.log_averaging_step[0]))

    def restart(
        self, shift: np.ndarray, covariance: np.ndarray, states: np.ndarray, step: float
    ) -> None:
        """Puts the chains to flat states, with a step size to begin with.

        The coordinates are shift + root z, where root is that of a covariance, or of variances.
        """
        root, off = _root(covariance), (states - shift).T
        z = np.linalg.solve(root, off).T if root.ndim == 2 else off.T / root
        root = np.diag(root) if self._is_dense and root.ndim == 1 else root
        self._affine = Affine(shift, root)
        values = self._affine.tensors(self._dtype)

        def make() -> tuple[Loop, Position]:
            start = start_of(self._kernel(values), tf.constant(z, self._dtype))
            options = self._jit_compile, _SLOTS
            return Loop(self._kernel, _trace, start, *options, values=values), start

        loop, first = kept_program(self._problem, self._name, self._like, make)
        self._loop = loop.with_values(values)
        value, slopes = self._of_vectors(self._affine.moved(z))
        value, slopes = value + self._affine.log_det().numpy(), self._affine.gradient(slopes)
        value, slopes, z, step = (tf.constant(x, self._dtype) for x in (value, slopes, z, step))
        density = {"target_log_prob": value, "grads_target_log_prob": [slopes]}
        start = first.results._replace(
            inner_results=first.results.inner_results._replace(**density),
            new_step_size=step,
            log_shrinkage_target=[tf.math.log(10 * step)],
        )
        self._position = Position(tf.zeros([], tf.int64), z, start)

    def adapt(self, num_steps: int, seed: tf.Tensor) -> None:
        """Takes steps that adapt the step size."""
        self._position = self._loop(self._position, 1, num_steps, 1, seed)[0]

    def draw(self, num_draws: int, seed: tf.Tensor) -> np.ndarray | None:
        """Returns flat states, `[num_draws, chains, D]`; None if any is NaN or infinite."""
        found, all_good = [], True
        for first in range(0, num_draws, _SLOTS):
            rows = min(_SLOTS, num_draws - first)
            self._position, kept, health = self._loop(self._position, rows, 1, 1, seed)
            all_good &= health.is_good
            found.append(kept[0][:rows])
        return self._affine.moved(np.concatenate(found).astype(np.float64)) if all_good else None

    def steps_of_run(self, affine: Affine) -> PilotSteps:
        """Returns the program for a run in these coordinates."""
        values, adapted = affine.tensors(self._dtype), self._position.results
        return _NUTSSteps(self._problem, self._like, self._loop, values, values, adapted)

    def _kernel(self, affine: Affine) -> tfp.mcmc.TransitionKernel:
        log_prob_fn = log_prob_of_z(self._problem, self._like, affine)
        nuts = tfp.mcmc.NoUTurnSampler(log_prob_fn, tf.ones([], self._dtype), MAX_TREE_DEPTH)
        return tfp.mcmc.DualAveragingStepSizeAdaptation(nuts, _ALWAYS, _ACCEPTANCE)


def _trace(z: tf.Tensor, results: Any) -> tuple[Any, tf.Tensor]:
    inner = results.inner_results
    return trace_divergences(z, inner), inner.step_size


class _NUTSSteps(PilotSteps):
    """A pilot's steps of NUTS without their adaptation.

    Args:
      given: as for `PilotSteps`, and any results of the pilot's kernel.
    """

    def __init__(self, *given: Any):
        *of_steps, self._adapted = given
        super().__init__(*of_steps)

    def to_pilot(self, position: Position) -> Position:
        results = self._adapted._replace(
            inner_results=position.results,
            new_step_size=position.results.step_size,
            step=tf.constant(1),
            num_adaptation_steps=tf.constant(0),  # before this step, so that no more follow
        )
        return position._replace(results=results)

    def from_pilot(self, position: Position) -> Position:
        return position._replace(results=position.results.inner_results)

    def of_run(self, kept: Any) -> Any:
        z, (trace, step_size), _ = kept
        return z, trace, step_size


def _shrunk(draws: np.ndarray) -> np.ndarray:
    """Returns the covariance of draws, with smaller correlations where there are few draws."""
    covariance = np.atleast_2d(np.cov(draws.T))
    weight = len(draws) / (len(draws) + 5 * draws.shape[-1])
    return weight * covariance + (1 - weight) * np.diag(np.diag(covariance))


def _root(covariance: np.ndarray) -> np.ndarray:
    """Returns the lower triangular factor of a covariance, or the roots of variances."""
    if covariance.ndim == 1:
        return np.sqrt(covariance)
    scale = np.sqrt(np.diag(covariance))
    return scale[:, np.newaxis] * np.linalg.cholesky(covariance / np.outer(scale, scale))
