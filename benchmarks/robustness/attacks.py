"""Attacks on what a run promises: nothing is lost, and nothing is silently wrong.

Each attack does what a user, a disk, an engine or a signal can do, and states what must then be
true: the right numbers, or an error that names the cause. It has held if that is so, and fell
otherwise. The aim is that all hold.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks.common import command_line
from benchmarks.common.tables import Table

_FOUND: list[Attack] = []


class Attack(NamedTuple):
    """An attack: its class for the table, its name, and a function that raises where it fell."""

    kind: str
    name: str
    run: Callable[[], None]
    is_quick: bool


class Row(NamedTuple):
    """The outcome of an attack; `said` is empty if the library held."""

    kind: str
    name: str
    said: str


def attack(kind: str, quick: bool = True) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Adds a function to the list of attacks."""

    def add(run: Callable[[], None]) -> Callable[[], None]:
        name = getattr(run, "__name__", "").replace("_", " ")
        _FOUND.append(Attack(kind, name, run, quick))
        return run

    return add


def catalogue() -> list[Attack]:
    """Returns all attacks."""
    for module in ("runs", "calls", "fits", "streams", "processes"):  # each adds to the list
        importlib.import_module(f"benchmarks.robustness.attacks_on_{module}")
    return [*_FOUND]


def told(words: str, call: Callable[[], Any], kind: type[Exception] = Exception) -> None:
    """Raises AssertionError unless `call` raises an error of `kind` with these words."""
    try:
        found = call()
    except kind as error:
        text = " ".join([str(error), *getattr(error, "__notes__", [])])
        assert words in text, f"{type(error).__name__} without {words!r}: {text[:300]}"
        return
    raise AssertionError(f"no error with {words!r}, but {found!r:.200}")


def judge(each: Attack) -> Row:
    """Runs an attack."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            each.run()
        except Exception as error:  # anything that a fault may cause
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return Row(each.kind, each.name, text)
    return Row(each.kind, each.name, "")


def table(rows: Sequence[Row]) -> Iterator[tuple[str, int, int]]:
    """Yields class, tried and held; the last line is of all."""
    for kind in [*dict.fromkeys(row.kind for row in rows), "all"]:
        inside = [row for row in rows if kind in (row.kind, "all")]
        yield kind, len(inside), sum(not row.said for row in inside)


def run(*, quick: bool = False, kinds: tuple[str, ...] = ()) -> list[Row]:
    """Runs the attacks.

    Args:
      quick: leaves out those that end processes.
      kinds: the classes that are tried; none stands for all.
    """
    chosen = [
        a for a in catalogue() if (a.is_quick or not quick) and (not kinds or a.kind in kinds)
    ]
    return [judge(each) for each in chosen]


def show(rows: list[Row]) -> Table:
    """Prints the table and what fell; raises SystemExit if anything did."""
    printed = command_line.print_table({"class": "s", "tried": "d", "held": "d"}, [*table(rows)])
    fell = [row for row in rows if row.said]
    for row in fell:
        print(f"fell: {row.kind}, {row.name}: {row.said[:500]}")
    if fell:
        raise SystemExit(f"{len(fell)} of {len(rows)} attacks fell (aim: none).")
    return printed


def main() -> None:
    command_line.main(__doc__, run, show, table="robustness.attacks")


if __name__ == "__main__":
    # As a module, so that the lists of attacks add to this list.
    from benchmarks.robustness import attacks

    attacks.main()
