"""a9a: UCI Adult with binary features, in LIBSVM's encoding."""

import numpy as np
from numpy.typing import DTypeLike

from datasets._fetch import read, registered
from datasets._prepare import check_choice, parse_svmlight, random_split
from datasets._types import Dataset

NUM_FEATURES = 123


def a9a(
    split: str = "official",
    test_fraction: float = 0.2,
    seed: int = 0,
    dtype: DTypeLike = np.float32,
) -> Dataset:
    """Loads a9a, which predicts whether a person earns more than 50 000 dollars a year.

    The official split has N = 32561 training and 16281 test examples with D = 123 features.

    Args:
      split: `"official"` for the files a9a (training) and a9a.t (test), `"random"` for a random
        split of a9a alone. Welling & Teh (2011, section 5.2) split a9a at random, with 80 % for
        training.
      test_fraction: fraction of the rows that is held out when `split` is `"random"`, in [0, 1).
      seed: seed of the random split.
      dtype: dtype of the features.

    Returns:
      Features, `[rows, 123]`, each 0 or 1, without a constant column. Labels 1 (more than 50 000
      dollars, LIBSVM's +1; 24.1 % of a9a) and 0 (LIBSVM's -1).

    Raises:
      ValueError: an argument is outside its range, or a file is damaged.
      FileNotFoundError: a file is not on this machine and cannot be downloaded.
      ImportError: a package of the `test` extra is missing.

    References:
      https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html#a9a. Licence: CC BY 4.0
      for the underlying UCI Adult data, none stated for the LIBSVM encoding.
    """
    check_choice("split", split, ("official", "random"))
    x, y = parse_a9a(read(registered("a9a")), dtype)
    if split == "random":
        return random_split(x, y, test_fraction, seed)
    return Dataset(x, y, *parse_a9a(read(registered("a9a.t")), dtype))


def parse_a9a(content: bytes, dtype: DTypeLike) -> tuple[np.ndarray, np.ndarray]:
    """Parses one of the two files into features, `[rows, 123]`, and int32 labels 0 and 1."""
    x, y = parse_svmlight(content, NUM_FEATURES, dtype)
    return x, (y > 0).astype(np.int32)
