"""Expected calibration error of classifications."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfp_sgmcmc.internal.checks import as_array, integer, require


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
