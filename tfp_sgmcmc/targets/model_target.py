"""The base class of targets made from a log prior and the log likelihood of each example.

`LinearModel` is the log likelihood of a regression, which depends on the weights through a linear
predictor.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfp_sgmcmc.internal.checks import accepts, function, integer, optional
from tfp_sgmcmc.internal.nest import (
    State,
    call_with_state,
    convert_state,
    named_parts,
    static_or_dynamic_shape,
)
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.targets.base import (
    Target,
    check_signature,
    kept_program,
    log_prob_from,
    message_of,
    numbers_from,
    refuse_model,
)
from tfp_sgmcmc.targets.bijectors import (
    check_bijectors,
    is_joint,
    joint_log_det,
    map_bijectors,
    map_jointly,
)

# Words of errors that a mixture of dtypes may have raised; TensorFlow calls float64 "double".
_OF_TYPES = re.compile(r"\b(dtypes?|types?|double|half|bool|u?int\d*|float\d*)\b")
_UNEQUAL_TYPES = re.compile(r"must have the same dtype, got tf\.(\w+) != tf\.(\w+)")


class LinearModel:
    r"""The log likelihood of a generalized linear model, as a `log_likelihood_fn`.

    \[
    \log p(y_i \mid x_i, w) = f(\eta_i, y_i), \qquad \eta_i = x_i^T w
    \]

    The data of the target are a pair `(x, y)`. The gradient of example i is then
    \( f'(\eta_i, y_i) x_i \), so `ControlVariate` and `SVRG` compute differences of gradients,
    remainders of second order, pilot probabilities and the scores of single examples by a few
    products with x instead of automatic differentiation. With \( d = w - \hat w \) and
    \( \hat \eta = X \hat w \), the remainders of second order add up to

    \[
    \sum_{i \in S} s_i(w) = X^T \left[ f'(X w) - f'(\hat \eta) - \omega f''(\hat \eta) X d \right],
    \]

    where \( \omega \) is the weight that `ControlVariate` calls w. The results are the same up to
    rounding. Affine bijectors, such as the one of `whiten`, keep this form. With other bijectors
    the log likelihood is differentiated automatically, as any other. Automatic differentiation with
    respect to \( \eta \) gives the derivatives of f, so f is any function of the predictor:
    Bernoulli, Poisson, normal, Student's t, or, with several outputs, categorical.

    Examples:
      >>> import numpy as np, tensorflow as tf, tensorflow_probability as tfp
      >>> import tfp_sgmcmc as sgmcmc
      >>> tfd, rng = tfp.distributions, np.random.default_rng(0)
      >>> x = rng.normal(size=[10_000, 5]).astype(np.float32)
      >>> y = rng.poisson(np.exp(0.2 * x.sum(axis=1))).astype(np.float32)
      >>> target = sgmcmc.MinibatchLogProb(
      ...     lambda w: -0.5 * tf.reduce_sum(w**2, axis=-1),
      ...     sgmcmc.LinearModel(lambda eta, y: tfd.Poisson(log_rate=eta).log_prob(y)),
      ...     data=(x, y), batch_size=100)
      >>> center, _ = sgmcmc.find_center(target, tf.zeros([5]))
      >>> whitened, bijector = sgmcmc.whiten(target, center)
      >>> control = sgmcmc.ControlVariate(whitened, tf.zeros([5]), order=2, importance="pilot")
      >>> kernel = sgmcmc.UnderdampedLangevin(control, step_size=1., friction=1.5)
      >>> z = tfp.mcmc.sample_chain(10, tf.zeros([4, 5]), kernel=kernel, trace_fn=None, seed=1)
      >>> bijector.forward(z).shape
      TensorShape([10, 4, 5])

      Softmax regression has weights `[D, C]`. Its y may be any nest, with offsets or exposures:

      >>> softmax = sgmcmc.LinearModel(
      ...     lambda eta, y: tfd.Categorical(logits=eta).log_prob(y), num_outputs=3)
      >>> softmax(tf.zeros([4, 5, 3]), (x[:7], np.zeros([7], np.int32))).shape
      TensorShape([4, 7])

    Args:
      log_prob_fn: `log_prob_fn(eta, y)` returns each example's log likelihood, `[chains..., n]`,
        from its predictor and its y alone. `eta` has shape `[chains..., n]`, or
        `[chains..., n, C]` with `num_outputs`. Leaves of `y` are `[n, ...]` or
        `[chains..., n, ...]`.
      num_outputs: None for weights `[D]`, C for weights `[D, C]`. The weights are the only part of
        the state; a dict calls them "weights".

    Raises:
      TypeError: `log_prob_fn` is not callable with two arguments. On the first use: the data are
        not a pair.
      ValueError: `num_outputs` is below 1. On the first use: x is not `[N, D]`, or the weights have
        another shape.

    References:
      P. McCullagh and J. A. Nelder. Generalized Linear Models. Chapman and Hall, 1989. Section 2.2.
    """

    def __init__(self, log_prob_fn: Callable[[Any, Any], Any], num_outputs: int | None = None):
        function("log_prob_fn", log_prob_fn, "(eta, y) -> log likelihoods")
        self._log_prob_fn = accepts("log_prob_fn", log_prob_fn, "eta", "y")
        optional(integer, "num_outputs", num_outputs, 1)
        self.num_outputs = num_outputs

    def __call__(self, weights: Any, batch: Any) -> tf.Tensor:
        return self.log_prob(self.predictor(weights, batch), batch)

    def log_prob(self, eta: tf.Tensor, batch: Any) -> Any:
        """Returns the log likelihood of each example of `batch`, given its predictor."""
        return self._log_prob_fn(eta, _pair(batch)[1])

    def features(self, batch: Any) -> tf.Tensor:
        """Returns x, `[n, D]`."""
        return tf.convert_to_tensor(_pair(batch)[0])

    def predictor(self, weights: Any, batch: Any) -> tf.Tensor:
        r"""Returns \( \eta \), of shape `[chains..., n]` or `[chains..., n, C]`."""
        x, weights = self.features(batch), tf.convert_to_tensor(weights)
        event = [x.shape[-1]] if self.num_outputs is None else [x.shape[-1], self.num_outputs]
        if x.shape.rank < 2 or not weights.shape[-len(event) :].is_compatible_with(event):
            raise ValueError(
                f"LinearModel takes data (x, y) with x of shape [N, D], and weights of shape "
                f"{'[D]' if len(event) == 1 else f'[D, {event[1]}]'} behind chain dimensions with "
                f"num_outputs={self.num_outputs}. "
                f"Received: examples of x of shape {x.shape}, weights of shape {weights.shape}."
            )
        if x.shape.rank > 2 or weights.shape.rank == len(event):
            return (tf.linalg.matvec if len(event) == 1 else tf.linalg.matmul)(x, weights)
        if len(event) == 1:  # all chains see the same examples: one product for all of them
            return tf.linalg.matmul(weights, x, transpose_b=True)
        return tf.einsum("nd,...dc->...nc", x, weights)


def _pair(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise TypeError(
            "LinearModel takes data (x, y), a pair of features [N, D] and a nest of what else the "
            f"log likelihood needs. Received: {tf.nest.map_structure(lambda x: x.shape, batch)}."
        )
    return batch[0], batch[1]


class ModelTarget(Target):
    """Evaluates a model's log prior and log likelihood, and checks their results.

    `MinibatchLogProb` documents the arguments.
    """

    row_weights: Any = None  # factors of a minibatch's rows in its sums, `[n]`; None for ones
    number = 0  # of this target among the parts of a target
    replicas: Any = None  # the `Replicas` that hold the parts of a target
    has_prior: bool = True  # whether log_prior_fn is the prior, and not a part of it
    _dtype_advice = "pass dtype='{dtype}' to the target"  # if data have another dtype

    def __init__(
        self,
        log_prior_fn: Callable[..., tf.Tensor],
        log_likelihood_fn: Callable[..., tf.Tensor],
        bijector: Any,
    ):
        self._log_prior_fn = function("log_prior_fn", log_prior_fn)
        self._log_likelihood_fn = function("log_likelihood_fn", log_likelihood_fn)
        check_bijectors(bijector)
        self.bijector = bijector

    def constrain(self, state: State) -> State:
        """Maps an unconstrained state (or samples of it) to the parameters of the model."""
        return self._mapped("forward", convert_state(state))

    def _parameters(self, state: State) -> State:
        try:
            return self.constrain(state)
        except tf.errors.InvalidArgumentError as error:
            _explain_failure("bijector", error, state)
            raise

    def unconstrain(self, state: State) -> State:
        """Maps parameters of the model to the unconstrained state that kernels move."""
        return self._mapped("inverse", convert_state(state))

    def _mapped(self, method: str, state: State) -> State:
        if self.bijector is None:
            return state
        if is_joint(self.bijector):
            fn = getattr(self.bijector, method)
            name = f"{method} of a joint bijector"
            return self._in_graph(name, state, lambda s: map_jointly(self.bijector, fn, s))
        return map_bijectors(self.bijector, lambda b, x: _applied(b, method, x), state)

    def _in_graph(self, name: str, state: State, fn: Callable[[State], Any]) -> Any:
        """Returns `fn(state)`; TFP would trace the bijector of automatic batches in each call."""
        if not tf.executing_eagerly():
            return fn(state)
        state = tf.nest.map_structure(tf.convert_to_tensor, state)
        return kept_program(self, name, state, lambda: traced(fn))(state)

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
        name = "log_prior_fn" if self.has_prior else "target"
        return self._log_density(name, self._log_prior_fn, state)

    def _log_density(self, name: str, fn: Callable[..., Any], state: State) -> tf.Tensor:
        """Returns a function of the parameters, a log density, at the unconstrained state."""
        try:
            result = log_prob_from(name, fn, self._parameters(state))
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            _explain_failure(name, error, state)
            raise
        if self.bijector is None:
            return result
        if is_joint(self.bijector):
            rank, bijector = result.shape.rank, self.bijector
            key = f"log determinant with {rank} axes of chains"
            return result + self._in_graph(key, state, lambda s: joint_log_det(bijector, s, rank))
        terms = map_bijectors(
            self.bijector,
            lambda b, x: b.forward_log_det_jacobian(x, x.shape.rank - result.shape.rank),
            state,
            otherwise=lambda x: tf.zeros([], x.dtype),
        )
        return result + tf.add_n([t + tf.zeros_like(result) for t in tf.nest.flatten(terms)])

    def model_log_prior(self, state: State) -> tf.Tensor:
        """Returns the log prior of the model, without what a target may add to `log_prior`."""
        return self.log_prior(state)

    def log_likelihood(
        self, state: State, batch: Any, size: int, chain_shape: Any = None
    ) -> tf.Tensor:
        """Returns the log likelihoods of a batch of `size` examples, `[chains..., size]`."""
        if chain_shape is None:
            chain_shape = self.log_prior(state).shape
        name, fn, parameters = "log_likelihood_fn", self._log_likelihood_fn, self._parameters(state)
        name = name if self.has_prior else "target"
        try:
            result = call_with_state(fn, parameters, batch=batch)
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            refuse_model(name, fn, error)
            if isinstance(error, TypeError):
                check_signature(name, fn, parameters, batch=batch)
            _explain_failure(name, error, state, batch, self._dtype_advice)
            raise
        result = numbers_from(name, result, state)
        expected = tf.TensorShape(chain_shape).concatenate(size)
        if not result.shape.is_compatible_with(expected):
            if not self.has_prior:
                raise ValueError(
                    f"target must return shape {tf.TensorShape(chain_shape)}, [chains...]: a "
                    "number for each chain, summed over event dimensions and not over chains. "
                    f"Received: shape {result.shape[:-1]}."
                )
            raise ValueError(
                f"log_likelihood_fn must return shape {expected}, [chains..., n]: the log "
                "likelihood of each example, not their sum or mean, and without event dimensions. "
                f"Received: shape {result.shape}. The chain dimensions "
                f"{tf.TensorShape(chain_shape)} are the shape that log_prior_fn returned, which "
                "must be summed over event dimensions, too, and not over chains."
                f"{_column_of_data(batch, size) if result.shape[-2:] == [size, size] else ''}"
            )
        return result


def _applied(bijector: Any, method: str, part: Any) -> Any:
    try:
        return getattr(bijector, method)(part)
    except ValueError as error:
        forward = method == "forward"
        expected = "an unconstrained part of the state" if forward else "a parameter"
        raise ValueError(
            f"bijector must have a method {method} for {expected}. Received: the bijector "
            f"{bijector.name} and a part of shape {part.shape} and dtype {part.dtype.name}. "
            f"It raised: {error}"
            f"{_shape_of_inverse(bijector, part) if forward else ''}"
        ) from error


def _shape_of_inverse(bijector: Any, part: Any) -> str:
    """Returns a sentence for a parameter where an unconstrained part should be, or nothing."""
    try:
        shape = bijector.inverse_event_shape(part.shape)
    except Exception:  # whatever TFP raises here must not hide the error that is told
        return ""
    return f" If the part is a parameter, give its inverse by the bijector, of shape {shape}."


def _column_of_data(batch: Any, size: int) -> str:
    """Returns a sentence that names data of one column, which may have met a row, or nothing."""
    for where, x in named_parts(batch, ""):
        if size > 1 and x.shape.rank and x.shape[-2:] == [size, 1]:
            return f" data{where} has shape [N, 1]; np.ravel makes it [N], if that is meant."
    return ""


def _explain_failure(
    name: str, error: Exception, state: Any, batch: Any = (), advice: str = ""
) -> None:
    """Raises an error that names the inputs of a user's function, if they are a likely cause."""
    parts, leaves = tf.nest.flatten(state), tf.nest.flatten(batch)
    dtype = parts[0].dtype.name
    if "unsupported type (<class 'dict'>)" in str(error):
        raise TypeError(
            f"{name} failed where it takes a dict for an array. A data frame is a dict of its "
            f"columns here: give the target frame.to_numpy('{dtype}') for a matrix."
        ) from error
    # Integers are often meant to be integers, so they come last.
    for where, x in sorted(named_parts(batch, ""), key=lambda leaf: not leaf[1].dtype.is_floating):
        if x.dtype == parts[0].dtype or not _OF_TYPES.search(str(error)):
            continue
        cure = f"cast it in {name}, as by tf.cast(batch{where}, '{dtype}'), if it is to be floating"
        if x.dtype.is_floating:
            cure = f"{advice.format(dtype=dtype)}, or start from a {x.dtype.name} state"
        raise TypeError(
            f"{name} failed for a state of dtype {dtype} and data{where} of dtype {x.dtype.name}: "
            f"{cure}. It raised: {message_of(error)}"
        ) from error
    unequal = _UNEQUAL_TYPES.search(str(error))
    others = sorted({*unequal.groups()} - {dtype}) if unequal else []
    if name in ("log_prior_fn", "target") and others:
        raise TypeError(
            f"{name} failed for a state of dtype {dtype}: it holds numbers of dtype {others[0]}. "
            f"Give its distributions parameters of dtype {dtype}, or start from a state of the "
            f"other dtype. It raised: {message_of(error)}"
        ) from error
    # Shapes that do not fit raise a ValueError that names a node where a graph is traced.
    if isinstance(error, tf.errors.InvalidArgumentError) or "for '{{node" in str(error):
        shapes = ", ".join(str(x.shape) for x in parts)
        examples = hint = ""
        if leaves:
            examples = f" and examples of {', '.join(str(x.shape) for x in leaves)}"
            hint = (
                " If shapes do not fit: parameters have leading axes of chains, so a number needs "
                "an axis for the examples, as in theta[..., None]."
            )
        raise ValueError(
            f"{name} failed for a state of shapes {shapes}{examples}. It raised: "
            f"{message_of(error).rstrip('.')}.{hint}"
        ) from error
