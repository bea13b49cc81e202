"""How well the posterior predictive explains labelled data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.checks import require
from tfp_sgmcmc.keras.model import compiled_loss, internals, observation_models
from tfp_sgmcmc.keras.posterior.batches import (
    Batch,
    Batches,
    Tick,
    check_finite,
    check_weights,
    no_tick,
    row_weight,
)
from tfp_sgmcmc.keras.posterior.calibration import expected_calibration_error
from tfp_sgmcmc.keras.posterior.mixtures import Mixture
from tfp_sgmcmc.keras.posterior.sample_loops import (
    Each,
    Fold,
    flat_samples,
    running_mean,
    sample_shares,
    wide,
)
from tfp_sgmcmc.keras.posterior.temperature_scaling import TemperatureScaling, fitted

_LEVEL = 0.9  # probability of the central interval whose coverage is reported


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
      root_mean_squared_error: the error of the predictive mean of an observation that is a number
        (see `Predictive`), over the entries of all examples. A float, or a nest with None where the
        loss is no `NegativeLogLikelihood` of numbers (nor Keras' Poisson loss).
      crps: the mean continuous ranked probability score, in the units of y and in the structure of
        `root_mean_squared_error`. Lower is better. Exact for normals, if there are at most 128
        samples; beyond, and for other distributions, an estimate by draws without bias.
      coverage: the share of observations within the central 90 % interval of the predictive, in the
        same structure. It is 0.9 if predictions are calibrated.

    References:
      T. Gneiting and A. E. Raftery. Strictly proper scoring rules, prediction, and estimation.
      Journal of the American Statistical Association, 102(477):359-378, 2007. Equation 21.
    """

    log_predictive_density: float
    accuracy: Any
    expected_calibration_error: Any
    root_mean_squared_error: Any = None
    crps: Any = None
    coverage: Any = None


class Running(NamedTuple):
    """Running largest log likelihoods, mean likelihoods, and mean outputs.

    A mean of likelihoods is divided by exp(`maximum`). Masks are those of all outputs.
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
        self._outputs = Each(model, self._output)
        self._each = Each(model, lambda values, batch: self._evaluated(values, batch)[1])

    def __call__(
        self,
        samples: list[Any],
        num_chains: int | None,
        data: Batches,
        weights: np.ndarray | None,
    ) -> Evaluation:
        """Returns what `Posterior.evaluate` does for `data`; `weights` are those of the samples."""
        densities, row_weights = [], []
        decided: dict[int, list[Any]] = {}
        numbers: dict[int, list[Any]] = {}
        rows, mean = 0, None
        shares = sample_shares(weights, samples[0].shape[0], num_chains)
        for block, tick in self._checked(data):
            pairs = [(x, y) for x, y, _ in block]
            found = self._scores(samples, num_chains, pairs, weights, tick)
            check_finite([p.maximum + p.likelihood for p in found], block, rows)
            for (x, y, weight), part in zip(block, found, strict=True):
                maximum, scaled, mean, masks = tf.nest.map_structure(np.asarray, [*part])
                compiled_loss.check_probabilities(self._model, mean)
                weight = row_weight(weight, len(scaled))
                with np.errstate(divide="ignore"):  # an impossible example
                    densities.append(maximum + np.log(scaled))
                outputs = keras.tree.flatten(mean)
                classes = compiled_loss.classes(self._model, mean)
                laws = observation_models.of_numbers(self._model, mean)
                labels = compiled_loss.labels(self._model, y, mean) if classes or laws else {}
                for place, kind in classes.items():
                    confidence, hit, counts = _decided(outputs[place], labels[place], kind)
                    counts = counts * _spread(weight, hit) * _spread(masks[place], hit)
                    _append(decided, place, confidence, hit, counts)
                if laws:
                    stacked = self._outputs(samples, num_chains, [x], no_tick)
                    stacked = keras.tree.flatten(stacked)
                for place, law in laws.items():
                    values = flat_samples(stacked[place], num_chains)
                    mixture = Mixture(law, values, shares, len(densities))
                    label = np.asarray(labels[place], np.float64).reshape(mixture.shape)
                    scores = _scores(mixture, label)
                    counts = _spread(weight, label) * _spread(masks[place], label)
                    _append(numbers, place, *scores, counts)
                row_weights.append(weight)
                rows += len(weight)
        weight, density = np.concatenate(row_weights), np.concatenate(densities)
        check_weights(weight)
        counts = weight > 0
        figures: list[dict[int, float]] = [{} for _ in range(5)]
        for place, parts in decided.items():
            confidence, hit, counted = map(np.concatenate, zip(*parts, strict=True))
            figures[0][place] = float(np.average(hit, weights=counted))
            figures[1][place] = expected_calibration_error(confidence, hit, counted)
        for place, parts in numbers.items():
            *scores, counted = map(np.concatenate, zip(*parts, strict=True))
            for figure, values in zip(figures[2:], scores, strict=True):
                figure[place] = float(np.average(values, weights=counted))
            figures[2][place] **= 0.5
        return Evaluation(
            float(np.average(density[counts], weights=weight[counts])),
            *(compiled_loss.at_places(mean, values) for values in figures),
        )

    def calibrate(
        self,
        samples: list[Any],
        num_chains: int | None,
        data: Batches,
        weights: np.ndarray | None,
    ) -> TemperatureScaling:
        """Returns what `Posterior.calibrate` does for `data`."""
        parts, rows, axis = [], 0, None
        for block, tick in self._checked(data):
            pairs = [(x, y) for x, y, _ in block]
            found = self._scores(samples, num_chains, pairs, weights, tick)
            check_finite([p.maximum + p.likelihood for p in found], block, rows)
            for (_, y, weight), part in zip(block, found, strict=True):
                mean, masks = tf.nest.map_structure(np.asarray, [part.mean, part.masks])
                compiled_loss.check_probabilities(self._model, mean)
                classes = compiled_loss.classes(self._model, mean)
                if len(classes) != 1:
                    raise ValueError(
                        "calibrate needs a model with exactly one output whose loss is a "
                        f"crossentropy. Received: {len(classes)} of them."
                    )
                ((place, kind),) = classes.items()
                p = keras.tree.flatten(mean)[place]
                label = compiled_loss.labels(self._model, y, mean)[place]
                p, label, counts = _distributions(p, np.asarray(label), kind)
                weight = row_weight(weight, len(p))
                counts = counts * _spread(weight, counts) * _spread(masks[place], counts)
                size = p.shape[-1]
                parts.append([p.reshape(-1, size), label.reshape(-1, size), counts.ravel()])
                rows, axis = rows + len(p), kind.axis
        p, label, counts = map(np.concatenate, zip(*parts, strict=True))
        check_weights(counts)
        return fitted(p, label, counts, axis)

    def log_likelihood(
        self, samples: list[Any], num_chains: int | None, data: Batches
    ) -> np.ndarray:
        """Returns what `Posterior.log_likelihood` does for `data`."""
        parts, rows = [], 0
        for block, tick in self._checked(data):
            pairs = [(x, y) for x, y, _ in block]
            values = self._each(samples, num_chains, pairs, tick)
            check_finite(values, block, rows)
            parts.append(values)
            rows += values.shape[-1]
        return np.concatenate(parts, axis=-1)

    def _checked(self, data: Batches) -> Iterator[tuple[list[Batch], Tick]]:
        """Yields the blocks, and resolves the losses of a model that saw no labels yet."""
        is_binary = None
        for block, tick in data.blocks():
            if is_binary is None:
                pair = keras.tree.map_structure(lambda a: a[:1], block[0][:2])
                internals.build(self._model, *pair, None)
                outputs = internals.symbolic_outputs(self._model)
                kinds = {} if outputs is None else compiled_loss.classes(self._model, outputs)
                is_binary = len(kinds) == 1 and all(k.axis is None for k in kinds.values())
            for _, labels, _ in block if is_binary else ():
                if not keras.tree.is_nested(labels):
                    y = np.asarray(labels)
                    wrong = (y < 0) | (y > 1)
                    require("y", y[wrong][:3], not np.any(wrong), "in 0 .. 1")
            yield block, tick

    def _output(self, values: list[tf.Tensor], x: Any) -> Any:
        return internals.forward(self._model, self._variables, values, x, training=False).outputs

    def _evaluated(self, values: list[tf.Tensor], batch: Any) -> tuple[Any, tf.Tensor]:
        """Returns the outputs and the log likelihoods of a batch."""
        x, y = batch
        outputs = self._output(values, x)
        return outputs, -compiled_loss.negative_log_likelihoods(self._model, y, outputs)

    def _add(
        self, old: Running | None, values: list[tf.Tensor], share: tf.Tensor, batch: Any
    ) -> Running:
        outputs, log_p = self._evaluated(values, batch)
        mean = wide(compiled_loss.activate(self._model, outputs))
        if old is None:
            masks = map(internals.mask, keras.tree.flatten(outputs))
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


def _scores(mixture: Mixture, y: np.ndarray) -> tuple[np.ndarray, ...]:
    """Returns squared errors, CRPS, and whether y lies in the central interval."""
    return (mixture.mean() - y) ** 2, mixture.crps(y), mixture.coverage(y, _LEVEL)


def _append(found: dict[int, list[Any]], place: int, *arrays: np.ndarray) -> None:
    found.setdefault(place, []).append([np.ravel(a) for a in arrays])


def _decided(p: np.ndarray, label: Any, classes: compiled_loss.Classes) -> tuple[np.ndarray, ...]:
    """Returns largest probabilities, whether their classes are the labels', and which count."""
    label = np.asarray(label)
    if classes.axis is None:
        label = label.reshape(p.shape)
        return np.maximum(p, 1 - p), (p > 0.5) == (label > 0.5), np.ones_like(p)
    decided = p.argmax(axis=classes.axis)
    label = label.reshape(decided.shape) if classes.is_sparse else label.argmax(axis=classes.axis)
    return p.max(axis=classes.axis), decided == label, label != classes.ignored


def _distributions(
    p: np.ndarray, label: np.ndarray, classes: compiled_loss.Classes
) -> tuple[np.ndarray, ...]:
    """Returns probabilities and those of the labels, `[..., classes]`, and which entries count."""
    if classes.axis is None:
        label = label.reshape(p.shape)
        return np.stack([1 - p, p], -1), np.stack([1 - label, label], -1), np.ones(p.shape)
    p = np.moveaxis(p, classes.axis, -1)
    if not classes.is_sparse:
        return p, np.moveaxis(label, classes.axis, -1), np.ones(p.shape[:-1])
    label = label.reshape(p.shape[:-1]).astype(np.int64)
    counts = label != classes.ignored
    return p, np.eye(p.shape[-1])[np.where(counts, label, 0)], counts


def _spread(weights: np.ndarray, entries: np.ndarray) -> np.ndarray:
    """Broadcasts weights of the first axes to the shape of `entries`."""
    shape = weights.shape + (1,) * (entries.ndim - weights.ndim)
    return np.broadcast_to(weights.reshape(shape), entries.shape)
