"""A table of a posterior's weights, worst mixed first, and the figures of a posterior.

The figures show traces of weights, the calibration of predictions, and bands of numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from tfp_sgmcmc.diagnostics.convergence import (
    effective_sample_size,
    rank_normalized_rhat,
    rhat_text,
)
from tfp_sgmcmc.diagnostics.draw_summary import entry_names
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal.extras import import_figure
from tfp_sgmcmc.internal.tables import Table, decimals_for, number, shown_by
from tfp_sgmcmc.keras.model import compiled_loss
from tfp_sgmcmc.keras.posterior.evaluate import Evaluated, Evaluator
from tfp_sgmcmc.keras.posterior.sample_arrays import SampleArrays

_SHOWN = 20  # rows that are printed

_LEVELS = np.linspace(0.05, 0.95, 19)  # probabilities of central intervals
_BINS = 10


@dataclasses.dataclass(frozen=True)
class Summary:
    """Statistics of single weights, the largest R-hat first; `print` shows the first 20.

    Attributes:
      names: path and index of each entry, such as "dense/kernel[3, 1]".
      mean: posterior means, by the samples' weights, `[entries]`.
      standard_deviation: posterior standard deviations, by the samples' weights.
      rhat: rank-normalised split R-hat; NaN for entries that never move.
      ess: effective sample size of the bulk, all chains together; NaN for entries that never move.
        Neither `rhat` nor `ess` takes the samples' weights into account.
      num_entries: the number of entries of all trainable variables, listed or not.

    References:
      A. Vehtari, A. Gelman, D. Simpson, B. Carpenter and P.-C. Bürkner. Rank-normalization,
      folding, and localization: an improved R-hat for assessing convergence of MCMC. Bayesian
      Analysis, 16(2):667-718, 2021.
    """

    names: tuple[str, ...]
    mean: np.ndarray
    standard_deviation: np.ndarray
    rhat: np.ndarray
    ess: np.ndarray
    num_entries: int

    def table(self) -> Table:
        """Returns the rows that `print` shows."""
        rows = []
        columns = self.names, self.mean, self.standard_deviation, self.rhat, self.ess
        for name, mean, sd, rhat, ess in list(zip(*columns, strict=True))[:_SHOWN]:
            decimals = decimals_for(sd or abs(mean) or 1.0)
            moments = number(mean, decimals), number(sd, decimals)
            rows.append((name, *moments, rhat_text(rhat), number(ess, 0)))
        counts = f"worst {min(_SHOWN, len(self.names))} of {len(self.names)} entries"
        if len(self.names) < self.num_entries:
            counts += f", taken evenly from {self.num_entries}"
        return Table("", ("entry", "mean", "sd", "R-hat", "ESS"), rows, [counts])

    __str__, _repr_html_ = shown_by(lambda self: self.table())


def summarize(
    variables: list[keras.Variable], samples: SampleArrays, most_entries: int
) -> tuple[Summary, np.ndarray]:
    """Returns the summary, and the traces of its entries, `[entries, chains, draws]`."""
    if samples.num_kept < 4:
        raise ValueError(
            f"A summary needs at least 4 samples of each chain. Received: {samples.num_kept}."
        )
    names, traces, total = [], [], 0
    for variable, array in zip(variables, samples.arrays, strict=True):
        if variable.trainable:
            values = np.asarray(array[:], np.float64)
            values = values.reshape(samples.num_kept, samples.num_chains or 1, -1)
            size = values.shape[-1]
            chosen = np.linspace(0, size - 1, min(size, most_entries)).round().astype(int)
            traces.append(values[..., chosen])
            names += entry_names(variable.path, variable.shape, chosen)
            total += size
    x = np.concatenate(traces, axis=-1)  # [draws, chains, entries]
    rhat, ess = rank_normalized_rhat(x), effective_sample_size(x)
    x = x.transpose(2, 1, 0)
    mean = np.average(x, axis=-1, weights=samples.weights)
    sd = np.average((x - mean[..., np.newaxis]) ** 2, axis=-1, weights=samples.weights)
    # The variance of all draws is the mean variance within chains plus the variance of their means.
    sd = np.sqrt(sd.mean(axis=1) + mean.var(axis=1))
    order = np.argsort(-np.nan_to_num(rhat, nan=np.inf), kind="stable")
    columns = (mean.mean(axis=1), sd, rhat, ess)
    return Summary(tuple(names[i] for i in order), *(c[order] for c in columns), total), x[order]


def plot(found: Summary, traces: np.ndarray, weights: np.ndarray | None, num_entries: int) -> Any:
    """Returns a `matplotlib.figure.Figure`: traces and marginals of the first entries."""
    figure_type = import_figure()
    count = min(num_entries, len(found.names))
    figure = figure_type(figsize=(8, 1.6 * count + 0.6), layout="constrained")
    axes = figure.subplots(count, 2, squeeze=False, width_ratios=[2, 1])
    for (trace, marginal), name, rhat, x in zip(
        axes, found.names, found.rhat, traces, strict=False
    ):
        trace.plot(x.T, linewidth=0.6)
        trace.set_title(f"{name}, R-hat {rhat_text(rhat)}", fontsize="small")
        weight = None if weights is None else [weights] * len(x)
        marginal.hist([*x], bins=30, density=True, histtype="step", weights=weight)
        marginal.set_yticks([])
    axes[-1, 0].set_xlabel("sample")
    axes[-1, 1].set_xlabel("value")
    return figure


def plot_calibration(
    posterior: Any,
    evaluator: Evaluator,
    evaluated: Callable[[Any], Iterator[Evaluated]],
    x: Any,
    y: Any,
    batch_size: int | None,
) -> Any:
    """Returns the figure of `Posterior.plot_calibration`; `evaluated` yields batches of labels."""
    figure = import_figure("plot_calibration")(figsize=(4.2, 4.2), layout="constrained")
    y = checks.array("y", y, finite=False)
    outputs = posterior.predict(x, batch_size, verbose=0).mean
    kinds, flat = compiled_loss.classes(posterior.model, outputs), keras.tree.flatten(outputs)
    if len(flat) != 1:
        raise ValueError("plot_calibration needs a model with one output. Received: several.")
    p = flat[0]
    axes = figure.subplots()

    def each(labels: np.ndarray) -> Iterator[Evaluated]:
        return evaluated(keras.tree.pack_sequence_as(outputs, [labels]))

    axes.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1)
    if kinds:
        (kind,) = kinds.values()
        labelled = p.argmax(axis=kind.axis) if kind.is_sparse and kind.axis is not None else p
        y = _observed(y, labelled.shape)
        parts = [part for batch in each(y) for part in evaluator.decisions(batch).values()]
        confidence, hit, counts = map(np.concatenate, zip(*parts, strict=True))
        bins = np.clip((confidence * _BINS).astype(int), 0, _BINS - 1)
        total = np.bincount(bins, counts, _BINS)
        used = total > 0
        sums = (np.bincount(bins, counts * part, _BINS) for part in (confidence, hit))
        given, found = (of_bins[used] / total[used] for of_bins in sums)
        axes.bar(given, total[used] / total.sum(), 0.03, color="0.8", label="share of rows")
        axes.plot(given, found, "o-", label="posterior average")
        axes.set(xlabel="probability of the decision", ylabel="share that is right")
    else:
        low, high = (1 - _LEVELS) / 2, (1 + _LEVELS) / 2
        q = posterior.predict(x, batch_size, verbose=0, quantiles=[*low, *high])
        q = _only(q.predictive).quantiles
        y = _observed(y, q.shape[1:])
        inside = (q[: len(low)] <= y) & (y <= q[len(low) :])
        counts = [np.ravel(x.counts(0, x.labels[0])) for x in each(y)]
        found = np.average(inside.reshape(len(low), -1), axis=1, weights=np.concatenate(counts))
        axes.plot(_LEVELS, found, "o-", label="posterior predictive")
        axes.set(xlabel="probability of the central interval", ylabel="share of observations in it")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.legend()
    return figure


def plot_predictions(posterior: Any, x: Any, y: Any, batch_size: int | None) -> Any:
    """Returns the figure of `Posterior.plot_predictions`."""
    figure = import_figure("plot_predictions")(figsize=(6.4, 3.6), layout="constrained")
    y = None if y is None else checks.array("y", y, finite=False)
    levels = [0.05, 0.25, 0.75, 0.95]
    predictive = _only(posterior.predict(x, batch_size, verbose=0, quantiles=levels).predictive)
    if isinstance(predictive, list | dict):
        raise ValueError("plot_predictions needs a model with one output. Received: several.")
    mean, bands = np.asarray(predictive.mean), np.asarray(predictive.quantiles)
    observed = None if y is None else _observed(y, mean.shape)
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
    if observed is not None:
        y = observed.reshape(len(mean), -1)[order, 0]
        axes.plot(place, y, ".", color="0.3", markersize=3, label="observed")
    axes.set(xlabel="x" if is_line else "row, by predicted mean", ylabel="y")
    axes.legend(fontsize="small")
    return figure


def _only(predictive: Any) -> Any:
    """Returns the predictive of a nest of one output, and any other nest as it is."""
    if isinstance(predictive, list | dict) and len(predictive) == 1:
        return next(iter(predictive.values() if isinstance(predictive, dict) else predictive))
    return predictive


def _observed(y: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Returns labels or observations in the shape of predictions."""
    expected = f"an array {[*shape]}, as the predictions"
    checks.require("y", f"shape {y.shape}", y.size == np.prod(shape), expected)
    return y.reshape(shape)
