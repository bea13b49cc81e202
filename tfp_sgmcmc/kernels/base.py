"""What all stochastic-gradient kernels share, so that a sampler writes only its update."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tree

from tfp_sgmcmc import random
from tfp_sgmcmc.state import State, check_broadcasts, match_structure, part_names
from tfp_sgmcmc.targets.base import as_target

StepSize = Any  # number, tensor, callable step -> value, or a nest of these


class StochasticGradientKernel(tfp.mcmc.TransitionKernel, abc.ABC):
    """A kernel that moves by gradient estimates of a target and has no Metropolis test.

    A sampler's constructor hands its own arguments to this one as `parameters`, by name; the
    sampler then defines `_init_results(state)` and `_update(state, results, seed)`. States are
    checked and converted here.
    """

    def __init__(self, parameters: dict[str, Any]):
        self._parameters = {k: v for k, v in parameters.items() if k not in ("self", "__class__")}
        self._target = as_target(self._parameters["target_log_prob_fn"])
        self._check_step_size()

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self._parameters)

    @property
    def is_calibrated(self) -> bool:
        return False

    @property
    def target_log_prob_fn(self) -> Any:
        return self._parameters["target_log_prob_fn"]

    @property
    def step_size(self) -> StepSize:
        return self._parameters["step_size"]

    def _check_step_size(self) -> None:
        check_step_size(self.step_size)

    def _reported(self, name: str, values: State) -> Any:
        """Returns the values used of the parameter `name`: one for each part only if given so."""
        is_one = not tf.nest.is_nested(self._parameters[name])
        return tf.nest.flatten(values)[0] if is_one else values

    # AutoGraph would read all that these call, for seconds, and find nothing to convert.
    @tf.autograph.experimental.do_not_convert
    def bootstrap_results(self, init_state: State) -> Any:
        """Returns the results before the first step: nothing drawn yet, so its figures are zero.

        Raises:
          ValueError: NaN or infinity in `init_state`, or a step size of another structure.
          TypeError: a state part that is not floating.
        """
        with tf.name_scope(type(self).__name__ + ".bootstrap_results"):
            return self._init_results(convert_state(init_state, initial=True))

    @tf.autograph.experimental.do_not_convert
    def one_step(self, current_state: State, previous_kernel_results: Any, seed: Any = None) -> Any:
        """Takes one step; `seed` (an integer, or two) is required and names all its draws."""
        with tf.name_scope(type(self).__name__ + ".one_step"):
            state = convert_state(current_state)
            return self._update(state, previous_kernel_results, random.as_seed(seed))

    @abc.abstractmethod
    def _init_results(self, state: State) -> Any: ...

    @abc.abstractmethod
    def _update(self, state: State, results: Any, seed: tf.Tensor) -> tuple[State, Any]: ...


def convert_state(state: State, initial: bool = False) -> State:
    """Returns `state` as tensors; raises for parts that no Langevin step can move.

    An `initial` state must also be finite; of a chain that breaks down later the user is told by
    `tfp_sgmcmc.diagnostics.check_finite`.
    """

    def convert(name: str, x: Any) -> tf.Tensor:
        try:
            x = tf.convert_to_tensor(x)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name} is {x!r}; a tensor of numbers is expected.") from error
        if not x.dtype.is_floating:
            raise TypeError(
                f"{name} has dtype {x.dtype.name}; a floating dtype is expected "
                "(an integer state cannot follow a gradient)."
            )
        value = tf.get_static_value(x) if initial else None
        if value is not None and not np.all(np.isfinite(value)):
            raise ValueError(f"{name}, the initial state, has NaN or infinite entries.")
        return x

    leaves = [convert(n, x) for n, x in zip(part_names(state), tf.nest.flatten(state), strict=True)]
    if not leaves:
        raise ValueError("The state has no parts; at least one tensor is expected.")
    if len({x.dtype for x in leaves}) > 1:
        dtypes = [x.dtype.name for x in leaves]
        raise TypeError(f"The state's parts have dtypes {dtypes}; one dtype for all is expected.")
    return tf.nest.pack_sequence_as(state, leaves)


def check_step_size(
    step_size: StepSize, name: str = "step_size", zero_allowed: bool = False
) -> None:
    """Raises ValueError for a step size (or schedule at step 0) that is not positive and finite."""
    for leaf in tf.nest.flatten(step_size):
        label = name
        if callable(leaf) and not tf.is_tensor(leaf) and not isinstance(leaf, tf.Variable):
            leaf, label = leaf(tf.zeros([], tf.int64)), f"{name} at step 0"
        if leaf is None:
            raise TypeError(f"{label} is None; a number is expected.")
        value = tf.get_static_value(tf.convert_to_tensor(leaf))
        if value is None:
            continue
        if not np.issubdtype(np.asarray(value).dtype, np.number):
            raise TypeError(f"{label} is {value!r}; a number is expected.")
        if not np.all(np.isfinite(value)) or np.any(value < 0 if zero_allowed else value <= 0):
            kind = "finite number of at least 0" if zero_allowed else "positive finite number"
            raise ValueError(f"{label} is {value}; a {kind} is expected.")


def value_at(value: StepSize, step: tf.Tensor, state: State, name: str = "step_size") -> State:
    """Evaluates numbers and schedules at `step`, broadcast to the structure of `state`.

    Raises:
      ValueError: a nest that has not the structure of the state, or a tensor that does not
        broadcast to the shape of its part.
    """

    def at_step(v: Any, x: tf.Tensor) -> tf.Tensor:
        v = v(step) if callable(v) and not tf.is_tensor(v) else v
        # tf.cast would take a Python float through float32.
        v = tf.cast(v, x.dtype) if tf.is_tensor(v) else tf.convert_to_tensor(v, x.dtype)
        check_broadcasts(name, v, x)
        return v

    if not tf.nest.is_nested(value):
        return tf.nest.map_structure(lambda x: at_step(value, x), state)
    return tree.map_structure_up_to(
        state, lambda x, v: at_step(v, x), state, match_structure(name, value, state)
    )
