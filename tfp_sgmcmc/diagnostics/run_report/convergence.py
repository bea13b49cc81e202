"""R-hat and effective sample sizes of a variable, by ArviZ, and what is wrong with its chains."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tfp_sgmcmc.internal.arviz_import import import_arviz

MOST_RHAT, LEAST_DRAWS = 1.01, 400  # Vehtari et al. 2021
_BY_CHANCE = 1e-3  # share of sound variables whose largest R-hat may exceed the limit
_FAR = {1: 6.0, 2: 4.0}  # number of chains: sds; 3 sds for more chains


class Row(NamedTuple):
    """The worst figures of a variable's entries.

    Attributes:
      name: name of the variable.
      num_entries: number of its entries.
      rhat: largest R-hat, rank-normalised and split.
      num_draws: smallest effective sample size of bulk and tails, all chains together.
      time: number of results that are worth an independent draw.
      trace: trace of the entry with the largest R-hat, `[draws, chains]`.
    """

    name: str
    num_entries: int
    rhat: float
    num_draws: float
    time: float
    trace: np.ndarray


def figures_of(name: str, num_entries: int, x: np.ndarray) -> Row:
    """Returns the figures of a variable, x of shape `[draws, chains, entries]`."""
    num_results = x.shape[0] * x.shape[1]
    moves = np.ptp(x, axis=(0, 1)) > 0
    if not moves.any():
        return Row(name, num_entries, np.nan, 1.0, np.nan, x[..., 0])
    rhat, draws = np.full([2, x.shape[-1]], np.nan)
    rhat[moves], draws[moves] = _figures(x[..., moves])
    worst = int(np.argmax(np.nan_to_num(rhat, nan=-np.inf)))
    least = float(np.nanmin(draws)) if np.isfinite(draws).any() else 1.0
    return Row(name, num_entries, float(rhat[worst]), least, num_results / least, x[..., worst])


def _figures(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns R-hat, and the smaller effective sample size of bulk and tails, of each entry."""
    arviz = import_arviz("report")
    x = (x - np.median(x, axis=(0, 1))) / np.ptp(x, axis=(0, 1))  # ArviZ takes 1e-15 for 0
    data = _dataset(arviz, x)
    draws = [arviz.ess(data, method=method)["x"].values for method in ("bulk", "tail")]
    if x.shape[1] == 1 and len(x) >= 8:  # ArviZ compares two chains at least
        half = len(x) // 2
        data = _dataset(arviz, np.concatenate([x[:half], x[half : 2 * half]], axis=1))
    elif x.shape[1] == 1:
        return np.full(x.shape[-1], np.nan), np.minimum(*draws)
    return arviz.rhat(data, method="rank")["x"].values, np.minimum(*draws)


def _dataset(arviz: Any, x: np.ndarray) -> Any:
    return arviz.convert_to_dataset({"x": np.swapaxes(x, 0, 1)})


def chain_problems(found: Row, x: np.ndarray) -> list[str]:
    """Returns what is wrong with the chains of a variable, x of shape `[draws, chains, entries]`.

    R-hat varies: with few independent draws or many entries, its maximum is above 1.01 by chance.
    So 400 or more draws have a limit that sound chains exceed once in 1000 variables.
    """
    name, problems = found.name, []
    ranges = np.ptp(x, axis=0)
    still = int(np.sum(ranges.max(axis=0) == 0))
    if still:
        problems.append(f"{name}: {still} entries never move.")
    stuck = np.flatnonzero((ranges == 0).all(axis=1))
    if not still and len(stuck):
        chains = ", ".join(str(c) for c in stuck[:5])
        problems.append(f"{name}: {len(stuck)} of {x.shape[1]} chains never move ({chains}).")
    if still == x.shape[-1]:
        return problems
    few = not found.num_draws >= LEAST_DRAWS
    limit = MOST_RHAT if few else max(MOST_RHAT, _rhat_by_chance(found, x))
    if found.rhat > limit:
        problems.append(
            f"{name}: the chains or their halves disagree. R-hat is {found.rhat:.3f}; it should "
            f"be at most {MOST_RHAT}. Run longer, or from better starts."
        )
    if few:
        problems.append(
            f"{name}: the draws are worth {found.num_draws:.0f} independent draws; there should "
            f"be at least {LEAST_DRAWS}. Run longer."
        )
    return [*problems, *_start_problem(name, x)]


def _rhat_by_chance(found: Row, x: np.ndarray) -> float:
    """Returns the R-hat that the worst entry of sound chains exceeds with probability 1e-3.

    The variance between m half chains of n effective draws each is about chi^2 with m - 1 degrees
    of freedom, over n (m - 1), in units of the variance within. Each entry has two such figures.
    """
    from scipy import special  # ArviZ installs SciPy

    m = max(2 * x.shape[1], 4)
    worst = special.chdtri(m - 1, _BY_CHANCE / (2 * x.shape[-1])) / (m - 1)
    return float(np.sqrt(1 + (worst - 1) * m / found.num_draws))


def _start_problem(name: str, x: np.ndarray) -> list[str]:
    """Finds first results that lie far from the rest, too few for R-hat to notice.

    The first tenth of at least three chains in four must lie 3 sds of the last half away, in the
    root mean square. Chains with heavy tails go far, but not all of them, at the start.
    """
    num_results, num_chains, _ = x.shape
    if num_results < 20:
        return []
    centre = np.median(x[num_results // 2 :], axis=(0, 1))
    scale = np.sqrt(np.mean((x[num_results // 2 :] - centre) ** 2, axis=(0, 1)))
    scale = np.where(scale > 0, scale, np.inf)
    away = np.abs(x - centre) / scale
    first = np.sqrt(np.mean(away[: num_results // 10] ** 2, axis=0))
    far = np.sort(first, axis=0)[num_chains // 4]
    worst = int(np.argmax(far))
    if not far[worst] > _FAR.get(num_chains, 3.0):
        return []
    gone = np.flatnonzero((away[..., worst] > 5).mean(axis=1) > 0.25)
    drop = int(gone[gone < num_results // 2].max(initial=0)) + 1
    return [
        f"{name}: the first results are far from the rest, up to "
        f"{away[: num_results // 10, :, worst].max():.2g} standard deviations. Burn-in was too "
        f"short: drop at least {drop} of {num_results} results."
    ]
