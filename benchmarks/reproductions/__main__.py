"""All experiments of the five papers, with a page of the papers' claims beside what was found.

Each experiment runs in a process of its own, as many at a time as there are cores, in its quick
form unless `--full` is given. The page `README.md` in the folder is made from all results that lie
there, so that long runs can be added one by one:

    python -m benchmarks.reproductions.mixture --folder FOLDER
    python -m benchmarks.reproductions --only-page --folder FOLDER

The command fails if an experiment fails. A claim that does not hold is a result, not a failure.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.common import command_line
from benchmarks.common.environment import num_cores
from benchmarks.reproductions.page import EXPERIMENTS, write_page


def run(
    *,
    only: tuple[str, ...] = (),
    full: bool = False,
    only_page: bool = False,
    folder: str = "reproductions",
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

    def run_one(name: str) -> bool:
        command = [sys.executable, "-m", f"benchmarks.reproductions.{name}", "--folder", folder]
        try:
            done = subprocess.run(
                command + ["--quick"] * (not full),
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            print(f"{name}: failed, longer than {timeout:.0f} s", flush=True)
            return False
        last = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-1:]
        print(name, "done:" if done.returncode == 0 else "failed:", *last, flush=True)
        return done.returncode == 0

    with ThreadPoolExecutor(num_cores()) as pool:
        succeeded = list(pool.map(run_one, names))
    write_page(Path(folder))
    return [name for name, done in zip(names, succeeded, strict=True) if not done]


def show(failed: list[str]) -> None:
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    command_line.main(__doc__, run, show, choices={"only": EXPERIMENTS})
