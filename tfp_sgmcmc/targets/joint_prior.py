"""A prior that is a distribution of TensorFlow Probability: its bijector, and a start."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal.nest import State
from tfp_sgmcmc.internal.tfp_pad import mend_pad

_NUM_DRAWS = 101


def check_prior(prior: Any) -> None:
    """Raises TypeError or ValueError unless `prior` is one distribution of a state's parts."""
    if not isinstance(prior, tfp.distributions.Distribution):
        raise TypeError(
            "joint must be a tfp.distributions.Distribution, such as a JointDistributionNamed. "
            f"Received: a {type(prior).__name__}."
        )
    shapes = tf.nest.flatten(tf.nest.map_structure(tf.TensorShape, prior.batch_shape))
    if any(shape.rank != 0 for shape in shapes):
        raise ValueError(
            "joint must be one distribution. Received: a batch_shape of "
            f"{prior.batch_shape}. Wrap its parts in tfd.Sample or tfd.Independent."
        )


def default_bijector(prior: Any) -> Any:
    """Returns the bijector from unconstrained parts to those of `prior`."""
    mend_pad()
    return prior.experimental_default_event_space_bijector()


def median_start(sample: Callable[..., Any], unconstrain: Callable[[State], State]) -> State:
    """Returns the medians of the entries of unconstrained draws that `sample` makes."""
    with warnings.catch_warnings():  # autobatched priors say that stateless draws are slow
        warnings.simplefilter("ignore")
        draws = unconstrain(sample(_NUM_DRAWS, seed=(0, 0)))

    def median(x: tf.Tensor) -> tf.Tensor:
        return tf.constant(np.nan_to_num(np.median(x, axis=0)), x.dtype)

    return tf.nest.map_structure(median, draws)
