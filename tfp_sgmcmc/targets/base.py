"""The interface between kernels and targets, and the target with exact gradients."""

from __future__ import annotations

import abc
import contextlib
import functools
import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import keras
import tensorflow as tf

from tfp_sgmcmc.internal.checks import accepts, function
from tfp_sgmcmc.internal.nest import (
    State,
    call_with_state,
    convert_state,
    part_names,
    state_from_call,
    static_or_dynamic_shape,
)
from tfp_sgmcmc.internal.tfp_mends import mend_tfp

# TensorFlow's names of nodes in a message.
_INTERNAL = re.compile(
    r"\{\{function_node .*?\}\} ?|\s*\[\[\{\{node .*?\}\}\]\]|\s*\[Op:.*", re.DOTALL
)


class ExpansionError(ValueError):
    """Raised if a log posterior has no finite quadratic expansion with a maximum at a state."""


class GradientEstimate(NamedTuple):
    """An estimate of the log posterior and its gradient at one state.

    Attributes:
      gradient: estimated gradient of the log posterior (the log prior plus the sum over all N
        examples), in the structure and shapes of the state.
      log_prob: the log posterior, estimated from the same examples, `[chains...]`.
      scores: rows whose sample covariance (divisor rows - 1) estimates V, the covariance of the
        gradients of single examples' log likelihoods. The rows are those gradients, or scaled means
        of groups of them, `[chains..., rows, event...]` for each part. `()` if they were not
        requested, or if the target has none.
      hessian_product: an unbiased estimate of the posterior's Hessian times the probe, or `()` if
        no probe was given.
      target_state: the state of the target, which the kernel keeps in its results without reading
        it, and passes to the next estimate.
      noise_scale: c in cov(gradient) = c V; 0 for an exact gradient.
      num_scores: number of rows of `scores` that estimate V; None stands for all. A minibatch with
        fewer than two such rows does not enter averages of V.
    """

    gradient: State
    log_prob: tf.Tensor
    scores: Any = ()
    hessian_product: Any = ()
    target_state: Any = ()
    noise_scale: Any = 0.0
    num_scores: Any = None


class Target(abc.ABC):
    """A log posterior that estimates its gradient.

    A target is immutable. `bootstrap` makes the state that it carries from step to step. `estimate`
    takes it as `target_state`, and returns the next one in `GradientEstimate.target_state`.

    Attributes:
      num_examples: N, the number of examples that the log posterior sums over.
      num_scores: rows of `GradientEstimate.scores`; 0 for none, None if unknown.
      noise_scale: c in cov(gradient) = c V; 0 for an exact gradient, None if unknown.
      becomes_exact: whether the estimates become exact along a run, so that c ends at 0.
      default_covariance: the covariance of the gradient noise that `covariance="auto"` stands for.
    """

    default_covariance: str = "full"
    num_examples: int
    num_scores: int | None = 0
    noise_scale: float | None = None
    becomes_exact: bool = False

    @functools.cached_property
    def _programs(self) -> dict[str, Any]:
        """Compiled functions of the log posterior, by name; see `kept_program`."""
        return {}

    def __copy__(self) -> Self:
        other = type(self).__new__(type(self))
        vars(other).update(vars(self))
        return other

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out compiled programs, which pickle cannot store."""
        return {name: x for name, x in vars(self).items() if name != "_programs"}

    @abc.abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        """Returns the exact log posterior, shape `[chains...]`."""

    @abc.abstractmethod
    def estimate(
        self,
        state: State,
        seed: tf.Tensor,
        target_state: Any = (),
        probe: State = None,
        with_scores: bool = True,
    ) -> GradientEstimate:
        """Estimates the gradient of the log posterior.

        Args:
          state: the state of the chains, a tensor or a nest of tensors.
          seed: `int32` tensor of shape `[2]` that determines the minibatch.
          target_state: the target state that `bootstrap` or the last estimate returned.
          probe: a vector for `GradientEstimate.hessian_product`, structured as the state, or None.
          with_scores: whether to return scores, which cost more than the gradient.
        """

    def log_prob_of_many(self, states: State) -> tf.Tensor:
        """Returns the exact log posterior at many states, `[S]`, without derivatives."""
        return call_with_state(self, states)

    @abc.abstractmethod
    def chain_shape(self, state: State) -> Any:
        """Returns the leading chain dimensions: a static shape if known, otherwise a tensor."""

    def bootstrap(self, state: State) -> Any:
        """Returns the target state before the first estimate; raises if it cannot estimate."""
        del state
        return ()


class FullDataLogProb(Target):
    """A plain `target_log_prob_fn` as a target, whose estimate is the exact gradient.

    Raises:
      TypeError: the function is not callable. On the first use: it does not return numbers of the
        state's dtype.
      ValueError: on the first use: its result has more dimensions than a part of the state, or does
        not depend on a part.
    """

    num_examples = 1
    noise_scale = 0.0
    _called = "target_log_prob_fn"

    def __init__(self, target_log_prob_fn: Callable[..., tf.Tensor]):
        mend_tfp()
        self._target_log_prob_fn = function(
            "target_log_prob_fn", target_log_prob_fn, "state parts -> log probabilities"
        )
        with contextlib.suppress(TypeError, ValueError):  # some callables have no signature
            # For `call_with_state`, which asks whether the parts can go by name.
            self.__signature__ = inspect.signature(target_log_prob_fn)

    def __call__(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        return self._log_prob(convert_state(state_from_call(args, kwargs)))

    def chain_shape(self, state: State) -> Any:
        return static_or_dynamic_shape(self._log_prob(state))

    def bootstrap(self, state: State) -> Any:
        value_and_gradient(self._log_prob, state)
        return ()

    def _log_prob(self, state: State) -> tf.Tensor:
        return log_prob_from(self._called, self._target_log_prob_fn, state)

    def estimate(
        self,
        state: State,
        seed: tf.Tensor,
        target_state: Any = (),
        probe: State = None,
        with_scores: bool = True,
    ) -> GradientEstimate:
        del seed, with_scores
        state = convert_state(state)
        log_prob, gradient, product = value_and_gradient(self._log_prob, state, probe)
        return GradientEstimate(gradient, log_prob, (), product, target_state)


def kept_program(target: Target, name: str, like: State, make: Callable[[], Any]) -> Any:
    """Returns `make()`, compiled functions of all data, and keeps them as long as the target.

    Args:
      target: the target. A copy with another minibatch shares its programs, and one with another
        bijector has its own.
      name: the name of the functions.
      like: a state with the structure, shapes and dtypes of their arguments.
      make: makes them.
    """
    parts = tf.nest.flatten(like)
    specs = [(tuple(x.shape), x.dtype.name) for x in parts]
    structure = tf.nest.pack_sequence_as(like, [*range(len(parts))])
    key = f"{name} {structure} {specs}"
    if key not in target._programs:
        target._programs[key] = make()
    return target._programs[key]


def as_target(
    target_log_prob_fn: Any,
    full_data_expected: bool = False,
    called: str = "target_log_prob_fn",
) -> Target:
    """Returns a target unchanged, and wraps a plain callable in `FullDataLogProb`.

    `called` is the name of the argument in messages. Warns about a plain callable unless
    `full_data_expected`, because wrappers such as `tfp.mcmc.TransformedTransitionKernel` pass
    kernels a closure, which loses the minibatches.
    """
    if isinstance(target_log_prob_fn, Target):
        return target_log_prob_fn
    function(called, target_log_prob_fn, "state parts -> log probabilities")
    target = FullDataLogProb(target_log_prob_fn)
    target._called = called
    if not full_data_expected:
        warnings.warn(
            "target_log_prob_fn is a plain callable, not a tfp_sgmcmc target, so every step "
            "computes its exact gradient. For minibatches pass a MinibatchLogProb, with a bijector "
            "for constrained parameters (TransformedTransitionKernel hides the target). For the "
            "exact gradient pass FullDataLogProb(fn), which does not warn.",
            stacklevel=4,  # the line that makes the kernel
        )
    return target


def innermost(target: Any) -> Any:
    """Returns what a target wraps, and that wraps, down to one that wraps no target."""
    while isinstance(getattr(target, "target", None), Target):
        target = target.target
    return target


def log_prob_from(name: str, fn: Callable[..., Any], state: State) -> tf.Tensor:
    """Calls the user's function `name` with the state, and checks its result, `[chains...]`.

    Raises TypeError if the signature does not fit, or if the result does not have the state's
    dtype. Raises ValueError if its shape does not consist of leading dimensions of all parts.
    """
    try:
        value = call_with_state(fn, state)
    except (TypeError, ValueError) as error:
        refuse_model(name, fn, error)
        if "name_scope must be a string" in str(error):  # a tfd.Distribution's second argument
            raise TypeError(
                f"{name} must take the {len(tf.nest.flatten(state))} parts of the state. Received: "
                "a distribution's method, which takes one. An array is one part, a list is not."
            ) from error
        if isinstance(error, TypeError):
            check_signature(name, fn, state)
        raise
    result = numbers_from(name, value, state)
    for leaf in tf.nest.flatten(state):
        rank = result.shape.rank
        if rank is not None and not result.shape.is_compatible_with(leaf.shape[:rank]):
            raise ValueError(
                f"{name} must return shape [chains...], one number for each chain (sum over the "
                "event dimensions, or wrap the prior in tfd.Independent). Received: shape "
                f"{result.shape} for a state part of shape {leaf.shape}."
            )
    return result


def refuse_model(name: str, fn: Any, error: Exception) -> None:
    """Raises TypeError if the user's function that raised `error` is a Keras model."""
    if isinstance(fn, keras.Model):
        raise TypeError(
            f"{name} must return log probabilities of the parameters to sample. Received: the "
            f"Keras model {fn.name!r}, which maps inputs to outputs. To sample a model's weights, "
            "call fit with a tfp_sgmcmc.keras.SamplerCallback."
        ) from error


def message_of(error: Exception) -> str:
    """Returns the message of an error without TensorFlow's names of nodes."""
    return _INTERNAL.sub("", getattr(error, "message", str(error))).strip()


def numbers_from(name: str, value: Any, state: State) -> tf.Tensor:
    """Converts a result of the user's function `name` to a tensor, and checks its dtype."""
    if value is None:
        raise TypeError(f"{name} must return log probabilities. Received: None.")
    try:
        result = tf.convert_to_tensor(value)
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        raise TypeError(f"{name} must return log probabilities. Received: {value!r}.") from error
    for dtype in [x.dtype.name for x in tf.nest.flatten(state) if x.dtype != result.dtype]:
        raise TypeError(
            f"{name} must return the dtype of the state part, {dtype}. Received: "
            f"{result.dtype.name}. The target's argument dtype='{dtype}' casts floating data."
        )
    return result


def check_signature(name: str, fn: Callable[..., Any], state: State, **extra: Any) -> None:
    """Raises TypeError if the signature of `fn` does not accept the state and `extra`."""
    if hasattr(state, "_asdict"):  # its parts go by name or by position
        return
    try:
        call_with_state(functools.partial(accepts, name, fn), state, **extra)
    except TypeError as error:
        shapes, form = tf.nest.map_structure(lambda x: str(x.shape), state), ""
        if isinstance(batch := extra.get("batch"), list | tuple) and len(batch) > 1:
            form = f" The batch is one argument, a {type(batch).__name__} of {len(batch)} parts."
        raise TypeError(f"{error} The state has parts of shapes {shapes}.{form}") from error


def value_and_gradient(
    fn: Callable[[State], tf.Tensor], state: State, probe: State = None, *, connected: bool = True
) -> tuple[tf.Tensor, State, State]:
    """Returns `fn(state)`, its gradient, and the Hessian times `probe` (`()` without a probe).

    Raises ValueError if `connected` and `fn` does not depend on a part of the state.
    """
    # New tensors, because bijectors cache results of tensors that an earlier tape has watched.
    leaves = [tf.identity(x) for x in tf.nest.flatten(state)]
    unconnected = tf.UnconnectedGradients.NONE if connected else tf.UnconnectedGradients.ZERO

    def first_order() -> tuple[tf.Tensor, list[Any]]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(leaves)
            value = fn(tf.nest.pack_sequence_as(state, leaves))
        gradient = tape.gradient(value, leaves, unconnected_gradients=unconnected)
        # The gradient of tf.gather is tf.IndexedSlices.
        return value, [g if g is None else tf.convert_to_tensor(g) for g in gradient]

    if probe is None:
        value, gradient = first_order()
        product = ()
    else:
        with tf.GradientTape(watch_accessed_variables=False) as outer:
            outer.watch(leaves)
            value, gradient = first_order()
            pairs = zip(gradient, tf.nest.flatten(probe), strict=True)
            along = [tf.reduce_sum(g * p) for g, p in pairs if g is not None]
        product = outer.gradient(along, leaves, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        product = tf.nest.pack_sequence_as(state, product)
    return value, check_connected(state, gradient), product


class UnconnectedError(ValueError):
    """The log posterior does not depend on a part of the state, leaf number `place`."""

    def __init__(self, name: str, place: int):
        super().__init__(
            "The log posterior must depend on every part of the state. Received: the gradient "
            f"with respect to {name} is None. Use the part in log_prior_fn or "
            "log_likelihood_fn, or leave it out of the state."
        )
        self.place = place


def check_connected(state: State, gradient: Sequence[Any]) -> State:
    """Packs a tape's gradients as the state, as dense tensors; raises UnconnectedError for None."""
    for place, (name, g) in enumerate(zip(part_names(state), gradient, strict=True)):
        if g is None:
            raise UnconnectedError(name, place)
    # The gradient of tf.gather is tf.IndexedSlices.
    return tf.nest.pack_sequence_as(state, [tf.convert_to_tensor(g) for g in gradient])
