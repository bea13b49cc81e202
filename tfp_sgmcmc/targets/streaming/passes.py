"""Passes over the rows of a stream and its parts, here or by the workers of an executor."""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.checks import a_type, accepts, function, integer
from tfp_sgmcmc.internal.extras import Workers, check_executor, make_call, pack_call, submit_call
from tfp_sgmcmc.internal.nest import State, flatten_events
from tfp_sgmcmc.targets.data import assert_finite_rows, form_of
from tfp_sgmcmc.targets.streamed import StreamedLogProb
from tfp_sgmcmc.targets.streaming.block_sums import BlockDerivatives, Sums, map_blocks
from tfp_sgmcmc.targets.streaming.pooled import KeepingProbabilities, Pass
from tfp_sgmcmc.targets.streaming.row_remainders import RowRemainders

ShowRows = Callable[[int], None]
_MOST_KEPT = 8  # parts that a worker keeps, with their compiled programs
Show = Callable[[str, int], None]


class RandomRows:
    """Keeps a uniform random sample of rows, without replacement; all of them if they fit.

    The numbers of the rows are drawn before the first one is seen, so that each row that is kept is
    copied once. Of rows that do not come, none is kept.

    Args:
      most: the number of rows to keep.
      total: the number of rows that will come, or more.
      rng: draws the rows.
    """

    def __init__(self, most: int, total: int, rng: np.random.Generator):
        self._most, self._numbers = min(most, total), None
        if most < total:
            self._numbers = np.sort(rng.choice(total, most, replace=False, shuffle=False))
        self._kept: list[np.ndarray] = []
        self._structure: Any = None
        self._num_kept = self.num_seen = 0

    def add(self, rows: Any) -> None:
        """Takes the next block of rows into account."""
        leaves = [np.asarray(x) for x in tf.nest.flatten(rows)]
        if not self._kept:
            self._structure = tf.nest.map_structure(lambda x: None, rows)
            self._kept = [np.empty([self._most, *x.shape[1:]], x.dtype) for x in leaves]
        first, before = self._num_kept, self.num_seen
        self.num_seen = self._num_kept = before + len(leaves[0])
        taken: Any = slice(None)
        if self._numbers is not None:
            self._num_kept = int(np.searchsorted(self._numbers, self.num_seen))
            taken = self._numbers[first : self._num_kept] - before
        for kept, x in zip(self._kept, leaves, strict=True):
            kept[first : self._num_kept] = x[taken]

    def rows(self) -> Any:
        """Returns the rows that are kept, as leaves `[rows, ...]`."""
        leaves = [x[: self._num_kept] for x in self._kept]
        return tf.nest.pack_sequence_as(self._structure, leaves)


class Size(NamedTuple):
    """Returns the number of rows of a part, and their names, dtypes and shapes, without a pass."""

    name = "size"

    def __call__(
        self, target: StreamedLogProb, part: int, show: ShowRows
    ) -> tuple[tuple[int, str], int]:
        return (target.num_examples, form_of(target.row_spec)[0]), 0


class ReadRows(NamedTuple):
    """Returns random rows of a part, all of them in order if they fit, and the rows it read.

    Attributes:
      most: the number of rows to keep of each part.
      seed: integers.
    """

    most: tuple[int, ...]
    seed: tuple[int, ...]
    name = "reading"

    def __call__(self, target: StreamedLogProb, part: int, show: ShowRows) -> tuple[Any, int]:
        rng = np.random.default_rng([part, *self.seed])
        kept = RandomRows(self.most[part], target.num_examples, rng)
        for rows in target.blocks(target.block_rows):
            assert_finite_rows(rows, kept.num_seen)
            kept.add(rows)
            show(kept.num_seen)
        return kept.rows(), kept.num_seen


class SumDerivatives(NamedTuple):
    """Returns `Sums` over the rows at a state, and the rows that were read.

    Attributes:
      state: a state of arrays.
      jit_compile: whether XLA compiles the evaluation of blocks.
      factor: L, `[D, D]`, which whitens the Hessian while it is summed; None for no Hessian.
    """

    state: State
    jit_compile: bool
    factor: np.ndarray | None = None
    name = "derivatives"

    def __call__(self, target: StreamedLogProb, part: int, show: ShowRows) -> tuple[Sums, int]:
        state, size = tf.nest.map_structure(tf.constant, self.state), target.block_rows
        with_hessian = self.factor is not None
        sums = BlockDerivatives(target.of_one_batch, state, size, with_hessian, self.jit_compile)
        of_block = sums.at(flatten_events(state, 0).numpy(), self.factor)
        total, seen = None, 0
        for _, count, found in map_blocks(target, of_block, size, show):
            total = found if total is None else total.plus(found)
            seen += count
        assert total is not None  # an epoch has N rows
        return total.times(target.num_examples / seen).not_whitened(), seen


class DrawnRows(NamedTuple):
    """Rows of a pool with their probabilities, and the sums over all rows at the center."""

    rows: Any
    probabilities: np.ndarray
    sums: Sums


class DrawRows(NamedTuple):
    """Returns `DrawnRows` of a part, and the rows that were read.

    Attributes:
      center: a state of arrays, the center of the expansion.
      factor: L, `[D, D]`; see `RowRemainders`.
      draw_seed: two integers, of the draws at which remainders are computed.
      probabilities: of rows to be kept.
      seed: integers, of the rows that are kept.
      jit_compile: whether XLA compiles the evaluation of blocks.
    """

    center: State
    factor: np.ndarray
    draw_seed: np.ndarray
    probabilities: KeepingProbabilities
    seed: tuple[int, ...]
    jit_compile: bool
    name = "Hessian and pool"

    def __call__(self, target: StreamedLogProb, part: int, show: ShowRows) -> tuple[DrawnRows, int]:
        model, size = target.of_one_batch, target.block_rows
        center = tf.nest.map_structure(tf.constant, self.center)
        options = self.factor, tf.constant(self.draw_seed), self.jit_compile
        remainders = RowRemainders(model, center, *options)
        derivatives = BlockDerivatives(model, center, size, True, self.jit_compile)
        rng, kept, kept_with = np.random.default_rng([*self.seed, part]), [], []
        total, seen, of_block = None, 0, derivatives.with_norms(remainders)
        for rows, count, (sums, norms) in map_blocks(target, of_block, size, show):
            total = sums if total is None else total.plus(sums)
            probabilities = self.probabilities(norms[:count])
            (taken,) = np.nonzero(rng.random(count) < probabilities)  # a coin for each row
            kept.append([np.asarray(x)[taken] for x in tf.nest.flatten(rows)])
            kept_with.append(probabilities[taken])
            seen += count
        assert total is not None  # an epoch has N rows
        # Rows of the dataset's last, dropped batch are represented by the others.
        scale = target.num_examples / seen
        sums = total.times(scale).not_whitened()
        # One array after the other, whose parts are freed.
        leaves = [np.concatenate([x.pop(0) for x in kept]) for _ in range(len(kept[0]))]
        rows = tf.nest.pack_sequence_as(target.row_spec, leaves)
        return DrawnRows(rows, np.concatenate(kept_with) / scale, sums), seen


def joined(parts: list[Any]) -> Any:
    """Returns the rows of all parts, as arrays."""
    if len(parts) == 1:
        return parts[0]
    return tf.nest.map_structure(lambda *x: np.concatenate(x), *parts)


def as_arrays(state: State) -> State:
    return tf.nest.map_structure(lambda x: x.numpy(), state)


class StreamParts:
    """The rows of a stream in parts, each of which is one `StreamedLogProb`.

    Args:
      source: a `StreamedLogProb`, the only part; or a function from the number of a part to one.
      num_parts: the number of parts; None for a `StreamedLogProb`.
      executor: an object with `submit` whose workers make passes; None makes them here.
      show: receives what a pass does, and the number of rows that it has read.

    Attributes:
      num_parts: the number of parts.
      first: the first part, which has the functions of the model.
      sizes: the number of rows of each part.
    """

    def __init__(self, source: Any, num_parts: int | None, executor: Any, show: Show):
        check_executor(executor)
        self._executor, self._show = executor, show
        expected = (
            "target must be a StreamedLogProb, or with num_parts a function from the number of a "
            "part to one, which workers of an executor call"
        )
        is_whole = isinstance(source, StreamedLogProb)
        if is_whole == (num_parts is not None) or (is_whole and executor is not None):
            raise TypeError(
                f"{expected}. Received: {a_type(source)}, num_parts={num_parts} and "
                f"executor={executor!r}."
            )
        if not is_whole:
            accepts("target", function("target", source, "part -> StreamedLogProb"), 0)
        self.num_parts = 1 if is_whole else integer("num_parts", num_parts, 1)
        self._make = (lambda i: source) if is_whole else functools.cache(source)
        self._source, self.first = source, _checked(self._make(0), 0)
        self._token = uuid.uuid4().hex
        found, _ = self.run(Size())
        forms = [form for _, form in found]
        if len({*forms}) > 1:
            wrong = next(i for i, form in enumerate(forms) if form != forms[0])
            raise ValueError(
                f"All parts must have rows of one form. Received: {forms[0]} in part 0, and "
                f"{forms[wrong]} in part {wrong}."
            )
        self.sizes = [size for size, _ in found]

    def run(self, work: Any) -> tuple[list[Any], Pass]:
        """Returns what `work` finds in each part, in order, and the pass.

        Raises:
          Exception: what `work` raised in the first part that failed, with a note of the part.
        """
        began, seen, found = time.perf_counter(), 0, []
        waiting = [self._submitted(work, i) for i in range(self.num_parts)]
        workers = Workers(self._executor)
        for i, future in enumerate(waiting):
            try:
                if future is None:
                    result, count = self._here(work, i, seen)
                else:
                    result, count = workers.result_of(future)
            except BaseException as error:
                for other in waiting[i:]:
                    if other is not None:
                        other.cancel()
                if self.num_parts > 1:
                    error.add_note(f"This was in part {i} of the stream.")
                raise
            found.append(result)
            seen += count
            if count:
                self._show(work.name, seen)
        return found, Pass(seen, time.perf_counter() - began)

    def _here(self, work: Any, part: int, seen: int) -> tuple[Any, int]:
        target = _checked(self._make(part), part)
        return work(target, part, lambda count: self._show(work.name, seen + count))

    def _submitted(self, work: Any, part: int) -> Any:
        if self._executor is None:
            return None
        make = pack_call("target", self._source, part)
        call = pack_call("target", _work_there, make, self._token, work, part)
        return submit_call(self._executor, call)


def _checked(target: Any, part: int) -> StreamedLogProb:
    if not isinstance(target, StreamedLogProb):
        raise TypeError(
            f"target({part}) must return a StreamedLogProb. Received: {a_type(target)}."
        )
    return target


def _work_there(make: bytes, token: str, work: Any, part: int) -> tuple[Any, int]:
    """Makes a pass over a part on a worker, which keeps the target for passes of this token."""
    return work(_checked(_kept(make, token), part), part, lambda count: None)


@functools.lru_cache(maxsize=_MOST_KEPT)
def _kept(make: bytes, token: str) -> Any:
    del token  # files may have changed since another one
    return make_call(make)
