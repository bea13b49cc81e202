"""The table of the comparison with other libraries, and its sides. Nothing is timed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.peers import install, steps, steps_ours, steps_settings
from benchmarks.peers.worker import Case

CASE = Case(100, 1, False, True, False, 5000, "SGLD")


class Side:
    """A worker that reports the given time."""

    def __init__(self, microseconds: float, error: str = ""):
        self.microseconds, self.error = microseconds, error
        self.cases: list[Case] = []

    def time(self, case: Case, seed: int) -> float:
        self.cases.append(case)
        if self.error:
            raise RuntimeError(self.error)
        return self.microseconds


def test_what_fails_or_lacks_a_case_is_left_out_and_told() -> None:
    workers = {
        "ours": Side(30.0),
        "BlackJAX": Side(0.0, "ended:\nImportError: no jax"),
        "SGMCMCJax": Side(math.nan),
        "posteriors": Side(300.0),
    }
    problems: dict[str, str] = {}
    found = steps.measure(workers, CASE, 2, 0, problems)  # type: ignore[arg-type]
    assert problems == {"BlackJAX, SGLD": "ImportError: no jax"}
    assert [case.num_steps for case in workers["ours"].cases] == [5000] * 3
    assert workers["posteriors"].cases[0].num_steps == 500
    row = steps.Row("logistic", "SGLD", 100, 1, False, 5000, 0.05)
    assert steps.cells(row, found)[5:] == ("30", "-", "-", "300", "0.10", "0.1", "missed")


def test_a_table_of_ours_alone_has_no_ratio() -> None:
    assert steps.cells(steps.ROWS[1], {"ours": 30.0})[5:] == ("30", "-", "-", "-", "-", "0.5", "")


def test_ours_must_not_fail() -> None:
    with pytest.raises(RuntimeError, match="not the posterior"):
        steps.measure({"ours": Side(1.0, "not the posterior")}, CASE, 1, 0, {})  # type: ignore


def test_an_environment_that_is_not_there_is_told(tmp_path: Path) -> None:
    for name in install.REQUIREMENTS:
        assert not install.python(name, tmp_path).exists()
    assert {*steps.OTHERS.values(), "numpyro"} == {*install.REQUIREMENTS}


@pytest.mark.parametrize("num_chains, shared", [(1, True), (3, False), (3, True)])
def test_the_network_is_the_one_whose_accuracy_is_asked(num_chains: int, shared: bool) -> None:
    x = np.random.default_rng(1).standard_normal([7, 784], np.float32)
    parts = steps_settings.first_state(x, num_chains)
    batch = {"x": x, "y": np.arange(7)}
    if not shared:  # each chain has its own minibatch
        batch = {k: np.repeat(v[None], num_chains, axis=0) for k, v in batch.items()}
    likelihoods = []
    for label in range(10):
        labels = np.full(batch["y"].shape, label)
        found = steps_ours.log_likelihood(
            *map(tf.constant, parts), {**batch, "y": tf.constant(labels)}
        )
        likelihoods.append(found.numpy())
    np.testing.assert_allclose(np.sum(np.exp(likelihoods), axis=0), 1, rtol=1e-5)
    best = np.argmax(likelihoods, axis=0)
    y = best if num_chains == 1 else best[0]
    right = np.mean(best == y)
    assert steps_settings.accuracy(parts, x, y) == pytest.approx(right)
    assert right < 1 or num_chains == 1


def test_the_prior_is_of_each_chain() -> None:
    x = np.zeros([1, 784], np.float32)
    parts = steps_settings.first_state(x, 2)
    both = steps_ours.log_prior(*map(tf.constant, parts)).numpy()
    single = [steps_ours.log_prior(*(tf.constant(p[i]) for p in parts)).numpy() for i in (0, 1)]
    np.testing.assert_allclose(both, single, rtol=1e-5)
    squares = sum(float(np.sum(p[0] ** 2)) for p in parts)
    assert both[0] == pytest.approx(-0.5 * squares, rel=1e-5)


@pytest.mark.parametrize("sampler", ["SGD", pytest.param("SGLD", marks=pytest.mark.thorough)])
def test_a_side_runs_and_classifies(sampler: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal([2000, 5], np.float32)
    y = (x[:, 0] > 0).astype(np.float32)
    runner = steps_ours.make_runner(CASE._replace(num_steps=200, sampler=sampler), x, y)
    (last,) = runner(3)
    assert last.shape == (5,)
    assert steps_settings.accuracy([last], x, y) > 0.9
    assert steps_settings.accuracy([-last], x, y) < 0.1
