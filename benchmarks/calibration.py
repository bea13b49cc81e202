"""How good predicted class probabilities are: scores, and what a reliability diagram shows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow_probability as tfp
from sklearn.metrics import accuracy_score, log_loss

NUM_BINS = 15  # of equal width, from 0 to 1


class Scores(NamedTuple):
    """Of predictions; `log_loss` is the mean negative log likelihood."""

    accuracy: float
    log_loss: float
    calibration_error: float


class Reliability(NamedTuple):
    """Of predictions in bins by their confidence, the largest class probability; `[bins]`."""

    count: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray


def scores(probabilities: np.ndarray, labels: np.ndarray) -> Scores:
    """Compares class probabilities `[rows, classes]` with labels `[rows]`."""
    logits = np.log(np.maximum(probabilities, np.finfo(np.float32).tiny))
    classes = range(probabilities.shape[1])
    return Scores(
        float(accuracy_score(labels, probabilities.argmax(axis=1))),
        float(log_loss(labels, probabilities, labels=classes)),
        float(
            tfp.stats.expected_calibration_error(
                NUM_BINS, logits=logits.astype(np.float32), labels_true=labels
            )
        ),
    )


def reliability(probabilities: np.ndarray, labels: np.ndarray) -> Reliability:
    """Means of bins that are not empty."""
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    bins = np.minimum((confidence * NUM_BINS).astype(int), NUM_BINS - 1)
    count, *sums = (
        np.bincount(bins, weights, minlength=NUM_BINS) for weights in (None, confidence, right)
    )
    return Reliability(count[count > 0], *(s[count > 0] / count[count > 0] for s in sums))
