"""The distribution of an observation, as a model's outputs and its compiled loss tell it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.keras.model import compiled_loss
from tfp_sgmcmc.keras.model.likelihoods import NegativeLogLikelihood

tfd = tfp.distributions
Law = Callable[[Any], tfp.distributions.Distribution]  # outputs `[n, ...]` -> distribution of y

_DISCRETE = (tfd.Poisson, tfd.NegativeBinomial, tfd.Binomial, tfd.BetaBinomial, tfd.Geometric,
             tfd.Zipf)  # fmt: skip
_NORMAL = (tfd.Normal, tfd.MultivariateNormalLinearOperator)


def of_numbers(model: keras.Model, outputs: Any) -> dict[int, Law]:
    """Returns the distributions of y that are numbers, by place, as functions of the output.

    They are those of `NegativeLogLikelihood`, if they are not of integer dtype (such as classes),
    and of Keras' Poisson loss. A place is a position among the flattened outputs.
    """
    flat, found = keras.tree.flatten(outputs), {}
    for place, loss in compiled_loss.placed_losses(model, outputs):
        law = _law(loss)
        if law is not None and not law(tf.convert_to_tensor(flat[place])).dtype.is_integer:
            found[place] = law
    return found


def with_moments(model: keras.Model, outputs: Any) -> dict[int, NegativeLogLikelihood]:
    """Returns the losses, by place, whose observations are numbers with known mean and variance.

    `outputs` are symbolic.
    """
    found, flat = {}, keras.tree.flatten(outputs)
    for place, loss in compiled_loss.placed_losses(model, outputs):
        if isinstance(loss, NegativeLogLikelihood):
            shape = [2, *(n or 1 for n in flat[place].shape[1:])]
            law = loss.distribution(tf.ones(shape, loss.dtype))
            if not law.dtype.is_integer and moments(law) is not None:
                found[place] = loss
    return found


def of_draws(model: keras.Model, outputs: Any) -> dict[int, Law]:
    """Returns the distributions of y by place, as functions of the activated output.

    Outputs with a crossentropy are probabilities: their observations are classes, as numbers or
    one-hot as in the labels, or 0 and 1.
    """
    found = {p: law for p, x in compiled_loss.placed_losses(model, outputs) if (law := _law(x))}
    for place, (axis, _, is_sparse, _) in compiled_loss.classes(model, outputs).items():
        found[place] = _classes(axis, is_sparse)
    return found


def _law(loss: Any) -> Law | None:
    if isinstance(loss, NegativeLogLikelihood):
        return lambda outputs: loss.distribution(tf.cast(outputs, loss.dtype))
    if getattr(loss, "fn", None) is keras.losses.poisson:
        return lambda rate: tfd.Poisson(rate)
    return None


def _classes(axis: int | None, is_sparse: bool) -> Law:
    if axis is None:
        return lambda p: tfd.Bernoulli(probs=p, dtype=p.dtype)
    kind = tfd.Categorical if is_sparse else tfd.OneHotCategorical

    def law(p: tf.Tensor) -> tfd.Distribution:
        if axis not in (-1, p.shape.rank - 1):
            raise ValueError(
                "Classes can be drawn only along the last axis of outputs. Received: a loss with "
                f"axis={axis}."
            )
        return kind(probs=p)

    return law


def entries(law: tfd.Distribution) -> tfd.Distribution | None:
    """Returns the distribution of each entry of an observation, or None if it is not known."""
    if isinstance(law, tfd.Independent):
        return entries(law.distribution)
    if isinstance(law, tfd.MultivariateNormalLinearOperator):
        return tfd.Normal(law.mean(), law.stddev())
    return law if law.event_shape.rank == 0 else None


def is_discrete(law: tfd.Distribution) -> bool:
    """Returns whether a distribution of numbers is one of whole numbers."""
    inner = getattr(law, "components_distribution", None)  # of a mixture
    return isinstance(law, _DISCRETE) if inner is None else is_discrete(inner)


def moments(law: tfd.Distribution) -> tuple[tf.Tensor, tf.Tensor] | None:
    """Returns mean and variance of a distribution, or None if they have no closed form."""
    try:
        return law.mean(), law.variance()
    except NotImplementedError:
        return None
