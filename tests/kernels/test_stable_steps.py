"""Each kernel contracts below its `largest_stable_step` and not above it.

On a Gaussian posterior a step without noise is linear. Its matrix comes from the kernel's code, by
steps at basis vectors. The spectral radius is below 1 at 0.99 of the limit, and above 1 at 1.01.
"""

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness.by_hand import as_estimator
from tests.harness.gaussian_mean import GaussianMean
from tests.harness.linear_steps import QuadraticWithScores, spectral_radius, step_matrix
from tests.kernels.test_skeleton import skeleton
from tfp_sgmcmc.preconditioners import Diagonal, FullMatrix, RMSprop

HESSIAN = GaussianMean(num_examples=12).hessian
FULL = np.array([[1.0, -0.3, 0.2], [-0.3, 0.6, 0.1], [0.2, 0.1, 0.8]])
MASS = np.array([0.5, 1.0, 2.0])
COLD, HEAVY = 1e-20, 1e250  # a temperature without noise, a thermal mass that keeps xi
EXACT = sgmcmc.FullDataLogProb(
    lambda x: -0.5 * tf.reduce_sum(x * tf.linalg.matvec(tf.constant(HESSIAN), x), axis=-1)
)
NOISY = QuadraticWithScores(HESSIAN, FULL)
ALIGNED = QuadraticWithScores(HESSIAN, 2 * HESSIAN)


def columns(kernel: Any, results: Any, chains: int) -> np.ndarray:
    """Returns M H by columns, through `metric_product` of one chain for each column."""
    vectors, state = np.zeros([chains, 3]), tf.zeros([chains, 3], tf.float64)
    vectors[:3] = HESSIAN
    return np.asarray(kernel.metric_product(tf.constant(vectors), state, results))[:3].T


def radius_and_limit(kernel: Any, target: Any, options: dict[str, Any], h: Any) -> tuple[Any, Any]:
    """Returns the spectral radius of a step, and the largest stable step in its results."""
    matrix, made, results = step_matrix(
        lambda target: kernel(target, h, **options), target, 3, num_before=int(target is not EXACT)
    )
    product = columns(made, results, 1 + len(matrix))
    product = np.reshape(h / np.max(h), [-1, 1]) * product  # steps that differ between entries
    curvature = np.abs(np.linalg.eigvals(product)).max()
    given = {} if target is EXACT else {"results": results}
    limit = np.ravel(made.largest_stable_step(curvature, **given))
    np.testing.assert_array_equal(limit, limit[0])
    return spectral_radius(matrix), float(limit[0])


THERMOSTAT = dict(thermal_mass=HEAVY)
CASES = [
    (sgmcmc.SGLD, EXACT, {}),
    (sgmcmc.SGLD, EXACT, dict(preconditioner=FullMatrix(FULL))),
    (sgmcmc.SGLD, EXACT, dict(preconditioner=Diagonal(MASS))),
    (sgmcmc.ModifiedSGLD, NOISY, {}),
    (skeleton(), EXACT, {}),
    (sgmcmc.ReplicaExchangeSGLD, EXACT, dict(temperatures=[1.0, 2.0], preconditioner=MASS)),
    *(
        pytest.param(
            kernel,
            target,
            dict(friction=friction, mass=mass, **options),
            marks=[pytest.mark.thorough] * (friction < 1),
        )
        for kernel, target, options in [
            (sgmcmc.UnderdampedLangevin, EXACT, dict(scheme="baoab")),
            (sgmcmc.UnderdampedLangevin, EXACT, dict(scheme="aboba")),
            (sgmcmc.UnderdampedLangevin, EXACT, dict(scheme="obabo")),
            (sgmcmc.SGNHT, EXACT, dict(scheme="euler", **THERMOSTAT)),
            (sgmcmc.SGNHT, EXACT, dict(scheme="adodab", **THERMOSTAT)),
            (sgmcmc.CCAdL, EXACT, THERMOSTAT),
            (sgmcmc.CCAdL, NOISY, dict(num_estimation_steps=0, **THERMOSTAT)),
            (sgmcmc.CCAdL, EXACT, dict(scheme="euler", **THERMOSTAT)),
            (sgmcmc.NOGIN, EXACT, {}),
            (sgmcmc.NOGIN, NOISY, dict(num_estimation_steps=0)),
        ]
        for friction, mass in [(0.5, 1.0), (8.0, MASS)]
    ),
    (sgmcmc.SGNHT, EXACT, dict(friction=2.0, thermostat="per_coordinate", **THERMOSTAT)),
    (
        sgmcmc.CCAdL,
        ALIGNED,
        dict(friction=2.0, mass=2.0, temperature=0.5, scheme="euler", **THERMOSTAT),
    ),
    *((sgmcmc.SGHMC, EXACT, dict(friction=a, mass=m)) for a, m in [(0.5, 1.0), (8.0, 2.0)]),
    pytest.param(sgmcmc.SGHMC, NOISY, dict(friction=8.0), marks=pytest.mark.thorough),
]


@pytest.mark.parametrize(("kernel", "target", "options"), CASES)
def test_the_limit_is_exact(kernel: Any, target: Any, options: dict[str, Any]) -> None:
    _, limit = radius_and_limit(kernel, target, options, 0.01)
    assert radius_and_limit(kernel, target, options, 0.99 * limit)[0] < 1
    assert radius_and_limit(kernel, target, options, 1.01 * limit)[0] > 1


BOUNDS = [  # unequal masses with a friction by mass, and a Sigma that does not commute with H
    (sgmcmc.SGHMC, EXACT, dict(friction=8.0, mass=MASS)),
    (sgmcmc.CCAdL, NOISY, dict(friction=2.0, mass=MASS, scheme="euler", **THERMOSTAT)),
]


@pytest.mark.parametrize(("kernel", "target", "options"), BOUNDS)
def test_the_limit_is_safe(kernel: Any, target: Any, options: dict[str, Any]) -> None:
    """The exact limit is higher, by less than a factor of 1.5 here."""
    _, limit = radius_and_limit(kernel, target, options, 0.01)
    assert radius_and_limit(kernel, target, options, 0.99 * limit)[0] < 1
    assert radius_and_limit(kernel, target, options, 1.5 * limit)[0] > 1


def test_steps_that_differ_between_entries() -> None:
    """The limit is one of the largest of them."""
    sizes, kernel = np.array([1.0, 0.5, 0.1]), sgmcmc.SGLD
    _, limit = radius_and_limit(kernel, EXACT, {}, 0.01 * sizes)
    assert radius_and_limit(kernel, EXACT, {}, 0.99 * limit * sizes)[0] < 1
    assert radius_and_limit(kernel, EXACT, {}, 1.01 * limit * sizes)[0] > 1
    assert limit > 1.3 * radius_and_limit(kernel, EXACT, {}, 0.01)[1]


@pytest.mark.parametrize(
    "options",
    [dict(alpha=0.0), pytest.param(dict(step_size=0.5, B=MASS), marks=pytest.mark.thorough)],
)
def test_fisher_scoring_is_stable_where_its_matrix_exceeds_the_curvature(options: Any) -> None:
    """A V that is too small, in one direction of H, makes it unstable whatever epsilon is."""

    def case(share: float) -> tuple[float, float, float]:
        values, vectors = np.linalg.eigh(HESSIAN)
        v = (vectors * values * [1, 1, share]) @ vectors.T
        target = QuadraticWithScores(HESSIAN, v, noise_scale=0.1)
        make = functools.partial(sgmcmc.SGFS, num_estimation_steps=0, **options)
        matrix, made, results = step_matrix(make, target, 3, num_before=1)
        curvature = np.abs(np.linalg.eigvals(columns(made, results, 4))).max()
        limit = made.largest_stable_step(curvature, results=results)
        return curvature, spectral_radius(matrix), limit

    low, high = 1e-3, 1.0  # shares of N V with curvatures above and below 1
    for _ in range(12):  # to 0.2 %
        middle = (low * high) ** 0.5
        low, high = (low, middle) if case(middle)[0] < 1 else (middle, high)
    for share in (high, 1.0):
        curvature, radius, limit = case(1.02 * share)
        assert curvature < 1 and radius < 1 and limit == np.inf
    curvature, radius, limit = case(0.98 * low)
    assert curvature > 1 and radius > 1 and limit < options.get("step_size", np.inf)


def test_fisher_scoring_before_the_first_minibatch() -> None:
    kernel, state = sgmcmc.SGFS(NOISY, alpha=0.0), tf.zeros([3], tf.float64)
    product = kernel.metric_product(state + 1, state, kernel.bootstrap_results(state))
    np.testing.assert_allclose(product, np.full(3, 1e-12))


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        (sgmcmc.SGLD, dict(temperature=COLD)),
        (sgmcmc.UnderdampedLangevin, dict(temperature=COLD, scheme="obabo")),
        *(
            pytest.param(kernel, dict(temperature=COLD, **options), marks=pytest.mark.thorough)
            for kernel, options in (
                (sgmcmc.ModifiedSGLD, {}),
                (sgmcmc.SGHMC, {}),
                (sgmcmc.SGNHT, THERMOSTAT),
                (sgmcmc.CCAdL, THERMOSTAT),
            )
        ),
        pytest.param(sgmcmc.NOGIN, dict(temperature=COLD), marks=pytest.mark.thorough),
    ],
)
def test_a_run_contracts_below_the_limit_and_grows_above_it(
    kernel: Any, options: dict[str, Any]
) -> None:
    """The first chain has 0.99 of the limit, the second 1.01."""
    state = tf.ones([2, 3], tf.float64)
    made = kernel(EXACT, 0.01, **options)
    product = columns(made, made.bootstrap_results(tf.ones([3, 3], tf.float64)), 3)
    limit = made.largest_stable_step(np.linalg.eigvals(product).real.max())
    h = limit * np.array([0.99, 1.01])
    made = made.copy(step_size=h if "friction" in made.parameters else h[:, np.newaxis])

    @tf.function(autograph=False)
    def run(state: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, state: tf.Tensor, results: Any) -> Any:
            return i + 1, *made.one_step(state, results, seed=tf.stack([0, i]))

        start = (tf.constant(0), state, made.bootstrap_results(state))
        return tf.while_loop(lambda i, *_: i < 600, body, start)[1]

    stable, unstable = np.abs(run(state)).max(axis=-1)
    assert stable < 0.1 and unstable > 10


def test_settings_at_a_step_and_in_results() -> None:
    falling = sgmcmc.SGHMC(EXACT, 0.01, lambda t: 8.0 / (1.0 + tf.cast(t, tf.float64)))
    assert falling.largest_stable_step(1.0) == 4 / (8 + 68**0.5)
    assert falling.largest_stable_step(1.0, step=7) == 4 / (1 + 5**0.5)
    state = tf.ones([3], tf.float64)
    results = falling.bootstrap_results(state)._replace(friction=tf.constant(2.0))
    assert falling.largest_stable_step(1.0, results=results) == 4 / (2 + 8**0.5)
    assert falling.largest_stable_step(np.array([1.0, 0.0])).tolist() == [4 / (8 + 68**0.5), 0.25]


def test_a_flat_posterior_has_no_limit() -> None:
    for kernel in (sgmcmc.SGLD, sgmcmc.NOGIN):
        assert kernel(EXACT, 0.01).largest_stable_step(0.0) == np.inf
        assert kernel(EXACT, 0.01).largest_stable_step(-1.0) == np.inf


def test_a_metropolis_test_makes_every_step_stable() -> None:
    kernel, state = sgmcmc.CorrectedLangevin(EXACT, 0.1, FULL.diagonal()), tf.zeros([3], tf.float64)
    results = kernel.bootstrap_results(state)
    assert kernel.largest_stable_step(1e9) == np.inf
    np.testing.assert_allclose(kernel.metric_product(state + 1, state, results), FULL.diagonal())


@pytest.mark.parametrize("num_before", [0, 3])
def test_the_metric_of_a_preconditioner_that_learns(num_before: int) -> None:
    """M is that of the next step, from its difference to a step with other noise."""
    kernel = sgmcmc.SGLD(EXACT, 0.1, temperature=0.0, preconditioner=RMSprop(0.9, 0.1, gamma=False))
    state = tf.constant([1.0, -2.0, 0.5], tf.float64)
    results = kernel.bootstrap_results(state)
    for seed in range(num_before):
        state, results = kernel.one_step(state, results, seed)
    gradient = -tf.linalg.matvec(HESSIAN, state)
    moved, _ = kernel.one_step(state, results, 0)
    product = kernel.metric_product(gradient, state, results)
    np.testing.assert_allclose(moved - state, 0.05 * product, rtol=1e-9)


def test_replicas_have_the_metric_of_the_first() -> None:
    kernel = sgmcmc.ReplicaExchangeSGLD(EXACT, [0.1, 0.2], [1.0, 2.0], preconditioner=RMSprop())
    state = tf.ones([2, 3], tf.float64)
    state, results = kernel.one_step(state, kernel.bootstrap_results(state), 0)
    product = kernel.metric_product(tf.ones_like(state), state, results)
    assert product.shape == state.shape and np.all(product.numpy() > 0)


def test_the_past_covariance_is_known_without_a_minibatch() -> None:
    for covariance in ("full", "diag", as_estimator("low_rank")):
        kernel = sgmcmc.CCAdL(NOISY, 0.01, covariance=covariance)
        state = tf.zeros([2, 3], tf.float64)
        results = kernel.bootstrap_results(state)
        before = kernel._noise.past(state, results.covariance_state)
        np.testing.assert_array_equal(before.multiply(state + 1), 0)
        _, results = kernel.one_step(state, results, 0)
        sigma = kernel._noise.past(state, results.covariance_state)
        expected = np.diagonal(FULL) if covariance == "diag" else FULL.sum(axis=-1)
        np.testing.assert_allclose(sigma.multiply(state + 1), [expected] * 2, rtol=1e-9)
