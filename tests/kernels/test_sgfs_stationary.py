"""SGFS samples its exact stationary law, which is the posterior under its assumptions.

On the Gaussian-mean model, with V known, steps are linear with noise of constant covariance. With
A the posterior's precision, Sigma the gradient noise, H = gamma N V + C and C = 4 B / epsilon,

  S = F S F^T + 4 H^-1 (Sigma + T C) H^-1,  F = I - 2 H^-1 A,

T A^-1 solves this only if H = A + Sigma / T + C, which holds if A = N V.

False-alarm rate: 1e-6 a test. Power: an error of 5% in the variance of any whitened direction is
found with probability 0.999, which the checks verify. One compiled program runs several groups of
chains with different numbers.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scipy.linalg import solve_discrete_lyapunov

import tfp_sgmcmc as sgmcmc
from tests.harness.by_hand import FULL, KEPT
from tests.harness.chains import run_chains
from tests.harness.gaussian_mean import PRECISION, GaussianMean
from tests.harness.known_scores import KnownScores
from tests.harness.mutation import last_groups_broken
from tests.harness.statistics import Rejected, check_covariance
from tfp_sgmcmc.preconditioners import FullMatrix

CHAINS = 8000  # in each group
ERROR = 0.05
IDENTITY = np.eye(3)
CG = sgmcmc.covariance.Full(solver="cg")  # quicker than many small factors
LEAST = 1e-3  # C is raised to this part of the diagonal of gamma N V


class FisherMean(GaussianMean):
    """The Gaussian-mean model with a flat prior, and data whose covariance is exactly P^-1.

    The covariance of the scores in minibatches (with divisor N for draws with replacement, N - 1
    without) is then P, and N P is the precision of the posterior.
    """

    def __init__(self, num_examples: int, replacement: bool):
        super().__init__(num_examples)
        centred = self.data - self.data.mean(axis=0)
        found = np.cov(centred, rowvar=False, ddof=0 if replacement else 1)
        root = np.linalg.cholesky(np.linalg.inv(PRECISION))
        whitened = centred @ np.linalg.inv(np.linalg.cholesky(found)).T
        self.data = self.data.mean(axis=0) + whitened @ root.T
        self.hessian = num_examples * PRECISION
        self.mean = self.data.mean(axis=0)
        self.score_covariance = PRECISION * (
            num_examples / (num_examples - 1) if replacement else 1
        )

    def target(self, batch_size: int, dtype: Any = tf.float32, **options: Any) -> Any:
        precision = tf.constant(PRECISION, dtype)

        def log_likelihood(theta: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
            residual = batch - theta[..., tf.newaxis, :]
            return -0.5 * tf.reduce_sum(residual * (residual @ precision), axis=-1)

        return sgmcmc.MinibatchLogProb(
            lambda theta: tf.zeros_like(theta[..., 0]),
            log_likelihood,
            self.data,
            batch_size,
            dtype=dtype,
            score_fn=lambda theta, batch: (batch - theta[..., tf.newaxis, :]) @ precision,
            **options,
        )


def sgfs_covariance(
    hessian: np.ndarray,
    noise: np.ndarray,
    fisher: np.ndarray,
    injected: np.ndarray,
    temperature: float = 1.0,
) -> np.ndarray:
    """Returns the stationary law, where `fisher` is gamma N V and `injected` is C."""
    matrix = np.linalg.inv(fisher + injected)
    contraction = np.eye(len(hessian)) - 2 * matrix @ hessian
    assert np.max(np.abs(np.linalg.eigvals(contraction))) < 1
    total = noise + temperature * injected
    return solve_discrete_lyapunov(contraction, 4 * matrix @ total @ matrix)


def raised(injected: np.ndarray, fisher: np.ndarray) -> np.ndarray:
    """Returns C, which is at least LEAST of the diagonal of gamma N V."""
    lacking = np.maximum(LEAST * np.diag(fisher) - np.diag(injected), 0)
    return injected + np.diag(lacking)


def repeated(values: Any) -> np.ndarray:
    return np.repeat(np.asarray(values, np.float32), CHAINS)


def groups(samples: np.ndarray, num: int) -> list[np.ndarray]:
    return np.split(samples, num)


# The law, bias included, of the model with a prior and unadjusted data, where A is not N V.

MODEL = GaussianMean(num_examples=12)
V, BATCH = MODEL.score_covariance, 5
NOISE = MODEL.noise(BATCH, replacement=True)
C_WITH = 12**2 / BATCH
ALPHAS = (5.0, 6.0)  # near alpha = 4 steps become unstable; 40 forget the start


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.slow
def test_law_of_every_kind_of_covariance(kept: str) -> None:
    target = KnownScores(MODEL.target(BATCH, parts=True, replacement=True), V * 11 / 12)
    kernel = sgmcmc.SGFS(target, alpha=repeated(ALPHAS), covariance=kept, temperature=1.5)
    state = [tf.ones([2 * CHAINS, 1]), tf.ones([2 * CHAINS, 2])]
    samples = run_chains(kernel, state, 30, 40, seed=1, jit=kept == "full")
    fisher = (12 + C_WITH / 1.5) * V * 11 / 12 * KEPT[kept]
    for alpha, group in zip(ALPHAS, groups(samples, 2), strict=True):
        law = sgfs_covariance(MODEL.hessian, NOISE, fisher, alpha**2 * IDENTITY, 1.5)
        check_covariance(group, MODEL.mean, law, ERROR, f"alpha = {alpha}")


@pytest.mark.parametrize(
    ("B", "matrix"),
    [
        (np.array([1.0, 3.0, 2.0]), np.diag([1.0, 3.0, 2.0])),
        (FullMatrix(FULL), FULL),
    ],
    ids=["diagonal", "full"],
)
@pytest.mark.slow
def test_law_of_matrices_b(B: Any, matrix: np.ndarray) -> None:
    target = KnownScores(MODEL.target(BATCH, replacement=True), V * 11 / 12)
    kernel = sgmcmc.SGFS(target, alpha=repeated(ALPHAS), B=B, covariance=CG)
    samples = run_chains(kernel, tf.ones([2 * CHAINS, 3]), 30, 40, seed=2, jit=False)
    fisher = (12 + C_WITH) * V * 11 / 12
    for alpha, group in zip(ALPHAS, groups(samples, 2), strict=True):
        law = sgfs_covariance(MODEL.hessian, NOISE, fisher, alpha**2 * matrix)
        check_covariance(group, MODEL.mean, law, ERROR, f"alpha = {alpha}")


# Exactness if A = N V.

EXACT = {
    "drawn with replacement": (5, True, dict(covariance="full")),
    "drawn without": (5, False, {}),
    "larger minibatches": (9, True, {}),
    "diagonal B": (5, True, dict(B=np.array([1.0, 3.0, 2.0]))),
    "full B": (5, True, dict(B=FullMatrix(FULL))),
    "B = N V": (5, True, dict(B="fisher")),
}
STEPS = (0.0, 1.0, 4.0)  # alpha; 0 is the infinite step size


FISHER = FisherMean(12, replacement=True)
POSTERIOR = np.linalg.inv(FISHER.hessian)


def known_target(noise_scale: Any = None) -> KnownScores:
    return KnownScores(FISHER.target(5, replacement=True), PRECISION, noise_scale)


# They differ from their neighbours only in numbers. Steps by hand cover diagonal B, too.
FURTHER = ("larger minibatches", "diagonal B", "B = N V", "full B", "drawn with replacement")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in FURTHER)) for name in EXACT],
)
def test_full_sgfs_samples_the_posterior_at_every_step_size(name: str) -> None:
    batch_size, replacement, options = EXACT[name]
    model = FisherMean(12, replacement)
    target = KnownScores(model.target(batch_size, replacement=replacement), PRECISION)
    alphas = (0.0, 0.5, 1.0) if name == "B = N V" else STEPS
    kernel = sgmcmc.SGFS(target, alpha=repeated(alphas), **{"covariance": CG, **options})
    samples = run_chains(kernel, tf.ones([3 * CHAINS, 3]), 20, 40, seed=3, jit=False)
    posterior = np.linalg.inv(model.hessian)
    for alpha, group in zip(alphas, groups(samples, 3), strict=True):
        check_covariance(group, model.mean, posterior, ERROR, f"alpha = {alpha}")


@pytest.mark.slow
def test_all_examples() -> None:
    """With all examples the gradient is exact, and gamma is 1."""
    model = FisherMean(12, replacement=False)
    kernel = sgmcmc.SGFS(model.target(12), alpha=4.0, covariance=CG)  # V is exact, too
    samples = run_chains(kernel, tf.ones([CHAINS, 3]), 20, 40, seed=4, jit=False)
    check_covariance(samples, model.mean, np.linalg.inv(model.hessian), ERROR)


@pytest.mark.slow
def test_temperature() -> None:
    """The covariance is T times that of the posterior."""
    temperatures = (0.6, 2.0)
    kernel = sgmcmc.SGFS(
        known_target(), alpha=1.0, covariance=CG, temperature=repeated(temperatures)
    )
    samples = run_chains(kernel, tf.ones([2 * CHAINS, 3]), 20, 40, seed=5, jit=False)
    for temperature, group in zip(temperatures, groups(samples, 2), strict=True):
        check_covariance(group, FISHER.mean, temperature * POSTERIOR, ERROR)


MUTATIONS = {
    "noise of twice the variance": dict(temperature=2.0),
    "gamma forgotten": dict(noise_scale=0.0),
    "Sigma off by N/n": dict(noise_scale=12**2 / 5 * 12 / 5),
    "gamma of draws without replacement": dict(noise_scale=12 * 7 / 5),
    "frozen part": {},
    "chains that are copies": {},
}


@pytest.fixture(scope="module")
def mutated() -> dict[str, np.ndarray]:
    scales = [m.get("noise_scale", C_WITH) for m in MUTATIONS.values()]
    temperature = repeated([m.get("temperature", 1.0) for m in MUTATIONS.values()])
    kernel = last_groups_broken(sgmcmc.SGFS, len(MUTATIONS))(
        known_target(repeated(scales)), alpha=1.0, covariance=CG, temperature=temperature
    )
    samples = run_chains(kernel, tf.ones([len(temperature), 3]), 20, 40, seed=6, jit=False)
    return dict(zip(MUTATIONS, groups(samples, len(MUTATIONS)), strict=True))


@pytest.mark.parametrize("name", MUTATIONS)
@pytest.mark.thorough
def test_mutations_are_rejected(name: str, mutated: dict[str, np.ndarray]) -> None:
    with pytest.raises(Rejected):
        check_covariance(mutated[name], FISHER.mean, POSTERIOR, ERROR)


class SecondHalfHasDivisorN(sgmcmc.covariance.Full):
    """Half of the chains are a mutation, with divisor n in place of n - 1."""

    def _statistic(self, centred: tf.Tensor) -> tf.Tensor:
        factor = tf.constant(repeated([1.0, 4 / 5]))
        return super()._statistic(centred) * factor[:, tf.newaxis, tf.newaxis]


@pytest.mark.slow
def test_v_estimated_from_minibatches_of_five() -> None:
    """V_t over 400 minibatches has an error of 4%, which cancels over chains to first order."""
    kernel = sgmcmc.SGFS(
        FISHER.target(5, replacement=True), alpha=1.0, covariance=SecondHalfHasDivisorN(solver="cg")
    )
    samples = run_chains(kernel, tf.ones([2 * CHAINS, 3]), 20, 400, seed=7, jit=False)
    right, mutation = groups(samples, 2)
    check_covariance(right, FISHER.mean, POSTERIOR, ERROR)
    with pytest.raises(Rejected):
        check_covariance(mutation, FISHER.mean, POSTERIOR, ERROR)


# SGFS-d on a correlated posterior


def correlated(batch_size: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns A = N V of two parameters with correlation 0.9, Sigma, and c, for N = 400."""
    hessian = 400 * np.array([[1.0, 0.9], [0.9, 1.0]])
    c = 400 * (400 - batch_size) / batch_size
    return hessian, c / 400 * hessian, c


def test_sgfs_d_has_too_little_variance_where_the_posterior_is_correlated() -> None:
    """Ahn et al. (section 5) found this. At alpha = 0 it is the conditional variance."""
    hessian, noise, c = correlated(batch_size=4)
    diagonal = (1 + c / 400) * np.diag(np.diag(hessian))
    conditional = 1 / np.diag(hessian)
    marginal = np.diag(np.linalg.inv(hessian))
    assert np.all(marginal > 5 * conditional)
    small = sgfs_covariance(hessian, noise, diagonal, raised(np.zeros([2, 2]), diagonal))
    np.testing.assert_allclose(np.diag(small), conditional, rtol=0.02)
    # The closed form without injected noise.
    law = c / 400 * np.linalg.inv(diagonal - hessian)
    np.testing.assert_allclose(small, law, rtol=0.02, atol=0.02 * law.max())
    variances = [
        np.diag(sgfs_covariance(hessian, noise, diagonal, alpha**2 * IDENTITY[:2, :2]))
        for alpha in (100.0, 1000.0, 10_000.0)
    ]
    assert np.all(np.diff(variances, axis=0) > 0) and np.all(variances[-1] < marginal)
    np.testing.assert_allclose(variances[-1], marginal, rtol=0.01)


def test_simulated_sgfs_d_has_too_little_variance() -> None:
    kernel = sgmcmc.SGFS(known_target(), alpha=0.0, covariance="diag")
    samples = run_chains(kernel, tf.ones([CHAINS, 3]), 20, 40, seed=8, jit=False)
    diagonal = (12 + C_WITH) * np.diag(np.diag(PRECISION))
    law = sgfs_covariance(
        FISHER.hessian, C_WITH * PRECISION, diagonal, raised(np.zeros([3, 3]), diagonal)
    )
    assert np.all(np.diag(law) < np.diag(POSTERIOR))
    check_covariance(samples, FISHER.mean, law, ERROR)
    with pytest.raises(Rejected):
        check_covariance(samples, FISHER.mean, POSTERIOR, ERROR)
