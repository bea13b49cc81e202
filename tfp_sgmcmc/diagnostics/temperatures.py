"""The temperature of a chain, from its momenta and from its states."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.diagnostics.arrays import floating_parts, real_array
from tfp_sgmcmc.diagnostics.periodic import PeriodicReducer
from tfp_sgmcmc.diagnostics.stein import gradient_at
from tfp_sgmcmc.internal.checks import integer
from tfp_sgmcmc.internal.nest import State, map_parts, sum_events
from tfp_sgmcmc.kernels import momentum as momentum_kernels
from tfp_sgmcmc.kernels.base import check_positive, value_at
from tfp_sgmcmc.targets.base import as_target


def kinetic_temperature(momentum: State, mass: Any = 1.0, *, chain_ndims: int = 0) -> tf.Tensor:
    r"""Returns the kinetic temperature of momenta, \( p^T m^{-1} p / d \).

    In equilibrium its mean is T and its variance 2 T^2 / d. The results of samplers with momenta
    hold it at each step, as `kinetic_temperature`. The mean over a chain that is not kept is
    `tfp.experimental.mcmc.ExpectationsReducer(lambda _, r: r.kinetic_temperature)`.

    Examples:
      >>> import tensorflow as tf, tfp_sgmcmc as sgmcmc
      >>> p = tf.constant([[1., 2.], [3., 1.]])  # two chains, d = 2
      >>> sgmcmc.diagnostics.kinetic_temperature(p, mass=2., chain_ndims=1).numpy()
      array([1.25, 2.5 ], dtype=float32)

    Args:
      momentum: p, a nest of parts `[chains..., event...]`.
      mass: m, a positive number, or a nest of them in the structure of the momenta.
      chain_ndims: number of leading dimensions that count chains (or steps).

    Returns:
      Temperatures, `[chains...]`.

    Raises:
      ValueError: a mass is not positive and finite.

    References:
      B. Leimkuhler and C. Matthews. Molecular Dynamics. Springer, 2015.
    """
    momentum = floating_parts("momentum", momentum)
    integer("chain_ndims", chain_ndims, 0)
    shapes = [tuple(x.shape) for x in tf.nest.flatten(momentum)]
    if any(len(shape) < chain_ndims for shape in shapes):
        raise ValueError(
            "chain_ndims must be at most the number of dimensions of momentum. Received: "
            f"{chain_ndims}, with shapes {shapes}."
        )
    check_positive("mass", mass)
    mass = value_at(mass, tf.zeros([], tf.int64), momentum, "mass")
    return momentum_kernels.kinetic_temperature(momentum, mass, chain_ndims)


def configurational_temperature(samples: State, gradients: State, *, chain_ndims: int = 0) -> Any:
    r"""Returns the temperature of states, from the gradients of the log posterior there.

    \[
    T_c = - \frac1d \sum_{i=1}^d \widehat{\operatorname{cov}}\left( \theta_i, g_i \right), \qquad
    - E\left[ (\theta - a)^T \nabla \log p(\theta) \right] = d\, T
    \text{ under } p(\theta)^{1/T}, \text{ for every } a
    \]

    The sample covariances are taken over the chain. g may be an unbiased estimate of the gradient
    at the state, such as that of a minibatch that had no part in the step to the state. Gradient
    noise and large steps heat the chain, so that T_c is above the temperature asked for.

    Examples:
      >>> import numpy as np, tfp_sgmcmc as sgmcmc
      >>> theta = 2 * np.random.default_rng(0).standard_normal([10000, 3])  # of N(0, 1), T = 4
      >>> sgmcmc.diagnostics.configurational_temperature(theta, gradients=-theta).round(1)
      np.float64(4.0)

    Args:
      samples: a nest of parts `[results, chains..., event...]`.
      gradients: gradients of the log posterior at the samples, or estimates, in the same shapes.
      chain_ndims: number of dimensions behind the first that count chains.

    Returns:
      A number, or `[chains...]`.

    Raises:
      ValueError: shapes differ, or there are fewer than two samples.

    References:
      O. G. Jepps, G. Ayton and D. J. Evans. Microscopic expressions for the thermodynamic
      temperature. Physical Review E, 2000. With the vector field theta - a.
    """
    total, size = 0.0, 0
    integer("chain_ndims", chain_ndims, 0)
    parts, slopes = tf.nest.flatten(samples), tf.nest.flatten(gradients)
    if not parts or len(parts) != len(slopes):
        raise ValueError(
            "samples and gradients must have the same parts. Received: "
            f"{len(parts)} and {len(slopes)} parts."
        )
    for x, g in zip(parts, slopes, strict=True):
        x, g = real_array("samples", x), real_array("gradients", g)
        if x.shape != g.shape or x.ndim < 1 + chain_ndims or len(x) < 2:
            raise ValueError(
                "samples and gradients must have equal shapes [results, chains..., event...] with "
                f"{chain_ndims} dimensions of chains and at least 2 results. Received: shapes "
                f"{x.shape} and {g.shape}."
            )
        covariance = np.sum((x - x.mean(axis=0)) * (g - g.mean(axis=0)), axis=0) / (len(x) - 1)
        total = total + np.sum(covariance, axis=tuple(range(chain_ndims, covariance.ndim)))
        size += int(np.prod(x.shape[1 + chain_ndims :]))
    return -total / size


class TemperatureState(NamedTuple):
    """The state of `ConfigurationalTemperatureReducer`.

    Attributes:
      mean_state: mean of the states used.
      mean_gradient: mean of the gradients there.
      product: sum of the products of their deviations, `[chains...]`.
      count: number of states used.
      num_steps: number of steps.
    """

    mean_state: State
    mean_gradient: State
    product: tf.Tensor
    count: tf.Tensor
    num_steps: tf.Tensor


class ConfigurationalTemperatureReducer(PeriodicReducer):
    """Computes the `configurational_temperature` of a chain that is not kept.

    At every `every`-th state it draws another minibatch for the gradient. It finalises to the
    temperature, `[chains...]`, which is NaN if fewer than two states were used.

    Examples:
      >>> import tensorflow as tf, tensorflow_probability as tfp, tfp_sgmcmc as sgmcmc
      >>> target = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1))
      >>> temperature, _, _ = tfp.experimental.mcmc.sample_fold(
      ...     20, tf.zeros([3, 10]), kernel=sgmcmc.SGLD(target, 0.1),
      ...     reducer=sgmcmc.diagnostics.ConfigurationalTemperatureReducer(target, seed=1),
      ...     seed=[0, 1])
      >>> temperature.shape
      TensorShape([3])

    Args:
      target_log_prob_fn: the kernel's target, or a plain callable.
      seed: an integer or two, which names the minibatches.
      every: number of steps between the states that it uses.

    Raises:
      ValueError: `every` is below 1.
    """

    def __init__(self, target_log_prob_fn: Any, *, seed: Any, every: int = 1):
        super().__init__(as_target(target_log_prob_fn, full_data_expected=True), every)
        self._seed = random.as_seed(seed)

    def _start(self, state: State, zeros: tf.Tensor) -> TemperatureState:
        mean, zero = tf.nest.map_structure(tf.zeros_like, state), tf.zeros([], tf.int64)
        return TemperatureState(mean, mean, zeros, zero, zero)

    def _update(self, own: TemperatureState, state: State, results: Any) -> TemperatureState:
        """Updates means and product by Welford's recursion."""
        gradient = gradient_at(self._target, state, self._seed, own.num_steps, results)
        count = own.count + 1

        def moved(mean: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
            return mean + (x - mean) / tf.cast(count, x.dtype)

        mean_state = map_parts(moved, own.mean_state, state)
        mean_gradient = map_parts(moved, own.mean_gradient, gradient)
        product = map_parts(
            lambda x, m, g, n: (x - m) * (g - n), state, own.mean_state, gradient, mean_gradient
        )
        product = own.product + sum_events(product, own.product.shape.rank)
        return TemperatureState(mean_state, mean_gradient, product, count, own.num_steps)

    def finalize(self, final_reducer_state: TemperatureState) -> tf.Tensor:
        """Returns the temperature, `[chains...]`."""
        own = final_reducer_state
        chain_ndims = own.product.shape.rank
        size = momentum_kernels.degrees_of_freedom(own.mean_state, chain_ndims)
        freedom = tf.cast(own.count - 1, own.product.dtype)
        return tf.where(freedom > 0, -own.product / (freedom * size), float("nan"))
