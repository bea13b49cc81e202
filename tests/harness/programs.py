"""Counts the graphs that are traced and the memory maps that XLA's programs take."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import pytest
import tensorflow as tf


class Made(NamedTuple):
    """Names of the graphs that were made, and the number of new memory maps."""

    graphs: list[str]
    maps: list[int]


def num_maps() -> int:
    """Returns the number of memory maps of this process; 0 where the system does not tell."""
    path = Path("/proc/self/maps")
    return path.read_text().count("\n") if path.exists() else 0


@contextlib.contextmanager
def counted() -> Iterator[Made]:
    """Counts graphs; the memory maps are known at the end."""
    build = tf.__internal__.FuncGraph.__init__
    made, before = Made([], []), num_maps()

    def init(self: tf.__internal__.FuncGraph, name: str, *args: object, **kwargs: object) -> None:
        made.graphs.append(name)
        build(self, name, *args, **kwargs)

    with mock.patch.object(tf.__internal__.FuncGraph, "__init__", init):
        yield made
    made.maps.append(num_maps() - before)


def count_loops(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[Any]:
    """Returns a list with an entry for each trace of the steps of a `Loop` that a module makes."""
    traces: list[Any] = []

    class Counted(module.Loop):
        def _steps(self, *args: Any) -> Any:
            traces.append(args)
            return super()._steps(*args)

    monkeypatch.setattr(module, "Loop", Counted)
    return traces
