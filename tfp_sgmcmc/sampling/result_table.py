"""The table of a result: what `print` and notebooks show of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tree

from tfp_sgmcmc.diagnostics import draw_summary
from tfp_sgmcmc.diagnostics.convergence import effective_sample_size, rank_normalized_rhat
from tfp_sgmcmc.internal.checks import a_type, array
from tfp_sgmcmc.internal.memory import readable
from tfp_sgmcmc.internal.tables import Table, graded
from tfp_sgmcmc.sampling.draw_functions import check_some
from tfp_sgmcmc.storage.stored_draws import Variable
from tfp_sgmcmc.targets.data import evenly_spread

_MOST_NUMBERS = 2_000_000  # that `print` sorts, which takes about a second
_MOST_OTHERS = 200  # entries that are looked at beside those that are shown
_MOST_READ = 2**28  # bytes of draws on disk that `print` reads
_BLOCK = 2**25  # bytes of draws that are read at once


def read_entries(
    arrays: Sequence[tuple[Variable, Any]], picked: Sequence[np.ndarray], every: int = 1
) -> np.ndarray:
    """Returns some entries of every k-th draw, `[draws, chains, entries]`, read in blocks.

    Args:
      arrays: the form of one draw, and draws `[draws, chains..., event...]` in memory or on disk.
      picked: for each array, positions in the flattened event.
      every: k.
    """
    columns = []
    for (variable, draws), entries in zip(arrays, picked, strict=True):
        rows = max(1, _BLOCK // max(1, variable.draw_bytes)) * every
        blocks = []
        for start in range(0, len(draws), rows) if len(entries) else ():
            block = np.asarray(draws[start : start + rows])[::every]
            block = block.reshape(len(block), variable.num_chains, -1)
            blocks.append(block[..., entries].astype(np.float64))
        columns += [np.concatenate(blocks)] if blocks else []
    return np.concatenate(columns, axis=-1)


def summary_of(result: Any, most_entries: int) -> draw_summary.DrawSummary:
    """Returns statistics of all draws, of up to `most_entries` entries of each parameter."""
    labels, draws = _some_entries(result, most_entries)
    total = sum(map(_size, _parameters(result)[1]))
    return draw_summary.summarize(labels, draws, total, weights=_weights(result))


def short_summary(result: Any) -> draw_summary.DrawSummary | None:
    """Returns what `print` shows; None if it would read too much.

    Many draws are thinned, and of many entries the first ones and some of the others are taken.
    """
    names, arrays = _parameters(result)
    draws = result.num_results
    if not draws or not arrays or not any(map(_size, arrays)):
        return None
    if result.directory is not None and _bytes(arrays, draws) > _MOST_READ:
        return None
    of_entry = draws * max(variable.num_chains for variable, _ in arrays)
    every = math.ceil(of_entry * draw_summary.MOST_SHOWN / _MOST_NUMBERS)
    most_others = min(_MOST_OTHERS, max(0, _MOST_NUMBERS // of_entry - draw_summary.MOST_SHOWN))
    shapes = {name: v.event_shape for name, (v, _) in zip(names, arrays, strict=True)}
    shown, others = draw_summary.entries_to_show(shapes, draw_summary.MOST_SHOWN, most_others)
    labels = _labels(names, arrays, shown) + _labels(names, arrays, others)
    draws = read_entries(arrays, shown, every)
    if sum(map(len, others)):
        draws = np.concatenate([draws, read_entries(arrays, others, every)], axis=-1)
    weights = _weights(result)
    return draw_summary.summarize(
        labels,
        draws,
        sum(map(_size, arrays)),
        weights=None if weights is None else weights[::every],
        every=every,
        num_draws=result.num_results,
    )


def efficiency_of(result: Any) -> float:
    """Returns the mean effective sample size of the entries' means, divided by the draws."""
    draws = _some_entries(result)[1]
    return float(np.nanmean(effective_sample_size(draws, "mean")) / (len(draws) * draws.shape[1]))


def worst_entries_of(result: Any, num_entries: int) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Returns names, draws `[draws, chains, entries]` and R-hat of entries, the worst first."""
    labels, draws = _some_entries(result)
    rhat = rank_normalized_rhat(draws)
    order = np.argsort(-np.nan_to_num(rhat, nan=np.inf), kind="stable")[:num_entries]
    return [labels[i] for i in order], draws[..., order], rhat[order]


def marginals_of(
    result: Any, reference: Any, num_entries: int
) -> tuple[list[str], np.ndarray, dict[str, np.ndarray] | None]:
    """Returns names and draws of the first entries, and reference draws of the same names."""
    check_some(result)
    names, arrays = _parameters(result)
    shapes = {name: v.event_shape for name, (v, _) in zip(names, arrays, strict=True)}
    shown, _ = draw_summary.entries_to_show(shapes, num_entries, 0)
    labels, draws = _labels(names, arrays, shown), read_entries(arrays, shown)
    if reference is None:
        return labels, draws, None
    if not isinstance(reference, Mapping) and not hasattr(reference, "named_draws"):
        raise TypeError(
            "reference must be a result, or a dict of arrays [draws, chains, event...] by "
            f"parameter name. Received: {a_type(reference)}."
        )
    known = reference if isinstance(reference, Mapping) else reference.named_draws()
    found = dict[str, np.ndarray]()
    for name, picked in zip(names, shown, strict=True):
        if name in known:
            x = array(f"reference[{name!r}]", known[name], finite=False).astype(np.float64)
            flat = x.reshape(-1, max(1, math.prod(shapes[name])))[:, picked]
            found |= zip(draw_summary.entry_names(name, shapes[name], picked), flat.T, strict=True)
    if not found:
        raise ValueError(
            f"reference must have draws of a parameter that is shown: {', '.join(names)}. "
            f"Received: {[*known]}."
        )
    return labels, draws, found


def _some_entries(result: Any, most: int = _MOST_OTHERS) -> tuple[list[str], np.ndarray]:
    """Returns names and all draws of entries spread over each parameter."""
    check_some(result)
    names, arrays = _parameters(result)
    picked = [evenly_spread(_size(x), most) for x in arrays]
    return _labels(names, arrays, picked), read_entries(arrays, picked)


def table_of(result: Any, title: str, failures: Sequence[str] = ()) -> Table:
    """Returns the table of a result, with its flags and where to look for more."""
    names, arrays = _parameters(result)
    notes, table, found, failures = [], Table(""), None, list(failures)
    try:
        found = short_summary(result)
    except (OSError, ValueError) as error:
        if result.directory is None:
            raise
        failures.append(f"The draws cannot be read. {error}")
    if found is not None:
        table = found.table()
        notes += table.notes
    elif result.num_results:
        size = readable(_bytes(arrays, result.num_results))
        parts = (f"{n} {v.dtype} {[*v.shape]}" for n, (v, _) in zip(names, arrays, strict=True))
        notes.append(f"{size} of draws of {', '.join(parts)}; summary() reads all of them.")
    if _weights(result) is not None:
        notes.append("Means, sds and quantiles are weighted by the step sizes.")
    traced = 0 if result.trace is None else len(tree.flatten(result.trace))
    stats = [
        f"{kept.name} {[result.num_results, *kept.variable.shape]}"
        for kept in result._kept[len(arrays) : len(arrays) + traced]
    ]
    if stats:
        notes.append(f"trace: {', '.join(stats)}")
    if result.certificate is not None and result.certificate.is_reliable:
        notes.append(_certified(result.certificate))
    if result.choices is not None:
        notes.append(
            f"{result.choices.sampler}, chosen by sample: see explanation and choices of the "
            "result."
        )
    flags = [("wrong", text) for text in failures] + [graded(flag) for flag in result.flags]
    return table._replace(title=title, notes=notes, flags=flags, details=result.explanation)


def _certified(certificate: Any) -> str:
    """Returns the largest differences from the weighted draws, with their standard errors."""
    (offset, offset_error), (ratio, ratio_error) = (
        certificate.largest_offset,
        certificate.largest_ratio,
    )
    return (
        f"Certificate: beside {certificate.num_draws:,} importance-weighted draws, means differ by "
        f"up to {offset:.3f} +- {offset_error:.3f} sd, sds by up to {100 * ratio:.1f} +- "
        f"{100 * ratio_error:.1f} %."
    )


def title_of(result: Any, name: str, of_chains: str) -> str:
    """Returns the first line: how many draws there are, where, and whether they are trusted."""
    state = "complete" if result.is_complete else "interrupted"
    where = "" if result.directory is None else f", in {result.directory}"
    trust = {None: "", True: " Trusted.", False: " Not to be trusted."}[result.is_trusted]
    return f"{name}: {result.num_results:,} draws of {of_chains}, {state}{where}.{trust}"


def num_chains_of(result: Any) -> int:
    """Returns the number of chains; 1 if the state has no axis of chains."""
    return max((v.num_chains for v, _ in _parameters(result)[1]), default=1)


def _parameters(result: Any) -> tuple[list[str], list[tuple[Variable, Any]]]:
    """Returns names, and forms with draws, of the parts of the state."""
    pairs = list(zip(result._kept, tree.flatten(result.states), strict=False))
    return [kept.name for kept, _ in pairs], [(kept.variable, x) for kept, x in pairs]


def _labels(names: Any, arrays: Any, picked: Any) -> list[str]:
    return [
        label
        for name, (variable, _), entries in zip(names, arrays, picked, strict=True)
        for label in draw_summary.entry_names(name, variable.event_shape, entries)
    ]


def _size(array: tuple[Variable, Any]) -> int:
    return math.prod(array[0].event_shape)


def _bytes(arrays: Sequence[tuple[Variable, Any]], num_draws: int) -> int:
    return num_draws * sum(variable.draw_bytes for variable, _ in arrays)


def _weights(result: Any) -> np.ndarray | None:
    """Returns the weights of the draws if all chains share them and they differ."""
    leaves = [] if result.weights is None else tree.flatten(result.weights)
    if len(leaves) != 1 or np.ndim(leaves[0]) != 1 or not len(leaves[0]):
        return None
    weights = np.asarray(leaves[0], np.float64)
    usable = np.isfinite(weights).all() and (weights > 0).all()
    return weights if usable and np.ptp(weights) > 0 else None
