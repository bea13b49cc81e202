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


def deaths(folder: Path, *arguments: str) -> list[str]:
    command = [sys.executable, "-m", "tests.sampling.dying_run", str(folder), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_death_at_a_write_rename_or_removal(tmp_path: Path) -> None:
    """Negative control: a state that is committed before its draws."""
    points, control = deaths(tmp_path, "3:29", "99:4:mutated")
    assert int(points) >= 6
    assert control.startswith("after a death at point")


@pytest.mark.slow
def test_a_death_at_every_write_rename_or_removal(tmp_path: Path) -> None:
    (points,) = deaths(tmp_path, "1:1")
    assert int(points) >= 170
