"""The main function of the scripts: options made from keywords, and printed tables."""

from __future__ import annotations

import argparse
import inspect
import itertools
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import tables
from benchmarks.common.environment import describe


def main(
    description: str | None,
    run: Callable[..., Any],
    show: Callable[[Any], Any],
    plot: Callable[[Any, str], None] | None = None,
    choices: Mapping[str, Iterable[str]] | None = None,
    table: str | None = None,
) -> None:
    """Calls `run` with the given options; prints the machine, the result and the seconds it took.

    With a name for its `table`, the option `--page` writes what `show` returned into a page.

    Args:
      description: the first lines of `--help`.
      run: the function whose keywords are the options; see `parser`.
      show: prints what `run` returned; returns the `Tables` for a page.
      plot: draws the result into the file `--output`, if that option is given.
      choices: see `parser`.
      table: the name of the command's place in a page.
    """
    made = parser(description, run, plot is not None, choices)
    if table is not None:
        made.add_argument("--page", type=Path, help=f"file whose table {table} is written again")
    arguments = vars(made.parse_args())
    output, place = arguments.pop("output", None), None
    if table is not None and (page := arguments.pop("page")) is not None:
        place = tables.Place(page, table)
        place.parts()  # raises before the work if there is no such place
    load = tables.load()
    print(describe(), flush=True)
    start = time.perf_counter()
    result = run(**keywords(arguments))
    shown = show(result)
    seconds = time.perf_counter() - start
    print(f"{seconds:.0f} s")
    if place is not None:
        place.write(shown, tables.head(seconds, load, sys.argv[1:]))
    if plot is not None and output:
        plot(result, output)


def failed_tables(room: str, tables: Sequence[str], *options: str) -> list[str]:
    """Runs the module of each table in a new process; returns the names of those that failed."""
    failed = []
    for table in tables:
        print(f"== {table}", flush=True)
        if subprocess.run([sys.executable, "-m", f"{room}.{table}", *options]).returncode:
            failed.append(table)
    return failed


def parser(
    description: str | None,
    run: Callable[..., Any],
    with_output: bool = True,
    choices: Mapping[str, Iterable[str]] | None = None,
) -> argparse.ArgumentParser:
    """Returns a parser with an option `--name` for each keyword `name` of `run`.

    An option has the type of its keyword's default. A tuple becomes an option with several values,
    and False a flag. The help of an option is its entry under `Args:` in the docstring of `run`.

    Args:
      description: the first lines of `--help`.
      run: a function whose keywords all have defaults.
      with_output: whether there is an option `--output`, a file for a figure.
      choices: the values that an option accepts, by the name of its keyword.
    """
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    documented = inspect.getdoc(run) or ""
    for name, keyword in inspect.signature(run).parameters.items():
        option, default = "--" + name.replace("_", "-"), keyword.default
        entry = re.search(rf"^  {name}: (.*(?:\n    .*)*)", documented, re.MULTILINE)
        text = f"{' '.join(entry[1].split())} " if entry else ""
        if default is False:
            made.add_argument(option, action="store_true", help=text)
            continue
        several = isinstance(default, tuple)
        made.add_argument(
            option,
            type=type(default[0] if several and default else "" if several else default),
            nargs="+" if several else None,
            default=default,
            choices=(choices or {}).get(name),
            help=f"{text}(default: {default})",
        )
    if with_output:
        made.add_argument("--output", help="file for a figure")
    return made


def keywords(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns parsed options as keywords, with tuples in place of lists."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in arguments.items()}


def print_table(columns: Mapping[str, str], rows: Iterable[Sequence[Any]]) -> tables.Table:
    """Prints rows below the names of their columns, each value in its column's format.

    Returns the table.

    The rows of an iterator are printed as they come, in columns as wide as the first row needs.

    >>> _ = print_table({"passes": ".0f", "E1": ".3f"}, [(1.0, 0.5), (100.0, 0.0625)])
    passes    E1
         1 0.500
       100 0.062
    """
    lines = ([format(x, f) for x, f in zip(row, columns.values(), strict=True)] for row in rows)
    known = list(itertools.islice(lines, 1 if isinstance(rows, Iterator) else None))
    widths = [max(map(len, column)) for column in zip(columns, *known, strict=True)]
    printed = []
    for line in itertools.chain([columns], known, lines):
        cells = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        print(*cells, flush=True)
        printed.append(tuple(cell.strip() for cell in cells))
    return tables.Table(printed[0], printed[1:])
