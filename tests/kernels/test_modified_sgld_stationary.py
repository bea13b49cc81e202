"""Modified SGLD samples its exact stationary law, which is nearer to the posterior than SGLD's.

On the Gaussian-mean model, with Sigma known, steps are linear with noise of constant covariance:

  S = F S F + epsilon T (I - epsilon / (8 T) Sigma)^2 + epsilon^2 / 4 Sigma,  F = I - epsilon / 2 A.

False-alarm rate: 1e-6 a test. Power: an error of 5% in the variance of any whitened direction is
found with probability 0.999, which the checks verify. One compiled program runs all `GROUPS` of
chains, the correct ones and the mutations.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scipy.linalg import solve_discrete_lyapunov

import tfp_sgmcmc as sgmcmc
from tests.harness.by_hand import KEPT
from tests.harness.chains import run_chains
from tests.harness.gaussian_mean import GaussianMean, sgld_covariance
from tests.harness.known_scores import KnownScores
from tests.harness.mutation import last_groups_broken
from tests.harness.statistics import Rejected, check_covariance

MODEL = GaussianMean(num_examples=12)
V = MODEL.score_covariance
BATCH = 5
NOISE = MODEL.noise(BATCH, replacement=True)  # quicker to draw
STEP = 0.06  # the largest stable one is 0.12
CHAINS = 5000  # in each group
ERROR = 0.05
IDENTITY = np.eye(3)


def modified_covariance(
    noise: np.ndarray, step_size: float, temperature: float = 1.0, assumed: Any = None
) -> np.ndarray:
    """Returns the stationary law if gradients have Sigma `noise` and the kernel uses `assumed`."""
    assumed = noise if assumed is None else assumed
    contraction = IDENTITY - step_size / 2 * MODEL.hessian
    root = IDENTITY - step_size / (8 * temperature) * assumed
    injected = step_size * temperature * root @ root.T
    return solve_discrete_lyapunov(contraction, injected + step_size**2 / 4 * noise)


def target(
    replacement: bool = True, batch_size: int = BATCH, parts: bool = False, noise_scale: Any = None
) -> KnownScores:
    model = MODEL.target(batch_size, parts=parts, replacement=replacement)
    # V of draws with replacement has the divisor N.
    return KnownScores(model, V * (11 / 12 if replacement else 1), noise_scale)


# Step size, temperature and factor of Sigma of each group.
GROUPS = {
    "small step": (0.045, 1.0, 1.0),
    "step": (STEP, 1.0, 1.0),
    "large step": (0.1, 1.0, 1.0),
    "temperature": (STEP, 1.5, 1.0),
    "noise of twice the variance": (STEP, 2.0, 1.0),
    "Sigma too large by N/n": (STEP, 1.0, 12 / 5),
    "Sigma too small by N/n": (STEP, 1.0, 5 / 12),
    "Sigma forgotten": (STEP, 1.0, 0.0),
    "frozen part": (STEP, 1.0, 1.0),
    "chains that are copies": (STEP, 1.0, 1.0),
}
SOUND = list(GROUPS)[:4]


@pytest.fixture(scope="module")
def samples() -> dict[str, np.ndarray]:
    """Returns samples of each group, `[CHAINS, 50, 3]`. 100 steps forget the start to 1e-8."""
    numbers = np.repeat(np.array(list(GROUPS.values()), np.float32), CHAINS, axis=0)
    step_size, temperature, factor = (x[:, np.newaxis] for x in numbers.T)
    kernel = last_groups_broken(sgmcmc.ModifiedSGLD, len(GROUPS))(
        target(noise_scale=12**2 / 5 * factor[:, 0]), step_size, temperature=temperature
    )
    found = run_chains(kernel, tf.ones([len(numbers), 3]), 50, 100, seed=1)
    return dict(zip(GROUPS, np.split(found, len(GROUPS)), strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("name", SOUND)
def test_law(name: str, samples: dict[str, np.ndarray]) -> None:
    step_size, temperature, _ = GROUPS[name]
    law = modified_covariance(NOISE, step_size, temperature)
    check_covariance(samples[name], MODEL.mean, law, ERROR)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in GROUPS if name not in SOUND])
def test_mutations_are_rejected(name: str, samples: dict[str, np.ndarray]) -> None:
    with pytest.raises(Rejected):
        check_covariance(samples[name], MODEL.mean, modified_covariance(NOISE, STEP), ERROR)


WRONG_LAWS = {
    "SGLD": sgld_covariance(MODEL.hessian, NOISE, STEP),
    "the posterior": np.linalg.inv(MODEL.hessian),
    "no gradient noise": sgld_covariance(MODEL.hessian, np.zeros([3, 3]), STEP),
    "drawn without replacement": modified_covariance(MODEL.noise(BATCH, False), STEP),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", WRONG_LAWS)
def test_wrong_laws_are_rejected(name: str, samples: dict[str, np.ndarray]) -> None:
    with pytest.raises(Rejected):
        check_covariance(samples["step"], MODEL.mean, WRONG_LAWS[name], ERROR)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kept", "replacement"), [("block", True), ("diag", True), ("low_rank", False)]
)
def test_law_where_parts_of_sigma_are_kept(kept: str, replacement: bool) -> None:
    """`block` and `diag` leave out correlations. The law is exact for the Sigma they assume."""
    kernel = sgmcmc.ModifiedSGLD(target(replacement, parts=True), STEP, kept, temperature=1.5)
    state = [tf.ones([CHAINS, 1]), tf.ones([CHAINS, 2])]
    found = run_chains(kernel, state, 50, 80, seed=2, jit=False)
    noise = MODEL.noise(BATCH, replacement)
    law = modified_covariance(noise, STEP, 1.5, assumed=noise * KEPT[kept])
    check_covariance(found, MODEL.mean, law, ERROR)


@pytest.mark.slow
def test_estimated_sigma() -> None:
    """Sigma comes from past minibatches of five. Its errors add 5e-4 of the variance."""
    estimated = MODEL.target(BATCH, replacement=True)
    found = run_chains(sgmcmc.ModifiedSGLD(estimated, STEP), tf.ones([CHAINS, 3]), 50, 100, seed=3)
    law = modified_covariance(NOISE, STEP)
    check_covariance(found, MODEL.mean, law, ERROR)


@pytest.mark.slow
def test_past_its_range_it_is_worse_than_sgld() -> None:
    """With minibatches of two, epsilon s / (8 T) is 2.1 for the largest eigenvalue s of Sigma."""
    noise, step_size = MODEL.noise(2, replacement=True), 0.11
    largest, direction = (x[..., -1] for x in np.linalg.eigh(noise))
    assert step_size * largest / 8 > 2
    law = modified_covariance(noise, step_size)
    sgld = sgld_covariance(MODEL.hessian, noise, step_size)
    assert direction @ law @ direction > direction @ sgld @ direction
    kernel = sgmcmc.ModifiedSGLD(target(batch_size=2), step_size)
    found = run_chains(kernel, tf.ones([CHAINS, 3]), 50, 60, seed=4, jit=False)
    check_covariance(found, MODEL.mean, law, ERROR)


def test_gradient_noise_adds_an_error_of_second_order() -> None:
    """The error that the noise adds to the law falls as epsilon^2, and in SGLD as epsilon.

    The error of the discretisation, the only one with exact gradients, is of first order in both.
    """
    sizes, zero = (1e-4, 5e-5), np.zeros([3, 3])
    posterior = np.linalg.inv(MODEL.hessian)

    def ratio(errors: list[np.ndarray]) -> float:
        return float(np.linalg.norm(errors[0]) / np.linalg.norm(errors[1]))

    discretisation = [sgld_covariance(MODEL.hessian, zero, h) - posterior for h in sizes]
    sgld = [
        sgld_covariance(MODEL.hessian, NOISE, h) - sgld_covariance(MODEL.hessian, zero, h)
        for h in sizes
    ]
    modified = [
        modified_covariance(NOISE, h) - sgld_covariance(MODEL.hessian, zero, h) for h in sizes
    ]
    assert ratio(discretisation) == pytest.approx(2, rel=0.01)
    assert ratio(sgld) == pytest.approx(2, rel=0.01)
    assert ratio(modified) == pytest.approx(4, rel=0.01)
