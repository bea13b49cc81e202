"""Small data sets from the code of Matthews & Weare (2018), the paper on NOGIN."""

import io

import numpy as np
from numpy.typing import DTypeLike

from datasets._fetch import Source, read, registered
from datasets._optional import require
from datasets._prepare import add_constant, random_split, standardise
from datasets._types import Dataset, Unlabelled


def german(
    test_fraction: float = 0.2,
    seed: int = 0,
    intercept: bool = True,
    scale: bool = True,
    dtype: DTypeLike = np.float32,
) -> Dataset:
    """Loads German credit (numeric version), for logistic regression.

    There are N = 1000 examples with D = 24 features, and no official split. NOGIN's code uses all
    rows, standardised, with a constant in front, as `german(test_fraction=0)` does.

    Args:
      test_fraction: fraction of the rows that is held out, in [0, 1).
      seed: seed of the random split.
      intercept: whether to put a column of ones in front.
      scale: whether to standardise the features on the training part.
      dtype: dtype of the features.

    Returns:
      Features, `[rows, 25]`, or `[rows, 24]` without `intercept`. Labels 1 (good credit, 700 rows)
      and 0 (bad, 300).

    Raises:
      ValueError: `test_fraction` is outside [0, 1), or the file is damaged.
      FileNotFoundError: the file is not on this machine and cannot be downloaded.
      ImportError: a package of the `test` extra is missing.

    References:
      https://github.com/c-matthews/nogin, `data/blr/german.mat`, from UCI Statlog German Credit.
      Licence: none stated for the file, CC BY 4.0 for the UCI original.
    """
    return _labelled("german", test_fraction, seed, intercept, scale, dtype)


def pima(
    test_fraction: float = 0.2,
    seed: int = 0,
    intercept: bool = True,
    scale: bool = True,
    dtype: DTypeLike = np.float32,
) -> Dataset:
    """Loads Pima Indians diabetes, for logistic regression.

    There are N = 532 examples with D = 7 features, and no official split. The arguments and
    exceptions are the same as for `german`.

    Returns:
      Features, `[rows, 8]`, or `[rows, 7]` without `intercept`. Labels 1 (diabetes, 177 rows) and 0
      (355).

    References:
      https://github.com/c-matthews/nogin, `data/blr/pima.mat`. Licence: none stated.
    """
    return _labelled("pima", test_fraction, seed, intercept, scale, dtype)


def gaussian_mean(dtype: DTypeLike = np.float32) -> Unlabelled:
    """Loads N = 1000 draws from a Gaussian on the line, whose mean is to be inferred.

    Args:
      dtype: dtype of both arrays.

    Returns:
      `x`, `[1000, 1]`, and `initial` (the mean), `[1]`.

    Raises:
      ValueError: the file is damaged.
      FileNotFoundError: the file is not on this machine and cannot be downloaded.
      ImportError: a package of the `test` extra is missing.

    References:
      https://github.com/c-matthews/nogin, `data/gmean/data.mat`, synthetic. Licence: none stated.
    """
    return unlabelled(registered("nogin/gmean/data.mat"), dtype)


def gaussian_mean_2d(dtype: DTypeLike = np.float32) -> Unlabelled:
    """Loads N = 1000 draws from a Gaussian in the plane, whose mean is to be inferred.

    The argument and exceptions are the same as for `gaussian_mean`.

    Returns:
      `x`, `[1000, 2]`, and `initial` (the mean), `[2]`.

    References:
      https://github.com/c-matthews/nogin, `data/gmean/data2.mat`, synthetic. Licence: none stated.
    """
    return unlabelled(registered("nogin/gmean/data2.mat"), dtype)


def gaussian_mixture(dtype: DTypeLike = np.float32) -> Unlabelled:
    """Loads N = 1000 draws from a mixture of two Gaussians, whose centres are to be inferred.

    NOGIN's model has unit variances and weights in the ratio 1 : 2. The argument and exceptions are
    the same as for `gaussian_mean`.

    Returns:
      `x`, `[1000, 1]`, and `initial` (the two centres), `[2]`.

    References:
      https://github.com/c-matthews/nogin, `data/gmix/data.mat`, synthetic. Licence: none stated.
    """
    return unlabelled(registered("nogin/gmix/data.mat"), dtype)


def ica5(dtype: DTypeLike = np.float32) -> Unlabelled:
    """Loads a recording of the brain's magnetic field (MEG) in five channels, as recorded.

    There are N = 17730 time points with D = 5 channels. N is the length of the 122-channel MEG
    artefact recording that is customary for independent component analysis. The numbers suggest
    that these are five of its channels, but the authors do not document it. The argument and
    exceptions are the same as for `gaussian_mean`.

    Returns:
      `x`, `[17730, 5]`, neither centred nor scaled, in an undocumented unit (means -6 to -26,
      standard deviations 115 to 160). `initial`, `[25]`, the 5 x 5 unmixing matrix column by
      column.

    References:
      https://github.com/c-matthews/nogin, `data/ica/ica5.mat`. Licence: none stated.
    """
    return unlabelled(registered("nogin/ica/ica5.mat"), dtype)


def ica10(dtype: DTypeLike = np.float32) -> Unlabelled:
    """Loads a recording of the brain's magnetic field (MEG) in ten whitened channels.

    There are N = 17730 time points with D = 10 channels. The channels behind this file do not
    include all those of `ica5`. The argument and exceptions are the same as for `gaussian_mean`.

    Returns:
      `x`, `[17730, 10]`, with mean 0 and identity covariance, without a unit. `initial`, `[100]`,
      the 10 x 10 unmixing matrix column by column.

    References:
      https://github.com/c-matthews/nogin, `data/ica/ica10.mat`. Licence: none stated.
    """
    return unlabelled(registered("nogin/ica/ica10.mat"), dtype)


def unlabelled(source: Source, dtype: DTypeLike) -> Unlabelled:
    """Reads a file of observations without labels."""
    arrays = parse_mat(read(source), source.name, ("X", "ic"))
    # A column of the file is an observation.
    return Unlabelled(
        np.ascontiguousarray(arrays["X"].T, dtype=dtype), arrays["ic"].ravel().astype(dtype)
    )


def parse_mat(content: bytes, name: str, variables: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Parses a MATLAB file, called `name` in errors, and returns some of its variables.

    Raises:
      ValueError: the file is not a MATLAB file or lacks a variable.
    """
    try:
        found = require("scipy.io").loadmat(io.BytesIO(content), variable_names=variables)
    except ImportError:
        raise
    except Exception as error:  # SciPy has other exceptions for each kind of damage
        raise ValueError(f"{name} must be a MATLAB file ({error}).") from None
    for variable in variables:
        values = found.get(variable)
        if not isinstance(values, np.ndarray) or values.ndim != 2 or values.dtype.kind not in "iuf":
            raise ValueError(f"{name} must have the variable {variable!r}, a matrix of numbers.")
    return {variable: found[variable] for variable in variables}


def _labelled(
    name: str, test_fraction: float, seed: int, intercept: bool, scale: bool, dtype: DTypeLike
) -> Dataset:
    source = registered(f"nogin/blr/{name}.mat")
    arrays = parse_mat(read(source), source.name, ("X", "t"))
    x, y = arrays["X"].T.astype(np.float64), arrays["t"].ravel().astype(np.int32)
    x_train, y_train, x_test, y_test = random_split(x, y, test_fraction, seed)
    if scale:
        x_train, x_test = standardise(x_train, x_test)
    if intercept:
        x_train, x_test = add_constant(x_train), add_constant(x_test)
    x_train, x_test = (np.ascontiguousarray(x, dtype=dtype) for x in (x_train, x_test))
    return Dataset(x_train, y_train, x_test, y_test)
