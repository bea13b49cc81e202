"""Figures of draws: traces and ranks by chain, marginals, and what gradients say of each entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfp_sgmcmc.internal.extras import import_figure

_RANK_BINS = 20
_MOST_POINTS = 2000  # of a line


def plot_traces(names: Sequence[str], draws: np.ndarray, rhat: np.ndarray) -> Any:
    """Returns a figure with the trace and the ranks of each entry, a colour for each chain.

    Where chains agree, the ranks of each chain among all draws are spread evenly (the dashed line).

    Args:
      names: names of the entries.
      draws: `[draws, chains, entries]`.
      rhat: R-hat of the entries.
    """
    num, chains, size = draws.shape
    figure = import_figure()(figsize=(8, 1.7 * size + 0.5), layout="constrained")
    axes = figure.subplots(size, 2, squeeze=False, width_ratios=[2, 1])
    every = -(-num // _MOST_POINTS)
    for (trace, ranks), name, x, of_entry in zip(axes, names, draws.T, rhat, strict=True):
        trace.plot(np.arange(0, num, every), x.T[::every], linewidth=0.6)
        trace.set_title(f"{name}, R-hat {of_entry:.3f}", fontsize="small")
        order = x.ravel().argsort().argsort().reshape(x.shape)
        edges = np.linspace(0, num * chains, _RANK_BINS + 1)
        for of_chain in order:
            ranks.stairs(np.histogram(of_chain, edges)[0], edges)
        ranks.axhline(num / _RANK_BINS, color="0.5", linestyle="--", linewidth=1)
        ranks.set_yticks([])
        ranks.set_ylim(bottom=0)
    axes[-1, 0].set_xlabel("draw")
    axes[-1, 1].set_xlabel("rank among the draws of all chains")
    return figure


def plot_marginals(
    names: Sequence[str], draws: np.ndarray, reference: Mapping[str, np.ndarray] | None
) -> Any:
    """Returns a figure with a histogram of each entry, and of reference draws of the same name.

    Args:
      names: names of the entries.
      draws: `[draws, chains, entries]`.
      reference: reference draws `[n]` by name, or None.
    """
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure = import_figure("plot_marginals")(
        figsize=(3 * columns, 2.2 * rows + 0.3), layout="constrained"
    )
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels[len(names) :]:
        panel.set_axis_off()
    for panel, name, x in zip(panels, names, draws.reshape(-1, len(names)).T, strict=False):
        known = None if reference is None else reference.get(name)
        both = x if known is None else np.concatenate([x, known])
        bins = np.linspace(*np.quantile(both, [0.001, 0.999]), 50)
        if known is not None:
            panel.hist(known, bins, density=True, color="0.75", label="reference")
        kind = "stepfilled" if known is None else "step"
        panel.hist(x, bins, density=True, histtype=kind, linewidth=1.5, label="draws")
        panel.set_title(name, fontsize="small")
        panel.set_yticks([])
        panel.locator_params(axis="x", nbins=5)  # so that labels of neighbours stay apart
    if reference is not None:
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def plot_deviations(
    names: Sequence[str], log_width: np.ndarray, shift: np.ndarray, is_wrong: np.ndarray
) -> Any:
    """Returns a figure of the widths and means of entries, by the gradients at the draws.

    Args:
      names: names of the entries.
      log_width: logarithm of the draws' width over the target's.
      shift: mean of the draws less the target's, in standard deviations.
      is_wrong: whether the tests of widths and of means reject, `[2, entries]`.
    """
    figure = import_figure()(figsize=(8, 0.22 * len(names) + 1.2), layout="constrained")
    width, mean = figure.subplots(1, 2, sharey=True)
    place = np.arange(len(names))
    panels = (
        (width, np.exp(log_width), 1.0, 0.04, is_wrong[0], "sd of the draws / sd of the target"),
        (mean, shift, 0.0, 0.1, is_wrong[1], "mean, in sds of the target"),
    )
    for axes, values, right, small, wrong, label in panels:
        axes.axvspan(right - small, right + small, color="0.88")
        axes.axvline(right, color="0.5", linewidth=1)
        axes.plot(values[~wrong], place[~wrong], "o", markersize=4, label="not rejected")
        axes.plot(values[wrong], place[wrong], "o", color="#d32f2f", markersize=5, label="rejected")
        axes.set_xlabel(label)
    width.set_yticks(place, names, fontsize="small")
    width.invert_yaxis()
    mean.legend(fontsize="small")
    return figure
