"""Posteriors of posteriordb: densities, draws by Stan's names, and no wrong run passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from benchmarks.posteriordb import __main__ as command
from benchmarks.posteriordb import hierarchies, regressions, series, table
from benchmarks.posteriordb.accuracy import judge
from benchmarks.posteriordb.posterior import Posterior
from benchmarks.posteriordb.runs import Run
from benchmarks.posteriordb.unseen import __main__ as unseen
from datasets.posteriordb import QUANTILES, Moments

NORMAL = scipy.stats.norm
SCHOOLS = {"J": 8, "y": np.array([28, 8, -3, 7, -1, 1, 18, 12]), "sigma": np.arange(9, 17)}
KIDS = {
    "kid_score": np.array([65, 98, 85]),
    "mom_hs": np.array([1, 0, 1]),
    "mom_iq": np.array([121.0, 89.0, 115.0]),
}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the data by a few rows."""
    monkeypatch.setattr(regressions, "posteriordb_data", lambda name: KIDS)
    monkeypatch.setattr(hierarchies, "posteriordb_data", lambda name: SCHOOLS)


def log_density(posterior: Posterior, parts: dict[str, Any]) -> np.ndarray:
    """Returns the log posterior of constrained float64 parts for two chains."""
    state = {name: tf.constant(x, tf.float64) for name, x in parts.items()}
    target = posterior.target("float64")
    flat = target.unconstrain(state)
    return target(**flat).numpy() - sum(flat[name].numpy() for name in posterior.bijector)


def test_a_regression_has_the_density_of_stan(tiny: None) -> None:
    beta, sigma = np.array([[20.0, 5.0, 0.5], [30.0, -5.0, 0.4]]), np.array([10.0, 20.0])
    found = log_density(command.ALL["kidiq-kidscore_momhsiq"](), {"beta": beta, "sigma": sigma})
    mean = beta @ np.array([np.ones(3), KIDS["mom_hs"], KIDS["mom_iq"]])
    rows = NORMAL.logpdf(KIDS["kid_score"], mean, sigma[:, np.newaxis]).sum(axis=1)
    np.testing.assert_allclose(found, rows + scipy.stats.halfcauchy.logpdf(sigma, 0, 2.5))


@pytest.mark.parametrize("effects", ["theta", "theta_trans"])
def test_schools_have_the_density_of_stan(tiny: None, effects: str) -> None:
    posterior = hierarchies.eight_schools(effects)
    mu, tau = np.array([4.0, -2.0]), np.array([3.0, 8.0])
    z = np.random.default_rng(0).standard_normal([2, 8])
    theta = mu[:, np.newaxis] + tau[:, np.newaxis] * z
    parts = {effects: theta if effects == "theta" else z, "mu": mu, "tau": tau}
    expected = NORMAL.logpdf(SCHOOLS["y"], theta, SCHOOLS["sigma"]).sum(axis=1)
    expected += NORMAL.logpdf(z).sum(axis=1) - (8 * np.log(tau) if effects == "theta" else 0)
    expected += NORMAL.logpdf(mu, 0, 5) + scipy.stats.halfcauchy.logpdf(tau, 0, 5)
    np.testing.assert_allclose(log_density(posterior, parts), expected)
    found = posterior.columns(parts, ("theta[8]", "tau"))
    np.testing.assert_allclose(found, np.stack([theta[:, 7], tau], axis=1))


def test_recurrence_is_that_of_a_loop() -> None:
    x = np.random.default_rng(0).standard_normal([2, 1, 7])
    factor, expected = np.array([0.5, -0.9])[:, np.newaxis, np.newaxis], x.copy()
    for t in range(1, 7):
        expected[..., t] += factor[..., 0] * expected[..., t - 1]
    found = series.recurrence(tf.constant(factor), tf.constant(x))
    np.testing.assert_allclose(found, expected)


def standard(num_draws: int = 10_000) -> Moments:
    """Returns the moments of a standard normal in three dimensions."""
    quantiles = np.tile(NORMAL.ppf(QUANTILES), [3, 1]).T
    return Moments(("a", "b", "c"), num_draws, np.zeros(3), np.ones(3), quantiles)


def test_right_draws_are_right_and_wrong_ones_fail_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Aims are missed beyond four standard errors: false alarms of 12 figures are below 1e-6.

    The shift and the width of the negative controls are three aims, 10 standard errors at least.
    """
    draws = np.random.default_rng(0).standard_normal([1000, 4, 3])
    right, shifted, wide = (judge(x, standard()) for x in (draws, draws + 0.15, draws * 1.2))
    assert right.is_right and not shifted.is_right and not wide.is_right
    assert not judge(draws * np.nan, standard()).is_right
    assert not judge(draws[:10], standard()).is_right  # too few to know

    def row(trusted: bool, accuracy: Any) -> table.Row:
        found = Run("sampler", trusted, ("note: a", "wrong: b", "note: c"), accuracy, 1.0)
        assert found.grades == "2 note, 1 wrong"
        return table.Row("a posterior", "zeros", "float64", 3, 9, found, found)

    table.show(iter([row(True, right), row(False, shifted), row(False, None)]))
    assert "3 runs: 1 trusted and right, 0 trusted and wrong." in capsys.readouterr().out
    with pytest.raises(SystemExit, match="trusted and wrong: a posterior"):
        table.show(iter([row(True, wide)]))


def test_names_are_of_forty_posteriors_and_one_more() -> None:
    assert len(table.picked(command.ALL, ("all",))) == 41
    assert [*table.picked(command.ALL, ("eight_schools", "arK-arK"))][2:] == ["arK-arK"]
    with pytest.raises(ValueError, match="Received: iris"):
        table.picked(command.ALL, ("iris",))


@pytest.mark.thorough
def test_models_of_no_database_have_closed_forms() -> None:
    """Two of 40,000 draws: standard errors are 0.005, so 0.05 is ten of them."""
    assert {*unseen.CLOSED_FORMS} <= {*unseen.ALL}
    posterior = unseen.ALL["meta_analysis"]()
    found = unseen.reference("meta_analysis", posterior, Path("none"))
    assert found.names[:3] == ("mu", "tau", "theta[1]")
    tau, y, error = np.linspace(1e-3, 3, 3000), posterior.data["y"], posterior.data["error"]
    mu = np.linspace(-3, 3, 601)
    logs = NORMAL.logpdf(y, mu[:, None, None], np.hypot(tau[:, None], error)).sum(axis=-1)
    logs += NORMAL.logpdf(mu)[:, None] + NORMAL.logpdf(tau, 0, 0.5)
    weights = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
    exact = [(weights.sum(axis=1) * mu).sum(), (weights.sum(axis=0) * tau).sum()]
    assert np.abs((found.mean[:2] - exact) / found.deviation[:2]).max() < 0.05
