"""The small data sets that come with the code of Matthews & Weare (2018), NOGIN."""

import io

import numpy as np
from numpy.typing import DTypeLike

from datasets._fetch import Source, read
from datasets._optional import require
from datasets._prepare import add_constant, random_split, standardise
from datasets._types import Dataset, Unlabelled


def nogin_source(path: str, sha256: str) -> Source:
    """Describe a file below `data/` of https://github.com/c-matthews/nogin."""
    url = "https://raw.githubusercontent.com/c-matthews/nogin/master/data/" + path
    return Source("nogin/" + path, url, sha256)


GERMAN = nogin_source(
    "blr/german.mat", "62c9204376add13eaedf4d3d5dbf2636137d39a4d31c3b3efd18cee0f55b59a6"
)
PIMA = nogin_source(
    "blr/pima.mat", "120a91cb53f00c49d00f618edc6a83fd95eb5f051918ae662b644012afe15874"
)
MEAN = nogin_source(
    "gmean/data.mat", "50ffd1217c44146f10197098f7ef38a785b4b852126201f42fc1a5f8d8bba23a"
)
MEAN_2D = nogin_source(
    "gmean/data2.mat", "458d596d9935a645379b8859a8f393b0a366912a9b203d1c08664ecbafc94814"
)
MIXTURE = nogin_source(
    "gmix/data.mat", "d719c1669bd238475320f24facfa8cd71bdc2a8fe207b894dd6721fd09d5466e"
)


def german(
    test_fraction: float = 0.2,
    seed: int = 0,
    intercept: bool = True,
    scale: bool = True,
    dtype: DTypeLike = np.float32,
) -> Dataset:
    """Load German credit (numeric version), for logistic regression.

    Source: https://github.com/c-matthews/nogin `data/blr/german.mat`, from UCI Statlog German
    Credit. Licence: none stated for the file; the UCI original is CC BY 4.0.

    NOGIN's own code uses all rows, standardised, with a constant in front: that is
    ``german(test_fraction=0)``.

    Args:
        test_fraction: part of the 1000 rows that is held out, in [0, 1). The file has no
            official split.
        seed: seed of the random split.
        intercept: whether to put a column of ones in front.
        scale: whether to standardise the features on the training part.
        dtype: dtype of the features.

    Returns:
        Features of shape (rows, 25), or (rows, 24) without `intercept`; labels 1 (good credit,
        700 rows) and 0 (bad, 300).

    Raises:
        ValueError: `test_fraction` is outside [0, 1), or the file is damaged.
        FileNotFoundError: the file is not on this machine and cannot be downloaded.
        ImportError: a package of the ``test`` extra is missing.
    """
    return _labelled(GERMAN, test_fraction, seed, intercept, scale, dtype)


def pima(
    test_fraction: float = 0.2,
    seed: int = 0,
    intercept: bool = True,
    scale: bool = True,
    dtype: DTypeLike = np.float32,
) -> Dataset:
    """Load Pima Indians diabetes, for logistic regression.

    Source: https://github.com/c-matthews/nogin `data/blr/pima.mat`. Licence: none stated.

    Arguments and exceptions are those of `german`, with 532 rows.

    Returns:
        Features of shape (rows, 8), or (rows, 7) without `intercept`; labels 1 (diabetes, 177
        rows) and 0 (355).
    """
    return _labelled(PIMA, test_fraction, seed, intercept, scale, dtype)


def gaussian_mean(dtype: DTypeLike = np.float32) -> Unlabelled:
    """Load 1000 draws of a Gaussian on the line, whose mean is to be inferred.

    Source: https://github.com/c-matthews/nogin `data/gmean/data.mat`, synthetic. Licence: none
    stated.

    Returns:
        `x` of shape (1000, 1), `initial` (the mean) of shape (1,).

    Raises:
        ValueError: the file is damaged.
        FileNotFoundError: the file is not on this machine and cannot be downloaded.
        ImportError: a package of the ``test`` extra is missing.
    """
    return unlabelled(MEAN, dtype)


def gaussian_mean_2d(dtype: DTypeLike = np.float32) -> Unlabelled:
    """Load 1000 draws of a Gaussian in the plane, whose mean is to be inferred.

    As `gaussian_mean`, from `data/gmean/data2.mat`.

    Returns:
        `x` of shape (1000, 2), `initial` (the mean) of shape (2,).
    """
    return unlabelled(MEAN_2D, dtype)


def gaussian_mixture(dtype: DTypeLike = np.float32) -> Unlabelled:
    """Load 1000 draws of a mixture of two Gaussians, whose centres are to be inferred.

    As `gaussian_mean`, from `data/gmix/data.mat`. NOGIN's model has unit variances and weights in
    the ratio 1 : 2.

    Returns:
        `x` of shape (1000, 1), `initial` (the two centres) of shape (2,).
    """
    return unlabelled(MIXTURE, dtype)


def unlabelled(source: Source, dtype: DTypeLike) -> Unlabelled:
    """Read a file of observations without labels."""
    arrays = parse_mat(read(source), source.name, ("X", "ic"))
    # In the files a column is an observation; here a row is.
    return Unlabelled(
        np.ascontiguousarray(arrays["X"].T, dtype=dtype), arrays["ic"].ravel().astype(dtype)
    )


def parse_mat(content: bytes, name: str, variables: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Parse a MATLAB file and return some of its variables.

    Raises:
        ValueError: the file, called `name` in the error, is not a MATLAB file or lacks a variable.
    """
    try:
        found = require("scipy.io").loadmat(io.BytesIO(content), variable_names=variables)
        return {variable: found[variable] for variable in variables}
    except (ValueError, NotImplementedError) as error:
        raise ValueError(f"{name} is not a MATLAB file that can be read ({error})") from None
    except KeyError as error:
        raise ValueError(f"{name} has no variable {error}") from None


def _labelled(
    source: Source,
    test_fraction: float,
    seed: int,
    intercept: bool,
    scale: bool,
    dtype: DTypeLike,
) -> Dataset:
    arrays = parse_mat(read(source), source.name, ("X", "t"))
    x, y = arrays["X"].T.astype(np.float64), arrays["t"].ravel().astype(np.int32)
    x_train, y_train, x_test, y_test = random_split(x, y, test_fraction, seed)
    if scale:
        x_train, x_test = standardise(x_train, x_test)
    if intercept:
        x_train, x_test = add_constant(x_train), add_constant(x_test)
    return Dataset(
        np.ascontiguousarray(x_train, dtype=dtype),
        y_train,
        np.ascontiguousarray(x_test, dtype=dtype),
        y_test,
    )
