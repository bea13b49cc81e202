"""SGHMC samples its exact, biased law of (theta, p) where the closed form is known.

On the Gaussian-mean model a step is linear, and with Sigma known (or estimated without bias from
other minibatches) the covariance W of the noise of p is 2 h A T I for all minibatches. Mean and
covariance of theta and p are compared with the closed form, with a false-alarm rate of 1e-6 for
each test. An error of 5% in the variance of any whitened direction is found with probability 0.999,
which the checks verify.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scipy.linalg import block_diag, solve_discrete_lyapunov

import tfp_sgmcmc as sgmcmc
from tests.harness.fast_settings import fast_settings
from tests.harness.gaussian_mean import GaussianMean
from tests.harness.known_covariance import KnownCovariance
from tests.harness.mutation import mutant
from tests.harness.phase_space import LinearScheme, linear_scheme, run_phase_space
from tests.harness.statistics import Rejected, check_covariance
from tfp_sgmcmc import random
from tfp_sgmcmc.covariance import Full, RunningMean

MODEL = GaussianMean(num_examples=12)
HESSIAN = MODEL.hessian
BATCH = 4
NOISE = MODEL.noise(BATCH, replacement=True)
MASS = np.array([0.5, 1.0, 2.0])
H, FRICTION = 0.08, 6.0  # 2 A T / h = 150, and the largest eigenvalue of Sigma is 76
CHAINS, RESULTS, BURNIN = 4000, 150, 150
VARIANCE_ERROR = 0.05
NONE = np.zeros([3, 3])


def law(
    h: float = H,
    friction: float = FRICTION,
    mass: Any = 1.0,
    temperature: float = 1.0,
    left_over: Any = NONE,
) -> np.ndarray:
    """Returns the covariance of (theta, p). `left_over` is the uncorrected part of Sigma."""
    one, inverse = np.eye(3), np.eye(3) / mass
    damped = one - h * friction * inverse
    step = np.block([[one, h * inverse], [-h * HESSIAN, damped - h**2 * HESSIAN @ inverse]])
    noise = 2 * h * friction * temperature * one + h**2 * left_over
    return solve_discrete_lyapunov(step, block_diag(0 * one, noise))


def target(batch_size: int = BATCH, **options: Any) -> sgmcmc.MinibatchLogProb:
    return MODEL.target(batch_size, **{"replacement": True, **options})


def known(noise: np.ndarray = NOISE, batch_size: int = BATCH, **options: Any) -> KnownCovariance:
    return KnownCovariance(noise / target(batch_size, **options).noise_scale)


def sample(kernel: Any, state: Any = None, seed: int = 1, jit: bool = True) -> np.ndarray:
    state = tf.ones([CHAINS, 3]) if state is None else state
    return run_phase_space(kernel, state, RESULTS, BURNIN, seed, jit).samples


def check(samples: np.ndarray, covariance: np.ndarray, error: float = VARIANCE_ERROR) -> None:
    check_covariance(samples, np.concatenate([MODEL.mean, np.zeros(3)]), covariance, error)


@pytest.fixture(scope="module")
def samples() -> np.ndarray:
    return sample(sgmcmc.SGHMC(target(), H, FRICTION, known()))


# Chains


def test_known_covariance(samples: np.ndarray) -> None:
    check(samples, law())


def test_chains_are_uncorrelated(samples: np.ndarray) -> None:
    """Tests positions of pairs of chains. Power: 10% of a variance."""
    pairs = np.concatenate([samples[::2, :, :3], samples[1::2, :, :3]], axis=-1)
    joint = np.kron(np.eye(2), law()[:3, :3])
    check_covariance(pairs, np.tile(MODEL.mean, 2), joint, relative_error=0.1)


@pytest.mark.slow
def test_mass_temperature_and_parts_without_replacement() -> None:
    mass, temperature, h, friction = MASS, 2.0, 0.05, 5.0
    noise = MODEL.noise(BATCH, replacement=False)
    kernel = sgmcmc.SGHMC(
        MODEL.target(BATCH, parts=True),
        h,
        friction,
        KnownCovariance(noise / MODEL.target(BATCH).noise_scale),
        mass=[mass[:1], mass[1:]],
        temperature=temperature,
    )
    state = [tf.ones([CHAINS, 1]), tf.ones([CHAINS, 2])]
    check(sample(kernel, state), law(h, friction, mass, temperature), error=0.08)


@pytest.mark.thorough
def test_without_covariance_the_noise_of_the_gradient_heats_the_chain() -> None:
    kernel = sgmcmc.SGHMC(target(), H, FRICTION, covariance=None)
    check(sample(kernel, jit=False), law(left_over=NOISE))


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [5, 12])
def test_estimated_covariance(batch_size: int) -> None:
    """The estimate is unbiased and uses other minibatches, so the law is exact as well."""
    kernel = sgmcmc.SGHMC(target(batch_size, replacement=False), H, FRICTION, Full(RunningMean()))
    check(sample(kernel), law())


# Closed forms


def code_matrices(
    h: float, corrected: bool, mass: Any = 1.0, temperature: float = 1.0
) -> LinearScheme:
    """Returns the matrices of the coded step, in `float64`."""
    covariance = KnownCovariance(NOISE) if corrected else None
    return linear_scheme(
        lambda quadratic, **momentum: sgmcmc.SGHMC(
            quadratic, h, FRICTION, covariance, mass, temperature, **momentum
        ),
        HESSIAN,
    )


@pytest.mark.parametrize(("mass", "temperature"), [(1.0, 1.0), (MASS, 1.0), (MASS, 0.7)])
@pytest.mark.parametrize("corrected", [True, False])
def test_closed_form_is_that_of_the_code(mass: Any, temperature: float, corrected: bool) -> None:
    """Chains are therefore compared with the law of the coded step."""
    matrices = code_matrices(H, corrected, mass, temperature)
    left_over = NONE if corrected else NOISE
    expected = law(H, FRICTION, mass, temperature, left_over)
    np.testing.assert_allclose(matrices.covariance(NOISE), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("corrected", "block", "ratio"),
    [(True, slice(0, 3), 4.0), (True, slice(3, 6), 2.0), (False, slice(0, 3), 2.0)],
    ids=["theta", "p", "theta, not corrected"],
)
@pytest.mark.parametrize("mass", [np.ones(3), MASS])
def test_order_of_the_error(corrected: bool, block: slice, ratio: float, mass: np.ndarray) -> None:
    """Returns error(h) / error(h / 2), with covariances in units of the mass."""
    limit = block_diag(np.linalg.inv(HESSIAN), np.diag(mass))
    errors = []
    for h in (2e-3, 1e-3):
        matrices = code_matrices(h, corrected, mass)
        errors.append(np.linalg.norm((matrices.covariance(NOISE) - limit)[block, block]))
    np.testing.assert_allclose(errors[0] / errors[1], ratio, rtol=0.02)


# Negative controls

MUTATIONS = {
    "noise of twice the variance": (
        "2 * h * friction * temperature, -", "4 * h * friction * temperature, -"
    ),
    "h for h / 2 in the correction": ("-(h**2), largest", "-2 * h**2, largest"),
    "no correction": ("-(h**2), largest", "0 * h, largest"),
    "correction of the wrong sign": ("-(h**2), largest", "h**2, largest"),
    "half the friction": ("scaled(h * friction, p / m)", "scaled(h / 2 * friction, p / m)"),
    "gradient at the old theta": (
        "self._noise.estimate(theta, batch_seed, results)",
        "self._noise.estimate(state, batch_seed, results)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", fast_settings(MUTATIONS, "no correction", "half the friction"))
def test_laws_of_broken_samplers_are_rejected(name: str, samples: np.ndarray) -> None:
    broken = mutant(sgmcmc.SGHMC, MUTATIONS[name])
    matrices = linear_scheme(
        lambda quadratic, **momentum: broken(
            quadratic, H, FRICTION, KnownCovariance(NOISE), **momentum
        ),
        HESSIAN,
    )
    assert matrices.spectral_radius < 1
    with pytest.raises(Rejected):
        check(samples, matrices.covariance(NOISE))


@pytest.mark.thorough
def test_broken_chains_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the chains is enough to reject these. The first three share a run, by groups."""
    few, expected = CHAINS // 10, law(left_over=NOISE)
    twice_the_noise, frozen_entries, gradients_swapped = np.repeat(np.eye(3, dtype=bool), few, 1)
    kernel = sgmcmc.SGHMC(
        swapped(gradients_swapped),
        H,
        FRICTION,
        None,
        mass=np.where(frozen_entries[:, np.newaxis], np.float32([1, 1e9, 1e9]), np.float32(1)),
        temperature=tf.constant(1.0 + twice_the_noise, tf.float32),
    )
    samples = sample(kernel, tf.ones([3 * few, 3]), jit=False)
    for broken in np.split(samples, 3):
        with pytest.raises(Rejected):
            check(broken, expected)
    normal_like = random.normal_like
    monkeypatch.setattr(
        random, "normal_like", lambda x, seed: normal_like(x, seed)[:1] + tf.zeros_like(x)
    )
    copies = sgmcmc.SGHMC(target(shared_batch=True), H, FRICTION, None)
    with pytest.raises(Rejected):
        check(sample(copies, tf.ones([few, 3]), jit=False), expected)


def swapped(chains: np.ndarray) -> sgmcmc.MinibatchLogProb:
    """Returns a target whose likelihood has two entries of the gradient exchanged in `chains`."""
    base = target()

    def log_likelihood(theta: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def crossed(x: tf.Tensor) -> Any:
            return tf.identity(x), lambda g: tf.where(
                chains[:, np.newaxis], tf.gather(g, [1, 0, 2], axis=-1), g
            )

        return base.log_likelihood(crossed(theta), batch, BATCH)

    return sgmcmc.MinibatchLogProb(
        base.log_prior, log_likelihood, MODEL.data, BATCH, replacement=True, dtype=tf.float32
    )
