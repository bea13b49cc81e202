"""`find_step_size` against the closed form of a linear regression."""

import sys

import keras
import numpy as np
import pytest

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tests.keras.small_models import unit_normal

N, D, SIZE = 120, 3, 12
RNG = np.random.default_rng(0)
X = (RNG.normal(size=[N, D]) * [3.0, 1.0, 0.1]).astype(np.float32)
Y = (X @ np.float32([1.0, -1.0, 0.5]) + RNG.normal(size=N)).astype(np.float32)[:, None]


def found(model=None, **arguments):
    arguments = dict(prior=small_models.standard_normal(), batch_size=SIZE, verbose=0) | arguments
    model = model or small_models.linear(unit_normal, 1, inputs=D)
    return sgmcmc.keras.find_step_size(model, X, Y, **arguments)


def test_a_linear_regression_has_its_closed_form(capsys):
    """H = X^T X + I, and V is the sample covariance of the scores, of which all are seen."""
    model = small_models.linear(unit_normal, 1, inputs=D)
    result = found(model, verbose=1)
    weights, x = model.get_weights()[0], X.astype(np.float64)
    hessian = x.T @ x + np.eye(D)
    largest = np.linalg.eigvalsh(hessian)[-1]
    assert np.isclose(result.largest_curvature, largest, rtol=1e-4)
    assert np.isclose(result.largest_stable_step, 4 / largest, rtol=1e-4)
    values, vectors = np.linalg.eigh(np.cov((x * (Y - x @ weights)).T))
    noise = N * (N - SIZE) / SIZE * values[-1]
    curvature = vectors[:, -1] @ hessian @ vectors[:, -1]
    assert np.isclose(result.noise_over_curvature, noise / curvature, rtol=1e-3)
    h = result.step_size  # the hottest direction has the excess that was asked for
    assert np.isclose((1 + h * noise / 4) / (1 - h * curvature / 4), 1.1, rtol=1e-3)
    assert np.isclose(result.temperature["worst"], 1.1, rtol=1e-6)
    assert capsys.readouterr().out == f"{result}\n"
    tight = found(model, max_excess_temperature=0.01)
    assert 0.05 < tight.step_size / h < 0.15 and tight.steps_to_forget > 5 * result.steps_to_forget


def test_underdamped_langevin_gets_a_friction():
    result = found(kernel="UnderdampedLangevin")
    assert np.isclose(result.largest_stable_step, 2 / result.largest_curvature**0.5)
    assert result.friction > 0 and "friction=" in str(result)


def test_the_picture(monkeypatch):
    result = found()
    above, below = result.plot().axes
    assert above.get_ylabel() == "excess temperature" and len(below.lines) == 3
    h, excess = above.lines[0].get_data()
    at = np.interp(np.log(result.step_size), np.log(h), np.log(excess))
    assert np.isclose(np.exp(at), 0.1, rtol=0.05)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install \"tfp_sgmcmc\[plots\]\""):
        result.plot()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kernel": "SGHMC"}, "kernel must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"max_excess_temperature": 0.0}, "max_excess_temperature must be a positive"),
    ],
)
def test_bad_arguments(arguments, words):
    with pytest.raises(ValueError, match=words):
        found(**arguments)


def test_a_model_without_targets():
    model = keras.Sequential([keras.Input([D]), keras.layers.Dense(1)])
    model.compile(loss=keras.losses.BinaryCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="y must be given to fit"):
        sgmcmc.keras.find_step_size(model, X, prior=None)


def test_a_model_that_is_not_compiled():
    with pytest.raises(ValueError, match="compile"):
        found(keras.Sequential([keras.Input([D]), keras.layers.Dense(1)]))
