"""MNIST with a validation part, on which the benchmarks choose their settings."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import datasets

NUM_VALIDATION = 10_000


class Digits(NamedTuple):
    """Images, `[rows, 784]` or `[rows, 28, 28]`, and digits of the three parts."""

    x: np.ndarray
    y: np.ndarray
    x_valid: np.ndarray
    y_valid: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def digits(flatten: bool = True) -> Digits:
    """Returns MNIST; 10,000 random rows of its training part are the validation part."""
    x, y, x_test, y_test = datasets.mnist(flatten)
    order = np.random.default_rng(0).permutation(len(x))
    train, valid = np.split(order, [len(x) - NUM_VALIDATION])
    return Digits(x[train], y[train], x[valid], y[valid], x_test, y_test)
