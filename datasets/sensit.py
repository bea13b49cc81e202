"""SensIT Vehicle, acoustic part, in LIBSVM's scaled version."""

import numpy as np
from numpy.typing import DTypeLike

from datasets._fetch import Source, read
from datasets._svmlight import parse_svmlight
from datasets._types import Dataset

NUM_FEATURES = 50
_URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/vehicle/"
# No hash of these two files has been published and we have had no copy to take one from, so
# `parse_sensit` checks the number of rows, the classes and the features instead.
TRAIN = Source("acoustic_scale.bz2", _URL + "acoustic_scale.bz2", None)
TEST = Source("acoustic_scale.t.bz2", _URL + "acoustic_scale.t.bz2", None)


def sensit_acoustic(dtype: DTypeLike = np.float32) -> Dataset:
    """Load SensIT Vehicle (acoustic): which vehicle passes the sensor?

    Source: Duarte & Hu (2004), as scaled for LIBSVM,
    https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html. Licence: none stated.

    Args:
        dtype: dtype of the features.

    Returns:
        Features of shape (78823, 50) and (19705, 50), as LIBSVM scaled them (no unit); labels 0,
        1, 2 (LIBSVM's 1, 2, 3).

    Raises:
        ValueError: a file is damaged, or does not have the rows, features and classes above.
        FileNotFoundError: a file is not on this machine and cannot be downloaded.
        ImportError: a package of the ``test`` extra is missing.
    """
    x_train, y_train = parse_sensit(read(TRAIN), TRAIN.name, 78823, dtype)
    x_test, y_test = parse_sensit(read(TEST), TEST.name, 19705, dtype)
    return Dataset(x_train, y_train, x_test, y_test)


def parse_sensit(
    content: bytes, name: str, rows: int, dtype: DTypeLike
) -> tuple[np.ndarray, np.ndarray]:
    """Parse one file, called `name` in errors, into features (rows, 50) and int32 labels 0..2.

    Raises:
        ValueError: the file has not `rows` rows, 50 features and the labels 1, 2, 3.
    """
    x, y = parse_svmlight(content, NUM_FEATURES, dtype)
    found = x.shape[0], np.flatnonzero(x.any(axis=0)).size, np.unique(y).tolist()
    if found != (rows, NUM_FEATURES, [1, 2, 3]):
        raise ValueError(
            f"{name} has {found[0]} rows, {found[1]} features and the labels {found[2]}, expected "
            f"{rows}, {NUM_FEATURES} and [1, 2, 3]: it is not the known file; delete it and run "
            "again"
        )
    return x, y - 1
