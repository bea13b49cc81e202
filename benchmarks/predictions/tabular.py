"""The data of the comparison of ensembles: tables, small images and made-up functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

import datasets
from benchmarks.predictions import networks

VALIDATION = 0.15  # of the rows that are not test data
ROWS = 4000  # of stored data, of which half are test data


class Table(NamedTuple):
    """Rows of a table, before they are split.

    Attributes:
      x: inputs, `[rows, d]`.
      y: numbers of classes, or targets of a regression, `[rows]`.
      num_classes: 0 for a regression.
      is_scaled: whether inputs have one scale already, such as pixels.
      test_share: the share of the rows that are test data.
      network: maps the symbolic input to what the last layer gets; None for dense layers.
    """

    x: np.ndarray
    y: np.ndarray
    num_classes: int
    is_scaled: bool = False
    test_share: float = 0.2
    network: Callable[[Any], Any] | None = None


class Loader(Protocol):
    """Loads a table of at most `rows` rows if it is stored, and of all rows otherwise."""

    def __call__(self, rows: int = ROWS) -> Table: ...


class Split(NamedTuple):
    """A split: rows to train with, of which the first are for early stopping, and test rows."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    num_validation: int


def split(table: Table, seed: int) -> Split:
    """Returns a random split, with inputs and regression targets in units of the training rows."""
    rows = len(table.x)
    order = np.random.default_rng([2000, seed]).permutation(rows)
    cut = round(table.test_share * rows)
    test, train = order[:cut], order[cut:]
    x, y = table.x, table.y
    if not table.is_scaled:
        x = x.astype(np.float64)
        x = (x - x[train].mean(axis=0)) / (x[train].std(axis=0) + 1e-8)
    if not table.num_classes:
        y = ((y - y[train].mean()) / y[train].std()).astype(np.float32)[:, np.newaxis]
    x = x.astype(np.float32)
    return Split(x[train], y[train], x[test], y[test], round(VALIDATION * len(train)))


def _sklearn(name: str, num_classes: int, **options: Any) -> Loader:
    def load(rows: int = ROWS) -> Table:
        del rows
        from sklearn import datasets as sources

        x, y = getattr(sources, f"load_{name}")(return_X_y=True)
        scale = options.get("divisor", 1.0)
        return Table(x / scale, y, num_classes, is_scaled="divisor" in options)

    return load


def _friedman(rows: int = ROWS) -> Table:
    del rows
    from sklearn.datasets import make_friedman1

    x, y = make_friedman1(1000, noise=1.0, random_state=0)
    return Table(x, y, 0)


def _moons(rows: int = ROWS) -> Table:
    del rows
    from sklearn.datasets import make_moons

    x, y = make_moons(500, noise=0.3, random_state=0)
    return Table(x, y, 2)


def _flipped(rows: int = ROWS) -> Table:
    del rows
    from sklearn.datasets import make_classification

    x, y = make_classification(
        1000, 20, n_informative=8, n_classes=5, flip_y=0.1, n_clusters_per_class=1, random_state=0
    )
    return Table(x, y, 5)


def _stored(name: str, num_classes: int, **options: Any) -> Loader:
    def load(rows: int = ROWS) -> Table:
        found = getattr(datasets, name)()
        x, y = np.concatenate([found[0], found[2]]), np.concatenate([found[1], found[3]])
        chosen = np.random.default_rng(0).permutation(len(x))[:rows]
        x, y = x[chosen].reshape(len(chosen), -1), np.ravel(y[chosen])
        if "network" in options:
            x = x.reshape(-1, 28, 28, 1)
        elif name == "mnist":
            x = x.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(len(x), -1)
        _, y = np.unique(y, return_inverse=True)
        return Table(x, y, num_classes, **options)

    return load


_IMAGES: dict[str, Any] = {"is_scaled": True, "test_share": 0.5}
TABLES: dict[str, Loader] = {
    "wine": _sklearn("wine", 3),
    "digits": _sklearn("digits", 10, divisor=16.0),
    "german": _stored("german", 2),
    "cancer": _sklearn("breast_cancer", 2),
    "diabetes": _sklearn("diabetes", 0),
    "friedman": _friedman,
    "iris": _sklearn("iris", 3),
    "moons": _moons,
    "flipped": _flipped,
    "pima": _stored("pima", 2),
    "letter": _stored("letter", 26, test_share=0.5),
    "a9a": _stored("a9a", 2, is_scaled=True, test_share=0.5),
    "connect4": _stored("connect4", 3, is_scaled=True, test_share=0.5),
    "mnist": _stored("mnist", 10, **_IMAGES),
    "convnet": _stored("mnist", 10, **_IMAGES, network=networks.convnet),
    "batchnorm": _stored("mnist", 10, **_IMAGES, network=networks.normalized_convnet),
}
