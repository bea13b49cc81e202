"""Errors of mean and covariance against seconds, for four samplers and N = 100,000."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.common.exact_moments import exact
from benchmarks.common.methods import methods, select
from benchmarks.common.posteriors import named
from benchmarks.common.trajectories import Runner

POSTERIOR = "synthetic_1e5"
SECONDS = 3.0  # of processor time, for each chain
STEPS = {  # in units of `benchmarks.common.methods`, as the tables of equal_error choose them
    "SGLD": 2.0,
    "NOGIN diag": 0.25,
    "underdamped Langevin + CV": 0.5,
    "HMC whitened": 0.5,
}


def draw(folder: Path) -> Path:
    """Writes error.png."""
    p = named(POSTERIOR)
    reference = exact(p, 100)
    chosen = select(methods(p, 500), list(STEPS))
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True)
    for name, step in STEPS.items():
        curve = Runner(chosen[name], len(p.x))(step, 1, SECONDS, reference).curve
        for axes, error in zip(panels, (curve.mean_error, curve.covariance_error), strict=True):
            axes.plot(curve.seconds, np.where(np.isfinite(error), error, np.nan), label=name)
    for axes, title in zip(panels, ("mean (E1)", "covariance (E2)"), strict=True):
        axes.set(xscale="log", yscale="log", xlabel="processor seconds")
        axes.set_ylabel("relative error")
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.3)
    panels[1].legend(fontsize=8)
    figure.savefig(folder / "error.png", dpi=100)
    return folder / "error.png"
