"""Imports between the files of a package, read from its source without running it."""

from __future__ import annotations

import ast
import functools
import graphlib
from pathlib import Path


def modules(package: Path) -> list[Path]:
    """Returns the files of a package without its `__init__.py` files, which re-export names."""
    return sorted(path for path in package.rglob("*.py") if path.stem != "__init__")


def folder(package: Path, path: Path) -> str:
    """Returns the dotted folder of a file, or the name of a module at the top."""
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1]) or parts[0]


def dotted(package: Path, path: Path) -> str:
    """Returns the name by which a file is imported."""
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """Returns the dotted names of all that a file imports, anywhere in the file.

    Raises:
      ValueError: the file has a relative import.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"Imports must be absolute. Received: a relative one in {path}.")
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


@functools.cache
def re_exports(package: Path) -> dict[str, str]:
    """Returns the name behind each name that an `__init__` hands on, such as `tfp_sgmcmc.SGLD`."""
    homes = {}
    for path in [package / "__init__.pyi", *package.rglob("__init__.py")]:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom):
                here = dotted(package, path)
                homes |= {
                    f"{here}.{a.asname or a.name}": f"{node.module}.{a.name}" for a in node.names
                }
    return {name: home for name, home in homes.items() if name != home}


@functools.cache
def _folders(package: Path) -> dict[str, str]:
    return {dotted(package, path): folder(package, path) for path in modules(package)}


def folders_imported(package: Path, path: Path) -> set[str]:
    """Returns the folders of the files that define the names which `path` imports."""
    homes, folders, found = re_exports(package), _folders(package), set()
    for name in imported(path):
        while name in homes:
            name = homes[name]
        while name and name not in folders:
            name = name.rpartition(".")[0]
        found |= {folders[name]} if name else set()
    return found


def arrows(package: Path) -> dict[str, set[str]]:
    """Returns, for each folder, the other folders that its files import from."""
    found: dict[str, set[str]] = {}
    for path in modules(package):
        here = folder(package, path)
        found.setdefault(here, set()).update(folders_imported(package, path) - {here})
    return found


def circle(package: Path) -> list[str]:
    """Returns folders that import each other in a circle, or an empty list."""
    try:
        graphlib.TopologicalSorter(arrows(package)).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


@functools.cache
def count_lines(path: Path) -> tuple[int, int]:
    """Returns the numbers of lines of code and of docstrings, without blank lines and comments."""
    text = path.read_text(encoding="utf-8")
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        is_scope = isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        )
        if is_scope and ast.get_docstring(node) is not None:
            documented |= {*range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)}
    written = [number for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    lines = text.splitlines()
    code = [n for n in written if n not in documented and not lines[n - 1].strip().startswith("#")]
    return len(code), sum(number in documented for number in written)
