"""The table of worst entries against ArviZ and NumPy, and its plot."""

import sys

import keras
import numpy as np
import pytest

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tests.keras.small_models import linear

az = pytest.importorskip("arviz")
RNG = np.random.default_rng(0)


def chains(num_kept=200, num_chains=3):
    """Weights of a layer: entry [2, 1] has chains that disagree, entry [0, 0] never moves."""
    x = RNG.normal(size=[num_kept, num_chains, 3, 4]).astype(np.float32)
    x[:, 0, 2, 1] += 3
    x[..., 0, 0] = 1.5
    return x


X = chains()
WEIGHTS = RNG.uniform(0.1, 1.0, size=len(X))


def posterior_of(samples, num_chains=3):
    return small_models.posterior_of(linear(), [samples], num_chains)


def test_figures_are_those_of_arviz_worst_first():
    made = posterior_of(X).with_samples([X], WEIGHTS)
    found = made.summary()
    path = made.variables[0].path
    assert found.names[:2] == (f"{path}[0, 0]", f"{path}[2, 1]")
    assert len(found.names) == found.num_entries == 12
    places = [tuple(map(int, n[len(path) + 1 : -1].split(","))) for n in found.names]
    x = np.stack([X[:, :, i, j] for i, j in places]).astype(np.float64)  # [entries, draws, chains]
    weights = np.broadcast_to(WEIGHTS[:, None], x.shape[1:])
    mean = (x * weights).sum(axis=(1, 2)) / weights.sum()
    np.testing.assert_allclose(found.mean, mean, rtol=1e-10)
    variance = ((x - mean[:, None, None]) ** 2 * weights).sum(axis=(1, 2)) / weights.sum()
    np.testing.assert_allclose(found.standard_deviation, np.sqrt(variance), rtol=1e-8, atol=1e-12)
    data = az.convert_to_dataset({"x": x[1:].transpose(2, 1, 0)})
    rhat, ess = (f(data)["x"].values for f in (az.rhat, az.ess))
    np.testing.assert_allclose(found.rhat[1:], rhat, rtol=1e-10)
    np.testing.assert_allclose(found.ess[1:], ess, rtol=1e-10)
    assert np.isnan([found.rhat[0], found.ess[0]]).all()
    assert (np.diff(found.rhat[1:]) <= 0).all() and found.rhat[1] > 1.2 > 1.1 > found.rhat[2]


def test_the_table_in_words():
    text = str(posterior_of(X).summary())
    assert text.splitlines()[0].split() == ["entry", "mean", "sd", "R-hat", "ESS"]
    assert text.splitlines()[-1] == "worst 12 of 12 entries"
    some = posterior_of(X).summary(most_entries=5)
    assert "worst 5 of 5 entries, taken evenly from 12" in str(some)


def test_a_single_chain_is_compared_half_by_half():
    drifting = X[:, 1].copy()
    drifting[:100, 1, 1] += 3
    found = posterior_of(drifting, None).summary()
    assert found.names[1].endswith("[1, 1]") and found.rhat[1] > 1.2 > found.rhat[2]


def test_moving_statistics_are_left_out():
    model = small_models.sequential(keras.layers.BatchNormalization(name="norm"))
    variables = model.variables
    samples = [RNG.normal(size=[8, *v.shape]).astype(np.float32) for v in variables]
    found = sgmcmc.keras.Posterior(model, variables, samples).summary()
    assert {n.split("[")[0].split("/")[-1] for n in found.names} == {"gamma", "beta"}


def test_the_plot(monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    made = posterior_of(X).with_samples([X], WEIGHTS)
    figure = made.plot(num_entries=2)
    assert isinstance(figure, matplotlib.figure.Figure) and len(figure.axes) == 4
    titles = [a.get_title() for a in figure.axes[::2]]
    assert [t.split(", R-hat")[0] for t in titles] == [*made.summary().names[:2]]
    lines = figure.axes[2].lines
    np.testing.assert_array_equal([x.get_ydata() for x in lines], X[:, :, 2, 1].T)
    figure.canvas.draw()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install \"tfp_sgmcmc\[plots\]\""):
        made.plot()


def test_errors():
    with pytest.raises(ValueError, match="at least 4 samples of each chain. Received: 3"):
        posterior_of(X[:3]).summary()
    with pytest.raises(ValueError, match="most_entries must be at least 1"):
        posterior_of(X).summary(0)
    with pytest.raises(ValueError, match="num_entries must be at least 1"):
        posterior_of(X).plot(0)


def test_no_arviz_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    assert len(posterior_of(X).summary().names) == 12
