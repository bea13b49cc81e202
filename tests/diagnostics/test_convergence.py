"""R-hat and effective sample sizes are ArviZ's, and standard errors have closed forms."""

import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfp_sgmcmc.diagnostics import convergence
from tfp_sgmcmc.diagnostics.convergence import (
    batch_means_standard_error,
    chain_dependence,
    effective_sample_size,
    rank_normalized_rhat,
    rhat_limit,
    rhat_of_moments,
    rhat_text,
)


def autoregression(rho: float, num: int, chains: int = 4, entries: int = 1) -> np.ndarray:
    x = np.random.default_rng(0).normal(size=[num, chains, entries])
    for t in range(1, num):
        x[t] = rho * x[t - 1] + np.sqrt(1 - rho**2) * x[t]
    return x


def kinds_of_draws(num: int, chains: int) -> np.ndarray:
    """Returns draws whose entries are of different kinds, `[num, chains, 9]`."""
    rng = np.random.default_rng(num + chains)
    x = rng.normal(size=[num, chains, 9])
    for t in range(1, num):
        x[t, :, 1] += 0.9 * x[t - 1, :, 1]
        x[t, :, 2] -= 0.8 * x[t - 1, :, 2]
    x[..., 3] += np.arange(chains)  # chains that disagree
    x[..., 4] = np.round(x[..., 4])  # ties
    x[..., 5] = x[..., 5] > 0
    x[..., 6] = np.cumsum(x[..., 6], axis=0)
    x[..., 7] = rng.standard_cauchy([num, chains])
    x[..., 8] = np.arange(num)[:, np.newaxis] == 0  # one event
    return x


@pytest.mark.parametrize(("num", "chains"), [(4, 2), (7, 3), (50, 1), (101, 4), (1000, 2)])
def test_they_are_those_of_arviz(num: int, chains: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        arviz = pytest.importorskip("arviz", exc_type=ImportError)
    x = kinds_of_draws(num, chains)

    def by_arviz(function: Any, **options: Any) -> np.ndarray:
        return np.array([function(x[..., i].T, **options) for i in range(x.shape[-1])])

    for kind, options in (("bulk", {}), ("mean", {}), ("tail", {"prob": (0.05, 0.95)})):
        expected = by_arviz(arviz.ess, method=kind, **options)
        np.testing.assert_allclose(effective_sample_size(x, kind), expected, rtol=1e-9)
    if chains > 1:  # ArviZ refuses a single chain
        expected = by_arviz(arviz.rhat, method="rank")
        np.testing.assert_allclose(rank_normalized_rhat(x), expected, rtol=1e-9)


def test_a_single_chain_is_compared_with_itself() -> None:
    x = np.random.default_rng(0).normal(size=[1000, 1, 2])
    x[500:, 0, 1] += 1.0
    rhat = rank_normalized_rhat(x)
    assert rhat[0] < 1.01 and rhat[1] > 1.1


def test_effective_sample_size_of_autoregressions() -> None:
    """Autocorrelation rho^t gives S (1 - rho) / (1 + rho); means of 20 have sds of 1 to 2 %."""
    for rho in (-0.5, 0.0, 0.5, 0.9):
        sizes = effective_sample_size(autoregression(rho, 4000, entries=20))
        assert sizes.mean() / (16_000 * (1 - rho) / (1 + rho)) == pytest.approx(1.0, abs=0.05)


def test_entries_that_never_move_or_are_not_finite_have_none() -> None:
    x = np.random.default_rng(0).normal(size=[20, 4, 2, 2])
    x[..., 0, 0] = 1e9
    x[3, 2, 0, 1], x[3, 2, 1, 0] = np.nan, np.inf
    for function in (rank_normalized_rhat, effective_sample_size):
        np.testing.assert_array_equal(np.isnan(function(x)), [[True, True], [True, False]])


def test_neither_scale_nor_blocks_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    x = kinds_of_draws(60, 4)
    found = [f(x) for f in (rank_normalized_rhat, effective_sample_size)]
    monkeypatch.setattr(convergence, "_BLOCK", 500)
    moved = [f(1e-20 * x) for f in (rank_normalized_rhat, effective_sample_size)]
    np.testing.assert_allclose(moved, found, rtol=1e-12)
    assert rank_normalized_rhat(x[..., 0]).shape == ()


def test_rhat_of_moments() -> None:
    """Means 0 and 2 have variance 2, and 9 / 10 + 2 / 4 = 1.4."""
    found = rhat_of_moments(np.array([[0.0, 1.0], [2.0, 1.0]]), np.array([[3.0, 0.0]] * 2), 10)
    np.testing.assert_allclose(found, [np.sqrt(0.9 + 2 / 3), np.nan])
    assert np.isnan(rhat_of_moments(np.zeros([1, 2]), np.ones([1, 2]), 10)).all()


def test_sound_chains_hardly_ever_exceed_the_limit() -> None:
    """1 % of 300 variables would be 3; the limit allows 0.1 %. Without it many exceed 1.01."""
    draws = np.random.default_rng(1).normal(size=[100, 4, 300, 5])
    rhat = rank_normalized_rhat(draws).max(axis=-1)
    assert np.sum(rhat > rhat_limit(4, 5, 400.0)) <= 3
    assert np.sum(rhat > 1.01) > 100
    assert rhat_limit(4, 5, 1e9) == 1.01


def test_standard_error_by_batch_means() -> None:
    x = autoregression(0.8, 4000, entries=50)
    error = batch_means_standard_error(x)
    assert error.shape == (50,)
    expected = np.sqrt(9 / x[..., 0].size)  # (1 + rho) / (1 - rho) = 9
    assert np.sqrt(np.mean(error**2)) / expected == pytest.approx(1.0, abs=0.1)
    by_hand = np.std([1.0, 3.0, 8.0], ddof=1) / np.sqrt(3)
    draws = np.array([[0.0], [2.0], [2.0], [4.0], [7.0], [9.0], [99.0]])
    np.testing.assert_allclose(batch_means_standard_error(draws, 3), by_hand)
    assert np.isnan(batch_means_standard_error(draws, 1))


def test_bad_input() -> None:
    for shape in ([3, 2], [5]):
        with pytest.raises(ValueError, match=r"draws must have shape \[draws, chains, ...\]"):
            rank_normalized_rhat(np.ones(shape))
    with pytest.raises(ValueError, match='kind must be "bulk", "tail" or "mean". Received: 3'):
        effective_sample_size(np.ones([5, 2]), 3)  # ty: ignore[invalid-argument-type]


def alike(correlation: float, num: int, chains: int, entries: int, rho: float = 0.8) -> np.ndarray:
    """Returns autoregressions whose noise the chains share in part, `[num, chains, entries]`."""
    own = autoregression(rho, num, chains, entries)
    shared = autoregression(rho, num, chains + 1, entries)[:, -1:]
    return np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own


def test_dependent_chains_are_worth_fewer() -> None:
    """1 + (C - 1) rho chains vary as one; sums of 300 independent draws have errors of 8 %."""
    kinds = ("bulk", "mean", "tail")
    independent = alike(0.0, 6000, 16, 20)[..., :5]
    sizes = [effective_sample_size(independent, kind) for kind in kinds]
    for correlation in (0.2, 0.95):
        x = alike(correlation, 6000, 16, 20)
        factor = chain_dependence(x).mean()
        assert factor == pytest.approx(1 + 15 * correlation, rel=0.1)
        for kind, size in zip(kinds, sizes, strict=True):
            ratio = size / effective_sample_size(x[..., :5], kind)
            assert ratio.mean() == pytest.approx(factor, rel=0.2)


def test_independent_chains_are_not_called_dependent() -> None:
    """None of 100 calls with 30 entries each is; a false alarm has probability 1e-6 a call."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        x = rng.standard_t(2, size=[rng.integers(20, 400), rng.integers(2, 65), 30])
        for t in range(1, len(x)):
            x[t, :, 10:] += rng.choice([0.5, 0.95]) * x[t - 1, :, 10:]
        x[: len(x) // 20] += 100.0  # a common start
        assert (chain_dependence(x) == 1).all(), seed


def test_the_digits_of_a_huge_rhat_are_left_out() -> None:
    assert [rhat_text(x) for x in (1.0043, 999.5, 3.9e14)] == ["1.004", "999.500", "above 1000"]


def test_the_limit_under_checks_of_numerics() -> None:
    """They refuse infinite numbers that TensorFlow Probability masks later."""
    convergence._chi2_quantile.cache_clear()
    tf.debugging.enable_check_numerics()
    try:
        assert rhat_limit(4, 30, 400.0) > 1.0
    finally:
        tf.debugging.disable_check_numerics()
