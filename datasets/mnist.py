"""MNIST handwritten digits, all ten or the pair 7 against 9."""

import numpy as np
from numpy.typing import DTypeLike

from datasets._fetch import Source, read
from datasets._optional import require
from datasets._prepare import add_constant, check_choice
from datasets._types import Dataset


def _source(name: str, sha256: str) -> Source:
    # The mirror that PyTorch uses: the authors' own site refuses automatic downloads.
    return Source(name, "https://ossci-datasets.s3.amazonaws.com/mnist/" + name, sha256)


TRAIN_IMAGES = _source(
    "train-images-idx3-ubyte.gz",
    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
)
TRAIN_LABELS = _source(
    "train-labels-idx1-ubyte.gz",
    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
)
TEST_IMAGES = _source(
    "t10k-images-idx3-ubyte.gz",
    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
)
TEST_LABELS = _source(
    "t10k-labels-idx1-ubyte.gz",
    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
)


def mnist(flatten: bool = True, dtype: DTypeLike = np.float32) -> Dataset:
    """Load MNIST with its official split.

    Source: LeCun & Cortes, http://yann.lecun.com/exdb/mnist/ (mirror
    https://ossci-datasets.s3.amazonaws.com/mnist/). Licence: commonly given as CC BY-SA 3.0.

    Args:
        flatten: True for one row of 784 pixels an image, False for 28 x 28.
        dtype: dtype of the pixels, a floating one.

    Returns:
        Pixels in [0, 1] of shape (60000, 784) and (10000, 784), or (rows, 28, 28); the labels
        are the digits 0 to 9.

    Raises:
        ValueError: a file is damaged.
        FileNotFoundError: a file is not on this machine and cannot be downloaded.
        ImportError: a file has to be downloaded and pooch is missing.
    """
    x_train, y_train, x_test, y_test = _raw()
    return Dataset(
        _scaled(x_train, flatten, dtype),
        y_train.astype(np.int32),
        _scaled(x_test, flatten, dtype),
        y_test.astype(np.int32),
    )


def mnist_7v9(
    projection: str | None = "random",
    num_features: int = 50,
    intercept: bool = True,
    seed: int = 0,
    dtype: DTypeLike = np.float32,
) -> Dataset:
    """Load the sevens and nines of MNIST, for logistic regression.

    Source and licence: see `mnist`. The projections are those of Ahn, Korattikara & Welling
    (2012, section 5.1), a random one to 50 dimensions, and of Shang et al. (2015) and Matthews &
    Weare (2018), 100 or 128 principal components.

    The projection is fitted on the training part and applied to both. Its result is kept as it
    is, neither centred (the principal components are, by their definition) nor scaled: a random
    projection multiplies the pixels in [0, 1] by independent N(0, 1 / num_features) weights,
    which keeps a row's squared length in the mean over seeds.

    Args:
        projection: ``"random"``, ``"pca"``, or None for the 784 pixels.
        num_features: number of projected features, at most 784; without effect where
            `projection` is None.
        intercept: whether to put a column of ones in front.
        seed: seed of the random projection.
        dtype: dtype of the features, a floating one.

    Returns:
        Features of shape (12214, num_features + 1) and (2037, num_features + 1), without the
        1 where `intercept` is False; labels 1 for a seven and 0 for a nine.

    Raises:
        ValueError: an argument is outside its range, or a file is damaged.
        FileNotFoundError: a file is not on this machine and cannot be downloaded.
        ImportError: a package of the ``test`` extra is missing.
    """
    check_choice("projection", projection, ("random", "pca", None))
    if projection is not None and not 1 <= num_features <= 784:
        raise ValueError(f"num_features={num_features!r} must be from 1 to 784")
    x_train, y_train, x_test, y_test = _raw()
    x_train, y_train = seven_or_nine(x_train, y_train)
    x_test, y_test = seven_or_nine(x_test, y_test)
    # In float64 until the end: the principal components are less exact in float32.
    train, test = (_scaled(x, True, np.float64) for x in (x_train, x_test))
    train, test = project(train, test, projection, num_features, seed)
    train, test = train.astype(dtype), test.astype(dtype)
    if intercept:
        train, test = add_constant(train), add_constant(test)
    return Dataset(train, y_train, test, y_test)


def seven_or_nine(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keep the rows labelled 7 or 9, and label them 1 and 0 in int32."""
    keep = (labels == 7) | (labels == 9)
    return images[keep], (labels[keep] == 7).astype(np.int32)


def project(
    train: np.ndarray, test: np.ndarray, projection: str | None, num_features: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Fit a projection on `train` (rows, pixels) and apply it to both arrays."""
    if projection is None:
        return train, test
    if projection == "random":
        fitted = require("sklearn.random_projection").GaussianRandomProjection(
            n_components=num_features, random_state=seed
        )
    else:
        # An exact solver: the default may pick a randomised one.
        fitted = require("sklearn.decomposition").PCA(
            n_components=num_features, svd_solver="covariance_eigh"
        )
    fitted.fit(train)
    return fitted.transform(train), fitted.transform(test)


def parse_idx(content: bytes, name: str) -> np.ndarray:
    """Parse an IDX file of unsigned bytes.

    Args:
        content: the uncompressed file.
        name: what to call the file in an error.

    Returns:
        A read-only uint8 array with the dimensions that the header gives.

    Raises:
        ValueError: the header is not that of unsigned bytes, or the length does not fit it.
    """
    header = 4 + 4 * content[3] if content[:3] == b"\x00\x00\x08" and len(content) > 3 else 0
    if not 4 < header <= len(content):
        raise ValueError(f"{name} is not an IDX file of unsigned bytes")
    shape = tuple(np.frombuffer(content[4:header], ">u4").astype(int).tolist())
    values = np.frombuffer(content, np.uint8, offset=header)
    if values.size != np.prod(shape):
        raise ValueError(f"{name} holds {values.size} values, but its header says {shape}")
    return values.reshape(shape)


def _raw() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    sources = TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS
    a, b, c, d = (parse_idx(read(source), source.name) for source in sources)
    return a, b, c, d


def _scaled(images: np.ndarray, flatten: bool, dtype: DTypeLike) -> np.ndarray:
    pixels = images.astype(dtype)
    pixels /= 255
    return pixels.reshape(len(images), -1) if flatten else pixels
