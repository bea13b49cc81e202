"""Draws as a table by the names of parameters, and as figures.

The table has moments, quantiles, ESS, R-hat and MCSE. The figures show traces and ranks by chain,
marginals, and what gradients say of each entry.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfp_sgmcmc.diagnostics.convergence import (
    LEAST_DRAWS,
    MOST_RHAT,
    chain_dependence,
    effective_sample_size,
    rank_normalized_rhat,
    rhat_limit,
    rhat_text,
)
from tfp_sgmcmc.internal.extras import import_figure
from tfp_sgmcmc.internal.tables import Table, decimals_for, histogram_picture, number, shown_by

MOST_SHOWN = 20  # rows
LEVELS = (0.05, 0.5, 0.95)
_LEAST_FOR_RHAT = 4  # draws of a chain

_RANK_BINS = 20
_MOST_POINTS = 2000  # of a line


@dataclasses.dataclass(frozen=True, repr=False)
class DrawSummary:
    """Statistics of single entries of the draws; `print` shows the first 20.

    Attributes:
      names: name and index of each entry, such as "w[3, 1]".
      mean: posterior means, by the weights of the draws, `[entries]`.
      standard_deviation: posterior standard deviations, by these weights.
      quantiles: quantiles of 5 %, 50 % and 95 %, by these weights, `[3, entries]`.
      ess_bulk: effective sample size of the bulk, all chains together.
      ess_tail: effective sample size of the 5 % and 95 % quantiles, the smaller one.
      rhat: rank-normalised split R-hat. It, the sizes and `mcse` are NaN for entries that never
        move and for fewer than four draws. None of them takes weights into account.
      mcse: Monte Carlo standard error of the mean.
      num_draws: number of draws of each chain.
      num_chains: number of chains.
      num_entries: number of entries of all parameters, listed or not.
      num_shown: number of entries that `print` shows.
      every: the statistics are those of every k-th draw.
      pictures: small histograms of the entries that are shown, as SVG.
      dependence: largest factor by which `ess_bulk`, `ess_tail` and the square of `mcse` make up
        for chains that depend on each other; 1 if they do not.

    References:
      A. Vehtari, A. Gelman, D. Simpson, B. Carpenter and P.-C. Bürkner. Rank-normalization,
      folding, and localization: an improved R-hat for assessing convergence of MCMC. Bayesian
      Analysis, 16(2):667-718, 2021.
    """

    names: tuple[str, ...]
    mean: np.ndarray
    standard_deviation: np.ndarray
    quantiles: np.ndarray
    ess_bulk: np.ndarray
    ess_tail: np.ndarray
    rhat: np.ndarray
    mcse: np.ndarray
    num_draws: int
    num_chains: int
    num_entries: int
    num_shown: int
    every: int = 1
    pictures: tuple[str, ...] = ()
    dependence: float = 1.0

    def table(self, title: str = "") -> Table:
        """Returns the rows that `print` shows, below a title."""
        shown = range(min(self.num_shown, len(self.names)))
        total = self.num_chains * len(range(0, self.num_draws, self.every))
        return Table(
            title or f"{self.num_entries} entries",
            ("", "mean", "sd", "5%", "50%", "95%", "ESS bulk", "ESS tail", "R-hat", "MCSE"),
            [self._row(i) for i in shown],
            self._notes(),
            bars={
                "ESS bulk": [self.ess_bulk[i] / total for i in shown],
                "ESS tail": [self.ess_tail[i] / total for i in shown],
            },
            pictures=self.pictures,
        )

    def _row(self, i: int) -> tuple[str, ...]:
        sd = float(self.standard_deviation[i])
        decimals = decimals_for(sd if sd > 0 else abs(float(self.mean[i])) or 1.0)
        values = [self.mean[i], sd, *self.quantiles[:, i]]
        error = float(self.mcse[i])
        return (
            self.names[i],
            *(number(float(x), decimals) for x in values),
            number(float(self.ess_bulk[i]), 0),
            number(float(self.ess_tail[i]), 0),
            rhat_text(self.rhat[i]),
            number(error, decimals_for(10 * error)),
        )

    def _notes(self) -> list[str]:
        notes = []
        hidden = self.num_entries - min(self.num_shown, len(self.names))
        least = np.fmin(self.ess_bulk, self.ess_tail)
        if hidden and np.isfinite(self.rhat).any():
            worst, fewest = int(np.nanargmax(self.rhat)), int(np.nanargmin(least))
            of = "all" if len(self.names) == self.num_entries else f"{len(self.names)}"
            notes.append(
                f"{hidden:,} more entries. Of {of}, the largest R-hat is "
                f"{rhat_text(self.rhat[worst])}, of {self.names[worst]}, and the smallest ESS "
                f"{least[fewest]:,.0f}, of {self.names[fewest]}."
            )
        elif hidden:
            notes.append(f"{hidden:,} more entries.")
        if not np.isfinite(self.rhat).any():
            return notes
        few = np.nanmin(least)
        chance = rhat_limit(self.num_chains, len(self.names), few) if few >= LEAST_DRAWS else 0
        if np.nanmax(self.rhat) > max(MOST_RHAT, chance):
            notes.append(
                f"R-hat above {max(MOST_RHAT, chance):.3g}: the chains, or their "
                "halves, do not agree. Run longer, or look for several modes."
            )
        if few < LEAST_DRAWS:
            notes.append(f"ESS below {LEAST_DRAWS}: too few independent draws. Run longer.")
        if self.dependence > 1:
            notes.append(
                f"The chains depend on each other: {self.num_chains} are worth "
                f"{self.num_chains / self.dependence:.2g}. ESS and MCSE make up for it."
            )
        if self.every > 1:
            notes.append(
                f"These are figures of every {self.every}th draw; summary() takes all of them."
            )
        return notes

    __repr__, _repr_html_ = shown_by(lambda self: self.table())


def summarize(
    names: Sequence[str],
    draws: np.ndarray,
    num_entries: int,
    *,
    weights: np.ndarray | None = None,
    every: int = 1,
    num_draws: int | None = None,
    num_shown: int = MOST_SHOWN,
) -> DrawSummary:
    """Returns the summary of entries `[draws, chains, entries]`, of which the first are shown.

    Args:
      names: a name for each entry.
      draws: the draws, perhaps every k-th.
      num_entries: number of entries of the parameters, given here or not.
      weights: weights of the draws, `[draws]`, in moments and quantiles; None for equal ones.
      every: k.
      num_draws: number of draws of each chain before thinning.
      num_shown: number of entries to show.
    """
    x = np.asarray(draws, np.float64)
    num, chains, size = x.shape
    mean = np.average(x.mean(axis=1), axis=0, weights=weights)
    sd = np.average(((x - mean) ** 2).mean(axis=1), axis=0, weights=weights) ** 0.5
    flat = x.reshape(-1, size)
    if weights is None:
        quantiles = np.quantile(flat, LEVELS, axis=0)
    else:
        repeated = np.repeat(weights, chains)
        quantiles = np.quantile(flat, LEVELS, axis=0, weights=repeated, method="inverted_cdf")
    unknown = np.full(size, np.nan)
    bulk = tail = rhat = mcse = unknown
    dependence = 1.0
    if num >= _LEAST_FOR_RHAT:
        bulk, tail = effective_sample_size(x, "bulk"), effective_sample_size(x, "tail")
        rhat = rank_normalized_rhat(x)
        dependence = float(np.fmax.reduce(chain_dependence(x), initial=1.0))
        mcse = x.std(axis=(0, 1), ddof=1) / np.sqrt(effective_sample_size(x, "mean"))
    return DrawSummary(
        tuple(names),
        mean,
        sd,
        quantiles,
        bulk,
        tail,
        rhat,
        mcse,
        num if num_draws is None else num_draws,
        chains,
        num_entries,
        num_shown,
        every,
        tuple(histogram_picture(v) for v in flat.T[:num_shown]),
        dependence,
    )


def entry_names(name: str, shape: Sequence[int], entries: Any) -> list[str]:
    """Returns names of entries of an array, by their positions in the flattened array.

    >>> entry_names("w", [2, 3], [0, 5]), entry_names("s", [], [0])
    (['w[0, 0]', 'w[1, 2]'], ['s'])
    """
    if not len(shape):
        return [name] * len(entries)
    places = np.stack(np.unravel_index(np.asarray(entries, int), tuple(shape)), axis=-1)
    return [f"{name}[{', '.join(map(str, place))}]" for place in places.tolist()]


def entries_to_show(
    shapes: Mapping[str, Sequence[int]], most_shown: int, most_others: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns, for each variable, the entries to show and others to look at.

    Variables share the rows equally, and a variable with fewer entries leaves its rest to others.
    The others are spread evenly.

    >>> shown, others = entries_to_show({"a": [], "w": [100]}, 4, 3)
    >>> [x.tolist() for x in shown], [x.tolist() for x in others]
    ([[0], [0, 1, 2]], [[], [3, 51, 99]])
    """
    sizes = [math.prod(shape) for shape in shapes.values()]
    counts, rest = [0] * len(sizes), min(most_shown, sum(sizes))
    while rest > 0:
        open_ones = [i for i, size in enumerate(sizes) if counts[i] < size]
        for i in open_ones[:rest]:
            counts[i] += 1
        rest -= len(open_ones[:rest])
    hidden = sum(sizes) - sum(counts)
    shown = [np.arange(count) for count in counts]
    others = []
    for size, count in zip(sizes, counts, strict=True):
        share = min(size - count, math.ceil(most_others * (size - count) / max(hidden, 1)))
        others.append(np.unique(np.linspace(count, size - 1, share).astype(int)))
    return shown, others


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
        trace.set_title(f"{name}, R-hat {rhat_text(of_entry)}", fontsize="small")
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
        # The reference may lack some of the entries.
        legends = [panel.get_legend_handles_labels() for panel in panels]
        handles, labels = max(legends, key=lambda legend: len(legend[1]))
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
