"""Negative log likelihoods as Keras losses, and the distributions of observations by a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal.checks import a_type, accepts, function, one_of
from tfp_sgmcmc.keras.model import compiled_loss, internals

_REDUCTIONS = ("sum_over_batch_size", "sum", "mean", "mean_with_sample_weight", "none")

tfd = tfp.distributions
# Maps outputs `[n, ...]` to the distribution of y.
ObservationModel = Callable[[Any], tfp.distributions.Distribution]

_DISCRETE = (tfd.Poisson, tfd.NegativeBinomial, tfd.Binomial, tfd.BetaBinomial, tfd.Geometric,
             tfd.Zipf)  # fmt: skip


@keras.saving.register_keras_serializable("tfp_sgmcmc")
class NegativeLogLikelihood(keras.losses.Loss):
    r"""Negative log likelihood of a distribution that a model's outputs parametrise.

    \[
    \ell(y_i, f_\theta(x_i)) = - \log p(y_i \mid f_\theta(x_i)), \qquad i = 1, \dots, n,
    \]

    The log probability is summed over the entries of an example, or of each step if the outputs are
    a masked sequence. The batch shape of the distribution begins with the n rows of the outputs.
    Batch and event shape together equal the shape of y, except that either may lack a last axis of
    length 1. (Plain broadcasting would pair y of shape `[n]` with a distribution of shape `[n, 1]`
    to `[n, n]` values.)

    Models train with it as with any Keras loss. `SamplerCallback` needs it where no crossentropy of
    Keras is the negative log likelihood.

    Examples:
      >>> import keras, numpy as np, tensorflow as tf, tensorflow_probability as tfp
      >>> import tfp_sgmcmc as sgmcmc
      >>> tfd = tfp.distributions
      >>> loss = sgmcmc.keras.NegativeLogLikelihood(  # a mean and a noise scale for each example
      ...     lambda out: tfd.Normal(out[..., :1], tf.nn.softplus(out[..., 1:])), reduction="none")
      >>> y, outputs = np.array([[0.], [2.]]), np.array([[0., 1.], [0., 1.]])
      >>> loss(y, outputs).numpy().round(3)
      array([1.191, 2.351], dtype=float32)

    Args:
      make_distribution_fn: maps the outputs of the model, `[n, ...]`, to a distribution of y.
      reduction: how examples are reduced, as in any Keras loss. Sampling does not depend on it.
      name: the name of the loss.
      dtype: the dtype of the loss's computations. None is `keras.config.floatx()`.

    Raises:
      TypeError: `make_distribution_fn` is not callable, or does not return a distribution; or
        `dtype` is none of floating numbers.
      ValueError: the loss is called, and the shape of the distribution does not fit y or the rows
        of the outputs; or the loss is saved, and `make_distribution_fn` is a lambda.
    """

    def __init__(
        self,
        make_distribution_fn: Callable[[Any], tfp.distributions.Distribution],
        reduction: str | None = "sum_over_batch_size",
        name: str = "negative_log_likelihood",
        dtype: Any = None,
    ):
        one_of("reduction", "none" if reduction is None else reduction, _REDUCTIONS)
        super().__init__(name=name, reduction=reduction, dtype=_checked_dtype(dtype))
        function("make_distribution_fn", make_distribution_fn, "outputs -> distribution")
        try:
            found = accepts("make_distribution_fn", make_distribution_fn, "outputs")
        except TypeError as error:
            raise TypeError(
                f"{error} It returns a distribution. Compile a function (y, outputs) -> negative "
                "log likelihoods as it is, without this class."
            ) from error
        self.make_distribution_fn = found

    def distribution(self, outputs: tf.Tensor) -> tfp.distributions.Distribution:
        """Returns the distribution of y that outputs `[n, ...]` parametrise.

        Raises:
          TypeError: `make_distribution_fn` does not return a distribution.
          ValueError: it returns a distribution without an axis of n rows.
        """
        distribution = self.make_distribution_fn(outputs)
        if not isinstance(distribution, tfp.distributions.Distribution):
            raise TypeError(
                "make_distribution_fn must return a tfd distribution of y. Received: "
                f"{a_type(distribution)}."
            )
        batch, rows = distribution.batch_shape, outputs.shape[:1]
        if batch.rank == 0 or not batch[:1].is_compatible_with(rows):
            raise ValueError(
                "make_distribution_fn must return a distribution for each row, of batch shape "
                f"[{rows[0]}, ...]. Received: batch shape {batch} for outputs of shape "
                f"{outputs.shape}."
            )
        return distribution

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        if internals.mask(y_pred) is not None:  # which Keras' cast would lose
            y_pred = internals.cast_with_mask(y_pred, self.dtype)
        return super().__call__(y_true, y_pred, sample_weight)

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        y_true, y_pred = (
            tf.convert_to_tensor(y) if isinstance(y, list | tuple) else y for y in (y_true, y_pred)
        )
        distribution = self.distribution(y_pred)
        batch = distribution.batch_shape
        shape = batch + distribution.event_shape
        shapes = [shape[:-1]] if shape[-1:] == [1] and shape.rank > 1 else []
        if not any(y_true.shape.is_compatible_with(s) for s in [shape, *shapes, shape + [1]]):
            raise ValueError(
                f"y must have shape {shape}, as its distribution has batch shape {batch} and event "
                f"shape {distribution.event_shape}. Received: shape {y_true.shape}. Only a last "
                "axis of length 1 may be missing or added."
            )
        mask = internals.mask(y_pred)  # Keras multiplies what this returns by the mask
        kept = y_pred.shape[:1] if mask is None else mask.shape
        if kept.rank > batch.rank:
            raise ValueError(
                "The distribution must have a log probability for each entry of the outputs' mask "
                f"of shape {kept}. Received: batch shape {batch}."
            )
        # The reshape fails for lengths that are not known here and would otherwise broadcast.
        full = [distribution.batch_shape_tensor(), distribution.event_shape_tensor()]
        y = tf.cast(tf.reshape(y_true, tf.concat(full, axis=0)), distribution.dtype)
        return -tf.reduce_sum(distribution.log_prob(y), axis=list(range(kept.rank, batch.rank)))

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration; raises ValueError for a lambda, which cannot be loaded."""
        fn = self.make_distribution_fn
        if getattr(fn, "__name__", None) == "<lambda>":
            raise ValueError(
                f"The loss {self.name!r} cannot be saved, because its make_distribution_fn is a "
                "lambda. Use a function that is registered by "
                "keras.saving.register_keras_serializable, or save only the weights."
            )
        serialized = keras.saving.serialize_keras_object(fn)
        config = {"make_distribution_fn": serialized, "dtype": self.dtype}
        return {**super().get_config(), **config}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> NegativeLogLikelihood:
        fn = keras.saving.deserialize_keras_object(config["make_distribution_fn"])
        return cls(**{**config, "make_distribution_fn": fn})


def of_numbers(model: keras.Model, outputs: Any) -> dict[int, ObservationModel]:
    """Returns the observation models of outputs whose y are numbers, by place.

    These outputs have a `NegativeLogLikelihood` of non-integer dtype (integers may be classes) or
    Keras' Poisson loss. A place is a position among the flattened outputs.
    """
    flat, found = keras.tree.flatten(outputs), {}
    for place, loss in compiled_loss.placed_losses(model, outputs):
        observed = _observation_model(loss)
        output = tf.convert_to_tensor(flat[place])
        if observed is not None and not observed(output).dtype.is_integer:
            found[place] = observed
    return found


def with_moments(model: keras.Model, outputs: Any) -> dict[int, NegativeLogLikelihood]:
    """Returns the losses, by place, whose observations are numbers with known mean and variance.

    `outputs` are symbolic.
    """
    found, flat = {}, keras.tree.flatten(outputs)
    for place, loss in compiled_loss.placed_losses(model, outputs):
        if isinstance(loss, NegativeLogLikelihood):
            shape = [2, *(n or 1 for n in flat[place].shape[1:])]
            observed = loss.distribution(tf.ones(shape, loss.dtype))
            if not observed.dtype.is_integer and moments(observed) is not None:
                found[place] = loss
    return found


def of_draws(model: keras.Model, outputs: Any) -> dict[int, ObservationModel]:
    """Returns the observation models of all outputs after activation, by place.

    Outputs with a crossentropy are probabilities. Their observations are classes, as numbers or
    one-hot like the labels, or 0 and 1.
    """
    losses = compiled_loss.placed_losses(model, outputs)
    found = {place: observed for place, x in losses if (observed := _observation_model(x))}
    for place, (axis, _, is_sparse, _) in compiled_loss.classes(model, outputs).items():
        found[place] = _classes(axis, is_sparse)
    return found


def _observation_model(loss: Any) -> ObservationModel | None:
    if isinstance(loss, NegativeLogLikelihood):
        return lambda outputs: loss.distribution(tf.cast(outputs, loss.dtype))
    if getattr(loss, "fn", None) is keras.losses.poisson:
        return lambda rate: tfd.Poisson(rate)
    return None


def _classes(axis: int | None, is_sparse: bool) -> ObservationModel:
    if axis is None:
        return lambda p: tfd.Bernoulli(probs=p, dtype=p.dtype)
    kind = tfd.Categorical if is_sparse else tfd.OneHotCategorical

    def observed(p: tf.Tensor) -> tfd.Distribution:
        if axis not in (-1, p.shape.rank - 1):
            raise ValueError(
                "Classes can be drawn only along the last axis of outputs. Received: a loss with "
                f"axis={axis}."
            )
        return kind(probs=p)

    return observed


def entries(observed: tfd.Distribution) -> tfd.Distribution | None:
    """Returns the distribution of each entry of an observation, or None if it is not known."""
    if isinstance(observed, tfd.Independent):
        return entries(observed.distribution)
    if isinstance(observed, tfd.MultivariateNormalLinearOperator):
        return tfd.Normal(observed.mean(), observed.stddev())
    return observed if observed.event_shape.rank == 0 else None


def is_discrete(observed: tfd.Distribution) -> bool:
    """Returns whether a distribution of numbers gives whole numbers."""
    inner = getattr(observed, "components_distribution", None)  # of a mixture
    if inner is not None:
        return is_discrete(inner)
    if parts := getattr(observed, "components", None):  # of a mixture of several kinds
        rest = [x for x in parts if not isinstance(x, tfd.Deterministic)]
        return bool(rest) and all(map(is_discrete, rest))
    return isinstance(observed, _DISCRETE)


def moments(observed: tfd.Distribution) -> tuple[tf.Tensor, tf.Tensor] | None:
    """Returns mean and variance of a distribution, or None if they have no closed form."""
    try:
        return observed.mean(), observed.variance()
    except NotImplementedError:
        return None


def _checked_dtype(dtype: Any) -> Any:
    """Returns a dtype or a policy of Keras for floating numbers; raises TypeError otherwise."""
    is_floating = dtype is None
    if isinstance(dtype, str | type | np.dtype | tf.DType | keras.DTypePolicy):
        try:
            policy = keras.dtype_policies.get(dtype)
            is_floating = tf.as_dtype(policy.compute_dtype).is_floating
        except (TypeError, ValueError):
            is_floating = False
    if not is_floating:
        raise TypeError(
            'dtype must be a dtype of floating numbers, such as "float32", or a keras.DTypePolicy. '
            f"Received: {dtype!r}."
        )
    return dtype
