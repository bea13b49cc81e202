"""Expected calibration error of classifications."""

from __future__ import annotations

from typing import Any

import numpy as np


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

    References:
      C. Guo, G. Pleiss, Y. Sun and K. Q. Weinberger. On calibration of modern neural networks.
      ICML, 2017. Equation 3.
    """
    confidence, is_correct = np.asarray(confidence), np.asarray(is_correct)
    weights = np.ones(confidence.shape) if weights is None else np.asarray(weights)
    bins = np.minimum((confidence * num_bins).astype(int), num_bins - 1)
    gaps = np.bincount(bins.ravel(), (weights * (is_correct - confidence)).ravel())
    return float(np.abs(gaps).sum() / weights.sum())
