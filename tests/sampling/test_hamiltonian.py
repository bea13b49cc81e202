"""HMC without settings, where the mode's curvature says little of the posterior."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.sampling.automatic import coordinates, hamiltonian
from tfp_sgmcmc.sampling.automatic.trials import Trials

D, NUM_RESULTS = 80, 4000


def log_of_exponentials() -> sgmcmc.MinibatchLogProb:
    """Returns the law of logs of D independent exponentials: mode 0, curvature 1, variance pi^2/6.

    A normal at the mode has 0.61 of that variance, and its mean is 0.58 off.
    """
    return sgmcmc.MinibatchLogProb(
        lambda x: tf.zeros(x.shape[:-1], x.dtype),
        lambda x, share: share * tf.reduce_sum(x - tf.exp(x), axis=-1, keepdims=True),
        np.array([0.5, 0.5], np.float32),
        1,
    )


@pytest.mark.parametrize("draws_per_entry", [100, 0])
def test_the_covariance_is_of_many_draws(
    draws_per_entry: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exact covariance has nearly equal eigenvalues there; with the first pilot's, not so.

    For large D, n independent draws leave a ratio of the largest to the smallest near
    ((1 + r) / (1 - r))^2, with r^2 = D / n: 1.8 for half of 8,000 draws, 3.7 for half of 1,600. By
    chance it varies by a few percent.
    """
    monkeypatch.setattr(hamiltonian, "_DRAWS_PER_ENTRY", draws_per_entry)
    problem = log_of_exponentials()
    found = coordinates.at_mode(problem, tf.zeros([D]))
    trials = Trials(4, D, tf.float32, sgmcmc.random.as_seed(0), jit_compile=True)
    prepared = hamiltonian.TimedHMC(problem, found, trials)(NUM_RESULTS)
    assert prepared.choices.coordinates == "covariance"
    center = prepared.choices.center
    np.testing.assert_allclose(center, -np.euler_gamma, atol=0.25)
    eigenvalues = np.linalg.eigvalsh(-prepared.choices.hessian) * np.pi**2 / 6
    ratio = eigenvalues[-1] / eigenvalues[0]
    assert (ratio < 2.7) == (draws_per_entry == 100)
