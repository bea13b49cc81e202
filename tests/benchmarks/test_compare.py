"""The comparisons of samplers count costs correctly, and no failed or biased sampler wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.accuracy import compare
from benchmarks.common import exact_moments as exact_moments_module
from benchmarks.common import methods as methods_module
from benchmarks.common import posteriors
from benchmarks.common import second_order as second_order_module
from benchmarks.common.exact_moments import controlled_moments, exact_moments
from benchmarks.common.logistic import as_batch, log_likelihood, score
from benchmarks.common.methods import methods, select
from benchmarks.common.posteriors import Posterior, posterior
from benchmarks.common.reference import Reference
from benchmarks.common.second_order import second_order
from benchmarks.common.trajectories import Curve, Runner, Trajectory, first_below
from benchmarks.cost import equal_error, equal_error_tables
from benchmarks.cost.equal_error_tables import Effective, Reached, Row
from benchmarks.suite import profiles

N, D, BATCH = 40, 2, 10
COUNTED = [
    "SGD", "SGLD", "SGNHT", "NOGIN full", "SGFS diag", "SGLD + CV", "NOGIN diag + CV",
    "SGLD + SVRG", "CCAdL diag + SVRG", "corrected Langevin", "HMC", "NUTS", "HMC whitened",
]  # fmt: skip
FURTHER = ("SGNHT", "SGFS diag", "NOGIN diag + CV", "CCAdL diag + SVRG", "HMC whitened")


def tiny() -> Posterior:
    rng = np.random.default_rng(0)
    x = rng.standard_normal([N, D]).astype(np.float32)
    return posterior(x, (rng.random(N) < 0.5).astype(np.float32))


class Counting(Posterior):
    """Counts examples whose gradient is evaluated eagerly, by a tape or by `score_fn`."""

    counted: list[int] = []

    def target(self, batch_size: int) -> sgmcmc.MinibatchLogProb:
        def counted_score(theta: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
            self.counted.append(int(batch["y"].shape[-1]))
            return score(theta, batch)

        def likelihood(theta: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
            @tf.custom_gradient
            def values(theta: tf.Tensor) -> tuple[tf.Tensor, Any]:
                return log_likelihood(theta, batch), lambda upstream: tf.linalg.matvec(
                    counted_score(theta, batch), upstream, transpose_a=True
                )

            return values(theta)

        return sgmcmc.MinibatchLogProb(
            lambda theta: -0.5 * tf.reduce_sum(theta**2, axis=-1),
            likelihood, as_batch(self.x, self.y), batch_size, score_fn=counted_score,
        )  # fmt: skip


@pytest.fixture(scope="module")
def counting() -> dict[str, methods_module.Method]:
    return methods(Counting(*tiny()), BATCH)


@pytest.fixture(scope="module")
def found() -> dict[str, methods_module.Method]:
    return methods(tiny(), BATCH)


@pytest.fixture(scope="module")
def sgld(found: dict[str, methods_module.Method]) -> Runner:
    return Runner(found["SGLD"], N)


@pytest.fixture(scope="module")
def reference() -> Reference:
    p = tiny()
    return Reference(p.mode, p.covariance, 1.0, 1.0, 1e-4, 1e-3)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in FURTHER)) for name in COUNTED]
)
def test_examples_are_counted(name: str, counting: dict[str, methods_module.Method]) -> None:
    method = counting[name]
    state = tf.constant(method.start, tf.float32)
    kernel = method.make_kernel(tf.constant(method.unit, tf.float32))
    results = kernel.bootstrap_results(state)
    Counting.counted.clear()
    told = []
    for i in range(N // BATCH):  # the steps of SVRG from one anchor to the next
        state, results = kernel.one_step(state, results, seed=tf.constant([0, i]))
        told.append(int(method.count(results)))
    assert sum(told) == sum(Counting.counted) > 0
    assert max(told) <= method.examples


@pytest.mark.thorough
def test_second_order_in_whitened_coordinates_gives_parameters(reference: Reference) -> None:
    """The way back is Laplace's bijector, and a chain's draws have gone it."""
    p = tiny()
    (method,) = second_order(p, second_order_module.NAMES[:1]).values()
    assert method.examples == N  # the minibatch of 100 is the data set
    assert method.once.passes > 2 * D and method.once.seconds > 0
    z = np.array([[0.0, 0.0], [1.0, -1.0]])
    expected = p.mode + z @ np.linalg.cholesky(p.covariance).T
    # The mode of `find_center` is within 0.1 standard deviations of Newton's.
    found = method.to_parameters(tf.constant(z, tf.float32))
    np.testing.assert_allclose(found, expected, atol=0.1 * np.diag(p.covariance).max() ** 0.5)
    seven = method._replace(to_parameters=lambda z: np.full(z.shape, 7.0))
    chain = Runner(seven, N)(1.0, 0, 0.01, reference)
    assert np.all(chain.draws == 7) and chain.curve.seconds[0] > method.once.seconds
    assert second_order(p, ("SGLD",)) == {}


def test_every_sampler_of_the_suite_is_here(counting: dict[str, methods_module.Method]) -> None:
    def kinds(names: tuple[str, ...]) -> set[str]:
        return {name.split()[0].rstrip(",") for name in names}

    assert kinds(profiles.SAMPLERS + profiles.BASELINES) == kinds(tuple(counting))
    assert set(equal_error.DEFAULT) <= {*counting, *equal_error.SECOND_ORDER}
    with pytest.raises(ValueError, match="must be 'all' or some of .*SGLD.*Received: luck"):
        select(counting, ["luck"])
    assert not any(" + " in name for name in select(counting, ["all"]))


def test_an_unknown_posterior_is_refused() -> None:
    with pytest.raises(ValueError, match="data must be one of mnist_7v9, .*Received: 'mnist'"):
        compare.run(data="mnist")


def test_crossing_of_a_known_curve() -> None:
    cost = np.geomspace(1, 1000, 7)
    np.testing.assert_allclose(first_below(cost, cost**-0.5, 0.05), 400)  # 400^-1/2 = 0.05
    assert first_below(cost, cost**-0.5, 0.01) == np.inf
    assert first_below(cost, cost**-0.5, 2.0) == 1.0
    again = np.where(cost == cost[5], 1.0, cost**-0.5)  # below, above again, below
    assert cost[5] < first_below(cost, again, 0.2) <= cost[6]
    assert first_below(cost, np.where(cost == cost[6], np.nan, 1 / cost), 0.5) == np.inf
    assert first_below(cost[:0], cost[:0], 0.5) == np.inf


@pytest.mark.slow
def test_a_chain_that_becomes_infinite_does_not_win(sgld: Runner, reference: Reference) -> None:
    wild = sgld(1e4, 0, 0.05, reference)
    assert wild.failed and not wild.effective_sample_sizes().any()
    row = equal_error.measure(sgld, (1e4, 1.0), reference, 0.05, 0.02, seeds=(1,))
    assert {x.step for x in row if x is not None} == {1.0}
    never = equal_error.measure(sgld, (1e4,), reference, 0.05, 0.02, seeds=(1,))
    assert never == Row(None, None, None)
    assert equal_error_tables.cells(never)[1] == "became infinite"
    # The pilot was finite, but a seed that counts fails.
    reached = equal_error.reached(1.0, [wild], "mean_error")
    assert reached.seconds == reached.passes == reached.least_error == np.inf
    assert equal_error.effective(1.0, [wild], reference, N) is None


@pytest.mark.thorough
def test_passes_seconds_and_steps_of_a_chain(sgld: Runner, reference: Reference) -> None:
    chain = sgld(1.0, 0, 0.05, reference)
    per_block = sgld.num_results * sgld.method.thinning * BATCH / N
    np.testing.assert_allclose(chain.curve.passes[:4], per_block * np.arange(1, 5))
    assert chain.examples == chain.steps * BATCH
    assert 0 < chain.seconds < chain.curve.seconds[-1]
    assert np.all(np.diff(chain.curve.seconds) > 0)
    same = sgld(1.0, 0, 0.05, reference)
    np.testing.assert_array_equal(same.curve.mean_error[:4], chain.curve.mean_error[:4])


def trajectory(rate: float, covariance: float, failed: bool = False) -> Trajectory:
    """Returns errors of rate / sqrt(seconds), and draws with the given variances."""
    cost = np.geomspace(0.01, 100, 20)
    z = np.random.default_rng(0).standard_normal([500, D])
    z = (z - z.mean(axis=0)) / z.std(axis=0, ddof=1)
    curve = Curve(10 * cost, cost, rate * cost**-0.5, rate * cost**-0.5)
    return Trajectory(curve, np.sqrt(covariance) * z, 50.0, 1000, 4000, failed)


def test_the_best_step_is_chosen() -> None:
    exact = Reference(np.zeros(D), np.eye(D), 1.0, 1.0, 0.0, 0.0)
    pilots = {
        4.0: trajectory(0.01, 1.0, failed=True),
        2.0: trajectory(0.1, 4.0),  # the first to reach the bounds, but twice too wide
        1.0: trajectory(0.2, 1.0),
        0.5: trajectory(5.0, 1.0),  # never reaches them
    }
    assert equal_error.choose(pilots, exact) == (2.0, 2.0, 1.0)
    frozen = trajectory(4.0, 1e-6)  # the least error in the end, but useless draws
    assert equal_error.choose({0.5: pilots[0.5], 8.0: frozen}, exact) == (0.5, 0.5, 0.5)
    reached = equal_error.reached(1.0, [pilots[1.0]] * 3, "mean_error")
    np.testing.assert_allclose(reached, (1.0, 160, 16, 0.02))  # (0.2 / 0.05)^2 seconds
    missed = equal_error.reached(0.5, [pilots[0.5]] * 3, "mean_error")
    assert missed.seconds == np.inf and missed.least_error == 0.5
    assert equal_error_tables.cells(Row(missed, missed, None))[1] == "not reached (0.5)"


def test_biases_of_known_draws() -> None:
    exact = Reference(np.full(D, 3.0), np.eye(D), 1.0, 1.0, 0.0, 0.0)
    mean, sd = exact.biases([trajectory(1.0, 4.0).draws])
    np.testing.assert_allclose((mean, sd), (3.0, 2.0))


def test_who_wins_and_from_which_n_on() -> None:
    fast, slow = Reached(1.0, 10.0, 1.0, 0.01), Reached(1.0, 5.0, 2.0, 0.01)
    missed, biased = Reached(1.0, np.inf, np.inf, 0.3), Effective(1.0, 0.1, 0.1, 0.0, 1.5)
    here = {
        "Laplace": Row(Reached(np.nan, 0.0, 0.0, 0.0), missed, None),
        "SGLD": Row(fast, missed, biased),
        "SGLD + CV": Row(None, None, None),
        "HMC": Row(slow, missed, Effective(1.0, 2.0, 3.0, 0.0, 1.05)),
    }
    ranking, nobody = equal_error_tables.ranking, (np.inf, "control variates", "")
    first, second = (1.0, "plain minibatches", "SGLD"), (2.0, "all data", "HMC")
    assert ranking(here, "mean_error", "seconds") == [first, second, nobody]
    assert ranking(here, "mean_error", "passes")[0] == (5.0, "all data", "HMC")
    assert not any(name for _, _, name in ranking(here, "covariance_error", "seconds"))
    found = ranking(here, "effective", "seconds")  # SGLD is biased
    assert found == [(3.0, "all data", "HMC"), nobody, (np.inf, "plain minibatches", "")]
    both = {"synthetic_1e4": {"HMC": here["HMC"]}, "synthetic_1e5": here}
    said = list(equal_error_tables.conclusions(both))
    assert "  synthetic: plain minibatches from N = 10^5 on; all data at N = 10^4" in said
    assert "  synthetic: nobody from N = 10^4 on" in said


def test_stein_controls_are_exact_on_a_gaussian() -> None:
    p = tiny()
    draws = 10 * np.random.default_rng(1).standard_normal([7, D])  # from any law
    gradients = -np.linalg.solve(p.covariance, (draws - p.mode).T).T
    mean, covariance = controlled_moments(p, draws, gradients)
    np.testing.assert_allclose(mean, p.mode, atol=1e-12)
    np.testing.assert_allclose(covariance, p.covariance, atol=1e-12)
    wrong, _ = controlled_moments(p, draws, 1.1 * gradients)
    assert np.max(np.abs(wrong - p.mode)) > 0.01


@pytest.mark.slow
def test_exact_moments_against_a_sum_over_a_grid() -> None:
    p = tiny()
    found = exact_moments(p, num_results=50)
    z = np.stack(np.meshgrid(*[np.linspace(-7, 7, 141)] * D), axis=-1).reshape(-1, D)
    theta = p.mode + z @ np.linalg.cholesky(p.covariance).T
    logits = theta @ p.x.T.astype(np.float64)
    log_p = logits @ p.y - np.logaddexp(0, logits).sum(axis=1) - 0.5 * (theta**2).sum(axis=1)
    weights = np.exp(log_p - log_p.max())
    mean = np.average(theta, axis=0, weights=weights)
    covariance = np.cov(theta, rowvar=False, aweights=weights, ddof=0)
    errors = [
        (
            sgmcmc.diagnostics.relative_mean_error(m, mean),
            sgmcmc.diagnostics.relative_covariance_error(c, covariance),
        )
        for m, c in ((found.mean, found.covariance), (p.mode, p.covariance))
    ]
    np.testing.assert_array_less(errors[0], 0.005)
    np.testing.assert_array_less(0.01, errors[1])  # Laplace's approximation does not pass


@pytest.mark.thorough
def test_both_commands(
    found: dict[str, methods_module.Method],
    sgld: Runner,
    reference: Reference,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(posteriors, "POSTERIORS", {"tiny": tiny})
    for module in (compare, equal_error):
        monkeypatch.setattr(module, "methods", lambda p, batch_size: found)
        monkeypatch.setattr(module, "Runner", lambda method, num_examples: sgld)
    monkeypatch.setattr(exact_moments_module, "exact_moments", lambda p, num_results: reference)
    chosen = ["--data", "tiny", "--samplers", "SGLD", "--batch-size", "10", "--seconds", "0.05"]
    chosen += ["--seeds", "1", "2", "--num-reference-results", "20"]
    monkeypatch.setattr("sys.argv", ["program", *chosen, "--output", str(tmp_path)])
    compare.main()
    printed = capsys.readouterr().out
    assert "SGLD" in printed and "noise floor" in printed
    for name in ("error_against_seconds", "error_against_passes"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / f"{name}.svg").read_text()

    np.savez(tmp_path / "tiny.npz", **reference._asdict())  # as another call leaves them
    rows = equal_error.run(
        data=("tiny",), samplers=("SGLD",), batch_size=BATCH, seconds=0.05, pilot_seconds=0.02,
        seeds=(1,), folder=str(tmp_path),
    )  # fmt: skip
    kept = equal_error.load(tmp_path / "equal_error.json")
    assert kept["tiny"]["SGLD"] == rows["tiny"]["SGLD"]
    assert kept["tiny"]["Laplace"].mean_error.least_error == 0  # this reference is Laplace's
    equal_error.show(rows)
    assert "Seconds until E1 < 0.05:\n  tiny: " in capsys.readouterr().out
