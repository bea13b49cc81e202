"""Compiles many steps of a kernel into one call."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tree

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks, xla
from tfp_sgmcmc.internal.nest import MANY_PARTS, Packing, named_parts
from tfp_sgmcmc.internal.replicas import Replicas
from tfp_sgmcmc.internal.xla import compilable, full_precision, traced
from tfp_sgmcmc.kernels.base import StochasticGradientKernel
from tfp_sgmcmc.targets import FullDataLogProb, ShardedLogProb, Target
from tfp_sgmcmc.targets.base import as_target

# Limits of the draws that one call keeps. They do not depend on the run, so all compile alike.
_BUFFER_BYTES = 2**24
_BUFFER_ROWS = 2**17
_NOT_NUMERIC = (tf.string, tf.resource, tf.variant)
NEVER = 2**62  # the number of a step that no run reaches


class Position(NamedTuple):
    """The position of a chain: everything that its next step depends on, except the seed.

    Attributes:
      step: number of steps taken, `int64`.
      state: the chain's state.
      results: the kernel's results.
    """

    step: Any
    state: Any
    results: Any


class FiniteCheck(NamedTuple):
    """Whether the states and log posteriors of a call are finite.

    Attributes:
      states_are_finite: whether the last state and all kept states are finite.
      lost_at: number of the first step whose log posterior is NaN or infinite; `NEVER` if all are
        finite.
    """

    states_are_finite: bool
    lost_at: int

    @property
    def is_good(self) -> bool:
        return self.states_are_finite and self.lost_at == NEVER


class Program(NamedTuple):
    """A compiled call of a `Loop`.

    Attributes:
      stablehlo: the program in StableHLO, as MLIR bytecode.
      inputs: the program's arguments by name, in order.
      outputs: the names of its results, in order.
      output_types: their dtypes and shapes.
    """

    stablehlo: bytes
    inputs: dict[str, tf.Tensor]
    outputs: tuple[str, ...]
    output_types: tuple[tuple[str, tuple[int, ...]], ...]


class Loop:
    """Compiled steps of a kernel; step t draws from `fold_in(seed, t)`.

    A call takes `first + (rows - 1) * stride` steps. It keeps the state, the trace and the step
    size after the first `first` steps and after every `stride` more. `seed` is the seed of the
    whole chain, and `values` are passed to `kernel_fn`. A stride is compiled in if it is an
    integer, and is an argument of the program if it is a tensor.

    Args:
      kernel_fn: values -> kernel; called when a call is traced.
      trace_fn: state, results -> nest of tensors; or None.
      start: a position with the structure, shapes and dtypes of all positions.
      jit_compile: whether XLA compiles the steps.
      slots: rows that one call can keep; None chooses.
      view: a function of the state whose value is kept; None keeps the state.
      values: the first values. The view then gets them too, and a stride is always an argument.
      replicas: the replicas that take each step together. XLA cannot compile their communication on
        a CPU, so it compiles only the share of each. None is one replica.

    Raises:
      ValueError: `trace_fn` returns something else when it is called again.
    """

    def __init__(
        self,
        kernel_fn: Callable[[Any], tfp.mcmc.TransitionKernel],
        trace_fn: Callable[[Any, Any], Any] | None,
        start: Position,
        jit_compile: bool,
        slots: int | None = None,
        view: Callable[..., Any] | None = None,
        replicas: Replicas | None = None,
        values: Any = (),
    ):
        self._replicas, self._has_values = replicas, bool(tf.nest.flatten(values))
        jit_compile = jit_compile and replicas is None
        self._kernel_fn, self._trace_fn, self._view = kernel_fn, trace_fn, view
        self._start, self._jit_compile, self._values = start, jit_compile, values
        #: TensorSpecs of what a draw keeps: state, trace, step size.
        self.kept = (
            tf.function(self._keep, autograph=False)
            .get_concrete_function(
                *tf.nest.map_structure(_spec, (start.state, start.results, values))
            )
            .structured_outputs
        )
        self._packing = Packing(tree.flatten(self.kept[0]), fewest=MANY_PARTS)
        #: Rows that one call can keep.
        self.slots = slots or rows_of(self.kept)
        self._graph = tf.function(self._steps, autograph=False, jit_compile=jit_compile)

    def __call__(
        self, position: Position, rows: int, first: int, stride: Any, seed: Any, values: Any = None
    ) -> tuple[Position, Any, FiniteCheck]:
        """Takes steps; `rows = 0` takes none. `values` of None are those of `with_values`.

        Returns:
          The new position; the kept values as arrays, in the structure of `kept` with a leading
          axis of at least `rows`; and a `FiniteCheck`.
        """
        numbers = tf.constant(rows), tf.constant(first, tf.int64)
        values = self._values if values is None else values
        stride = tf.constant(stride, tf.int64) if self._has_values else stride
        given = _tensors(position), *numbers, stride, seed, values
        # A concrete function, because TensorFlow warns when many runs trace a function again.
        with compilable():
            graph = self._graph.get_concrete_function(*given)
        with full_precision():
            tensors, rows, is_finite, lost_at = graph(*given)
        kept = self._unpacked([np.asarray(x) for x in rows])
        return self._pack(tensors), kept, FiniteCheck(bool(is_finite), int(lost_at))

    def with_values(self, values: Any) -> Self:
        """Returns a loop that passes these values to `kernel_fn`, and shares the programs."""
        other = copy.copy(self)
        other._values = values
        return other

    def trace_of(self, state: Any, results: Any) -> Any:
        """Returns what `trace_fn` returns; `()` without one."""
        return traced(self._keep)(state, results, self._values)[1]

    def program(self, position: Position, rows: int, first: int, stride: int, seed: Any) -> Program:
        """Returns the compiled program of a call with these arguments, without running it."""
        numbers = {"rows": tf.constant(rows), "first": tf.constant(first, tf.int64)}
        given = _tensors(position), *numbers.values(), stride, seed, ()

        def unpacked(*given: Any) -> Any:
            tensors, rows, *checks = self._steps(*given)
            return tensors, self._unpacked(rows), *checks

        compiled = tf.function(unpacked, autograph=False, jit_compile=True)
        with compilable():
            graph = compiled.get_concrete_function(*given)
        arguments = [(f"position_{i}", x) for i, x in enumerate(given[0])]
        arguments += [*numbers.items(), ("seed", seed)]
        arguments += [(f"data_{i}", x) for i, x in enumerate(graph.captured_inputs)]
        with full_precision():
            stablehlo = compiled.experimental_get_compiler_ir(*given)(stage="stablehlo_serialized")
        outputs = [f"position_{i}" for i in range(len(given[0]))]
        outputs += [f"kept_{i}" for i in range(len(tree.flatten(self.kept)))]
        types = tuple((x.dtype.name, tuple(x.shape)) for x in graph.outputs)
        return Program(stablehlo, dict(arguments), (*outputs, "is_finite", "lost_at"), types)

    def trace(self, position: Position, stride: Any, seed: Any, values: Any = ()) -> None:
        """Traces a call without compiling it."""
        numbers = tf.constant(0), tf.constant(0, tf.int64)
        self._graph.get_concrete_function(_tensors(position), *numbers, stride, seed, values)

    def _pack(self, tensors: list[tf.Tensor]) -> Position:
        left = iter(tensors)
        flat = [None if x is None else next(left) for x in tree.flatten(tuple(self._start))]
        return Position(*tree.unflatten_as(tuple(self._start), flat))

    def _steps(
        self, tensors: list[tf.Tensor], rows: Any, first: Any, stride: Any, seed: Any, values: Any
    ) -> Any:
        kernel = self._kernel_fn(values)
        # XLA needs a static size. Without XLA, unused rows would cost time.
        size = self.slots if self._jit_compile else tf.maximum(rows, 1)
        arrays = [
            tf.TensorArray(spec.dtype, size, element_shape=spec.shape)
            for spec in (*self._packing.parts, *tree.flatten(self.kept[1:]))
        ]
        begin = tensors[0]
        end = begin + tf.where(rows > 0, first + (tf.cast(rows, tf.int64) - 1) * stride, 0)

        # XLA divides slowly by a number unknown at compile time, so not at every step.
        computes = self._trace_fn is not None or self._view is not None
        is_nested = tf.is_tensor(stride) or (computes and stride > 1)
        block = xla.steps_of_block(stride if is_nested else None)

        def step(before: list[tf.Tensor], lost_at: tf.Tensor, end: tf.Tensor) -> Any:
            tensors = self._one_step(kernel, self._pack(before), seed)
            if block > 1:  # then some steps come after the end
                is_due = before[0] < end
                pairs = zip(before, tensors, strict=True)
                tensors = [x if y is x else tf.where(is_due, y, x) for x, y in pairs]
            log_prob = log_prob_of(self._pack(tensors).results)
            if log_prob is None:
                return tensors, lost_at
            is_lost = tf.logical_not(tf.reduce_all(tf.math.is_finite(log_prob)))
            return tensors, tf.where(is_lost, tf.minimum(lost_at, tensors[0]), lost_at)

        def write(arrays: list[Any], at: tf.Tensor, tensors: list[tf.Tensor]) -> list[Any]:
            _, state, results = self._pack(tensors)
            kept = self._keep(state, results, values)
            _check_trace(self.kept, kept)
            rows = *self._packing.pack(tree.flatten(kept[0])), *tree.flatten(kept[1:])
            return [a.write(at, x) for a, x in zip(arrays, rows, strict=True)]

        def and_write(tensors: list[tf.Tensor], lost_at: tf.Tensor, arrays: list[Any]) -> Any:
            # Every step writes to the next row, so the last write is that row's draw. Without a
            # trace to compute this costs less than a second loop.
            tensors, lost_at = step(tensors, lost_at, end)
            beyond = tf.maximum(tensors[0] - begin - first, 0)
            at = (beyond + stride - 1) // stride
            return tensors, lost_at, write(arrays, tf.cast(at, tf.int32), tensors)

        def row(tensors: list[tf.Tensor], lost_at: tf.Tensor, arrays: list[Any]) -> Any:
            taken = tensors[0] - begin
            at = tf.where(taken == 0, tf.zeros_like(taken), (taken - first) // stride + 1)
            goal = begin + first + at * stride
            tensors, lost_at = xla.while_loop(
                lambda x, _: x[0] < goal, lambda *x: step(*x, goal), (tensors, lost_at), block
            )
            return tensors, lost_at, write(arrays, tf.cast(at, tf.int32), tensors)

        tensors, lost_at, arrays = xla.while_loop(
            lambda x, *_: x[0] < end,
            row if is_nested else and_write,
            (tensors, tf.constant(NEVER, tf.int64), arrays),
            1 if is_nested else block,
        )
        rows, last = [a.stack() for a in arrays], tree.flatten(self._pack(tensors).state)
        states = *rows[: len(self._packing.parts)], *Packing(last, fewest=MANY_PARTS).pack(last)
        finite = [tf.reduce_all(tf.math.is_finite(x)) for x in states if x.dtype.is_floating]
        return tensors, rows, tf.reduce_all([tf.constant(True), *finite]), lost_at

    def _unpacked(self, rows: Sequence[Any]) -> Any:
        """Returns what `_steps` kept, in the structure of `kept`."""
        num_states = len(self._packing.parts)
        states = self._packing.unpack(rows[:num_states])
        return tree.unflatten_as(self.kept, [*states, *rows[num_states:]])

    def _one_step(
        self, kernel: tfp.mcmc.TransitionKernel, position: Position, seed: tf.Tensor
    ) -> list[tf.Tensor]:
        seed = random.fold_in(seed, position.step)
        if self._replicas is None:
            return self._moved(kernel, position, seed)
        # The loop surrounds the step, because replicas cannot communicate inside a loop.
        return self._replicas.run(lambda: self._moved(kernel, position, seed))

    def _moved(
        self, kernel: tfp.mcmc.TransitionKernel, position: Position, seed: tf.Tensor
    ) -> list[tf.Tensor]:
        step, state, results = position
        moved_state, results = kernel.one_step(state, results, seed=seed)
        try:
            # Some kernels return a list for a tuple.
            state = tf.nest.pack_sequence_as(state, tf.nest.flatten(moved_state))
            moved = Position(step + 1, state, results)
            tf.nest.assert_same_structure(tuple(self._start), tuple(moved))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{type(kernel).__name__}.one_step must return the structure of the state and of "
                f"bootstrap_results: {error}"
            ) from error
        pairs = zip(tree.flatten(tuple(self._start)), tree.flatten(tuple(moved)), strict=True)
        return [tf.convert_to_tensor(y, x.dtype) for x, y in pairs if x is not None]

    def _keep(self, state: Any, results: Any, values: Any) -> tuple[Any, Any, Any]:
        try:
            trace = () if self._trace_fn is None else self._trace_fn(state, results)
        except TypeError as error:
            message = f"trace_fn must take a state and kernel results. Received: {error}"
            raise TypeError(message) from error
        try:
            trace = tf.nest.map_structure(tf.convert_to_tensor, trace)
        except (ValueError, TypeError) as error:
            raise ValueError(f"trace_fn must return tensors. Received: {trace!r}.") from error
        for x in tf.nest.flatten(trace):
            if x.dtype in _NOT_NUMERIC or not x.shape.is_fully_defined():
                found = f"{x.dtype.name} of shape {x.shape}"
                raise ValueError(f"trace_fn must return numbers of known shape. Received: {found}.")
        sizes = tf.nest.map_structure(tf.convert_to_tensor, getattr(results, "step_size", ()))
        if self._view is not None:
            state = self._view(state, values) if self._has_values else self._view(state)
        return state, trace, sizes


def rows_of(kept: Any) -> int:
    """Returns how many draws with these TensorSpecs one call keeps."""
    sizes = [spec.dtype.size * spec.shape.num_elements() for spec in tree.flatten(kept)]
    return max(1, min(_BUFFER_ROWS, _BUFFER_BYTES // max(1, sum(sizes))))


def log_prob_of(results: Any) -> Any:
    """Returns the log posterior in the results of a kernel or of the kernel in it; or None."""
    if hasattr(results, "target_log_prob"):
        return results.target_log_prob
    for name in ("accepted_results", "inner_results"):
        if hasattr(results, name):
            return log_prob_of(getattr(results, name))
    return None


def target_of(kernel: tfp.mcmc.TransitionKernel) -> Target | None:
    """Returns the target whose gradients a kernel, or the kernel that it wraps, estimates."""
    found = _target_of(kernel)
    return None if isinstance(found, FullDataLogProb) else found


def replicas_of(target: Target | None) -> Replicas | None:
    """Returns the replicas that hold the data of a target or of the target that it wraps."""
    while target is not None and not isinstance(target, ShardedLogProb):
        target = getattr(target, "target", None)
    return None if target is None else target.replicas


def log_prob_fn_of(kernel: tfp.mcmc.TransitionKernel) -> Any:
    """Returns the target or function that a kernel or the kernel in it samples; or None."""
    found = _target_of(kernel)
    while found is None and isinstance(kernel, tfp.mcmc.TransitionKernel):
        parameters = getattr(kernel, "parameters", {})
        found, kernel = parameters.get("target_log_prob_fn"), parameters.get("inner_kernel")
    return found


def chain_shape_of(kernel: tfp.mcmc.TransitionKernel, start: Position) -> tuple[int, ...]:
    """Returns the shape of the leading axes of the state that count chains."""
    target, log_prob = _target_of(kernel), log_prob_of(start.results)
    is_estimate = isinstance(kernel, StochasticGradientKernel)
    if log_prob is not None and (target is None or not is_estimate):
        return tuple(log_prob.shape)
    return () if target is None else tuple(tf.TensorShape(target.chain_shape(start.state)))


def _target_of(kernel: tfp.mcmc.TransitionKernel) -> Target | None:
    """Returns the target of a kernel; a plain callable becomes a `FullDataLogProb`."""
    for name, value in getattr(kernel, "parameters", {}).items():
        if isinstance(kernel, StochasticGradientKernel) and name == "target_log_prob_fn":
            return as_target(value, full_data_expected=True)
        if isinstance(value, Target):
            return value
        if isinstance(value, tfp.mcmc.TransitionKernel):
            return _target_of(value)
    return None


def start_of(kernel: tfp.mcmc.TransitionKernel, state: Any) -> Position:
    """Returns the position before the first step."""
    state = state_tensors(state)
    try:
        results = kernel.bootstrap_results(state)
    except TypeError as error:
        if str(error).startswith("The kernel inside tfp.mcmc."):  # see `refuse_wrappers`
            raise
        raise TypeError(
            "initial_state must be a state of the kernel's log posterior. Received: "
            f"{_listed(state, 'initial_state')}, and {error}"
        ) from error
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        if isinstance(state, Mapping) and type(kernel).__module__.startswith(tfp.__name__):
            wanted = f"a tensor or a list of tensors for {checks.a_type(kernel)}"
            received = _listed(state, "initial_state")
            raise TypeError(f"initial_state must be {wanted}. Received: {received}.") from error
        raise
    try:
        return Position(tf.zeros([], tf.int64), state, as_tensors(results))
    except (TypeError, ValueError) as error:
        message = f"kernel must have tensors as results. Received: {checks.a_type(kernel)}."
        raise TypeError(message) from error


def state_tensors(state: Any) -> Any:
    """Returns the initial state as tensors; raises TypeError if a part is not numeric."""
    try:
        tensors = tf.nest.map_structure(tf.convert_to_tensor, state)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"initial_state must be a tensor or nest of tensors. Received: {state!r} ({error})."
        ) from error
    wrong = [x.dtype.name for x in tf.nest.flatten(tensors) if x.dtype in _NOT_NUMERIC]
    if wrong or not tf.nest.flatten(tensors):
        raise TypeError(
            "initial_state must be a tensor or nest of tensors with numbers. Received: "
            f"{wrong[0] if wrong else 'nothing'}."
        )
    return tensors


def repeat_chains(state: Any, num_chains: int | None) -> Any:
    """Returns the initial state with `num_chains` equal chains in front; None keeps it."""
    if num_chains is None:
        return state
    return tf.nest.map_structure(
        lambda x: tf.broadcast_to(x, [num_chains, *x.shape]), state_tensors(state)
    )


def as_tensors(nest: Any) -> Any:
    """Returns a nest whose leaves are tensors or None."""
    return tree.map_structure(lambda x: None if x is None else tf.convert_to_tensor(x), nest)


def _tensors(position: Position) -> list[tf.Tensor]:
    return [x for x in tree.flatten(tuple(position)) if x is not None]


def _spec(x: Any) -> Any:
    return x if x is None else tf.TensorSpec(x.shape, x.dtype)


def _check_trace(expected: Any, kept: Any) -> None:
    first, now = (_listed(nest[1], "trace") for nest in (expected, kept))
    if first != now:
        raise ValueError(
            "trace_fn must return the same structure, shapes and dtypes each time. Received: "
            f"{first}, and when called again, {now}."
        )


def _listed(nest: Any, name: str) -> str:
    leaves = [f"{part}: {x.dtype.name} {list(x.shape)}" for part, x in named_parts(nest, name)]
    return ", ".join(leaves) or "nothing"
