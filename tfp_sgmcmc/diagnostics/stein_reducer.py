"""The kernel Stein discrepancy of a chain that is not kept, from evenly spread states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.diagnostics.periodic import PeriodicReducer
from tfp_sgmcmc.diagnostics.stein import gradient_at, squared_kernel_stein_discrepancy
from tfp_sgmcmc.internal.checks import function, integer, number, one_of, positive
from tfp_sgmcmc.internal.nest import State, append_dims
from tfp_sgmcmc.targets.base import as_target


class SteinState(NamedTuple):
    """The state of `KernelSteinDiscrepancyReducer`.

    Attributes:
      samples: the states after steps `every`, `2 every`, and so on, in parts
        `[size, chains..., event...]`; entries from `num_kept` on have no meaning.
      gradients: gradients of the log posterior at the samples, in the same shapes.
      num_kept: number of states kept.
      every: number of steps from one kept state to the next.
      num_steps: number of steps.
    """

    samples: State
    gradients: State
    num_kept: tf.Tensor
    every: tf.Tensor
    num_steps: tf.Tensor


class KernelSteinDiscrepancyReducer(PeriodicReducer):
    r"""Computes the `squared_kernel_stein_discrepancy` of a chain that is not kept.

    The discrepancy is a sum over all pairs of states, which cannot be computed in fixed memory. So
    at most `size` states are kept, with their gradients. When there is no room for another, every
    second state is dropped and `every` is doubled. So the kept states are always those after
    `every`, `2 every`, `3 every` and so on steps, and at least `size / 2` of them once there were
    so many. It finalises to their squared discrepancy, `[chains...]`, which is NaN for fewer than
    two states.

    Examples:
      >>> import tensorflow as tf, tensorflow_probability as tfp, tfp_sgmcmc as sgmcmc
      >>> target = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1))
      >>> squares, _, _ = tfp.experimental.mcmc.sample_fold(
      ...     20, tf.zeros([3, 2]), kernel=sgmcmc.SGLD(target, 1.), seed=[0, 1],
      ...     reducer=sgmcmc.diagnostics.KernelSteinDiscrepancyReducer(target, size=10))
      >>> squares.shape
      TensorShape([3])

    Args:
      target_log_prob_fn: the kernel's target, or a plain callable.
      size: largest number of states kept; finalising takes time in proportion to its square.
      seed: an integer or two, which names a separate minibatch for each state's gradient. None
        takes exact gradients, over all examples. (A target that goes through its data in epochs
        uses the minibatch of the next step. Then let `every` be as long as chains need to forget.)
      every: number of steps from one kept state to the next, at first.
      gradient_fn: kernel results -> gradient of the log posterior at the new state, which replaces
        both. For `CorrectedLangevin`: `lambda r: r.accepted_results.grads_target_log_prob`. The
        estimate that a step uses does not qualify, because it belongs to the state before.
      preconditioner: M, as in `squared_kernel_stein_discrepancy`.
      scale: c, as in `squared_kernel_stein_discrepancy`.
      exponent: beta, as in `squared_kernel_stein_discrepancy`.
      statistic: `"U"` or `"V"`, as in `squared_kernel_stein_discrepancy`.

    Raises:
      ValueError: `size` is below 2, `every` is below 1, or `squared_kernel_stein_discrepancy`
        refuses the options, which is checked before the first step.
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
        super().__init__(as_target(target_log_prob_fn, full_data_expected=True), every)
        self._size = integer("size", size, 2)
        self._seed = None if seed is None else random.as_seed(seed)
        self._gradient_fn = gradient_fn
        if gradient_fn is not None:
            function("gradient_fn", gradient_fn, "kernel results -> gradient")
        positive("scale", scale)
        number("exponent", exponent, "between -1 and 0", lambda e: -1 < e < 0)
        one_of("statistic", statistic, ("U", "V"))
        self._options: dict[str, Any] = dict(
            preconditioner=preconditioner, scale=scale, exponent=exponent, statistic=statistic
        )

    def _start(self, state: State, zeros: tf.Tensor) -> SteinState:
        slots = tf.nest.map_structure(
            lambda x: tf.zeros(tf.concat([[self._size], tf.shape(x)], axis=0), x.dtype), state
        )
        zero, every = tf.zeros([], tf.int64), tf.constant(self._every, tf.int64)
        own = SteinState(slots, slots, tf.zeros([], tf.int32), every, zero)
        # Raises if the options do not fit. Two rows suffice; all pairs of `size` would take long.
        two = tf.nest.map_structure(lambda x: x[:2], slots)
        self.finalize(own._replace(samples=two, gradients=two))
        return own

    def _update(self, own: SteinState, state: State, results: Any) -> SteinState:
        """Keeps a state, and makes room for it before."""
        own = tf.cond(own.num_kept == self._size, lambda: self._halved(own), lambda: own)

        def keep() -> SteinState:
            if self._gradient_fn is None:
                gradient = gradient_at(self._target, state, self._seed, own.num_steps, results)
            else:
                gradient = self._gradient_fn(results)

            def write(kept: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
                return tf.tensor_scatter_nd_update(kept, [[own.num_kept]], [x])

            return own._replace(
                samples=tf.nest.map_structure(write, own.samples, state),
                gradients=tf.nest.map_structure(write, own.gradients, gradient),
                num_kept=own.num_kept + 1,
            )

        return tf.cond(own.num_steps % own.every == 0, keep, lambda: own)  # `every` may have grown

    def finalize(self, final_reducer_state: SteinState) -> tf.Tensor:
        """Returns the squared discrepancy, `[chains...]`."""
        own = final_reducer_state
        is_kept = tf.range(tf.nest.flatten(own.samples)[0].shape[0]) < own.num_kept

        def filled(x: tf.Tensor) -> tf.Tensor:
            """Fills up with the first state, which is not far away; its copies have no weight."""
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
        """Keeps the second, fourth, sixth and so on state."""
        num_kept = self._size // 2
        second = tf.minimum(2 * tf.range(self._size) + 1, 2 * num_kept - 1)
        samples, gradients = tf.nest.map_structure(
            lambda x: tf.gather(x, second), (own.samples, own.gradients)
        )
        return SteinState(samples, gradients, tf.constant(num_kept), 2 * own.every, own.num_steps)
