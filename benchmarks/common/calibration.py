"""Scores of predicted class probabilities, and the data of a reliability diagram."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from sklearn.metrics import accuracy_score, log_loss

from tfp_sgmcmc.keras import expected_calibration_error

NUM_BINS = 15  # of equal width, from 0 to 1, as in `expected_calibration_error`


class Scores(NamedTuple):
    """Scores of predictions; `log_loss` is the mean negative log likelihood."""

    accuracy: float
    log_loss: float
    calibration_error: float


class Reliability(NamedTuple):
    """Means over bins of predictions, `[bins]`; the confidence is the largest probability."""

    count: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray


def scores(probabilities: np.ndarray, labels: np.ndarray) -> Scores:
    """Returns the scores of class probabilities `[rows, classes]` for labels `[rows]`."""
    confidence, right = _decisions(probabilities, labels)
    return Scores(
        float(accuracy_score(labels, probabilities.argmax(axis=1))),
        float(log_loss(labels, probabilities, labels=range(probabilities.shape[1]))),
        expected_calibration_error(confidence, right),
    )


def reliability(probabilities: np.ndarray, labels: np.ndarray) -> Reliability:
    """Returns the means over all bins that are not empty."""
    confidence, right = _decisions(probabilities, labels)
    bins = np.minimum((confidence * NUM_BINS).astype(int), NUM_BINS - 1)
    count, *sums = (
        np.bincount(bins, weights, minlength=NUM_BINS) for weights in (None, confidence, right)
    )
    return Reliability(count[count > 0], *(s[count > 0] / count[count > 0] for s in sums))


def _decisions(probabilities: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
