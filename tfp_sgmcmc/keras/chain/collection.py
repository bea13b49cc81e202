"""Selects the states that become samples, and holds them on the device until they are read.

A monitor of the gradient noise can end the burn-in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.diagnostics import gradient_noise_share, sampling_threshold
from tfp_sgmcmc.diagnostics.weighted import travel
from tfp_sgmcmc.internal import xla
from tfp_sgmcmc.internal.nest import Packing
from tfp_sgmcmc.keras.model.log_prob import ModelLogProb
from tfp_sgmcmc.kernels import SGLD, ModifiedSGLD
from tfp_sgmcmc.preconditioners import GradientInfo, as_preconditioner
from tfp_sgmcmc.schedules import Cyclical

NEVER = np.iinfo(np.int64).max  # the first step to keep while the end of burn-in is unknown
_EVERY = 100  # steps from one comparison of the noise to the next
_HOT = 0.1  # largest alpha of good samples, if no threshold is given


class Collection(NamedTuple):
    """Selects the steps whose states are kept, counted as in `tfp.mcmc.sample_chain`.

    Attributes:
      num_burnin_steps: steps before the first that may be kept.
      num_steps_between_results: steps between kept ones.
      is_open: whether the end of burn-in becomes known only during the run.
      keep: step -> whether a state that is due is kept, such as `Cyclical.is_sampling`; or None.
      distance: the sum of step sizes from one kept state to the next, instead of a number of steps;
        or None.
      has_threshold: whether burn-in ends at a sampling threshold.
    """

    num_burnin_steps: int
    num_steps_between_results: int = 0
    is_open: bool = False
    keep: Callable[[tf.Tensor], tf.Tensor] | None = None
    distance: float | None = None
    has_threshold: bool = False

    @property
    def first(self) -> int:
        """The first step that may be kept, or NEVER if it is unknown before the run."""
        return NEVER if self.is_open else self.num_burnin_steps

    @property
    def is_planned(self) -> bool:
        """Whether the numbers of steps and epochs alone determine which states are kept."""
        return self.keep is None and self.distance is None and not self.has_threshold

    @property
    def has_equal_weights(self) -> bool:
        """Whether samples have equal weights even if their step sizes differ.

        This holds for samples at equal distances, and for sampling phases (Zhang et al. 2020).
        """
        is_of_phases = isinstance(getattr(self.keep, "__self__", None), Cyclical)
        return self.distance is not None or is_of_phases

    def num_due(self, first: int, num_steps: int) -> int:
        """Returns how many of the steps `0 .. num_steps - 1` are due, starting at step `first`."""
        return max(num_steps - first + self.num_steps_between_results, 0) // (
            self.num_steps_between_results + 1
        )

    def num_slots(self, num_steps: int) -> int:
        """Returns the largest number of states that wait for the end of an execution."""
        # The samples of an execution, and one slot for the steps after the last of them.
        return -(-num_steps // (self.num_steps_between_results + 1)) + (num_steps > 1)

    def may_be_due(self, num_before: int, num_after: int) -> bool:
        """Returns whether the steps `num_before .. num_after - 1` can leave a sample."""
        first = self.num_burnin_steps
        # Any step may be the first, once burn-in has lasted long enough.
        if self.is_open or self.distance is not None:
            return num_after > max(first, num_before)
        return self.num_due(first, num_after) > self.num_due(first, num_before)

    def is_kept(
        self, first: tf.Tensor, step: tf.Tensor, is_due: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns whether the state after step number `step` is kept.

        `is_due` is whether the sum of step sizes passed a multiple of the `distance`.
        """
        if is_due is None:
            is_due = (step - first) % (self.num_steps_between_results + 1) == 0
        is_due &= step >= first
        return is_due if self.keep is None else is_due & self.keep(step)


class RingBuffer:
    """States to keep, written cyclically to as many slots as one execution can fill.

    Attributes:
      num_steps: steps of the longest execution, which sets the number of slots. One train function
        may take resident data and other data, and can create variables only once.
      recorded: the variables whose values make a sample.
      travelled: the sum of the step sizes since the end of burn-in, if samples are a `distance`
        apart.
    """

    def __init__(self, collection: Collection):
        self._collection = collection
        self.travelled: list[tf.Variable] = []
        if collection.distance is not None:
            self.travelled = [tf.Variable(0.0, trainable=False, dtype=tf.float64)]
        self.num_steps = 1
        self.recorded: list[keras.Variable] = []
        self._packing = Packing([])
        self._num_slots = 0
        self._rings: list[tf.Variable] = []

    def write(
        self,
        step: tf.Tensor,
        step_size: tf.Tensor,
        moved: list[tuple[keras.Variable, tf.Tensor]],
        first: tf.Tensor,
        num_kept: tf.Tensor,
    ) -> tf.Tensor:
        """Writes the values after `step`; returns the number of states kept, including this one.

        The next step overwrites the slot unless the state is kept. `first` is the first step to
        keep.
        """
        self.create(moved)
        is_kept = self._collection.is_kept(first, step, self._travel(step_size, step >= first))
        step_size = tf.cast(step_size, moved[0][1].dtype)
        values = self._packing.pack([step, step_size, *(x for _, x in moved)])
        for ring, value in zip(self._rings, values, strict=True):
            xla.write_slot(ring, num_kept % self._num_slots, value, is_kept)
        return num_kept + tf.cast(is_kept, tf.int64)

    def _travel(self, step_size: tf.Tensor, counts: tf.Tensor) -> tf.Tensor | None:
        """Adds a step if it `counts`; returns whether a sample is due, None without a distance."""
        if self._collection.distance is None:
            return None
        before = self.travelled[0].read_value()
        after, is_due = travel(before, step_size, self._collection.distance)
        self.travelled[0].assign(tf.where(counts, after, before))
        return is_due

    def create(self, like: list[tuple[keras.Variable, Any]]) -> None:
        """Creates slots for values with the shapes and dtypes of `like`, unless they exist."""
        num_slots = self._collection.num_slots(self.num_steps)
        variables = [v for v, _ in like]
        is_same = [id(v) for v in variables] == [id(v) for v in self.recorded]
        if self._num_slots == num_slots and is_same:
            return
        self._num_slots, self.recorded = num_slots, variables
        numbers = [tf.TensorSpec([], tf.int64), tf.TensorSpec([], like[0][1].dtype)]
        self._packing = Packing([*numbers, *(x for _, x in like)])
        with tf.init_scope():
            self._rings = [
                tf.Variable(tf.zeros([num_slots, *part.shape], part.dtype), trainable=False)
                for part in self._packing.parts
            ]

    def read(
        self, num_taken: int, num_kept: int, before: int
    ) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
        """Returns the samples after the first `num_taken`, their steps and their step sizes.

        Samples are arrays `[num_new, ...]`, and steps and step sizes `[num_new]`. Samples of step
        `before` and later steps are left out.
        """
        if num_kept == num_taken:
            return [], np.zeros([0], np.int64), np.zeros([0])
        if num_kept - num_taken > self._num_slots:
            raise ValueError(
                f"The {self._num_slots} last samples alone are left, of {num_kept - num_taken} new "
                "ones, because a fit was interrupted while it took them. Make a new callback."
            )
        rings = [ring.numpy() for ring in self._rings]
        steps, step_sizes, *values = self._packing.unpack(rings)
        slots = np.arange(num_taken, num_kept) % self._num_slots
        slots = slots[steps[slots] < before]
        return [x[slots] for x in values], steps[slots], step_sizes[slots]


class NoiseMonitor:
    r"""Compares the noise of the gradient with the injected noise at regular steps of SGLD.

    Attributes:
      alpha: the last sampling threshold \( \alpha \), the largest of all chains.
      share: the last share of gradient noise in a step's variance, the mean over chains.

    Args:
      noise_every: steps from one comparison to the next; None is 100.
      sampling_threshold: burn-in ends when alpha falls below it. None never ends burn-in.
      num_burnin_steps: smallest number of steps before burn-in can end.
    """

    def __init__(
        self, noise_every: int | None, sampling_threshold: float | None, num_burnin_steps: int
    ):
        self._every = _EVERY if noise_every is None else noise_every
        self._threshold, self._burnin = sampling_threshold, num_burnin_steps
        self.alpha = tf.Variable(math.nan, trainable=False)
        self.share = tf.Variable(math.nan, trainable=False)

    def update(
        self,
        target: ModelLogProb,
        kernel: tfp.mcmc.TransitionKernel,
        state: list[tf.Tensor],
        results: Any,
        seed: tf.Tensor,
        first: tf.Tensor,
    ) -> tf.Tensor:
        """Compares the noise at the `state` before a step, if due; returns the first step to keep.

        `results` are the kernel's results after the step. `first` is the first step to keep as far
        as it was known before.

        Raises:
          ValueError: the sampling threshold is not defined for the kernel.
        """
        if not isinstance(kernel, SGLD | ModifiedSGLD):
            raise ValueError(
                "kernel must return SGLD or ModifiedSGLD with noise_every or "
                "sampling_threshold, because the threshold is defined for Langevin dynamics. "
                f"Received: {type(kernel).__name__}."
            )
        step = results.step - 1

        def compare() -> tuple[tf.Tensor, tf.Tensor]:
            estimate = target.estimate(state, seed, with_scores=True)
            chain_ndims = estimate.log_prob.shape.rank
            matrix = kernel.parameters.get("preconditioner")
            if matrix is not None:  # without one, sampling_threshold takes less time
                matrix, _ = as_preconditioner(matrix).evaluate(
                    state,
                    chain_ndims,
                    getattr(results, "preconditioner_state", ()),
                    GradientInfo(estimate.gradient, target.num_examples),
                )
            temperature = tf.reduce_max(results.temperature)
            heat = tf.nest.map_structure(  # both figures depend on epsilon / T alone
                lambda s: s / tf.cast(temperature, s.dtype), results.step_size
            )
            alpha = tf.reduce_max(sampling_threshold(estimate, heat, matrix, seed=seed))
            share = tf.reduce_mean(gradient_noise_share(estimate, heat, matrix))
            return tf.cast(alpha, tf.float32), tf.cast(share, tf.float32)

        old = self.alpha.read_value(), self.share.read_value()
        alpha, share = tf.cond(step % self._every == 0, compare, lambda: old)
        self.alpha.assign(alpha)
        self.share.assign(share)
        if self._threshold is None:
            return first
        is_over = (alpha < self._threshold) & (step + 1 >= self._burnin)
        return tf.where(is_over, tf.minimum(first, step + 1), first)

    def has_failed(self, logs: Mapping[str, Any]) -> bool | None:
        """Returns whether alpha of kept samples was too large in the last comparison, by the logs.

        Returns None without samples, or if alpha is unknown.
        """
        alpha = float(logs.get("sampling_threshold", math.nan))
        if math.isnan(alpha) or not logs.get("samples"):
            return None
        return alpha > (self._threshold or _HOT)

    def logs(self) -> dict[str, tf.Tensor]:
        return {
            "sampling_threshold": self.alpha.read_value(),
            "gradient_noise_share": self.share.read_value(),
        }
