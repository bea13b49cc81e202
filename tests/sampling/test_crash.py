"""A run that dies at any moment goes on and gives the draws of a run that does not die.

A child process repeats the same short run, and dies at its first, second, third, ... time of
opening, renaming or removing a file below its directory. After each death another process goes on
to the end, and its draws are compared with the known ones.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("zarr")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the child forks")

ROOT = Path(__file__).resolve().parents[2]


def deaths(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.sampling.dying_run", *map(str, (folder, *arguments))]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("first", "step", "at_least"),
    [(3, 29, 6), pytest.param(1, 1, 170, marks=pytest.mark.slow)],  # the last covers all points
)
def test_a_death_at_a_write_rename_or_removal(
    tmp_path: Path, first: int, step: int, at_least: int
) -> None:
    done = deaths(tmp_path, first, step)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= at_least  # points at which it died


def test_a_state_committed_before_its_draws_is_caught(tmp_path: Path) -> None:
    done = deaths(tmp_path, 99, 4, "mutated")
    assert done.returncode == 1 and "after a death at point" in done.stderr
