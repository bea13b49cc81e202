"""The base of samplers with momenta, and the pieces of their steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal.checks import integer, numbers
from tfp_sgmcmc.internal.nest import State, append_dims, map_parts, num_entries, sum_events
from tfp_sgmcmc.kernels.base import (
    StochasticGradientKernel,
    check_results,
    is_schedule,
    setting_at,
    value_at,
)
from tfp_sgmcmc.kernels.linear_theory import splitting_limit


class MomentumKernel(StochasticGradientKernel):
    """A kernel with momenta p, whose law is N(0, T m) in the limit of small steps.

    `parameters` also has `friction`, `mass`, `temperature` and `initial_momentum`. Step size,
    friction and temperature are numbers, `[chains...]` tensors or schedules. Different masses, in
    place of different step sizes, adapt the steps to the parts. The results are about the state
    that the step reached, and have two more fields:

      momentum: p, in the structure of the state.
      kinetic_temperature: p^T m^-1 p / d after the step, with d coordinates, `[chains...]`.

    Args:
      parameters: the sampler's arguments by name.
      positive: names of further arguments that must be positive and finite, and that steps take.
    """

    def __init__(self, parameters: dict[str, Any], positive: Sequence[str] = ()):
        super().__init__(parameters, ("step_size", "friction", "temperature", "mass", *positive))
        self._number_names = "step_size", "friction", "temperature", *positive
        if any(map(is_schedule, tf.nest.flatten(parameters["mass"]))):
            raise TypeError("mass must be numbers that stay the same. Received: a schedule.")
        if tf.nest.is_nested(parameters["step_size"]):
            raise ValueError(
                "step_size must be one number or schedule for all parts. Received: "
                f"{parameters['step_size']}. A mass m divides the steps of its part by sqrt(m)."
            )
        if parameters["initial_momentum"] is not None:
            numbers("initial_momentum", parameters["initial_momentum"])

    def largest_stable_step(
        self, largest_curvature: Any, step: int = 0, results: Any = None
    ) -> float | np.ndarray:
        r"""Returns \( 2 / \sqrt\lambda \), the limit of symmetric splittings at any friction.

        Half a drift, friction by a factor c, half a drift and a kick have the trace
        \( (1 + c) (1 - h^2 \lambda / 2) \) and the determinant c, in this or a cyclic order.
        """
        del step, results
        return splitting_limit(largest_curvature)

    def metric_product(self, vector: State, state: State, results: Any) -> State:
        """Returns m^-1 v."""
        del results
        return map_parts(tf.divide, vector, self._mass(state))

    def _used(self, field: str, name: str, step: int, results: Any) -> np.ndarray:
        """Returns the results' `field`, or without results the argument `name` at `step`."""
        if results is not None:
            check_results(results, "results", field)
            return np.asarray(getattr(results, field))
        integer("step", step, 0)
        return np.asarray(setting_at(self._parameters[name], tf.constant(step, tf.int64)))

    def _mass(self, state: State) -> State:
        """Returns the masses, in the structure of the state."""
        return value_at(self._parameters["mass"], tf.zeros([], tf.int64), state, "mass")

    def _start(self, state: State) -> tuple[dict[str, Any], tf.Tensor]:
        """Returns the fields that all results have, and the friction, `[chains...]`, at step 0."""
        step, zeros = tf.zeros([], tf.int64), self._zeros(state)
        chain_ndims = zeros.shape.rank
        h, friction, temperature, *_ = self._numbers(step, state, chain_ndims)
        given = self._parameters["initial_momentum"]
        given = value_at(0.0 if given is None else given, step, state, "initial_momentum")
        momentum = map_parts(lambda x, p: tf.broadcast_to(p, tf.shape(x)), state, given)
        fields = dict(
            **self._first_figures(state, zeros, h, temperature),
            momentum=momentum,
            kinetic_temperature=kinetic_temperature(momentum, self._mass(state), chain_ndims),
        )
        return fields, friction + zeros


def scaled(number: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Returns `number` times `x`, where `number` is a scalar or has one number for each chain."""
    return (append_dims(number, x) if number.shape.rank else number) * x


def drift(theta: State, p: State, mass: State, h: tf.Tensor) -> State:
    """Returns theta + h m^-1 p."""
    return map_parts(lambda x, p, m: x + scaled(h, p / m), theta, p, mass)


def kick(p: State, force: State, h: tf.Tensor) -> State:
    """Returns p + h g for a force g."""
    return map_parts(lambda p, g: p + scaled(h, g), p, force)


def normal_momentum(state: State, mass: State, spread: tf.Tensor, seed: tf.Tensor) -> State:
    """Returns spread m^(1/2) z for standard normals z, in the structure of the state."""
    z = random.normal_like(state, seed)
    return map_parts(lambda z, m: scaled(spread, z * m**0.5), z, mass)


def kinetic_temperature(momentum: State, mass: State, chain_ndims: int) -> tf.Tensor:
    """Returns p^T m^-1 p / d, `[chains...]`, whose mean in equilibrium is the temperature."""
    energy = sum_events(map_parts(lambda p, m: p**2 / m, momentum, mass), chain_ndims)
    return energy / max(1, num_entries(momentum, chain_ndims))


def midpoint_temperature(
    momentum: State, force: State, mass: State, h: tf.Tensor, chain_ndims: int
) -> tf.Tensor:
    """Returns p^T m^-1 (p + h g / 2) / d, `[chains...]`, for a force g, which is kicked by h g."""
    energy = map_parts(lambda p, g, m: p * (p + scaled(h / 2, g)) / m, momentum, force, mass)
    return sum_events(energy, chain_ndims) / max(1, num_entries(momentum, chain_ndims))


def mean_decay(x: tf.Tensor) -> tf.Tensor:
    """Returns (1 - exp(-x)) / x, the mean of exp(-x t) over 0 < t < 1, for every x."""
    divisor = tf.where(x == 0, tf.ones_like(x), x)
    return tf.where(x == 0, tf.ones_like(x), -tf.math.expm1(-x) / divisor)
