"""The base class of targets made from a log prior and the log likelihood of each example."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tree

from tfp_sgmcmc.internal.checks import function
from tfp_sgmcmc.internal.nest import State, call_with_state, static_or_dynamic_shape
from tfp_sgmcmc.targets.base import Target, check_signature, log_prob_from, numbers_from
from tfp_sgmcmc.targets.bijectors import (
    check_bijectors,
    is_joint,
    joint_log_det,
    map_bijectors,
    map_jointly,
)
from tfp_sgmcmc.targets.linear_model import LinearModel

# Words of errors that a mixture of dtypes may have raised; TensorFlow calls float64 "double".
_OF_TYPES = re.compile(r"\b(dtypes?|types?|double|half|bool|u?int\d*|float\d*)\b")


class ModelTarget(Target):
    """Evaluates a model's log prior and log likelihood, and checks their results.

    `MinibatchLogProb` documents the arguments.
    """

    row_weights: Any = None  # factors of a minibatch's rows in its sums, `[n]`; None for ones
    number = 0  # of this target among the parts of a target
    replicas: Any = None  # the `Replicas` that hold the parts of a target

    def __init__(
        self,
        log_prior_fn: Callable[..., tf.Tensor],
        log_likelihood_fn: Callable[..., tf.Tensor],
        bijector: Any,
    ):
        self._log_prior_fn = function("log_prior_fn", log_prior_fn)
        self._log_likelihood_fn = function("log_likelihood_fn", log_likelihood_fn)
        check_bijectors(bijector)
        self.bijector, self._is_joint = bijector, is_joint(bijector)

    def constrain(self, state: State) -> State:
        """Maps an unconstrained state (or samples of it) to the parameters of the model."""
        return self._mapped("forward", state)

    def _parameters(self, state: State) -> State:
        try:
            return self.constrain(state)
        except tf.errors.InvalidArgumentError as error:
            _explain_failure("bijector", error, state)
            raise

    def unconstrain(self, state: State) -> State:
        """Maps parameters of the model to the unconstrained state that kernels move."""
        return self._mapped("inverse", state)

    def _mapped(self, method: str, state: State) -> State:
        if self._is_joint:
            return map_jointly(self.bijector, getattr(self.bijector, method), state)
        return map_bijectors(self.bijector, lambda b, x: getattr(b, method)(x), state)

    def weighted(self, values: tf.Tensor) -> tf.Tensor:
        """Multiplies values of a minibatch's examples, `[..., n]`, by their weights."""
        if self.row_weights is None:
            return values
        return values * tf.cast(self.row_weights, values.dtype)

    @property
    def parts(self) -> list[Any]:
        """The parts of this target in this process; a target that is not split is its only part."""
        return [self]

    def summed(self, fn: Callable[[Any], Any]) -> Any:
        """Returns `fn(self)`, sums over examples. A target in parts adds those of its parts."""
        return fn(self)

    def gathered(self, fn: Callable[[Any], Any], axis: int) -> Any:
        """Returns `fn(self)`, rows along `axis`, whose sample covariance estimates V.

        A target in parts joins the rows `fn(part)` of its parts, without changing their sum.
        """
        del axis
        return fn(self)

    @property
    def linear_model(self) -> LinearModel | None:
        """The log likelihood, if it is a `LinearModel` of weights that are affine in the state."""
        bijectors = (b for b in tf.nest.flatten(self.bijector) if b is not None)
        is_affine = all(b.is_constant_jacobian for b in bijectors)
        fn = self._log_likelihood_fn
        return fn if is_affine and isinstance(fn, LinearModel) else None

    def linear_predictor(self, state: State, batch: Any) -> tf.Tensor:
        """Returns the predictor of `linear_model`, `[chains..., n]` or `[chains..., n, C]`."""
        model = self.linear_model
        assert model is not None
        return call_with_state(model.predictor, self._parameters(state), batch=batch)

    def chain_shape(self, state: State) -> Any:
        return static_or_dynamic_shape(self.log_prior(state))

    def log_prior(self, state: State) -> tf.Tensor:
        """Returns the log prior of the unconstrained state, Jacobian included, `[chains...]`."""
        try:
            parameters = self._parameters(state)
            result = log_prob_from("log_prior_fn", self._log_prior_fn, parameters)
        except tf.errors.InvalidArgumentError as error:
            _explain_failure("log_prior_fn", error, state)
            raise
        if self.bijector is None:
            return result
        if self._is_joint:
            return result + joint_log_det(self.bijector, state, result.shape.rank)
        terms = map_bijectors(
            self.bijector,
            lambda b, x: b.forward_log_det_jacobian(x, x.shape.rank - result.shape.rank),
            state,
            otherwise=lambda x: tf.zeros([], x.dtype),
        )
        return result + tf.add_n([t + tf.zeros_like(result) for t in tf.nest.flatten(terms)])

    def log_likelihood(
        self, state: State, batch: Any, size: int, chain_shape: Any = None
    ) -> tf.Tensor:
        """Returns the log likelihoods of a batch of `size` examples, `[chains..., size]`."""
        if chain_shape is None:
            chain_shape = self.log_prior(state).shape
        name, fn, parameters = "log_likelihood_fn", self._log_likelihood_fn, self._parameters(state)
        try:
            result = call_with_state(fn, parameters, batch=batch)
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            if isinstance(error, TypeError):
                check_signature(name, fn, parameters, batch=batch)
            _explain_failure(name, error, state, batch)
            raise
        result = numbers_from(name, result, state)
        expected = tf.TensorShape(chain_shape).concatenate(size)
        if not result.shape.is_compatible_with(expected):
            raise ValueError(
                f"log_likelihood_fn must return shape {expected}, [chains..., n]: the log "
                "likelihood of each example, not their sum or mean, and without event dimensions. "
                f"Received: shape {result.shape}. The chain dimensions "
                f"{tf.TensorShape(chain_shape)} are the shape that log_prior_fn returned, which "
                "must be summed over event dimensions, too."
            )
        return result


def _explain_failure(name: str, error: Exception, state: Any, batch: Any = ()) -> None:
    """Raises an error that names the inputs of a user's function, if they are a likely cause."""
    parts, leaves = tf.nest.flatten(state), tf.nest.flatten(batch)
    dtype = parts[0].dtype.name
    # Integers are often meant to be integers, so they come last.
    for path, x in sorted(
        tree.flatten_with_path(batch), key=lambda named: not named[1].dtype.is_floating
    ):
        if x.dtype == parts[0].dtype or not _OF_TYPES.search(str(error)):
            continue
        where = "".join(f"[{key!r}]" for key in path)
        cure = f"cast it in {name}, as by tf.cast(batch{where}, '{dtype}'), if it is to be floating"
        if x.dtype.is_floating:
            cure = (
                f"pass dtype='{dtype}' to the target, or cast the rows of its dataset, or start "
                f"from a {x.dtype.name} state"
            )
        raise TypeError(
            f"{name} failed for a state of dtype {dtype} and data{where} of dtype {x.dtype.name}: "
            f"{cure}. It raised: {error}"
        ) from error
    if isinstance(error, tf.errors.InvalidArgumentError):
        shapes = ", ".join(str(x.shape) for x in parts)
        examples = hint = ""
        if leaves:
            examples = f" and examples of {', '.join(str(x.shape) for x in leaves)}"
            hint = (
                " If shapes do not fit: parameters have leading axes of chains, so a number needs "
                "an axis for the examples, as in theta[..., None]."
            )
        raise ValueError(
            f"{name} failed for a state of shapes {shapes}{examples}. It raised: {error.message}"
            f"{hint}"
        ) from error
