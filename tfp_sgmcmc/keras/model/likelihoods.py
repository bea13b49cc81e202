"""Negative log likelihoods as Keras losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.keras.model import internals


@keras.saving.register_keras_serializable("tfp_sgmcmc")
class NegativeLogLikelihood(keras.losses.Loss):
    r"""Minus the log likelihood of a distribution that a model's outputs parametrise.

    \[
    \ell(y_i, f_\theta(x_i)) = - \log p(y_i \mid f_\theta(x_i)), \qquad i = 1, \dots, n,
    \]

    summed over the entries of an example (of a masked sequence, over those of a step). The
    distribution has a batch shape that begins with the rows n of the outputs; its batch and event
    shape together are that of y, but for a last axis of length 1, which either may have and the
    other lack. (Plain broadcasting would pair y of shape `[n]` and a distribution of `[n, 1]` n^2
    times.)

    It trains models as any Keras loss does, and is the one to compile with for
    `SamplerCallback`, where Keras has no crossentropy that says the same.

    #### Example

    >>> import keras, numpy as np, tensorflow as tf, tensorflow_probability as tfp
    >>> import tfp_sgmcmc as sgmcmc
    >>> tfd = tfp.distributions
    >>> loss = sgmcmc.keras.NegativeLogLikelihood(  # a mean, and a noise that differs by example
    ...     lambda out: tfd.Normal(out[..., :1], tf.nn.softplus(out[..., 1:])), reduction="none")
    >>> y, outputs = np.array([[0.], [2.]]), np.array([[0., 1.], [0., 1.]])
    >>> loss(y, outputs).numpy().round(3)
    array([1.191, 2.351], dtype=float32)

    Args:
      make_distribution_fn: outputs of the model, `[n, ...]`, -> distribution of y.
      reduction: of the examples, as of any Keras loss; without influence on sampling.
      name: of the loss.
      dtype: of the loss's computations; None is `keras.config.floatx()`.

    Raises:
      TypeError: `make_distribution_fn` is not callable; when the loss is called, it returns no
        distribution.
      ValueError: when the loss is called, a shape of the distribution that does not fit the rows of
        the outputs, or y; when it is saved, a `make_distribution_fn` that is a lambda.
    """

    def __init__(
        self,
        make_distribution_fn: Callable[[Any], tfp.distributions.Distribution],
        reduction: str | None = "sum_over_batch_size",
        name: str = "negative_log_likelihood",
        dtype: Any = None,
    ):
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        if not callable(make_distribution_fn):
            raise TypeError(
                f"make_distribution_fn is a {type(make_distribution_fn).__name__}; a callable, "
                "outputs -> distribution, is expected."
            )
        self.make_distribution_fn = make_distribution_fn

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        distribution = self.make_distribution_fn(y_pred)
        if not isinstance(distribution, tfp.distributions.Distribution):
            raise TypeError(
                f"make_distribution_fn returned a {type(distribution).__name__}; a tfd "
                "distribution of y is expected."
            )
        batch, rows = distribution.batch_shape, y_pred.shape[:1]
        if batch.rank == 0 or not batch[:1].is_compatible_with(rows):
            raise ValueError(
                f"make_distribution_fn made batch shape {batch} of outputs of shape "
                f"{y_pred.shape}; a distribution for each row, [{rows[0]}, ...], is expected."
            )
        shape = batch + distribution.event_shape
        shapes = [shape[:-1]] if shape[-1:] == [1] and shape.rank > 1 else []
        if not any(y_true.shape.is_compatible_with(s) for s in [shape, *shapes, shape + [1]]):
            raise ValueError(
                f"y has shape {y_true.shape}, its distribution batch shape {batch} and event shape "
                f"{distribution.event_shape}; y of shape {shape} is expected (a last axis of "
                "length 1 may be missing, or be one too many)."
            )
        mask = internals.mask(y_pred)
        kept = rows if mask is None else mask.shape  # Keras weighs by the mask what this returns
        if kept.rank > batch.rank:
            raise ValueError(
                f"The outputs have a mask of shape {kept}, but their distribution has batch shape "
                f"{batch}; log probabilities for each entry of the mask are expected."
            )
        # Lengths that are not known yet may not broadcast either.
        full = [distribution.batch_shape_tensor(), distribution.event_shape_tensor()]
        y = tf.cast(tf.reshape(y_true, tf.concat(full, axis=0)), distribution.dtype)
        return -tf.reduce_sum(distribution.log_prob(y), axis=list(range(kept.rank, batch.rank)))

    def get_config(self) -> dict[str, Any]:
        """Raises ValueError for a lambda, which nothing could be loaded from."""
        fn = self.make_distribution_fn
        if getattr(fn, "__name__", None) == "<lambda>":
            raise ValueError(
                f"The loss {self.name!r} cannot be saved: its make_distribution_fn is a lambda. "
                "Give it a function that is registered by "
                "keras.saving.register_keras_serializable, or save the weights only."
            )
        config = {"make_distribution_fn": keras.saving.serialize_keras_object(fn)}
        return {**super().get_config(), **config}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> NegativeLogLikelihood:
        fn = keras.saving.deserialize_keras_object(config["make_distribution_fn"])
        return cls(**{**config, "make_distribution_fn": fn})
