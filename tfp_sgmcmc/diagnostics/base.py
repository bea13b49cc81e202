"""The base class of reducers of every k-th state of a chain, and checks of arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal.checks import a_type, as_array, integer
from tfp_sgmcmc.internal.nest import State
from tfp_sgmcmc.targets.base import Target


def real_array(name: str, value: Any) -> np.ndarray:
    """Returns an array of real numbers in double precision; raises TypeError for anything else."""
    found = as_array(value)
    if found.dtype.kind not in "iuf" and found.dtype.name != "bfloat16":
        raise TypeError(f"{name} must be an array of real numbers. Received: {value!r:.100}.")
    return found.astype(np.float64, copy=False)


def refuse_trace(result: Any) -> None:
    """Raises TypeError if `result` is what `tfp.mcmc.sample_chain` returns."""
    if hasattr(result, "all_states"):
        raise TypeError(
            "result must hold draws of the parameters by name. Received: "
            f"{a_type(result)} of tfp.mcmc. Give its all_states, through target.constrain "
            'if the target has a bijector, and a single part as {"state": ...}.'
        )


class PeriodicReducer(tfp.experimental.mcmc.Reducer):
    """Updates its result at every `every`-th state of a chain on a target.

    A subclass defines `_start`, `_update` and, where needed, `_skip`. The reducer's state has a
    field `num_steps`, and a field `every` if the period changes.
    """

    def __init__(self, target: Target, every: int):
        self._target, self._every = target, integer("every", every, 1)

    def initialize(
        self, initial_chain_state: State, initial_inner_kernel_results: Any = None
    ) -> Any:
        """Returns the reducer's state before the first step; the initial state does not count."""
        del initial_inner_kernel_results
        state = tf.nest.map_structure(tf.convert_to_tensor, initial_chain_state)
        chain_shape = self._target.chain_shape(state)
        return self._start(state, tf.zeros(chain_shape, tf.nest.flatten(state)[0].dtype))

    def one_step(
        self,
        new_chain_state: State,
        current_reducer_state: Any,
        previous_kernel_results: Any = None,
    ) -> Any:
        """Returns the reducer's state after a step of the chain."""
        own = current_reducer_state._replace(num_steps=current_reducer_state.num_steps + 1)
        state = tf.nest.map_structure(tf.convert_to_tensor, new_chain_state)
        is_due = own.num_steps % getattr(own, "every", self._every) == 0
        return tf.cond(
            is_due,
            lambda: self._update(own, state, previous_kernel_results),
            lambda: self._skip(own, state),
        )

    def _start(self, state: State, zeros: tf.Tensor) -> Any:
        """Returns the reducer's state before the first step; `zeros` has the chains' shape."""
        raise NotImplementedError

    def _update(self, own: Any, state: State, results: Any) -> Any:
        """Returns the reducer's state after a step that counts."""
        raise NotImplementedError

    def _skip(self, own: Any, state: State) -> Any:
        """Returns the reducer's state after another step."""
        del state
        return own
