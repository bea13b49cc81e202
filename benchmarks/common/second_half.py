"""Averages over the second half of the states so far, as a chain grows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def second_half_means(values: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the mean over states floor(k / 2) .. k - 1 after k = 1, 2, ... of the states.

    >>> [float(mean) for mean in second_half_means(np.array([1., 3., 5., 9.]))]
    [1.0, 3.0, 4.0, 7.0]
    """
    for end in range(1, len(values) + 1):
        yield values[end // 2 : end].mean(axis=0, dtype=np.float64)


def wrong_so_far(probabilities: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns which labels are wrong by the mean of the second half so far, `[states, rows]`.

    `probabilities` are `[states, rows, classes]`. A mean that is not finite gives NaN.
    """
    return np.array(
        [
            np.where(np.all(np.isfinite(mean)), mean.argmax(axis=-1) != y, np.nan)
            for mean in second_half_means(probabilities)
        ],
        np.float32,
    )
