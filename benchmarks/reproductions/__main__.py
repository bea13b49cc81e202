"""All experiments of the five papers, with a page of the papers' claims beside what was found.

Each experiment runs in a process of its own, as many at a time as there are cores, in its quick
form unless `--full` is given. The page `README.md` in the folder is made from all results that lie
there, so that long runs can be added one by one:

    python -m benchmarks.reproductions.mixture --folder FOLDER
    python -m benchmarks.reproductions --only-page --folder FOLDER

The command fails if an experiment fails; the others still run, and the page names it. A claim that
does not hold is a result, not a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.common import command_line
from benchmarks.common.environment import num_cores
from benchmarks.reproductions.page import EXPERIMENTS, write_page

SHOWN_LINES = 20  # of the errors of an experiment that failed


def run(
    *,
    only: tuple[str, ...] = (),
    full: bool = False,
    only_page: bool = False,
    folder: str = "output/reproductions",
    timeout: float = 36_000.0,
) -> list[str]:
    """Runs the experiments and writes the page; returns the names of those that failed.

    Args:
      only: names of the experiments to run (all by default).
      full: runs the full forms, which take hours.
      only_page: writes the page from the results that are there.
      folder: folder of the results and of the page.
      timeout: seconds after which an experiment counts as failed.
    """
    names = [] if only_page else list(only or EXPERIMENTS)

    def run_one(name: str) -> str | None:
        """Returns why the experiment failed, or None."""
        try:
            done = subprocess.run(
                command(name, full, folder),
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
                env={**THREADS, **os.environ} if len(names) > 1 else None,
            )
        except subprocess.TimeoutExpired:
            print(f"{name} failed: longer than {timeout:.0f} s", flush=True)
            return f"it took longer than {timeout:.0f} s"
        if done.returncode == 0:
            print(f"{name} done:", *done.stdout.strip().splitlines()[-1:], flush=True)
            return None
        errors = done.stderr.strip().splitlines()[-SHOWN_LINES:]
        print(f"{name} failed:", *errors, sep="\n  ", flush=True)
        return errors[-1].rstrip(".") if errors else f"it ended with code {done.returncode}"

    with ThreadPoolExecutor(num_cores()) as pool:
        reasons = dict(zip(names, pool.map(run_one, names), strict=True))
    failed = {name: reason for name, reason in reasons.items() if reason is not None}
    write_page(Path(folder), failed)
    return list(failed)


# With more threads than cores, the threads of experiments side by side wait for each other.
THREADS = {
    name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
}


def command(name: str, full: bool, folder: str) -> list[str]:
    """Returns the command line of one experiment."""
    module = f"benchmarks.reproductions.{name}"
    return [sys.executable, "-m", module, "--folder", folder] + ["--quick"] * (not full)


def show(failed: list[str]) -> None:
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    command_line.main(__doc__, run, show, choices={"only": EXPERIMENTS})
