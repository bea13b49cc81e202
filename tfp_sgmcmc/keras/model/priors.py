"""Log priors of a model's trainable variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.keras.model.patterns import assigned, check_patterns
from tfp_sgmcmc.state import sum_entries

LogPrior = Callable[[list[tf.Tensor]], tf.Tensor]


def check_prior(prior: Any) -> None:
    """Raises for what is no prior of any model; see `as_log_prior`."""
    if isinstance(prior, Mapping):
        check_patterns("prior", prior)
        for pattern, distribution in prior.items():
            if distribution is not None:
                _check_distribution(f"prior[{pattern!r}]", distribution)
    elif isinstance(prior, tfp.distributions.Distribution):
        _check_distribution("prior", prior)
        if prior.event_shape.rank != 0 or prior.batch_shape.rank != 0:
            raise ValueError(
                f"prior is a distribution with batch shape {prior.batch_shape} and event shape "
                f"{prior.event_shape}; a scalar one, the prior of every single weight, is "
                "expected. Where variables differ pass a dict from patterns of their paths to "
                "distributions, or a callable: list of values -> log prior."
            )
    elif prior is not None and (isinstance(prior, type) or not callable(prior)):
        raise TypeError(
            f"prior is a {type(prior).__name__}; a scalar tfd distribution, a dict from patterns "
            "of variables' paths to distributions, a callable that takes the list of variables' "
            "values, or None is expected."
        )


def as_log_prior(prior: Any, model: keras.Model) -> LogPrior:
    """Returns `prior` as a function of the list of values of `model.trainable_variables`.

    Args:
      prior: a scalar distribution, of every single weight; a dict from patterns of paths (see
        `by_variable`) to distributions, or None for a flat prior; a callable, list of values ->
        log prior; or None. A distribution of a dict has a batch shape that broadcasts to the
        variable's shape (its entries are independent), or an event shape that is that of the
        variable's last axes and a batch shape that broadcasts to the others.
      model: built.

    Raises:
      TypeError: `prior` is none of these, or of another dtype than a variable.
      ValueError: a shape that does not fit; variables without a pattern; patterns without a
        variable; a log prior of the model's weights that is no scalar or not finite.
    """
    check_prior(prior)
    variables = model.trainable_variables
    if prior is None or not variables:
        return lambda state: tf.zeros([])
    if isinstance(prior, tfp.distributions.Distribution):
        prior = {"*": prior}
    if isinstance(prior, Mapping):
        priors = assigned("prior", prior, model)
        for distribution, variable in zip(priors, variables, strict=True):
            if distribution is not None:
                _check_fits(distribution, variable)
        log_prior = _of_each(priors)
    else:
        log_prior = _of_all(prior)
    values = [keras.ops.convert_to_tensor(v) for v in variables]
    start = log_prior(values)
    if not np.isfinite(start) and all(np.isfinite(x).all() for x in values):
        raise ValueError(
            f"The log prior of the model's weights, where the chain starts, is {start}: a prior "
            "of bounded support, or of infinite density at some weight?"
        )
    return log_prior


def _of_each(priors: list[Any]) -> LogPrior:
    """The sum of the variables' log priors; None adds nothing."""

    def log_prior(state: list[tf.Tensor]) -> tf.Tensor:
        # Copies have their parameters as constants of the trace, which XLA folds; those of the
        # originals would be inputs, and each weight divided by the scale, twice.
        marginals = {id(p): p.copy() for p in priors if p is not None}
        terms = [
            sum_entries(marginals[id(p)].log_prob(x))
            for p, x in zip(priors, state, strict=True)
            if p is not None
        ]
        return tf.add_n(terms) if terms else tf.zeros([])

    return log_prior


def _of_all(prior: Callable[[list[tf.Tensor]], Any]) -> LogPrior:
    def log_prior(state: list[tf.Tensor]) -> tf.Tensor:
        value = tf.convert_to_tensor(prior(state))
        if value.shape.rank != 0:
            raise ValueError(
                f"prior returned shape {value.shape}; the log prior of all variables together, a "
                "scalar, is expected."
            )
        return value

    return log_prior


def _check_distribution(name: str, prior: Any) -> None:
    if not isinstance(prior, tfp.distributions.Distribution):
        raise TypeError(
            f"{name} is a {type(prior).__name__}; a tfd distribution, or None for a flat prior, "
            "is expected."
        )
    if not isinstance(prior.dtype, tf.DType):
        raise TypeError(
            f"{name} is a joint distribution, {prior.name}; pass its log_prob, as a callable that "
            "takes the list of variables' values."
        )


def _check_fits(prior: Any, variable: keras.Variable) -> None:
    if prior.dtype.name != variable.dtype:
        raise TypeError(
            f"The prior of {variable.path} is of {prior.dtype.name}, the variable of "
            f"{variable.dtype}; the same dtype is expected."
        )
    event, batch, shape = prior.event_shape, prior.batch_shape, tf.TensorShape(variable.shape)
    split = shape.rank - (event.rank or 0)
    if split < 0 or shape[split:] != event or not _broadcasts(batch, shape[:split]):
        raise ValueError(
            f"The prior of {variable.path}, shape {shape}, has batch shape {batch} and event shape "
            f"{event}. The event shape is expected to be that of the variable's last axes (or "
            "[]), the batch shape to broadcast to that of the others."
        )


def _broadcasts(batch: tf.TensorShape, shape: tf.TensorShape) -> bool:
    try:
        return tf.broadcast_static_shape(batch, shape) == shape
    except ValueError:
        return False
