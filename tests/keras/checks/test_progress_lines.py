"""The latest results of the checks of a fit, in its logs and printed lines."""

import keras
import numpy as np
import pytest

from tests.keras.small_models import linear, sampler, sgld, unit_normal
from tfp_sgmcmc.keras.chain.collection import NoiseMonitor
from tfp_sgmcmc.keras.checks import curvature_check

CHECKS_CURVATURE = True
N = 12
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, 2]).astype(np.float32)
Y = X[:, :1]
LIMIT = 4 / np.linalg.eigvalsh(X.T @ X).max()  # of SGLD's step, with a flat prior


def fit(step_size, **arguments):
    model, callback = linear(unit_normal, 1, inputs=2), sampler(sgld(step_size, 0.0), N)
    arguments = {"epochs": 2, "verbose": 0, **arguments}
    return model.fit(X, Y, batch_size=N, callbacks=[callback], **arguments).history


@pytest.mark.thorough
def test_a_step_above_its_limit_is_a_failed_check(capsys):
    assert fit(0.9 * LIMIT)["failed_checks"] == [0.0, 0.0]
    with pytest.warns(UserWarning, match="step_size must be below"):
        history = fit(1.1 * LIMIT, verbose=2)
    assert history["failed_checks"] == [1.0, 1.0]
    told = capsys.readouterr().out
    assert told.count("Failed checks: step size.") == 1 and "failed_checks: 1.0" in told


def test_nothing_is_told_where_nothing_is_measured(monkeypatch):
    monkeypatch.setattr(
        curvature_check, "_step_and_limit", lambda *_: None
    )  # of a kernel without one
    assert "failed_checks" not in fit(1.1 * LIMIT)


def test_batches_end_without_waiting():
    """Keras waits for the logs of every step where a callback looks at the end of a batch."""
    nothing = keras.callbacks.Callback.on_train_batch_end
    assert type(sampler(sgld(0.9 * LIMIT, 0.0), N)).on_train_batch_end is nothing


@pytest.mark.parametrize("threshold, limit", [(None, 0.1), (0.3, 0.3)])
def test_noise_counts_once_samples_are_kept(threshold, limit):
    monitor = NoiseMonitor(1, threshold, 0)
    for alpha, samples, expected in (
        (1.01 * limit, 5, True), (0.99 * limit, 5, False), (1.01 * limit, 0, None),
        (np.nan, 5, None),
    ):  # fmt: skip
        logs = {"sampling_threshold": np.float32(alpha), "samples": samples}
        assert monitor.has_failed(logs) is expected
    assert monitor.has_failed({}) is None
