"""What samplers with momenta share: mass, temperature, the first momenta, kinetic temperature."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.kernels.base import StepSize, StochasticGradientKernel, check_step_size, value_at
from tfp_sgmcmc.state import State, append_dims, map_parts, squared_norm, sum_events
from tfp_sgmcmc.targets.base import GradientEstimate


class MomentumKernel(StochasticGradientKernel):
    """A kernel whose results have momenta p, of law N(0, T m) in the limit of small steps.

    Beside those of `StochasticGradientKernel`, `parameters` has `mass`, `temperature` and
    `initial_momentum`. Step size, temperature and friction are numbers, `[chains...]` tensors, or
    schedules; parts that want steps of their own are given masses.
    """

    def __init__(self, parameters: dict[str, Any]):
        super().__init__(parameters)
        check_step_size(parameters["temperature"], "temperature")
        check_step_size(parameters["mass"], "mass")
        if any(callable(m) and not tf.is_tensor(m) for m in tf.nest.flatten(parameters["mass"])):
            raise TypeError("mass is a schedule; numbers that stay the same are expected.")
        if tf.nest.is_nested(parameters["step_size"]):
            raise ValueError(
                f"step_size is {parameters['step_size']}; one number or schedule for all parts is "
                "expected here (a mass m makes the steps of its part smaller by sqrt(m))."
            )
        if parameters["initial_momentum"] is not None:
            _check_finite(parameters["initial_momentum"], "initial_momentum")

    def _mass(self, state: State) -> State:
        """Masses, in the structure of the state, that broadcast with its parts."""
        return value_at(self._parameters["mass"], tf.zeros([], tf.int64), state, "mass")

    def _init_momentum(self, state: State) -> State:
        """The first momenta: those given, else zeros."""
        given = self._parameters["initial_momentum"]
        given = 0.0 if given is None else given
        given = value_at(given, tf.zeros([], tf.int64), state, "initial_momentum")
        return map_parts(lambda x, p: tf.broadcast_to(p, tf.shape(x)), state, given)

    def _first_figures(self, state: State, *numbers: str) -> dict[str, Any]:
        """Fields that the results of all these samplers have, before the first step.

        The parameters named by `numbers` are evaluated, so that one of a wrong shape raises here.
        """
        step = tf.zeros([], tf.int64)
        zeros = tf.zeros(self._target.chain_shape(state), tf.nest.flatten(state)[0].dtype)
        chain_ndims = zeros.shape.rank
        for name in numbers:
            self._number(name, step, state, chain_ndims)
        momentum = self._init_momentum(state)
        return dict(
            target_log_prob=zeros,
            gradient_norm=zeros,
            step_size=self._number("step_size", step, state, chain_ndims),
            temperature=self._number("temperature", step, state, chain_ndims),
            kinetic_temperature=kinetic_temperature(momentum, self._mass(state), chain_ndims),
            momentum=momentum,
            step=step,
            target_state=self._target.bootstrap(state),
        )

    def _figures(
        self,
        estimate: GradientEstimate,
        step_size: tf.Tensor,
        temperature: tf.Tensor,
        momentum: State,
        last: Any,
    ) -> dict[str, Any]:
        """The same fields after a step; `last` are the results before it."""
        chain_ndims = estimate.log_prob.shape.rank
        return dict(
            target_log_prob=estimate.log_prob,
            gradient_norm=tf.sqrt(squared_norm(estimate.gradient, chain_ndims)),
            step_size=step_size,
            temperature=temperature,
            kinetic_temperature=kinetic_temperature(momentum, self._mass(momentum), chain_ndims),
            momentum=momentum,
            step=last.step + 1,
            target_state=estimate.target_state,
        )

    def _number(self, name: str, step: tf.Tensor, state: State, chain_ndims: int) -> tf.Tensor:
        """The parameter `name` at `step`: a scalar or `[chains...]`."""
        return number_at(self._parameters[name], step, state, chain_ndims, name)


def number_at(
    value: StepSize, step: tf.Tensor, state: State, chain_ndims: int, name: str
) -> tf.Tensor:
    """Evaluates a number or schedule at `step`: a scalar or `[chains...]`.

    Raises:
      ValueError: another shape, or a nest.
    """
    part = tf.nest.flatten(state)[0]
    value = value(step) if callable(value) and not tf.is_tensor(value) else value
    if tf.nest.is_nested(value):
        raise ValueError(
            f"{name} is {value}; a number, or an array or tensor of one number for each chain, is "
            "expected."
        )
    dtype = part.dtype
    value = tf.cast(value, dtype) if tf.is_tensor(value) else tf.convert_to_tensor(value, dtype)
    if value.shape.rank and not value.shape.is_compatible_with(part.shape[:chain_ndims]):
        raise ValueError(
            f"{name} has shape {value.shape}; a scalar, or one number for each chain, "
            f"{part.shape[:chain_ndims]}, is expected."
        )
    return value


def _check_finite(values: Any, name: str) -> None:
    for leaf in tf.nest.flatten(values):
        value = tf.get_static_value(leaf) if tf.is_tensor(leaf) else np.asarray(leaf)
        if value is None:
            continue
        if not np.issubdtype(value.dtype, np.number):
            raise TypeError(f"{name} is {leaf!r}; numbers are expected.")
        if not np.all(np.isfinite(value)):
            raise ValueError(f"{name} is {leaf}; finite numbers are expected.")


def scaled(number: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """`number` times `x`; a number for each chain multiplies all of that chain's entries."""
    return (append_dims(number, x) if number.shape.rank else number) * x


def degrees_of_freedom(state: State, chain_ndims: int) -> int:
    """Entries of one chain's state."""
    return sum(x.shape[chain_ndims:].num_elements() for x in tf.nest.flatten(state))


def kinetic_temperature(momentum: State, mass: State, chain_ndims: int) -> tf.Tensor:
    """p^T m^-1 p / d, `[chains...]`: the temperature in the mean, in equilibrium."""
    energy = sum_events(map_parts(lambda p, m: p**2 / m, momentum, mass), chain_ndims)
    return energy / degrees_of_freedom(momentum, chain_ndims)
