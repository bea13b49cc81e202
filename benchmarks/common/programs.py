"""The programs that a call traces and compiles: their sizes and the seconds that they take."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple
from unittest import mock

import tensorflow as tf

_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = ", re.MULTILINE)
_GRAPH = tf.function


class Program(NamedTuple):
    """A program.

    Attributes:
      name: the function, and the one that it is defined in.
      operations: number of operations of TensorFlow, those of loops and branches included.
      instructions: number of XLA's instructions after it has optimised; None if XLA does not
        compile the program.
      tracing: processor seconds of tracing.
      compiling: those of the first call less those of the second.
    """

    name: str
    operations: int
    instructions: int | None
    tracing: float
    compiling: float

    @property
    def seconds(self) -> float:
        return self.tracing + self.compiling


class _Concrete:
    """A concrete function whose first call is timed, and then made once more."""

    def __init__(self, concrete: Any, note: Callable[[float], None]):
        self._concrete, self._note = concrete, note
        self._is_new = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._concrete, name)

    def __call__(self, *args: Any) -> Any:
        if not (self._is_new and tf.executing_eagerly()):
            return self._concrete(*args)
        self._is_new = False
        first, _ = _timed(lambda: self._concrete(*args))
        second, found = _timed(lambda: self._concrete(*args))
        self._note(max(first - second, 0.0))
        return found


class _Function:
    """A `tf.function` that lists its programs."""

    def __init__(self, programs: list[Program], fn: Callable[..., Any], options: dict[str, Any]):
        self._programs, self._graph = programs, _GRAPH(fn, **options)
        self._is_compiled = bool(options.get("jit_compile"))
        self._name = getattr(fn, "__qualname__", "a program").replace(".<locals>", "")
        self._made: dict[int, _Concrete] = {}

    def get_concrete_function(self, *args: Any) -> Any:
        seconds, concrete = _timed(lambda: self._graph.get_concrete_function(*args))
        if id(concrete) not in self._made:

            def note(compiling: float) -> None:
                size = _num_operations(concrete), self._num_instructions(args)
                self._programs.append(Program(self._name, *size, seconds, compiling))

            self._made[id(concrete)] = _Concrete(concrete, note)
        return self._made[id(concrete)]

    def __call__(self, *args: Any) -> Any:
        if tf.executing_eagerly():
            return self.get_concrete_function(*args)(*args)
        return self._graph(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    def _num_instructions(self, args: tuple[Any, ...]) -> int | None:
        if not self._is_compiled:
            return None
        text = self._graph.experimental_get_compiler_ir(*args)(stage="optimized_hlo")
        return len(_INSTRUCTION.findall(text))


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    found = call()
    return time.process_time() - began, found


def _num_operations(concrete: Any) -> int:
    graph = concrete.graph.as_graph_def()
    return len(graph.node) + sum(len(function.node_def) for function in graph.library.function)


@contextlib.contextmanager
def listed() -> Generator[list[Program]]:
    """Lists the programs that are run for the first time.

    Each is run twice then, so that the block takes longer. Functions that were decorated when their
    module was imported are not seen, nor are those that only other programs call.
    """
    programs: list[Program] = []

    def function(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
        if fn is None:
            return lambda fn: _Function(programs, fn, options)
        return _Function(programs, fn, options)

    with mock.patch.object(tf, "function", function):
        yield programs
