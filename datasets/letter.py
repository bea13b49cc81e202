"""UCI Letter Recognition: capital letters from 16 numbers about their image."""

import io

import numpy as np
from numpy.typing import DTypeLike

from datasets._fetch import Source, read
from datasets._prepare import check_choice, random_split
from datasets._types import Dataset

DATA = Source(
    "letter-recognition.data",
    "https://archive.ics.uci.edu/ml/machine-learning-databases/letter-recognition/"
    "letter-recognition.data",
    "2b89f3602cf768d3c8355267d2f13f2417809e101fc2b5ceee10db19a60de6e2",
)
_OFFICIAL_TRAIN_ROWS = 16000


def letter(
    split: str = "official",
    test_fraction: float = 0.2,
    seed: int = 0,
    dtype: DTypeLike = np.float32,
) -> Dataset:
    """Load Letter Recognition.

    Source: Slate, https://archive.ics.uci.edu/dataset/59/letter+recognition. Licence: CC BY 4.0.

    Args:
        split: ``"official"`` for the one UCI's description suggests, the first 16000 rows for
            training and the last 4000 for the test, or ``"random"``.
        test_fraction: part of the rows that is held out when `split` is ``"random"``, in [0, 1).
        seed: seed of the random split.
        dtype: dtype of the features.

    Returns:
        Features of shape (rows, 16) in [-1, 1]: the file's integers v from 0 to 15 as
        v * 2 / 15 - 1, which is LIBSVM's scaling. Labels 0 for A to 25 for Z.

    Raises:
        ValueError: an argument is outside its range, or the file is damaged.
        FileNotFoundError: the file is not on this machine and cannot be downloaded.
        ImportError: a package of the ``test`` extra is missing.
    """
    check_choice("split", split, ("official", "random"))
    x, y = parse_letter(read(DATA), dtype)
    if split == "random":
        return random_split(x, y, test_fraction, seed)
    train = slice(_OFFICIAL_TRAIN_ROWS)
    test = slice(_OFFICIAL_TRAIN_ROWS, None)
    return Dataset(x[train], y[train], x[test], y[test])


def parse_letter(content: bytes, dtype: DTypeLike) -> tuple[np.ndarray, np.ndarray]:
    """Parse the file into features (rows, 16) in [-1, 1] and int32 labels 0..25.

    Raises:
        ValueError: a line is not a letter A to Z and 16 integers from 0 to 15.
    """
    table = np.loadtxt(
        io.BytesIO(content),
        delimiter=",",
        dtype=np.int32,
        converters={0: lambda symbol: ord(symbol) - ord("A")},
        encoding="ascii",
        ndmin=2,
    )
    y, x = table[:, 0], table[:, 1:]
    if x.shape[1] != 16 or x.min() < 0 or x.max() > 15 or y.min() < 0 or y.max() > 25:
        raise ValueError(f"{DATA.name}: a line is not a letter and 16 integers from 0 to 15")
    return (x * (2 / 15) - 1).astype(dtype), y.copy()
