"""The figures of the demonstration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import norm
from sklearn.calibration import calibration_curve

from tfp_sgmcmc.demo.chains import Chains
from tfp_sgmcmc.demo.classifier import NUM_BINS, Classifiers
from tfp_sgmcmc.demo.logistic import Comparison

_SAMPLER, _HMC, _NORMAL = "tab:orange", "tab:blue", "0.35"


def save(folder: Path, comparison: Comparison, classifiers: Classifiers, title: str) -> list[Path]:
    """Draws all figures and returns their files."""
    figures = {
        "marginals.png": marginals(comparison, title),
        "trace.png": trace(comparison, title),
        "reliability.png": reliability(classifiers, title),
    }
    for name, figure in figures.items():
        figure.savefig(folder / name, dpi=120)
    return [folder / name for name in figures]


def marginals(comparison: Comparison, title: str) -> Figure:
    """Draws histograms of the six weights with the largest posterior means."""
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    figure.suptitle(f"Marginal posteriors of six weights\n{title}")
    covariance = comparison.pilot.covariance
    panels = figure.subplots(2, 3)
    for axes, i in zip(panels.flat, _largest(comparison.hmc, 6), strict=True):
        draws = comparison.hmc.samples[..., i].ravel()
        low, high = np.quantile(draws, [0.0005, 0.9995])
        bins = np.linspace(low, high, 50)
        grid = np.linspace(bins[0], bins[-1], 200)
        axes.hist(draws, bins, density=True, color=_HMC, alpha=0.35, label="HMC, all data")
        axes.hist(
            comparison.sampled.samples[..., i].ravel(), bins, density=True, histtype="step",
            color=_SAMPLER, linewidth=1.8, label=comparison.rows[0]["sampler"],
        )  # fmt: skip
        axes.plot(
            grid, norm.pdf(grid, comparison.pilot.mode[i], np.sqrt(covariance[i, i])),
            color=_NORMAL, linestyle=":", label=comparison.rows[1]["sampler"],
        )  # fmt: skip
        axes.set(xlabel=_name(i), ylabel="density")
        axes.locator_params(axis="x", nbins=5)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def trace(comparison: Comparison, title: str) -> Figure:
    """Draws the two weights with the largest means along the chains, with HMC's interval."""
    figure = Figure(figsize=(11, 5.5), layout="constrained")
    figure.suptitle(f"Traces after burn-in: {comparison.rows[0]['sampler']}\n{title}")
    rows = figure.subplots(2, 1, sharex=True)
    samples = comparison.sampled.samples
    every = max(1, len(samples) // 500)  # more points would make the figure black
    for axes, i in zip(rows, _largest(comparison.hmc, 2), strict=True):
        axes.plot(np.arange(len(samples))[::every], samples[::every, :4, i], lw=0.7, alpha=0.7)
        low, high = np.quantile(comparison.hmc.samples[..., i], [0.025, 0.975])
        axes.axhspan(low, high, color="0.5", alpha=0.2, label="HMC, central 95 %")
        axes.axhline(
            comparison.hmc.mean[i], color="black", linewidth=1.5, zorder=4, label="HMC, mean"
        )
        axes.set(ylabel=_name(i))
        axes.margins(x=0)
    figure.legend(*rows[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    rows[1].set(xlabel="kept sample (four chains)")
    return figure


def reliability(classifiers: Classifiers, title: str) -> Figure:
    """Draws accuracy against confidence of the predicted class, and the counts of confidences."""
    figure = Figure(figsize=(7, 7), layout="constrained")
    figure.suptitle(f"Reliability of the network's predictions on the test part\n{title}")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    upper.plot([0, 1], [0, 1], color=_NORMAL, linestyle=":", label="perfectly calibrated")
    bins = np.linspace(0, 1, NUM_BINS + 1)
    for (label, p), color in zip(classifiers.probabilities.items(), (_HMC, _SAMPLER), strict=True):
        confidence = np.minimum(p.max(axis=1), 1.0)  # rounding can make it exceed 1
        correct = p.argmax(axis=1) == classifiers.labels
        accuracy, mean_confidence = calibration_curve(correct, confidence, n_bins=NUM_BINS)
        upper.plot(mean_confidence, accuracy, marker="o", color=color, label=label)
        lower.hist(confidence, bins, histtype="step", linewidth=1.8, color=color, label=label)
    upper.set(ylabel="accuracy", xlim=(0, 1.02), ylim=(-0.02, 1.02))
    upper.legend(loc="upper left")
    lower.set(xlabel="confidence (probability of the predicted class)", ylabel="test examples")
    lower.set_yscale("log")
    return figure


def _largest(chains: Chains, number: int) -> np.ndarray:
    """Returns the indices of the weights with the largest posterior means."""
    return np.argsort(-np.abs(chains.mean))[:number]


def _name(index: int) -> str:
    return f"weight {index}" if index else "constant"
