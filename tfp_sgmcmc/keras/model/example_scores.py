"""The scores of a batch's examples, next to the gradient of a Keras model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfp_sgmcmc.covariance.factored_scores import FactoredScores
from tfp_sgmcmc.keras.model import internals, replicas
from tfp_sgmcmc.keras.model.layer_taps import as_scores, factors, tapped, tapped_layers
from tfp_sgmcmc.keras.model.vectorize import is_vectorizable, mapped
from tfp_sgmcmc.targets.base import check_connected
from tfp_sgmcmc.targets.scores import mapped_scores


class ExampleScores:
    """Gradients of single examples' log likelihoods by a model's variables.

    Those by the weights of `Dense`, `Conv1D`, `Conv2D`, `Conv3D` and `Embedding` layers come as
    `FactoredScores` out of the backward pass that gives the gradient. For those by all other
    weights each example has a backward pass of its own, by `mapped`, in which dropout and the like
    draw the same numbers for each. A model that draws such numbers and has other
    weights has all scores from there, so that those of one example belong to the same numbers.

    Args:
      model: compiled, built.
      num_groups: G; scores then are those of G groups of a batch (of its first examples, where G
        does not divide their number; of single ones, where it has less than G), scaled so that
        their covariance still estimates that of single examples. None is each example by itself.
    """

    def __init__(self, model: keras.Model, num_groups: int | None = None):
        self._model, self._num_groups = model, num_groups
        self._layers: list[keras.Layer] = []
        self._mapped_variables: list[int] = []  # their places among the trainable ones
        self._prepared = False

    def num_scores(self, num_rows: Any) -> int | None:
        """Scores that a batch gives at most, with `num_rows` on each replica; None if not known."""
        if not isinstance(num_rows, int):
            return self._num_groups
        num_rows *= replicas.count()
        return num_rows if self._num_groups is None else min(num_rows, self._num_groups)

    def prepare(self, x: Any) -> None:
        """Finds out, with the first batch's inputs, where the scores come from.

        Raises:
          ValueError: examples of a batch interact.
        """
        if self._prepared:
            return
        for layer in internals.layers(self._model):
            if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
                raise ValueError(
                    f"{layer.name} is a BatchNormalization layer, which lets the examples of a "
                    "batch interact, but the kernel asks for the scores of single examples. Use "
                    "LayerNormalization or GroupNormalization, set its trainable to False, or take "
                    "a sampler without a covariance, such as SGLD or SGNHT."
                )
        self._layers = tapped_layers(self._model, x)
        tapped_variables = {id(v) for layer in self._layers for v in layer.trainable_variables}
        variables = self._model.trainable_variables
        others = [i for i, v in enumerate(variables) if id(v) not in tapped_variables]
        if others and _draws_numbers(self._model):
            self._layers, others = [], list(range(len(variables)))
        self._mapped_variables, self._prepared = others, True

    def gradient_and_factors(
        self,
        log_prob_fn: Callable[[list[tf.Tensor]], tf.Tensor],
        log_likelihood_fn: Callable[[list[tf.Tensor], Any], tf.Tensor],
        state: list[tf.Tensor],
        batch: Any,
    ) -> tuple[tf.Tensor, list[tf.Tensor], list[tuple[tf.Tensor, ...]]]:
        """The log posterior, its gradient, and tensors to which `scores` gives meaning.

        Args:
          log_prob_fn: of the state, estimated from the batch.
          log_likelihood_fn: `(state, batch) -> log p`, of the rows of a batch together.
          state: values of the trainable variables.
          batch: `(x, y, sample_weight)`.
        """
        leaves = [tf.identity(x) for x in state]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(leaves)
            with tapped(self._layers, tape) as taps:
                value = log_prob_fn(leaves)
        deltas = [tap.delta for tap in taps]
        gradient, by_deltas = tape.gradient(value, [leaves, deltas])
        gradient = check_connected(state, gradient)
        rows, width = self._grouping(count_rows(batch))
        found = factors(taps, by_deltas)
        if self._num_groups is not None:
            found = {
                key: tuple(_in_groups(x, rows, width) for x in own) for key, own in found.items()
            }
        scores = iter(self._mapped(log_likelihood_fn, leaves, batch, rows, width))
        tensors = [
            (next(scores),) if i in self._mapped_variables else found[id(variable)]
            for i, variable in enumerate(self._model.trainable_variables)
        ]
        return value, gradient, tensors

    def scores(
        self, tensors: list[tuple[tf.Tensor, ...]], num_rows: Any, num_examples: int
    ) -> list[tf.Tensor | FactoredScores]:
        """Scores of each variable, from tensors of all replicas that may have chains in front."""
        dtype = tensors[0][-1].dtype
        width = tf.cast(self._grouping(num_rows)[1], dtype)
        # The taps are those of the log posterior, N/n times the log likelihood.
        scale = tf.cast(num_rows, dtype) / (num_examples * tf.sqrt(width))
        variables = self._model.trainable_variables
        return [
            x[0] / tf.sqrt(width) if i in self._mapped_variables else as_scores(x, v.shape, scale)
            for i, (x, v) in enumerate(zip(tensors, variables, strict=True))
        ]

    def _grouping(self, num_rows: Any) -> tuple[Any, Any]:
        """Number of scores, and examples in each."""
        if self._num_groups is None:
            return num_rows, 1
        if isinstance(num_rows, int):
            return min(num_rows, self._num_groups), max(num_rows // self._num_groups, 1)
        rows = tf.minimum(num_rows, self._num_groups)
        return rows, tf.maximum(num_rows // self._num_groups, 1)

    def _mapped(
        self,
        log_likelihood_fn: Callable[[list[tf.Tensor], Any], tf.Tensor],
        state: list[tf.Tensor],
        batch: Any,
        rows: Any,
        width: Any,
    ) -> list[tf.Tensor]:
        """Scores by the variables that are not tapped."""
        if not self._mapped_variables:
            return []
        leaves = keras.tree.flatten(batch)
        given = [x[: rows * width] for x in leaves if x is not None]

        def log_likelihood(own: list[tf.Tensor], given: list[tf.Tensor]) -> tf.Tensor:
            values = dict(zip(self._mapped_variables, own, strict=True))
            left = iter(given)
            group = [None if x is None else next(left) for x in leaves]
            value = log_likelihood_fn(
                [values.get(i, x) for i, x in enumerate(state)],
                keras.tree.pack_sequence_as(batch, group),
            )
            return value[tf.newaxis]

        own = [state[i] for i in self._mapped_variables]
        each = functools.partial(mapped, vectorize=is_vectorizable(self._model))
        return mapped_scores(log_likelihood, own, given, rows, 0, 0, each)[1]


def _draws_numbers(model: keras.Model) -> bool:
    """Whether a forward pass moves a seed on, as that of dropout does."""
    return any(v.path.endswith("seed_generator_state") for v in model.non_trainable_variables)


def _in_groups(x: tf.Tensor, rows: Any, width: Any) -> tf.Tensor:
    """`[rows, width * positions, ...]`: the examples of a group as positions of one."""
    positions = x.shape[1] or tf.shape(x)[1]
    return tf.reshape(x[: rows * width], [rows, width * positions, *x.shape[2:]])


def count_rows(batch: Any) -> Any:
    """Leading axis of a nest of arrays: an integer where it is known, else a tensor."""
    return known_rows(batch) or tf.shape(_first(batch))[0]


def known_rows(batch: Any) -> int | None:
    """Leading axis of a nest of arrays, or of their specifications, where it is known."""
    return _first(batch).shape[0] or None


def _first(batch: Any) -> Any:
    return next(leaf for leaf in keras.tree.flatten(batch) if leaf is not None)
