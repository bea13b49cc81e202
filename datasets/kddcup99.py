"""KDD Cup 1999: network connections that are normal or an attack (the 10 % subset)."""

import io
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from datasets._fetch import read, registered
from datasets._prepare import check_choice, random_split, standardise
from datasets._types import Dataset

_NAMES = """
    back buffer_overflow ftp_write guess_passwd imap ipsweep land loadmodule multihop neptune
    nmap normal perl phf pod portsweep rootkit satan smurf spy teardrop warezclient warezmaster
"""
LABELS = tuple(f"{name}." for name in _NAMES.split())
_FILE = "kddcup.data_10_percent.gz"
_FEATURES = 41
_CATEGORICAL = (1, 2, 3)  # protocol_type, service, flag
_HEAVY_TAILED = (0, 4, 5)  # duration (s), src_bytes, dst_bytes
_NUM_OUTBOUND_CMDS = 16  # among the numeric features; 0 in every row


def kddcup99(
    binary: bool = False,
    test_fraction: float = 0.2,
    seed: int = 0,
    dtype: DTypeLike = np.float32,
    encoding: str = "one_hot",
) -> Dataset:
    """Loads the 10 % subset of KDD Cup 1999.

    There are N = 494021 examples with D = 118 features, and no official split. The random split is
    not stratified, and many rows are equal. The rarest classes have two to four rows, so one part
    may have none of them.

    Args:
      binary: False for the 23 classes, True for attack or not.
      test_fraction: fraction of the rows that is held out, in [0, 1).
      seed: seed of the random split.
      dtype: dtype of the features.
      encoding: `"one_hot"`, or `"integer"` for D = 40 features, as Ahn et al. (2012) have: the
        place of a value in alphabetical order is one numeric column, standardised as the others
        are, and num_outbound_cmds, which is 0 in every row, is left out.

    Returns:
      Features, `[rows, 118]`. The first 38 columns are the numeric features in the order of the
      file, standardised on the training part (two are constant and become 0). Before that,
      duration (in seconds), src_bytes and dst_bytes become log(1 + v), because their largest values
      are up to five orders of magnitude above the mean. The other 80 columns are 0 or 1, one for
      each value in alphabetical order of protocol_type (3), service (66) and flag (11). Labels 0 to
      22 in the alphabetical order of `datasets.kddcup99.LABELS`. With `binary`, 0 for normal (97278
      rows) and 1 for an attack (396743).

    Raises:
      ValueError: `test_fraction` is outside [0, 1), the encoding is unknown, or the file is
        damaged.
      FileNotFoundError: the file is not on this machine and cannot be downloaded.
      ImportError: a package of the `test` extra is missing.

    References:
      http://kdd.ics.uci.edu/databases/kddcup99/kddcup99.html (file from
      https://ndownloader.figshare.com/files/5976042). Licence: CC BY 4.0 (UCI).

      S. Ahn, A. Korattikara and M. Welling. Bayesian posterior sampling via stochastic gradient
      Fisher scoring. ICML, 2012.
    """
    check_choice("encoding", encoding, ("one_hot", "integer"))
    numeric, categorical, y = parse_kddcup99(read(registered(_FILE)))
    if binary:
        y = (y != LABELS.index("normal.")).astype(np.int32)
    if encoding == "integer":
        numeric, categorical = as_integers(numeric, categorical), categorical[:, :0]
    # Row numbers are split, so that the wide array is made only once and in its final dtype.
    rows = random_split(np.arange(len(y)), y, test_fraction, seed)
    train, test = standardise(numeric[rows.x_train], numeric[rows.x_test])
    return Dataset(
        _joined(train, categorical[rows.x_train], dtype),
        rows.y_train,
        _joined(test, categorical[rows.x_test], dtype),
        rows.y_test,
    )


def parse_kddcup99(content: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Parses the file.

    Returns:
      The numeric features, `[rows, 38]`, float64, with the logarithm of the heavy-tailed ones; the
      one-hot columns, `[rows, number of values that occur]`, bool; the int32 labels.

    Raises:
      ValueError: a line does not have 41 features of the right kind and a known label.
    """
    kinds = ["S16" if i in _CATEGORICAL else "f8" for i in range(_FEATURES)]
    names = [str(i) for i in range(_FEATURES)]
    dtype = np.dtype([*zip(names, kinds, strict=True), ("label", "S24")])
    # Any, because the type checker expects loadtxt to return floats and not records.
    table: Any = np.loadtxt(io.BytesIO(content), dtype, comments=None, delimiter=",", ndmin=1)
    numeric = np.stack(
        [
            np.log1p(table[name]) if i in _HEAVY_TAILED else table[name]
            for i, name in enumerate(names)
            if i not in _CATEGORICAL
        ],
        axis=1,
    )
    one_hot = [table[str(i)][:, None] == np.unique(table[str(i)]) for i in _CATEGORICAL]
    labels = np.array(LABELS, "S24")
    y = np.searchsorted(labels, table["label"]).clip(max=len(labels) - 1).astype(np.int32)
    if unknown := set(table["label"][labels[y] != table["label"]].tolist()):
        raise ValueError(f"Labels of {_FILE} must be in LABELS. Received: {sorted(unknown)}.")
    return numeric, np.concatenate(one_hot, axis=1), y


def as_integers(numeric: np.ndarray, categorical: np.ndarray) -> np.ndarray:
    """Returns the 40 columns of `encoding="integer"` from those of `parse_kddcup99`, unscaled.

    The one-hot columns of a feature are together, and their values in alphabetical order. The
    position of the column that is set in a row, counted over all features, is therefore the place
    in alphabetical order up to a constant, which the standardisation takes away.
    """
    places = np.nonzero(categorical)[1].reshape(-1, len(_CATEGORICAL))
    return np.concatenate([np.delete(numeric, _NUM_OUTBOUND_CMDS, axis=1), places], axis=1)


def _joined(numeric: np.ndarray, categorical: np.ndarray, dtype: DTypeLike) -> np.ndarray:
    return np.concatenate([numeric.astype(dtype), categorical.astype(dtype)], axis=1)
