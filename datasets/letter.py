"""UCI Letter Recognition: capital letters from 16 statistics of their image."""

import io

import numpy as np
from numpy.typing import DTypeLike

from datasets._fetch import read, registered
from datasets._prepare import check_choice, random_split
from datasets._types import Dataset

_FILE = "letter-recognition.data"
_OFFICIAL_TRAIN_ROWS = 16000


def letter(
    split: str = "official",
    test_fraction: float = 0.2,
    seed: int = 0,
    dtype: DTypeLike = np.float32,
) -> Dataset:
    """Loads Letter Recognition.

    The official split has N = 16000 training and 4000 test examples with D = 16 features.

    Args:
      split: `"official"` for the split that UCI's description suggests, the first 16000 rows for
        training and the last 4000 for the test; `"random"` for a random split of all rows;
        `"shang"` for the sizes that Shang et al. (2015, section 4.3) have, 5000 and 10500: the last
        5000 rows for the test, and 10500 of the other rows, chosen at random, for training.
      test_fraction: fraction of the rows that is held out when `split` is `"random"`, in [0, 1).
      seed: seed of the random split.
      dtype: dtype of the features.

    Returns:
      Features, `[rows, 16]`, in [-1, 1]. An integer v from 0 to 15 in the file becomes
      v * 2 / 15 - 1, which is LIBSVM's scaling. Labels 0 for A to 25 for Z.

    Raises:
      ValueError: an argument is outside its range, or the file is damaged.
      FileNotFoundError: the file is not on this machine and cannot be downloaded.
      ImportError: a package of the `test` extra is missing.

    References:
      D. Slate. Letter Recognition. UCI, 1991.
      https://archive.ics.uci.edu/dataset/59/letter+recognition. Licence: CC BY 4.0.

      X. Shang, Z. Zhu, B. Leimkuhler and A. J. Storkey. Covariance-controlled adaptive Langevin
      thermostat for large-scale Bayesian sampling. NeurIPS, 2015.
    """
    check_choice("split", split, ("official", "random", "shang"))
    x, y = parse_letter(read(registered(_FILE)), dtype)
    if split == "random":
        return random_split(x, y, test_fraction, seed)
    if split == "shang":
        others = random_split(x[:-5000], y[:-5000], 0.3, seed)
        return Dataset(others.x_train, others.y_train, x[-5000:], y[-5000:])
    rows = _OFFICIAL_TRAIN_ROWS
    return Dataset(x[:rows], y[:rows], x[rows:], y[rows:])


def parse_letter(content: bytes, dtype: DTypeLike) -> tuple[np.ndarray, np.ndarray]:
    """Parses the file into features, `[rows, 16]`, in [-1, 1] and int32 labels 0 to 25.

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
        raise ValueError(f"Each line of {_FILE} must be a letter and 16 integers from 0 to 15.")
    return (x * (2 / 15) - 1).astype(dtype), y.copy()
