"""The data of the comparison of ensembles: tables, small images and made-up functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

import datasets
from benchmarks.predictions import networks
from benchmarks.predictions.docstrings import docstrings

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
      side: of the square images that the rows are; 0 if they are none.
      network: maps the symbolic input to what the last layer gets; None for dense layers.
    """

    x: np.ndarray
    y: np.ndarray
    num_classes: int
    is_scaled: bool = False
    test_share: float = 0.2
    side: int = 0
    network: Callable[[Any], Any] | None = None


class Loader(Protocol):
    """Loads a table of at most `rows` rows if it is stored, and of all rows otherwise."""

    def __call__(self, rows: int = ROWS) -> Table: ...


class Split(NamedTuple):
    """A split: rows to train with, of which the first are for early stopping, and test rows.

    `x_out` are inputs of another law, as many as for tests: images turned by 90 degrees, or rows
    each of whose columns is from another test row.
    """

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    num_validation: int
    x_out: np.ndarray


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
    x_test, num_validation = x[test], round(VALIDATION * len(train))
    if table.side:
        images = x_test.reshape(-1, table.side, table.side)
        x_out = np.rot90(images, axes=(1, 2)).reshape(x_test.shape)
    else:
        x_out = np.random.default_rng([2000, seed]).permuted(x_test, axis=0)
    return Split(x[train], y[train], x_test, y[test], num_validation, x_out)


def _sklearn(name: str, num_classes: int, **options: Any) -> Loader:
    def load(rows: int = ROWS) -> Table:
        del rows
        from sklearn import datasets as sources

        x, y = getattr(sources, f"load_{name}")(return_X_y=True)
        scale, given = (
            options.get("divisor", 1.0),
            {k: options[k] for k in options if k != "divisor"},
        )
        return Table(x / scale, y, num_classes, is_scaled="divisor" in options, **given)

    return load


def _made(name: str, num_classes: int, **options: Any) -> Loader:
    def load(rows: int = ROWS) -> Table:
        del rows
        from sklearn import datasets as sources

        x, y = getattr(sources, f"make_{name}")(random_state=0, **options)
        return Table(x, y, num_classes)

    return load


def _waveforms(rows: int = ROWS) -> Table:
    """Series of 21 points, sums of two of three waves with noise, which tell the class.

    L. Breiman, J. Friedman, R. Olshen and C. Stone. Classification and regression trees. 1984.
    """
    del rows
    rng, places = np.random.default_rng(0), np.arange(1, 22)
    waves = np.maximum(6 - np.abs(places - np.array([[11], [15], [7]])), 0)
    y = rng.integers(3, size=1000)
    share = rng.uniform(size=[1000, 1])
    pair = np.array([[0, 1], [0, 2], [1, 2]])[y]
    x = share * waves[pair[:, 0]] + (1 - share) * waves[pair[:, 1]] + rng.normal(size=[1000, 21])
    return Table(x, y, 3)


def _parity(rows: int = ROWS) -> Table:
    table = TABLES["digits"](rows)
    return table._replace(y=table.y % 2, num_classes=2)


def _heteroscedastic(rows: int = ROWS) -> Table:
    del rows
    rng = np.random.default_rng(0)
    x = rng.normal(size=[800, 5])
    scale = np.exp(x[:, 2] - 1)
    return Table(x, np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] + scale * rng.normal(size=800), 0)


def _connections(rows: int = ROWS) -> Table:
    """KDD Cup 1999, without the classes that have fewer than 20 of the rows."""
    x, y = _sample(datasets.kddcup99(), rows)
    counts = np.bincount(y)
    common = counts[y] >= 20
    return Table(x[common], np.unique(y[common], return_inverse=True)[1], int(sum(counts >= 20)),
                 is_scaled=True, test_share=0.5)  # fmt: skip


def _docstrings(rows: int = ROWS) -> Table:
    """Presence of 300 words in docstrings, and the packages that they are from."""
    del rows
    words, y, _ = docstrings()
    counts = np.bincount(words[words > 0])
    common = np.argsort(-counts, kind="stable")[:300]
    return Table((words[:, :, np.newaxis] == common).any(axis=1), y, 6, is_scaled=True)


def _words(network: Callable[[Any], Any]) -> Loader:
    def load(rows: int = ROWS) -> Table:
        del rows
        words, y, _ = docstrings()
        return Table(words, y, 6, is_scaled=True, network=network)

    return load


def _stored(name: str, num_classes: int, **options: Any) -> Loader:
    def load(rows: int = ROWS) -> Table:
        x, y = _sample(getattr(datasets, name)(), rows)
        if "network" in options:
            x = x.reshape(-1, 28, 28, 1)
        elif name == "mnist":
            x = x.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(len(x), -1)
        _, y = np.unique(y, return_inverse=True)
        return Table(x, y, num_classes, **options)

    return load


def _sample(found: Any, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns at most so many rows of training and test data, chosen at random."""
    x, y = np.concatenate([found[0], found[2]]), np.concatenate([found[1], found[3]])
    chosen = np.random.default_rng(0).permutation(len(x))[:rows]
    return x[chosen].reshape(len(chosen), -1), np.ravel(y[chosen])


# As many test images of all as in MNIST itself.
_IMAGES: dict[str, Any] = {"is_scaled": True, "test_share": 1 / 7}
TABLES: dict[str, Loader] = {
    "wine": _sklearn("wine", 3),
    "digits": _sklearn("digits", 10, divisor=16.0, side=8),
    "german": _stored("german", 2),
    "cancer": _sklearn("breast_cancer", 2),
    "diabetes": _sklearn("diabetes", 0),
    "friedman": _made("friedman1", 0, n_samples=1000, noise=1.0),
    "iris": _sklearn("iris", 3),
    "moons": _made("moons", 2, n_samples=500, noise=0.3),
    "flipped": _made(
        "classification",
        5,
        n_samples=1000,
        n_informative=8,
        n_classes=5,
        flip_y=0.1,
        n_clusters_per_class=1,
    ),
    "parity": _parity,
    "friedman2": _made("friedman2", 0, n_samples=500, noise=100.0),
    "heteroscedastic": _heteroscedastic,
    "swissroll": _made("swiss_roll", 0, n_samples=600, noise=0.5),
    "circles": _made("circles", 2, n_samples=400, noise=0.2, factor=0.5),
    "quantiles": _made("gaussian_quantiles", 4, n_samples=600, n_features=10, n_classes=4),
    "wide": _made(
        "classification",
        3,
        n_samples=400,
        n_features=200,
        n_informative=10,
        n_redundant=0,
        n_classes=3,
        class_sep=1.5,
    ),
    "rare": _made("classification", 2, n_samples=1000, weights=[0.95], flip_y=0.02),
    "waveforms": _waveforms,
    "docstrings": _docstrings,
    "transformer": _words(networks.transformer),
    "embeddings": _words(networks.bag_of_embeddings),
    "kdd": _connections,
    "pima": _stored("pima", 2),
    "letter": _stored("letter", 26, test_share=0.5),
    "a9a": _stored("a9a", 2, is_scaled=True, test_share=0.5),
    "connect4": _stored("connect4", 3, is_scaled=True, test_share=0.5),
    "mnist": _stored("mnist", 10, is_scaled=True, test_share=0.5, side=14),
    "convnet": _stored("mnist", 10, **_IMAGES, network=networks.convnet),
    "batchnorm": _stored("mnist", 10, **_IMAGES, network=networks.normalized_convnet),
    "gru": _sklearn("digits", 10, divisor=16.0, network=networks.recurrent),
    "layernorm": _sklearn("digits", 10, divisor=16.0, network=networks.layer_normalized),
    "dropout": _sklearn("digits", 10, divisor=16.0, network=networks.dropout),
}
#: Those that have a network.
NETWORKS = ("convnet", "batchnorm", "embeddings", "transformer", "gru", "layernorm", "dropout")
