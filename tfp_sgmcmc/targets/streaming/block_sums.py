"""Sums over all rows of a stream, block by block, in double precision."""

from __future__ import annotations

import collections
import concurrent.futures
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.checks import a_type
from tfp_sgmcmc.internal.nest import State, flatten_events, unflatten_events
from tfp_sgmcmc.internal.replicas import current
from tfp_sgmcmc.internal.xla import num_parallel_programs, traced_once
from tfp_sgmcmc.targets.base import kept_program, value_and_gradient
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb
from tfp_sgmcmc.targets.streamed import StreamedLogProb
from tfp_sgmcmc.targets.streaming.row_remainders import (
    Draws,
    LinearBlocks,
    RowRemainders,
    is_simple,
)

_COLUMNS = 64  # of a Hessian that are evaluated at once


class Sums(NamedTuple):
    """Sums over rows of log likelihoods and their derivatives, in `float64`.

    Attributes:
      log_likelihood: a number.
      gradient: `[D]`.
      hessian: H, `[D, D]`, or whitened, L^T H L; None if it was not wanted.
      factor: L, `[D, D]`, if the Hessian is whitened.
    """

    log_likelihood: float
    gradient: np.ndarray
    hessian: np.ndarray | None
    factor: np.ndarray | None = None

    def plus(self, other: Sums) -> Sums:
        hessian = self.hessian
        if hessian is not None and other.hessian is not None:
            hessian = hessian + other.hessian
        value = self.log_likelihood + other.log_likelihood
        return Sums(value, self.gradient + other.gradient, hessian, self.factor)

    def times(self, number: float) -> Sums:
        hessian = None if self.hessian is None else number * self.hessian
        return Sums(number * self.log_likelihood, number * self.gradient, hessian, self.factor)

    def not_whitened(self) -> Sums:
        """Returns the sums with H in place of L^T H L."""
        if self.hessian is None or self.factor is None:
            return self
        back = np.linalg.inv(self.factor)
        return self._replace(hessian=back.T @ self.hessian @ back, factor=None)


class BlockDerivatives:
    r"""Compiled derivatives of \( \sum_i w_i \log p(x_i \mid \theta) \) over a block of rows.

    Hessians are whitened, \( L^T H L \). Single precision would lose the flat directions of H
    itself: where a column is 230 times as far from zero as it is wide, the least eigenvalue of the
    scaled H is 1e-5, and a sum over rows is rounded by 1e-6.

    With a `LinearModel` the Hessian is \( L^T J^T \mathrm{diag}(w f'') J L \), which costs two
    products of matrices, and the program also gives norms of remainders. Where \( L L^T \) has no
    flat directions, it is \( J^T \mathrm{diag}(w f'') J \) by one product; see `Draws`. Other log
    likelihoods take D Hessian-vector products.

    Args:
      model: evaluates log likelihoods.
      like: a state without chain dimensions.
      size: the number of rows of every block.
      with_hessian: whether to return Hessians.
      jit_compile: whether XLA compiles the block.
    """

    def __init__(
        self,
        model: MinibatchLogProb,
        like: State,
        size: int,
        with_hessian: bool,
        jit_compile: bool = True,
    ):
        self._model, self._like, self.size = model, like, size
        flat = flatten_events(like, 0)
        self._dim, self._dtype = flat.shape[0], flat.dtype
        #: The relative rounding error of a number.
        self.resolution = float(np.finfo(flat.dtype.as_numpy_dtype).eps)
        self._is_linear = with_hessian and is_simple(model)
        self._of_block = self._hessian if with_hessian else self._gradient
        if self._is_linear:
            self._of_block = LinearBlocks(model, like).sums_and_norms
        self._name = f"sums of {size} rows, {with_hessian=}, {jit_compile=}"
        self._jit_compile, self._ones = jit_compile, tf.ones([size], self._dtype)

    def at(
        self, theta: np.ndarray, factor: np.ndarray | None = None
    ) -> Callable[[Any, np.ndarray | None], Sums]:
        """Returns the function of a block of rows and their weights that gives the sums at theta.

        Weights of None are ones.

        Args:
          theta: a state, `[D]`.
          factor: L, `[D, D]`; None for the identity.
        """
        used = np.eye(self._dim) if factor is None else factor
        if self._is_linear:
            draws = Draws.all_at(theta, used, self._dtype)
            given, whitened = [draws.stacked], draws.is_whitened
        else:
            given, whitened = [tf.constant(x, self._dtype) for x in (theta, used)], True
        run, factor = self._program(whitened), factor if whitened else None
        return lambda rows, weights=None: _as_sums(
            run(*given, rows, self._weights(weights)), factor
        )

    def with_norms(
        self, remainders: RowRemainders
    ) -> Callable[[Any, np.ndarray | None], tuple[Sums, np.ndarray]]:
        """Returns the function of rows and weights that gives the sums at the center of remainders.

        It also gives the norms of the rows' remainders, `[size]`.
        """
        at = remainders.at
        whitened = at.is_whitened or not self._is_linear
        run, factor = self._program(whitened), remainders.factor if whitened else None

        def of_block(rows: Any, weights: np.ndarray | None = None) -> tuple[Sums, np.ndarray]:
            weights = self._weights(weights)
            if not self._is_linear:
                sums = _as_sums(run(at.center, at.factor, rows, weights), factor)
                return sums, remainders.norms(rows)
            found = run(at.stacked, rows, weights)
            return _as_sums(found, factor), found[3].numpy().astype(np.float64)

        return of_block

    def _program(self, whitened: bool) -> Callable[..., Any]:
        """Returns the program that gives whitened Hessians, or others.

        It keeps to the shapes of its first call.
        """
        return kept_program(
            self._model,
            f"{self._name}, {whitened=}",
            self._like,
            lambda: traced_once(self._of_block, self._jit_compile),
        )

    def _weights(self, weights: np.ndarray | None) -> tf.Tensor:
        return self._ones if weights is None else tf.constant(weights, self._dtype)

    def _sum(self, state: State, rows: Any, weights: tf.Tensor) -> tf.Tensor:
        values = self._model.log_likelihood(state, rows, self.size)
        return tf.reduce_sum(weights * values, axis=-1)

    def _gradient(self, theta: tf.Tensor, factor: tf.Tensor, rows: Any, weights: tf.Tensor) -> Any:
        del factor
        state = unflatten_events(theta, self._like, 0)
        value, slope, _ = value_and_gradient(
            lambda s: self._sum(s, rows, weights), state, connected=False
        )
        return value, flatten_events(slope, 0)

    def _hessian(self, theta: tf.Tensor, factor: tf.Tensor, rows: Any, weights: tf.Tensor) -> Any:
        count = -(-self._dim // -(-self._dim // _COLUMNS))
        groups = -(-self._dim // count)
        probes = tf.pad(tf.transpose(factor), [[0, groups * count - self._dim], [0, 0]])

        def columns(probe: tf.Tensor) -> Any:
            state = unflatten_events(tf.broadcast_to(theta, probe.shape), self._like, 0)
            value, slope, bend = value_and_gradient(
                lambda s: self._sum(s, rows, weights),
                state,
                unflatten_events(probe, self._like, 0),
                connected=False,
            )
            bend = tf.linalg.matmul(flatten_events(bend, 1), factor)
            return value[0], flatten_events(slope, 1)[0], bend

        if groups == 1:
            return columns(probes)
        split = tf.reshape(probes, [groups, count, self._dim])
        value, slope, bend = tf.map_fn(
            columns, split, fn_output_signature=(self._dtype,) * 3, parallel_iterations=1
        )
        return value[0], slope[0], tf.reshape(bend, [-1, self._dim])[: self._dim]


def _as_sums(found: Sequence[tf.Tensor], factor: np.ndarray | None) -> Sums:
    """Returns the sums of a block from a program's value, gradient and Hessian, if it has one."""
    value, gradient, *hessian = (x.numpy().astype(np.float64) for x in found[:3])
    return Sums(float(value), gradient, hessian[0] if hessian else None, factor)


def map_blocks(
    target: StreamedLogProb,
    of_block: Callable[[Any, np.ndarray | None], Any],
    size: int,
    show: Callable[[int], None] = lambda num_rows: None,
) -> Iterator[tuple[Any, int, Any]]:
    """Yields each block of a pass, the number of its rows, and `of_block(block, weights)`.

    All blocks have `size` rows, and weights None, which stands for ones. The last one is filled up
    with copies of a row, whose weights are zero. Blocks are evaluated by as many threads as there
    are cores besides the one that reads, and yielded in the order of the data. In the scope of a
    strategy its replicas evaluate them in turn, each on its device.

    Raises:
      ValueError: the strategy has several workers, or its replicas do not step together.
    """
    seen = 0
    for rows, count, found in _in_threads(of_block, _filled_blocks(target, size), _devices()):
        yield rows, count, found
        seen += count
        show(seen)


def _filled_blocks(
    target: StreamedLogProb, size: int
) -> Iterator[tuple[Any, int, np.ndarray | None]]:
    """Yields blocks of `size` rows, the numbers of those from the data, and weights."""
    for rows in target.blocks(size):
        count, weights = len(tf.nest.flatten(rows)[0]), None
        if count < size:
            weights = (np.arange(size) < count).astype(np.float64)
            rows = tf.nest.map_structure(lambda x: filled(x, size), rows)
        yield rows, count, weights


def _devices() -> list[str]:
    """Returns the devices of the current strategy's replicas; none if there is one replica."""
    replicas = current()
    if replicas is None:
        return []
    if replicas.num_workers > 1:
        raise ValueError(
            "A pass over a stream must be made by one process, or by the workers of an executor: "
            "draw_pool(part -> stream, initial_state, num_parts=..., executor=...). Received: "
            f"{a_type(replicas.strategy)} of {replicas.num_workers} workers, each of which "
            "would read all rows."
        )
    return replicas.devices


def _in_threads(
    of_block: Callable[[Any, np.ndarray | None], Any],
    blocks: Iterator[tuple[Any, int, np.ndarray | None]],
    devices: Sequence[str],
) -> Iterator[tuple[Any, int, Any]]:
    workers = max(num_parallel_programs() - 1, len(devices))  # a core reads
    if workers < 2:
        for rows, count, weights in blocks:
            yield rows, count, of_block(rows, weights)
        return

    def on_device(number: int, rows: Any, weights: np.ndarray | None) -> Any:
        with tf.device(devices[number % len(devices)] if devices else None):
            return of_block(rows, weights)

    window = collections.deque[Any]()
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        try:
            for number, (rows, count, weights) in enumerate(blocks):
                window.append((rows, count, pool.submit(on_device, number, rows, weights)))
                if len(window) > workers:
                    block, num_rows, future = window.popleft()
                    yield block, num_rows, future.result()
            for block, num_rows, future in window:
                yield block, num_rows, future.result()
        finally:
            for *_, future in window:
                future.cancel()


def filled(x: tf.Tensor, size: int) -> tf.Tensor:
    """Returns rows with copies of the last one, `size` in all."""
    copies = tf.repeat(x[-1:], size - len(x), axis=0)
    return tf.concat([x, copies], axis=0)
