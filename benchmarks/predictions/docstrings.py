"""A text classification that every machine has: docstrings of Python's standard library.

The task is to tell from the words of a function's or class's docstring to which package it belongs.
Sources are parsed, not imported. The texts depend on the version of Python, and those of NumPy,
which belong to no class, on its version.
"""

from __future__ import annotations

import ast
import re
import sysconfig
import zlib
from collections.abc import Iterator
from importlib import util
from pathlib import Path

import numpy as np

PACKAGES = ("asyncio", "email", "importlib", "logging", "multiprocessing", "xml")
VOCABULARY, LENGTH, LEAST = 4000, 40, 5  # words hashed to 1 .. 3999; words of a text at most, least


def texts(folder: Path) -> list[str]:
    """Returns the docstrings of a package without repetitions, in the order of its files."""
    found: dict[str, None] = {}
    for path in sorted(folder.rglob("*.py")):
        if "test" not in path.as_posix().removeprefix(folder.as_posix()):
            found |= dict.fromkeys(_docstrings(path))
    return [*found]


def _docstrings(path: Path) -> Iterator[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        text = ast.get_docstring(node) if isinstance(node, kinds) else None
        if text and len(_words(text)) >= LEAST:
            yield text


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def encode(found: list[str]) -> np.ndarray:
    """Returns the hashes of the first words of each text, `[texts, LENGTH]`, and 0 behind them."""
    encoded = np.zeros([len(found), LENGTH], np.int32)
    for row, text in zip(encoded, found, strict=True):
        words = _words(text)[:LENGTH]
        row[: len(words)] = [1 + zlib.crc32(w.encode()) % (VOCABULARY - 1) for w in words]
    return encoded


def docstrings() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns texts and classes of all packages in a random order, and NumPy's texts."""
    library = Path(sysconfig.get_paths()["stdlib"])
    by_package = [texts(library / name) for name in PACKAGES]
    x = np.concatenate([encode(found) for found in by_package])
    y = np.repeat(np.arange(len(PACKAGES)), [len(found) for found in by_package])
    order = np.random.default_rng(0).permutation(len(x))
    numpy = util.find_spec("numpy")
    assert numpy is not None and numpy.origin is not None
    others = encode(texts(Path(numpy.origin).parent))
    return x[order], y[order].astype(np.int32), others
