"""CCAdL learns the sevens and nines in fewer passes than SGNHT and SGHMC."""

import numpy as np
import pytest

from benchmarks.reproductions import against_passes, blr_shang, blr_shang_marginals
from benchmarks.reproductions.experiment import UNDECIDED


def test_log_likelihood_of_the_second_half() -> None:
    logits = np.array([[0.0, 2.0], [1.0, -3.0], [-1.0, 0.5], [700.0, -800.0]])
    y = np.array([1, 0])
    found = blr_shang.log_likelihood_so_far(logits, y)
    # The mean of the states 0; 1; 1 and 2; 2 and 3.
    for value, used in zip(found, ([0], [1], [1, 2], [2, 3]), strict=True):
        mean = logits[used].mean(axis=0)
        expected = -np.mean(np.logaddexp(0, np.where(y == 1, -mean, mean)))
        np.testing.assert_allclose(value.mean(), expected, rtol=1e-6)


def test_marginals_of_few_effective_draws_decide_nothing() -> None:
    """The standard deviations of SGHMC, SGNHT and CCAdL are 3, 1.5 and 1.1 times HMC's."""
    exact = np.zeros(2), np.eye(2)
    ratios = {"SGHMC": 3.0, "SGNHT": 1.5, "CCAdL": 1.1}
    found = {(name, 1e-4): (np.zeros(2), ratio**2 * np.eye(2)) for name, ratio in ratios.items()}
    for draws, verdict in ((1000.0, True), (5.0, UNDECIDED)):
        result = blr_shang_marginals.Result(exact, found, dict.fromkeys(found, draws))
        nearest, _, mean = blr_shang_marginals.claims(result)
        assert nearest.held is verdict and mean.held == UNDECIDED
        # log(1.5 / 1.1) over the root of twice 1 / (2 E)
        score = blr_shang_marginals.larger(result, "SGNHT", "CCAdL", 1e-4)
        np.testing.assert_allclose(score, np.log(1.5 / 1.1) * draws**0.5)
    found["CCAdL", 1e-4] = np.full(2, np.nan), np.full([2, 2], np.nan)
    assert blr_shang_marginals.claims(result)[0].held is False


@pytest.mark.slow
def test_order_of_the_samplers() -> None:
    """Noise heats more, the larger the step. At the smallest one the order is chance."""
    found = against_passes.pairs(blr_shang.run(**blr_shang.EXPERIMENT.quick))
    smallest = min(step for step, _ in found)
    for (step, _), curves in found.items():
        least = -3e-4 if step == smallest else 0.0
        for ours in ("CCAdL", "CCAdL full"):
            for other in ("SGNHT", "SGHMC"):
                assert curves[ours].overall - curves[other].overall > least
        assert abs(curves["CCAdL"].overall - curves["CCAdL full"].overall) < 0.01
