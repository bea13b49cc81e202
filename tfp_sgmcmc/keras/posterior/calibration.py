"""Calibration of predicted probabilities: its error, and a temperature that mends it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tfp_sgmcmc.internal.checks import array, as_array, integer, optional, positive, require

_MOST_AXES = 32  # of an array
_MOST_LOG = 7.0  # of the temperature, in absolute value


def expected_calibration_error(
    confidence: Any, is_correct: Any, weights: Any = None, num_bins: int = 15
) -> float:
    r"""Returns the mean gap between confidence and accuracy over bins \( B_b \) of equal width.

    \[
    \sum_b \frac{|B_b|}{n} \left| \frac{\sum_{i \in B_b} h_i}{|B_b|}
      - \frac{\sum_{i \in B_b} c_i}{|B_b|} \right|
    \]

    Bin b is [b / num_bins, (b + 1) / num_bins), and the last bin includes 1.

    Examples:
      >>> import numpy as np
      >>> probabilities, labels = np.array([[0.8, 0.2], [0.4, 0.6]]), np.array([0, 0])
      >>> is_correct = probabilities.argmax(axis=1) == labels
      >>> round(expected_calibration_error(probabilities.max(axis=1), is_correct), 6)
      0.4

    Args:
      confidence: c, the probability of the predicted class, for n classifications.
      is_correct: h, whether the predicted class is the label's, in the shape of `confidence`.
      weights: how much each classification counts, in the same shape. None counts each once.
      num_bins: the number of bins. The default is the paper's.

    Raises:
      TypeError: an argument is not an array of numbers.
      ValueError: shapes differ, arrays are empty, or numbers are out of range.

    References:
      C. Guo, G. Pleiss, Y. Sun and K. Q. Weinberger. On calibration of modern neural networks.
      ICML, 2017. Equation 3.
    """
    confidence = _numbers("confidence", confidence, None, 1.0)
    is_correct = _numbers("is_correct", is_correct, confidence.shape, 1.0)
    weights = np.ones(confidence.shape) if weights is None else weights
    weights = _numbers("weights", weights, confidence.shape, np.inf)
    require("weights", weights, weights.any(), "not all zero")
    integer("num_bins", num_bins, 1)
    bins = np.minimum((confidence * num_bins).astype(int), num_bins - 1)
    gaps = np.bincount(bins.ravel(), (weights * (is_correct - confidence)).ravel())
    return float(np.abs(gaps).sum() / weights.sum())


def _numbers(name: str, value: Any, shape: tuple[int, ...] | None, most: float) -> np.ndarray:
    """Returns an array of finite numbers from 0 to `most`, in `shape`."""
    found = as_array(value)
    if found.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be an array of numbers. Received: {value!r}.")
    expected = "an array that is not empty"
    if shape is not None:
        expected = f"of the shape of confidence, {shape}"
    is_fit = found.size > 0 if shape is None else found.shape == shape
    require(name, f"an array of shape {found.shape}", is_fit, expected)
    holds = np.isfinite(found).all() and (found >= 0).all() and (found <= most).all()
    bounds = "finite and not negative" if most == np.inf else f"in [0, {most:g}]"
    require(name, f"numbers from {found.min()} to {found.max()}", holds, bounds)
    return found


@dataclasses.dataclass(frozen=True)
class TemperatureScaling:
    r"""Probabilities with a temperature, \( p_k^{1/T} / \sum_j p_j^{1/T} \).

    A temperature above 1 makes them less sure. The most probable class stays the same.

    Examples:
      >>> import numpy as np
      >>> from tfp_sgmcmc.keras import TemperatureScaling
      >>> scaled = TemperatureScaling(2., -1)(np.array([[0.8, 0.2], [0.5, 0.5]]))
      >>> scaled.round(3)
      array([[0.667, 0.333],
             [0.5  , 0.5  ]])

    Raises:
      TypeError: an argument has the wrong type.
      ValueError: `temperature` is not positive.

    Attributes:
      temperature: T.
      axis: the axis of the classes; None if each entry is the probability of 1.
      log_densities: the mean log probability of the labels in nats, before and after scaling.

    References:
      C. Guo, G. Pleiss, Y. Sun and K. Q. Weinberger. On calibration of modern neural networks.
      ICML, 2017. Section 4.2.
    """

    temperature: float
    axis: int | None
    log_densities: tuple[float, float] = (np.nan, np.nan)

    def __post_init__(self) -> None:
        positive("temperature", self.temperature)
        optional(integer, "axis", self.axis, -_MOST_AXES, _MOST_AXES)
        values = array("log_densities", self.log_densities, finite=False)
        require("log_densities", self.log_densities, values.shape == (2,), "two numbers")

    def __call__(self, probabilities: Any) -> np.ndarray:
        """Returns probabilities, such as `prediction.mean`, with the temperature.

        Raises:
          TypeError: they are no numbers.
          ValueError: they are not in [0, 1], or have no such axis.
        """
        p = array("probabilities", probabilities)
        in_range = bool(np.all((p >= 0) & (p <= 1)))
        require("probabilities", f"{p.min()} to {p.max()}", in_range, "in [0, 1]")
        if self.axis is not None:
            has_axis = -p.ndim <= self.axis < p.ndim
            require(
                "probabilities", f"shape {p.shape}", has_axis, f"an array with axis {self.axis}"
            )
        logits = _log(p) / self.temperature
        if self.axis is None:
            return 1 / (1 + np.exp(_log(1 - p) / self.temperature - logits))
        scaled = np.exp(logits - logits.max(axis=self.axis, keepdims=True))
        return scaled / scaled.sum(axis=self.axis, keepdims=True)


def fitted(
    p: np.ndarray, labels: np.ndarray, weights: np.ndarray, axis: int | None
) -> TemperatureScaling:
    """Fits the temperature to probabilities `[n, classes]`.

    Args:
      p: predicted probabilities.
      labels: the probabilities of the classes by the labels, in the same shape.
      weights: how much each row counts, `[n]`.
      axis: the axis of the classes in the outputs, or None.

    Raises:
      ModuleNotFoundError: SciPy is not installed.
      ValueError: no temperature is best, as when each label is the most probable class.
    """
    try:
        from scipy import optimize
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'calibrate needs SciPy. Install it by python -m pip install "tfp_sgmcmc[results]"'
        ) from error
    logits = _log(p)

    def loss(log_temperature: float) -> float:
        scaled = logits * np.exp(-log_temperature)
        scaled = scaled - scaled.max(axis=1, keepdims=True)
        log_p = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
        return -float(np.average(np.sum(labels * log_p, axis=1), weights=weights))

    found = optimize.minimize_scalar(
        loss, bounds=(-_MOST_LOG, _MOST_LOG), method="bounded", options={"xatol": 1e-6}
    )
    if abs(found.x) > _MOST_LOG - 1e-2:
        raise ValueError(
            "The labels must determine a temperature, so that some are not the most probable "
            "class, and predictions are better than none. Received: labels for which a temperature "
            f"of {'0' if found.x < 0 else 'infinity'} is best. Give more held-out data."
        )
    return TemperatureScaling(float(np.exp(found.x)), axis, (-loss(0.0), -float(found.fun)))


def _log(p: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(np.asarray(p, np.float64), np.finfo(np.float32).tiny))
