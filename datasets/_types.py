"""Return types of the loaders."""

from typing import NamedTuple

import numpy as np


class Dataset(NamedTuple):
    """Labelled data in a training and a test part.

    Attributes:
      x_train: features, `[train rows, features]`, float32 unless `dtype` is given.
      y_train: labels, `[train rows]`, int32, counted from 0.
      x_test: features, `[test rows, features]`, with the dtype of `x_train`.
      y_test: labels, `[test rows]`, int32.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


class Unlabelled(NamedTuple):
    """Data without labels, and the starting point that its authors ship with it.

    Attributes:
      x: observations, `[rows, features]`, float32 unless `dtype` is given.
      initial: initial parameter vector, `[parameters]`, with the dtype of `x`.
    """

    x: np.ndarray
    initial: np.ndarray
