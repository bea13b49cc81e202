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
from tfp_sgmcmc.adaptation.pilot import Gradients, PilotRuns
from tfp_sgmcmc.adaptation.prior_scale import NotNearGaussian, check_proper
from tfp_sgmcmc.adaptation.settings import PreparedKernel, prepare_kernel, trace_divergences
from tfp_sgmcmc.adaptation.typical_set import TypicalStarts
from tfp_sgmcmc.diagnostics.vector_functions import value_and_gradient_of_vectors
from tfp_sgmcmc.internal.nest import State, unflatten_events
from tfp_sgmcmc.sampling.loop import Loop, Position, start_of
from tfp_sgmcmc.targets import FullDataLogProb, MinibatchLogProb
from tfp_sgmcmc.targets.base import kept_program
from tfp_sgmcmc.targets.laplace.laplace import parameters_bijector

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
            found.target,
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


class NUTSPilot(NamedTuple):
    """The result of a pilot of NUTS.

    Attributes:
      center: mean of the last window's draws.
      covariance: their covariance, `[D, D]`, or variances, `[D]`.
      step_size: step size in coordinates that these whiten.
      start: the last z of all chains, `[chains, D]`.
      draws: flat draws of the last window, `[draws, D]`.
      seconds_per_draw: seconds of a draw of all chains.
      loop: the compiled steps, in these coordinates, whose draws are the model's parameters.
    """

    center: State
    covariance: np.ndarray
    step_size: float
    start: np.ndarray
    draws: np.ndarray
    seconds_per_draw: float
    loop: Loop


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
        chains.draw(_ADAPTATION_STEPS, fresh)
        began = time.perf_counter()
        found = chains.draw(num_draws, fresh)
        seconds = (time.perf_counter() - began) / num_draws
        step = chains.adaptation.average
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
    chains.draw(_FINAL_STEPS, random.fold_in(seed, len(_WINDOWS)))
    return NUTSPilot(
        unflatten_events(mean, like, 0),
        covariance,
        chains.adaptation.average,
        chains.z.astype(dtype.as_numpy_dtype),
        theta.reshape(-1, dim),
        seconds,
        chains.loop,
    )


class _Chains:
    """Chains of NUTS in coordinates that are arguments of one compiled program.

    The program is kept with the target. It serves all windows, the run that follows, and the run
    after that with another step size. So the step is adapted between calls.

    Attributes:
      loop: the program with the coordinates of the last restart.
      adaptation: the step size.

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
        self._view = parameters_bijector(problem.bijector, like)
        self._dtype = tf.nest.flatten(like)[0].dtype
        self._name = f"NUTS of {num_chains} chains, jit_compile={jit_compile}"
        self._jit_compile = jit_compile
        self._of_vectors = value_and_gradient_of_vectors(problem, like, jit_compile, False)

    @property
    def z(self) -> np.ndarray:
        return self._position.state.numpy().astype(np.float64)

    def restart(
        self, shift: np.ndarray, covariance: np.ndarray, states: np.ndarray, step: float
    ) -> None:
        """Puts the chains to flat states, with a step size to begin with.

        The coordinates are shift + root z, where root is that of a covariance, or of variances.
        """
        self.adaptation = DualAveraging(step)
        root, off = _root(covariance), (states - shift).T
        z = np.linalg.solve(root, off).T if root.ndim == 2 else off.T / root
        self._shift, self._root = shift, root
        root = np.diag(root) if self._is_dense and root.ndim == 1 else root
        values = tuple(tf.constant(x, self._dtype) for x in (shift, root))

        def make() -> tuple[Loop, Position]:
            start = start_of(self._kernel(values), tf.constant(z, self._dtype))
            options = trace_divergences, start, self._jit_compile, _SLOTS, self._viewed
            return Loop(self._kernel, *options, values=values), start

        loop, first = kept_program(self._problem, self._name, self._like, make)
        self.loop = loop.with_values(values)
        scales = np.diag(root) if self._is_dense else root
        value, slopes = self._of_vectors(shift + (z @ root.T if self._is_dense else z * root))
        slopes = slopes @ root if self._is_dense else slopes * root
        value, slopes, z = (
            tf.constant(x, self._dtype) for x in (value + np.log(scales).sum(), slopes, z)
        )
        start = first.results._replace(target_log_prob=value, grads_target_log_prob=[slopes])
        self._position = Position(tf.zeros([], tf.int64), z, start)

    def draw(self, num_draws: int, seed: tf.Tensor) -> np.ndarray | None:
        """Returns flat states, `[num_draws, chains, D]`; None if any is NaN or infinite."""
        found, all_good = [], True
        for _ in range(num_draws):
            step = tf.constant(self.adaptation.step, self._dtype)
            results = self._position.results._replace(step_size=step)
            position = self._position._replace(results=results)
            self._position, _, health = self.loop(position, 1, 1, 1, seed)
            all_good &= health.is_good
            ratios = self._position.results.log_accept_ratio.numpy().astype(np.float64)
            self.adaptation.update(float(np.nan_to_num(np.exp(np.minimum(ratios, 0.0))).mean()))
            found.append(self._position.state)
        if not all_good:
            return None
        z = tf.stack(found).numpy().astype(np.float64)
        return self._shift + (z @ self._root.T if self._root.ndim == 2 else z * self._root)

    def _moved(self, z: tf.Tensor, values: tuple[tf.Tensor, tf.Tensor]) -> State:
        shift, root = values
        moved = tf.linalg.matvec(root, z) if self._is_dense else root * z
        return unflatten_events(shift + moved, self._like, 0)

    def _viewed(self, z: tf.Tensor, values: tuple[tf.Tensor, tf.Tensor]) -> Any:
        return self._view.forward(self._moved(z, values))

    def _kernel(self, values: tuple[tf.Tensor, tf.Tensor]) -> tfp.mcmc.NoUTurnSampler:
        scales = tf.linalg.diag_part(values[1]) if self._is_dense else values[1]
        log_det = tf.reduce_sum(tf.math.log(scales))  # as in the target of z of the run
        one = tf.ones([], self._dtype)
        return tfp.mcmc.NoUTurnSampler(
            lambda z: self._problem(self._moved(z, values)) + log_det,
            one,
            max_tree_depth=MAX_TREE_DEPTH,
        )


class DualAveraging:
    """Adapts a step size to an acceptance probability.

    Attributes:
      step: the step size to try next.

    References:
      M. D. Hoffman, A. Gelman. The No-U-Turn Sampler. Journal of Machine Learning Research, 2014.
      Section 3.2, with the constants that it recommends.
    """

    def __init__(self, step: float):
        self.step, self._target = step, np.log(max(10 * step, np.finfo(np.float32).tiny))
        self._count, self._errors, self._average = 0, 0.0, 0.0

    def update(self, accepted: float) -> None:
        """Takes the acceptance probability of the last step."""
        self._count += 1
        t = self._count
        self._errors += _ACCEPTANCE - accepted
        log_step = self._target - np.sqrt(t) / (t + 10) * self._errors / 0.05
        weight = t**-0.75
        self._average = weight * log_step + (1 - weight) * self._average
        self.step = float(np.exp(log_step))

    @property
    def average(self) -> float:
        """The average over late steps, for a run that does not adapt."""
        return float(np.exp(self._average))


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
