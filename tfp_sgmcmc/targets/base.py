"""The interface between kernels and targets, and the target that uses the exact gradient."""

from __future__ import annotations

import abc
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_sgmcmc.state import State, call_with_state, part_names, static_or_dynamic_shape


class GradientEstimate(NamedTuple):
    """What a target says of the log posterior at one state.

    Attributes:
      gradient: estimate of the gradient of the log posterior (the sum over all N examples plus the
        log prior); structure and shapes of the state.
      log_prob: estimate of the log posterior from the same examples, shape `[chains...]`.
      scores: rows whose sample covariance (divisor rows - 1) estimates V, the covariance of the
        gradients of single examples' log likelihoods: those gradients, or scaled means of groups
        of them, `[chains..., rows, event...]` a part; `()` where not asked for or where the target
        has none.
      hessian_product: product of the Hessian of the same estimate with the given probe, structure
        of the state, or `()` where no probe was given.
      target_state: the target's own state after this estimate.
      noise_scale: c in cov(gradient) = c V; 0 for an exact gradient.
    """

    gradient: State
    log_prob: tf.Tensor
    scores: Any = ()
    hessian_product: Any = ()
    target_state: Any = ()
    noise_scale: Any = 0.0


class Target(abc.ABC):
    """A log posterior that gives estimates of its gradient.

    A target holds no state that changes: what it carries from step to step is made by `bootstrap`,
    goes into `estimate`, comes out of it, and is kept in the kernel's results.
    """

    #: N, the number of examples that the log posterior sums over.
    num_examples: int
    #: Rows of `GradientEstimate.scores`; 0 for a target that has none, None where it is not known
    #: beforehand.
    num_scores: int | None = 0
    #: c in cov(gradient) = c V: 0 for an exact gradient, None where it is not known beforehand.
    noise_scale: float | None = None

    @abc.abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        """The exact log posterior, shape `[chains...]`."""

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
          state: where; a tensor or a nest of tensors.
          seed: `int32` tensor of shape `[2]`: names the minibatch.
          target_state: what `bootstrap` or the last estimate returned.
          probe: structure of the state, or None; see `GradientEstimate.hessian_product`.
          with_scores: whether to give scores, if the target has them; they cost more than the
            gradient alone.
        """

    @abc.abstractmethod
    def chain_shape(self, state: State) -> Any:
        """Shape of the leading chain dimensions of `state`: static where known, else a tensor."""

    def bootstrap(self, state: State) -> Any:
        """Returns the target's state before the first estimate; raises if it cannot estimate."""
        del state
        return ()


class FullDataLogProb(Target):
    """A plain `target_log_prob_fn` as a target: its estimate is the exact gradient."""

    num_examples = 1
    noise_scale = 0.0

    def __init__(self, target_log_prob_fn: Callable[..., tf.Tensor]):
        if not callable(target_log_prob_fn):
            raise TypeError(
                f"target_log_prob_fn is a {type(target_log_prob_fn).__name__}; a callable that "
                "takes the state parts and returns log probabilities is expected."
            )
        self._target_log_prob_fn = target_log_prob_fn

    def __call__(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        return self._target_log_prob_fn(*args, **kwargs)

    def chain_shape(self, state: State) -> Any:
        return static_or_dynamic_shape(call_with_state(self, state))

    def bootstrap(self, state: State) -> Any:
        value_and_gradient(lambda s: call_with_state(self, s), state)
        return ()

    def estimate(
        self,
        state: State,
        seed: tf.Tensor,
        target_state: Any = (),
        probe: State = None,
        with_scores: bool = True,
    ) -> GradientEstimate:
        del seed, with_scores
        log_prob, gradient, product = value_and_gradient(
            lambda s: call_with_state(self, s), state, probe
        )
        return GradientEstimate(gradient, log_prob, (), product, target_state)


def as_target(target_log_prob_fn: Any, full_data_expected: bool = False) -> Target:
    """Returns a target as it is, and wraps a plain callable into `FullDataLogProb`.

    Warns for a plain callable unless `full_data_expected`: a wrapper such as
    `tfp.mcmc.TransformedTransitionKernel` hands kernels a closure around the target, and the
    minibatches are lost with it.
    """
    if isinstance(target_log_prob_fn, Target):
        return target_log_prob_fn
    target = FullDataLogProb(target_log_prob_fn)
    if not full_data_expected:
        warnings.warn(
            "target_log_prob_fn is a plain callable, not a tfp_sgmcmc target: every step computes "
            "its exact gradient. For minibatches pass a MinibatchLogProb (and for constrained "
            "parameters give that its bijector; TransformedTransitionKernel hides the target). "
            "To say that the full data is meant, pass FullDataLogProb(fn).",
            stacklevel=4,  # the line that makes the kernel
        )
    return target


def value_and_gradient(
    fn: Callable[[State], tf.Tensor], state: State, probe: State = None, *, connected: bool = True
) -> tuple[tf.Tensor, State, State]:
    """Returns `fn(state)`, its gradient, and the Hessian times `probe` (`()` without a probe).

    Raises:
      ValueError: if `connected` and `fn` does not depend on a part of the state.
    """
    # New tensors: bijectors remember what they made of a tensor, under a tape that is gone.
    leaves = [tf.identity(x) for x in tf.nest.flatten(state)]
    unconnected = tf.UnconnectedGradients.NONE if connected else tf.UnconnectedGradients.ZERO

    def first_order() -> tuple[tf.Tensor, list[Any]]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(leaves)
            value = fn(tf.nest.pack_sequence_as(state, leaves))
        gradient = tape.gradient(value, leaves, unconnected_gradients=unconnected)
        # A lookup by tf.gather has tf.IndexedSlices for its gradient.
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


def check_connected(state: State, gradient: Sequence[Any]) -> State:
    """Returns a tape's gradient by the parts, dense and packed as the state.

    Raises:
      ValueError: it is None for a part.
    """
    for name, g in zip(part_names(state), gradient, strict=True):
        if g is None:
            raise ValueError(
                f"The log posterior does not depend on {name}: its gradient is None. "
                "Use the part in log_prior_fn or log_likelihood_fn, or leave it out of the state."
            )
    # A lookup by tf.gather has tf.IndexedSlices for its gradient.
    return tf.nest.pack_sequence_as(state, [tf.convert_to_tensor(g) for g in gradient])


@tf.custom_gradient
def of_first_order(gradient: tf.Tensor, leaf: tf.Tensor) -> Any:
    """Returns `gradient`, by `leaf`; raises rather than take its own gradient for zero."""

    def second_order(_: tf.Tensor) -> Any:
        raise NotImplementedError(
            "A log posterior evaluated in chunks has first derivatives only; "
            "chunk_size=num_examples evaluates it at once, with derivatives of every order."
        )

    del leaf
    return tf.identity(gradient), second_order
