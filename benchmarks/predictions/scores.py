"""Scores of predictions that are averages over several sets of weights."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.special
import tensorflow as tf
from sklearn.metrics import roc_auc_score

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.keras.posterior.mixtures import Mixture


class Predicted(NamedTuple):
    """Outputs of the network for S sets of weights, and their shares, which add up to 1.

    Attributes:
      test: outputs for the test inputs, `[S, rows, outputs]`.
      out: outputs for inputs of another law, in the same form.
      shares: `[S]`.
    """

    test: np.ndarray
    out: np.ndarray
    shares: np.ndarray


class Scores(NamedTuple):
    """Scores on test data; NaN where a score does not apply.

    Attributes:
      nll: the mean negative log predictive density, in nats.
      error: the share of wrong classes, or the root mean squared error.
      calibration: the expected calibration error over 15 bins, or the share of the targets of a
        regression that lie in central intervals of probability 0.9.
      auroc: the area under the curve of telling inputs of another law by their entropy.
    """

    nll: float
    error: float
    calibration: float
    auroc: float


def classification(predicted: Predicted, y: np.ndarray) -> Scores:
    """Returns the scores of averaged probabilities."""
    p = probabilities(predicted.test, predicted.shares)
    is_correct = p.argmax(axis=1) == y
    found = p, probabilities(predicted.out, predicted.shares)
    entropies = [scipy.special.entr(part).sum(axis=1) for part in found]
    is_out = np.repeat([0, 1], [len(part) for part in found])
    return Scores(
        nll=float(-np.log(np.maximum(p[np.arange(len(y)), y], 1e-300)).mean()),
        error=float(1 - is_correct.mean()),
        calibration=sgmcmc.keras.expected_calibration_error(p.max(axis=1), is_correct),
        auroc=float(roc_auc_score(is_out, np.concatenate(entropies))),
    )


def probabilities(logits: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Returns the average over the first axis of the softmax, `[rows, classes]`."""
    each = scipy.special.softmax(logits.astype(np.float64), axis=-1)
    return np.tensordot(shares, each, axes=1)


def regression(predicted: Predicted, y: np.ndarray) -> Scores:
    """Returns the scores of a mixture of normals with a mean and a scale by the network."""
    law = sgmcmc.keras.losses.GaussianNLL().distribution
    mixture = Mixture(law, tf.constant(predicted.test), predicted.shares)
    each = law(tf.constant(predicted.test, tf.float64)).log_prob(y)
    each = np.asarray(each).reshape(len(predicted.shares), len(y))
    log_density = scipy.special.logsumexp(each, axis=0, b=predicted.shares[:, np.newaxis])
    return Scores(
        nll=float(-log_density.mean()),
        error=float(np.sqrt(np.mean((mixture.mean() - y) ** 2))),
        calibration=float(mixture.coverage(y.astype(np.float64), 0.9).mean()),
        auroc=np.nan,
    )
