"""The table of automatic runs: problems are what they say, and no wrong run passes."""

from __future__ import annotations

import types

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common.kept_results import kept_result
from benchmarks.common.reference import logistic_laplace
from benchmarks.no_knobs import __main__ as command
from benchmarks.no_knobs import automatic
from benchmarks.no_knobs.accuracy import DEVIATION_AIM, MEAN_AIM, judge
from benchmarks.no_knobs.automatic import Automatic
from benchmarks.no_knobs.by_hand import ByHand
from benchmarks.no_knobs.hostile import HOSTILE
from benchmarks.no_knobs.posteriors import POSTERIORS
from benchmarks.no_knobs.problems import Problem, by_quadrature, logistic, normal_prior
from benchmarks.no_knobs.references import Reference, laplace, reference
from tests.harness.fast_settings import fast_settings
from tfp_sgmcmc.internal.nest import call_with_state

MODELS = ("linear", "softmax", "hierarchical", "Student-t", "funnel", "network")
D = 3


def exact(mean: float = 0.0, deviation: float = 1.0) -> Reference:
    """Returns a reference of N(mean, deviation^2) entries that is known without error."""
    center, zeros = np.full(D, mean), np.zeros(D)
    covariance = deviation**2 * np.eye(D)
    return Reference(center, covariance, zeros, zeros, 1.0, np.inf, center, np.ones(D))


def normals(num_results: int = 2500) -> np.ndarray:
    return np.random.default_rng(0).standard_normal([num_results, 4, D])


def row(draws: np.ndarray, flags: tuple[str, ...] = ()) -> command.Row:
    found = Automatic("sampler", "took", flags, judge(draws, exact()), 1e4, 2.0, 1.0, 0.5)
    problem = Problem(normal_prior(), normal_prior(), np.zeros([9, 1]), np.zeros(D))
    return command.Row("a posterior", problem, exact(), found, [])


def test_weights_of_several_modes_are_described() -> None:
    arguments = {"weights": [0.5, 0.25, 0.25], "tail_share": 0.1234, "block_size": 250}
    choices = types.SimpleNamespace(
        sampler="IndependentMetropolis", arguments=arguments, batch_size=None
    )
    expected = "IndependentMetropolis, weights = [0.5  0.25 0.25], tail_share = 0.123, block_size"
    assert automatic.describe(choices).startswith(expected)


def test_independent_draws_meet_the_aims() -> None:
    """The false-alarm rate is below 1e-6: each aim is at least five standard errors away.

    The mean square error of three means of 10,000 draws is 1e-4 chi^2(3) / 3, and 1e-3 is needed.
    """
    found = judge(normals(), exact())
    assert found.is_good
    assert found.mean_noise == pytest.approx(0.01, rel=0.1)
    assert found.ratio_noise == pytest.approx(0.5**0.5 / 100, rel=0.1)


@pytest.mark.parametrize(
    ("mean", "deviation"), [(0.0, 1.0 + 2 * DEVIATION_AIM), (2 * MEAN_AIM, 1.0), (np.nan, 1.0)]
)
def test_wrong_draws_do_not_and_fail_the_command_unless_flagged(
    mean: float, deviation: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice an aim is missed by at least three standard errors of 10,000 draws."""
    wrong = mean + deviation * normals()
    assert not judge(wrong, exact()).is_good
    with pytest.raises(SystemExit, match="wrong and not flagged: a posterior"):
        command.show(iter([row(wrong)]))
    command.show(iter([row(wrong, ("The draws are too wide.",)), row(normals())]))
    assert "2 posteriors: 1 flagged, 0 wrong and not flagged." in capsys.readouterr().out


def test_errors_are_in_units_of_the_exact_moments() -> None:
    found = judge(5.0 + 2.0 * normals(), exact(5.2, 2.0))
    assert found.mean == pytest.approx(0.1, abs=0.03)
    assert found.ratio == pytest.approx(1.0, abs=0.03)
    assert found.mean_excess < found.mean


def test_draws_of_few_effective_samples_are_not_blamed_for_it() -> None:
    """Each draw is repeated 25 times: 400 independent ones err by 0.05, which noise explains."""
    found = judge(np.repeat(normals(100), 25, axis=0), exact())
    assert found.mean_noise == pytest.approx(0.05, rel=0.4)


@pytest.mark.parametrize("name", fast_settings(MODELS, "softmax"))
def test_minibatches_of_a_problem_add_up_to_its_log_posterior(name: str) -> None:
    problem = command.ALL[name]()
    assert problem.dimension == sum(np.size(x) for x in tf.nest.flatten(problem.start))
    sgmcmc.preflight(problem.target(), problem.state())
    chains = tf.nest.map_structure(lambda x: tf.stack([x, x]), problem.state())
    assert problem.target().estimate(chains, tf.constant([0, 1])).log_prob.shape == [2]
    assert np.isfinite(call_with_state(problem.target(), chains)).all()


def test_quadrature_gives_the_moments_of_a_gaussian() -> None:
    covariance = np.array([[2.0, 0.5], [0.5, 1.0]])
    mean, precision = np.array([1.0, -1.0]), np.linalg.inv(covariance)

    def log_density(theta: np.ndarray) -> np.ndarray:
        off = theta - mean
        return -np.einsum("pi,ij,pj->p", off, precision, off) / 2

    found = by_quadrature(log_density, [np.linspace(-12, 12, 241), np.linspace(-9, 9, 181)])
    np.testing.assert_allclose(found.mean, mean, atol=1e-9)
    np.testing.assert_allclose(found.covariance, covariance, atol=1e-9)


def test_the_moments_of_the_funnel_are_those_of_a_sum_over_its_neck() -> None:
    """Given v, x_k is N(0, exp(v)), and the density of v is one-dimensional."""
    problem = POSTERIORS["funnel"]()
    assert problem.exact is not None
    v = np.linspace(-15, 15, 6001)
    log_density = -(v**2) / 18 - ((problem.data[:, np.newaxis] - v) ** 2).sum(axis=0) / 1800
    weights = np.exp(log_density - log_density.max())
    weights /= weights.sum()
    mean, covariance = problem.exact()
    assert mean[0] == pytest.approx(weights @ v)
    assert covariance[0, 0] == pytest.approx(weights @ (v - mean[0]) ** 2)
    assert covariance[1, 1] == pytest.approx(weights @ np.exp(v))


def small() -> Problem:
    rng = np.random.default_rng(0)
    return logistic(rng.standard_normal([200, D]), rng.random(200) < 0.5)


def test_laplace_is_that_of_newtons_method() -> None:
    problem = small()
    mode, covariance = logistic_laplace(problem.data["x"], problem.data["y"])
    found = laplace(problem)
    np.testing.assert_allclose(found.mean, mode, atol=1e-6)
    np.testing.assert_allclose(found.factor @ found.factor.T, covariance, rtol=1e-5, atol=1e-8)


def test_a_known_posterior_is_its_own_reference(tmp_path) -> None:
    problem = HOSTILE["skewed scale"]()
    found = reference(problem, tmp_path / "moments" / "of.npz")
    assert found.is_good
    again = reference(problem._replace(exact=None), tmp_path / "moments" / "of.npz")
    np.testing.assert_array_equal(again.mean, found.mean)


def test_names_stand_for_posteriors() -> None:
    assert len(command.names(("table",))) >= 12
    assert command.names(("all",)) == [*POSTERIORS, *HOSTILE]
    with pytest.raises(ValueError, match=r"posteriors must be some of table, .* Received: iris"):
        command.names(("pima", "iris"))


def test_rows_are_kept(tmp_path) -> None:
    judged = row(normals(), ("The draws are too wide.",)).automatic
    by_hand = [ByHand("HMC", 0.5, None), ByHand("order 2", np.inf, judged.accuracy)]
    for found in (judged, judged._replace(accuracy=None)):
        name = f"of_{found.accuracy is None}"
        for make in (lambda found=found: (found, by_hand), pytest.fail):
            assert kept_result(str(tmp_path / "kept"), name, make, command.read) == (found, by_hand)


@pytest.mark.slow
def test_the_quick_table_is_right(tmp_path) -> None:
    folders = {"folder": str(tmp_path), "kept": str(tmp_path)}
    rows = list(command.run(quick=True, **folders))
    assert [command.verdict(row) for row in rows] == ["right", "right"]
    assert len(command.show(iter(rows))["Posteriors"].lines) == 2
    again = list(command.run(quick=True, **folders))
    assert [r.automatic._replace(milliseconds=0.0) for r in again] == [
        r.automatic._replace(milliseconds=0.0) for r in rows
    ]
