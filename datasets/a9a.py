"""a9a: UCI Adult with binary features, in LIBSVM's coding."""

import numpy as np
from numpy.typing import DTypeLike

from datasets._fetch import Source, read
from datasets._prepare import check_choice, random_split
from datasets._svmlight import parse_svmlight
from datasets._types import Dataset

NUM_FEATURES = 123
_URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
TRAIN = Source(
    "a9a", _URL + "a9a", "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906"
)
TEST = Source(
    "a9a.t", _URL + "a9a.t", "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9"
)


def a9a(
    split: str = "official",
    test_fraction: float = 0.2,
    seed: int = 0,
    dtype: DTypeLike = np.float32,
) -> Dataset:
    """Load a9a: does a person earn more than 50 000 dollars a year?

    Source: https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html#a9a. Licence: the
    underlying UCI Adult data are CC BY 4.0; none is stated for the LIBSVM coding.

    Args:
        split: ``"official"`` for the files a9a (32561 rows) and a9a.t (16281 rows), ``"random"``
            for a random split of a9a alone, as Welling & Teh (2011, section 5.2) did with 80 %
            for training.
        test_fraction: part of the rows that is held out when `split` is ``"random"``, in [0, 1).
        seed: seed of the random split.
        dtype: dtype of the features.

    Returns:
        Features of shape (rows, 123), each 0 or 1, without a constant column; labels 1 (more
        than 50 000 dollars, LIBSVM's +1; 24.1 % of a9a) and 0 (LIBSVM's -1).

    Raises:
        ValueError: an argument is outside its range, or a file is damaged.
        FileNotFoundError: a file is not on this machine and cannot be downloaded.
        ImportError: a package of the ``test`` extra is missing.
    """
    check_choice("split", split, ("official", "random"))
    x, y = parse_a9a(read(TRAIN), dtype)
    if split == "random":
        return random_split(x, y, test_fraction, seed)
    return Dataset(x, y, *parse_a9a(read(TEST), dtype))


def parse_a9a(content: bytes, dtype: DTypeLike) -> tuple[np.ndarray, np.ndarray]:
    """Parse one of the two files into features (rows, 123) and int32 labels in {0, 1}."""
    x, y = parse_svmlight(content, NUM_FEATURES, dtype)
    return x, (y > 0).astype(np.int32)
