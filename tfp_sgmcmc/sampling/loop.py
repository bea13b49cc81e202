"""The compiled part of a run: many steps of a kernel in one call, compiled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_probability as tfp
import tree

from tfp_sgmcmc import random

# Kept draws of one call. Both sizes are the same in every run, so that each compiles alike.
_BUFFER_BYTES = 2**24
_BUFFER_ROWS = 2**17


class Position(NamedTuple):
    """Where a chain is: all that its next step depends on, beside the seed.

    Attributes:
      step: steps taken, `int64`.
      state: of the chain.
      results: of the kernel.
    """

    step: Any
    state: Any
    results: Any


class Loop:
    """Steps of a kernel, step t of which draws from `fold_in(seed, t)`.

    A call takes `first + (rows - 1) * stride` steps and returns the state, the trace and the step
    size after `first` of them and after every `stride` more. Neither number is compiled in.

    Args:
      kernel: whose steps are taken.
      trace_fn: state, results -> nest of tensors; or None.
      seed: of the whole chain.
      stride: steps from one kept draw to the next.
      start: state and results, of the structure, shapes and dtypes of all that follow.
      jit_compile: whether XLA compiles.

    Raises:
      ValueError: `trace_fn` returns something else when it is called again.
    """

    def __init__(
        self,
        kernel: tfp.mcmc.TransitionKernel,
        trace_fn: Callable[[Any, Any], Any] | None,
        seed: tf.Tensor,
        stride: int,
        start: Position,
        jit_compile: bool,
    ):
        self._kernel, self._trace_fn, self._seed, self._stride = kernel, trace_fn, seed, stride
        self._start, self._jit_compile = start, jit_compile
        #: What is kept of a draw, as TensorSpecs: state, trace, step size.
        self.kept = (
            tf.function(self._keep, autograph=False)
            .get_concrete_function(*tf.nest.map_structure(_spec, (start.state, start.results)))
            .structured_outputs
        )
        sizes = [spec.dtype.size * spec.shape.num_elements() for spec in tree.flatten(self.kept)]
        #: Rows that one call can return.
        self.slots = max(1, min(_BUFFER_ROWS, _BUFFER_BYTES // max(1, sum(sizes))))
        self._compiled = tf.function(self._steps, autograph=False, jit_compile=jit_compile)

    def __call__(self, position: Position, rows: int, first: int) -> tuple[Position, Any, bool]:
        """Takes steps; `rows = 0` takes none.

        Returns:
          The new position; what was kept, `kept` with an axis of at least `rows` in front; and
          whether all states in it, and the last one, are finite.
        """
        flat = tree.flatten(tuple(position))
        tensors, kept, is_finite = self._compiled(
            [x for x in flat if x is not None], tf.constant(rows), tf.constant(first, tf.int64)
        )
        return self._pack(tensors), kept, bool(is_finite)

    def _pack(self, tensors: list[tf.Tensor]) -> Position:
        left = iter(tensors)
        flat = [None if x is None else next(left) for x in tree.flatten(tuple(self._start))]
        return Position(*tree.unflatten_as(tuple(self._start), flat))

    def _steps(self, tensors: list[tf.Tensor], rows: tf.Tensor, first: tf.Tensor) -> Any:
        # XLA wants a size that it knows; elsewhere unused rows would take time.
        size = self.slots if self._jit_compile else tf.maximum(rows, 1)
        arrays = [
            tf.TensorArray(spec.dtype, size, element_shape=spec.shape)
            for spec in tree.flatten(self.kept)
        ]
        stride, begin = self._stride, tensors[0]
        end = begin + tf.where(rows > 0, first + (tf.cast(rows, tf.int64) - 1) * stride, 0)

        def step(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
            return self._one_step(self._pack(tensors))

        def write(arrays: list[Any], at: tf.Tensor, tensors: list[tf.Tensor]) -> list[Any]:
            _, state, results = self._pack(tensors)
            kept = self._keep(state, results)
            _check_trace(self.kept, kept)
            pairs = zip(arrays, tree.flatten(kept), strict=True)
            return [a.write(at, x) for a, x in pairs]

        def and_write(tensors: list[tf.Tensor], arrays: list[Any]) -> Any:
            # Each step writes where the next row is to be, and the row's own step does so last:
            # that costs less than a second loop, if there is no trace to compute.
            tensors = step(tensors)
            beyond = tf.maximum(tensors[0] - begin - first, 0)
            return tensors, write(
                arrays, tf.cast((beyond + stride - 1) // stride, tf.int32), tensors
            )

        def row(tensors: list[tf.Tensor], arrays: list[Any]) -> Any:
            taken = tensors[0] - begin
            at = tf.where(taken == 0, tf.zeros_like(taken), (taken - first) // stride + 1)
            goal = begin + first + at * stride
            (tensors,) = tf.while_loop(
                lambda x: x[0] < goal, lambda x: (step(x),), (tensors,), parallel_iterations=1
            )
            return tensors, write(arrays, tf.cast(at, tf.int32), tensors)

        is_nested = self._trace_fn is not None and stride > 1
        tensors, arrays = tf.while_loop(
            lambda x, _: x[0] < end,
            row if is_nested else and_write,
            (tensors, arrays),
            parallel_iterations=1,
        )
        kept = tree.unflatten_as(self.kept, [a.stack() for a in arrays])
        states = tree.flatten((kept[0], self._pack(tensors).state))
        finite = [tf.reduce_all(tf.math.is_finite(x)) for x in states if x.dtype.is_floating]
        return tensors, kept, tf.reduce_all([tf.constant(True), *finite])

    def _one_step(self, position: Position) -> list[tf.Tensor]:
        step, state, results = position
        seed = random.fold_in(self._seed, step)
        moved = Position(step + 1, *self._kernel.one_step(state, results, seed=seed))
        try:
            tf.nest.assert_same_structure(tuple(self._start), tuple(moved))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{type(self._kernel).__name__}.one_step returned another structure than its "
                f"bootstrap_results: {error}"
            ) from error
        pairs = zip(tree.flatten(tuple(self._start)), tree.flatten(tuple(moved)), strict=True)
        return [tf.convert_to_tensor(y, x.dtype) for x, y in pairs if x is not None]

    def _keep(self, state: Any, results: Any) -> tuple[Any, Any, Any]:
        trace = () if self._trace_fn is None else self._trace_fn(state, results)
        try:
            trace = tf.nest.map_structure(tf.convert_to_tensor, trace)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"trace_fn returned {trace!r}; a nest of tensors is expected."
            ) from error
        for x in tf.nest.flatten(trace):
            if x.dtype in (tf.string, tf.resource, tf.variant):
                raise ValueError(f"trace_fn returned {x.dtype.name}; numbers are expected.")
        sizes = tf.nest.map_structure(tf.convert_to_tensor, getattr(results, "step_size", ()))
        return state, trace, sizes


def start_of(kernel: tfp.mcmc.TransitionKernel, state: Any) -> Position:
    """The position before the first step."""
    state = tf.nest.map_structure(tf.convert_to_tensor, state)
    results = tree.map_structure(
        lambda x: None if x is None else tf.convert_to_tensor(x), kernel.bootstrap_results(state)
    )
    return Position(tf.zeros([], tf.int64), state, results)


def _spec(x: Any) -> Any:
    return x if x is None else tf.TensorSpec(x.shape, x.dtype)


def _check_trace(expected: Any, kept: Any) -> None:
    names = [
        [(path, x.dtype.name, tuple(x.shape)) for path, x in tree.flatten_with_path(nest[1])]
        for nest in (expected, kept)
    ]
    if names[0] != names[1]:
        raise ValueError(
            f"trace_fn returned {_listed(names[0])} and, called again, {_listed(names[1])}; the "
            "same structure, shapes and dtypes are expected each time."
        )


def _listed(leaves: list[Any]) -> str:
    return (
        ", ".join(
            f"trace{''.join(f'[{k!r}]' for k in path)}: {dtype} {list(shape)}"
            for path, dtype, shape in leaves
        )
        or "nothing"
    )
