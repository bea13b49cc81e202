"""Describes the problem of a `fit` by values that must not change while its chain continues."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.keras.data.training_data import Source, taken
from tfp_sgmcmc.keras.model import compiled_loss, internals
from tfp_sgmcmc.keras.model.log_prob import ModelLogProb
from tfp_sgmcmc.keras.model.priors import LogPrior
from tfp_sgmcmc.sampling.run_fingerprint import describe_problem
from tfp_sgmcmc.storage import tolerant_equality
from tfp_sgmcmc.storage.checkpoint import agree
from tfp_sgmcmc.targets.data import evenly_spread

_MOST_BYTES = 2**26  # of an array for its checksum
_ROWS, _LENGTH = 4, 32  # of the made-up batch, where shapes are unknown
_MANY = 2**20  # all rows of a batch
_NAMES = ("x", "y", "sample_weight")


class FitProblem(NamedTuple):
    """Values that describe the problem of a `fit`, by name.

    Attributes:
      of_all: values that must be the same in all fits of a chain.
      of_fit: values that must be the same when this fit of a script is run again.
    """

    of_all: dict[str, Any]
    of_fit: dict[str, Any]


def describe_data(source: Source) -> dict[str, Any]:
    """Returns checksums of the training data by name, if they are in memory."""
    parts: dict[str, Any] = {}
    if source.arrays is not None:
        parts = dict(zip(_NAMES, source.arrays, strict=True))
    elif isinstance(source.dataset, list):
        parts = {"tensors of the data set": source.dataset}
    described: dict[str, Any] = {
        name: None if part is None else _checksum(internals.array_leaves(part))
        for name, part in parts.items()
    }
    if source.num_examples is not None:
        described["number of examples"] = source.num_examples
    return described


def describe_batches(source: Source) -> dict[str, Any]:
    """Returns the known properties of the batches, by name."""
    size = source.batch_size
    if size is None and (batch := source.batch(_MANY)) is not None:
        size = int(keras.tree.flatten(batch)[0].shape[0])
    return {"data": source.kind, "batch_size": size, **source.order}


def describe_keep(keep: Callable[[tf.Tensor], tf.Tensor] | None) -> str | None:
    """Returns the values of a `keep` function at about a hundred steps, as zeros and ones."""
    if keep is None:
        return None
    steps = sorted({*range(32), *np.geomspace(32, 1e6, 96).astype(int).tolist()})
    return "".join(str(int(bool(keep(tf.constant(t, tf.int64))))) for t in steps)


def describe_model(
    model: keras.Model, num_examples: int, log_prior_fn: LogPrior, source: Source
) -> dict[str, Any]:
    """Returns values that identify the log posterior, at fixed weights and on a made-up batch.

    They depend on prior, loss, regularisers and layers, but not on the data. They are missing if
    the shapes of a batch are unknown, or if the model rejects the made-up numbers.
    """
    like = source.batch(_ROWS) or source.spec
    if like is None:
        return {}
    like = internals.map_arrays(_spec, like)
    compiled_loss.build(model, *like)
    variables = model.trainable_variables
    state = [tf.constant(tolerant_equality.shifted(np.zeros(v.shape, v.dtype))) for v in variables]
    others = [(v, _plain(v)) for v in model.non_trainable_variables]
    target = ModelLogProb(model, num_examples, log_prior_fn, _made_up(like), others=others)
    prior = describe_problem(log_prior_fn(state), (), "log prior at fixed weights")
    try:
        found = target.estimate(state, tf.zeros([2], tf.int32), with_scores=False)
    except tf.errors.InvalidArgumentError:  # such as an index out of range
        return prior
    what = "log posterior at fixed weights"
    return {**prior, **describe_problem(found.log_prob, found.gradient, what)}


def check_same_problem(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises ValueError if values that a callback knows from two of its fits differ."""
    changed = [name for name in before if name in now and not agree(before[name], now[name])]
    if changed:
        raise ValueError(
            "fit must have the same data and model as earlier fits with this callback, because "
            "its samples must come from one posterior. Received: another "
            f"{', another '.join(changed)}. Make a new SamplerCallback."
        )


def _checksum(arrays: list[Any]) -> str:
    """Returns a checksum that depends on the numbers, but not on their dtype."""
    found = 0
    for array in arrays:
        row = max(1, int(np.prod(array.shape[1:]))) * 4
        count = min(array.shape[0], max(1, _MOST_BYTES // row)) if len(array.shape) else 0
        if count and count < array.shape[0]:
            array = taken(array, evenly_spread(array.shape[0], count))
        values = np.asarray(array)
        if values.dtype.kind in "biuf":
            values = values.astype(np.float32)
        elif values.dtype.kind == "O":
            values = values.astype(str)
        found = zlib.crc32(np.ascontiguousarray(values).tobytes(), found)
    return f"{found:08x}"


def _spec(array: Any) -> tf.TensorSpec:
    """Returns the specification of a few rows, with fixed lengths in place of unknown ones."""
    shape = [_ROWS if array.shape[0] is None else min(array.shape[0], _ROWS)]
    return tf.TensorSpec(
        shape + [_LENGTH if n is None else n for n in array.shape[1:]], array.dtype
    )


def _plain(variable: keras.Variable) -> tf.Tensor:
    """Returns a fixed value for a variable that is not sampled: ones, or zeros for seeds."""
    make = tf.ones if internals.is_floating(variable) else tf.zeros
    return make(variable.shape, variable.dtype)


def _made_up(like: Any) -> tuple[Any, Any, Any]:
    """Returns a batch of fixed values with the shapes and dtypes of another batch."""
    x, y, sample_weight = like
    generator = np.random.RandomState(0)  # its numbers never change

    def input_of(a: tf.TensorSpec) -> tf.Tensor:
        if a.dtype.is_floating:
            return tf.constant(generator.standard_normal(a.shape), a.dtype)
        return tf.cast(_pattern(a), a.dtype) if a.dtype != tf.string else tf.fill(a.shape, "")

    def weight_of(a: tf.TensorSpec) -> tf.Tensor:
        rows = tf.range(1, a.shape[0] + 1)
        return tf.cast(tf.reshape(rows, [-1] + [1] * (a.shape.rank - 1)), a.dtype) * tf.ones(
            a.shape, a.dtype
        )

    return (
        internals.map_arrays(input_of, x),
        internals.map_arrays(lambda a: tf.cast(_pattern(a), a.dtype), y),
        internals.map_arrays(weight_of, sample_weight),
    )


def _pattern(a: tf.TensorSpec) -> tf.Tensor:
    """Returns zeros and ones; rows are one-hot codes if there are several columns."""
    rows = tf.range(a.shape[0])
    if a.shape.rank == 1 or a.shape[-1] == 1:
        return tf.broadcast_to(tf.reshape(rows % 2, [-1] + [1] * (a.shape.rank - 1)), a.shape)
    code = tf.one_hot(rows % a.shape[-1], a.shape[-1], dtype=tf.int32)
    return tf.broadcast_to(
        tf.reshape(code, [a.shape[0]] + [1] * (a.shape.rank - 2) + [a.shape[-1]]), a.shape
    )
