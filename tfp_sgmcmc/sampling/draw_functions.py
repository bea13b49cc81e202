"""Functions of all draws: generated quantities, predictions, and log likelihoods by rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tree

from tfp_sgmcmc.internal import memory
from tfp_sgmcmc.internal.checks import array, vector
from tfp_sgmcmc.internal.nest import call_with_state
from tfp_sgmcmc.internal.tables import Table, first_rows, shown_by
from tfp_sgmcmc.sampling.loop import log_prob_fn_of
from tfp_sgmcmc.targets import ShardedLogProb, StreamedLogProb
from tfp_sgmcmc.targets.base import check_signature
from tfp_sgmcmc.targets.data import as_tensors, leading_axis
from tfp_sgmcmc.targets.model_target import ModelTarget
from tfp_sgmcmc.targets.streaming.pooled import PooledLogProb

_MOST_NUMBERS = 2**20  # (draw, row) pairs that are evaluated at once
_BLOCK = 2**24  # bytes of draws that are passed to a function at once
_SHOWN_ROWS, _SHOWN_ENTRIES = 10, 4


class DrawPredictions(NamedTuple):
    """A function of the parameters at each row, over all draws of all chains.

    Attributes:
      mean: mean over draws, `[rows, ...]`.
      standard_deviation: standard deviation over draws.
      quantiles: quantiles over draws, `[num_quantiles, rows, ...]`.
    """

    mean: np.ndarray
    standard_deviation: np.ndarray
    quantiles: np.ndarray

    __repr__, _repr_html_ = shown_by(lambda self: self._table())

    def _table(self) -> Table:
        """Returns the first rows, of the first entries where a row has several values."""
        size = len(self.mean)
        title = f"DrawPredictions of {size:,} rows, values {[*self.mean.shape]}"
        mean, sd = (np.reshape(x, [size, -1]).T[:_SHOWN_ENTRIES] for x in self[:2])
        if len(mean) == 1:
            levels = np.reshape(self.quantiles, [-1, size])
            names = ["mean", "sd", *(f"quantile {i + 1}" for i in range(len(levels)))]
            columns = [*mean, *sd, *levels]
        else:
            names = [f"{name} {i}" for name in ("mean", "sd") for i in range(len(mean))]
            columns = [*mean, *sd]
        texts = ([f"{x:.4g}" for x in column[:_SHOWN_ROWS]] for column in columns)
        return first_rows(title, dict(zip(names, texts, strict=True)), size)


class RowLikelihood:
    """The log likelihood of single rows at draws of a result.

    Args:
      result: the result.
      target: a target with rows, whose parameters the draws are; None takes the kernel's.

    Raises:
      ValueError: there is no target, or it has no rows, or a pool of rows in place of a stream's.
    """

    def __init__(self, result: Any, target: Any = None):
        given, bijector = target is not None, result.bijector
        target = target if given else log_prob_fn_of(result.kernel)
        while target is not None and not isinstance(target, ModelTarget | StreamedLogProb):
            target = getattr(target, "target", None)
        if target is None or target.num_examples == 1:
            raise ValueError(
                "target must be a MinibatchLogProb, ShardedLogProb or StreamedLogProb, whose log "
                "likelihood has a value for each row. Received: a result without; pass target=."
            )
        if isinstance(target, PooledLogProb):
            raise ValueError(
                "target must have all rows. Received: a pool of rows, each of which stands for "
                "several rows of a stream. Pass the StreamedLogProb as target=."
            )
        if getattr(target, "replicas", None) is not None:
            raise ValueError(
                "target must have all rows in this process. Received: a ShardedLogProb on "
                "replicas. Pass target=, with the rows to look at."
            )
        is_stream = isinstance(target, StreamedLogProb)
        self._model: Any = target.of_one_batch if is_stream else target.parts[0]
        inverse = None if bijector is None else bijector.inverse
        if given and result.has_parameters:
            inverse = self._model.unconstrain
        self.target, self._inverse = target, inverse
        self.num_examples = target.num_examples

    def unconstrained(self, states: Any) -> Any:
        """Returns the states of the target, as tensors, for draws of the result."""
        states = tf.nest.map_structure(tf.convert_to_tensor, states)
        return states if self._inverse is None else self._inverse(states)

    def blocks(self) -> Iterator[tuple[Any, int]]:
        """Yields all rows in their order, in blocks (rows, number of rows)."""
        if isinstance(self.target, StreamedLogProb):
            left = self.num_examples
            for rows in self.target.blocks(self.target.block_rows):
                size = len(tf.nest.flatten(rows)[0])
                yield rows, size
                left -= size
            if left:
                raise ValueError(
                    f"dataset must have all {self.num_examples} rows. Received: one that leaves "
                    f"out {left}. Make its batches without drop_remainder=True."
                )
            return
        for part in self.target.parts:
            most = min(2**16, max(1, 2**26 // max(1, part.row_bytes)))
            for start in range(0, part.num_examples, most):
                size = min(most, part.num_examples - start)
                yield part.rows(tf.range(start, start + size)), size

    def rows(self, indices: np.ndarray, visit: Callable[[Any, int], None] | None = None) -> Any:
        """Returns the rows with sorted indices, and calls `visit(rows, size)` for each block."""
        if visit is None and not isinstance(self.target, StreamedLogProb | ShardedLogProb):
            return self.target.rows(tf.constant(indices, tf.int32))
        start, found = 0, []
        for rows, size in self.blocks():
            if visit is not None:
                visit(rows, size)
            here = indices[(indices >= start) & (indices < start + size)] - start
            if len(here):
                found.append(tf.nest.map_structure(lambda x, i=here: tf.gather(x, i), rows))
            start += size
        return tf.nest.map_structure(lambda *x: tf.concat(x, axis=0), *found)

    def at(self, states: Any, rows: Any, size: int) -> np.ndarray:
        """Returns log likelihoods `[draws, size]` at states `[draws, event...]`."""
        num = len(tf.nest.flatten(states)[0])
        found = np.empty([num, size], tf.nest.flatten(states)[0].dtype.as_numpy_dtype)
        height = max(1, min(num, _MOST_NUMBERS // min(size, 1024)))
        width = max(1, _MOST_NUMBERS // height)
        for i in range(0, num, height):
            some = tf.nest.map_structure(lambda x, i=i: x[i : i + height], states)
            chains = [min(height, num - i)]
            for j in range(0, size, width):
                part = tf.nest.map_structure(lambda x, j=j: x[j : j + width], rows)
                width_here = min(width, size - j)
                values = self._model.log_likelihood(some, part, width_here, chains)
                found[i : i + height, j : j + width_here] = values.numpy()
        return found

    def mean_state(self, states: Any) -> Any:
        """Returns the mean of the target's states over draws `[draws, event...]`, as one draw."""
        return tf.nest.map_structure(lambda x: tf.reduce_mean(x, axis=0, keepdims=True), states)


def check_some(result: Any) -> None:
    """Raises ValueError if a result has no draws."""
    if not result.num_results:
        raise ValueError(
            "The result must have draws. Received: none, because the run was interrupted before "
            "the first one."
        )


def flat_draws(result: Any) -> Any:
    """Returns all draws in the structure of the state, `[draws * chains, event...]`."""
    check_some(result)
    leaves = [
        np.asarray(x).reshape(-1, *kept.variable.event_shape)
        for kept, x in zip(result._kept, tree.flatten(result.states), strict=False)
    ]
    return tree.unflatten_as(result.states, leaves)


def log_likelihoods(result: Any, target: Any, rows: Any) -> np.ndarray:
    """Returns `[draws, chains..., rows]`; see `SampleResult.log_likelihood`."""
    likelihood = RowLikelihood(result, target)
    indices = np.arange(likelihood.num_examples)
    if rows is not None:
        indices = indices[rows if isinstance(rows, slice) else _checked_rows(rows, len(indices))]
    if not len(indices):
        raise ValueError(
            f"rows must name at least one of the {likelihood.num_examples} rows. Received: {rows}."
        )
    lead = (result.num_results, *_chain_shape(result))
    memory.require(
        {"the log likelihoods": 8 * math.prod(lead) * len(indices)},
        "Pass rows=, such as a range, and take some of the rows at a time.",
    )
    order = np.argsort(indices, kind="stable")
    states = likelihood.unconstrained(flat_draws(result))
    found = likelihood.at(states, likelihood.rows(indices[order]), len(indices))
    return found[:, np.argsort(order)].reshape(*lead, len(indices))


def _checked_rows(rows: Any, num_examples: int) -> np.ndarray:
    """Returns numbers of rows, or raises TypeError or ValueError."""

    def exist(x: np.ndarray) -> Any:
        if x.dtype == bool:
            return len(x) == num_examples
        return (x.dtype.kind in "iu") & (x >= -num_examples) & (x < num_examples)

    expected = f"a slice, or numbers of rows below N = {num_examples}"
    return vector("rows", rows, expected, exist)


def map_draws(result: Any, fn: Callable[..., Any]) -> Any:
    """Returns the values of `fn` at all draws, `[draws, chains..., ...]`, as a nest of arrays."""
    check_some(result)
    lead, parts, form = _chain_shape(result), [], None
    pairs = zip(result._kept, tree.flatten(result.states), strict=False)
    size = max(1, _BLOCK // max(1, sum(kept.variable.draw_bytes for kept, _ in pairs)))
    for start in range(0, result.num_results, size):
        states = tree.map_structure(
            lambda x, s=start: tf.convert_to_tensor(np.asarray(x[s : s + size])), result.states
        )
        form = tree.map_structure(np.asarray, _values(fn, states))
        expected = (min(size, result.num_results - start), *lead)
        if not tree.flatten(form):
            raise ValueError(f"fn must return arrays. Received: {form!r}.")
        for leaf in tree.flatten(form):
            if leaf.shape[: len(expected)] != expected:
                raise ValueError(
                    "fn must return arrays with the leading axes of the draws, "
                    f"{[*expected]} here. Received: shape {[*leaf.shape]}. Write it for any "
                    "leading axes, such as x[..., 0] in place of x[0]."
                )
        parts.append(tree.flatten(form))
    return tree.unflatten_as(form, [np.concatenate(x) for x in zip(*parts, strict=True)])


def predict(
    result: Any, fn: Callable[..., Any], data: Any, quantiles: Sequence[float]
) -> DrawPredictions:
    """Returns moments and quantiles of `fn` at rows of data; see `SampleResult.predict`."""
    expected = "a list of levels in 0 .. 1"
    levels = vector("quantiles", quantiles, expected, lambda x: (x >= 0) & (x <= 1))
    data, draws = as_tensors(data, None), flat_draws(result)
    size, num = leading_axis(data), len(tree.flatten(draws)[0])
    states = tree.map_structure(tf.convert_to_tensor, draws)
    width, parts = max(1, _MOST_NUMBERS // num), []
    for start in range(0, size, width):
        rows = tf.nest.map_structure(lambda x, s=start: x[s : s + width], data)
        found = _values(fn, states, batch=rows)
        values = array("The value of fn", found, finite=False).astype(np.float64)
        expected = (num, min(width, size - start))
        if values.shape[:2] != expected:
            raise ValueError(
                f"fn must return [draws, rows, ...], {[*expected]} here. Received: shape "
                f"{[*values.shape]}. Give parameters an axis for the rows, as in theta[..., None]."
            )
        limits = np.quantile(values, levels, axis=0)
        parts.append((values.mean(axis=0), values.std(axis=0), limits))
    mean, sd, limits = zip(*parts, strict=True)
    return DrawPredictions(np.concatenate(mean), np.concatenate(sd), np.concatenate(limits, axis=1))


def _values(fn: Callable[..., Any], states: Any, **batch: Any) -> Any:
    """Returns `fn(*state_parts, batch)`, or raises an error that names the expected arguments."""
    try:
        return call_with_state(fn, states, **batch)
    except TypeError:
        check_signature("fn", fn, states, **batch)
        raise


def _chain_shape(result: Any) -> tuple[int, ...]:
    return result._kept[0].variable.chain_shape or ()
