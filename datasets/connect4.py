"""UCI Connect-4: the value of the game for the first player after eight plies."""

import numpy as np
from numpy.typing import DTypeLike

from datasets._fetch import read, registered
from datasets._prepare import random_split
from datasets._types import Dataset

SYMBOLS = b"box"
OUTCOMES = (b"win", b"loss", b"draw")
_FILE = "connect-4.data"
_SQUARES = 42


def connect4(test_fraction: float = 0.2, seed: int = 0, dtype: DTypeLike = np.float32) -> Dataset:
    """Loads Connect-4, the positions after eight plies in which neither player has won.

    There are N = 67557 examples with D = 126 features, and no official split.

    Args:
      test_fraction: fraction of the rows that is held out, in [0, 1).
      seed: seed of the random split.
      dtype: dtype of the features.

    Returns:
      Features, `[rows, 126]`, each 0 or 1. Each of the 42 squares a1, a2, ..., a6, b1, ..., g6 has
      three columns, in the order blank (b), second player (o), first player (x). Labels: 0 if the
      first player wins (44473 rows), 1 if the first player loses (16635), 2 for a draw (6449).

    Raises:
      ValueError: `test_fraction` is outside [0, 1), or the file is damaged.
      FileNotFoundError: the file is not on this machine and cannot be downloaded.
      ImportError: a package of the `test` extra is missing.

    References:
      J. Tromp. Connect-4. UCI, 1995. https://archive.ics.uci.edu/dataset/26/connect+4. Licence:
      CC BY 4.0.
    """
    x, y = parse_connect4(read(registered(_FILE)), dtype)
    return random_split(x, y, test_fraction, seed)


def parse_connect4(content: bytes, dtype: DTypeLike) -> tuple[np.ndarray, np.ndarray]:
    """Parses the file into features, `[rows, 126]`, and int32 labels 0 to 2.

    Raises:
      ValueError: a line is not 42 symbols b, o or x and an outcome, separated by commas.
    """
    lines = content.split()
    symbols = np.frombuffer(b"".join(line[: 2 * _SQUARES : 2] for line in lines), np.uint8)
    outcomes = np.array([line[2 * _SQUARES :] for line in lines])
    codes = np.frombuffer(SYMBOLS, np.uint8)
    if (
        symbols.size != len(lines) * _SQUARES
        or not np.isin(outcomes, OUTCOMES).all()
        or not np.isin(symbols, codes).all()
    ):
        raise ValueError(f"Each line of {_FILE} must be {_SQUARES} of b, o, x and an outcome.")
    x = (symbols[:, None] == codes).astype(dtype).reshape(len(lines), 3 * _SQUARES)
    y = np.select([outcomes == outcome for outcome in OUTCOMES], range(3)).astype(np.int32)
    return x, y
