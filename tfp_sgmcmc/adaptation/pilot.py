"""Pilots: short, timed chains from dispersed starts in whitened coordinates."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.diagnostics.convergence import (
    batch_means_standard_error,
    effective_sample_size,
    rank_normalized_rhat,
    rhat_limit,
    rhat_text,
)
from tfp_sgmcmc.diagnostics.vector_functions import ValuesAndGradients
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.sampling.loop import Loop, Position, start_of
from tfp_sgmcmc.targets import Target
from tfp_sgmcmc.targets.base import kept_program
from tfp_sgmcmc.targets.data import evenly_spread

_TIMED_SECONDS = 0.02  # short, so that other work on the machine disturbs at most a few of five
_ROWS = 50  # of draws at which gradients are taken at a time
_MOST_ENTRIES = 1000  # for which R-hat and effective sample sizes are computed
_WIDER = 1.3  # the starts, in standard deviations of Laplace's approximation


def seconds_of_second(call: Callable[[], Any]) -> float:
    """Returns the time of a second call, because the first one may trace and compile.

    The processor's time counts where it is shorter, as other work on the machine delays all kernels
    alike.
    """
    call()
    wall, processor = time.perf_counter(), time.process_time()
    call()
    return min(time.perf_counter() - wall, time.process_time() - processor)


class PilotChains:
    """A compiled chain whose settings are arguments of the compiled program.

    It begins with `restart`.

    Attributes:
      settings: those of the last restart, as tensors.

    Args:
      kernel_fn: settings, a nest of tensors such as the step size -> kernel.
      jit_compile: whether XLA compiles the steps.
    """

    def __init__(self, kernel_fn: Callable[[Any], Any], jit_compile: bool):
        self._kernel_fn, self._jit_compile = kernel_fn, jit_compile

    def restart(self, settings: Any, start: tf.Tensor, seed: tf.Tensor) -> None:
        """Puts all chains at a start.

        Args:
          settings: of the kernel.
          start: z of all chains, `[chains, D]`.
          seed: the seed of all steps.
        """
        self._seed = seed
        self.settings = tf.nest.map_structure(lambda x: tf.constant(x, start.dtype), settings)
        self.position = start_of(self._kernel_fn(self.settings), start)

    @property
    def is_compiled(self) -> bool:
        """Whether a step was taken, so that the next ones need no compilation."""
        return "loop" in vars(self)

    @functools.cached_property
    def loop(self) -> Loop:
        """The compiled steps."""
        return Loop(self._kernel_fn, None, self.position, self._jit_compile)

    def seconds_per_step(self) -> float:
        """Returns the time of a step of all chains, and leaves the chains where they are.

        A call takes milliseconds by itself, so the time of additional steps in one call counts.
        """
        self._advance(self.position, 1, 1)  # compiles
        one, steps, more = self._seconds(1), 1, 0.0
        if one > 10 * _TIMED_SECONDS:
            return one
        while more < _TIMED_SECONDS:
            steps *= 4
            more = self._seconds(steps) - one
        return more / (steps - 1)

    def _seconds(self, steps: int) -> float:
        """Returns the shortest time of five calls with some steps, or of two slow ones."""
        times: list[float] = []
        while len(times) < 2 or (len(times) < 5 and sum(times) < 50 * _TIMED_SECONDS):
            began = time.perf_counter()
            self._advance(self.position, 1, steps)
            times.append(time.perf_counter() - began)
        return min(times)

    def burn_in(self, steps: int) -> bool:
        """Takes steps; returns whether the chains are finite."""
        self.position, _, good = self._advance(self.position, 1, steps)
        return good

    def draw(self, num_draws: int, stride: int) -> np.ndarray | None:
        """Returns draws `[num_draws, chains, D]`, or None if a chain became NaN or infinite."""
        parts = []
        while num_draws > 0:
            rows = min(num_draws, self.loop.slots)
            self.position, kept, good = self._advance(self.position, rows, stride)
            if not good:
                return None
            parts.append(kept[:rows])
            num_draws -= rows
        return np.concatenate(parts)

    def _advance(self, position: Position, rows: int, stride: int) -> tuple[Any, np.ndarray, bool]:
        step = tf.constant(stride, tf.int64)
        given = position, rows, stride, step, self._seed, self.settings
        position, kept, health = self.loop(*given)
        return position, kept[0], health.is_good


class HMCChains:
    """Chains of HMC for a pilot, in NumPy, whose only program is the gradient.

    Other steps of a run compile this program too, but not that of HMC, which takes seconds.

    Args:
      at: z of all chains, `[chains, D]` -> log posteriors and gradients.
    """

    def __init__(self, at: ValuesAndGradients):
        self._at = at

    def restart(self, settings: Any, start: tf.Tensor, seed: tf.Tensor) -> None:
        """Puts all chains at a start; settings begin with the step size and the number of steps."""
        self._step, self._count, *_ = settings
        self._rng = np.random.default_rng(seed.numpy().astype(np.uint32))
        self._dtype, self._z = start.dtype.as_numpy_dtype, start.numpy().astype(np.float64)
        self._value, self._slope = self._at(self._z)

    def burn_in(self, steps: int) -> bool:
        """Takes steps; returns whether the chains are where the log posterior is finite."""
        self.draw(steps, 1)
        return bool(np.isfinite(self._value).all())

    def draw(self, num_draws: int, stride: int) -> np.ndarray:
        """Returns draws `[num_draws, chains, D]`."""
        draws = np.empty([num_draws, *self._z.shape], self._dtype)
        with np.errstate(all="ignore"):  # trajectories that leave the support are rejected
            for i in range(num_draws):
                for _ in range(stride):
                    self._take_step()
                draws[i] = self._z
        return draws

    def _take_step(self) -> None:
        h, momentum = self._step, self._rng.standard_normal(self._z.shape)
        energy = (momentum**2).sum(axis=-1) / 2 - self._value
        z, value, slope = self._z, self._value, self._slope
        for _ in range(self._count):
            half = momentum + h / 2 * slope
            z = z + h * half
            value, slope = self._at(z)
            momentum = half + h / 2 * slope
        log_ratio = energy - (momentum**2).sum(axis=-1) / 2 + value
        accepts = self._rng.standard_exponential(len(z)) > -log_ratio  # false for NaN
        self._value = np.where(accepts, value, self._value)
        self._z, self._slope = (
            np.where(accepts[:, np.newaxis], new, old)
            for new, old in ((z, self._z), (slope, self._slope))
        )


class Gradients:
    """Estimates gradients at draws, in blocks of one shape so that one program serves all.

    Args:
      target: the target of z.
      jit_compile: whether XLA compiles it.
    """

    def __init__(self, target: Any, jit_compile: bool):
        def at(states: tf.Tensor, seed: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
            def one(pair: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
                fresh = random.fold_in(seed, pair[1])
                return target.estimate(pair[0], fresh, with_scores=False).gradient

            return tf.map_fn(
                one,
                (states, first + tf.range(_ROWS)),
                fn_output_signature=tf.TensorSpec(states.shape[1:], states.dtype),
            )

        self._at = traced(at, jit_compile)

    def __call__(self, z: np.ndarray, seed: tf.Tensor) -> np.ndarray:
        """Returns gradients at draws `[results, chains, D]`.

        Each result has a fresh minibatch, so that products with the draws are unbiased.
        """
        found = []
        for first in range(0, len(z), _ROWS):
            block = z[first : first + _ROWS]
            block = np.pad(block, [(0, _ROWS - len(block)), (0, 0), (0, 0)], mode="edge")
            found.append(self._at(tf.constant(block), seed, tf.constant(first)).numpy())
        return np.concatenate(found)[: len(z)]


def gradients_of(
    value_and_gradient_fn: ValuesAndGradients,
) -> Callable[[np.ndarray, tf.Tensor], np.ndarray]:
    """Returns a function as `Gradients`, by all data, of one that takes z, `[K, D]`."""

    def gradients(z: np.ndarray, seed: tf.Tensor) -> np.ndarray:
        del seed  # nothing is drawn
        rows = z.reshape(-1, z.shape[-1]).astype(np.float64)
        return value_and_gradient_fn(rows)[1].reshape(z.shape)

    return gradients


class Convergence(NamedTuple):
    """Statistics of all entries.

    Attributes:
      rhat: largest rank-normalised split R-hat.
      ess: smallest effective sample size of bulk and tails, all chains together.
      median_ess: the median of the same.
      limit: the R-hat that sound chains hardly ever exceed.
    """

    rhat: float
    ess: float
    median_ess: float
    limit: float


def convergence(draws: np.ndarray) -> Convergence:
    """Returns statistics of draws `[results, chains, D]`."""
    num_results, num_chains, size = draws.shape
    x = draws[..., evenly_spread(size, _MOST_ENTRIES)]
    # Chains that have stopped give NaN.
    rhat = np.nan_to_num(rank_normalized_rhat(x), nan=np.inf).max()
    sizes = np.nan_to_num([effective_sample_size(x, kind) for kind in ("bulk", "tail")], nan=1.0)
    limit = limit_of_chains(num_results, num_chains, x.shape[-1], sizes.min())
    return Convergence(float(rhat), float(sizes.min()), float(np.median(sizes)), limit)


def limit_of_chains(num_results: int, num_chains: int, num_entries: int, ess: float) -> float:
    """Returns `Convergence.limit`.

    Chains that never met have few effective draws, and must not be excused by that.
    """
    return rhat_limit(num_chains, num_entries, max(ess, 0.25 * num_results * num_chains))


class GradientFit(NamedTuple):
    r"""How well draws fit the gradients: \( -E[z_j g_j] = 1 \) and \( E[g_j] = 0 \).

    Attributes:
      temperature: the mean over entries of \( -z_j g_j \), which estimates the draws' mean variance
        relative to the posterior's.
      error: its standard error.
      shift: root mean square over entries of the means' offsets, in standard deviations, with the
        part explained by chance subtracted.
      shift_error: the root of the standard error of its square, if the means are right.
      radius: mean of \( |z|^2 / D \), which is 1 for Laplace's approximation.
    """

    temperature: float
    error: float
    shift: float
    shift_error: float
    radius: float

    @property
    def excess(self) -> float:
        return self.temperature - 1


def gradient_fit(z: np.ndarray, gradients: np.ndarray) -> GradientFit:
    """Returns statistics of draws and gradients of the log posterior, `[results, chains, D]`."""
    products = -(z * gradients).mean(axis=-1)
    squares = batch_means_standard_error(gradients) ** 2
    shift = float(np.mean(gradients.mean(axis=(0, 1)) ** 2 - squares))
    noise = np.sqrt(2 * np.sum(squares**2)) / z.shape[-1]
    return GradientFit(
        float(products.mean()),
        float(batch_means_standard_error(products)),
        float(np.sqrt(max(shift, 0.0))),
        float(np.sqrt(noise)),
        float((z**2).mean()),
    )


class PilotDraws(NamedTuple):
    """A pilot's draws and their statistics.

    Attributes:
      z: the draws, `[results, chains, D]`.
      fit: how well the draws fit the gradients.
      convergence: R-hat and effective sample sizes.
    """

    z: np.ndarray
    fit: GradientFit
    convergence: Convergence

    @property
    def fits(self) -> bool:
        """Whether the posterior is about as wide as these coordinates predict."""
        return 0.8 < self.fit.radius < 1.3

    @property
    def wanders(self) -> bool:
        """Whether the draws go where the quadratic does not describe the posterior."""
        return not (0.4 < self.fit.radius < 2.5 and self.convergence.rhat < 1.15)

    @property
    def wandering(self) -> str:
        """How far the draws went, in words."""
        return (
            f"a pilot's draws had {self.fit.radius:.3g} times the mean square distance that the "
            f"curvature at the mode predicts, and R-hat of its chains was "
            f"{rhat_text(self.convergence.rhat, 2)}"
        )

    @property
    def draws_per_sample(self) -> int:
        """Number of draws per independent one for the median entry, at most 20.

        The slowest entry takes at most three times as many. By chance, the slowest of many
        entries of independent draws looks 1.6 times slower than it is.
        """
        num_draws, found = self.z.shape[0] * self.z.shape[1], self.convergence
        wanted = max(num_draws / found.median_ess, num_draws / found.ess / 1.6 / 3)
        return int(np.clip(round(wanted), 1, 20))


def dispersed_starts(num_chains: int, dim: int, dtype: tf.DType, seed: tf.Tensor) -> tf.Tensor:
    """Returns z of all chains, `[chains, D]`: draws of a widened Laplace approximation."""
    return tf.cast(_WIDER * random.normal([num_chains, dim], tf.float64, seed), dtype)


class PilotRuns:
    """Makes chains of z, times their steps, and runs pilots from the same dispersed starts.

    Attributes:
      milliseconds: measured time of a step of all chains, by name of the sampler.
      dropped: sentences on what was tried and not used, with the reason.
      num_starts: number of starts from which other modes were searched.

    Args:
      num_chains: number of chains.
      dim: D.
      dtype: of z.
      seed: of starts and pilots.
      jit_compile: whether XLA compiles the steps.
    """

    def __init__(
        self, num_chains: int, dim: int, dtype: tf.DType, seed: tf.Tensor, jit_compile: bool
    ):
        start_seed, self._seed = random.split(seed, 2)
        self.num_chains, self.dim, self.dtype = num_chains, dim, dtype
        self.jit_compile = jit_compile
        self._start = dispersed_starts(num_chains, dim, dtype, start_seed)
        self._num_pilots = 0
        self.milliseconds: dict[str, float] = {}
        self.dropped: list[str] = []
        self.num_starts = 0

    def timed_chains(self, name: str, kernel_fn: Any, settings: Any, target: Target) -> PilotChains:
        """Returns chains at the starts, and notes the time of a step under a name.

        The `target` keeps the compiled chains for another call.
        """
        chains = kept_program(
            target,
            f"{name}, {self.jit_compile=}",
            self._start,
            lambda: PilotChains(kernel_fn, self.jit_compile),
        )
        self.time_steps(name, chains, settings)
        return chains

    def time_steps(self, name: str, chains: PilotChains, settings: Any) -> None:
        """Puts chains at the starts, and notes the time of a step under a name."""
        self.restart(chains, settings)
        self.milliseconds[name] = 1e3 * chains.seconds_per_step()

    def restart(self, chains: PilotChains, settings: Any) -> None:
        """Puts chains at the starts."""
        chains.restart(settings, self._start, self._seed)

    def pilot(
        self,
        chains: PilotChains | HMCChains,
        gradients: Callable[[np.ndarray, tf.Tensor], np.ndarray],
        settings: Any,
        stride: int,
        num_draws: int,
    ) -> PilotDraws | None:
        """Returns draws after a burn-in of ten strides; None if a chain became NaN or infinite.

        Each pilot has a different seed.
        """
        self._num_pilots += 1
        seed = random.fold_in(self._seed, self._num_pilots)
        chains.restart(settings, self._start, seed)
        z = chains.draw(num_draws, stride) if chains.burn_in(10 * stride) else None
        if z is None:
            return None
        g = gradients(z, random.fold_in(seed, 2**31 - 1))
        return PilotDraws(z, gradient_fit(z, g), convergence(z)) if np.isfinite(g).all() else None
