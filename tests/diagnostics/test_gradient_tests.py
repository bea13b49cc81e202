"""The tests of single entries and of directions: few false alarms, and faults that hide are found.

The draws are exact, so that all rates are known. No TensorFlow runs here.
"""

import numpy as np
import pytest

from tfp_sgmcmc.diagnostics.bias import Bias, find_bias
from tfp_sgmcmc.diagnostics.gradient_tests import GradientTestResults, run_gradient_tests

NUM_DRAWS, NUM_CHAINS = 500, 4


def normal(size: int, seed: int = 0, rho: float = 0.0, num_chains: int = NUM_CHAINS) -> np.ndarray:
    """Returns draws of N(0, I), in time an autoregression."""
    x = np.random.default_rng(seed).standard_normal([NUM_DRAWS, num_chains, size])
    for t in range(1, NUM_DRAWS):
        x[t] = rho * x[t - 1] + np.sqrt(1 - rho**2) * x[t]
    return x


def is_any_rejected(found: GradientTestResults) -> bool:
    parts = (found.entries, found.mean, found.by_chain, found.of_directions)
    return any(np.any(p.is_width_wrong) or np.any(p.is_shift_wrong) for p in parts)


def correlated(size: int, seed: int, nu: float = np.inf) -> tuple[np.ndarray, np.ndarray]:
    covariance = 0.9 * np.ones([size, size]) + 0.1 * np.eye(size)
    x = normal(size, seed) @ np.linalg.cholesky(covariance).T
    return x, -x @ np.linalg.inv(covariance)


def heavy_tailed(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).standard_t(3, [NUM_DRAWS, NUM_CHAINS, size])
    return x, -4 * x / (3 + x**2)


def skewed(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns logarithms of gamma variables, with log density 2 x - exp(x)."""
    x = np.log(np.random.default_rng(seed).gamma(2, 1, [NUM_DRAWS, NUM_CHAINS, size]))
    return x, 2 - np.exp(x)


def rejections(make: object, num: int = 40) -> int:
    assert callable(make)
    return sum(is_any_rejected(run_gradient_tests(*make(s), time=1.0)) for s in range(num))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda s: (normal(10, s), -normal(10, s)), marks=pytest.mark.thorough),
        pytest.param(lambda s: correlated(10, s), marks=pytest.mark.thorough),
        pytest.param(lambda s: heavy_tailed(10, s), marks=pytest.mark.thorough),
        pytest.param(lambda s: skewed(10, s), marks=pytest.mark.thorough),
        lambda s: (normal(2, s, num_chains=1), -normal(2, s, num_chains=1)),
    ],
    ids=["normal", "correlated", "heavy tails", "skewed", "one chain"],
)
def test_exact_draws_are_rarely_rejected(make: object) -> None:
    """40 sets, each rejected with probability 1e-3: more than 3 would be by chance with 1e-7."""
    assert rejections(make) <= 3


def test_correlated_draws_are_rarely_rejected() -> None:
    """As above, with times of 9 draws. Windows of 5 times leave a little correlation."""
    sets = (normal(5, s, rho=0.8) for s in range(40))
    assert sum(is_any_rejected(run_gradient_tests(x, -x, time=9.0)) for x in sets) <= 3


def test_draws_that_are_5_percent_too_wide_are_always_rejected() -> None:
    """The temperature is 1.10 +- 0.011, so that the test misses with probability 1e-5."""
    assert rejections(lambda s: (1.05 * normal(10, s), -1.05 * normal(10, s)), num=10) == 10


def bias(x: np.ndarray, g: np.ndarray | None = None, temperature: float = 1.0) -> Bias:
    size = x.shape[-1]
    names = ["w"] * size, [f"w[{i}]" for i in range(size)]
    return find_bias(x, -x if g is None else g, *names, temperature, 1.0)


def test_sound_draws_far_from_zero_have_no_words() -> None:
    x = normal(10)
    found = bias(x + 1e6, -x)
    assert found.problems == [] == found.notes
    assert abs(found.temperature[0] - 1) < 5 * found.temperature[1] < 0.1
    found = bias(3 * x, -3 * x, temperature=9.0)
    assert found.problems == [] == found.notes and abs(found.temperature[0] - 9) < 0.5


def test_one_of_50_entries_is_twice_as_wide() -> None:
    """The temperature of the entry is 4.0 +- 0.13."""
    x = normal(50)
    x[..., 17] *= 2
    assert bias(x).problems[0].startswith("w: 1 of 50 entries are off. The worst is w[17], ")
    assert "times too wide" in bias(x).problems[0]


def test_one_of_50_means_is_off() -> None:
    """The shift is 1.00 +- 0.03 standard deviations."""
    x = normal(50)
    x[..., 17] += 1
    (found,) = bias(x).problems
    assert found.startswith("w: 1 of 50 entries are off. The worst is w[17], its mean is off by")


def test_widths_that_compensate() -> None:
    """Their mean square is 1.00: the configurational temperature alone is right."""
    x = normal(50) * np.where(np.arange(50) < 25, 1.2, 0.75)
    found = bias(x)
    assert abs(found.temperature[0] - 1) < 0.02
    assert "too narrow" in found.problems[0] and "on average" not in found.problems[0]


@pytest.mark.parametrize("size", [2, 20])
def test_a_direction_that_is_no_entry(size: int) -> None:
    """1.5 times too wide along (1, ..., 1): the entries of 20 are 1.03 times too wide."""
    along = np.ones(size) / np.sqrt(size)
    x = normal(size)
    found = bias(x + 0.5 * (x @ along)[..., np.newaxis] * along)
    assert found.problems
    if size == 20:
        assert found.problems[0].startswith("A combination of entries, mostly w[")
        assert "too wide" in found.problems[0]


def test_a_bad_chain_cannot_hide_by_the_error_that_it_causes() -> None:
    """The configurational temperature is within two standard errors of 1."""
    x = normal(5)
    x[:, 2] *= np.exp(np.linspace(0, 9, NUM_DRAWS))[:, np.newaxis]
    found = bias(x)
    value, error = found.temperature
    assert value > 1e5 and abs(value - 1) < 3 * error
    assert any("1 of 4 chains are unlike the target (2)" in p for p in found.problems)
    assert any("lies so far out" in p for p in found.problems)


def test_chains_that_explode() -> None:
    x = normal(5) * np.exp(np.linspace(0, 40, NUM_DRAWS))[:, np.newaxis, np.newaxis]
    assert "times too wide on average" in bias(x).problems[0]


def test_a_start_far_away() -> None:
    """Three draws make standard deviations 4 times too wide, with an error as large."""
    x = normal(5)
    x[:3] += 50
    (found,) = [p for p in bias(x).problems if "lies so far out" in p]
    assert "at the start: drop more burn-in" in found


def test_draws_of_another_narrow_mode_are_not_far_out() -> None:
    """A tenth of the draws are 40 deviations away, where the posterior has a fifth of the width.

    One draw between the modes, the negative control, is far out: its gradient points one way.
    """
    rng = np.random.default_rng(0)
    is_second = rng.uniform(size=[NUM_DRAWS, NUM_CHAINS, 1]) < 0.1
    z = normal(1)
    x, g = np.where(is_second, 40 + 0.2 * z, z), np.where(is_second, -5 * z, -z)
    names = ["w"], ["w[0]"]
    found = find_bias(x, g, *names, temperature=1.0, time=1.0)
    assert found.problems == []
    x, g = normal(1), -normal(1)
    x[250, 1], g[250, 1] = 30.0, -30.0
    (problem,) = find_bias(x, g, *names, temperature=1.0, time=1.0).problems
    assert problem.startswith("w[0] of chain 1 lies so far out") and "50 % into the run" in problem


@pytest.mark.parametrize(("scale", "word"), [(1.1, "wide"), (0.92, "narrow")])
def test_a_small_bias_is_a_note(scale: float, word: str) -> None:
    x = normal(20)
    found = bias(scale * x)
    assert found.problems == [] and len(found.notes) == 1
    assert f"too {word} on average" in found.notes[0] and "biased, but near" in found.notes[0]


def test_a_bias_of_2_percent_is_not_mentioned() -> None:
    found = bias(1.02 * normal(100))
    assert found.problems == [] == found.notes
    assert abs(found.temperature[0] - 1) > 5 * found.temperature[1]  # though it is certain
