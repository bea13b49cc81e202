"""How well the posterior predictive explains labelled data."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.keras.model import compiled_loss, internals
from tfp_sgmcmc.keras.posterior.sample_loops import Each, Fold, joined, num_rows, running_mean, wide

_NUM_BINS = 15  # of the calibration error, as in the paper


class Evaluation(NamedTuple):
    """Scores of the posterior predictive; averages over examples by their `sample_weight`.

    Attributes:
      log_predictive_density: mean of the examples' log predictive densities, in nats; higher is
        better.
      accuracy: share of the examples (of several entries each: of the entries) whose most probable
        class, by the posterior mean of the probabilities, is the label's. A float, or a nest of
        them in the structure of the outputs; None where the loss is no crossentropy.
      expected_calibration_error: of these classifications; shaped as `accuracy`.
    """

    log_predictive_density: float
    accuracy: Any
    expected_calibration_error: Any


class Running(NamedTuple):
    """Over the samples so far.

    Attributes:
      count: their number.
      maximum: of the log likelihood of each example, `[rows]`.
      total: sum of likelihoods over exp(`maximum`).
      mean: of the outputs.
      masks: of the outputs with classes, the same for all samples.
    """

    count: tf.Tensor
    maximum: tf.Tensor
    total: tf.Tensor
    mean: Any
    masks: list[tf.Tensor]


class Evaluator:
    """Scores a model's compiled loss and probabilities over samples of its variables.

    Args:
      model: compiled, built.
      variables: those that are sampled.

    Raises:
      ValueError: a model whose loss is no negative log likelihood.
    """

    def __init__(self, model: keras.Model, variables: list[keras.Variable]):
        internals.check_model(model)
        self._model, self._variables = model, variables
        self._scores = Fold(model, self._add)
        self._each = Each(model, self._log_likelihoods)

    def __call__(
        self,
        samples: list[Any],
        num_chains: int | None,
        x: Any,
        y: Any,
        sample_weight: Any,
        batch_size: int,
    ) -> Evaluation:
        """See `Posterior.evaluate`."""
        weight = _weights(sample_weight, num_rows((x, y)))
        self._build(x, y)
        parts = self._scores(samples, num_chains, (x, y), batch_size)
        maximum, total, mean, masks = (joined([p[i] for p in parts], axis=0) for i in range(1, 5))
        with np.errstate(divide="ignore"):  # an impossible example
            density = maximum + np.log(total / float(parts[0].count))
        counts = weight > 0
        outputs = keras.tree.flatten(mean)
        accuracy: list[Any] = [None] * len(outputs)
        error: list[Any] = [None] * len(outputs)
        labels = compiled_loss.labels(self._model, y, mean)
        classes = compiled_loss.classes(self._model, mean)
        for (place, kind), mask in zip(classes.items(), masks, strict=True):
            confidence, hit, entry_counts = _decisions(outputs[place], labels[place], kind)
            weights = _spread(weight, hit) * _spread(mask, hit) * entry_counts
            accuracy[place] = float(np.average(hit, weights=weights))
            error[place] = calibration_error(confidence, hit, weights)
        return Evaluation(
            float(np.average(density[counts], weights=weight[counts])),
            keras.tree.pack_sequence_as(mean, accuracy),
            keras.tree.pack_sequence_as(mean, error),
        )

    def log_likelihood(
        self, samples: list[Any], num_chains: int | None, x: Any, y: Any, batch_size: int
    ) -> np.ndarray:
        """See `Posterior.log_likelihood`."""
        num_rows((x, y))
        self._build(x, y)
        return self._each(samples, num_chains, (x, y), batch_size)

    def _build(self, x: Any, y: Any) -> None:
        """Resolves the losses of a model that has seen no labels yet."""
        internals.build(self._model, *keras.tree.map_structure(lambda a: a[:1], (x, y)), None)

    def _outputs(self, values: list[tf.Tensor], x: Any) -> Any:
        return internals.forward(self._model, self._variables, values, x, training=False).outputs

    def _log_likelihoods(self, values: list[tf.Tensor], batch: Any) -> tf.Tensor:
        x, y = batch
        return -compiled_loss.negative_log_likelihoods(self._model, y, self._outputs(values, x))

    def _add(self, old: Running | None, values: list[tf.Tensor], batch: Any) -> Running:
        x, y = batch
        outputs = self._outputs(values, x)
        log_p = -compiled_loss.negative_log_likelihoods(self._model, y, outputs)
        mean = wide(compiled_loss.activate(self._model, outputs))
        if old is None:
            flat = keras.tree.flatten(outputs)
            masks = [internals.mask(flat[i]) for i in compiled_loss.classes(self._model, outputs)]
            return Running(
                tf.zeros([], tf.int32),
                tf.zeros_like(log_p) + log_p.dtype.min,
                tf.zeros_like(log_p),
                tf.nest.map_structure(tf.zeros_like, mean),
                [tf.ones_like(log_p) if m is None else tf.cast(m, log_p.dtype) for m in masks],
            )
        count = old.count + 1
        maximum = tf.maximum(old.maximum, log_p)
        total = old.total * tf.exp(old.maximum - maximum) + tf.exp(log_p - maximum)
        return Running(count, maximum, total, running_mean(old.mean, mean, count), old.masks)


def calibration_error(confidence: Any, hit: Any, weights: Any) -> float:
    r"""Expected calibration error over 15 bins \( B_b \) of equal width.

    \[
    \sum_b \frac{|B_b|}{n} \left| \frac{\sum_{i \in B_b} h_i}{|B_b|}
      - \frac{\sum_{i \in B_b} c_i}{|B_b|} \right|,
    \]

    where c is the probability of the class decided for and h whether it was right; examples count
    by their weights. Bins are [b/15, (b+1)/15), the last with 1.

    #### References

    Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks, ICML 2017, equation (3).
    """
    bins = np.minimum((confidence * _NUM_BINS).astype(int), _NUM_BINS - 1)
    gaps = np.bincount(bins.ravel(), (weights * (hit - confidence)).ravel())
    return float(np.abs(gaps).sum() / weights.sum())


def _decisions(p: np.ndarray, label: Any, classes: compiled_loss.Classes) -> tuple[np.ndarray, ...]:
    """Probability of the most probable class, whether it is the label's, whether that counts."""
    label = np.asarray(label)
    if classes.axis is None:
        label = label.reshape(p.shape)
        return np.maximum(p, 1 - p), (p > 0.5) == (label > 0.5), np.ones_like(p)
    decided = p.argmax(axis=classes.axis)
    label = label.reshape(decided.shape) if classes.is_sparse else label.argmax(axis=classes.axis)
    return p.max(axis=classes.axis), decided == label, label != classes.ignored


def _weights(sample_weight: Any, rows: int) -> np.ndarray:
    if sample_weight is None:
        return np.ones([rows])
    weight = np.asarray(sample_weight, np.float64)
    if weight.shape != (rows,):
        raise ValueError(
            f"sample_weight has shape {weight.shape}; a weight of each example, [{rows}], is "
            "expected."
        )
    if not (np.isfinite(weight).all() and (weight >= 0).all() and weight.any()):
        raise ValueError("sample_weight has negative or infinite weights or NaN, or is all zero.")
    return weight


def _spread(weights: np.ndarray, entries: np.ndarray) -> np.ndarray:
    """Weights of the first axes, for all entries."""
    shape = weights.shape + (1,) * (entries.ndim - weights.ndim)
    return np.broadcast_to(weights.reshape(shape), entries.shape)
