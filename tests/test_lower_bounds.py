"""The versions tested as the oldest are those that pyproject.toml admits."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]


def bounds(lines: list[str], operator: str) -> dict[str, Version]:
    """Returns the versions of the packages that every Python needs."""
    requirements = [Requirement(line) for line in lines]
    return {
        r.name: Version(s.version)
        for r in requirements
        if r.marker is None
        for s in r.specifier
        if s.operator == operator
    }


def test_lower_bounds_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [project["optional-dependencies"][n] for n in ("datasets", "results", "demo", "test")]
    admitted = bounds(sum(extras, project["dependencies"]), ">=")
    assert len(admitted) > 10
    lines = (ROOT / ".ci/lower-bounds.txt").read_text().splitlines()
    assert bounds([line for line in lines if not line.startswith("#")], "==") == admitted
