"""Parsers and preparation steps, on small files that the tests write."""

import io
import struct
import subprocess
import sys

import numpy as np
import pytest
import scipy.io

import datasets
from datasets._fetch import Source
from datasets._prepare import add_constant, parse_svmlight, random_split, standardise
from datasets.a9a import parse_a9a
from datasets.connect4 import parse_connect4
from datasets.kddcup99 import LABELS, as_integers, parse_kddcup99
from datasets.letter import parse_letter
from datasets.mnist import parse_idx, project, seven_or_nine
from datasets.nogin import parse_mat, unlabelled
from datasets.sensit import parse_sensit


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def mat(**arrays):
    file = io.BytesIO()
    scipy.io.savemat(file, arrays)
    return file.getvalue()


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, datasets; print(*sorted(m for m in sys.modules if '.' not in m))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(datasets.__path__[0]) + "/.."},
    )
    loaded = set(done.stdout.split())
    assert "datasets" in loaded
    heavy = {"sklearn", "scipy", "pooch", "requests", "tensorflow", "keras", "tfp_sgmcmc"}
    assert loaded & heavy == set()


def test_every_public_name_is_there():
    loaders = set(datasets.__all__) - {"Dataset", "Unlabelled"}
    assert len(loaders) == 16
    assert all(callable(getattr(datasets, name)) for name in loaders)


@pytest.mark.parametrize("shape", [(3, 4, 5), (7,)])
def test_idx(shape):
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    np.testing.assert_array_equal(parse_idx(idx(array), "tiny"), array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "tiny must be an IDX file"),
        (b"\x00\x00\x08", "tiny must be an IDX file"),
        (b"\x00\x00\x0d\x01\x00\x00\x00\x01\x00", "tiny must be an IDX file"),
        (b"\x00\x00\x08\x03\x00\x00\x00\x01", "tiny must be an IDX file"),
        (idx(np.zeros((2, 3), np.uint8))[:-1], r"tiny must hold \(2, 3\) values. Received: 5"),
    ],
)
def test_idx_that_is_none_is_refused(content, message):
    with pytest.raises(ValueError, match=message):
        parse_idx(content, "tiny")


def test_sevens_and_nines():
    labels = np.array([7, 1, 9, 9, 0, 7], np.uint8)
    images, y = seven_or_nine(np.arange(6), labels)
    np.testing.assert_array_equal(images, [0, 2, 3, 5])
    np.testing.assert_array_equal(y, [1, 0, 0, 1])
    assert y.dtype == np.int32


def test_svmlight_has_the_columns_it_is_told():
    x, y = parse_svmlight(b"+1 1:0.5 4:-2\n-1 2:1\n", 6, np.float64)
    np.testing.assert_array_equal(x, [[0.5, 0, 0, -2, 0, 0], [0, 1, 0, 0, 0, 0]])
    np.testing.assert_array_equal(y, [1, -1])
    assert (x.dtype, y.dtype) == (np.float64, np.int32)
    with pytest.raises(ValueError, match="n_features"):
        parse_svmlight(b"+1 7:1\n", 6, np.float64)


def test_a9a_labels_are_0_and_1():
    x, y = parse_a9a(b"-1 3:1 11:1\n+1 123:1\n-1 1:1\n", np.float32)
    assert x.shape == (3, 123) and x.dtype == np.float32
    assert np.argwhere(x).tolist() == [[0, 2], [0, 10], [1, 122], [2, 0]]
    assert y.tolist() == [0, 1, 0] and y.dtype == np.int32


def sensit(labels, features=50):
    values = " ".join(f"{i}:{i / 100}" for i in range(1, features + 1))
    return "".join(f"{label} {values}\n" for label in labels).encode()


def test_sensit():
    x, y = parse_sensit(sensit([3, 1, 2, 2]), "tiny", 4, np.float32)
    assert y.tolist() == [2, 0, 1, 1]
    np.testing.assert_allclose(x, np.tile(np.arange(1, 51) / 100, (4, 1)), rtol=1e-6)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (sensit([1, 2, 3]), r"3 rows, 50 features and the labels \[1, 2, 3\]"),
        (sensit([1, 2, 3, 3], 49), "4 rows, 49 features"),
        (sensit([1, 2, 2, 2]), r"labels \[1, 2\]"),
    ],
)
def test_sensit_that_is_another_file_is_refused(content, found):
    with pytest.raises(ValueError, match=f"acoustic must have 4 rows.*{found}"):
        parse_sensit(content, "acoustic", 4, np.float32)


def test_connect4_columns():
    lines = [["b"] * 42 for _ in range(3)]
    lines[0][0], lines[1][1], lines[2][41] = "o", "x", "x"
    text = "".join(
        ",".join([*line, outcome]) + "\n"
        for line, outcome in zip(lines, ["draw", "win", "loss"], strict=True)
    )
    x, y = parse_connect4(text.encode(), np.float32)
    assert x.shape == (3, 126) and x.dtype == np.float32
    assert y.tolist() == [2, 0, 1] and y.dtype == np.int32
    expected = np.tile([1.0, 0.0, 0.0], (3, 42))
    expected[0, :3] = [0, 1, 0]
    expected[1, 3:6] = [0, 0, 1]
    expected[2, 123:] = [0, 0, 1]
    np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize(
    "line", [b"b," * 42 + b"lost", b"b," * 41 + b"win", b"b," * 41 + b"y,win", b"b,b,win"]
)
def test_connect4_line_that_is_none_is_refused(line):
    with pytest.raises(ValueError, match="line of connect-4.data must be"):
        parse_connect4(b"b," * 42 + b"win\n" + line + b"\n", np.float32)


def test_letter_is_scaled_to_plus_minus_one():
    row = ",".join(map(str, range(16)))
    x, y = parse_letter(f"A,{row}\nZ,{row}\n".encode(), np.float64)
    np.testing.assert_allclose(x[0], np.linspace(-1, 1, 16), atol=1e-15)
    assert y.tolist() == [0, 25] and y.dtype == np.int32


@pytest.mark.parametrize("line", ["a" + ",1" * 16, "A" + ",1" * 15, "A" + ",1" * 15 + ",16"])
def test_letter_line_that_is_none_is_refused(line):
    with pytest.raises(ValueError, match="must be a letter"):
        parse_letter(line.encode(), np.float32)


def kdd_line(numeric, protocol, service, flag, label):
    fields = [numeric[0], protocol, service, flag, *numeric[1:], label]
    return ",".join(map(str, fields)) + "\n"


def test_kddcup99_columns():
    first = np.arange(38.0)
    second = np.zeros(38)
    second[1] = 693375640
    text = kdd_line(first, "udp", "http", "SF", "smurf.")
    text += kdd_line(second, "tcp", "ftp", "SF", "back.")
    numeric, categorical, y = parse_kddcup99(text.encode())
    expected = np.stack([first, second])
    expected[:, :3] = np.log1p(expected[:, :3])
    np.testing.assert_allclose(numeric, expected, rtol=1e-12)
    # tcp, udp; ftp, http; SF
    assert categorical.astype(int).tolist() == [[0, 1, 0, 1, 1], [1, 0, 1, 0, 1]]
    assert y.tolist() == [LABELS.index("smurf."), 0] and y.dtype == np.int32
    integers = as_integers(numeric, categorical)
    np.testing.assert_array_equal(integers[:, :37], np.delete(numeric, 16, axis=1))
    assert (integers[:, 37:] - integers[:, 37:].min(axis=0)).tolist() == [[1, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize("label", ["aaa.", "norma.", "zzz."])
def test_kddcup99_unknown_label_is_named(label):
    text = kdd_line(np.zeros(38), "tcp", "ftp", "SF", label)
    with pytest.raises(ValueError, match=f"must be in LABELS.*{label}"):
        parse_kddcup99(text.encode())


def test_kddcup99_labels_are_in_alphabetical_order():
    assert list(LABELS) == sorted(LABELS) and len(LABELS) == 23


def test_mat_is_turned_to_rows(tmp_path, monkeypatch):
    x = np.arange(6.0).reshape(2, 3)
    (tmp_path / "tiny.mat").write_bytes(mat(X=x, ic=np.array([[1.0], [2.0]])))
    monkeypatch.setenv("TFP_SGMCMC_DATASETS", str(tmp_path))
    result = unlabelled(Source("tiny.mat", "http://127.0.0.1:9/", None), np.float64)
    np.testing.assert_array_equal(result.x, x.T)
    np.testing.assert_array_equal(result.initial, [1, 2])
    assert result.x.flags.c_contiguous


def test_mat_that_is_none_or_lacks_a_variable_is_refused():
    with pytest.raises(ValueError, match="tiny must have the variable 'ic'"):
        parse_mat(mat(X=np.ones((2, 2))), "tiny", ("X", "ic"))
    with pytest.raises(ValueError, match="tiny must be a MATLAB file"):
        parse_mat(b"x" * 500, "tiny", ("X",))


def test_random_split_is_a_partition_and_repeats_with_its_seed():
    x, y = np.arange(50)[:, None], np.arange(50)
    first, again, other = (random_split(x, y, 0.2, seed) for seed in (0, 0, 1))
    assert len(first.y_train) == 40 and len(first.y_test) == 10
    assert sorted([*first.y_train, *first.y_test]) == list(range(50))
    np.testing.assert_array_equal(first.x_train[:, 0], first.y_train)
    np.testing.assert_array_equal(first.y_test, again.y_test)
    np.testing.assert_array_equal(first.y_train, again.y_train)
    assert set(first.y_test) != set(other.y_test)


def test_random_split_without_test_part_keeps_the_order():
    x, y = np.arange(6).reshape(3, 2), np.arange(3)
    whole = random_split(x, y, 0.0, 0)
    np.testing.assert_array_equal(whole.x_train, x)
    np.testing.assert_array_equal(whole.y_train, y)
    assert whole.x_test.shape == (0, 2) and whole.y_test.shape == (0,)


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 5])
def test_random_split_refuses_a_fraction_that_is_none(fraction):
    with pytest.raises(ValueError, match=f"test_fraction must be .*Received: {fraction}"):
        random_split(np.zeros((4, 1)), np.zeros(4), fraction, 0)


def test_standardise_uses_the_training_part_alone():
    train = np.array([[1.0, 5.0], [3.0, 5.0]])
    test = np.array([[5.0, 6.0]])
    scaled, moved = standardise(train, test)
    np.testing.assert_allclose(scaled, [[-1, 0], [1, 0]])
    np.testing.assert_allclose(moved, [[3, 1]])


def test_constant_goes_in_front():
    result = add_constant(np.array([[2, 3]], np.float32))
    assert result.tolist() == [[1, 2, 3]] and result.dtype == np.float32


def test_random_projection_has_weights_of_variance_one_over_dimensions():
    draw = np.random.default_rng(0)
    train, test = draw.uniform(size=(100, 784)), np.eye(784)
    _, weights = project(train, test, "random", 50, 3)
    # The projection of the identity is the weights.
    assert weights.shape == (784, 50)
    np.testing.assert_allclose(weights.var(), 1 / 50, rtol=0.03)
    np.testing.assert_allclose(weights.mean(), 0, atol=0.003)
    projected, _ = project(train, test, "random", 50, 3)
    np.testing.assert_allclose(projected, train @ weights, atol=1e-12)
    _, other = project(train, test, "random", 50, 4)
    assert not np.allclose(weights, other)


def test_principal_components_are_orthonormal_and_of_the_training_part():
    draw = np.random.default_rng(0)
    train = draw.normal(size=(200, 20)) * np.arange(1, 21)
    origin, basis = np.zeros((1, 20)), np.eye(20)
    projected, moved = project(train, np.concatenate([origin, basis]), "pca", 5, 0)
    components = moved[1:] - moved[0]
    np.testing.assert_allclose(components.T @ components, np.eye(5), atol=1e-10)
    np.testing.assert_allclose(projected.mean(axis=0), 0, atol=1e-10)
    covariance = np.cov(projected.T)
    largest = np.linalg.eigvalsh(np.cov(train.T))[::-1][:5]
    np.testing.assert_allclose(covariance, np.diag(largest), atol=1e-8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: datasets.mnist_7v9(projection="foo"),
            "projection .*'random', 'pca', None.*'foo'",
        ),
        (lambda: datasets.kddcup99(encoding="foo"), "encoding must be one of 'one_hot', .*'foo'"),
        (lambda: datasets.mnist_7v9(num_features=0), "num_features must be from 1 to 784.*: 0"),
        (lambda: datasets.mnist_7v9("pca", 785), "num_features must .*: 785"),
        (lambda: datasets.a9a(split="half"), "split must .*'official', 'random'.*'half'"),
        (lambda: datasets.letter(split="half"), "split must .*'official', 'random'.*'half'"),
    ],
)
def test_unknown_option_values_are_named_with_the_choices(call, message):
    with pytest.raises(ValueError, match=message):
        call()
