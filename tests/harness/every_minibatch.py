"""Estimates from all possible minibatches, which have exact means and covariances."""

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc


def give_every_minibatch(monkeypatch: pytest.MonkeyPatch, base: sgmcmc.MinibatchLogProb) -> int:
    """Makes chain k of an estimate draw the k-th of all minibatches; returns their number.

    All minibatches are equally likely. They are ordered tuples, so that all divisions of a
    minibatch into groups of examples occur.
    """
    examples, n = range(base.num_examples), base.batch_size
    every = itertools.product(examples, repeat=n)
    indices = list(every if base.replacement else itertools.permutations(examples, n))
    monkeypatch.setattr(base, "draw", lambda *_: tf.constant(indices, tf.int32))
    return len(indices)


def flat(parts: Any, ndims: int) -> np.ndarray:
    """Concatenates the entries of all parts after `ndims` leading dimensions."""
    arrays = [np.asarray(x) for x in tf.nest.flatten(parts)]
    return np.concatenate([x.reshape(*x.shape[:ndims], -1) for x in arrays], axis=-1)


def check_moments(estimate: sgmcmc.GradientEstimate, log_prob: Any, gradient: Any) -> np.ndarray:
    """Checks exact moments over all minibatches; returns the covariance of the gradient.

    The mean estimates of the log posterior and its gradient are their exact values, `log_prob` and
    `gradient`. The covariance of the gradient is c times the mean sample covariance of the scores.
    """
    g = flat(estimate.gradient, 1)
    np.testing.assert_allclose(g.mean(axis=0), flat(gradient, 0), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(np.mean(estimate.log_prob), log_prob, rtol=1e-10)
    scores = flat(estimate.scores, 2)
    centred = scores - scores.mean(axis=1, keepdims=True)
    within = np.einsum("kia,kib->ab", centred, centred) / len(scores) / (scores.shape[1] - 1)
    covariance = np.cov(g, rowvar=False, ddof=0)
    np.testing.assert_allclose(covariance, estimate.noise_scale * within, rtol=1e-9, atol=1e-10)
    return covariance
