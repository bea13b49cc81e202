"""Step-size schedules, callables from step to value, for kernels and Keras optimizers alike."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from tfp_sgmcmc.internal.checks import accepts, integer, number, numbers, positive, require

_MOST = 1e30  # of a factor in float32


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """The base class of schedules, whose public attributes are their arguments."""

    def get_config(self) -> dict[str, Any]:
        return {name: x for name, x in vars(self).items() if not name.startswith("_")}


@keras.saving.register_keras_serializable("tfp_sgmcmc")
class PolynomialDecay(Schedule):
    r"""\( \epsilon_t = a (b + t)^{-\gamma} \), with t = 0, 1, ... the step.

    Examples:
      >>> schedule = PolynomialDecay(a=1., b=1., gamma=0.5)
      >>> float(schedule(3))
      0.5

    Args:
      a: scale, positive.
      b: offset, positive.
      gamma: exponent. Welling and Teh require that the sum of the step sizes diverges and the sum
        of their squares converges: 0.5 < gamma <= 1.

    Raises:
      ValueError: `a` or `b` is not positive, or `gamma` is negative.

    References:
      M. Welling and Y. W. Teh. Bayesian learning via stochastic gradient Langevin dynamics. ICML,
      2011. Equation 2 and section 4.2.
    """

    def __init__(self, a: float, b: float = 1.0, gamma: float = 0.55):
        self.a, self.b = positive("a", a), positive("b", b)
        self.gamma = number("gamma", gamma, "a finite number of at least 0", lambda x: x >= 0)

    @classmethod
    def from_endpoints(
        cls, first: float, last: float, num_steps: int, gamma: float = 0.55
    ) -> PolynomialDecay:
        r"""Returns the schedule with value `first` at step 0 and `last` at step `num_steps - 1`.

        \( b = (T - 1) / ((\text{first}/\text{last})^{1/\gamma} - 1),\; a = \text{first}\,
        b^\gamma \).

        Raises:
          ValueError: not `first > last > 0`, `num_steps >= 2` and `gamma > 0`, or `gamma` is so
            small that the schedule cannot be computed.
        """
        last = positive("last", last)
        first = number("first", first, f"a number above last = {last}", lambda x: x > last)
        integer("num_steps", num_steps, 2)
        log_ratio = math.log(first / last) / positive("gamma", gamma)
        possible = log_ratio < 700  # exp(log_ratio) is a double
        require(
            "gamma", gamma, possible, f"above {math.log(first / last) / 700:.2g} for first/last"
        )
        b = (num_steps - 1) / math.expm1(log_ratio)
        return cls(a=first * b**gamma, b=b, gamma=gamma)

    def __call__(self, step: Any) -> tf.Tensor:
        step = tf.cast(step, tf.float32)
        if self.a > _MOST:  # too large for float32, as is its denominator
            return self.a * self.b**-self.gamma * (1 + step / self.b) ** -self.gamma
        return self.a * (self.b + step) ** -self.gamma


@keras.saving.register_keras_serializable("tfp_sgmcmc")
class ConstantBelow(Schedule):
    r"""\( \epsilon_t = \max(\text{schedule}(t), \text{critical\_value}) \).

    Follows a decaying schedule until it falls to a critical value, and stays there. Below that
    value the chain would only mix more slowly.

    Examples:
      >>> float(ConstantBelow(PolynomialDecay(1., 1., 1.), 0.25)(100))
      0.25

    Args:
      schedule: any callable from step to value.
      critical_value: positive.

    Raises:
      ValueError: `critical_value` is not positive.
      TypeError: `schedule` is not callable.
    """

    def __init__(self, schedule: Any, critical_value: float):
        if isinstance(schedule, dict):  # as deserialised
            schedule = keras.saving.deserialize_keras_object(schedule)
        accepts("schedule", schedule, 0)
        self.schedule, self.critical_value = schedule, positive("critical_value", critical_value)

    def get_config(self) -> dict[str, Any]:
        schedule = keras.saving.serialize_keras_object(self.schedule)
        return super().get_config() | {"schedule": schedule}

    def __call__(self, step: Any) -> tf.Tensor:
        value = self.schedule(step)
        numbers("The value of schedule", value)
        return tf.maximum(tf.cast(value, tf.float32), self.critical_value)


@keras.saving.register_keras_serializable("tfp_sgmcmc")
class Cyclical(Schedule):
    r"""Cosine cycles that restart from a large step size.

    With K steps in M cycles and \( r_t = (t \bmod \lceil K/M \rceil) / \lceil K/M \rceil \),

    \[ \epsilon_t = \frac{\epsilon_0}{2} \left( \cos(\pi r_t) + 1 \right), \]

    for t = 0, 1, ... (the paper counts from 1). Steps with \( r_t < \beta \) explore, the others
    sample. Keep only the states of the steps where `is_sampling` is true, and average them with
    equal weights. Weights by step size are for steps that fall once and for all: the states then
    hardly move in the end, and equal weights would count the same place ever more often. Here every
    cycle moves on, and equal weights give the first states of a phase, whose steps are too large,
    the smaller share. To explore without noise, as in the paper, give the kernel
    `temperature=lambda t: tf.where(schedule.is_sampling(t), 1., 0.)`.

    Examples:
      >>> schedule = Cyclical(1., num_steps=8, num_cycles=2, exploration_ratio=0.5)
      >>> [bool(schedule.is_sampling(t)) for t in range(5)]
      [False, False, True, True, False]

    Args:
      initial_value: \( \epsilon_0 \), positive.
      num_steps: K.
      num_cycles: M, at most K.
      exploration_ratio: \( \beta \), in [0, 1).

    Raises:
      ValueError: an argument is out of range.

    References:
      R. Zhang, C. Li, J. Zhang, C. Chen and A. G. Wilson. Cyclical stochastic gradient MCMC for
      Bayesian deep learning. ICLR, 2020. Equation 1 and algorithm 1.
    """

    def __init__(
        self, initial_value: float, num_steps: int, num_cycles: int, exploration_ratio: float = 0.8
    ):
        self.initial_value = positive("initial_value", initial_value)
        self.num_steps = integer("num_steps", num_steps, 1)
        self.num_cycles = integer("num_cycles", num_cycles, 1, num_steps)
        self.exploration_ratio = number(
            "exploration_ratio", exploration_ratio, "in [0, 1)", lambda x: 0 <= x < 1
        )

    @property
    def cycle_length(self) -> int:
        """The number of steps in a cycle."""
        return -(-self.num_steps // self.num_cycles)

    def position(self, step: Any) -> tf.Tensor:
        """Returns r_t, in [0, 1)."""
        return tf.cast(self._place(step), tf.float32) / self.cycle_length

    def is_sampling(self, step: Any) -> tf.Tensor:
        """Returns whether a step belongs to the sampling phase of its cycle."""
        # Compares integers, because XLA rounds quotients differently from eager code.
        return self._place(step) >= math.ceil(round(self.exploration_ratio * self.cycle_length, 6))

    def _place(self, step: Any) -> tf.Tensor:
        return tf.cast(step, tf.int64) % self.cycle_length

    def __call__(self, step: Any) -> tf.Tensor:
        # cos(pi r) + 1 = 2 sin^2(pi (1 - r) / 2), which does not cancel at the end of a cycle.
        left = tf.cast(self.cycle_length - self._place(step), tf.float32) / self.cycle_length
        return self.initial_value * tf.sin(math.pi / 2 * left) ** 2


@keras.saving.register_keras_serializable("tfp_sgmcmc")
class GeometricDecay(Schedule):
    r"""\( \epsilon_t = a\, (b/a)^{\min(t/K, 1)} \), from a at step 0 to b at step K.

    It may also grow, such as the variance of a prior that is relaxed along the run.

    Examples:
      >>> schedule = GeometricDecay(1., 0.01, num_steps=10)
      >>> [round(float(schedule(t)), 3) for t in (0, 5, 10, 20)]
      [1.0, 0.1, 0.01, 0.01]

    Args:
      initial_value: a, positive.
      final_value: b, positive.
      num_steps: K.

    Raises:
      ValueError: an argument is out of range.
    """

    def __init__(self, initial_value: float, final_value: float, num_steps: int):
        self.initial_value = positive("initial_value", initial_value)
        self.final_value = positive("final_value", final_value)
        self.num_steps = integer("num_steps", num_steps, 1)

    def __call__(self, step: Any) -> tf.Tensor:
        t = tf.minimum(tf.cast(step, tf.float32) / self.num_steps, 1.0)
        return self.initial_value * tf.exp(t * math.log(self.final_value / self.initial_value))


@keras.saving.register_keras_serializable("tfp_sgmcmc")
class CosineTail(Schedule):
    r"""A value that is constant or grows, and falls along half a cosine in the end of the run.

    With t = step / K, the value is \( a\, (p/a)^{t/s} \) for t below s, and then

    \[ b + \frac{p - b}{2} \left( 1 + \cos\left(\pi \frac{t - s}{1 - s}\right) \right), \]

    which is b from t = 1 on.

    Examples:
      >>> schedule = CosineTail(2., 0.2, num_steps=10, start=0.8)
      >>> [round(float(schedule(t)), 2) for t in (0, 8, 9, 10, 20)]
      [2.0, 2.0, 1.1, 0.2, 0.2]
      >>> schedule = CosineTail(2., 0.2, num_steps=10, start=0.8, peak_value=8.)
      >>> [round(float(schedule(t)), 2) for t in (0, 4, 8, 10)]
      [2.0, 4.0, 8.0, 0.2]

    Args:
      initial_value: a, positive.
      final_value: b, positive.
      num_steps: K.
      start: s, in [0, 1), with a peak at least 1e-6.
      peak_value: p, positive; None is a.

    Raises:
      ValueError: an argument is out of range.
    """

    def __init__(
        self,
        initial_value: float,
        final_value: float,
        num_steps: int,
        start: float = 0.8,
        peak_value: float | None = None,
    ):
        self.initial_value = positive("initial_value", initial_value)
        self.final_value = positive("final_value", final_value)
        self.num_steps = integer("num_steps", num_steps, 1)
        least = 0 if peak_value is None else 1e-6  # what the growth divides by
        self.start = number("start", start, f"in [{least}, 1)", lambda x: least <= x < 1)
        self.peak_value = positive("peak_value", peak_value) if peak_value is not None else None

    def __call__(self, step: Any) -> tf.Tensor:
        t = tf.cast(step, tf.float32) / self.num_steps
        fallen = tf.clip_by_value((t - self.start) / (1 - self.start), 0.0, 1.0)
        peak = self.initial_value if self.peak_value is None else self.peak_value
        value = self.final_value + (peak - self.final_value) * (1 + tf.cos(math.pi * fallen)) / 2
        if self.peak_value is None:
            return value
        left = tf.maximum(1 - t / self.start, 0.0)  # share of the growth
        return value * tf.exp(left * math.log(self.initial_value / peak))
