"""The distribution of an observation, given a model's outputs and its compiled loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.keras.model import compiled_loss
from tfp_sgmcmc.keras.model.likelihoods import NegativeLogLikelihood

tfd = tfp.distributions
# Maps outputs `[n, ...]` to the distribution of y.
ObservationModel = Callable[[Any], tfp.distributions.Distribution]

_DISCRETE = (tfd.Poisson, tfd.NegativeBinomial, tfd.Binomial, tfd.BetaBinomial, tfd.Geometric,
             tfd.Zipf)  # fmt: skip
_NORMAL = (tfd.Normal, tfd.MultivariateNormalLinearOperator)


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
    return isinstance(observed, _DISCRETE) if inner is None else is_discrete(inner)


def moments(observed: tfd.Distribution) -> tuple[tf.Tensor, tf.Tensor] | None:
    """Returns mean and variance of a distribution, or None if they have no closed form."""
    try:
        return observed.mean(), observed.variance()
    except NotImplementedError:
        return None
