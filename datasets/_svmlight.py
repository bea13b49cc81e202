"""Parser of LIBSVM's text format."""

import io

import numpy as np
from numpy.typing import DTypeLike

from datasets._optional import require


def parse_svmlight(
    content: bytes, num_features: int, dtype: DTypeLike
) -> tuple[np.ndarray, np.ndarray]:
    """Parses lines of `label index:value ...` with indices from 1.

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
