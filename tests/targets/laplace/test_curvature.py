"""The largest curvature agrees with eigenvalues from NumPy."""

import contextlib
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.targets.logistic_regression import log_likelihood, log_prior
from tfp_sgmcmc import random
from tfp_sgmcmc.targets.laplace.quadratic import inverse, precision_of, root_of_inverse

GENERATOR = np.random.default_rng(0)
N, D = 60, 8
X = GENERATOR.standard_normal([N, D]) * np.linspace(0.3, 3.0, D)
DATA = {"x": X, "y": GENERATOR.integers(0, 2, N).astype(np.float64)}
THETA = GENERATOR.standard_normal([3, D])
# Iterations stop at a relative residual of 1e-4; the error is its square over the relative gap.
RTOL = 1e-6
TOLERANCE = {tf.float64: RTOL, tf.float32: 1e-5}


def regression(dtype: Any = tf.float64, **options: Any) -> sgmcmc.MinibatchLogProb:
    return sgmcmc.MinibatchLogProb(log_prior, log_likelihood, DATA, 5, dtype=dtype, **options)


def hessian(theta: np.ndarray, rows: Any = slice(None)) -> np.ndarray:
    """Minus the Hessian of the log posterior; the examples in `rows` stand for all."""
    x = X[rows]
    p = 1 / (1 + np.exp(-x @ theta))
    return np.eye(D) + N / len(x) * (x * (p * (1 - p))[:, np.newaxis]).T @ x


def largest(matrix: np.ndarray) -> float:
    return float(np.linalg.eigvals(matrix).real.max())


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (tf.float32, {}),
        (tf.float64, {"chunk_size": 7}),
        pytest.param(tf.float64, {}, marks=pytest.mark.thorough),
        pytest.param(tf.float32, {"chunk_size": 7}, marks=pytest.mark.thorough),
    ],
)
def test_logistic_regression(dtype: tf.DType, options: dict[str, Any]) -> None:
    target, state = regression(dtype, **options), tf.constant(THETA[0], dtype)
    expected = largest(hessian(THETA[0]))
    np.testing.assert_allclose(
        sgmcmc.largest_curvature(target, state), expected, rtol=TOLERANCE[dtype]
    )


def test_the_largest_over_chains() -> None:
    curvatures = [largest(hessian(theta)) for theta in THETA]
    assert np.ptp(curvatures) > 1.0
    for state in (THETA, THETA[:, np.newaxis]):
        found = sgmcmc.largest_curvature(regression(), tf.constant(state))
        np.testing.assert_allclose(found, max(curvatures), rtol=RTOL)


def test_metric() -> None:
    """M H has the eigenvalues of a symmetric matrix. Vectors have the chains of the state."""
    factor = GENERATOR.standard_normal([D, D])
    matrix = factor @ factor.T + 0.1 * np.eye(D)

    def metric(v: tf.Tensor) -> tf.Tensor:
        assert v.shape == (3, D)
        return v @ matrix

    found = sgmcmc.largest_curvature(regression(), tf.constant(THETA), metric=metric)
    expected = max(largest(matrix @ hessian(theta)) for theta in THETA)
    np.testing.assert_allclose(found, expected, rtol=RTOL)


def test_a_metric_for_each_chain() -> None:
    scales = np.exp(GENERATOR.standard_normal([3, D]))
    found = sgmcmc.largest_curvature(regression(), tf.constant(THETA), metric=lambda v: scales * v)
    pairs = zip(THETA, scales, strict=True)
    expected = max(largest(scale[:, np.newaxis] * hessian(theta)) for theta, scale in pairs)
    np.testing.assert_allclose(found, expected, rtol=RTOL)


@pytest.mark.thorough
def test_nested_states() -> None:
    pair = namedtuple("pair", ["b", "a"])  # not in alphabetical order

    def joined(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return tf.concat([a[..., tf.newaxis], b], axis=-1)

    target = sgmcmc.MinibatchLogProb(
        lambda a, b: log_prior(joined(a, b)),
        lambda a, b, batch: log_likelihood(joined(a, b), batch),
        DATA,
        5,
    )
    parts = dict(a=tf.constant(THETA[0, 0]), b=tf.constant(THETA[0, 1:]))
    expected = largest(hessian(THETA[0]))
    for state in (parts, pair(**parts), [parts["a"], parts["b"]]):
        found = sgmcmc.largest_curvature(
            target, state, metric=lambda v: tf.nest.map_structure(lambda x: 2 * x, v)
        )
        np.testing.assert_allclose(found, 2 * expected, rtol=RTOL)


@pytest.mark.parametrize(
    ("eigenvalues", "expected"),
    [
        ([3.0, 1.0, -1000.0], 3.0),
        ([0.01, -1.0, -1.0], 0.01),
        ([-3.0, -1.0], 0.0),
        ([0.0, 0.0], 0.0),
        ([5.0] * 4, 5.0),
        ([7.0], 7.0),
    ],
)
def test_indefinite_and_degenerate_curvature(eigenvalues: list[float], expected: float) -> None:
    """A power iteration would return the eigenvalue -1000."""
    size = len(eigenvalues)
    rotation = np.linalg.qr(GENERATOR.standard_normal([size, size]))[0]
    matrix = rotation * eigenvalues @ rotation.T

    def quadratic(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(x - 0.5 * x * tf.linalg.matvec(matrix, x), axis=-1)

    found = sgmcmc.largest_curvature(quadratic, tf.ones([size], tf.float64))
    np.testing.assert_allclose(found, expected, rtol=RTOL, atol=1e-9)


def test_a_log_posterior_without_second_derivative() -> None:
    linear = sgmcmc.FullDataLogProb(lambda x: tf.reduce_sum(3.0 * x, axis=-1))
    assert sgmcmc.largest_curvature(linear, tf.ones([4])) == 0.0


def test_a_metric_of_zero_leaves_nothing_to_move() -> None:
    """As before a sampler has estimated its metric."""
    zero = sgmcmc.largest_curvature(regression(), tf.constant(THETA[0]), metric=tf.zeros_like)
    assert zero == 0.0


@pytest.mark.parametrize("size", [100, 10_000])
def test_accuracy_on_the_hardest_spectrum(size: int) -> None:
    """Eigenvalues that are equally dense up to the largest one converge most slowly."""
    eigenvalues = tf.linspace(tf.constant(0.0, tf.float64), 1.0, size)
    for seed, k in ((0, 10), (1, 20)):
        found = sgmcmc.largest_curvature(
            lambda x: -0.5 * tf.reduce_sum(eigenvalues * x**2),
            tf.zeros([size], tf.float64),
            seed=seed,
            num_iterations=k,
        )
        assert 1 - 0.1 * (np.log(size) / (k - 1)) ** 2 <= found <= 1 + 1e-9


def test_a_subsample_stands_for_all_examples() -> None:
    rows = random.permuted_indices(random.as_seed(7), tf.range(20), N).numpy()
    for options in ({}, {"chunk_size": 6}):
        found = sgmcmc.largest_curvature(
            regression(**options), tf.constant(THETA[0]), seed=7, max_examples=20
        )
        np.testing.assert_allclose(found, largest(hessian(THETA[0], rows)), rtol=RTOL)


@pytest.mark.thorough
def test_wrapped_targets_have_the_curvature_of_what_they_wrap() -> None:
    target, state = regression(), tf.constant(THETA[:1])
    expected = largest(hessian(THETA[0]))
    for wrapped in (
        sgmcmc.ControlVariate(target, THETA[1]),
        sgmcmc.SVRG(target),
        sgmcmc.GrowingBatch(target),
    ):
        np.testing.assert_allclose(sgmcmc.largest_curvature(wrapped, state), expected, rtol=RTOL)


def test_streams_use_their_first_read() -> None:
    dataset = tf.data.Dataset.from_tensor_slices(DATA).batch(5, drop_remainder=True)
    target = sgmcmc.StreamedLogProb(log_prior, log_likelihood, dataset, N, batches_per_read=4)
    found = sgmcmc.largest_curvature(target, tf.constant(THETA[0]))
    np.testing.assert_allclose(found, largest(hessian(THETA[0], slice(20))), rtol=RTOL)
    (product,) = target._programs.values()
    other = sgmcmc.largest_curvature(target, tf.constant(THETA[1]))
    np.testing.assert_allclose(other, largest(hessian(THETA[1], slice(20))), rtol=RTOL)
    assert product.experimental_get_tracing_count() == 1


def test_other_targets_are_asked_for_one_estimate() -> None:
    class Other(sgmcmc.targets.Target):
        num_examples = 1

        def __call__(self, theta: tf.Tensor) -> tf.Tensor:
            raise AssertionError("not needed")

        def chain_shape(self, state: Any) -> Any:
            return state.shape[:-1]

        def estimate(self, state: Any, seed: Any, target_state: Any = (), **options: Any) -> Any:
            product = -3.0 * options["probe"] * tf.reduce_sum(state)
            return sgmcmc.GradientEstimate((), tf.zeros([]), hessian_product=product)

    found = sgmcmc.largest_curvature(Other(), tf.constant([[1.0, 0.0], [2.0, 0.0]]))
    np.testing.assert_allclose(found, 6.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (dict(num_iterations=0), ValueError, "num_iterations must be at least 1. Received: 0"),
        (dict(max_examples=1.5), TypeError, "max_examples must be an integer. Received: 1.5"),
        (dict(metric=2.0), TypeError, "metric must be a callable, v -> M v. Received: a float"),
        (dict(metric=lambda v: -v), ValueError, "metric must be positive definite. Received"),
        (dict(metric=lambda v: None), ValueError, r"metric must return a vector in the structure"),
        (dict(metric=lambda v: v[:3]), ValueError, r"metric must broadcast .* \(8,\)\. Rec"),
        (dict(state=np.full(8, 1e200)), ValueError, "second derivatives .* must be finite"),
    ],
)
def test_bad_input(options: dict[str, Any], error: type, message: str) -> None:
    arguments = dict(target=lambda x: -tf.reduce_sum(x**4), state=tf.ones([8], tf.float64))
    with pytest.raises(error, match=message):
        sgmcmc.largest_curvature(**{**arguments, **options})


def test_factors_of_an_inverse_do_not_depend_on_units_and_always_exist() -> None:
    basis = np.vander(np.linspace(0.0, 1.0, 50), 4, increasing=True)
    units = 10.0 ** np.array([12.0, -9.0, 3.0, -12.0])
    precision = basis.T @ basis
    root = root_of_inverse(precision)
    np.testing.assert_allclose(root_of_inverse(precision * np.outer(units, units)),
                               root / units[:, np.newaxis], rtol=1e-6)  # fmt: skip
    np.testing.assert_allclose(inverse(precision), root @ root.T, rtol=1e-6)
    singular = np.outer([1.0, 2.0], [1.0, 2.0]) - np.diag([1e-14, 1e-14])
    found = root_of_inverse(singular)
    assert np.isfinite(found).all() and (np.diag(found) > 0).all() and found[0, 1] == 0


def test_factors_of_a_nearly_singular_inverse_are_accurate() -> None:
    """Powers of an hour: variances of directions differ by eleven orders of magnitude.

    A factor of the explicit inverse, the control, is a hundred times too wide along some, if it
    exists.
    """
    hours = np.random.default_rng(0).uniform(0, 24, 300)
    basis = np.vander(hours, 9) / 24.0 ** np.arange(8, -1, -1)
    precision = basis.T @ basis
    scale = np.sqrt(np.diag(precision))
    scaled = precision / np.outer(scale, scale)
    assert np.linalg.cond(scaled) > 1e11
    root = root_of_inverse(precision)
    again = root_of_inverse(precision_of(root))
    for factor in (root, again):
        np.testing.assert_allclose(factor.T @ precision @ factor, np.eye(9), atol=1e-4)
    with contextlib.suppress(np.linalg.LinAlgError):
        explicit = np.linalg.cholesky(np.linalg.inv(scaled)) / scale[:, np.newaxis]
        assert np.abs(explicit.T @ precision @ explicit - np.eye(9)).max() > 10


def test_a_subsample_of_shards_is_that_of_each_call() -> None:
    """Programs are kept with the target, and each number of examples has one of its own."""

    def load(s: int) -> Any:
        return tf.nest.map_structure(lambda x: x[s::2], DATA)

    target = sgmcmc.ShardedLogProb(log_prior, log_likelihood, load, 2, N, 4)
    state = tf.constant(THETA[0])
    alone = [
        sgmcmc.largest_curvature(target.with_minibatches(4), state, max_examples=n) for n in (8, N)
    ]
    sgmcmc.find_center(target, state)  # which keeps programs
    found = [sgmcmc.largest_curvature(target, state, max_examples=n) for n in (8, N)]
    np.testing.assert_allclose(found, alone, rtol=RTOL)
    assert abs(found[0] / found[1] - 1) > 1e-3  # negative control
