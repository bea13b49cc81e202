"""MNIST handwritten digits, all ten or only 7 against 9."""

import numpy as np
from numpy.typing import DTypeLike

from datasets._fetch import read, registered
from datasets._optional import require
from datasets._prepare import add_constant, check_choice
from datasets._types import Dataset

_KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")


def mnist(flatten: bool = True, dtype: DTypeLike = np.float32) -> Dataset:
    """Loads MNIST with its official split.

    The split has N = 60000 training and 10000 test images with D = 784 pixels.

    Args:
      flatten: True for one row of 784 pixels per image, False for 28 x 28.
      dtype: dtype of the pixels, a floating one.

    Returns:
      Pixels in [0, 1], `[60000, 784]` and `[10000, 784]`, or `[rows, 28, 28]`. The labels are the
      digits 0 to 9.

    Raises:
      ValueError: a file is damaged.
      FileNotFoundError: a file is not on this machine and cannot be downloaded.
      ImportError: a file must be downloaded and pooch is missing.

    References:
      Y. LeCun and C. Cortes. http://yann.lecun.com/exdb/mnist/ (mirror
      https://ossci-datasets.s3.amazonaws.com/mnist/). Licence: commonly given as CC BY-SA 3.0.
    """
    x_train, y_train, x_test, y_test = _raw()
    x_train, x_test = (_scaled(x, flatten, dtype) for x in (x_train, x_test))
    return Dataset(x_train, y_train.astype(np.int32), x_test, y_test.astype(np.int32))


def mnist_7v9(
    projection: str | None = "random",
    num_features: int = 50,
    intercept: bool = True,
    seed: int = 0,
    dtype: DTypeLike = np.float32,
) -> Dataset:
    """Loads the sevens and nines of MNIST, for logistic regression.

    The official split has N = 12214 training and 2037 test images.

    The projections follow the literature. Ahn, Korattikara & Welling (2012, section 5.1) use a
    random projection to 50 dimensions, Shang et al. (2015) a random projection to 100 dimensions,
    and Matthews & Weare (2018) 128 principal components.

    The projection is fitted on the training part and applied to both parts. Its result is not
    scaled. Principal components are centred by definition, a random projection is not centred. It
    multiplies the pixels in [0, 1] by independent N(0, 1 / num_features) weights, which preserves
    the squared length of a row in the mean over seeds.

    Args:
      projection: `"random"`, `"pca"` for principal components, or None for the 784 pixels.
      num_features: number of projected features, at most 784. It is ignored without a projection.
      intercept: whether to put a column of ones in front.
      seed: seed of the random projection.
      dtype: dtype of the features, a floating one.

    Returns:
      Features, `[12214, D]` and `[2037, D]`, where D is `num_features`, plus 1 with `intercept`.
      Labels 1 for a seven and 0 for a nine.

    Raises:
      ValueError: an argument is outside its range, or a file is damaged.
      FileNotFoundError: a file is not on this machine and cannot be downloaded.
      ImportError: a package of the `test` extra is missing.

    References:
      The source and the licence are the same as for `mnist`.

      S. Ahn, A. Korattikara and M. Welling. Bayesian posterior sampling via stochastic gradient
      Fisher scoring. ICML, 2012.

      X. Shang, Z. Zhu, B. Leimkuhler and A. J. Storkey. Covariance-controlled adaptive Langevin
      thermostat for large-scale Bayesian sampling. NeurIPS, 2015.

      C. Matthews and J. Weare. Langevin Markov chain Monte Carlo with stochastic gradients. 2018.
    """
    check_choice("projection", projection, ("random", "pca", None))
    if projection is not None and not 1 <= num_features <= 784:
        raise ValueError(f"num_features must be from 1 to 784. Received: {num_features!r}.")
    x_train, y_train, x_test, y_test = _raw()
    x_train, y_train = seven_or_nine(x_train, y_train)
    x_test, y_test = seven_or_nine(x_test, y_test)
    # Principal components are less exact in float32.
    train, test = (_scaled(x, True, np.float64) for x in (x_train, x_test))
    train, test = project(train, test, projection, num_features, seed)
    train, test = train.astype(dtype), test.astype(dtype)
    if intercept:
        train, test = add_constant(train), add_constant(test)
    return Dataset(train, y_train, test, y_test)


def seven_or_nine(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keeps the rows labelled 7 or 9, and labels them 1 and 0 in int32."""
    keep = (labels == 7) | (labels == 9)
    return images[keep], (labels[keep] == 7).astype(np.int32)


def project(
    train: np.ndarray, test: np.ndarray, projection: str | None, num_features: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Fits a projection on `train`, `[rows, pixels]`, and applies it to both arrays."""
    if projection is None:
        return train, test
    if projection == "random":
        fitted = require("sklearn.random_projection").GaussianRandomProjection(
            n_components=num_features, random_state=seed
        )
    else:
        # This solver is exact; the default may choose a randomised one.
        fitted = require("sklearn.decomposition").PCA(
            n_components=num_features, svd_solver="covariance_eigh"
        )
    fitted.fit(train)
    return fitted.transform(train), fitted.transform(test)


def parse_idx(content: bytes, name: str) -> np.ndarray:
    """Parses an IDX file of unsigned bytes.

    Args:
      content: the uncompressed file.
      name: name of the file in errors.

    Returns:
      A read-only uint8 array with the dimensions in the header.

    Raises:
      ValueError: the header is not one of unsigned bytes, or the length does not fit it.
    """
    header = 4 + 4 * content[3] if content[:3] == b"\x00\x00\x08" and len(content) > 3 else 0
    if not 4 < header <= len(content):
        raise ValueError(f"{name} must be an IDX file of unsigned bytes.")
    shape = tuple(np.frombuffer(content[4:header], ">u4").astype(int).tolist())
    values = np.frombuffer(content, np.uint8, offset=header)
    if values.size != np.prod(shape):
        raise ValueError(f"{name} must hold {shape} values. Received: {values.size} values.")
    return values.reshape(shape)


def _raw() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    names = (f"{part}-{kind}.gz" for part in ("train", "t10k") for kind in _KINDS)
    a, b, c, d = (parse_idx(read(registered(name)), name) for name in names)
    return a, b, c, d


def _scaled(images: np.ndarray, flatten: bool, dtype: DTypeLike) -> np.ndarray:
    pixels = images.astype(dtype)
    pixels /= 255
    return pixels.reshape(len(images), -1) if flatten else pixels
