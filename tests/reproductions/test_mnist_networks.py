"""The posterior average of two networks predicts better than Adam, and is better calibrated."""

import numpy as np
import pytest

from benchmarks.common import calibration
from benchmarks.reproductions import mnist_networks


def test_scores_and_reliability_by_hand() -> None:
    probabilities = np.array([[0.7, 0.3], [0.2, 0.8], [0.1, 0.9], [0.71, 0.29]])
    labels = np.array([0, 1, 0, 1])
    found = calibration.scores(probabilities, labels)
    assert found.accuracy == 0.5
    assert found.log_loss == pytest.approx(-np.mean(np.log([0.7, 0.8, 0.1, 0.29])))
    # There are 15 bins. 0.7 and 0.71 are in bin 11, 0.8 in bin 13, and 0.9 in bin 14.
    gaps = np.array([2 * abs(0.705 - 0.5), abs(0.8 - 1), abs(0.9 - 0)])
    assert found.calibration_error == pytest.approx(gaps.sum() / 4, rel=1e-5)
    count, confidence, accuracy = calibration.reliability(probabilities, labels)
    np.testing.assert_array_equal(count, [2, 1, 1])
    np.testing.assert_allclose(confidence, [0.705, 0.8, 0.9])
    np.testing.assert_array_equal(accuracy, [0.5, 1, 0])


def test_claims_are_decided_by_the_scores() -> None:
    def classifier(temperature: float | None, loss: float) -> mnist_networks.Classifier:
        made = calibration.Scores(0.9, loss, 0.01)
        return mnist_networks.Classifier("net", "method", temperature, made, made, None)

    losses = [(None, 0.3), (None, 0.2), (1.0, 0.5), (1.0, 0.25), (0.1, 0.4), (0.1, 0.1)]
    found = mnist_networks.claims([classifier(*pair) for pair in losses])
    # Of the average at temperature 1 (0.25) and at 0.1 (0.1): NLL, and equal calibration errors.
    assert [claim.held for claim in found] == [False, False, True, False]


@pytest.mark.slow
def test_quick_form() -> None:
    *adams, last_hot, hot, last, average = mnist_networks.run(**mnist_networks.EXPERIMENT.quick)
    assert len(adams) == 2
    # The average beats the last state of its chain at both temperatures.
    assert hot.test.log_loss < last_hot.test.log_loss
    assert average.test.log_loss < last.test.log_loss
    assert average.test.accuracy > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("network", mnist_networks.SETTINGS)
def test_posterior_average_beats_adam(network: str) -> None:
    *adams, _, _, last_state, average = mnist_networks.run(networks=(network,), seed=0)
    assert [c.temperature for c in adams] == [None, None]
    assert average.temperature == mnist_networks.SETTINGS[network].temperature
    noise = (average.test.accuracy * (1 - average.test.accuracy) / 10_000) ** 0.5  # of its accuracy
    for adam in adams:  # after the last epoch, and after the best one
        assert average.test.log_loss < adam.test.log_loss
        assert average.test.calibration_error < adam.test.calibration_error + noise
    # The last state alone does not.
    assert average.test.log_loss < last_state.test.log_loss
