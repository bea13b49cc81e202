"""What is tested as the oldest versions are those that pyproject.toml admits."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def bounds(lines: list[str], relation: str) -> dict[str, str]:
    """Version by package, 3 for 3.0; of lines for every Python."""
    pattern = re.compile(rf"([\w-]+){relation}([\w.]+)")
    found = [pattern.match(line) for line in lines if "python_version" not in line]
    return {m[1]: re.sub(r"(\.0)+$", "", m[2]) for m in found if m}


def test_lower_bounds_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [project["optional-dependencies"][n] for n in ("datasets", "results", "demo", "test")]
    admitted = bounds(sum(extras, project["dependencies"]), ">=")
    assert len(admitted) > 10
    assert bounds((ROOT / ".ci/lower-bounds.txt").read_text().splitlines(), "==") == admitted
