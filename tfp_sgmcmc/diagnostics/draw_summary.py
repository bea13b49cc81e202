"""A table of draws by the names of parameters: moments, quantiles, ESS, R-hat and MCSE."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfp_sgmcmc.diagnostics.convergence import (
    LEAST_DRAWS,
    MOST_RHAT,
    effective_sample_size,
    rank_normalized_rhat,
    rhat_limit,
)
from tfp_sgmcmc.internal.tables import Table, decimals_for, histogram_picture, number, shown_by

MOST_SHOWN = 20  # rows
LEVELS = (0.05, 0.5, 0.95)
_LEAST_FOR_RHAT = 4  # draws of a chain


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
            number(float(self.rhat[i]), 3),
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
                f"{hidden:,} more entries. Of {of}, the largest R-hat is {self.rhat[worst]:.3f}, "
                f"of {self.names[worst]}, and the smallest ESS {least[fewest]:,.0f}, of "
                f"{self.names[fewest]}."
            )
        elif hidden:
            notes.append(f"{hidden:,} more entries.")
        if not np.isfinite(self.rhat).any():
            return notes
        few = np.nanmin(least)
        chance = rhat_limit(self.num_chains, len(self.names), few) if few >= LEAST_DRAWS else 0
        if np.nanmax(self.rhat) > max(MOST_RHAT, chance):
            notes.append(
                f"R-hat above {max(MOST_RHAT, chance):.3g}: the chains do not agree. Run longer, "
                "or look for several modes."
            )
        if few < LEAST_DRAWS:
            notes.append(f"ESS below {LEAST_DRAWS}: too few independent draws. Run longer.")
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
        quantiles = np.stack(
            [np.quantile(v, LEVELS, weights=repeated, method="inverted_cdf") for v in flat.T],
            axis=1,
        )
    unknown = np.full(size, np.nan)
    bulk = tail = rhat = mcse = unknown
    if num >= _LEAST_FOR_RHAT:
        bulk, tail = effective_sample_size(x, "bulk"), effective_sample_size(x, "tail")
        rhat = rank_normalized_rhat(x)
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
