"""The standard error of a measured temperature."""

import numpy as np
import pytest
import scipy.signal

from tfp_sgmcmc.keras.adaptation.automatic_fit import standard_error

REPEATS, LOOKS = 400, 500


def chains(rho: float) -> np.ndarray:
    """Returns stationary paths of z' = rho z + sqrt(1 - rho^2) noise, `[REPEATS, LOOKS]`."""
    noise = np.random.default_rng(0).standard_normal([REPEATS, LOOKS])
    noise[:, 1:] *= np.sqrt(1 - rho**2)
    return scipy.signal.lfilter([1.0], [1.0, -rho], noise, axis=1)


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_the_error_is_that_of_a_sample_variance(rho: float) -> None:
    """For N(0, 1), where g = -x, its square is about 2 / n (1 + rho^2) / (1 - rho^2).

    With five windows it is nearly that times chi^2(4) / 4, so that the mean of 400 varies by 3.5 %.
    A fifth is more than five times that, which has probability 1e-6. At rho = 0.9 a window of 100
    looks has only 10 correlation times, which takes off another tenth. An error that neglects
    correlations has a square 9.5 times less.
    """
    squares = [standard_error(x, -x) ** 2 for x in chains(rho)]
    exact = 2 / LOOKS * (1 + rho**2) / (1 - rho**2)
    assert np.mean(squares) == pytest.approx(exact, rel=0.2 if rho == 0 else 0.3)
    found = np.var([np.var(x) for x in chains(rho)])
    assert found == pytest.approx(exact, rel=0.4)  # five standard errors of a variance of 400
