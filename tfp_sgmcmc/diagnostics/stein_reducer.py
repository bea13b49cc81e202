"""The kernel Stein discrepancy of a chain that is not kept, from states spread evenly over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.checks import integer
from tfp_sgmcmc.diagnostics.stein import gradient_at, squared_kernel_stein_discrepancy
from tfp_sgmcmc.state import State, append_dims
from tfp_sgmcmc.targets.base import as_target


class SteinState(NamedTuple):
    """What `KernelSteinDiscrepancyReducer` carries.

    Attributes:
      samples: the states kept, `[size, chains..., event...]` a part: those after steps `every`,
        `2 every`, ...; what lies from `num_kept` on has no meaning.
      gradients: of the log posterior there, likewise.
      num_kept: how many they are.
      every: steps from one to the next.
      num_steps: steps seen.
    """

    samples: State
    gradients: State
    num_kept: tf.Tensor
    every: tf.Tensor
    num_steps: tf.Tensor


class KernelSteinDiscrepancyReducer(tfp.experimental.mcmc.Reducer):
    r"""`squared_kernel_stein_discrepancy` of a chain that is not kept.

    The discrepancy is a sum over all pairs of states, which no fixed memory gives exactly. So at
    most `size` states are kept, with their gradients. When there is no room for another, every
    second one is dropped, and from then on twice as many steps lie between those kept: at any time
    they are `every, 2 every, 3 every, ...` steps from the start, at least `size / 2` of them once
    there were so many. It finalises to the squared discrepancy of these, `[chains...]`; NaN of
    fewer than two.

    >>> import tensorflow as tf, tensorflow_probability as tfp, tfp_sgmcmc as sgmcmc
    >>> target = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1))
    >>> squares, _, _ = tfp.experimental.mcmc.sample_fold(
    ...     20, tf.zeros([3, 2]), kernel=sgmcmc.SGLD(target, 1.),
    ...     reducer=sgmcmc.diagnostics.KernelSteinDiscrepancyReducer(target, size=10), seed=[0, 1])
    >>> squares.shape
    TensorShape([3])

    Args:
      target_log_prob_fn: the kernel's target, or a plain callable.
      size: keeps at most so many states; finalising takes time in proportion to its square.
      seed: an integer, or two: names a minibatch of its own for each state's gradient. None takes
        exact gradients, over all examples. (Of a target that goes through its data in epochs, the
        minibatch is that of the next step: take `every` as long as chains need to forget.)
      every: steps from one state kept to the next, at first.
      gradient_fn: kernel results -> gradient of the log posterior at the new state, in place of
        both: of `CorrectedLangevin`, `lambda r: r.accepted_results.grads_target_log_prob`. The
        estimate that a step was taken with is of the state before, and none of these.
      preconditioner: as of `squared_kernel_stein_discrepancy`.
      scale: likewise.
      exponent: likewise.
      statistic: likewise.

    Raises:
      ValueError: `size` below 2, or `every` below 1; before the first step, what
        `squared_kernel_stein_discrepancy` raises.
    """

    def __init__(
        self,
        target_log_prob_fn: Any,
        size: int,
        *,
        seed: Any = None,
        every: int = 1,
        gradient_fn: Callable[[Any], State] | None = None,
        preconditioner: Any = None,
        scale: float = 1.0,
        exponent: float = -0.5,
        statistic: Literal["U", "V"] = "U",
    ):
        self._target = as_target(target_log_prob_fn, full_data_expected=True)
        self._size, self._every = integer("size", size, 2), integer("every", every, 1)
        self._seed = None if seed is None else random.as_seed(seed)
        self._gradient_fn = gradient_fn
        self._options: dict[str, Any] = dict(
            preconditioner=preconditioner, scale=scale, exponent=exponent, statistic=statistic
        )

    def initialize(
        self, initial_chain_state: State, initial_inner_kernel_results: Any = None
    ) -> SteinState:
        """The reducer's state before the first step; the initial state does not count."""
        del initial_inner_kernel_results
        zeros = tf.nest.map_structure(
            lambda x: tf.zeros(tf.concat([[self._size], tf.shape(x)], axis=0), x.dtype),
            tf.nest.map_structure(tf.convert_to_tensor, initial_chain_state),
        )
        zero, every = tf.zeros([], tf.int64), tf.constant(self._every, tf.int64)
        own = SteinState(zeros, zeros, tf.zeros([], tf.int32), every, zero)
        # Raises for options that do not fit; two rows show it, all pairs of `size` would take long.
        two = tf.nest.map_structure(lambda x: x[:2], zeros)
        self.finalize(own._replace(samples=two, gradients=two))
        return own

    def one_step(
        self,
        new_chain_state: State,
        current_reducer_state: SteinState,
        previous_kernel_results: Any = None,
    ) -> SteinState:
        """Keeps a new state, if it is its turn, and makes room for it before."""
        own = current_reducer_state._replace(num_steps=current_reducer_state.num_steps + 1)
        is_full = (own.num_kept == self._size) & (own.num_steps % own.every == 0)
        own = tf.cond(is_full, lambda: self._halved(own), lambda: own)

        def keep() -> SteinState:
            state = tf.nest.map_structure(tf.convert_to_tensor, new_chain_state)
            gradient = self._gradient(state, own.num_steps, previous_kernel_results)

            def write(kept: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
                return tf.tensor_scatter_nd_update(kept, [[own.num_kept]], [x])

            return own._replace(
                samples=tf.nest.map_structure(write, own.samples, state),
                gradients=tf.nest.map_structure(write, own.gradients, gradient),
                num_kept=own.num_kept + 1,
            )

        return tf.cond(own.num_steps % own.every == 0, keep, lambda: own)

    def finalize(self, final_reducer_state: SteinState) -> tf.Tensor:
        """The squared discrepancy, `[chains...]`."""
        own = final_reducer_state
        is_kept = tf.range(tf.nest.flatten(own.samples)[0].shape[0]) < own.num_kept

        def filled(x: tf.Tensor) -> tf.Tensor:
            """With copies of the first state, which have no weight and are not far from others."""
            return tf.where(append_dims(is_kept, x), x, x[:1])

        samples, gradients = tf.nest.map_structure(filled, (own.samples, own.gradients))
        state = tf.nest.map_structure(lambda x: x[0], samples)
        return squared_kernel_stein_discrepancy(
            samples,
            gradients,
            chain_ndims=len(tf.TensorShape(self._target.chain_shape(state))),
            weights=tf.cast(is_kept, tf.nest.flatten(samples)[0].dtype),
            **self._options,
        )

    def _halved(self, own: SteinState) -> SteinState:
        """Without every second state: the second, fourth, ... stay."""
        num_kept = self._size // 2
        second = tf.minimum(2 * tf.range(self._size) + 1, 2 * num_kept - 1)
        samples, gradients = tf.nest.map_structure(
            lambda x: tf.gather(x, second), (own.samples, own.gradients)
        )
        return SteinState(samples, gradients, tf.constant(num_kept), 2 * own.every, own.num_steps)

    def _gradient(self, state: State, step: tf.Tensor, results: Any) -> State:
        if self._gradient_fn is not None:
            return self._gradient_fn(results)
        own = getattr(results, "target_state", ())
        return gradient_at(self._target, state, self._seed, step, own)
