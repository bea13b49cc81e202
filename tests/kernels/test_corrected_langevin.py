"""CorrectedLangevin leaves its target invariant, at large steps and with a moving M.

Chains start in the exact target law and must stay in it. Their states are independent draws after
every number of steps, so tests have their stated false-alarm rate, 1e-6. The checks verify their
power. Mutations of the proposal go through the same checks and are rejected.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.chains import run_chains
from tests.harness.fast_settings import fast_settings
from tests.harness.gaussian_mean import GaussianMean
from tests.harness.one_dimension import density_law
from tests.harness.statistics import Rejected, check_cdf, check_covariance, check_means
from tfp_sgmcmc.kernels.corrected_langevin import LangevinProposal
from tfp_sgmcmc.preconditioners import FullMatrix, NaturalGradientICA, PositionDependent

CHAINS = 100_000
GENERATOR = np.random.default_rng(0)


def acceptance(kernel: Any, state: Any, seed: int = 3) -> np.ndarray:
    """Returns the acceptance probabilities of one step, `[chains]`."""

    @tf.function(autograph=False)
    def step(state: Any) -> tf.Tensor:
        results = kernel.one_step(state, kernel.bootstrap_results(state), tf.constant([0, seed]))[1]
        return tf.exp(tf.minimum(results.log_accept_ratio, 0.0))

    return step(state).numpy()


# A skewed target with M(theta) = 1 / (1 + theta^2)


def quartic(theta: Any) -> Any:
    return -(theta**4) / 4 + theta**3 / 3 + theta**2 / 2


LAW = density_law(quartic, limit=6.0, num_cells=20_000)
STEP = 1.5
DISTANCE = 0.015


def moving(divergence: Any = 1.0, log_det: Any = 1.0, quadratic: Any = 1.0) -> Any:
    """Returns M with factors of what an acceptance ratio needs, each one number or by chain."""
    return PositionDependent(
        multiply_fn=lambda x, v: v / (1 + x**2),
        sqrt_multiply_fn=lambda x, z: z / tf.sqrt(1 + x**2),
        divergence_fn=lambda x: -2 * x / (1 + x**2) ** 2 * divergence,
        inverse_quadratic_fn=lambda x, v: quadratic * v**2 * (1 + x**2),
        log_det_fn=lambda x: -log_det * tf.math.log1p(x**2),
    )


class BackwardAtTheWrongEnd(LangevinProposal):
    """A proposal that evaluates M of the way back where the way out started."""

    def matrix(self, state: Any, log_prob: tf.Tensor) -> Any:
        if getattr(self, "_start", None) is None:
            self._start = state
        else:
            state, self._start = self._start, None
        return super().matrix(state, log_prob)

    def bootstrap_results(self, init_state: Any) -> Any:
        results = super().bootstrap_results(init_state)
        self._start = None
        return results


class SignOfCorrectionSwapped(LangevinProposal):
    def one_step(self, *args: Any, **kwargs: Any) -> Any:
        state, results = super().one_step(*args, **kwargs)
        return state, results._replace(log_acceptance_correction=-results.log_acceptance_correction)


def skewed_samples(kernel: Any, num_steps: int, jit: bool = False) -> np.ndarray:
    state = tf.constant(LAW.draw(CHAINS, seed=1), tf.float32)
    return run_chains(kernel, state, 1, num_steps - 1, seed=2, jit=jit)[:, 0, 0]


@pytest.mark.parametrize("num_steps", [1, pytest.param(10, marks=pytest.mark.thorough)])
def test_one_dimension_with_a_moving_matrix(num_steps: int) -> None:
    """Power: a Kolmogorov distance of 1.5%."""
    kernel = sgmcmc.CorrectedLangevin(quartic, STEP, moving())
    check_cdf(skewed_samples(kernel, num_steps, jit=num_steps > 1), LAW.cdf, DISTANCE)


FACTORS = {  # of div M, log det M and the quadratic form
    "div M left out": (0.0, 1.0, 1.0),
    "log determinant left out": (1.0, 0.0, 1.0),
    "log determinant of M^(1/2)": (1.0, 0.5, 1.0),
    "quadratic form left out": (1.0, 1.0, 0.0),
}


@pytest.fixture(scope="module")
def with_factors() -> dict[str, np.ndarray]:
    """Returns samples with each of the `FACTORS`, which are groups of the chains of one kernel."""
    factors = np.repeat(np.array([*FACTORS.values()], np.float32), CHAINS, axis=0).T
    kernel = sgmcmc.CorrectedLangevin(quartic, STEP, moving(*factors))
    state = tf.tile(tf.constant(LAW.draw(CHAINS, seed=1), tf.float32), [len(FACTORS)])
    samples = run_chains(kernel, state, 1, 9, seed=2, jit=False)[:, 0, 0]
    return dict(zip(FACTORS, np.split(samples, len(FACTORS)), strict=True))


@pytest.mark.thorough
def test_any_drift_is_corrected(with_factors: dict[str, np.ndarray]) -> None:
    """Without div M the proposal is worse, but the law is the same."""
    check_cdf(with_factors["div M left out"], LAW.cdf, DISTANCE)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*FACTORS][1:])
def test_other_acceptance_ratios_are_rejected(
    name: str, with_factors: dict[str, np.ndarray]
) -> None:
    with pytest.raises(Rejected):
        check_cdf(with_factors[name], LAW.cdf, DISTANCE)


def test_the_step_is_large() -> None:
    """The Metropolis test then matters, and the mutations below are visible."""
    state = tf.constant(LAW.draw(CHAINS, seed=1), tf.float32)
    kernel = sgmcmc.CorrectedLangevin(quartic, STEP, moving())
    assert 0.3 < acceptance(kernel, state).mean() < 0.8


MUTATIONS = {
    "M at the wrong end": lambda: BackwardAtTheWrongEnd(quartic, STEP, moving()),
    "ratio upside down": lambda: SignOfCorrectionSwapped(quartic, STEP, moving()),
}


@pytest.mark.parametrize("name", fast_settings(MUTATIONS, "M at the wrong end"))
def test_mutations_are_rejected(name: str) -> None:
    kernel = tfp.mcmc.MetropolisHastings(MUTATIONS[name]())
    with pytest.raises(Rejected):
        check_cdf(skewed_samples(kernel, 10), LAW.cdf, DISTANCE)


@pytest.mark.thorough
def test_accepting_always_is_rejected() -> None:
    proposal = LangevinProposal(quartic, STEP, moving())
    with pytest.raises(Rejected):
        check_cdf(skewed_samples(proposal, 10), LAW.cdf, DISTANCE)


# Gaussian targets in several dimensions

COVARIANCE = np.array([[1.0, 0.8, 0.3], [0.8, 2.0, -0.2], [0.3, -0.2, 0.5]])
MEAN = np.array([1.0, -2.0, 0.5])
PRECISION = np.linalg.inv(COVARIANCE)


def gaussian(theta: tf.Tensor) -> tf.Tensor:
    centred = theta - tf.constant(MEAN, theta.dtype)
    precision = tf.constant(PRECISION, theta.dtype)
    return -0.5 * tf.reduce_sum(centred * tf.linalg.matmul(centred, precision), axis=-1)


def gaussian_start() -> np.ndarray:
    generator = np.random.default_rng(5)
    return MEAN + generator.standard_normal([CHAINS, 3]) @ np.linalg.cholesky(COVARIANCE).T


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("step_size", "preconditioner"),
    [
        (0.5, None),
        pytest.param(1.2, np.array([0.5, 1.0, 0.3]), marks=pytest.mark.slow),
        pytest.param(
            1.5, FullMatrix(COVARIANCE + np.diag([0.5, 0, 0])), marks=pytest.mark.thorough
        ),
    ],
    ids=["identity", "diagonal", "full"],
)
def test_correlated_gaussian(step_size: float, preconditioner: Any) -> None:
    """Tests the law after ten steps. Power: 5% of a variance."""
    kernel = sgmcmc.CorrectedLangevin(gaussian, step_size, preconditioner)
    start = tf.constant(gaussian_start(), tf.float32)
    assert 0.3 < acceptance(kernel, start).mean() < 0.8
    jit = isinstance(preconditioner, FullMatrix)
    samples = run_chains(kernel, start, num_results=1, num_burnin=9, seed=6, jit=jit)
    check_covariance(samples, MEAN, COVARIANCE, 0.05)


@pytest.mark.slow
def test_two_parts_with_step_sizes_of_their_own() -> None:
    kernel = sgmcmc.CorrectedLangevin(
        lambda a, b: gaussian(tf.concat([a[..., tf.newaxis], b], axis=-1)), [0.8, 0.4]
    )
    start = gaussian_start().astype(np.float32)
    state = [tf.constant(start[:, 0]), tf.constant(start[:, 1:])]
    assert 0.3 < acceptance(kernel, state).mean() < 0.8
    samples = run_chains(kernel, state, num_results=1, num_burnin=9, seed=7, jit=False)
    check_covariance(samples, MEAN, COVARIANCE, 0.05)
    proposal = LangevinProposal(kernel.parameters["target_log_prob_fn"], [0.8, 0.4])
    always = run_chains(proposal, state, num_results=1, num_burnin=9, seed=7, jit=False)
    with pytest.raises(Rejected):
        check_covariance(always, MEAN, COVARIANCE, 0.05)


# The acceptance ratio


@pytest.mark.thorough
@pytest.mark.parametrize(
    "step_size",
    [pytest.param(0.5, marks=pytest.mark.slow), 1.5, pytest.param(3.0, marks=pytest.mark.slow)],
)
def test_acceptance_rate_is_the_exact_one(step_size: float) -> None:
    """It is E[min(1, r)] of N(0, 1), with the docstring's r, by quadrature over theta and z.

    Power: 1% of the acceptance rate.
    """
    kernel = sgmcmc.CorrectedLangevin(lambda x: -0.5 * x**2, step_size)
    start = tf.constant(np.random.default_rng(8).standard_normal(CHAINS), tf.float32)
    grid = np.linspace(-8, 8, 1601)
    weight = np.exp(-0.5 * grid**2)
    weight /= weight.sum()
    theta, z = np.meshgrid(grid, grid, indexing="ij")

    def mean(x: np.ndarray) -> np.ndarray:
        return x - step_size / 2 * x

    proposed = mean(theta) + np.sqrt(step_size) * z
    log_r = 0.5 * (theta**2 - proposed**2 - (theta - mean(proposed)) ** 2 / step_size + z**2)
    expected = weight @ np.exp(np.minimum(log_r, 0)) @ weight
    found = acceptance(kernel, start)
    check_means(found, expected, error=0.01)

    @tf.function(jit_compile=True, autograph=False)
    def step(state: tf.Tensor) -> tf.Tensor:
        return kernel.one_step(state, kernel.bootstrap_results(state), tf.constant([1, 3]))[1]

    check_means(step(start).is_accepted.numpy().astype(float), expected, error=0.015)
    with pytest.raises(Rejected):
        check_means(found, expected + 0.01, error=0.01)


def test_acceptance_ratio_by_hand() -> None:
    """Tests the docstring's log r for natural-gradient ICA, with M as an explicit matrix."""

    def log_prob(w: tf.Tensor) -> tf.Tensor:
        return -0.5 * tf.reduce_sum(w**2 + 0.1 * w**4, axis=[-2, -1])

    epsilon, w = 0.3, GENERATOR.standard_normal([2, 2]) + 2 * np.eye(2)
    kernel = sgmcmc.CorrectedLangevin(log_prob, epsilon, NaturalGradientICA())
    state = tf.constant(w[np.newaxis])
    seed = tf.constant([7, 8])
    _, results = kernel.one_step(state, kernel.bootstrap_results(state), seed)
    proposed = results.proposed_state.numpy()[0]

    def matrix(w: np.ndarray) -> np.ndarray:
        return np.kron(np.eye(2), w.T @ w)

    def mean(w: np.ndarray) -> np.ndarray:
        gradient = -w - 0.2 * w**3
        drift = matrix(w) @ gradient.ravel() + 3 * w.ravel()
        return w.ravel() + epsilon / 2 * drift

    def log_q(to: np.ndarray, start: np.ndarray) -> float:
        residual = to.ravel() - mean(start)
        quadratic = residual @ np.linalg.solve(matrix(start), residual)
        return -0.5 * np.linalg.slogdet(matrix(start))[1] - quadratic / (2 * epsilon)

    def value(w: np.ndarray) -> float:
        return -0.5 * np.sum(w**2 + 0.1 * w**4)

    expected = value(proposed) - value(w) + log_q(w, proposed) - log_q(proposed, w)
    np.testing.assert_allclose(results.log_accept_ratio.numpy()[0], expected, rtol=1e-9)
    noise = (proposed.ravel() - mean(w)) / np.sqrt(epsilon)
    z = np.linalg.solve(np.kron(np.eye(2), w.T), noise)
    assert np.sum(z**2) < 30  # chi-square with 4 degrees of freedom: 5e-6


# The kernel in TensorFlow Probability


@pytest.mark.slow
@pytest.mark.parametrize("adaptation", ["dual averaging", "simple"])
def test_step_size_adaptation_reaches_its_target(adaptation: str) -> None:
    """The acceptance rate of 64 chains in the last 500 steps is within 0.03 of the target.

    The rate of 32,000 dependent decisions has a standard error below 0.008 even at an
    autocorrelation time of 8. The rest of 0.03 allows for the error of the adaptation.
    """
    inner = sgmcmc.CorrectedLangevin(gaussian, step_size=0.01)
    if adaptation == "simple":
        kernel = tfp.mcmc.SimpleStepSizeAdaptation(inner, 1000, target_accept_prob=0.574)
    else:
        kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(inner, 1000, target_accept_prob=0.574)

    @tf.function(jit_compile=True, autograph=False)
    def run(seed: tf.Tensor) -> Any:
        return tfp.mcmc.sample_chain(
            500,
            tf.zeros([64, 3]),
            kernel=kernel,
            num_burnin_steps=1000,
            seed=seed,
            trace_fn=lambda _, r: (
                r.inner_results.is_accepted,
                r.inner_results.accepted_results.step_size,
            ),
        )

    samples, (accepted, step_size) = run(tf.constant([0, 1]))
    assert abs(np.mean(accepted) - 0.574) < 0.03
    assert np.ptp(step_size) == 0 and step_size[0] > 0.1
    assert np.all(np.isfinite(samples))


@pytest.mark.thorough
def test_a_minibatch_target_gives_its_exact_log_posterior() -> None:
    """Chains stay in a conjugate posterior. Power: 5% of a variance."""
    model = GaussianMean()
    covariance = np.linalg.inv(model.hessian)
    generator = np.random.default_rng(9)
    start = model.mean + generator.standard_normal([CHAINS, 3]) @ np.linalg.cholesky(covariance).T
    kernel = sgmcmc.CorrectedLangevin(model.target(batch_size=4), 0.06)
    state = tf.constant(start, tf.float32)
    assert 0.3 < acceptance(kernel, state).mean() < 0.9
    samples = run_chains(kernel, state, num_results=1, num_burnin=4, seed=10, jit=False)
    check_covariance(samples, model.mean, covariance, 0.05)


def test_rejected_chains_stay_and_keep_their_results() -> None:
    kernel = sgmcmc.CorrectedLangevin(gaussian, 2.0)
    state = tf.constant(gaussian_start()[:200])
    before = kernel.bootstrap_results(state)
    moved, after = kernel.one_step(state, before, tf.constant([1, 2]))
    accepted = after.is_accepted.numpy()
    assert 0 < accepted.sum() < 200
    np.testing.assert_array_equal(moved[~accepted], state[~accepted])
    kept = after.accepted_results
    np.testing.assert_allclose(kept.target_log_prob, gaussian(moved))
    gradient = -(moved.numpy() - MEAN) @ PRECISION
    np.testing.assert_allclose(kept.grads_target_log_prob, gradient)
    tf.nest.assert_same_structure(before, after)
