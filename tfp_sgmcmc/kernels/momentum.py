"""What samplers with momenta share: mass, temperature, the first momenta, kinetic temperature."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfp_sgmcmc.kernels.base import (
    StepSize,
    StochasticGradientKernel,
    check_step_size,
    convert_state,
    map_parts,
    value_at,
)
from tfp_sgmcmc.preconditioners import (
    check_broadcasts,
    match_structure,
    squared_norm,
    sum_events,
)
from tfp_sgmcmc.targets.base import GradientEstimate, State, append_dims, part_names


class MomentumKernel(StochasticGradientKernel):
    """A kernel whose results have momenta p with law N(0, T m) in equilibrium.

    Beside those of `StochasticGradientKernel`, `parameters` has `mass`, `temperature` and
    `initial_momentum`. Step size, temperature and friction are numbers, `[chains...]` tensors, or
    schedules; parts that want steps of their own are given masses.
    """

    def __init__(self, parameters: dict[str, Any]):
        super().__init__(parameters)
        check_step_size(parameters["temperature"], "temperature")
        check_step_size(parameters["mass"], "mass")
        if tf.nest.is_nested(parameters["step_size"]):
            raise ValueError(
                f"step_size is {parameters['step_size']}; one number or schedule for all parts is "
                "expected here (a mass m makes the steps of its part smaller by sqrt(m))."
            )

    def _mass(self, state: State) -> State:
        """Masses, in the structure of the state, that broadcast with its parts."""
        return value_at(self._parameters["mass"], tf.zeros([], tf.int64), state, "mass")

    def _init_momentum(self, state: State) -> State:
        """The first momenta: those given, else zeros."""
        given = self._parameters["initial_momentum"]
        if given is None:
            return tf.nest.map_structure(tf.zeros_like, state)
        if tf.nest.is_nested(state):
            given = match_structure("initial_momentum", given, state)
        given = convert_state(
            tf.nest.pack_sequence_as(
                state,
                [
                    tf.cast(p, x.dtype) if tf.is_tensor(p) else tf.convert_to_tensor(p, x.dtype)
                    for p, x in zip(tf.nest.flatten(given), tf.nest.flatten(state), strict=True)
                ],
            ),
            initial=True,
        )
        names = part_names(state)
        for name, p, x in zip(names, tf.nest.flatten(given), tf.nest.flatten(state), strict=True):
            check_broadcasts(f"initial_momentum of {name}", p, x)
        return map_parts(lambda p, x: tf.broadcast_to(p, tf.shape(x)), given, state)

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
            kinetic_temperature=kinetic_temperature(momentum, self._mass(state), chain_ndims),
            momentum=momentum,
            step=step,
            target_state=self._target.bootstrap(state),
        )

    def _figures(
        self, estimate: GradientEstimate, step_size: tf.Tensor, momentum: State, last: Any
    ) -> dict[str, Any]:
        """The same fields after a step; `last` are the results before it."""
        chain_ndims = estimate.log_prob.shape.rank
        return dict(
            target_log_prob=estimate.log_prob,
            gradient_norm=tf.sqrt(squared_norm(estimate.gradient, chain_ndims)),
            step_size=step_size,
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
      ValueError: another shape.
    """
    part = tf.nest.flatten(state)[0]
    value = value(step) if callable(value) and not tf.is_tensor(value) else value
    dtype = part.dtype
    value = tf.cast(value, dtype) if tf.is_tensor(value) else tf.convert_to_tensor(value, dtype)
    if value.shape.rank and not value.shape.is_compatible_with(part.shape[:chain_ndims]):
        raise ValueError(
            f"{name} has shape {value.shape}; a scalar, or one number for each chain, "
            f"{part.shape[:chain_ndims]}, is expected."
        )
    return value


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
