"""Counts files, lines and imports of the package, and the arguments of its main functions.

python -m benchmarks.structure
python -m benchmarks.structure --root ../an-older-checkout
"""

from __future__ import annotations

import ast
import collections
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import command_line
from benchmarks.structure import imports

DOORS = ("sample", "sample_chain", "sample_shards", "SamplerCallback")
FORMATS = {"folder": "32s", "files": "d", "code": "d", "docstrings": "d"}
HERE = Path(__file__).resolve().parents[2]


def run(*, root: str = str(HERE)) -> Path:
    """Finds the package.

    Args:
      root: the checkout whose package is counted.
    """
    package = Path(root) / "tfp_sgmcmc"
    if not package.is_dir():
        raise SystemExit(f"--root must be a checkout with a folder tfp_sgmcmc. Received: {root}.")
    return package


def sizes(package: Path) -> list[tuple[str, int, int, int]]:
    """Returns folder, files, lines of code and lines of docstrings, with a last row for all."""
    rows: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0, 0])
    for path in sorted(package.rglob("*.py")):
        code, docstrings = imports.count_lines(path)
        for name in (str(path.parent.relative_to(package)), "all"):
            rows[name] = [a + b for a, b in zip(rows[name], (1, code, docstrings), strict=True)]
    names = [*sorted(rows.keys() - {"all"}), "all"]
    return [(name, rows[name][0], rows[name][1], rows[name][2]) for name in names]


def door_arguments(package: Path) -> dict[str, int]:
    """Returns the number of arguments of each main function, or of a class' constructor."""
    found = {}
    for path in imports.modules(package):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if getattr(node, "name", None) not in DOORS:
                continue
            made = [n for n in getattr(node, "body", []) if getattr(n, "name", "") == "__init__"]
            function = made[0] if isinstance(node, ast.ClassDef) and made else node
            if isinstance(function, ast.FunctionDef):
                every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
                found[getattr(node, "name", "")] = sum(argument.arg != "self" for argument in every)
    return found


def repeated_names(package: Path) -> Sequence[str]:
    """Returns names of several modules, except `base`, which means the same in each folder."""
    names = collections.Counter(path.stem for path in imports.modules(package))
    return [name for name, count in names.items() if count > 1 and name != "base"]


def show(package: Path) -> None:
    """Prints the table and the counts."""
    rows = sizes(package)
    command_line.print_table(FORMATS, rows)
    arrows = imports.arrows(package)
    print(f"largest folder        {max(rows[:-1], key=lambda row: row[1])[:2]}")
    print(f"arrows of folders     {sum(map(len, arrows.values()))}")
    print(f"a circle of folders   {imports.circle(package) or 'none'}")
    print(f"modules of one name   {repeated_names(package) or 'none'}")
    print(f"arguments of doors    {door_arguments(package)}")


if __name__ == "__main__":
    command_line.main(__doc__, run, show)
