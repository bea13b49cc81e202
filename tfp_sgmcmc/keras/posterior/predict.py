"""Posterior predictive mean, spread and entropies of a model's outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.keras.model import compiled_loss, internals
from tfp_sgmcmc.keras.posterior.batches import Batches, check_finite, num_rows
from tfp_sgmcmc.keras.posterior.sample_loops import Each, Fold, joined, running_mean, wide

Activation = Callable[[Any], Any] | str | None


class Prediction(NamedTuple):
    """Posterior average of a model's outputs, and their spread over the samples.

    Attributes:
      mean: the average over samples, in the structure of the outputs, `[rows, ...]`.
      standard_deviation: the standard deviation over samples (the divisor is the sum of their
        weights). It measures the uncertainty about the weights, not the noise of an observation.
    """

    mean: Any
    standard_deviation: Any


class PosteriorPrediction(NamedTuple):
    r"""`Prediction`, with the entropies of outputs that are probabilities, in nats.

    Let \( p_s \) be the probabilities by sample s, \( \bar p \) their mean, and H the entropy over
    the classes, or over {0, 1} for an output that is the probability of 1. Then

    \[
    H[\bar p] = \underbrace{\frac 1 S \sum_s H[p_s]}_{\text{noise of an observation}}
      + \underbrace{I}_{\text{uncertainty about the weights}}.
    \]

    Attributes:
      mean: the average over samples, in the structure of the outputs, `[rows, ...]`.
      standard_deviation: the standard deviation over samples, by their weights.
      entropy: \( H[\bar p] \), in the structure of the outputs and in their shapes without the axis
        of classes. Outputs that are probabilities of 1 have one entropy for each entry. None for
        outputs that are not probabilities.
      mutual_information: I, the mutual information of an observation and the weights, shaped as
        `entropy`. Active learning by disagreement maximises it.

    References:
      N. Houlsby, F. Huszár, Z. Ghahramani and M. Lengyel. Bayesian active learning for
      classification and preference learning. arXiv:1112.5745, 2011. Equation 2.
    """

    mean: Any
    standard_deviation: Any
    entropy: Any
    mutual_information: Any


class Moments(NamedTuple):
    """Running mean and variance with weights (West 1979), and mean entropies."""

    mean: Any
    variance: Any
    entropies: list[tf.Tensor]


def check_activation(activation: Any) -> None:
    """Raises TypeError or ValueError unless it is "auto", None or a callable."""
    is_callable = callable(activation) and not isinstance(activation, type)
    if activation is None or is_callable or isinstance(activation, str) and activation == "auto":
        return
    error = ValueError if isinstance(activation, str) else TypeError
    raise error(f"activation must be 'auto', None or a callable. Received: {activation!r}.")


class Predictor:
    """Averages `activation(model(x))` over samples of the variables; see `Posterior.predict`."""

    def __init__(self, model: keras.Model, variables: list[keras.Variable], activation: Activation):
        if activation == "auto" and not (model.compiled and model.loss):
            raise ValueError(
                "model must be compiled with a loss for activation='auto', because the loss tells "
                "whether outputs are logits. Received: a model that is not compiled with a loss. "
                "Compile it, or pass activation=None or a callable."
            )
        self._model, self._variables, self._activation = model, variables, activation
        self._moments = Fold(model, self._add)
        self._each = Each(model, self._output)

    def __call__(
        self,
        samples: list[Any],
        num_chains: int | None,
        data: Batches,
        weights: np.ndarray | None,
    ) -> PosteriorPrediction:
        """Predicts for the inputs of `data`."""
        moments, rows = [], 0
        for block, tick in data.blocks():
            inputs = [x for x, *_ in block]
            found = self._moments(samples, num_chains, inputs, weights, tick)
            check_finite([m.mean for m in found], block, rows)
            moments += found
            rows += sum(map(num_rows, inputs))
        mean, variance, of_samples = (joined([m[i] for m in moments], axis=0) for i in range(3))
        if self._activation == "auto":
            compiled_loss.check_probabilities(self._model, mean)
        flat = keras.tree.flatten(mean)
        entropies, information = {}, {}
        pairs = zip(self._probabilities(mean).items(), of_samples, strict=True)
        for (place, classes), of_sample in pairs:
            entropies[place] = entropy(flat[place], classes.axis).numpy()
            # Rounding may make it negative where all samples agree.
            information[place] = np.maximum(entropies[place] - of_sample, 0)
        return PosteriorPrediction(
            mean,
            keras.tree.map_structure(np.sqrt, variance),
            compiled_loss.at_places(mean, entropies),
            compiled_loss.at_places(mean, information),
        )

    def outputs(self, samples: list[Any], num_chains: int | None, data: Batches) -> Any:
        """Returns what `Posterior.outputs` does for the inputs of `data`."""
        parts = [
            self._each(samples, num_chains, [x for x, *_ in block], tick)
            for block, tick in data.blocks()
        ]
        return joined(parts, axis=1 if num_chains is None else 2)

    def _output(self, values: list[tf.Tensor], batch: Any) -> Any:
        forward = internals.forward(self._model, self._variables, values, batch, training=False)
        if self._activation == "auto":
            return compiled_loss.activate(self._model, forward.outputs)
        if not callable(self._activation):
            return forward.outputs
        found = self._activation(forward.outputs)
        rows = keras.tree.flatten(forward.outputs)[0].shape[:1]
        for leaf in keras.tree.flatten(found) or [found]:
            shape = getattr(leaf, "shape", None)
            if shape is None or not tf.TensorShape(shape)[:1].is_compatible_with(rows):
                received = f"{leaf!r}" if shape is None else f"shape {shape}"
                raise ValueError(
                    "activation must return a tensor, or a nest of tensors, with one row for each "
                    f"row of the outputs. Received: {received}."
                )
        return found

    def _probabilities(self, outputs: Any) -> dict[int, compiled_loss.Classes]:
        return compiled_loss.classes(self._model, outputs) if self._activation == "auto" else {}

    def _add(
        self, old: Moments | None, values: list[tf.Tensor], share: tf.Tensor, batch: Any
    ) -> Moments:
        y = wide(self._output(values, batch))
        flat = keras.tree.flatten(y)
        entropies = [entropy(flat[i], c.axis) for i, c in self._probabilities(y).items()]
        if old is None:
            zeros, no_entropies = tf.nest.map_structure(tf.zeros_like, (y, entropies))
            return Moments(zeros, zeros, no_entropies)
        mean = running_mean(old.mean, y, share)
        squares = tf.nest.map_structure(lambda v, m, n: (v - m) * (v - n), y, old.mean, mean)
        variance = running_mean(old.variance, squares, share)
        return Moments(mean, variance, running_mean(old.entropies, entropies, share))


def entropy(probabilities: tf.Tensor, axis: int | None) -> tf.Tensor:
    """Returns entropies in nats over the classes along `axis`, or over {0, 1} if it is None.

    With None each entry of `probabilities` is the probability of 1.
    """
    minus_p_log_p = -tf.math.xlogy(probabilities, probabilities)
    if axis is None:
        return minus_p_log_p - tf.math.xlogy(1 - probabilities, 1 - probabilities)
    return tf.reduce_sum(minus_p_log_p, axis=axis)
