"""What the loaders return."""

from typing import NamedTuple

import numpy as np


class Dataset(NamedTuple):
    """Labelled data in a training and a test part.

    Attributes:
        x_train: features of shape (train rows, features), float32 unless `dtype` said otherwise.
        y_train: labels of shape (train rows,), int32, counted from 0.
        x_test: features of shape (test rows, features), the dtype of `x_train`.
        y_test: labels of shape (test rows,), int32.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


class Unlabelled(NamedTuple):
    """Data without labels, and the starting point that its authors ship with it.

    Attributes:
        x: observations of shape (rows, features), float32 unless `dtype` said otherwise.
        initial: initial parameter vector of shape (parameters,), the dtype of `x`.
    """

    x: np.ndarray
    initial: np.ndarray
