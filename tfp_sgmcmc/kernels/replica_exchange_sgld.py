"""Replica exchange SGLD: chains at several temperatures that exchange their states."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal.checks import integer, number, require
from tfp_sgmcmc.internal.nest import State, append_dims, map_parts, number_as_dtype
from tfp_sgmcmc.kernels.base import StepSize, StochasticGradientKernel, setting_at
from tfp_sgmcmc.kernels.linear_theory import overdamped_limit
from tfp_sgmcmc.kernels.sgld import SGLD, SGLDResults
from tfp_sgmcmc.targets.anchored import comparable_target, log_prob_differences
from tfp_sgmcmc.targets.sharded import refuse_shards


class ReplicaExchangeSGLDResults(NamedTuple):
    """Results of a step of `ReplicaExchangeSGLD` with R replicas.

    Replica 1 is the state itself. The fields of `SGLDResults` have a leading dimension of R, and
    `temperatures` replaces `temperature`. Fields about neighbours (r, r+1) keep the values of the
    last step in which swaps were proposed, except where stated otherwise.

    Attributes:
      target_log_prob: the minibatch estimates at the states that the step left, before a swap,
        `[R, chains...]`.
      step_size: the epsilons that the step used, `[R]`.
      preconditioner_state: what the preconditioner carries. Swaps leave it with its temperature.
      hot_states: states of replicas 2 .. R after the step, parts `[R - 1, chains..., event...]`.
      temperatures: T_1 .. T_R, `[R]`.
      is_swap_proposed: whether this step proposed to swap neighbours, `[R - 1]`.
      is_swap_accepted: whether this step swapped them, `[R - 1, chains...]`.
      log_swap_ratio: log S, the noisy and corrected log acceptance ratio, `[R - 1, chains...]`, of
        all neighbours, even if their swap was not proposed.
      log_swap_variance: the estimated variance of its noise, `[R - 1, chains...]`.
      num_swaps_proposed: number of swaps proposed so far, `[R - 1]`.
      num_swaps_accepted: number of swaps made so far, `[R - 1, chains...]`.
    """

    target_log_prob: tf.Tensor
    gradient_norm: tf.Tensor
    step_size: tf.Tensor
    step: tf.Tensor
    target_state: Any
    preconditioner_state: Any
    hot_states: State
    temperatures: tf.Tensor
    is_swap_proposed: tf.Tensor
    is_swap_accepted: tf.Tensor
    log_swap_ratio: tf.Tensor
    log_swap_variance: tf.Tensor
    num_swaps_proposed: tf.Tensor
    num_swaps_accepted: tf.Tensor


class ReplicaExchangeSGLD(StochasticGradientKernel):
    r"""SGLD at temperatures \( T_1 < \dots < T_R \), whose neighbours exchange their states.

    Every step moves each replica by `SGLD` at its temperature,

    \[
    \theta_r \leftarrow \theta_r + \frac{\epsilon_r}{2} g(\theta_r) + \sqrt{\epsilon_r T_r}\, z_r .
    \]

    Every `swap_every`-th step then proposes to swap neighbours: alternately the pairs (1, 2),
    (3, 4), ... and (2, 3), (4, 5), ... A pair of a chain is swapped with probability min(1, S),

    \[
    \log S = \delta D - \frac{\delta^2 \sigma^2}{2 F}, \qquad
    \delta = \frac{1}{T_r} - \frac{1}{T_{r+1}},
    \]

    where D estimates \( \log p(\theta_{r+1} \mid x) - \log p(\theta_r \mid x) \) with variance
    \( \sigma^2 \). Hot replicas cross between modes. Replica 1, the state of the chain, samples
    \( p(\theta \mid x)^{1 / T_1} \). As in `tfp.mcmc.ReplicaExchangeMC`, all replicas start at the
    initial state, and the results keep the hot ones.

    With F = 1 and Gaussian noise of known variance, swaps are exact for any noise (Ceperley and
    Dewing): S has no bias, and min(1, S) is in detailed balance with the replicas' law. Noise only
    costs acceptances. Where D = 0, a share 2 Phi(-s/2) of the swaps is made, s = delta sigma.
    F > 1 accepts more swaps, with a bias. An infinite F turns the correction off.

    Both states are compared on one minibatch, which is drawn for the swap alone. D therefore lacks
    the noise of the gradients and the noise that the two states share. Its variance sigma^2 is
    estimated from the same n examples. (The paper uses energies from two minibatches, with
    sigma^2 = sigma_1^2 + sigma_2^2.) Three biases remain, from SGLD, from noise that is not
    Gaussian, and from the estimated sigma^2, a factor of about exp(s^4 / (4 n)) in S. Keep
    `log_swap_variance`, the estimated s^2, below about 4, where a third of the swaps at D = 0 is
    made. In a nearly Gaussian posterior of d parameters sigma^2 is about 2 d T (N - n) / n, so
    smaller minibatches need closer temperatures.

    Examples:
      theta and -theta explain these data equally well:

      >>> data = np.random.default_rng(0).normal(1., 1., size=[100]).astype(np.float32)
      >>> two_modes = sgmcmc.MinibatchLogProb(
      ...     log_prior_fn=tfd.Normal(0., 1.).log_prob,
      ...     log_likelihood_fn=lambda theta, batch:
      ...         tfd.Normal(theta[..., None] ** 2, 1.).log_prob(batch),
      ...     data=data, batch_size=20)
      >>> kernel = sgmcmc.ReplicaExchangeSGLD(
      ...     two_modes, step_size=1e-3, temperatures=[1., 4., 16.])
      >>> @tf.function(jit_compile=True)
      ... def sample_modes():
      ...     return tfp.mcmc.sample_chain(
      ...         20_000, tf.ones([]), kernel=kernel, trace_fn=None, seed=[0, 1])
      >>> 0.3 < float(tf.reduce_mean(tf.cast(sample_modes() > 0., tf.float32))) < 0.7
      True

    Args:
      target_log_prob_fn: a `MinibatchLogProb`, a target that wraps one, or a callable (exact).
        It is called with states that have the replicas as an additional first dimension.
      step_size: epsilon: a positive number or a schedule, for all replicas or, with shape `[R]`,
        for each. The temperature multiplies only the noise. A step that is stable for the cold
        replica is therefore stable for the hot ones, unless they find a steeper log posterior.
      temperatures: T, at least two positive increasing numbers. The first is the temperature of the
        samples, 1 for the posterior.
      swap_every: number of steps from one proposal of swaps to the next.
      correction_factor: F, at least 1.
      preconditioner: M of `SGLD`, for all replicas.

    Raises:
      ValueError: there are fewer than two temperatures, or they are not positive, finite and
        increasing; the step size is not positive and finite, or not one or R numbers; `swap_every`
        or F is below 1; one minibatch cannot compare values of the target. At bootstrap: the state
        is not finite.
      TypeError: the target is not callable; `swap_every` is not an integer. At bootstrap: the
        state is not floating.

    References:
      W. Deng, Q. Feng, L. Gao, F. Liang and G. Lin. Non-convex learning via replica exchange
      stochastic gradient MCMC. ICML, 2020. Algorithm 1.

      D. M. Ceperley and M. Dewing. The penalty method for random walks with uncertain energies.
      Journal of Chemical Physics 110, 1999.
    """

    def __init__(
        self,
        target_log_prob_fn: Any,
        step_size: StepSize,
        temperatures: Sequence[float],
        swap_every: int = 1,
        correction_factor: float = 1.0,
        preconditioner: Any = None,
    ):
        super().__init__(locals())
        self._temperatures = _checked_temperatures(temperatures)
        self._step_sizes(tf.zeros([], tf.int64), tf.float32)
        if integer("swap_every", swap_every, least=1) > 1:  # no communication in a branch
            refuse_shards("swap_every > 1", self._target, replicas_alone=True)
        if not (isinstance(correction_factor, float) and correction_factor == np.inf):
            expected = "at least 1, the full correction"
            number("correction_factor", correction_factor, expected, lambda x: x >= 1)
        self._compared = comparable_target(self._target)

    def largest_stable_step(
        self, largest_curvature: Any, step: int = 0, results: Any = None
    ) -> float | np.ndarray:
        r"""Returns \( 4 / \lambda \), for every replica: temperatures multiply only the noise."""
        del step, results
        return overdamped_limit(largest_curvature)

    def metric_product(self, vector: State, state: State, results: Any) -> State:
        """Returns M v with the preconditioner M of replica 1."""
        states = _of_all_replicas(state, results)
        vectors = map_parts(lambda v, x: tf.broadcast_to(v, tf.shape(x)), vector, states)
        sgld = SGLD(self._target, 1.0, preconditioner=self._parameters["preconditioner"])
        product = sgld.metric_product(vectors, states, _of_sgld(results))
        return tf.nest.map_structure(lambda x: x[0], product)

    def _init_results(self, state: State) -> ReplicaExchangeSGLDResults:
        num_hot = len(self._temperatures) - 1
        states = tf.nest.map_structure(lambda x: tf.stack([x] * (num_hot + 1)), state)
        sgld, step_sizes = self._sgld(states, tf.zeros([], tf.int64))
        inner = sgld._init_results(states)
        ratio = tf.zeros_like(inner.target_log_prob[1:])
        return ReplicaExchangeSGLDResults(
            **_shared(inner, step_sizes),
            hot_states=tf.nest.map_structure(lambda x: x[1:], states),
            temperatures=tf.constant(self._temperatures, ratio.dtype),
            is_swap_proposed=tf.zeros([num_hot], tf.bool),
            is_swap_accepted=tf.zeros_like(ratio, tf.bool),
            log_swap_ratio=ratio,
            log_swap_variance=ratio,
            num_swaps_proposed=tf.zeros([num_hot], tf.int64),
            num_swaps_accepted=tf.zeros_like(ratio, tf.int64),
        )

    def _update(
        self, state: State, results: ReplicaExchangeSGLDResults, seed: tf.Tensor
    ) -> tuple[State, ReplicaExchangeSGLDResults]:
        move_seed, swap_seed = random.split(seed, 2)
        states = _of_all_replicas(state, results)
        sgld, step_sizes = self._sgld(states, results.step)
        states, inner = sgld._update(states, _of_sgld(results), move_seed)

        every = self._parameters["swap_every"]
        is_due = inner.step % every == 0
        odd = (inner.step // every - 1) % 2 if len(self._temperatures) > 2 else 0
        pairs = tf.range(len(self._temperatures) - 1, dtype=tf.int64)
        proposed = is_due & (pairs % 2 == odd)
        last = results.log_swap_ratio, results.log_swap_variance
        swap = functools.partial(self._swap, states, proposed, swap_seed)
        keep = (states, tf.zeros_like(results.is_swap_accepted), *last)
        found = swap() if every == 1 else tf.cond(is_due, swap, lambda: keep)
        states, accepted, ratio, variance = found
        return tf.nest.map_structure(lambda x: x[0], states), ReplicaExchangeSGLDResults(
            **_shared(inner, step_sizes),
            hot_states=tf.nest.map_structure(lambda x: x[1:], states),
            temperatures=results.temperatures,
            is_swap_proposed=proposed,
            is_swap_accepted=accepted,
            log_swap_ratio=ratio,
            log_swap_variance=variance,
            num_swaps_proposed=results.num_swaps_proposed + tf.cast(proposed, tf.int64),
            num_swaps_accepted=results.num_swaps_accepted + tf.cast(accepted, tf.int64),
        )

    def _swap(
        self, states: State, proposed: tf.Tensor, seed: tf.Tensor
    ) -> tuple[State, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the states after the swaps, whether pairs were swapped, log S, its variance."""
        batch_seed, uniform_seed = random.split(seed, 2)
        difference, variance = log_prob_differences(self._compared, states, batch_seed)
        inverse = tf.constant(1 / self._temperatures, difference.dtype)
        delta = append_dims(inverse[:-1] - inverse[1:], difference)
        variance = delta**2 * variance
        ratio = delta * difference - variance / (2 * self._parameters["correction_factor"])
        # Half the square of two normals' norm is exponential: minus the log of a uniform number.
        pair = random.normal(tf.concat([[2], tf.shape(ratio)], axis=0), ratio.dtype, uniform_seed)
        accepted = -tf.reduce_sum(pair**2, axis=0) / 2 < ratio  # and False where ratio is NaN
        accepted = accepted & append_dims(proposed, ratio)
        return exchange(states, accepted), accepted, ratio, variance

    def _sgld(self, states: State, step: tf.Tensor) -> tuple[SGLD, tf.Tensor]:
        """Returns the kernel that moves all replicas, and their step sizes, `[R]`."""
        dtype = tf.nest.flatten(states)[0].dtype
        step_sizes = self._step_sizes(step, dtype)
        temperatures = tf.constant(self._temperatures, dtype)

        def along_replicas(values: tf.Tensor) -> State:
            return tf.nest.map_structure(lambda x: append_dims(values, x), states)

        sgld = SGLD(
            self._target,
            along_replicas(step_sizes),
            along_replicas(temperatures),
            self._parameters["preconditioner"],
        )
        return sgld, step_sizes

    def _step_sizes(self, step: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        value = number_as_dtype("step_size", setting_at(self.step_size, step), dtype)
        num_replicas = len(self._temperatures)
        if value.shape.rank == 0:
            return tf.fill([num_replicas], value)
        fits = value.shape.is_compatible_with([num_replicas])
        expected = f"one number, or one for each of the {num_replicas} temperatures"
        require("step_size", f"shape {value.shape}", fits, expected)
        return value


def _of_all_replicas(state: State, results: ReplicaExchangeSGLDResults) -> State:
    """Returns the states of all replicas, along the first axis of every part."""
    return map_parts(
        lambda x, hot: tf.concat([x[tf.newaxis], hot], axis=0), state, results.hot_states
    )


def _shared(inner: SGLDResults, step_sizes: tf.Tensor) -> dict[str, Any]:
    """Returns the fields that `SGLDResults` has too, with a step size for each replica."""
    fields = inner._replace(step_size=step_sizes)._asdict()
    del fields["temperature"]  # `temperatures` holds those of the replicas
    return fields


def _of_sgld(results: ReplicaExchangeSGLDResults) -> SGLDResults:
    """Returns the fields of all replicas as results of `SGLD`."""
    return SGLDResults(*(getattr(results, name, ()) for name in SGLDResults._fields))


def exchange(states: State, swapped: tf.Tensor) -> State:
    """Swaps the states of neighbours r and r + 1, along the first axis, where `swapped[r]`."""
    never = tf.zeros_like(swapped[:1])
    from_above = tf.concat([swapped, never], axis=0)
    from_below = tf.concat([never, swapped], axis=0)

    def one(x: tf.Tensor) -> tf.Tensor:
        kept_or_below = tf.where(append_dims(from_below, x), tf.roll(x, 1, axis=0), x)
        return tf.where(append_dims(from_above, x), tf.roll(x, -1, axis=0), kept_or_below)

    return tf.nest.map_structure(one, states)


def _checked_temperatures(temperatures: Any) -> np.ndarray:
    try:
        values = np.asarray(temperatures, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"temperatures must be numbers. Received: {temperatures!r}.") from error
    if values.ndim != 1 or len(values) < 2:
        raise ValueError(
            f"temperatures must be at least two numbers. Received: shape {values.shape}. Use SGLD "
            "to sample at one temperature."
        )
    holds = np.all(np.isfinite(values)) and np.all(values > 0) and np.all(np.diff(values) > 0)
    require("temperatures", values, holds, "positive finite numbers that increase")
    return values
