"""Text, HTML and figures of a posterior and its predictions."""

import re

import keras
import numpy as np
import pytest

from tfp_sgmcmc.keras import Posterior, losses
from tfp_sgmcmc.keras.posterior.predict import PosteriorPrediction

RNG = np.random.default_rng(0)
X = RNG.normal(size=[400, 1]).astype(np.float32)


def posterior(loss: keras.losses.Loss, slope: float = 2.0) -> Posterior:
    """Returns 50 samples of the slope of a line through the origin."""
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, use_bias=False, name="line")])
    model.compile(loss=loss)
    samples = RNG.normal(slope, 0.05, size=[50, 1, 1]).astype(np.float32)
    return Posterior(model, model.trainable_variables, [samples])


@pytest.fixture(scope="module")
def line() -> Posterior:
    return posterior(losses.GaussianNLL(scale=0.5))


Y = 2 * X + 0.5 * RNG.normal(size=X.shape).astype(np.float32)


def test_a_posterior_and_its_prediction_are_short(line: Posterior) -> None:
    assert "50 samples, 1 numbers each" in repr(line) and "line/kernel" in repr(line)
    assert "1x1" in line._repr_html_()
    found = line.predict(X, verbose=0)
    lines = repr(found).split("\n")
    assert lines[0] == "PosteriorPrediction of 400 rows, outputs [400, 1]"
    assert lines[3].split() == ["0", f"{found.mean[0, 0]:.4g}", f"{found[1][0, 0]:.4g}"]
    assert "390 more rows." in repr(found) and "<table" in found._repr_html_()
    assert "<table" in line.summary()._repr_html_()
    scores = line.evaluate(X, Y, verbose=0)
    assert repr(scores).split("\n")[-1].split() == ["coverage", f"{scores.coverage:.4f}"]
    assert "accuracy" not in repr(scores) and "<table" in scores._repr_html_()


def test_the_table_of_a_classifier_names_classes() -> None:
    p = np.array([[0.1, 0.2, 0.3, 0.05, 0.35], [0.9, 0.025, 0.025, 0.025, 0.025]])
    found = repr(PosteriorPrediction(p, p / 10, np.ones(2), np.zeros(2), None))
    head, first, second = (re.split("  +", line) for line in found.splitlines()[2:5])
    assert head[1:4] == ["likeliest class", "probability", "sd"]
    assert first[1:4] == ["4", "0.350", "0.035"] and second[1:4] == ["0", "0.900", "0.090"]


def test_bands_of_predictions(line: Posterior) -> None:
    figure = line.plot_predictions(X, Y)
    mean = figure.axes[0].lines[0]
    np.testing.assert_array_equal(mean.get_xdata(), np.sort(X[:, 0]))
    np.testing.assert_allclose(mean.get_ydata(), 2 * np.sort(X[:, 0]), atol=0.05)
    low, high = (c.get_datalim(figure.axes[0].transData) for c in figure.axes[0].collections)
    assert low.height > high.height  # 90 % is wider than 50 %
    figure.canvas.draw()


def test_observations_that_are_no_numbers_or_too_few_are_told(line: Posterior) -> None:
    for plot in (line.plot_predictions, line.plot_calibration):
        with pytest.raises(TypeError, match="y must be an array of numbers"):
            plot(X[:9], np.full([9, 1], "high"))
        with pytest.raises(ValueError, match=r"y must be an array .* Received: shape \(5,"):
            plot(X[:9], Y[:5])


@pytest.mark.thorough
def test_calibration_of_numbers(line: Posterior) -> None:
    axes = line.plot_calibration(X, Y).axes[0]
    levels, found = axes.lines[1].get_data()
    assert np.abs(found - levels).max() < 0.12  # 5 standard errors of a share of 400
    narrow = posterior(losses.GaussianNLL(scale=0.1)).plot_calibration(X, Y).axes[0]
    assert np.abs(narrow.lines[1].get_ydata() - levels).max() > 0.3  # negative control


def test_labels_that_fit_no_prediction_are_told() -> None:
    x = RNG.normal(size=[9, 1]).astype(np.float32)
    found = posterior(keras.losses.BinaryCrossentropy(from_logits=True), 1.0)
    with pytest.raises(ValueError, match=r"y must be an array \[9, 1\].* Received: shape \(5, 1\)"):
        found.plot_calibration(x, x[:5] > 0)
    with pytest.raises(ValueError, match="y must hold probabilities or classes in 0 .. 1"):
        found.plot_calibration(x, 2.0 * np.ones([9, 1]))


def test_calibration_of_classes() -> None:
    x = RNG.normal(size=[4000, 1]).astype(np.float32)
    y = RNG.uniform(size=x.shape) < 1 / (1 + np.exp(-x))
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    for slope, is_calibrated in ((1.0, True), (4.0, False)):
        axes = posterior(loss, slope).plot_calibration(x, y).axes[0]
        given, found = axes.lines[1].get_data()
        assert (np.abs(np.subtract(given, found)).max() < 0.1) == is_calibrated


def test_padding_does_not_count() -> None:
    """The model decides rightly at each step that counts, and padding is decided by chance."""
    tokens = RNG.integers(1, 4, size=[200, 6])
    tokens[:, 2:] = 0
    inputs = keras.Input([6], dtype="int32")
    embedded = keras.layers.Embedding(4, 4, mask_zero=True)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(4, use_bias=False)(embedded))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    weights = [np.stack([w] * 2) for w in (np.eye(4), 9 * np.eye(4))]
    weights[0][:, 0] = 0.0
    found = Posterior(model, model.trainable_variables, [w.astype(np.float32) for w in weights])
    labels = np.where(tokens == 0, 2, tokens)
    shares = found.plot_calibration(tokens, labels).axes[0].lines[1].get_ydata()
    np.testing.assert_allclose(shares, [1.0])


@pytest.mark.parametrize("nest", [dict, list])
def test_one_output_in_a_nest(nest: type) -> None:
    """Keras gives the loss of a list of one output no place in it."""
    inputs = keras.Input([1])
    dense = keras.layers.Dense(1, use_bias=False)
    outputs = {"y": dense(inputs)} if nest is dict else [dense(inputs)]
    model = keras.Model(inputs, outputs)
    model.compile(loss=losses.GaussianNLL(scale=1.0))
    kernels = np.full([2, 1, 1], 2.0, np.float32)
    found = Posterior(model, model.trainable_variables, [kernels])
    y = {"y": Y} if nest is dict else [Y]
    density = found.evaluate(X, y, verbose=0).log_predictive_density
    expected = -0.5 * np.mean((Y - 2 * X) ** 2) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(density, expected, rtol=1e-5)
    assert found.plot_calibration(X, Y).axes and found.plot_predictions(X, Y).axes
    np.testing.assert_allclose(found.to_estimator().predict(X), 2 * X[:, 0], rtol=1e-6)
