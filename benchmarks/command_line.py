"""What the scripts share: their main function, options from keywords, and tables."""

from __future__ import annotations

import argparse
import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.environment import describe


def main(
    description: str | None,
    run: Callable[..., Any],
    show: Callable[[Any], None],
    plot: Callable[[Any, str], None] | None = None,
) -> None:
    """Calls `run` with the options given, and prints where, its result, and the seconds it took.

    Args:
      description: what `--help` says first.
      run: its keywords are the options; see `parser`.
      show: prints what `run` returned.
      plot: draws it into the file `--output`, where that is given.
    """
    arguments = vars(parser(description, run, with_output=plot is not None).parse_args())
    output = arguments.pop("output", None)
    print(describe(), flush=True)
    start = time.perf_counter()
    result = run(**{k: tuple(v) if isinstance(v, list) else v for k, v in arguments.items()})
    show(result)
    print(f"{time.perf_counter() - start:.0f} s")
    if plot is not None and output:
        plot(result, output)


def parser(
    description: str | None, run: Callable[..., Any], with_output: bool = True
) -> argparse.ArgumentParser:
    """Returns a parser with `--name` for each keyword `name` of `run`, with its default's type.

    A tuple is an option that takes several values. `--output` is a file for a figure.
    """
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, keyword in inspect.signature(run).parameters.items():
        option, default = "--" + name.replace("_", "-"), keyword.default
        several = isinstance(default, tuple)
        made.add_argument(
            option,
            type=type(default[0] if several else default),
            nargs="+" if several else None,
            default=default,
            help=f"default: {default}",
        )
    if with_output:
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
