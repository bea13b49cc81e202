"""Annealed stochastic gradient Hamiltonian Monte Carlo, whose step follows the gradient noise."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import xla
from tfp_sgmcmc.internal.checks import number, positive
from tfp_sgmcmc.internal.nest import (
    MANY_PARTS,
    Packing,
    State,
    map_parts,
    num_entries,
    number_as_dtype,
    sum_events,
)
from tfp_sgmcmc.kernels.base import StepSize, StochasticGradientKernel, value_at
from tfp_sgmcmc.kernels.momentum import scaled

_PACKED = {"small": 2**16, "fewest": MANY_PARTS}  # small parts of a state, which move as one
_MOST_NOISE = 4.0  # larger squared gradients than this many running means are clipped


class AnnealedSGHMCResults(NamedTuple):
    """Results of a step of `AnnealedSGHMC`: the fields of all kernels and four more.

    Attributes:
      momentum: the velocity v, in the structure of the state. Of eight or more parts with at most
        65,536 entries each, it is a list: other parts first, then these as one `[chains..., d]`.
      kinetic_temperature: the mean of N m v^2 / l over the coordinates, `[chains...]`. It is near T
        where the noise of the gradient is small.
      squared_gradient: S, the running mean of Q, `[chains...]`; 0 before the first step.
      squares: u, the running means of squared gradients, as `momentum`; `()` if masses are
        constant.
    """

    target_log_prob: tf.Tensor
    gradient_norm: tf.Tensor
    step_size: tf.Tensor
    temperature: tf.Tensor
    step: tf.Tensor
    target_state: Any
    momentum: State
    kinetic_temperature: tf.Tensor
    squared_gradient: tf.Tensor
    squares: Any


class AnnealedSGHMC(StochasticGradientKernel):
    r"""Underdamped dynamics whose prior relaxes while it cools, for ensembles that predict.

    With the gradient g of the mean loss over a batch, minus the target's gradient divided by N,

    \[
    \begin{aligned}
    Q &= \sum_j g_j^2 / m_j, \qquad S \leftarrow S + \beta\, (\min(Q, 4 S) - S) \\
    \ell &= \min(\ell_{\max}(t),\ r / S) \\
    v &\leftarrow (1 - a)\, v
      - \ell\, m^{-1} \Bigl( g + \frac{\theta}{N\, s\, w(t)} \Bigr)
      + \sqrt{\frac{2 a\, \ell\, T(t)}{N m}}\, z \\
    \theta &\leftarrow \theta + v,
    \end{aligned}
    \]

    where z is standard normal and t the step. Where Q is above 4 S, g is scaled down so that Q =
    4 S. S begins with the Q of the first step that is above 0. This is SGHMC with the step
    \( h = \sqrt{\ell / N} \), the friction a / h and the momentum \( p = m v / h \), for a
    posterior with the prior N(0, s w(t)) at the temperature T(t). It takes nothing off for the
    noise of g, but makes the step small where that noise is large.

    With a `mass_averaging` \( \gamma \), each mass follows the coordinate's gradients, as in Adam:

    \[
    u_j \leftarrow u_j + \gamma\, (g_j^2 - u_j), \qquad
    m_j = \sqrt{u_j\, m^0_j} + \frac{\ell_{\max}(t)}{a\, N\, s_j\, w(t)},
    \]

    where \( m^0 \) is the argument `mass`, and u begins with \( m^0 \) times the mean of \( g^2 /
    m^0 \) over the coordinates of a part. With the second term, the prior pulls a coordinate
    without gradient back by a share a of its value in each step. Rows of an embedding whose words
    are rare, and the weights of attention, move far too slowly with constant masses. Here \(
    \ell_{\max} \) is the step of a coordinate in units of \( 1 / \sqrt{m^0_j} \).

    Parts may be the weights W and biases b of a layer whose inputs have the mean c. Then it is the
    outputs at the mean input, \( a = b + \sum_i c_i W_i \), that take the place of b in all of
    this, also in the prior. Otherwise the mean of inputs such as zeros and ones, which all weights
    share, is a direction in which only small steps are stable.

    If prior and temperature change along the run, the states follow no stationary law: they are
    members of an ensemble and not draws from a posterior. With constant ones, S settles, and the
    states are draws as far as the noise of g allows, if there are many coordinates: with few, Q
    exceeds 4 S by chance, and the states of one coordinate are 3 % too wide without any noise.

    Examples:
      The mean of 1,000 numbers at T = 0.1, with a flat prior in the target:

      >>> import numpy as np, tensorflow as tf, tensorflow_probability as tfp
      >>> import tfp_sgmcmc as sgmcmc
      >>> from tfp_sgmcmc.kernels.annealed_sghmc import AnnealedSGHMC
      >>> x = np.random.default_rng(0).normal(2., 1., size=[1000]).astype(np.float32)
      >>> target = sgmcmc.MinibatchLogProb(
      ...     log_prior_fn=lambda theta: tf.zeros_like(theta),
      ...     log_likelihood_fn=lambda theta, batch:
      ...         tfp.distributions.Normal(theta[..., None], 1.).log_prob(batch),
      ...     data=x, batch_size=500)
      >>> kernel = AnnealedSGHMC(target, step_size=0.1, prior_variance=100., temperature=0.1)
      >>> result = sgmcmc.sample_chain(
      ...     kernel, tf.zeros([]), num_results=500, num_burnin_steps=100, seed=0,
      ...     progress_bar=False)
      >>> bool(abs(result.states.mean() - x.mean()) < 0.02)
      True

    Args:
      target_log_prob_fn: a target with N examples, its `num_examples`, or N for each chain as its
        `examples_of_chains`. Its log prior counts as a part of the loss. A callable has N = 1.
      step_size: \( \ell_{\max} \), the largest learning rate of the mean loss: a positive number,
        `[chains...]` tensor or schedule.
      mass: m: a positive number, or arrays that broadcast with the state parts.
      prior_variance: s: in the same form.
      prior_scale: w, a factor of all prior variances: a number, or a schedule.
      temperature: T, positive: a number, `[chains...]` tensor or schedule.
      centers: triples `(i, j, c)`: the flattened state has weights in part i and the biases of the
        same outputs in part j, and c, the mean input, broadcasts with the weights. The last axis of
        both parts is that of outputs. No part may be in two triples.
      momentum_loss: a, the share of the velocity that a step takes away, in (0, 1].
      noise_limit: r. Infinity leaves the step as it is.
      averaging: \( \beta \), the weight of a step's Q in the running mean, in (0, 1].
      mass_averaging: \( \gamma \), in (0, 1]; None keeps the masses constant.

    Raises:
      ValueError: an argument is out of range.
      TypeError: the target is not callable. At bootstrap: the state is not floating.

    References:
      T. Chen, E. B. Fox and C. Guestrin. Stochastic gradient Hamiltonian Monte Carlo. ICML, 2014.
      Equation 15: the update by learning rate and momentum, with \( \hat\beta = 0 \).

      D. P. Kingma and J. Ba. Adam: a method for stochastic optimization. ICLR, 2015. Algorithm 1:
      steps by the root of the mean squared gradient.
    """

    _number_names = "step_size", "prior_scale", "temperature"

    def __init__(
        self,
        target_log_prob_fn: Any,
        step_size: StepSize,
        mass: Any = 1.0,
        prior_variance: Any = 1.0,
        prior_scale: StepSize = 1.0,
        temperature: StepSize = 1.0,
        centers: Sequence[tuple[int, int, Any]] = (),
        momentum_loss: float = 0.1,
        noise_limit: float = 0.2,
        averaging: float = 0.05,
        mass_averaging: float | None = None,
    ):
        super().__init__(
            locals(), ("step_size", "mass", "prior_variance", "prior_scale", "temperature")
        )
        optional = ("mass_averaging",) if self._adapts_mass else ()
        for name in ("momentum_loss", "averaging", *optional):
            number(name, self._parameters[name], "in (0, 1]", lambda x: 0 < x <= 1)
        if noise_limit != np.inf:
            positive("noise_limit", noise_limit)

    def _init_results(self, state: State) -> AnnealedSGHMCResults:
        step, zeros = tf.zeros([], tf.int64), self._zeros(state)
        packing = _packing(state, zeros.shape.rank)
        still = map_parts(tf.zeros_like, _packed(packing.pack, state))
        cap, _, temperature = self._numbers(step, state, zeros.shape.rank)
        for name in ("mass", "prior_variance"):  # one of a wrong shape raises here
            value_at(self._parameters[name], step, state, name)
        return AnnealedSGHMCResults(
            **self._first_figures(state, zeros, cap + zeros, temperature),
            momentum=still,
            kinetic_temperature=zeros,
            squared_gradient=zeros,
            squares=still if self._adapts_mass else (),
        )

    def _update(
        self, state: State, results: AnnealedSGHMCResults, seed: tf.Tensor
    ) -> tuple[State, AnnealedSGHMCResults]:
        batch_seed, noise_seed = random.split(seed, 2)
        chain_ndims = results.target_log_prob.shape.rank
        packing = _packing(state, chain_ndims)
        estimate = self._target.estimate(state, batch_seed, results.target_state, with_scores=False)
        given = getattr(self._target, "examples_of_chains", self._target.num_examples)
        n = number_as_dtype("num_examples", given, estimate.log_prob.dtype)
        x = _packed(packing.pack, self._centered(state, chain_ndims))
        g = _packed(packing.pack, self._gradient_of_centered(estimate.gradient))
        estimate = estimate._replace(gradient=_packed(packing.pack, estimate.gradient))
        z = random.normal_like(x, noise_seed)
        move = functools.partial(self._move, state, x, g, z, n, results, packing)
        moved, rate, temperature, changed = xla.fused(move, num_entries(x, chain_ndims))()
        if packing.joins:
            # Not materialized, the step would be computed again for each part.
            moved = packing.unpack(tf.nest.map_structure(xla.materialized, moved))
            moved = tf.nest.pack_sequence_as(state, moved)
        return self._centered(moved, chain_ndims, sign=-1), AnnealedSGHMCResults(
            **self._figures(estimate, rate, temperature, results), **changed
        )

    def _move(
        self,
        state: State,
        x: State,
        gradient: State,
        z: State,
        n: tf.Tensor,
        results: AnnealedSGHMCResults,
        packing: Packing,
    ) -> tuple[State, tf.Tensor, tf.Tensor, dict[str, Any]]:
        """Returns the packed state `x` after a step, the step size, T, and the changed results."""
        step, chain_ndims = results.step, results.target_log_prob.shape.rank
        cap, w, temperature = self._numbers(step, state, chain_ndims)
        m, s = (
            _packed(packing.pack_settings, value_at(self._parameters[name], step, state, name))
            for name in ("mass", "prior_variance")
        )
        a = self._parameters["momentum_loss"]
        g = map_parts(lambda g: scaled(-1 / n, g), gradient)
        squares = results.squares
        if self._adapts_mass:
            squares = self._mean_squares(squares, g, m, step, packing)
            of_prior = cap / (a * n * w)
            m = map_parts(
                lambda u, m, s: tf.sqrt(u * m) + scaled(of_prior, tf.ones_like(u)) / s,
                squares, m, s,
            )  # fmt: skip
        q = sum_events(map_parts(lambda g, m: g**2 / m, g, m), chain_ndims)
        before = results.squared_gradient
        mean = tf.where((step == 0) | (before == 0), q, before)  # 0 would stay for ever
        most = _MOST_NOISE * mean
        shrink = tf.sqrt(tf.where(q > most, tf.math.divide_no_nan(most, q), tf.ones_like(q)))
        mean += self._parameters["averaging"] * (tf.minimum(q, most) - mean)
        rate = tf.minimum(cap, self._parameters["noise_limit"] / mean)  # infinite without noise

        spread = tf.sqrt(2 * a * rate * temperature / n)
        v = map_parts(
            lambda x, v, g, m, s, z: (1 - a) * v
            - scaled(rate, scaled(shrink, g) + scaled(1 / (n * w), x / s)) / m
            + scaled(spread, z) / tf.sqrt(m),
            x, results.momentum, g, m, s, z,
        )  # fmt: skip
        energy = sum_events(map_parts(lambda v, m: m * v**2, v, m), chain_ndims)
        return (
            map_parts(tf.add, x, v),
            rate,
            temperature,
            dict(
                momentum=v,
                kinetic_temperature=n * energy / rate / num_entries(v, chain_ndims),
                squared_gradient=mean,
                squares=squares,
            ),
        )

    @property
    def _adapts_mass(self) -> bool:
        return self._parameters["mass_averaging"] is not None

    def _mean_squares(
        self, means: State, g: State, m: State, step: tf.Tensor, packing: Packing
    ) -> State:
        """Returns the running means of squared gradients after a step."""
        squares = map_parts(tf.square, g)

        def first() -> list[tf.Tensor]:
            means = packing.means(tf.nest.flatten(map_parts(tf.divide, squares, m)))
            return [u * m for u, m in zip(means, tf.nest.flatten(m), strict=True)]

        # A branch, because the means over parts of a packed tensor take time.
        means = tf.cond(step == 0, first, lambda: tf.nest.flatten(means))
        weight = self._parameters["mass_averaging"]
        return map_parts(lambda square, u: u + weight * (square - u), squares, means)

    def _centered(self, state: State, chain_ndims: int, sign: float = 1) -> State:
        """Returns the state with outputs at the mean inputs for biases; -1 goes the way back."""
        parts = tf.nest.flatten(state)
        for i, j, c in self._parameters["centers"]:
            axes = [*range(chain_ndims, parts[i].shape.rank - 1)]
            parts[j] += sign * tf.reduce_sum(tf.cast(c, parts[i].dtype) * parts[i], axes)
        return tf.nest.pack_sequence_as(state, parts)

    def _gradient_of_centered(self, gradient: State) -> State:
        """Returns the gradient by weights and outputs at the mean inputs."""
        parts = tf.nest.flatten(gradient)
        for i, j, c in self._parameters["centers"]:
            weights, biases = parts[i], parts[j]
            shape = tf.shape(biases)
            ones = tf.ones([weights.shape.rank - biases.shape.rank], tf.int32)
            shape = tf.concat([shape[:-1], ones, shape[-1:]], 0)
            parts[i] -= tf.cast(c, weights.dtype) * tf.reshape(biases, shape)
        return tf.nest.pack_sequence_as(gradient, parts)


def _packing(state: State, chain_ndims: int) -> Packing:
    return Packing(tf.nest.flatten(state), chain_ndims, **_PACKED)


def _packed(pack: Callable[[list[tf.Tensor]], list[tf.Tensor]], state: State) -> State:
    """Returns the parts as `pack` lays them out, in the structure of the state if that is kept."""
    parts = tf.nest.flatten(state)
    packed = pack(parts)
    return packed if len(packed) < len(parts) else tf.nest.pack_sequence_as(state, packed)
