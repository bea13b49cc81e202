"""Negative log likelihoods of the usual distributions, which save with the model.

Each is a `NegativeLogLikelihood` that is made of numbers alone, so that `model.save`,
`ModelCheckpoint`, `to_json` and `keras.models.load_model` work in any program that imports
`tfp_sgmcmc.keras`. Class labels have Keras' crossentropies.

Outputs with a mean and a raw scale have twice as many entries along the last axis as y: first the
means, then what a softplus turns into scales.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal.checks import positive
from tfp_sgmcmc.keras.model.likelihoods import NegativeLogLikelihood

__all__ = ["GaussianNLL", "NegativeBinomialNLL", "PoissonNLL", "StudentTNLL"]

tfd = tfp.distributions


class _OfNumbers(NegativeLogLikelihood):
    """A likelihood whose configuration is `_numbers`, by name; None is learned from the outputs."""

    def __init__(self, numbers: dict[str, float | None], reduction: Any, name: str, dtype: Any):
        self._numbers = {
            key: None if value is None else positive(key, value) for key, value in numbers.items()
        }
        super().__init__(self._distribution, reduction, name, dtype)

    @property
    def learns_scale(self) -> bool:
        """Whether the scale of the noise is taken from the outputs."""
        return self._numbers.get("scale", ...) is None

    def _distribution(self, outputs: tf.Tensor) -> tfd.Distribution:
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**keras.losses.Loss.get_config(self), "dtype": self.dtype, **self._numbers}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        return cls(**config)


def _location_and(outputs: tf.Tensor, second: float | None) -> tuple[tf.Tensor, Any]:
    """Returns the first half of the outputs, and a known number or the other half's softplus."""
    if second is not None:
        return outputs, tf.constant(second, outputs.dtype)
    if outputs.shape[-1] is not None and outputs.shape[-1] % 2:
        raise ValueError(
            "The outputs must have an even number of entries along the last axis, two for each "
            f"entry of y, as no number of the loss is known. Received: shape {outputs.shape}."
        )
    location, raw = tf.split(outputs, 2, axis=-1)
    return location, tf.nn.softplus(raw)


@keras.saving.register_keras_serializable("tfp_sgmcmc")
class GaussianNLL(_OfNumbers):
    r"""Negative log likelihood of normal observations.

    \[
    y \sim N(\mu, \sigma^2), \qquad
    (\mu, \sigma) = (f_1(x), \log(1 + e^{f_2(x)})), \quad\text{or}\quad (f(x), \texttt{scale}).
    \]

    Examples:
      >>> import keras, numpy as np
      >>> import tfp_sgmcmc as sgmcmc
      >>> model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])  # mean, raw scale
      >>> model.compile("adam", sgmcmc.keras.losses.GaussianNLL())
      >>> loss = sgmcmc.keras.losses.GaussianNLL(scale=1., reduction="none")
      >>> y, outputs = np.array([[0.], [2.]]), np.array([[0.], [0.]])
      >>> loss(y, outputs).numpy().round(3)
      array([0.919, 2.919], dtype=float32)

    Args:
      scale: \( \sigma \), the standard deviation of the noise where it is known. None takes it from
        the outputs, which then have twice as many entries along the last axis as y.
      reduction: how examples are reduced, as in any Keras loss. Sampling does not depend on it.
      name: the name of the loss.
      dtype: the dtype of the loss's computations. None is `keras.config.floatx()`.

    Raises:
      TypeError: `scale` is no number.
      ValueError: `scale` is not positive; or the loss is called with outputs that do not fit.
    """

    def __init__(
        self,
        scale: float | None = None,
        reduction: str | None = "sum_over_batch_size",
        name: str = "gaussian_nll",
        dtype: Any = None,
    ):
        super().__init__({"scale": scale}, reduction, name, dtype)

    def _distribution(self, outputs: tf.Tensor) -> tfd.Distribution:
        return tfd.Normal(*_location_and(outputs, self._numbers["scale"]))


@keras.saving.register_keras_serializable("tfp_sgmcmc")
class StudentTNLL(_OfNumbers):
    r"""Negative log likelihood of observations with Student's t noise, for outliers.

    \[
    y = \mu + \sigma t, \qquad t \sim t_{\texttt{df}},
    \]

    with \( \mu \) and \( \sigma \) as in `GaussianNLL`.

    Examples:
      >>> import numpy as np
      >>> import tfp_sgmcmc as sgmcmc
      >>> loss = sgmcmc.keras.losses.StudentTNLL(df=4., scale=1., reduction="none")
      >>> loss(np.array([[0.], [10.]]), np.array([[0.], [0.]])).numpy().round(3)
      array([0.981, 9.126], dtype=float32)

    Args:
      df: the degrees of freedom. Fewer mean heavier tails; the variance is finite above 2.
      scale: \( \sigma \) where it is known. None takes it from the outputs, as in `GaussianNLL`.
      reduction: how examples are reduced, as in any Keras loss. Sampling does not depend on it.
      name: the name of the loss.
      dtype: the dtype of the loss's computations. None is `keras.config.floatx()`.

    Raises:
      TypeError: `df` or `scale` is no number.
      ValueError: a number is not positive; or the loss is called with outputs that do not fit.
    """

    def __init__(
        self,
        df: float = 4.0,
        scale: float | None = None,
        reduction: str | None = "sum_over_batch_size",
        name: str = "student_t_nll",
        dtype: Any = None,
    ):
        positive("df", df)
        super().__init__({"df": df, "scale": scale}, reduction, name, dtype)

    def _distribution(self, outputs: tf.Tensor) -> tfd.Distribution:
        location, scale = _location_and(outputs, self._numbers["scale"])
        return tfd.StudentT(tf.constant(self._numbers["df"], outputs.dtype), location, scale)


@keras.saving.register_keras_serializable("tfp_sgmcmc")
class PoissonNLL(_OfNumbers):
    r"""Negative log likelihood of counts with a rate, whose logarithm is the output.

    \[
    y \sim \mathrm{Poisson}(e^{f(x)})
    \]

    `keras.losses.Poisson` takes the rate itself and leaves \( \log y! \) out, so that densities of
    its `evaluate` are no densities of y.

    Examples:
      >>> import numpy as np
      >>> import tfp_sgmcmc as sgmcmc
      >>> loss = sgmcmc.keras.losses.PoissonNLL(reduction="none")
      >>> loss(np.array([[0.], [2.]]), np.array([[0.], [0.]])).numpy().round(3)
      array([1.   , 1.693], dtype=float32)

    Args:
      reduction: how examples are reduced, as in any Keras loss. Sampling does not depend on it.
      name: the name of the loss.
      dtype: the dtype of the loss's computations. None is `keras.config.floatx()`.
    """

    of_counts = True

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str = "poisson_nll",
        dtype: Any = None,
    ):
        super().__init__({}, reduction, name, dtype)

    def _distribution(self, outputs: tf.Tensor) -> tfd.Distribution:
        return tfd.Poisson(log_rate=outputs)


@keras.saving.register_keras_serializable("tfp_sgmcmc")
class NegativeBinomialNLL(_OfNumbers):
    r"""Negative log likelihood of counts that vary more than a Poisson distribution allows.

    \[
    y \sim \mathrm{NegativeBinomial}, \qquad E\, y = \mu = e^{f_1(x)}, \qquad
    \mathrm{Var}\, y = \mu + \mu^2 / r, \qquad r = \log(1 + e^{f_2(x)}).
    \]

    Examples:
      >>> import numpy as np
      >>> import tfp_sgmcmc as sgmcmc
      >>> loss = sgmcmc.keras.losses.NegativeBinomialNLL(concentration=1., reduction="none")
      >>> loss(np.array([[0.], [2.]]), np.array([[0.], [0.]])).numpy().round(3)  # log 2, log 8
      array([0.693, 2.079], dtype=float32)

    Args:
      concentration: r where it is known. None takes it from the outputs, which then have twice as
        many entries along the last axis as y.
      reduction: how examples are reduced, as in any Keras loss. Sampling does not depend on it.
      name: the name of the loss.
      dtype: the dtype of the loss's computations. None is `keras.config.floatx()`.

    Raises:
      TypeError: `concentration` is no number.
      ValueError: `concentration` is not positive; or the loss is called with outputs that do not
        fit.
    """

    of_counts = True

    def __init__(
        self,
        concentration: float | None = None,
        reduction: str | None = "sum_over_batch_size",
        name: str = "negative_binomial_nll",
        dtype: Any = None,
    ):
        super().__init__({"concentration": concentration}, reduction, name, dtype)

    def _distribution(self, outputs: tf.Tensor) -> tfd.Distribution:
        log_mean, r = _location_and(outputs, self._numbers["concentration"])
        return tfd.NegativeBinomial(total_count=r, logits=log_mean - tf.math.log(r))
