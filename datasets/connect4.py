"""UCI Connect-4: the game's value for the first player after eight plies."""

import numpy as np
from numpy.typing import DTypeLike

from datasets._fetch import Source, read
from datasets._prepare import random_split
from datasets._types import Dataset

SYMBOLS = b"box"
OUTCOMES = (b"win", b"loss", b"draw")
_SQUARES = 42
# The archive holds the file as `connect-4.data.Z`. The hash is that of the extracted content:
# the archive is made by the site and its own hash is not published.
DATA = Source(
    "connect-4.data",
    "https://archive.ics.uci.edu/static/public/26/connect+4.zip",
    "063152e6eadbb424c7ef4645df76e493a43812edd9c992400983da4fa54f8cba",
)


def connect4(test_fraction: float = 0.2, seed: int = 0, dtype: DTypeLike = np.float32) -> Dataset:
    """Load Connect-4: all positions after eight plies where neither player has won.

    Source: Tromp, https://archive.ics.uci.edu/dataset/26/connect+4. Licence: CC BY 4.0.

    Args:
        test_fraction: part of the rows that is held out, in [0, 1). The file has no official
            split.
        seed: seed of the random split.
        dtype: dtype of the features.

    Returns:
        Features of shape (rows, 126) from 67557 rows in all, each 0 or 1: for each of the 42
        squares a1, a2, ..., a6, b1, ..., g6 three columns, in the order blank (b), second player
        (o), first player (x). Labels: 0 the first player wins (44473 rows), 1 loses (16635), 2
        draws (6449).

    Raises:
        ValueError: `test_fraction` is outside [0, 1), or the file is damaged.
        FileNotFoundError: the file is not on this machine and cannot be downloaded.
        ImportError: a package of the ``test`` extra is missing.
    """
    x, y = parse_connect4(read(DATA), dtype)
    return random_split(x, y, test_fraction, seed)


def parse_connect4(content: bytes, dtype: DTypeLike) -> tuple[np.ndarray, np.ndarray]:
    """Parse the file into features (rows, 126) and int32 labels 0..2.

    Raises:
        ValueError: a line is not 42 symbols of b, o, x and an outcome, separated by commas.
    """
    lines = content.split()
    symbols = np.frombuffer(b"".join(line[: 2 * _SQUARES : 2] for line in lines), np.uint8)
    outcomes = np.array([line[2 * _SQUARES :] for line in lines])
    codes = np.frombuffer(SYMBOLS, np.uint8)
    known = np.isin(outcomes, OUTCOMES)
    if (
        symbols.size != len(lines) * _SQUARES
        or not known.all()
        or not np.isin(symbols, codes).all()
    ):
        raise ValueError(f"{DATA.name}: a line is not {_SQUARES} of b, o, x and an outcome")
    x = (symbols[:, None] == codes).astype(dtype).reshape(len(lines), 3 * _SQUARES)
    y = np.select([outcomes == outcome for outcome in OUTCOMES], range(3)).astype(np.int32)
    return x, y
