"""Figures of a posterior's predictions: calibration, and bands of numbers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tfp_sgmcmc.internal.extras import import_figure
from tfp_sgmcmc.keras.model import compiled_loss
from tfp_sgmcmc.keras.posterior.evaluate import decided

_LEVELS = np.linspace(0.05, 0.95, 19)  # probabilities of central intervals
_BINS = 10


def plot_calibration(posterior: Any, x: Any, y: Any, batch_size: int | None) -> Any:
    """Returns the figure of `Posterior.plot_calibration`."""
    figure = import_figure("plot_calibration")(figsize=(4.2, 4.2), layout="constrained")
    p = posterior.predict(x, batch_size, verbose=0).mean
    kinds = compiled_loss.classes(posterior.model, p)
    if len(keras.tree.flatten(p)) != 1:
        raise ValueError("plot_calibration needs a model with one output. Received: several.")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1)
    if kinds:
        (kind,) = kinds.values()
        confidence, hit, counts = (np.ravel(part) for part in decided(p, y, kind))
        bins = np.clip((confidence * _BINS).astype(int), 0, _BINS - 1)
        used = [b for b in range(_BINS) if np.any(counts[bins == b])]
        given = [np.average(confidence[bins == b], weights=counts[bins == b]) for b in used]
        found = [np.average(hit[bins == b], weights=counts[bins == b]) for b in used]
        share = [counts[bins == b].sum() / counts.sum() for b in used]
        axes.bar(given, share, 0.03, color="0.8", label="share of rows")
        axes.plot(given, found, "o-", label="posterior average")
        axes.set(xlabel="probability of the decision", ylabel="share that is right")
    else:
        low, high = (1 - _LEVELS) / 2, (1 + _LEVELS) / 2
        q = posterior.predict(x, batch_size, verbose=0, quantiles=[*low, *high])
        q = keras.tree.flatten(q.predictive.quantiles)[0]
        y = np.asarray(y).reshape(q.shape[1:])
        inside = (q[: len(low)] <= y) & (y <= q[len(low) :])
        found = inside.reshape(len(low), -1).mean(axis=1)
        axes.plot(_LEVELS, found, "o-", label="posterior predictive")
        axes.set(xlabel="probability of the central interval", ylabel="share of observations in it")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.legend()
    return figure


def plot_predictions(posterior: Any, x: Any, y: Any, batch_size: int | None) -> Any:
    """Returns the figure of `Posterior.plot_predictions`."""
    figure = import_figure("plot_predictions")(figsize=(6.4, 3.6), layout="constrained")
    levels = [0.05, 0.25, 0.75, 0.95]
    predictive = posterior.predict(x, batch_size, verbose=0, quantiles=levels).predictive
    if isinstance(predictive, list | dict):
        raise ValueError("plot_predictions needs a model with one output. Received: several.")
    mean, bands = np.asarray(predictive.mean), np.asarray(predictive.quantiles)
    mean, bands = mean.reshape(len(mean), -1)[:, 0], bands.reshape(*bands.shape[:2], -1)[..., 0]
    columns = np.asarray(x).reshape(len(mean), -1)
    is_line = columns.shape[1] == 1
    order = np.argsort(columns[:, 0] if is_line else mean, kind="stable")
    place = columns[order, 0] if is_line else np.arange(len(mean))
    axes = figure.subplots()
    low, lower, upper, high = bands[:, order]
    axes.fill_between(place, low, high, alpha=0.2, color="C0", linewidth=0, label="90 %")
    axes.fill_between(place, lower, upper, alpha=0.35, color="C0", linewidth=0, label="50 %")
    axes.plot(place, mean[order], color="C0", label="mean")
    if y is not None:
        y = np.asarray(y).reshape(len(mean), -1)[order, 0]
        axes.plot(place, y, ".", color="0.3", markersize=3, label="observed")
    axes.set(xlabel="x" if is_line else "row, by predicted mean", ylabel="y")
    axes.legend(fontsize="small")
    return figure
