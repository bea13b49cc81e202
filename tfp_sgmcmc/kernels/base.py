"""The bases of stochastic-gradient kernels, and the evaluation of their step sizes."""

from __future__ import annotations

import abc
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.internal.checks import a_type, numbers, require
from tfp_sgmcmc.internal.nest import (
    State,
    by_part,
    convert_state,
    number_as_dtype,
    squared_norm,
)
from tfp_sgmcmc.internal.xla import compilable
from tfp_sgmcmc.kernels.linear_theory import overdamped_limit
from tfp_sgmcmc.targets.base import GradientEstimate, as_target

StepSize = Any  # number, tensor, callable step -> value, or a nest of these
_MCMC = "tensorflow_probability.python.mcmc."
_ADAPT = (
    "the acceptance probability of a Metropolis test. Choose the step with tfp_sgmcmc.tune, or "
    "adapt the step of CorrectedLangevin"
)
_NEEDS = {
    "metropolis_hastings": (
        "MetropolisHastings",
        "exact log posteriors of proposals and their correction, log_acceptance_correction. Use "
        "CorrectedLangevin, which has the test",
    ),
    "replica_exchange_mc": (
        "ReplicaExchangeMC",
        "exact log posteriors at every state. Use ReplicaExchangeSGLD, whose swaps allow for noise",
    ),
    "simple_step_size_adaptation": ("SimpleStepSizeAdaptation", _ADAPT),
    "dual_averaging_step_size_adaptation": ("DualAveragingStepSizeAdaptation", _ADAPT),
}


class StochasticGradientKernel(tfp.mcmc.TransitionKernel, abc.ABC):
    """A kernel that moves by gradient estimates of a target and has no Metropolis test.

    A sampler passes the arguments of its constructor, `locals()`, to this one. It defines
    `_init_results(state)`, which returns the results before the first step, and
    `_update(state, results, seed)`, which takes a step. Both get checked states and seeds.

    The results of a sampler are a `NamedTuple` that holds all that the sampler remembers. They
    have these fields and those that the sampler's page lists:

      target_log_prob: the minibatch's estimate of the log posterior at the state where the step
        took its gradient, `[chains...]`.
      gradient_norm: Euclidean norm of the gradient estimate there, `[chains...]`.
      step_size: the step size that the step used: a scalar, an array that broadcasts with the
        state parts, or one of these for each part if it was given so.
      temperature: the temperature that the step used, in the same form.
      step: number of steps taken.
      target_state: what the target carries between steps.

    Examples:
      The mean of 1,000 numbers. The target is the log posterior, estimated from 50 of them:

      >>> import numpy as np, tensorflow as tf, tensorflow_probability as tfp
      >>> import tfp_sgmcmc as sgmcmc
      >>> tfd = tfp.distributions
      >>> x = np.random.default_rng(0).normal(2., 1., size=[1000]).astype(np.float32)
      >>> target = sgmcmc.MinibatchLogProb(
      ...     log_prior_fn=tfd.Normal(0., 10.).log_prob,
      ...     log_likelihood_fn=lambda theta, batch:
      ...         tfd.Normal(theta[..., None], 1.).log_prob(batch),
      ...     data=x, batch_size=50)

      Any sampler then runs in `tfp.mcmc.sample_chain`, compiled by XLA:

      >>> @tf.function(jit_compile=True)
      ... def sample(kernel):
      ...     return tfp.mcmc.sample_chain(
      ...         num_results=2000, num_burnin_steps=500, current_state=tf.zeros([]),
      ...         kernel=kernel, trace_fn=lambda _, results: results, seed=[0, 1])
      >>> samples, results = sample(sgmcmc.SGLD(target, step_size=1e-4))
      >>> bool(abs(tf.reduce_mean(samples) - x.mean()) < 0.02)
      True
      >>> results.gradient_norm.shape
      TensorShape([2000])

    Args:
      parameters: the sampler's arguments by name, with `target_log_prob_fn` and `step_size`.
      positive: names of the arguments that must be positive and finite.
      full_data_expected: whether to accept a plain callable as target without a warning.
    """

    _number_names: Sequence[str] = ("step_size",)

    def __init__(
        self,
        parameters: dict[str, Any],
        positive: Sequence[str] = ("step_size",),
        full_data_expected: bool = False,
    ):
        self._parameters = {k: v for k, v in parameters.items() if k not in ("self", "__class__")}
        self._target = as_target(self._parameters["target_log_prob_fn"], full_data_expected)
        for name in positive:
            check_positive(name, self._parameters[name])

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self._parameters)

    @property
    def is_calibrated(self) -> bool:
        return False

    def experimental_with_shard_axes(self, shard_axis_names: Any) -> Any:
        """Returns this kernel if there are no names; otherwise raises NotImplementedError."""
        if any(tf.nest.flatten(shard_axis_names)):
            raise NotImplementedError(
                "shard_axis_names must be empty, because this kernel does not divide a state over "
                f"devices. Received: {shard_axis_names}. ShardedLogProb divides the data."
            )
        return self

    @property
    def target_log_prob_fn(self) -> Any:
        return self._parameters["target_log_prob_fn"]

    @property
    def step_size(self) -> StepSize:
        return self._parameters["step_size"]

    def largest_stable_step(
        self, largest_curvature: Any, step: int = 0, results: Any = None
    ) -> float | np.ndarray:
        r"""Returns the step size below which the mean of a step contracts to a Gaussian's mode.

        Without noise, and with the log posterior's Hessian -H held fixed, a step is linear. Below
        the returned step size all eigenvalues of this map lie inside the unit circle. Above it the
        chain leaves the mode, or keeps only to a region that is far too wide.

        Args:
          largest_curvature: the largest eigenvalue \( \lambda \) of M H, where M is
            `metric_product`: a number, or one for each chain.
          step: the step at which schedules are evaluated.
          results: results of the kernel. Their friction or thermostat then replaces the value at
            step 0, and their step replaces `step`.

        Returns:
          A number, or one for each chain; infinite if every step is stable, or if the sampler
          states no limit.
        """
        del largest_curvature, step, results
        return np.inf

    def metric_product(self, vector: State, state: State, results: Any) -> State:
        """Returns M v, where M multiplies the gradient in the dynamics at `state`.

        `vector` has the structure and shapes of the state. M is the identity unless the sampler
        overrides this method.
        """
        del state, results
        return vector

    # AutoGraph would spend seconds reading all that these call, and find nothing to convert.
    @tf.autograph.experimental.do_not_convert
    def bootstrap_results(self, init_state: State) -> Any:
        """Returns the results before the first step, with zeros in the fields about a step.

        Raises:
          ValueError: `init_state` has NaN or infinite entries, or an argument does not fit it.
          TypeError: a part of the state is not floating, or `tfp.mcmc.MetropolisHastings` or
            another wrapper that needs a Metropolis test wraps a kernel without one.
        """
        with compilable(), tf.name_scope(type(self).__name__ + ".bootstrap_results"):
            results = self._init_results(convert_state(init_state, initial=True))
            refuse_wrappers(type(self).__name__, results)
            return results

    @tf.autograph.experimental.do_not_convert
    def one_step(self, current_state: State, previous_kernel_results: Any, seed: Any = None) -> Any:
        """Takes one step. `seed`, one or two integers, is required and determines all draws."""
        with compilable(), tf.name_scope(type(self).__name__ + ".one_step"):
            state = convert_state(current_state)
            check_results(previous_kernel_results)
            return self._update(state, previous_kernel_results, random.as_seed(seed))

    @abc.abstractmethod
    def _init_results(self, state: State) -> Any: ...

    @abc.abstractmethod
    def _update(self, state: State, results: Any, seed: tf.Tensor) -> tuple[State, Any]: ...

    def _numbers(self, step: tf.Tensor, state: State, chain_ndims: int) -> Sequence[tf.Tensor]:
        """Returns the arguments `_number_names` at `step`, scalars or `[chains...]`."""
        return [
            number_at(self._parameters[name], step, state, chain_ndims, name)
            for name in self._number_names
        ]

    def _zeros(self, state: State) -> tf.Tensor:
        """Returns a zero for each chain, `[chains...]`."""
        return tf.zeros(self._target.chain_shape(state), tf.nest.flatten(state)[0].dtype)

    def _first_figures(
        self, state: State, zeros: tf.Tensor, step_size: State, temperature: State
    ) -> dict[str, Any]:
        """Returns the fields that all results have, before the first step."""
        return dict(
            target_log_prob=zeros,
            gradient_norm=zeros,
            step_size=self._reported("step_size", step_size),
            temperature=self._reported("temperature", temperature),
            step=tf.zeros([], tf.int64),
            target_state=self._target.bootstrap(state),
        )

    def _figures(
        self, estimate: GradientEstimate, step_size: State, temperature: State, last: Any
    ) -> dict[str, Any]:
        """Returns these fields after a step. `last` are the results before it."""
        chain_ndims = estimate.log_prob.shape.rank
        return dict(
            target_log_prob=estimate.log_prob,
            gradient_norm=tf.sqrt(squared_norm(estimate.gradient, chain_ndims)),
            step_size=self._reported("step_size", step_size),
            temperature=self._reported("temperature", temperature),
            step=last.step + 1,
            target_state=estimate.target_state,
        )

    def _reported(self, name: str, values: State) -> Any:
        """Returns the values that a step used, by part only if the argument was given by part."""
        is_by_part = tf.nest.is_nested(self._parameters[name])
        return values if is_by_part else tf.nest.flatten(values)[0]


class OverdampedKernel(StochasticGradientKernel):
    """A kernel that moves theta along its gradient, at the state where the step begins.

    `parameters` also has `temperature`. Step size and temperature are numbers or tensors that
    broadcast with the state parts, schedules, or nests of these in the structure of the state. The
    results are about the state that the step left.
    """

    def largest_stable_step(
        self, largest_curvature: Any, step: int = 0, results: Any = None
    ) -> float | np.ndarray:
        r"""Returns \( 4 / \lambda \): a step multiplies by \( 1 - \epsilon \lambda / 2 \).

        If entries of the state have different steps, this is a limit of the largest of them, where
        \( \lambda \) is of E M H with E the diagonal matrix of the steps divided by the largest.
        """
        del step, results
        return overdamped_limit(largest_curvature)

    def _settings(self, step: tf.Tensor, state: State) -> tuple[State, State]:
        """Returns epsilon and T at `step`, one for each part of the state."""
        return (
            value_at(self.step_size, step, state),
            value_at(self._parameters["temperature"], step, state, "temperature"),
        )

    def _start(self, state: State) -> dict[str, Any]:
        """Returns the fields that all results have, before the first step."""
        settings = self._settings(tf.zeros([], tf.int64), state)
        return self._first_figures(state, self._zeros(state), *settings)


def is_schedule(value: Any) -> bool:
    """Returns whether `value` is a callable from step to value."""
    return callable(value) and not tf.is_tensor(value)


def setting_at(value: Any, step: tf.Tensor, name: str = "The setting") -> Any:
    """Returns a schedule's value at `step`, and any other setting unchanged.

    In a graph, raises TypeError for a schedule that needs the step as a number of Python.
    """
    if not is_schedule(value):
        return value
    try:
        return value(step)
    except (TypeError, NotImplementedError) as error:
        if tf.executing_eagerly():
            raise
        raise TypeError(
            f"{name} must be numbers or a schedule of operations of TensorFlow, such as tf.where "
            f"in place of if, and tf.cast in place of np.asarray or float. Received: {value!r}, "
            f"which raised: {error}"
        ) from error


def check_positive(name: str, value: StepSize, zero_allowed: bool = False) -> None:
    """Raises as `numbers` unless a setting is positive (a schedule: at step 0)."""
    expected = "a finite number of at least 0" if zero_allowed else "a positive finite number"
    for leaf in tf.nest.flatten(value):
        if is_schedule(leaf):
            numbers(f"{name} at step 0", _first_value(name, leaf), expected)
        else:
            numbers(name, leaf, expected)


def _first_value(name: str, schedule: Any) -> Any:
    try:
        return schedule(tf.zeros([], tf.int64))
    except Exception as error:  # whatever the user's function raises
        raise TypeError(
            f"{name} must be numbers or a schedule, a function of one argument, the step. "
            f"Received: {schedule!r}, which raised at step 0: {error}"
        ) from error


def value_at(value: StepSize, step: tf.Tensor, state: State, name: str = "step_size") -> State:
    """Evaluates numbers and schedules at `step`, one for each part; raises as `by_part` does."""
    return by_part(name, value, state, lambda v: setting_at(v, step, name))


def number_at(
    value: StepSize, step: tf.Tensor, state: State, chain_ndims: int, name: str
) -> tf.Tensor:
    """Evaluates a number or schedule at `step`: a scalar or `[chains...]`; raises otherwise."""
    part, value = tf.nest.flatten(state)[0], setting_at(value, step, name)
    expected = "a number, or an array or tensor of one number for each chain"
    require(name, value, not tf.nest.is_nested(value), expected)
    value, chains = number_as_dtype(name, value, part.dtype), part.shape[:chain_ndims]
    if value.shape.rank and not value.shape.is_compatible_with(chains):
        raise ValueError(
            f"{name} must be a scalar, or have one number for each chain, shape {chains}. "
            f"Received: shape {value.shape}."
        )
    return value


def check_results(
    results: Any, called: str = "previous_kernel_results", field: str | None = None
) -> None:
    """Raises TypeError unless `results` is a named tuple, with `field`, as those of the kernel."""
    fields = getattr(type(results), "_fields", None)
    if fields is None or (field is not None and field not in fields):
        raise TypeError(
            f"{called} must be what bootstrap_results or the last one_step of the kernel returned. "
            f"Received: {a_type(results)}."
        )


def refuse_wrappers(kernel: str, results: Any) -> None:
    """Raises TypeError if a wrapper that needs a Metropolis test is bootstrapping `kernel`.

    Some wrappers fail only in later steps, or never move. The kernel is not told of its wrapper, so
    this looks for one in the call stack, once in each run. Results with a correction pass.
    """
    if hasattr(results, "log_acceptance_correction"):
        return
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(_MCMC) and module.removeprefix(_MCMC) in _NEEDS:
            name, needs = _NEEDS[module.removeprefix(_MCMC)]
            raise TypeError(
                f"The kernel inside tfp.mcmc.{name} must have a Metropolis test or be made for "
                f"one. Received: {kernel}, which has none. {name} needs {needs}."
            )
        frame = frame.f_back


def check_kernel(name: str, kernel: Any) -> tfp.mcmc.TransitionKernel:
    """Returns `kernel` if it is a `TransitionKernel`; raises TypeError otherwise."""
    if not isinstance(kernel, tfp.mcmc.TransitionKernel):
        is_number = isinstance(kernel, int) and name == "kernel"
        order = " The arguments are kernel, initial_state, num_results, in this order."
        raise TypeError(
            f"{name} must be a tfp.mcmc.TransitionKernel. Received: {a_type(kernel)}."
            f"{order if is_number else ''}"
        )
    return kernel
