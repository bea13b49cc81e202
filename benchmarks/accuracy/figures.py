"""Figures of errors against seconds and passes over the data, with one line for each sampler."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.common.reference import Reference
from benchmarks.common.trajectories import Curve

COSTS = {"seconds": "processor seconds, without compilation", "passes": "passes over the data"}
ERRORS = {
    "mean_error": "E1, relative error of the mean",
    "covariance_error": "E2, relative error of the covariance",
}
# Colours that colour-blind readers can tell apart (Okabe and Ito), black and grey for all data.
# A new sampler is purple until it has a colour here.
COLORS = {
    "SGLD": "#E69F00", "mSGLD": "#56B4E9", "SGFS": "#009E73", "SGHMC": "#CC79A7",
    "SGNHT": "#A65628", "CCAdL": "#0072B2", "NOGIN": "#D55E00", "underdamped": "#B8A900",
    "replica": "#332288", "SGD": "0.65", "corrected": "0.45", "HMC": "black", "NUTS": "black",
}  # fmt: skip
STYLES = {"diag": "--", "low_rank": ":", "Langevin": "-.", "NUTS": "--", "whitened": ":"}


def save(
    folder: Path, curves: dict[str, list[Curve]], reference: Reference, title: str
) -> list[Path]:
    """Writes a figure for each cost, as PNG and as SVG, and returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for cost in COSTS:
        figure = draw(cost, curves, reference)
        figure.suptitle(title)
        for kind in ("png", "svg"):
            paths.append(folder / f"error_against_{cost}.{kind}")
            figure.savefig(paths[-1], dpi=150)
    return paths


def draw(cost: str, curves: dict[str, list[Curve]], reference: Reference) -> Figure:
    """Draws panels for E1 and E2 with the errors of the reference; the legend is ordered by E2."""
    figure = Figure(figsize=(12, 5.5), layout="constrained")
    floors = (reference.mean_floor, reference.covariance_floor)
    panels = figure.subplots(1, 2)
    for axes, (error, label), floor in zip(panels, ERRORS.items(), floors, strict=True):
        for name, found in sorted(curves.items(), key=lambda item: -last_error(item[1])):
            color, style = look(name)
            axes.loglog(*median(found, cost, error), color=color, ls=style, lw=1.6, label=name)
        axes.axhspan(floor / 10, floor, color="0.9", zorder=0)
        axes.axhline(floor, color="0.5", lw=0.8)
        low, high = axes.get_ylim()
        axes.set(xlabel=COSTS[cost], ylabel=label, ylim=(max(low, 0.6 * floor), min(high, 10)))
        axes.annotate(
            "error of the reference", (0.01, floor), (2, -2), color="0.3", fontsize=8,
            xycoords=("axes fraction", "data"), textcoords="offset points", va="top",
        )  # fmt: skip
        axes.grid(which="major", color="0.92")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center", frameon=False, fontsize=9)
    return figure


def last_error(curves: list[Curve]) -> float:
    return float(np.median([curve.covariance_error[-1] for curve in curves]))


def look(name: str) -> tuple[str, str]:
    """Returns the colour of the sampler, and a dash pattern for the rest of the name."""
    words = name.split()
    color = COLORS.get(words[0], "#882255")
    return color, next((STYLES[w] for w in reversed(words) if w in STYLES), "-")


def median(curves: list[Curve], cost: str, error: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns costs and the median error of the chains, interpolated between records.

    The costs are those at which all chains have an error.
    """
    xs, ys = zip(*((getattr(c, cost), getattr(c, error)) for c in curves), strict=True)
    grid = np.geomspace(max(x[0] for x in xs), min(x[-1] for x in xs), 60)
    with np.errstate(invalid="ignore"):
        logs = [np.interp(np.log(grid), np.log(x), np.log(y)) for x, y in zip(xs, ys, strict=True)]
    return grid, np.exp(np.median(logs, axis=0))
