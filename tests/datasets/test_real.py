"""The real files: counts, first values and splits. Skipped without a local copy."""

import numpy as np
import pytest

import datasets
from datasets.kddcup99 import LABELS
from datasets.mnist import project


def both(data):
    """Returns the labels of both parts."""
    return np.concatenate([data.y_train, data.y_test])


def check(data, train_shape=None, test_shape=None, dtype=np.float32):
    """Checks the types, and those shapes that are given."""
    assert train_shape is None or data.x_train.shape == train_shape
    assert test_shape is None or data.x_test.shape == test_shape
    assert isinstance(data, datasets.Dataset)
    assert data.x_train.dtype == data.x_test.dtype == dtype
    assert data.y_train.dtype == data.y_test.dtype == np.int32
    assert np.isfinite(data.x_train).all() and np.isfinite(data.x_test).all()


@pytest.mark.thorough
def test_mnist(load):
    data = load("mnist")
    check(data, (60000, 784), (10000, 784))
    assert (data.x_train.min(), data.x_train.max()) == (0, 1)
    assert data.y_train[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert data.y_test[:5].tolist() == [7, 2, 1, 0, 4]
    assert np.bincount(data.y_train).tolist() == [
        *(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
    ]
    # The mean and standard deviation that are customary for normalising MNIST.
    assert data.x_train.mean(dtype=np.float64) == pytest.approx(0.1307, abs=5e-5)
    assert data.x_train.std(dtype=np.float64) == pytest.approx(0.3081, abs=5e-5)


@pytest.mark.thorough
def test_mnist_images(load):
    flat = load("mnist")
    images = datasets.mnist(flatten=False, dtype=np.float64)
    check(images, test_shape=(10000, 28, 28), dtype=np.float64)
    np.testing.assert_allclose(images.x_test.reshape(10000, -1), flat.x_test, rtol=1e-7)


def test_mnist_7v9_pixels(load):
    mnist, data = load("mnist"), load("mnist_7v9", projection=None, intercept=False)
    check(data, (12214, 784), (2037, 784))
    assert np.bincount(data.y_train).tolist() == [5949, 6265]
    assert np.bincount(data.y_test).tolist() == [1009, 1028]
    np.testing.assert_array_equal(data.x_train[0], mnist.x_train[4])
    assert data.y_train[0] == 0 and data.y_test[0] == 1


@pytest.mark.thorough
def test_mnist_7v9_random_projection(load):
    pixels = load("mnist_7v9", projection=None, intercept=False)
    data = load("mnist_7v9")
    check(data, (12214, 51), (2037, 51))
    assert (data.x_train[:, 0] == 1).all() and (data.x_test[:, 0] == 1).all()
    np.testing.assert_array_equal(data.y_train, pixels.y_train)
    # Both parts have the same linear map, without a shift, with entries of variance 1 / 50.
    _, weights = project(pixels.x_train, np.eye(784), "random", 50, 0)
    np.testing.assert_allclose(data.x_train[:, 1:], pixels.x_train @ weights, atol=1e-5)
    np.testing.assert_allclose(data.x_test[:, 1:], pixels.x_test @ weights, atol=1e-5)
    assert weights.var() == pytest.approx(1 / 50, rel=0.03)
    bare = load("mnist_7v9", intercept=False)
    np.testing.assert_array_equal(bare.x_train, data.x_train[:, 1:])
    other = load("mnist_7v9", seed=1)
    assert not np.allclose(other.x_train, data.x_train)
    np.testing.assert_array_equal(datasets.mnist_7v9().x_train, data.x_train)


@pytest.mark.slow
def test_mnist_7v9_principal_components(load):
    data = load("mnist_7v9", projection="pca", num_features=100, intercept=False)
    check(data, (12214, 100))
    covariance = np.cov(data.x_train.T, dtype=np.float64)
    variances = np.diag(covariance)
    assert (np.diff(variances) <= 0).all()
    np.testing.assert_allclose(covariance, np.diag(variances), atol=1e-5)
    np.testing.assert_allclose(data.x_train.mean(axis=0), 0, atol=1e-5)
    assert np.abs(data.x_test.mean(axis=0)).max() > 1e-3


def test_a9a(load):
    data = load("a9a")
    check(data, (32561, 123), (16281, 123))
    assert np.bincount(data.y_train).tolist() == [24720, 7841]
    assert np.bincount(data.y_test).tolist() == [12435, 3846]
    assert np.unique(data.x_train).tolist() == [0, 1]
    first = [1, 6, 17, 21, 35, 42, 54, 62, 71, 73, 74, 76, 80, 83]
    assert (np.flatnonzero(data.x_test[0]) + 1).tolist() == first
    assert not data.x_test[:, 122].any() and data.x_train[:, 122].any()


def test_a9a_random_split(load):
    official, data = load("a9a"), load("a9a", split="random")
    check(data, (26049, 123), (6512, 123))
    assert np.bincount(both(data)).tolist() == [24720, 7841]
    np.testing.assert_array_equal(
        data.x_train.sum(axis=0) + data.x_test.sum(axis=0), official.x_train.sum(axis=0)
    )


def test_connect4(load):
    data = load("connect4")
    check(data, (54046, 126), (13511, 126))
    assert np.bincount(both(data)).tolist() == [44473, 16635, 6449]
    squares = data.x_train.reshape(-1, 42, 3)
    assert (squares.sum(axis=2) == 1).all()
    # After eight plies each player has four pieces. All columns occur.
    assert (squares.sum(axis=1) == [34, 4, 4]).all()
    assert data.x_train.any(axis=0).all()
    whole = load("connect4", test_fraction=0)
    first = "bbbbbbbbbbbbxobbbbxoxoxobbbbbbbbbbbbbbbbbb"
    assert "".join("box"[i] for i in whole.x_train[0].reshape(42, 3).argmax(axis=1)) == first
    assert whole.y_train[0] == 0


def test_splits_repeat_with_their_seed(load):
    data, again = load("connect4"), datasets.connect4(seed=0)
    np.testing.assert_array_equal(data.x_test, again.x_test)
    np.testing.assert_array_equal(data.y_train, again.y_train)
    other = datasets.connect4(seed=1)
    assert (other.y_test != data.y_test).any()


def test_letter(load):
    data = load("letter")
    check(data, (16000, 16), (4000, 16))
    assert [chr(65 + i) for i in data.y_train[:3]] == ["T", "I", "D"]
    first = [2, 8, 3, 5, 1, 8, 13, 0, 6, 6, 10, 8, 0, 8, 0, 8]
    np.testing.assert_allclose((data.x_train[0] + 1) * 7.5, first, atol=1e-5)
    counts = np.bincount(both(data))
    # The smallest and the largest class in UCI's description.
    assert len(counts) == 26 and counts[7] == 734 == counts.min()
    assert counts[20] == 813 == counts.max()
    shuffled = load("letter", split="random")
    assert shuffled.x_train.shape == (16000, 16)
    np.testing.assert_array_equal(np.bincount(both(shuffled)), counts)
    assert (shuffled.y_train != data.y_train).any()
    smaller = load("letter", split="shang")
    assert smaller.x_train.shape == (10500, 16)
    np.testing.assert_array_equal(smaller.y_test, both(data)[-5000:])


@pytest.mark.slow
def test_kddcup99(load):
    data = load("kddcup99")
    check(data, (395217, 118), (98804, 118))
    counts = dict(zip(LABELS, np.bincount(both(data)).tolist(), strict=True))
    assert counts["smurf."] == 280790 and counts["neptune."] == 107201
    assert counts["normal."] == 97278 and counts["spy."] == 2
    assert sum(counts.values()) == 494021
    numeric, one_hot = data.x_train[:, :38], data.x_train[:, 38:]
    np.testing.assert_allclose(numeric.mean(axis=0, dtype=np.float64), 0, atol=1e-5)
    deviations = numeric.std(axis=0, dtype=np.float64)
    constant = deviations == 0
    # num_outbound_cmds and is_host_login
    assert np.flatnonzero(constant).tolist() == [16, 17]
    np.testing.assert_allclose(deviations[~constant], 1, atol=1e-4)
    for columns in np.split(one_hot, [3, 69], axis=1):
        assert (columns.sum(axis=1) == 1).all()


@pytest.mark.slow
def test_kddcup99_binary(load):
    many, two = load("kddcup99"), load("kddcup99", binary=True)
    assert np.bincount(both(two)).tolist() == [97278, 396743]
    np.testing.assert_array_equal(two.y_test, many.y_test != LABELS.index("normal."))
    np.testing.assert_array_equal(two.x_test[:1000], many.x_test[:1000])


@pytest.mark.slow
def test_kddcup99_integers(load):
    data = load("kddcup99", encoding="integer")
    check(data, (395217, 40), (98804, 40))
    wide = load("kddcup99")
    np.testing.assert_array_equal(data.x_train[:1000, :16], wide.x_train[:1000, :16])
    for column, kinds in zip(data.x_train.T[37:], (3, 66, 11), strict=True):
        assert len(np.unique(column)) == kinds
    assert np.flatnonzero(data.x_train.std(axis=0) == 0).tolist() == [16]  # is_host_login


def test_sensit_acoustic(load):
    data = load("sensit_acoustic")
    check(data, (78823, 50), (19705, 50))
    assert np.unique(data.y_train).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "rows", "features", "zeros", "ones"),
    [("german", 1000, 24, 300, 700), ("pima", 532, 7, 355, 177)],
)
def test_nogin_regressions(load, name, rows, features, zeros, ones):
    data = load(name)
    check(data)
    assert data.x_train.shape[1] == features + 1
    assert np.bincount(both(data)).tolist() == [zeros, ones]
    assert len(data.y_test) == rows // 5
    assert (data.x_train[:, 0] == 1).all() and (data.x_test[:, 0] == 1).all()
    np.testing.assert_allclose(data.x_train[:, 1:].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(data.x_train[:, 1:].std(axis=0), 1, atol=1e-5)


def test_nogin_regressions_as_in_the_file(load):
    raw = load("german", test_fraction=0, intercept=False, scale=False, dtype=np.float64)
    check(raw, (1000, 24), (0, 24), np.float64)
    # The first row of UCI's german.data-numeric.
    assert raw.x_train[0, :10].tolist() == [1, 6, 4, 12, 5, 5, 3, 4, 1, 67]
    assert raw.y_train[:4].tolist() == [1, 0, 1, 1]
    pima = load("pima", test_fraction=0, intercept=False, scale=False)
    assert pima.x_train[:5, 0].tolist() == [6, 1, 1, 0, 3]
    assert (pima.x_train.min(), pima.x_train.max()) == (0, 199)


@pytest.mark.parametrize(
    ("name", "shape", "initial", "first"),
    [
        ("gaussian_mean", (1000, 1), [0.01], [0.32575884]),
        ("gaussian_mean_2d", (1000, 2), [0.01, 0.01], [0.19266383]),
        ("gaussian_mixture", (1000, 1), [0, 0.75], [2.96405288]),
    ],
)
def test_nogin_gaussians(load, name, shape, initial, first):
    data = load(name)
    assert isinstance(data, datasets.Unlabelled)
    assert data.x.shape == shape and data.x.dtype == data.initial.dtype == np.float32
    np.testing.assert_allclose(data.initial, initial, rtol=1e-6)
    np.testing.assert_allclose(data.x[0, :1], first, rtol=1e-6)
    # The columns of X in the file are observations. A wrong transpose would mix the two axes.
    assert np.abs(np.corrcoef(data.x.T)).reshape(-1)[1:-1].max(initial=0) < 0.1


def test_ica5(load):
    data = load("ica5", dtype=np.float64)
    assert data.x.shape == (17730, 5) and data.initial.shape == (25,)
    assert data.x.dtype == np.float64
    expected = [-19.23712371, -21.72883452, -26.42854581, -11.10987716, -6.15022745]
    np.testing.assert_allclose(data.x.mean(axis=0), expected, rtol=1e-8)
    np.testing.assert_allclose(data.x[:4, 0], [-48.101, 8.9292, -15.4601, -101.8247])
    assert data.initial[0] == pytest.approx(-0.18384642)


def test_ica10(load):
    data = load("ica10")
    assert data.x.shape == (17730, 10) and data.initial.shape == (100,)
    assert data.x.dtype == np.float32
    np.testing.assert_allclose(data.x.mean(axis=0, dtype=np.float64), 0, atol=1e-6)
    np.testing.assert_allclose(np.cov(data.x.T, dtype=np.float64), np.eye(10), atol=1e-4)
