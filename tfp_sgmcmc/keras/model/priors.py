"""Log priors of a model's trainable variables, and values for them by patterns of their paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal.checks import a_type, accepts
from tfp_sgmcmc.internal.nest import sum_entries
from tfp_sgmcmc.keras.model import internals

LogPrior = Callable[[list[tf.Tensor]], tf.Tensor]


def by_variable(model: keras.Model, values: Mapping[str, Any], default: Any = None) -> list[Any]:
    """Returns the value of each variable in `model.trainable_variables`, as a list.

    Kernels inside `fit` take such lists wherever they take a nest in the structure of the state:
    step sizes, masses, the scales of `tfp_sgmcmc.preconditioners.Diagonal`.

    A variable's `path` is split at its slashes. A pattern matches one or more neighbouring parts of
    it, each part as a whole and in shell style (`fnmatch.fnmatchcase`: `*`, `?`, `[ab]`). So
    "conv_1" matches all variables of that layer, "conv*" those of all layers whose names begin so,
    "bias" every bias, "conv*/kernel" the kernels of those layers, and "*" everything. A pattern of
    one part does not match the model's name, with which most paths begin. If several patterns match
    a variable, the first in the order of `values` wins.

    Examples:
      >>> import keras, numpy as np
      >>> import tfp_sgmcmc as sgmcmc
      >>> model = keras.Sequential([
      ...     keras.Input([3]), keras.layers.Dense(4, name="body"),
      ...     keras.layers.Dense(1, use_bias=False, name="head")], name="net")
      >>> [v.path for v in model.trainable_variables]
      ['net/body/kernel', 'net/body/bias', 'net/head/kernel']
      >>> sgmcmc.keras.by_variable(model, {"bias": 1e-4, "body": 1e-6}, default=1e-5)
      [1e-06, 0.0001, 1e-05]

    Args:
      model: a built model.
      values: a dict from patterns to values.
      default: the value of variables that no pattern matches. With None, every variable must match.

    Raises:
      ValueError: the model has no variables, a pattern is not the first match of any variable, or
        a variable has neither a pattern nor a default.
      TypeError: `values` is not a mapping from strings.
    """
    return assigned("values", values, model, default)


def check_patterns(name: str, values: Any) -> None:
    """Raises TypeError unless `values` maps strings, and ValueError if it is empty."""
    if not isinstance(values, Mapping):
        raise TypeError(
            f"{name} must be a dict from patterns of variables' paths to values. Received: "
            f"{a_type(values)}."
        )
    if not values:
        raise ValueError(f"{name} must have a pattern, such as '*'. Received: an empty dict.")
    for pattern in values:
        if not isinstance(pattern, str):
            raise TypeError(f"{name} must have strings as keys. Received: the key {pattern!r}.")


def assigned(
    name: str, values: Mapping[str, Any], model: keras.Model, default: Any = None
) -> list[Any]:
    """Returns what `by_variable` does, for an argument called `name` in messages."""
    check_patterns(name, values)
    internals.check_model_type(model)
    paths = [v.path for v in model.trainable_variables]
    known = f"The model {model.name!r} has {', '.join(paths) or 'no trainable variables'}."
    if not paths:
        raise ValueError(f"{name} must match variables, but the model is not built. {known}")
    found = [next((p for p in values if _matches(p, path, model)), None) for path in paths]
    if unused := [p for p in values if p not in found]:
        raise ValueError(
            f"Each pattern in {name} must be the first that matches some variable. Received: "
            f"{', '.join(map(repr, unused))}, which match no variable, or only those that earlier "
            f"patterns match. {known}"
        )
    unmatched = [path for path, p in zip(paths, found, strict=True) if p is None]
    if unmatched and default is None:
        raise ValueError(
            f"{name} must have a pattern for each variable. It has no pattern that matches "
            f"{', '.join(unmatched)}. A last pattern '*' would match."
        )
    return [default if p is None else values[p] for p in found]


def _matches(pattern: str, path: str, model: keras.Model) -> bool:
    wanted, parts = pattern.split("/"), path.split("/")
    if len(wanted) == 1 < len(parts) and parts[0] == model.name:
        del parts[0]
    runs = (parts[i : i + len(wanted)] for i in range(len(parts) - len(wanted) + 1))
    return any(all(map(fnmatchcase, run, wanted)) for run in runs)


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
            f"Received: {a_type(prior)}."
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
        received = a_type(returned) if value is None else value.dtype.name
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
            f"{name} must be a tfd distribution, or None for a flat prior. Received: "
            f"{a_type(prior)}."
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
