"""What the scripts share: options from a function's keywords, and tables."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


def parser(description: str | None, run: Callable[..., Any]) -> argparse.ArgumentParser:
    """Returns a parser with `--name` for each keyword `name` of `run`, with its default's type.

    Beside them it has `--output`, a file for a figure.
    """
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, keyword in inspect.signature(run).parameters.items():
        option, default = "--" + name.replace("_", "-"), keyword.default
        made.add_argument(option, type=type(default), default=default, help=f"default: {default}")
    made.add_argument("--output", help="file for a figure")
    return made


def print_table(columns: Mapping[str, str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints rows below the names of their columns, each value by its column's format.

    >>> print_table({"passes": ".0f", "E1": ".3f"}, [(1.0, 0.5), (100.0, 0.0625)])
    passes    E1
         1 0.500
       100 0.062
    """
    cells = [
        [format(x, spec) for x, spec in zip(row, columns.values(), strict=True)] for row in rows
    ]
    table = [list(columns), *cells]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print(*(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
