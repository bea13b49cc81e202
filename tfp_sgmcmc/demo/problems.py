"""Data sets as problems: features, classes, and a question with the answer yes or no."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Problem(NamedTuple):
    """A data set, ready for both parts of the demonstration."""

    question: str  # the question that the logistic regression answers
    x_train: np.ndarray  # features of the training part, standardised, [N, D], `float32`
    y_train: np.ndarray  # classes of the training part, [N], `int32`
    x_test: np.ndarray  # features of the test part, standardised by the training part
    y_test: np.ndarray  # classes of the test part
    is_yes: np.ndarray  # whether the answer to `question` is yes, for each class, [num_classes]


class Question(NamedTuple):
    """The question of part 1 about a data set; `is_yes` maps classes to answers."""

    text: str
    num_classes: int
    is_yes: Callable[[np.ndarray], np.ndarray]


QUESTIONS = {
    "digits": Question("is the digit odd?", 10, lambda y: y % 2 == 1),
    "mnist": Question("is the digit odd?", 10, lambda y: y % 2 == 1),
    "mnist_7v9": Question("is it a seven, not a nine?", 2, lambda y: y == 1),
    "a9a": Question("is the income above 50,000 dollars?", 2, lambda y: y == 1),
    "connect4": Question("does the first player win?", 3, lambda y: y == 0),
    "letter": Question("is the letter one of A to M?", 26, lambda y: y < 13),
    "kddcup99": Question("is the connection an attack?", 23, lambda y: y != 11),  # 11: normal
    "sensit_acoustic": Question("is the vehicle of class 3?", 3, lambda y: y == 2),
    "german": Question("is the credit good?", 2, lambda y: y == 1),
    "pima": Question("has the patient diabetes?", 2, lambda y: y == 1),
}


def load(name: str) -> Problem:
    """Loads one of `QUESTIONS` without columns that are constant in the training part.

    Raises:
      ImportError: the repository's `datasets` folder or a package that it needs is missing.
      FileNotFoundError: the file is not on this machine and cannot be downloaded.
      ValueError: the file is damaged.
    """
    x_train, y_train, x_test, y_test = _digits() if name == "digits" else _loader(name)()
    varies = np.ptp(x_train, axis=0) > 0
    x_train, x_test = x_train[:, varies], x_test[:, varies]
    mean = x_train.mean(axis=0, dtype=np.float64)
    scale = np.maximum(x_train.std(axis=0, dtype=np.float64), np.ptp(x_train, axis=0) / 10)
    question = QUESTIONS[name]
    return Problem(
        question.text,
        ((x_train - mean) / scale).astype(np.float32),
        y_train.astype(np.int32),
        ((x_test - mean) / scale).astype(np.float32),
        y_test.astype(np.int32),
        question.is_yes(np.arange(question.num_classes)),
    )


def _digits() -> Any:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.2, random_state=0)
    return x_train, y_train, x_test, y_test


def _loader(name: str) -> Callable[[], tuple[np.ndarray, ...]]:
    try:
        # Another package may also be called `datasets`, and lacks this loader.
        return getattr(importlib.import_module("datasets"), name)
    except (ImportError, AttributeError):
        raise ImportError(
            "These data need the loaders in the folder `datasets` of the repository, which are "
            "not in the installed package. Run from the root of a checkout."
        ) from None
