"""Reading of LIBSVM's text format."""

import io

import numpy as np
from numpy.typing import DTypeLike

from datasets._optional import require


def parse_svmlight(
    content: bytes, num_features: int, dtype: DTypeLike
) -> tuple[np.ndarray, np.ndarray]:
    """Parse lines of ``label index:value ...`` with indices from 1.

    Args:
        content: the text.
        num_features: number of columns. It has to be told, because a file need not mention its
            last feature (a9a.t does not).
        dtype: dtype of the features.

    Returns:
        Dense features of shape (rows, num_features), and labels of shape (rows,), int32, as the
        file has them.

    Raises:
        ValueError: a line is malformed, or an index is larger than `num_features`.
    """
    load = require("sklearn.datasets").load_svmlight_file
    x, y = load(io.BytesIO(content), n_features=num_features, zero_based=False)
    return x.astype(dtype).toarray(), y.astype(np.int32)
