"""How well the posterior predictive explains labelled data."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.checks import require
from tfp_sgmcmc.keras.model import compiled_loss, internals
from tfp_sgmcmc.keras.posterior.calibration import expected_calibration_error
from tfp_sgmcmc.keras.posterior.sample_loops import (
    Each,
    Fold,
    check_arrays,
    check_finite,
    checked_inputs,
    joined,
    num_rows,
    running_mean,
    wide,
)


class Evaluation(NamedTuple):
    """Scores of the posterior predictive, as averages over examples by their `sample_weight`.

    Attributes:
      log_predictive_density: the mean of the examples' log predictive densities, in nats. Higher is
        better.
      accuracy: the share of examples whose most probable class, by the posterior mean of the
        probabilities, is the label's. If an example has several entries, the share of entries. A
        float, or a nest of floats in the structure of the outputs, with None where the loss is not
        a crossentropy.
      expected_calibration_error: the calibration error of these classifications over 15 bins, in
        the structure of `accuracy`.
    """

    log_predictive_density: float
    accuracy: Any
    expected_calibration_error: Any


class Running(NamedTuple):
    """Running largest log likelihoods, mean likelihoods, and mean outputs.

    A mean of likelihoods is divided by exp(`maximum`). Masks are those of the outputs with classes.
    """

    maximum: tf.Tensor
    likelihood: tf.Tensor
    mean: Any
    masks: list[tf.Tensor]


class Evaluator:
    """Scores a model's compiled loss and probabilities over samples of the variables.

    Raises:
      ValueError: the model's loss is not a negative log likelihood.
    """

    def __init__(self, model: keras.Model, variables: list[keras.Variable]):
        internals.check_model(model)
        compiled_loss.check_likelihoods(model)
        self._model, self._variables = model, variables
        self._scores = Fold(model, self._add)
        self._each = Each(model, lambda values, batch: self._evaluated(values, batch)[1])

    def __call__(
        self,
        samples: list[Any],
        num_chains: int | None,
        data: Any,
        weight: Any,
        batch_size: int,
        weights: np.ndarray | None,
    ) -> Evaluation:
        """Returns what `Posterior.evaluate` does for data `(x, y)`.

        `weight` is that of the examples, and `weights` are those of the samples.
        """
        rows = self._build(data)
        weight = _weights(weight, rows)
        parts = self._scores(samples, num_chains, data, batch_size, weights)
        check_finite([p.maximum + p.likelihood for p in parts], x=data[0], y=data[1])
        maximum, scaled, mean, masks = (joined([p[i] for p in parts], axis=0) for i in range(4))
        compiled_loss.check_probabilities(self._model, mean)
        with np.errstate(divide="ignore"):  # an impossible example
            density = maximum + np.log(scaled)
        counts = weight > 0
        outputs = keras.tree.flatten(mean)
        accuracy, error = {}, {}
        labels = compiled_loss.labels(self._model, data[1], mean)
        classes = compiled_loss.classes(self._model, mean)
        for (place, kind), mask in zip(classes.items(), masks, strict=True):
            confidence, hit, entry_counts = _decisions(outputs[place], labels[place], kind)
            weights = _spread(weight, hit) * _spread(mask, hit) * entry_counts
            accuracy[place] = float(np.average(hit, weights=weights))
            error[place] = expected_calibration_error(confidence, hit, weights)
        return Evaluation(
            float(np.average(density[counts], weights=weight[counts])),
            compiled_loss.at_places(mean, accuracy),
            compiled_loss.at_places(mean, error),
        )

    def log_likelihood(
        self, samples: list[Any], num_chains: int | None, data: Any, batch_size: int
    ) -> np.ndarray:
        """Returns what `Posterior.log_likelihood` does for data `(x, y)`."""
        self._build(data)
        values = self._each(samples, num_chains, data, batch_size)
        check_finite(values, x=data[0], y=data[1])
        return values

    def _build(self, data: Any) -> int:
        """Resolves the losses of a model that saw no labels yet, and returns the number of rows."""
        checked_inputs(self._model, data[0])
        check_arrays("y", data[1])
        rows = num_rows(data)
        internals.build(self._model, *keras.tree.map_structure(lambda a: a[:1], data), None)
        outputs = internals.symbolic_outputs(self._model)
        kinds = {} if outputs is None else compiled_loss.classes(self._model, outputs)
        is_binary = len(kinds) == 1 and all(kind.axis is None for kind in kinds.values())
        if is_binary and not keras.tree.is_nested(data[1]):
            y = np.asarray(data[1])
            require("y", y[(y < 0) | (y > 1)][:3], not np.any((y < 0) | (y > 1)), "in 0 .. 1")
        return rows

    def _evaluated(self, values: list[tf.Tensor], batch: Any) -> tuple[Any, tf.Tensor]:
        """Returns the outputs and the log likelihoods of a batch."""
        x, y = batch
        outputs = internals.forward(self._model, self._variables, values, x, training=False).outputs
        return outputs, -compiled_loss.negative_log_likelihoods(self._model, y, outputs)

    def _add(
        self, old: Running | None, values: list[tf.Tensor], share: tf.Tensor, batch: Any
    ) -> Running:
        outputs, log_p = self._evaluated(values, batch)
        mean = wide(compiled_loss.activate(self._model, outputs))
        if old is None:
            flat = keras.tree.flatten(outputs)
            masks = [internals.mask(flat[i]) for i in compiled_loss.classes(self._model, outputs)]
            return Running(
                tf.zeros_like(log_p) + log_p.dtype.min,
                tf.zeros_like(log_p),
                tf.nest.map_structure(tf.zeros_like, mean),
                [tf.ones_like(log_p) if m is None else tf.cast(m, log_p.dtype) for m in masks],
            )
        maximum = tf.maximum(old.maximum, log_p)
        before = old.likelihood * tf.exp(old.maximum - maximum)
        likelihood = running_mean(before, tf.exp(log_p - maximum), share)
        return Running(maximum, likelihood, running_mean(old.mean, mean, share), old.masks)


def _decisions(p: np.ndarray, label: Any, classes: compiled_loss.Classes) -> tuple[np.ndarray, ...]:
    """Returns largest probabilities, whether their classes are the labels', and which count."""
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
    try:
        weight = np.asarray(sample_weight, np.float64)
    except (TypeError, ValueError):
        weight = np.asarray(None)
    if weight.dtype != np.float64:
        raise TypeError(f"sample_weight must be an array of numbers. Received: {sample_weight!r}.")
    if weight.shape != (rows,):
        raise ValueError(
            f"sample_weight must have one weight for each example, shape [{rows}]. Received: shape "
            f"{weight.shape}."
        )
    if not (np.isfinite(weight).all() and (weight >= 0).all() and weight.any()):
        raise ValueError(
            "sample_weight must have finite weights that are not negative and not all zero. "
            f"Received: weights from {weight.min()} to {weight.max()}."
        )
    return weight


def _spread(weights: np.ndarray, entries: np.ndarray) -> np.ndarray:
    """Broadcasts weights of the first axes to the shape of `entries`."""
    shape = weights.shape + (1,) * (entries.ndim - weights.ndim)
    return np.broadcast_to(weights.reshape(shape), entries.shape)
