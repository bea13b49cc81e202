"""Scores of the posterior predictive on labelled data.

Among them is the error of calibration, which a temperature mends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.checks import (
    array,
    as_array,
    integer,
    nonnegative_weights,
    optional,
    positive,
    require,
)
from tfp_sgmcmc.internal.extras import advised
from tfp_sgmcmc.internal.nest import wide
from tfp_sgmcmc.internal.tables import Table, shown_by
from tfp_sgmcmc.keras.model import compiled_loss, internals, likelihoods
from tfp_sgmcmc.keras.posterior import batches
from tfp_sgmcmc.keras.posterior.mixtures import Mixture
from tfp_sgmcmc.keras.posterior.sample_arrays import SampleArrays
from tfp_sgmcmc.keras.posterior.sample_loops import AverageSamples, MapSamples, Terms

_ROUNDING = 1e-6  # of a probability, as a share
_MOST_AXES = 32  # of an array
_MOST_LOG = 7.0  # of the temperature, in absolute value

_LEVEL = 0.9  # probability of the central interval whose coverage is reported


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
    """Returns an array of finite numbers from 0 to `most`, in `shape`.

    Sums of probabilities may be above 1 by rounding, and count as 1.
    """
    found = as_array(value)
    if found.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be an array of numbers. Received: {value!r}.")
    expected = "an array that is not empty"
    if shape is not None:
        expected = f"of the shape of confidence, {shape}"
    is_fit = found.size > 0 if shape is None else found.shape == shape
    require(name, f"an array of shape {found.shape}", is_fit, expected)
    holds = np.isfinite(found).all() and (found >= 0).all()
    holds = holds and (found <= most * (1 + _ROUNDING)).all()
    bounds = "finite and not negative" if most == np.inf else f"in [0, {most:g}]"
    require(name, f"numbers from {found.min()} to {found.max()}", holds, bounds)
    return np.minimum(found, most)


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
            has_axis, expected = -p.ndim <= self.axis < p.ndim, f"an array with axis {self.axis}"
            require("probabilities", f"shape {p.shape}", has_axis, expected)
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
    with advised('calibrate needs SciPy. Install it by python -m pip install "scipy"'):
        from scipy import optimize, special
    logits = _log(p)

    def loss(log_temperature: float) -> float:
        log_p = special.log_softmax(logits * np.exp(-log_temperature), axis=1)
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
        loss is neither a `NegativeLogLikelihood` of numbers nor Keras' Poisson loss.
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

    __repr__, _repr_html_ = shown_by(lambda self: self._table())

    def _table(self) -> Table:
        """Returns the scores that the outputs have, with a row for each of several outputs."""
        rows = []
        for name, nest in self._asdict().items():
            for path, x in keras.tree.flatten_with_path(nest):
                place = "/".join(map(str, path))
                of = f" of {'output ' * place.isdecimal()}{place}" if path else ""
                if x is not None:
                    rows.append((name.replace("_", " ") + of, f"{x:.4f}"))
        return Table("", ("score", "value"), rows)


class Evaluated(NamedTuple):
    """Averages over samples for a batch, as arrays.

    Attributes:
      x: the inputs.
      labels: the labels of each output, by place (see `compiled_loss.labels`).
      weight: the weights of the rows.
      log_density: the log predictive densities of the rows.
      mean: the mean outputs, as probabilities where the loss takes logits.
      masks: 1 where an entry of an output counts, by place.
    """

    x: Any
    labels: dict[int, Any]
    weight: np.ndarray
    log_density: np.ndarray
    mean: Any
    masks: list[np.ndarray]

    def counts(self, place: int, entries: np.ndarray) -> np.ndarray:
        """Returns the weights of the entries of an output, broadcast to their shape."""
        return _spread(self.weight, entries) * _spread(self.masks[place], entries)


class Evaluator:
    """Scores a model's compiled loss and probabilities over samples of the variables.

    Raises:
      ValueError: the model's loss is not a negative log likelihood.
    """

    def __init__(self, model: keras.Model, variables: list[keras.Variable]):
        compiled_loss.check_likelihoods(model)
        self._model, self._variables = model, variables
        self._averages = AverageSamples(model, self._terms)
        self._outputs = MapSamples(model, self._output)
        self._log_likelihoods = MapSamples(model, lambda *given: self._evaluated(*given)[1])

    def __call__(self, samples: SampleArrays, data: batches.Batches) -> Evaluation:
        """Returns the scores for `data`, as `Posterior.evaluate` does."""
        weights, densities, mean = [], [], None
        decisions: dict[int, list[Any]] = {}
        numbers: dict[int, list[Any]] = {}
        for batch in self.each_batch(samples, data):
            weights.append(batch.weight)
            densities.append(batch.log_density)
            mean = batch.mean
            for place, found in self.decisions(batch).items():
                decisions.setdefault(place, []).append(found)
            observed = likelihoods.of_numbers(self._model, mean)
            if observed:
                stacked = keras.tree.flatten(self._outputs(samples, [batch.x], batches.no_tick))
            for place, observation in observed.items():
                values = samples.flat(stacked[place])
                mixture = Mixture(observation, values, samples.shares(), len(weights))
                y = np.asarray(batch.labels[place], np.float64).reshape(mixture.shape)
                error, crps = (mixture.mean() - y) ** 2, mixture.crps(y)
                covered = mixture.coverage(y, _LEVEL)
                parts = error, crps, covered, batch.counts(place, y)
                numbers.setdefault(place, []).append([np.ravel(part) for part in parts])
        weight, density = np.concatenate(weights), np.concatenate(densities)
        nonnegative_weights("sample_weight", weight)
        counts = weight > 0
        scores: list[dict[int, float]] = [{} for _ in range(5)]
        for place, parts in decisions.items():
            confidence, hit, counted = map(np.concatenate, zip(*parts, strict=True))
            scores[0][place] = float(np.average(hit, weights=counted))
            scores[1][place] = expected_calibration_error(confidence, hit, counted)
        for place, parts in numbers.items():
            *found, counted = map(np.concatenate, zip(*parts, strict=True))
            for score, values in zip(scores[2:], found, strict=True):
                score[place] = float(np.average(values, weights=counted))
            scores[2][place] **= 0.5
        return Evaluation(
            float(np.average(density[counts], weights=weight[counts])),
            *(internals.at_places(mean, values) for values in scores),
        )

    def decisions(self, batch: Evaluated) -> dict[int, list[np.ndarray]]:
        """Returns confidence, hits and weights of classifications, `[entries]`, by place."""
        found, outputs = {}, keras.tree.flatten(batch.mean)
        for place, kind in compiled_loss.classes(self._model, batch.mean).items():
            confidence, hit, counts = decided(outputs[place], batch.labels[place], kind)
            parts = confidence, hit, counts * batch.counts(place, hit)
            found[place] = [np.ravel(part) for part in parts]
        return found

    def calibrate(self, samples: SampleArrays, data: batches.Batches) -> TemperatureScaling:
        """Fits a temperature to the labels of `data`, as `Posterior.calibrate` does."""
        parts, axis = [], None
        for batch in self.each_batch(samples, data):
            classes = compiled_loss.classes(self._model, batch.mean)
            if len(classes) != 1:
                raise ValueError(
                    "calibrate needs a model with exactly one output whose loss is a "
                    f"crossentropy. Received: {len(classes)} of them."
                )
            ((place, kind),) = classes.items()
            p = keras.tree.flatten(batch.mean)[place]
            p, label, counts = _distributions(p, np.asarray(batch.labels[place]), kind)
            counts = counts * batch.counts(place, counts)
            size, axis = p.shape[-1], kind.axis
            parts.append([p.reshape(-1, size), label.reshape(-1, size), counts.ravel()])
        p, label, counts = map(np.concatenate, zip(*parts, strict=True))
        nonnegative_weights("sample_weight", counts)
        return fitted(p, label, counts, axis)

    def log_likelihood(self, samples: SampleArrays, data: batches.Batches) -> np.ndarray:
        """Returns the log likelihood by each sample, as `Posterior.log_likelihood` does."""
        parts, rows = [], 0
        for block, tick in self._blocks(data):
            values = self._log_likelihoods(samples, [(x, y) for x, y, _ in block], tick)
            batches.check_finite(values, block, rows)
            parts.append(values)
            rows += values.shape[-1]
        return np.concatenate(parts, axis=-1)

    def each_batch(self, samples: SampleArrays, data: batches.Batches) -> Iterator[Evaluated]:
        """Yields the averages over samples for each batch."""
        rows = 0
        for block, tick in self._blocks(data):
            pairs = [(x, y) for x, y, _ in block]
            found = self._averages(samples, pairs, lambda done, tick=tick: tick(done / 2))
            batches.check_finite([part.maximum + part.scaled for part in found], block, rows)
            for number, ((x, y, weight), part) in enumerate(zip(block, found, strict=True), 1):
                _, _, (mean, masks), maximum, scaled = tf.nest.map_structure(np.asarray, [*part])
                compiled_loss.check_probabilities(self._model, mean)
                with np.errstate(divide="ignore"):  # an impossible example
                    log_density = maximum + np.log(scaled)
                weight = batches.row_weight(weight, len(log_density))
                labels = compiled_loss.labels(self._model, y, mean)
                weight = weight * compiled_loss.counts(self._model, labels, mean)
                yield Evaluated(x, labels, weight, log_density, mean, masks)
                tick((1 + number / len(block)) / 2)
                rows += len(log_density)

    def _blocks(self, data: batches.Batches) -> Iterator[tuple[list[batches.Batch], batches.Tick]]:
        """Yields the blocks after a check of their labels; resolves losses that saw none yet."""
        outputs = None
        for block, tick in data.blocks():
            if outputs is None:
                _check_count(self._model, block[0][1])
                pair = keras.tree.map_structure(lambda a: a[:1], block[0][:2])
                compiled_loss.build(self._model, *pair, None)
                values = [tf.convert_to_tensor(v.value) for v in self._variables]
                outputs = self._output(values, batches.tensors(block[0][0]))
            for _, y, _ in block:
                compiled_loss.check_labels(self._model, y, outputs)
            yield block, tick

    def _output(self, values: list[tf.Tensor], x: Any) -> Any:
        return internals.forward(self._model, self._variables, values, x, training=False).outputs

    def _evaluated(self, values: list[tf.Tensor], batch: Any) -> tuple[Any, tf.Tensor]:
        """Returns the outputs and the log likelihoods of a batch."""
        x, y = batch
        outputs = self._output(values, x)
        return outputs, -compiled_loss.negative_log_likelihoods(self._model, y, outputs)

    def _terms(self, values: list[tf.Tensor], batch: Any) -> Terms:
        outputs, log_p = self._evaluated(values, batch)
        found = map(internals.mask, keras.tree.flatten(outputs))
        masks = [tf.ones_like(log_p) if m is None else tf.cast(m, log_p.dtype) for m in found]
        mean = wide(compiled_loss.activate(self._model, outputs))
        return Terms(others=(mean, masks), logs=log_p)


def _check_count(model: keras.Model, y: Any) -> None:
    """Raises ValueError unless there are labels for each output that has a loss, where known."""
    outputs, given = internals.symbolic_outputs(model), len(internals.array_leaves(y))
    if outputs is None or given >= (expected := len(compiled_loss.placed_losses(model, outputs))):
        return
    words = f"y must have an array for each output that has a loss, here {expected}"
    raise ValueError(f"{words}. Received: {given}.")


def decided(p: np.ndarray, label: Any, classes: compiled_loss.Classes) -> tuple[np.ndarray, ...]:
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
    """Returns predicted and labels' probabilities, `[..., classes]`, and which entries count."""
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
