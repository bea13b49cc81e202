"""SGLD samples its exact, biased stationary law where the closed form is known.

On the Gaussian-mean model every step is linear with noise of constant covariance, so mean and
covariance of the stationary law are known for every step size. False-alarm rate: 1e-6 a test.
Power: an error of 3% in the variance of any whitened direction is found with probability 0.999,
which the checks verify themselves. The mutations at the end go through the same check.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.by_hand import FULL
from tests.harness.chains import by_chain, run_blocks, run_chains
from tests.harness.gaussian_mean import GaussianMean, sgld_covariance
from tests.harness.statistics import Rejected, check_covariance
from tfp_sgmcmc.preconditioners import FullMatrix, PositionDependent, Preconditioner

MODEL = GaussianMean(num_examples=12)
STEP = 0.08  # the slowest direction contracts by 0.69 a step: 60 steps forget the start to 1e-9
BATCH = 4
NOISE = MODEL.noise(BATCH, replacement=True)
NOISE_WITHOUT = MODEL.noise(BATCH, replacement=False)
CHAINS = 10_000
VARIANCE_ERROR = 0.03


def target(**options: Any) -> sgmcmc.MinibatchLogProb:
    """Returns the target, by default with replacement, which compiles faster."""
    return MODEL.target(**{"batch_size": BATCH, "replacement": True, **options})


def check(kernel: sgmcmc.SGLD, state: object, covariance: np.ndarray) -> None:
    samples = run_chains(kernel, state, num_results=50, num_burnin=60, seed=1, jit=False)
    check_covariance(samples, MODEL.mean, covariance, VARIANCE_ERROR)


def start(dtype: tf.DType = tf.float32) -> tf.Tensor:
    return tf.ones([CHAINS, 3], dtype)


@pytest.fixture(scope="module")
def without() -> np.ndarray:
    """Returns samples without replacement and without preconditioner, `[CHAINS, 50, 3]`."""
    return run_chains(sgmcmc.SGLD(target(replacement=False), STEP), start(), 50, 60, seed=4)


@pytest.mark.thorough
def test_without_replacement(without: np.ndarray) -> None:
    law = sgld_covariance(MODEL.hessian, NOISE_WITHOUT, STEP)
    check_covariance(without, MODEL.mean, law, VARIANCE_ERROR)


def test_chains_with_minibatches_of_their_own_are_uncorrelated(without: np.ndarray) -> None:
    joint = np.kron(np.eye(2), sgld_covariance(MODEL.hessian, NOISE_WITHOUT, STEP))
    pairs = np.concatenate([without[::2], without[1::2]], axis=-1)
    check_covariance(pairs, np.tile(MODEL.mean, 2), joint, relative_error=0.05)


@pytest.mark.thorough
def test_sample_chain_under_xla() -> None:
    kernel = sgmcmc.SGLD(target(), STEP)

    @tf.function(jit_compile=True, autograph=False)
    def run(state: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return tfp.mcmc.sample_chain(
            50, state, kernel=kernel, num_burnin_steps=60, trace_fn=None, seed=seed
        )

    samples = by_chain(run(start(), tf.constant([0, 1])))
    law = sgld_covariance(MODEL.hessian, NOISE, STEP)
    check_covariance(samples, MODEL.mean, law, VARIANCE_ERROR)


SCALE = np.array([1.2, 0.5, 0.8])
LAWS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # The options of the target, of the kernel, and of the law.
    "with replacement": ({}, {}, {}),
    "all examples, which add no noise": (
        dict(batch_size=12, replacement=False), {}, dict(noise=np.zeros([3, 3]))
    ),
    "diagonal preconditioner": ({}, dict(preconditioner=SCALE), dict(matrix=np.diag(SCALE))),
    "full matrix without replacement": (
        dict(replacement=False),
        dict(preconditioner=FullMatrix(FULL)),
        dict(noise=NOISE_WITHOUT, matrix=FULL),
    ),
    "temperature": ({}, dict(temperature=2.0), dict(temperature=2.0)),
    "two parts with step sizes of their own": (
        dict(parts=True), dict(step_size=[0.1, 0.06]), dict(step_size=[0.1, 0.06, 0.06])
    ),
    "float64, two parts, full matrix and temperature": (
        dict(dtype=tf.float64, parts=True),
        dict(temperature=0.5, preconditioner=FullMatrix(FULL)),
        dict(temperature=0.5, matrix=FULL),
    ),
}  # fmt: skip
# The last case combines the temperature with other options.
FURTHER = ("all examples, which add no noise", "full matrix without replacement", "temperature")
WIDER = (
    "with replacement",
    "diagonal preconditioner",
    "two parts with step sizes of their own",
    "float64, two parts, full matrix and temperature",
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.slow] * (name in FURTHER) + [pytest.mark.thorough] * (name in WIDER),
        )
        for name in LAWS
    ],
)
def test_laws(name: str) -> None:
    of_target, of_kernel, of_law = LAWS[name]
    state = start(of_target.get("dtype", tf.float32))
    if of_target.get("parts"):
        state = [state[:, :1], state[:, 1:]]
    kernel = sgmcmc.SGLD(target(**of_target), **{"step_size": STEP, **of_kernel})
    law = {"noise": NOISE, "step_size": STEP, **of_law}
    check(kernel, state, sgld_covariance(MODEL.hessian, **law))


@pytest.mark.slow
def test_one_long_chain() -> None:
    """Tests the law. Power: 4% of a variance."""
    kernel = sgmcmc.SGLD(target(), STEP)
    blocks = run_blocks(kernel, tf.ones([3]), num_blocks=10_000, length=25, seed=2)
    law = sgld_covariance(MODEL.hessian, NOISE, STEP)
    check_covariance(blocks, MODEL.mean, law, relative_error=0.04)


@pytest.mark.thorough
def test_chains_that_share_minibatches_share_just_that_noise() -> None:
    """Each chain has the law of a single chain. Their covariance comes from the shared noise only.

    The covariance C between two chains solves C = F C F^T + E/2 Sigma E/2, the same equation
    without injected noise (temperature 0). Power: 4% of a variance.
    """
    kernel = sgmcmc.SGLD(target(shared_batch=True), STEP)
    blocks = run_blocks(kernel, tf.ones([2, 3]), num_blocks=10_000, length=25, seed=3)
    within = sgld_covariance(MODEL.hessian, NOISE, STEP)
    between = sgld_covariance(MODEL.hessian, NOISE, STEP, temperature=0.0)
    joint = np.block([[within, between], [between, within]])
    samples = blocks.reshape(*blocks.shape[:2], 6)
    check_covariance(samples, np.tile(MODEL.mean, 2), joint, relative_error=0.04)
    independent = np.kron(np.eye(2), within)
    with pytest.raises(Rejected):
        check_covariance(samples, np.tile(MODEL.mean, 2), independent, relative_error=0.04)


def broken_identity(multiply: Any, sqrt: Callable[[tf.Tensor], tf.Tensor]) -> Preconditioner:
    return PositionDependent(
        multiply_fn=lambda _, v: multiply * v,
        sqrt_multiply_fn=lambda _, z: sqrt(z),
        divergence_fn=tf.zeros_like,
    )


class Mutation(NamedTuple):
    """Factors of the drift, of the noise and of the likelihood, and the M of the expected law."""

    drift: float = 1.0
    noise: float = 1.0
    likelihood: float = 1.0
    matrix: float = 1.0


MUTATIONS = {
    "noise of twice the variance": Mutation(noise=2**0.5),
    "no 1/2 on the drift": Mutation(drift=2.0),
    "noise not preconditioned": Mutation(drift=0.7, matrix=0.7),
    "gradient not scaled by N/n": Mutation(likelihood=BATCH / 12),
    "gradient divided by N": Mutation(likelihood=1 / 12),
    "frozen chain": Mutation(drift=0.0, noise=0.0),
}
FEW = CHAINS // 5  # enough to reject these


@pytest.fixture(scope="module")
def mutated() -> dict[str, np.ndarray]:
    """Returns samples of all mutations, which are groups of the chains of one kernel."""
    drift, noise, likelihood, _ = (
        np.repeat(np.array(x, np.float32), FEW)[:, np.newaxis]
        for x in zip(*MUTATIONS.values(), strict=True)
    )
    kernel = sgmcmc.SGLD(
        target(likelihood_scale=likelihood[..., np.newaxis]),
        STEP,
        preconditioner=broken_identity(drift, lambda z: noise * z),
    )
    samples = run_chains(kernel, tf.ones([len(drift), 3]), 50, 60, seed=1, jit=False)
    return dict(zip(MUTATIONS, np.split(samples, len(MUTATIONS)), strict=True))


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations_are_rejected(name: str, mutated: dict[str, np.ndarray]) -> None:
    law = sgld_covariance(MODEL.hessian, NOISE, STEP, MUTATIONS[name].matrix)
    with pytest.raises(Rejected):
        check_covariance(mutated[name], MODEL.mean, law, VARIANCE_ERROR)


def test_chains_that_are_copies_are_rejected() -> None:
    copies = broken_identity(1.0, lambda z: z[:1] + tf.zeros_like(z))
    kernel = sgmcmc.SGLD(target(shared_batch=True), STEP, preconditioner=copies)
    with pytest.raises(Rejected):
        check(kernel, start()[:FEW], sgld_covariance(MODEL.hessian, NOISE, STEP))


WRONG_LAWS = {
    "with replacement": dict(noise=NOISE),
    "no minibatch noise": dict(noise=np.zeros([3, 3])),
    "another temperature": dict(temperature=1.1),
    "exact posterior": dict(covariance=np.linalg.inv(MODEL.hessian)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", WRONG_LAWS)
def test_wrong_laws_are_rejected(name: str, without: np.ndarray) -> None:
    law = {"noise": NOISE_WITHOUT, "temperature": 1.0, **WRONG_LAWS[name]}
    covariance = law.get("covariance")
    if covariance is None:
        covariance = sgld_covariance(
            MODEL.hessian, law["noise"], STEP, temperature=law["temperature"]
        )
    with pytest.raises(Rejected):
        check_covariance(without, MODEL.mean, covariance, VARIANCE_ERROR)


def test_error_is_of_first_order() -> None:
    """The bias of the law halves with the step size, so it is O(epsilon)."""
    posterior = np.linalg.inv(MODEL.hessian)
    bias = [
        np.linalg.norm(sgld_covariance(MODEL.hessian, NOISE, step) - posterior)
        for step in (1e-4, 5e-5)
    ]
    np.testing.assert_allclose(bias[0] / bias[1], 2.0, rtol=1e-2)
