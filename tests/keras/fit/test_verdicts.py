"""The last verdicts of the checks that a fit makes, in the logs and in its lines."""

import keras
import numpy as np
import pytest

from tests.keras.small_models import linear, sampler, sgld, unit_normal
from tfp_sgmcmc.keras.fit import stability
from tfp_sgmcmc.keras.fit.monitor import noise_monitor

N = 12
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, 2]).astype(np.float32)
Y = X[:, :1]
LIMIT = 4 / np.linalg.eigvalsh(X.T @ X).max()  # of SGLD's step, with a flat prior


class Batches(keras.callbacks.Callback):
    """Records what the progress bar, which also comes after the sampler, is given."""

    def __init__(self):
        super().__init__()
        self.failed = []

    def on_train_batch_end(self, batch, logs=None):
        self.failed.append(logs.get("failed_checks"))


def fit(step_size, x=X, y=Y, **arguments):
    model, batches = linear(unit_normal, 1, inputs=2), Batches()
    callback = sampler(sgld(step_size, 0.0), N)
    arguments = {"epochs": 2, "verbose": 0, **arguments}
    history = model.fit(x, y, callbacks=[callback, batches], **arguments).history
    return history, batches.failed


def test_a_step_above_its_limit_is_a_failed_check(capsys):
    history, failed = fit(0.9 * LIMIT, batch_size=N)
    assert history["failed_checks"] == [0.0, 0.0] and failed == [0.0, 0.0]
    with pytest.warns(UserWarning, match="step_size must be below"):
        history, failed = fit(1.1 * LIMIT, batch_size=N, verbose=2)
    assert history["failed_checks"] == [1.0, 1.0] and failed == [1.0, 1.0]
    told = capsys.readouterr().out
    assert told.count("Failed checks: step size.") == 1 and "failed_checks: 1.0" in told


def test_nothing_is_told_where_nothing_is_measured(monkeypatch):
    monkeypatch.setattr(stability, "_step_and_limit", lambda *_: None)  # of a kernel without one
    history, failed = fit(1.1 * LIMIT, batch_size=N)
    assert "failed_checks" not in history and failed == [None] * 2


@pytest.mark.parametrize("threshold, limit", [(None, 0.1), (0.3, 0.3)])
def test_noise_counts_once_samples_are_kept(threshold, limit):
    monitor = noise_monitor(1, threshold, 0)
    for alpha, samples, expected in (
        (1.01 * limit, 5, True), (0.99 * limit, 5, False), (1.01 * limit, 0, None),
        (np.nan, 5, None),
    ):  # fmt: skip
        logs = {"sampling_threshold": np.float32(alpha), "samples": samples}
        assert monitor.has_failed(logs) is expected
    assert monitor.has_failed({}) is None
