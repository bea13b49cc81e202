"""CCAdL learns the sevens and nines in fewer passes than SGNHT and SGHMC."""

import numpy as np
import pytest

from benchmarks.reproductions import against_passes, blr_shang


def test_log_likelihood_of_the_second_half() -> None:
    logits = np.array([[0.0, 2.0], [1.0, -3.0], [-1.0, 0.5], [700.0, -800.0]])
    y = np.array([1, 0])
    found = blr_shang.log_likelihood_so_far(logits, y)
    # The mean of the states 0; 1; 1 and 2; 2 and 3.
    for value, used in zip(found, ([0], [1], [1, 2], [2, 3]), strict=True):
        mean = logits[used].mean(axis=0)
        expected = -np.mean(np.logaddexp(0, np.where(y == 1, -mean, mean)))
        np.testing.assert_allclose(value.mean(), expected, rtol=1e-6)


@pytest.mark.slow
def test_order_of_the_samplers() -> None:
    found = blr_shang.run(**blr_shang.EXPERIMENT.quick)
    for curves in against_passes.pairs(found).values():
        for ours in ("CCAdL", "CCAdL full"):
            for other in ("SGNHT", "SGHMC"):
                assert curves[ours].overall > curves[other].overall
        assert abs(curves["CCAdL"].overall - curves["CCAdL full"].overall) < 0.01
