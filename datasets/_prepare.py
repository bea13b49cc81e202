"""Steps that several data sets share: options, LIBSVM's text format, split, scaling."""

import io

import numpy as np
from numpy.typing import DTypeLike

from datasets._optional import require
from datasets._types import Dataset


def check_choice(option: str, given: object, choices: tuple[object, ...]) -> None:
    """Raises a `ValueError` that names the choices, unless `given` is one of them."""
    if given not in choices:
        names = ", ".join(map(repr, choices))
        raise ValueError(f"{option} must be one of {names}. Received: {given!r}.")


def parse_svmlight(
    content: bytes, num_features: int, dtype: DTypeLike
) -> tuple[np.ndarray, np.ndarray]:
    """Parses LIBSVM's text format, lines of `label index:value ...` with indices from 1.

    Args:
      content: the text.
      num_features: number of columns. The parser cannot infer it, because a file may leave out its
        last feature (a9a.t does).
      dtype: dtype of the features.

    Returns:
      Dense features, `[rows, num_features]`, and the labels in the file, `[rows]`, int32.

    Raises:
      ValueError: a line is malformed, or an index is larger than `num_features`.
    """
    load = require("sklearn.datasets").load_svmlight_file
    x, y = load(io.BytesIO(content), n_features=num_features, zero_based=False)
    return x.astype(dtype).toarray(), y.astype(np.int32)


def random_split(x: np.ndarray, y: np.ndarray, test_fraction: float, seed: int) -> Dataset:
    """Shuffles the rows and holds out a test part.

    Args:
      x: features, `[rows, features]`.
      y: labels, `[rows]`.
      test_fraction: fraction of the rows that is held out, rounded down to whole rows, in [0, 1).
        With 0 the training part is all rows in the order of the file, and the test part is empty.
      seed: seed of the shuffle. The same seed gives the same split.

    Raises:
      ValueError: `test_fraction` is outside [0, 1).
    """
    if not 0 <= test_fraction < 1:
        raise ValueError(
            f"test_fraction must be at least 0 and less than 1. Received: {test_fraction!r}."
        )
    num_test = int(test_fraction * len(x))
    if not num_test:
        return Dataset(x, y, x[:0], y[:0])
    x_train, x_test, y_train, y_test = require("sklearn.model_selection").train_test_split(
        x, y, test_size=num_test, random_state=seed
    )
    return Dataset(x_train, y_train, x_test, y_test)


def standardise(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gives each column of `train` mean 0 and variance 1, and maps `test` in the same way.

    A column that is constant in `train` is centred but not divided.

    Args:
      train: array, `[train rows, features]`.
      test: array, `[test rows, features]`.

    Returns:
      The two arrays in float64.
    """
    mean = train.mean(axis=0, dtype=np.float64)
    scale = train.std(axis=0, dtype=np.float64)
    scale[np.ptp(train, axis=0) == 0] = 1.0
    return (train - mean) / scale, (test - mean) / scale


def add_constant(x: np.ndarray) -> np.ndarray:
    """Puts a column of ones in front of `x`, `[rows, features]`."""
    return np.concatenate([np.ones((len(x), 1), x.dtype), x], axis=1)
