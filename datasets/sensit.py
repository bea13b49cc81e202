"""SensIT Vehicle, acoustic part, in LIBSVM's scaled version."""

import numpy as np
from numpy.typing import DTypeLike

from datasets._fetch import read, registered
from datasets._prepare import parse_svmlight
from datasets._types import Dataset

NUM_FEATURES = 50


def sensit_acoustic(dtype: DTypeLike = np.float32) -> Dataset:
    """Loads SensIT Vehicle (acoustic), which predicts the vehicle that passes a sensor.

    The official split has N = 78823 training and 19705 test examples with D = 50 features. No hash
    of the two files has been published, so the numbers of rows, features and classes are checked.

    Args:
      dtype: dtype of the features.

    Returns:
      Features, `[78823, 50]` and `[19705, 50]`, as LIBSVM scaled them (without a unit). Labels 0,
      1, 2 (LIBSVM's 1, 2, 3).

    Raises:
      ValueError: a file is damaged, or does not have the rows, features and classes above.
      FileNotFoundError: a file is not on this machine and cannot be downloaded.
      ImportError: a package of the `test` extra is missing.

    References:
      M. Duarte and Y. H. Hu. Vehicle classification in distributed sensor networks. Journal of
      Parallel and Distributed Computing, 2004. As scaled for LIBSVM,
      https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html. Licence: none stated.
    """
    files = [("acoustic_scale.bz2", 78823), ("acoustic_scale.t.bz2", 19705)]
    train, test = (parse_sensit(read(registered(name)), name, n, dtype) for name, n in files)
    return Dataset(*train, *test)


def parse_sensit(
    content: bytes, name: str, rows: int, dtype: DTypeLike
) -> tuple[np.ndarray, np.ndarray]:
    """Parses one file, called `name` in errors, into features, `[rows, 50]`, and labels 0 to 2.

    Raises:
      ValueError: the file does not have `rows` rows, 50 features and the labels 1, 2, 3.
    """
    x, y = parse_svmlight(content, NUM_FEATURES, dtype)
    found = x.shape[0], np.flatnonzero(x.any(axis=0)).size, np.unique(y).tolist()
    if found != (rows, NUM_FEATURES, [1, 2, 3]):
        raise ValueError(
            f"{name} must have {rows} rows, {NUM_FEATURES} features and the labels [1, 2, 3]. "
            f"Received: {found[0]} rows, {found[1]} features and the labels {found[2]}. "
            "The file is not the known one. Delete it and run again."
        )
    return x, y - 1
