"""Experiments on restricted Boltzmann machines: their measures by hand, and their quick forms."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.common import drbm, second_half
from benchmarks.reproductions import (
    drbm_hmc,
    drbm_kdd,
    drbm_kdd_posterior,
    drbm_kdd_programs,
    drbm_modes,
    drbm_shang,
)
from benchmarks.reproductions.experiment import UNDECIDED


def test_errors_so_far_average_the_second_half() -> None:
    good, bad = [0.4, 0.6], [0.9, 0.1]
    probabilities = np.array([[bad], [good], [good], [bad], [good]])  # [states, rows, classes]
    # Means over the states 0; 1; 1 and 2; 2 and 3; 2, 3 and 4.
    found = second_half.wrong_so_far(probabilities, np.array([1]))[:, 0]
    np.testing.assert_array_equal(found, [1, 0, 0, 1, 1])
    probabilities[3] = np.nan
    found = second_half.wrong_so_far(probabilities, np.array([1]))[:, 0]
    np.testing.assert_array_equal(found, [1, 0, 0, np.nan, np.nan])


def test_correlations() -> None:
    found = drbm_kdd_posterior.correlations(np.array([[4.0, 3.0], [3.0, 9.0]]))
    np.testing.assert_allclose(found, [[1, 0.5], [0.5, 1]])


def test_r_hat_tells_two_modes_from_one() -> None:
    draws = np.random.default_rng(0).standard_normal([200, 4, 3])
    assert drbm_hmc.largest_r_hat(draws) < 1.05
    draws[:, 0, 2] += 3.0  # one chain of one row is elsewhere
    assert drbm_hmc.largest_r_hat(draws) > drbm_modes.AGREE


def test_errors_are_judged_where_the_chains_of_hmc_agree() -> None:
    """Chains disagree on one of 20 parameters, then on 15; a difference in the noise is open."""
    passes, none = np.ones(1), np.zeros([0, 2], int)

    def claims(disagreeing: int, of_sgld: float) -> list:
        r_hats = np.ones([2, 20])
        r_hats[:, :disagreeing] = 18.0
        rows = [
            drbm_kdd_posterior.Row(name, 1.0, passes, np.array([e]), np.array([e]), e, np.zeros(0))
            for name, e in (("SGLD", of_sgld), ("SGFS-d", 0.4), ("SGFS-f", 0.2))
        ]
        result = drbm_kdd_posterior.Result(rows, r_hats, 0.8, (0.1, 0.1), none, np.zeros(0), 0.1)
        return drbm_kdd_posterior.claims(result)

    first, *errors = claims(1, 0.5)
    assert first.held is True and "below 1.1 for 95% of the parameters" in first.ours
    assert [claim.held for claim in errors] == [True] * 3
    assert [claim.held for claim in claims(1, 0.25)[1:]] == [UNDECIDED] * 3
    assert len(claims(15, 0.5)) == 1


def test_paired_differences_of_methods() -> None:
    """Three test rows more are wrong by SGD, and three others by each method: 3 / sqrt(9)."""
    wrong = {"SGD": range(6), "SGLD": range(3, 9), "SGFS-d": range(3, 6)}
    rows = []
    for name, at in wrong.items():
        mine = np.zeros([1, 100], np.float32)
        mine[0, [*at]] = 1
        rows.append(drbm_kdd.Row(name, 1.0, {1.0: 0.0}, np.ones(1), mine.mean(1), mine, 1.0, 100))
    claim = drbm_kdd.claims(rows)[0]
    assert claim.held == UNDECIDED and claim.why.count("+1.7 standard errors") == 2


def test_slow_mixing_and_modes_look_alike() -> None:
    draws = np.random.default_rng(0).standard_normal([500, 4])
    for values, verdict, why in (
        (draws + np.arange(4), "the starts disagree", "effective draws"),
        (draws, "all starts agree", "modes that differ by permutations alone"),
        (np.cumsum(draws, axis=0), "the starts disagree", "effective draws"),  # random walks
    ):
        r_hat = drbm_hmc.largest_r_hat(values)
        found = drbm_modes.Found(values, values, r_hat, r_hat, 0.0, "")
        (claim,) = drbm_modes.claims({"HMC": found})
        assert claim.held is None and claim.ours.startswith(verdict) and why in claim.why


def test_hidden_units_can_be_permuted() -> None:
    # The functions by which chains are compared do not change.
    state = drbm.initial(3, 4, 5)
    order = [2, 0, 1]
    other = drbm.Weights(*(tf.gather(part, order) for part in state[:3]), state.d)
    x = np.random.default_rng(0).standard_normal([7, 4]).astype(np.float32)
    np.testing.assert_allclose(drbm.logits(state, x), drbm.logits(other, x), rtol=1e-5)
    np.testing.assert_allclose(
        drbm.gaussian_log_prior(*state), drbm.gaussian_log_prior(*other), rtol=1e-5
    )


@pytest.mark.slow
def test_thermostats_learn_connect4() -> None:
    found, of_most_frequent_class = drbm_shang.run(**drbm_shang.EXPERIMENT.quick), 0.342
    for curve in found["connect4"]:
        # With the smaller step, 15 passes are the beginning.
        share = 0.9 if curve.step_size > 4e-3 else 1.0
        assert curve.final < share * of_most_frequent_class
        assert curve.values[-1] < curve.values[0]
    # The friction against known noise lets the error fall faster.
    for curves in drbm_shang.pairs(found["connect4"]).values():
        for other in ("SGHMC", "SGNHT"):
            assert curves["CCAdL"].overall < curves[other].overall


@pytest.mark.slow
def test_fisher_scoring_learns_the_connections_faster() -> None:
    found = {row.method: row for row in drbm_kdd.run(**drbm_kdd.EXPERIMENT.quick)}
    assert min(found["SGFS-d"].test[-1], found["SGFS-f"].test[-1]) < found["SGLD"].test[-1]
    assert max(row.test[-1] for row in found.values()) < 0.05
    assert found["SGFS-f"].seconds > found["SGFS-d"].seconds


@pytest.mark.slow
def test_samplers_around_the_mode_of_a_small_machine() -> None:
    result = drbm_kdd_posterior.run(**drbm_kdd_posterior.EXPERIMENT.quick)
    assert 0.6 < result.acceptance < 0.95
    assert len(result.pairs) == drbm_kdd_posterior.PAIRS
    assert np.all(np.abs(result.correlations) <= 1)
    for row in result.rows:
        assert np.all(np.isfinite(row.covariance_error))


@pytest.mark.slow
def test_replica_exchange_sees_the_same_levels_as_hmc() -> None:
    """The log posterior has a standard deviation of about 7; at T = 1.3 it would be 15 lower."""
    found = drbm_modes.run(**drbm_modes.EXPERIMENT.quick)
    levels = {name: of_method.log_joint.mean() for name, of_method in found.items()}
    assert abs(levels["HMC"] - levels["replica exchange"]) < 10
    # Replica exchange has had too few steps for its starts to agree, and HMC agrees better.
    assert found["HMC"].r_hat_joint < found["replica exchange"].r_hat_joint
    assert len(drbm_modes.claims(found)) == 2


def test_draws_of_programs_are_read_by_method(tmp_path: Path) -> None:
    name = "SGFS-d, B = gamma N V"
    parts = {f"kept_{i}": np.arange(6.0).reshape(6, 1) + i for i in range(4)}
    path = tmp_path / f"{drbm_kdd_programs.file_name(name)}.draws.npz"
    np.savez(path, seconds=np.array([9.0, 1.0, 3.0]), device=np.array("a GPU"), **parts)
    states, seconds, device = drbm_kdd_programs.read(tmp_path, name, 4)
    assert (seconds, device) == (6.0, "a GPU")  # the first call counts as the mean of the others
    for i, part in enumerate(states):
        np.testing.assert_array_equal(part[:, 0], np.arange(4.0) + i)
    with pytest.raises(ValueError, match="must hold 7 states. Received: 6"):
        drbm_kdd_programs.read(tmp_path, name, 7)
    with pytest.raises(SystemExit, match="SGFS-f.draws.npz does not exist"):
        drbm_kdd_programs.read(tmp_path, "SGFS-f", 4)
