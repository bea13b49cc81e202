"""Other dynamics than those of the annealed ensemble: microcanonical, symmetric, in cycles."""

from __future__ import annotations

import copy
import functools
import math
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import random
from tfp_sgmcmc.internal.nest import State, map_parts, num_entries, sum_events
from tfp_sgmcmc.keras.adaptation.annealed_ensemble import AnnealedEnsemble
from tfp_sgmcmc.kernels.annealed_sghmc import AnnealedSGHMC
from tfp_sgmcmc.kernels.base import StochasticGradientKernel
from tfp_sgmcmc.kernels.momentum import scaled

_LEAST = 0.1  # of the mean size of gradients, added to each, so that no scale is infinite


class MicrocanonicalResults(NamedTuple):
    """Results of a step: the fields of all kernels and two more.

    Attributes:
      direction: u, of norm 1 for each chain, in the structure of the state.
      squares: running means of squared gradients, in the same form.
    """

    target_log_prob: tf.Tensor
    gradient_norm: tf.Tensor
    step_size: tf.Tensor
    temperature: tf.Tensor
    step: tf.Tensor
    target_state: Any
    direction: State
    squares: State


class Microcanonical(StochasticGradientKernel):
    r"""Motion of constant speed, whose direction turns to the gradient and is refreshed by noise.

    With d weights, the gradient g of the log posterior, scales c of mean square 1, e = c g / |c g|
    and \( \delta = \epsilon\, |c g| / (d - 1) \),

    \[
    \begin{aligned}
    u &\leftarrow \frac{u + e\, (\sinh\delta + (e \cdot u) (\cosh\delta - 1))}
      {\cosh\delta + (e \cdot u) \sinh\delta} \\
    u &\leftarrow (u + \nu z) / |u + \nu z|, \qquad \nu^2 = (e^{2 / L} - 1) / d \\
    \theta &\leftarrow \theta + \epsilon\, c\, u, \qquad \epsilon = h \sqrt d,
    \end{aligned}
    \]

    with z standard normal. There is no test that rejects. The scales are inverse to the root mean
    squares of minibatches' gradients in the first steps, as far as these are not very small, so
    that the noise of all weights is of about one size.

    Args:
      target_log_prob_fn: a target such as `MinibatchLogProb`.
      step_size: h, the root mean square of a weight's step.
      num_scaling_steps: steps after which the scales stay as they are.
      is_scaled: whether there are scales other than 1.
      decoherence: L, the number of steps in which noise turns the direction.

    References:
      J. Robnik, G. B. De Luca, E. Silverstein and U. Seljak. Microcanonical Hamiltonian Monte
      Carlo. JMLR, 2023.

      E. Sommer, J. Robnik, G. Nozadze, U. Seljak and D. Ruegamer. Microcanonical Langevin
      ensembles: advancing the sampling of Bayesian neural networks. ICLR, 2025.
    """

    def __init__(
        self,
        target_log_prob_fn: Any,
        step_size: float,
        num_scaling_steps: int = 100,
        is_scaled: bool = True,
        decoherence: float = 20.0,
    ):
        super().__init__({**locals(), "temperature": 1.0})

    def _init_results(self, state: State) -> MicrocanonicalResults:
        zeros = self._zeros(state)
        still = map_parts(tf.zeros_like, state)
        figures = self._first_figures(state, zeros, zeros + self.step_size, tf.ones([]))
        return MicrocanonicalResults(**figures, direction=still, squares=still)

    def _update(
        self, state: State, results: MicrocanonicalResults, seed: tf.Tensor
    ) -> tuple[State, MicrocanonicalResults]:
        batch_seed, noise_seed = random.split(seed, 2)
        estimate = self._target.estimate(state, batch_seed, results.target_state, with_scores=False)
        ndims = estimate.log_prob.shape.rank
        d = tf.cast(num_entries(state, ndims), estimate.log_prob.dtype)
        epsilon = self.step_size * tf.sqrt(d)
        is_first = results.step == 0
        weight = tf.where(results.step < self._parameters["num_scaling_steps"], 0.05, 0.0)
        squares = map_parts(
            lambda u, g: tf.where(is_first, g**2, u + tf.cast(weight, g.dtype) * (g**2 - u)),
            results.squares, estimate.gradient,
        )  # fmt: skip
        c = map_parts(tf.ones_like, state)
        if self._parameters["is_scaled"]:
            least = _LEAST * tf.sqrt(sum_events(squares, ndims) / d)
            c = map_parts(lambda s: 1 / (tf.sqrt(s) + scaled(least, tf.ones_like(s))), squares)
            c = self._with_norm(c, tf.sqrt(d), ndims)

        g = map_parts(tf.multiply, c, estimate.gradient)
        size = tf.sqrt(sum_events(map_parts(tf.square, g), ndims))
        e = map_parts(lambda g: scaled(tf.math.reciprocal_no_nan(size), g), g)
        u = map_parts(lambda u, e: tf.where(is_first, e, u), results.direction, e)
        cosine = sum_events(map_parts(tf.multiply, u, e), ndims)
        # Divided by cosh, and the result by its norm, so that nothing overflows.
        delta = epsilon * size / (d - 1)
        along = tf.tanh(delta) + cosine * (1 - 1 / tf.cosh(tf.minimum(delta, 50.0)))
        rest = 1 / tf.cosh(tf.minimum(delta, 50.0))
        u = map_parts(lambda u, e: scaled(rest, u) + scaled(along, e), u, e)
        u = self._with_norm(u, 1.0, ndims)
        noise = tf.sqrt(math.expm1(2 / self._parameters["decoherence"]) / d)
        z = random.normal_like(state, noise_seed)
        u = self._with_norm(map_parts(lambda u, z: u + noise * z, u, z), 1.0, ndims)
        state = map_parts(lambda x, c, u: x + epsilon * c * u, state, c, u)
        figures = self._figures(
            estimate, tf.zeros_like(size) + self.step_size, tf.ones([]), results
        )
        return state, MicrocanonicalResults(**figures, direction=u, squares=squares)

    @staticmethod
    def _with_norm(x: State, norm: Any, chain_ndims: int) -> State:
        """Returns x with another norm over all parts, by chain."""
        factor = norm / tf.sqrt(sum_events(map_parts(tf.square, x), chain_ndims))
        return map_parts(lambda part: scaled(factor, part), x)


class Symmetric(AnnealedSGHMC):
    """The annealed kernel as BAOAB: a kick, half a drift, friction with noise, half a drift."""

    def _move(
        self, state: Any, x: Any, gradient: Any, z: Any, n: Any, results: Any, packing: Any
    ) -> Any:
        move = functools.partial(super()._move, state, x, gradient)
        _, rate, temperature, changed = move(z, n, results, packing)
        quiet, unit = (
            move(tf.nest.map_structure(like, z), n, results, packing)[3]["momentum"]
            for like in (tf.zeros_like, tf.ones_like)
        )
        a = self._parameters["momentum_loss"]
        parts = map(tf.nest.flatten, (x, results.momentum, quiet, changed["momentum"], unit))
        left, moved = [], []
        for i, (place, v, calm, *noisy) in enumerate(zip(*parts, strict=True)):
            noise, spread = ((x - calm) / (2 * a) ** 0.5 for x in noisy)
            drift, velocity = self._flow(calm + a * v, noise, spread, a, i)
            left.append(velocity)
            moved.append(place + drift)
        changed["momentum"] = tf.nest.pack_sequence_as(changed["momentum"], left)
        return tf.nest.pack_sequence_as(x, moved), rate, temperature, changed

    def _flow(self, v: tf.Tensor, noise: tf.Tensor, spread: tf.Tensor, a: float, part: int) -> Any:
        """Returns the drift and the velocity after a kick to v.

        `noise` is drawn from the law of velocities, whose standard deviations are `spread`.
        """
        del spread, part
        left = (1 - a) * v + (2 * a - a**2) ** 0.5 * noise
        return (v + left) / 2, left


class ExactFriction(Symmetric):
    r"""The annealed kernel as UBU: kicks between exact flows of drift and friction with noise.

    With \( e^{-\eta} = 1 - a \), a flow of one step changes a velocity v of variance 1 by

    \[
    v' = e^{-\eta} v + \xi, \qquad \Delta = \frac{1 - e^{-\eta}}{\eta} v + \zeta,
    \]

    where the noise is normal with variances \( 1 - e^{-2 \eta} \) of \( \xi \) and
    \( (2 \eta - 3 + 4 e^{-\eta} - e^{-2 \eta}) / \eta^2 \) of \( \zeta \), and covariance
    \( (1 - e^{-\eta})^2 / \eta \). States are those at which kicks are given.

    References:
      J. M. Sanz-Serna and K. C. Zygalakis. Wasserstein distance estimates for the distributions of
      numerical approximations to ergodic stochastic differential equations. JMLR, 2021.
    """

    _more: tf.Tensor

    def _update(self, state: State, results: Any, seed: tf.Tensor) -> Any:
        kernel = copy.copy(self)
        kernel._more = random.fold_in(seed, 2)  # the seed of second normals
        return super(ExactFriction, kernel)._update(state, results, seed)

    def _flow(self, v: tf.Tensor, noise: tf.Tensor, spread: tf.Tensor, a: float, part: int) -> Any:
        eta = -math.log1p(-a)
        loss = -math.expm1(-eta)
        velocity, both = (2 * a - a**2) ** 0.5, loss**2 / eta
        drift = (2 * eta - 3 + 4 * math.exp(-eta) - math.exp(-2 * eta)) / eta**2
        rest = (drift - (both / velocity) ** 2) ** 0.5
        z = spread * random.normal_like(noise, random.fold_in(self._more, part))
        moved = loss / eta * v + both / velocity * noise + rest * z
        return moved, (1 - a) * v + velocity * noise


class SymmetricEnsemble(AnnealedEnsemble):
    """The annealed ensemble with a symmetric scheme."""

    scheme: type[Symmetric] = Symmetric

    def make_kernel(self, target: Any) -> AnnealedSGHMC:
        return self.scheme(target, **self._kernel)


class ExactFrictionEnsemble(SymmetricEnsemble):
    """The annealed ensemble with `ExactFriction`."""

    scheme = ExactFriction


class CyclicalEnsemble(AnnealedEnsemble):
    """The annealed ensemble with cycles of steps, of whose ends it chooses states."""

    cycles, step = 10, 5e-3

    def begin_chain(self, model: keras.Model) -> None:
        super().begin_chain(model)
        assert self.num_steps is not None  # settled
        cycles = min(self.cycles, self.num_steps)
        self._kernel["step_size"] = sgmcmc.schedules.Cyclical(self.step, self.num_steps, cycles)

    def members(self, every: Any, steps: np.ndarray) -> Any:
        steps = np.asarray(steps[:])
        is_end = np.asarray(self._kernel["step_size"].is_sampling(steps))
        ends = np.flatnonzero(is_end | (steps == steps[-1]))
        states = every.with_samples([np.asarray(x[:])[ends] for x in every.samples])
        return super().members(states, steps[ends])
