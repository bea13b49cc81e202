"""Log priors of a model's trainable variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal.checks import accepts
from tfp_sgmcmc.internal.nest import sum_entries
from tfp_sgmcmc.keras.model.patterns import assigned, check_patterns

LogPrior = Callable[[list[tf.Tensor]], tf.Tensor]


def check_prior(prior: Any) -> None:
    """Raises the errors of `as_log_prior` that do not depend on the model."""
    if isinstance(prior, Mapping):
        check_patterns("prior", prior)
        for pattern, distribution in prior.items():
            if distribution is not None:
                _check_distribution(f"prior[{pattern!r}]", distribution)
    elif isinstance(prior, tfp.distributions.Distribution):
        _check_distribution("prior", prior)
        if prior.event_shape.rank != 0 or prior.batch_shape.rank != 0:
            raise ValueError(
                "prior must be a scalar distribution, the prior of every single weight. Received: "
                f"batch shape {prior.batch_shape} and event shape {prior.event_shape}. If the "
                "priors of variables differ, pass a dict from patterns of their paths to "
                "distributions, or a callable: list of values -> log prior."
            )
    elif prior is not None and (isinstance(prior, type) or not callable(prior)):
        raise TypeError(
            "prior must be a scalar tfd distribution, a dict from patterns of variables' paths to "
            "distributions, a callable that takes the list of variables' values, or None. "
            f"Received: a {type(prior).__name__}."
        )


def as_log_prior(prior: Any, model: keras.Model) -> LogPrior:
    """Returns `prior` as a function of the list of values of `model.trainable_variables`.

    Args:
      prior: one of the following. A scalar distribution is the prior of every single weight. A
        dict maps patterns of paths (see `by_variable`) to distributions, or to None for a flat
        prior. A callable maps the list of values to the log prior. None is a flat prior.
        The event shape of a distribution in a dict equals the variable's last axes or is `[]`, and
        its batch shape broadcasts to the other axes, whose entries are independent.
      model: a built model.

    Raises:
      TypeError: `prior` is none of these, or its dtype differs from a variable's.
      ValueError: a shape does not fit, a variable has no pattern, a pattern has no variable, or the
        log prior of the model's weights is not a scalar or not finite.
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
        log_prior = _sum_of_priors(priors)
    else:
        given = accepts("prior", prior, variables)

        def log_prior(state: list[tf.Tensor]) -> tf.Tensor:
            return checked_value("prior", given(state))

    values = [keras.ops.convert_to_tensor(v) for v in variables]
    start = log_prior(values)
    if not np.isfinite(start) and all(np.isfinite(x).all() for x in values):
        raise ValueError(
            "The log prior of the model's weights, where the chain starts, must be finite. "
            f"Received: {start}. Check for a prior of bounded support, or of infinite density at "
            "some weight."
        )
    return log_prior


def _sum_of_priors(priors: list[Any]) -> LogPrior:
    """Returns the sum of the variables' log priors as a function; None stands for a flat prior."""

    def log_prior(state: list[tf.Tensor]) -> tf.Tensor:
        # The parameters of copies are constants of the trace, which XLA folds. The originals'
        # parameters would be inputs, and XLA would divide each weight by the scale twice.
        marginals = {id(p): p.copy() for p in priors if p is not None}
        terms = [
            sum_entries(marginals[id(p)].log_prob(x))
            for p, x in zip(priors, state, strict=True)
            if p is not None
        ]
        return tf.add_n(terms) if terms else tf.zeros([])

    return log_prior


def checked_value(name: str, returned: Any) -> tf.Tensor:
    """Returns what the function `name` returned; raises unless it is a scalar float."""
    try:
        value = tf.convert_to_tensor(returned)
    except (TypeError, ValueError):
        value = None
    if value is None or not value.dtype.is_floating:
        received = f"a {type(returned).__name__}" if value is None else value.dtype.name
        raise TypeError(
            f"{name} must return a float, the log prior of all variables together. Received: "
            f"{received}."
        )
    if value.shape.rank != 0:
        raise ValueError(
            f"{name} must return a scalar, the log prior of all variables together. Received: "
            f"shape {value.shape}."
        )
    return value


def _check_distribution(name: str, prior: Any) -> None:
    if not isinstance(prior, tfp.distributions.Distribution):
        raise TypeError(
            f"{name} must be a tfd distribution, or None for a flat prior. Received: a "
            f"{type(prior).__name__}."
        )
    if not isinstance(prior.dtype, tf.DType):
        raise TypeError(
            f"{name} must be the distribution of one variable. Received: a joint distribution, "
            f"{prior.name}. Pass its log_prob, as a callable that takes the list of variables' "
            "values."
        )


def _check_fits(prior: Any, variable: keras.Variable) -> None:
    if prior.dtype.name != variable.dtype:
        raise TypeError(
            f"The prior of {variable.path} must have the dtype of the variable, {variable.dtype}. "
            f"Received: {prior.dtype.name}. Make it with parameters of that dtype, such as "
            f"tf.constant(1, '{variable.dtype}')."
        )
    event, batch, shape = prior.event_shape, prior.batch_shape, tf.TensorShape(variable.shape)
    split = shape.rank - (event.rank or 0)
    if split < 0 or shape[split:] != event or not _broadcasts(batch, shape[:split]):
        raise ValueError(
            f"The prior of {variable.path}, shape {shape}, must have an event shape that is [] or "
            "equals the variable's last axes, and a batch shape that broadcasts to the other axes. "
            f"Received: batch shape {batch} and event shape {event}."
        )


def _broadcasts(batch: tf.TensorShape, shape: tf.TensorShape) -> bool:
    try:
        return tf.broadcast_static_shape(batch, shape) == shape
    except ValueError:
        return False
