"""Gradients of a Keras model: the scores of a batch's examples, and columns of outputs.

A `Mapper` maps functions over examples or chains: vectorized where possible, otherwise in a loop.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfp_sgmcmc.covariance.factored_scores import FactoredScores
from tfp_sgmcmc.internal import memory, replicas, xla
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.model.layer_calls import (
    as_scores,
    factors,
    layers_with_scores,
    recorded_calls,
)
from tfp_sgmcmc.targets.base import check_connected
from tfp_sgmcmc.targets.scores import mapped_scores, unsafe_operation, vectorized_or_not

_NOT_TWICE = (
    keras.layers.Conv1DTranspose,
    keras.layers.Conv2DTranspose,
    keras.layers.Conv3DTranspose,
    keras.layers.DepthwiseConv1D,
    keras.layers.DepthwiseConv2D,
    keras.layers.SeparableConv1D,
    keras.layers.SeparableConv2D,
)

_CONVOLUTIONS = (*internals.CONVOLUTIONS, *_NOT_TWICE)

_FEW = 16  # calls of a model that are traced one after another
_ONE_BY_ONE = (
    "The scores of single examples, which the kernel asks for, come from one pass of the model "
    "after another, which is slow. {reason} num_groups=G of SamplerCallback lowers the number of "
    "passes to G, and kernels without a covariance, such as SGLD and SGNHT, need none."
)


class Mapper:
    """Maps functions by `tf.vectorized_map`, or by a loop where vectorization is not correct.

    It loops for layers that TensorFlow does not vectorize correctly (see
    `not_vectorizable`), for operations whose vectorized form stops the process (see
    `unsafe_operation`), and for loops and branches that TensorFlow cannot vectorize at all.

    Args:
      model: a built model, which the functions evaluate.
      message: a warning of the first loop, with a field `{reason}`. None gives no warning.
      unrolls: whether to call the function once for each element where a model with convolutions
        runs on a CPU. Convolutions with mapped kernels take twice as long there, and ten times as
        long if XLA compiles them, also in loops. This is for a few elements, such as chains.
    """

    def __init__(self, model: keras.Model, message: str | None = None, unrolls: bool = False):
        self._model, self._message, self._unrolls = model, message, unrolls
        self._unsafe: dict[Any, str | None] = {}  # sentences on operations

    def __call__(
        self,
        fn: Callable[[Any], Any],
        elements: Any,
        num_rows: Any = None,
        maps_examples: bool = False,
    ) -> Any:
        """Returns `fn` of each element of a nest with leaves `[n, ...]`, stacked.

        `num_rows` is the number of rows that `fn` reads besides its element, if it is known.
        `maps_examples` states whether `fn` maps over them.
        """
        number = tf.nest.flatten(elements)[0].shape[0]
        if self._unrolls and self._has_convolutions and _unrolled_is_faster(number):
            found = [
                fn(tf.nest.map_structure(lambda x, i=i: x[i], elements)) for i in range(number)
            ]
            return tf.nest.map_structure(lambda *x: tf.stack(x), *found)
        reason_fn = functools.partial(self._reason, fn, elements, num_rows, maps_examples)
        found, reason = vectorized_or_not(fn, elements, reason_fn)
        if reason is not None and self._message is not None:
            warnings.warn(self._message.format(reason=reason), stacklevel=2)
            self._message = None
        return found

    @property
    def _has_convolutions(self) -> bool:
        return any(isinstance(layer, _CONVOLUTIONS) for layer in internals.layers(self._model))

    def _reason(
        self, fn: Callable[[Any], Any], elements: Any, num_rows: Any, maps_examples: bool
    ) -> str | None:
        """Returns why the map must be a loop, or None."""
        layer = not_vectorizable(self._model, maps_examples and xla.in_xla_context())
        if layer is not None:
            name = type(layer).__name__
            return f"TensorFlow does not vectorize the layer {layer.name!r} ({name}) correctly."
        # Shapes and compiler are the same in each step of an eager run, which traces each step.
        rows = num_rows if isinstance(num_rows, int) else None
        shapes = (tuple(x.shape) for x in tf.nest.flatten(elements))
        key = (xla.in_xla_context(), rows, *shapes)
        if key not in self._unsafe:
            self._unsafe[key] = unsafe_operation(fn, elements)
        return self._unsafe[key]


def _unrolled_is_faster(number: int) -> bool:
    """Returns whether so many calls of a model with convolutions are faster than a mapped one."""
    return not xla.on_accelerator() and (number <= _FEW or xla.in_xla_context())


def not_vectorizable(model: keras.Model, twice_in_xla: bool = False) -> keras.Layer | None:
    """Returns a layer that TensorFlow does not vectorize correctly, or None.

    These are convolutions in groups: if only the kernel is mapped, the gradient with respect to it
    is wrong, as if there were a single group; if the inputs are mapped, XLA cannot compile the
    result. The loop of a recurrent layer over masked steps fails at run time. XLA cannot compile a
    transposed or depthwise convolution that is mapped over both chains and examples, which
    `twice_in_xla` indicates.
    """
    for layer in internals.layers(model):
        if (
            (isinstance(layer, internals.CONVOLUTIONS) and layer.groups > 1)
            or (isinstance(layer, keras.layers.RNN) and not layer.unroll)
            or (twice_in_xla and isinstance(layer, _NOT_TWICE))
        ):
            return layer
    return None


class ExampleScores:
    """Computes the gradients of single examples' log likelihoods.

    For the weights of `Dense`, `EinsumDense` (and so of attention), `Conv1D`, `Conv2D`, `Conv3D`,
    `Embedding`, `LayerNormalization` and `RMSNormalization` layers, the backward pass of the
    gradient also gives the scores, those of kernels and tables as `FactoredScores`. For all other
    weights each example has a separate backward pass, in which dropout and the like draw the same
    numbers for each example. If a model draws such numbers and has other weights, all scores come
    from these passes, so that the scores of one example belong to the same numbers. The passes run
    side by side or, with a warning, one after another (see `Mapper`).

    Args:
      model: a compiled and built model.
      num_groups: G. Gives scores of G groups of a batch, scaled so that their covariance still
        estimates the covariance of single examples' scores. If G does not divide the batch, the
        first examples form the groups. If the batch has fewer than G examples, each is a group.
        None scores each example.
    """

    def __init__(self, model: keras.Model, num_groups: int | None = None):
        self._model, self._num_groups = model, num_groups
        self._layers: list[keras.Layer] = []
        self._mapped_variables: list[int] = []  # positions among the trainable variables
        self._prepared = False
        self._map_examples = Mapper(model, _ONE_BY_ONE)
        #: Maps a function over chains.
        self.map_chains = Mapper(model, unrolls=True)

    def num_scores(self, num_rows: Any) -> int | None:
        """Returns the largest number of scores for a replica's rows, or None if it is not known."""
        if not isinstance(num_rows, int):
            return self._num_groups
        return self._grouping(num_rows * replicas.count())[0]

    def prepare(self, x: Any, num_chains: int | None = None) -> None:
        """Determines once, from the first batch's inputs, how each variable's scores are computed.

        Raises:
          ValueError: the examples of a batch interact.
          MemoryError: the scores of weights that have no `FactoredScores` do not fit into memory.
        """
        if self._prepared:
            return
        for layer in internals.layers(self._model):
            if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
                raise ValueError(
                    "The kernel asks for the scores of single examples, so the layers must treat "
                    f"each example alone. Received: {layer.name}, a BatchNormalization layer, "
                    "which lets the examples of a batch interact. Use LayerNormalization or "
                    "GroupNormalization, set its trainable to False, or take a sampler without a "
                    "covariance, such as SGLD or SGNHT."
                )
        self._layers = layers_with_scores(self._model, x)
        scored = {id(v) for layer in self._layers for v in layer.trainable_variables}
        variables = self._model.trainable_variables
        others = [i for i, v in enumerate(variables) if id(v) not in scored]
        if others and draws_numbers(self._model):
            self._layers, others = [], list(range(len(variables)))
        self._mapped_variables, self._prepared = others, True
        rows = self._grouping(known_rows(x) or 1)[0] * (num_chains or 1)
        memory.require(
            {
                f"{rows} scores of {v.path}": rows * math.prod(v.shape) * tf.as_dtype(v.dtype).size
                for v in (variables[i] for i in others)
            },
            "Scores of single weights are kept for layers other than those that ExampleScores "
            "names, whatever the covariance. num_groups=G of SamplerCallback keeps G of them in "
            "place of one for each example of a batch, and trainable=False keeps none of a layer.",
        )

    def gradient_and_factors(
        self,
        log_prob_fn: Callable[[list[tf.Tensor]], tf.Tensor],
        log_likelihood_fn: Callable[[list[tf.Tensor], Any, Any], tf.Tensor],
        state: list[tf.Tensor],
        batch: Any,
        num_rows: Any,
    ) -> tuple[tf.Tensor, list[tf.Tensor], list[tuple[tf.Tensor, ...]]]:
        """Returns the log posterior, its gradient, and tensors that `scores` turns into scores.

        `log_prob_fn` maps the state to the log posterior, estimated from the batch.
        `log_likelihood_fn` maps (state, batch, number of rows) to the log likelihood of all rows.
        """
        leaves = [tf.identity(x) for x in state]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(leaves)
            with recorded_calls(self._layers, tape) as calls:
                value = log_prob_fn(leaves)
        deltas = [call.delta for call in calls]
        gradient, by_deltas = tape.gradient(value, [leaves, deltas])
        gradient = check_connected(state, gradient)
        rows, width = self._grouping(num_rows)
        found = factors(calls, by_deltas)
        if self._num_groups is not None:
            found = tf.nest.map_structure(lambda x: _in_groups(x, rows, width), found)
        scores = iter(self._mapped(log_likelihood_fn, leaves, batch, rows, width))
        tensors = [
            (next(scores),) if i in self._mapped_variables else found[id(variable)]
            for i, variable in enumerate(self._model.trainable_variables)
        ]
        return value, gradient, tensors

    def scores(
        self, tensors: list[tuple[tf.Tensor, ...]], num_rows: Any, likelihood_scale: Any
    ) -> list[tf.Tensor | FactoredScores]:
        """Returns the scores for each variable.

        `tensors` come from `gradient_and_factors` on all replicas, with leading axes of chains if
        there are several. `num_rows` counts the batch's rows on all replicas. The log posterior
        there had the log likelihood `likelihood_scale` times.
        """
        dtype = tensors[0][-1].dtype
        width = tf.cast(self._grouping(num_rows)[1], dtype)
        scale = 1 / (tf.cast(likelihood_scale, dtype) * tf.sqrt(width))
        variables = self._model.trainable_variables
        return [
            x[0] / tf.sqrt(width) if i in self._mapped_variables else as_scores(x, v.shape, scale)
            for i, (x, v) in enumerate(zip(tensors, variables, strict=True))
        ]

    def _grouping(self, num_rows: Any) -> tuple[Any, Any]:
        """Returns the number of scores, and the number of examples of each."""
        if self._num_groups is None:
            return num_rows, 1
        if isinstance(num_rows, int):
            return min(num_rows, self._num_groups), max(num_rows // self._num_groups, 1)
        rows = tf.minimum(num_rows, self._num_groups)
        return rows, tf.maximum(num_rows // self._num_groups, 1)

    def _mapped(
        self,
        log_likelihood_fn: Callable[[list[tf.Tensor], Any, Any], tf.Tensor],
        state: list[tf.Tensor],
        batch: Any,
        rows: Any,
        width: Any,
    ) -> list[tf.Tensor]:
        """Returns the scores for the variables of the other layers."""
        if not self._mapped_variables:
            return []
        given = [x[: rows * width] for x in internals.array_leaves(batch)]

        def log_likelihood(values: list[tf.Tensor], given: list[tf.Tensor]) -> tf.Tensor:
            by_position = dict(zip(self._mapped_variables, values, strict=True))
            left = iter(given)
            value = log_likelihood_fn(
                [by_position.get(i, x) for i, x in enumerate(state)],
                internals.map_arrays(lambda _: next(left), batch),
                width,
            )
            return value[tf.newaxis]

        values = [state[i] for i in self._mapped_variables]
        return mapped_scores(log_likelihood, values, given, rows, 0, 0, self._map_examples)[1]


def with_stored_gradient(outputs: Any) -> Any:
    """Makes XLA on a CPU compute the gradient with respect to a column of outputs once.

    The gradient of a layer with a single output, such as a logistic regression, is the product of
    its inputs and the gradient with respect to its outputs, which is a column. XLA would fuse the
    two into one loop, which computes the column again for every weight.
    """
    if not xla.compiles_for_cpu():
        return outputs
    return keras.tree.map_structure(lambda y: _stored_column(y) if _is_column(y) else y, outputs)


def _stored_column(y: tf.Tensor) -> tf.Tensor:
    # A column has no mask, so its only mark is the logits.
    marks = tf.nest.map_structure(xla.with_materialized_gradient, internals.marks(y))
    return internals.with_marks(xla.with_materialized_gradient(y), marks)


def _is_column(y: tf.Tensor) -> bool:
    return (
        y.dtype.is_floating
        and y.shape.rank == 2
        and y.shape[1] == 1
        and y.shape[0] is not None
        and y.shape[0] > 0
        and internals.mask(y) is None
        # For a plain sigmoid, Keras' crossentropies look up the logits in the graph.
        and (any(internals.marks(y).values()) or y.op.type not in ("Sigmoid", "Softmax"))
    )


def draws_numbers(model: keras.Model) -> bool:
    """Returns whether a forward pass advances a seed, as dropout does."""
    return any(v.path.endswith("seed_generator_state") for v in model.non_trainable_variables)


def _in_groups(x: tf.Tensor, rows: Any, width: Any) -> tf.Tensor:
    """Returns `[rows, width * positions, ...]`, a group's examples as positions of one example."""
    positions = x.shape[1] or tf.shape(x)[1]
    return tf.reshape(x[: rows * width], [rows, width * positions, *x.shape[2:]])


def count_rows(batch: Any) -> Any:
    """Returns the leading axis of a nest of arrays: an integer if it is known, else a tensor."""
    first = internals.array_leaves(batch)[0]
    return first.shape[0] or tf.shape(first)[0]


def known_rows(batch: Any) -> int | None:
    """Returns the leading axis of a nest of arrays or specifications, or None if it is unknown."""
    return internals.array_leaves(batch)[0].shape[0] or None
