"""Chains whose minibatches come by epochs, or by symmetric sweeps, have their exact laws.

On the Gaussian-mean model the noise of an epoch adds up to zero, from which `epoch_law` has the
law. The false-alarm rate is 1e-6 for each of the eight steps of a period, and the checks verify the
power: errors of 10 % in a variance. Other orders' laws go through the same check and are rejected.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness.chains import run_chains
from tests.harness.epoch_law import epoch_covariances, period
from tests.harness.gaussian_mean import GaussianMean, sgld_step
from tests.harness.phase_space import LinearScheme, linear_scheme
from tests.harness.statistics import Rejected, check_covariance

MODEL = GaussianMean(num_examples=12)
BATCH = 3
BATCHES = MODEL.num_examples // BATCH
NOISE = MODEL.noise(BATCH, replacement=False)
STEP = 0.1  # SGLD's: the slowest direction contracts by 0.69 a step
TIME_STEP = 0.2
FRICTION = 3.0
CHAINS = 10_000
VARIANCE_ERROR = 0.1


def kernel(name: str, reshuffle: str) -> Any:
    target = MODEL.target(BATCH, reshuffle=reshuffle)
    if name == "SGLD":
        return sgmcmc.SGLD(target, STEP)
    return sgmcmc.UnderdampedLangevin(target, TIME_STEP, FRICTION)


def law(name: str, reshuffle: str) -> np.ndarray:
    """Returns the covariance of theta after each step of a period, `[steps, 3, 3]`."""
    if name == "SGLD":
        matrices = sgld_step(MODEL.hessian, STEP, 1.0, 1.0)
    else:
        matrices = split(MODEL.hessian, TIME_STEP, FRICTION)
    if reshuffle == "step":
        F, G, Q = matrices
        joint = epoch_covariances(F, np.zeros_like(G), Q + G @ NOISE @ G.T, NOISE, [0, 1])
    else:
        joint = epoch_covariances(*matrices, NOISE, period(reshuffle, BATCHES))
    return joint[:, :3, :3]


def split(hessian: np.ndarray, step: float, friction: float) -> tuple[np.ndarray, ...]:
    """Returns F, G and Q of BAOAB, read off the code."""
    scheme: LinearScheme = linear_scheme(
        lambda target, initial_momentum: sgmcmc.UnderdampedLangevin(
            target, step, friction, initial_momentum=initial_momentum
        ),
        hessian,
    )
    return scheme.step, scheme.kick, scheme.drawn @ scheme.drawn.T


def check(samples: np.ndarray, laws: np.ndarray) -> None:
    """Compares the samples with the law of each step of a period of two epochs."""
    for i, covariance in enumerate(np.resize(laws, [2 * BATCHES, 3, 3])):
        check_covariance(samples[:, i :: 2 * BATCHES], MODEL.mean, covariance, VARIANCE_ERROR)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["SGLD", pytest.param("baoab", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("reshuffle", [pytest.param("epoch", marks=pytest.mark.slow), "symmetric"])
def test_chains_have_their_law_at_every_step_of_a_period(name: str, reshuffle: str) -> None:
    state = tf.ones([CHAINS, 3])
    samples = run_chains(kernel(name, reshuffle), state, 4 * BATCHES, 16 * BATCHES, seed=5)
    check(samples, law(name, reshuffle))
    for other in {"epoch", "symmetric", "step"} - {reshuffle}:
        with pytest.raises(Rejected):
            check(samples, law(name, other))


@pytest.mark.parametrize("reshuffle", ["epoch", "symmetric"])
def test_errors_add_up_to_zero_over_an_epoch(reshuffle: str) -> None:
    """A chain that forgets nothing has sums of errors, one that forgets all the last error."""
    one, none, order = np.eye(1), np.zeros([1, 1]), period(reshuffle, 3)
    for remembers, expected in ((1 - 1e-9, [1, 1, 0]), (0, [1, 1, 1])):
        laws = epoch_covariances(remembers * one, one, none, one, order)
        np.testing.assert_allclose(laws[:, 0, 0], np.resize(expected, len(order)), atol=1e-6)


def excess(reshuffle: str, num_batches: int, length: float, momenta: bool = True) -> float:
    """Returns the mean excess variance over a period, in units of independent minibatches'.

    The target is N(0, 1), and `length` that of an epoch: K h, or K epsilon / 2 without momenta.
    """
    one = np.eye(1)
    if momenta:
        F, G, Q = split(one, length / num_batches, 1.0)
    else:
        F, G, Q = sgld_step(one, 2 * length / num_batches, 1.0, 1.0)

    def mean(noise: float, order: list[int]) -> float:
        return float(np.mean(epoch_covariances(F, G, Q, noise * one, order)[:, 0, 0]))

    def independent(noise: float) -> float:
        return float(epoch_covariances(F, 0 * G, Q + noise * G @ G.T, one, [0, 1])[0, 0, 0])

    found = mean(1.0, period(reshuffle, num_batches)) - independent(0.0)
    return found / (independent(1.0) - independent(0.0))


@pytest.mark.parametrize("momenta", [True, False])
def test_noise_is_small_where_an_epoch_is_short(momenta: bool) -> None:
    """Below length 1, of which `preflight` warns, less than half of the noise is left."""
    for num_batches in (4, 60):
        for reshuffle in ("epoch", "symmetric"):
            left = [excess(reshuffle, num_batches, c, momenta) for c in (0.1, 1.0, 5.0)]
            assert left[0] < 0.05 and left[1] < 0.5 < left[2]


@pytest.mark.parametrize("num_batches", [4, 60])
def test_symmetric_sweeps_leave_less_noise_than_epochs_with_momenta(num_batches: int) -> None:
    """The rest is of second order in the length of an epoch, and of third for the sweeps.

    Without momenta it is of first order for both.
    """
    for reshuffle, momenta, order in (
        ("epoch", True, 2),
        ("symmetric", True, 3),
        ("epoch", False, 1),
        ("symmetric", False, 1),
    ):
        left = [excess(reshuffle, num_batches, c, momenta) for c in (0.1, 0.05)]
        np.testing.assert_allclose(np.log2(left[0] / left[1]), order, atol=0.05)
