"""Runs all tables one after the other, each in a new process.

  plan      a simulated run of 10,000 shards with failures, beside the model of its efficiency,
  shards    weak scaling of shards over threads, processes and dask,
  chains    64 chains as one program and in shards, with processor and wall-clock seconds,
  fit       a step of `fit` on two processes, beside one,
  replicas  a step of one chain on two replicas, beside one.

python -m benchmarks.scaling_out --tables plan fit
"""

from __future__ import annotations

from benchmarks.common import command_line

TABLES = ("plan", "shards", "chains", "fit", "replicas")


def run(*, tables: tuple[str, ...] = TABLES) -> list[str]:
    """Prints the tables, and returns the names of those that failed.

    Args:
      tables: which tables to print.
    """
    return command_line.failed_tables("benchmarks.scaling_out", tables)


def show(failed: list[str]) -> None:
    if failed:
        raise SystemExit(f"These tables failed: {', '.join(failed)}.")


if __name__ == "__main__":
    command_line.main(__doc__, run, show, choices={"tables": TABLES})
