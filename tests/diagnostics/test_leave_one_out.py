"""Leave-one-out: estimators that are unbiased over random rows, and the comparison of models."""

import warnings

import numpy as np
import pytest

from tfp_sgmcmc.diagnostics.leave_one_out import compare, difference_estimate, leave_one_out

N, M = 60, 12
RNG = np.random.default_rng(0)
VALUES = RNG.normal(-1.0, 0.5, size=N)
SURROGATE = VALUES + RNG.normal(0.1, 0.2, size=N)
SUBSETS = [RNG.choice(N, M, replace=False) for _ in range(4000)]


def z_of(found: np.ndarray, expected: float) -> float:
    """Returns the deviation of a mean from `expected`, in standard errors."""
    return float((found.mean() - expected) / (found.std(ddof=1) / np.sqrt(len(found))))


def test_the_estimate_and_both_variances_have_no_bias() -> None:
    """Each z is beyond 5 with probability 6e-7. Leaving out 1 - m / N gives a z of 18."""
    found = np.array([difference_estimate(VALUES[s], SURROGATE, s) for s in SUBSETS])
    variance, of_rows = found[:, 2] ** 2, found[:, 1] ** 2 - found[:, 2] ** 2
    assert abs(z_of(found[:, 0], VALUES.sum())) < 5
    truth = found[:, 0].var(ddof=1)
    error = truth * np.sqrt(2 / len(found)) + variance.std() / np.sqrt(len(found))
    assert abs(variance.mean() - truth) < 5 * error
    assert abs(variance.mean() / (1 - M / N) - truth) > 3 * error  # negative control
    assert abs(z_of(of_rows, N * VALUES.var())) < 5


def test_all_rows_leave_no_error_of_subsampling() -> None:
    found = difference_estimate(VALUES, SURROGATE, np.arange(N))
    assert found.value == pytest.approx(VALUES.sum()) and found.subsampling_error == 0
    assert found.standard_error == pytest.approx(np.sqrt(N) * VALUES.std())


def log_likelihood(scale: float = 0.1, shift: float = 0.0) -> np.ndarray:
    """Returns the log likelihoods of rows at draws of their mean, `[draws, N]`."""
    rng = np.random.default_rng(1)
    draws, rows = rng.normal(0, scale, size=[2000, 1]), rng.normal(shift, 1.0, size=N)
    return -0.5 * np.log(2 * np.pi) - 0.5 * (rows - draws) ** 2


def test_it_is_arvizs_loo() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        arviz = pytest.importorskip("arviz", exc_type=ImportError)
    from tfp_sgmcmc.internal.extras import as_dataset, inference_data

    log_p = log_likelihood()
    chains = log_p.reshape(4, 500, N)
    data = inference_data(
        {
            "posterior": as_dataset({"w": np.zeros([4, 500])}),
            "log_likelihood": as_dataset({"y": chains}),
        }
    )
    expected = arviz.loo(data, reff=0.9, pointwise=True)
    found = leave_one_out(log_p, np.arange(N), log_p.mean(axis=0), 0.9)
    is_old = arviz.__version__.startswith("0.")
    elpd, se = (expected.elpd_loo, expected.se) if is_old else (expected.elpd, expected.se)
    p_loo = expected.p_loo if is_old else expected.p
    assert found.elpd == pytest.approx(float(elpd), rel=1e-9)
    se = float(se) * (1 if is_old else (1 - 1 / N) ** 0.5)  # version 1 divides by N - 1
    assert found.standard_error == pytest.approx(se, rel=1e-6)
    assert found.p_loo == pytest.approx(float(p_loo), rel=1e-6)
    np.testing.assert_allclose(found.pareto_k, expected.pareto_k, rtol=1e-9)


def test_outliers_are_flagged() -> None:
    pytest.importorskip("arviz", exc_type=ImportError)
    log_p = log_likelihood(scale=1.0)
    log_p[:, 3] = -0.5 * (30 - log_p[:, 3]) ** 2
    found = leave_one_out(log_p, np.arange(N), log_p.mean(axis=0), 1.0)
    assert found.num_unreliable >= 1 and "Pareto shape" in repr(found)
    good = leave_one_out(log_likelihood(), np.arange(N), log_p.mean(axis=0), 1.0)
    assert good.flags == () and "Leave-one-out by 60 of 60 rows" in repr(good)
    assert "<table" in good._repr_html_()


def test_rows_that_no_draw_doubts_have_weights_too() -> None:
    """In single precision the log likelihoods of such rows are few numbers near zero."""
    pytest.importorskip("arviz", exc_type=ImportError)
    log_p = log_likelihood()
    log_p[:, 0] = 0.0
    log_p[:, 1] = -1e-7 * RNG.integers(0, 2, size=2000)
    found = leave_one_out(log_p, np.arange(N), log_p.mean(axis=0), 1.0)
    assert np.isfinite(found.elpd) and not found.flags
    np.testing.assert_allclose(found.pointwise[:2], 0.0, atol=1e-6)


def test_models_are_compared_on_paired_rows() -> None:
    pytest.importorskip("arviz", exc_type=ImportError)
    rows, log_p = np.arange(N), log_likelihood()
    models = {
        name: leave_one_out(log_p - less, rows, log_p.mean(axis=0) - less, 1.0)
        for name, less in (("worse", 0.5), ("best", 0.0))
    }
    found = compare(models)
    assert found.names == ("best", "worse")
    assert found.differences[0].value == 0 and found.differences[0].standard_error == 0
    assert found.differences[1].value == pytest.approx(-0.5 * N)
    assert found.differences[1].standard_error < 1e-4  # of each elpd it is 6
    assert repr(found).split("\n")[3].startswith("best")
    some = leave_one_out(log_p[:, ::2], rows[::2], log_p.mean(axis=0), 1.0)
    with pytest.raises(ValueError, match="same rows.*other rows for"):
        compare({"best": models["best"], "some": some})
    with pytest.raises(ValueError, match="at least two results"):
        compare({"one": models["best"]})
    with pytest.raises(TypeError, match="Received: 'b', an int"):
        compare({"a": models["best"], "b": 3})
