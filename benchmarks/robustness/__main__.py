"""Runs all tables one after the other, each in a new process, and fails if one misses its aim.

python -m benchmarks.robustness --quick
"""

from __future__ import annotations

from benchmarks.common import command_line

TABLES = (
    "attacks",
    "calls",
    "files",
    "kills",
    "stream_kills",
    "shard_kills",
    "resumes",
    "panel",
    "architectures",
)


def run(*, quick: bool = False, tables: tuple[str, ...] = TABLES) -> list[str]:
    """Prints the tables, and returns the names of those that failed.

    Args:
      quick: a fixed part of each table, in about a minute.
      tables: which tables to print.
    """
    return command_line.failed_tables("benchmarks.robustness", tables, *["--quick"] * quick)


def show(failed: list[str]) -> None:
    if failed:
        raise SystemExit(f"These tables missed their aim: {', '.join(failed)}.")


if __name__ == "__main__":
    command_line.main(__doc__, run, show, choices={"tables": TABLES})
