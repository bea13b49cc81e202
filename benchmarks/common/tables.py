"""Tables of a page that a command prints and writes again, with date, machine and versions."""

from __future__ import annotations

import datetime
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common.environment import describe


class Table(NamedTuple):
    """Names of columns, lines of cells as text, and a note that stands below."""

    names: tuple[str, ...]
    lines: list[tuple[str, ...]]
    note: str = ""

    def markdown(self) -> str:
        """Returns the table in Markdown.

        >>> print(Table(("n", "E1"), [("100", "0.5")]).markdown())
        | n | E1 |
        | --- | --- |
        | 100 | 0.5 |
        """
        rows = [self.names, ("---",) * len(self.names), *self.lines]
        text = "\n".join(f"| {' | '.join(cell.strip() for cell in row)} |" for row in rows)
        return f"{text}\n\n{self.note}" if self.note else text


Tables = Table | Mapping[str, Table]  # one, or several by their titles


class Place(NamedTuple):
    """A place of a page, between the comments `<!-- NAME -->` and `<!-- end of NAME -->`.

    Raises:
      ValueError: the page has not these comments, once each and in this order.
    """

    page: Path
    name: str

    def parts(self) -> tuple[str, str]:
        """Returns the page up to the place, and from its end."""
        text = self.page.read_text(encoding="utf-8")
        first, last = f"<!-- {self.name} -->\n", f"<!-- end of {self.name} -->"
        if text.count(first) != 1 or text.split(first)[1].count(last) != 1:
            raise ValueError(
                f"{self.page} must have a line {first.strip()} and below it a line {last}, once "
                "each, between which the table goes."
            )
        before, after = text.split(first)
        return before + first, last + after.split(last)[1]

    def write(self, tables: Tables, head: str) -> None:
        """Puts tables into the place, below the line `head`."""
        before, after = self.parts()
        titled = {"": tables} if isinstance(tables, Table) else tables
        blocks = [f"{title}:\n\n{t.markdown()}" if title else t.markdown() for title, t in
                  titled.items()]  # fmt: skip
        self.page.write_text(before + "\n\n".join([head, *blocks]) + "\n" + after, encoding="utf-8")


def head(seconds: float, load: float, arguments: Sequence[str], module: str = "") -> str:
    """Returns a line with date, command, seconds, load, machine and versions.

    Args:
      seconds: the time that the command took.
      load: the mean number of running processes before it began.
      arguments: the options that were given; `--page` and its value are left out.
      module: the module that was run; empty finds it.
    """
    spec: Any = getattr(sys.modules["__main__"], "__spec__", None)
    module = (module or getattr(spec, "name", "?")).removesuffix(".__main__")
    given = list(arguments)
    if "--page" in given:
        del given[given.index("--page") : given.index("--page") + 2]
    command = shlex.join(["python", "-m", module, *given])
    day = datetime.datetime.now(datetime.UTC).strftime("%-d %B %Y")
    return f"{day}, `{command}`, {seconds:.0f} s, load {load:.1f} before; {describe()}."


def load() -> float:
    """Returns the mean number of running processes in the last minute; NaN if it is not known."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
