"""A table of a posterior's weights, worst mixed first, and plots of their traces."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np

from tfp_sgmcmc.internal.arviz_import import import_arviz

_SHOWN = 20  # rows that are printed


@dataclasses.dataclass(frozen=True)
class Summary:
    """Figures of single weights, the largest R-hat first; `print` shows the first 20.

    Attributes:
      names: path and index of each entry, such as "dense/kernel[3, 1]".
      mean: posterior means, by the samples' weights, `[entries]`.
      standard_deviation: posterior standard deviations, by the samples' weights.
      rhat: rank-normalised split R-hat; NaN for entries that never move. Samples of a single chain
        are compared half by half.
      ess: effective sample size of the bulk, all chains together. Like `rhat`, it knows nothing of
        weights.
      num_entries: the number of entries of all variables, of which those above are some if there
        are more than were asked for.

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

    def __str__(self) -> str:
        width = max(8, *map(len, self.names[:_SHOWN]))
        lines = [f"{'entry':<{width}} {'mean':>10} {'sd':>10} {'R-hat':>7} {'ESS':>8}"]
        columns = self.names, self.mean, self.standard_deviation, self.rhat, self.ess
        for name, mean, sd, rhat, ess in list(zip(*columns, strict=True))[:_SHOWN]:
            lines.append(f"{name:<{width}} {mean:>10.4g} {sd:>10.4g} {rhat:>7.3f} {ess:>8.0f}")
        counts = f"worst {min(_SHOWN, len(self.names))} of {len(self.names)} entries"
        if len(self.names) < self.num_entries:
            counts += f", taken evenly from {self.num_entries}"
        return "\n".join([*lines, counts])


def summarize(
    variables: list[keras.Variable],
    samples: list[Any],
    num_chains: int | None,
    weights: np.ndarray | None,
    most_entries: int,
) -> tuple[Summary, np.ndarray]:
    """Returns the summary, and the traces of its entries, `[entries, chains, draws]`."""
    names, traces = [], []
    for variable, values in _trained(variables, samples):
        found = np.asarray(values[:], np.float64)
        found = found.reshape(len(found), num_chains or 1, -1)
        count = min(found.shape[-1], most_entries)
        chosen = np.linspace(0, found.shape[-1] - 1, count).round().astype(int)
        traces.append(found[..., chosen])
        names += [_name(variable, i) for i in chosen]
    x = np.concatenate(traces, axis=-1).transpose(2, 1, 0)
    rhat, ess = _figures(x)
    mean = np.average(x, axis=-1, weights=weights)
    sd = np.average((x - mean[..., np.newaxis]) ** 2, axis=-1, weights=weights)
    # The variance of all draws is that within chains and that of the chains' means.
    sd = np.sqrt(sd.mean(axis=1) + mean.var(axis=1))
    order = np.argsort(-np.nan_to_num(rhat, nan=np.inf), kind="stable")
    total = sum(int(np.prod(v.shape)) for v, _ in _trained(variables, samples))
    columns = (mean.mean(axis=1), sd, rhat, ess)
    ordered = tuple(names[i] for i in order)
    return Summary(ordered, *(c[order] for c in columns), total), x[order]


def _trained(variables: list[keras.Variable], samples: list[Any]) -> list[tuple[Any, Any]]:
    return [(v, s) for v, s in zip(variables, samples, strict=True) if v.trainable]


def _name(variable: keras.Variable, entry: int) -> str:
    if not variable.shape:
        return variable.path
    index = np.unravel_index(entry, variable.shape)
    return f"{variable.path}[{', '.join(map(str, index))}]"


def _figures(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns R-hat and effective sample sizes of traces `[entries, chains, draws]`."""
    arviz = import_arviz("summary")
    rhat, ess = np.full([2, len(x)], np.nan)
    moves = np.ptp(x, axis=(1, 2)) > 0
    if x.shape[-1] < 4:
        raise ValueError(
            f"A summary needs at least 4 samples of each chain. Received: {x.shape[-1]}."
        )
    if not moves.any():
        return rhat, ess
    x = x[moves]
    x = (x - np.median(x, axis=(1, 2), keepdims=True)) / np.ptp(x, axis=(1, 2), keepdims=True)
    ess[moves] = arviz.ess(_dataset(arviz, x), method="bulk")["x"].values
    half = x.shape[-1] // 2
    if x.shape[1] == 1 and half >= 4:  # ArviZ compares two chains at least
        x = np.concatenate([x[..., :half], x[..., half : 2 * half]], axis=1)
    if x.shape[1] > 1:
        rhat[moves] = arviz.rhat(_dataset(arviz, x), method="rank")["x"].values
    return rhat, ess


def _dataset(arviz: Any, x: np.ndarray) -> Any:
    return arviz.convert_to_dataset({"x": np.moveaxis(x, 0, -1)})


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
        trace.set_title(f"{name}, R-hat {rhat:.3f}", fontsize="small")
        weight = None if weights is None else [weights] * len(x)
        marginal.hist([*x], bins=30, density=True, histtype="step", weights=weight)
        marginal.set_yticks([])
    axes[-1, 0].set_xlabel("sample")
    axes[-1, 1].set_xlabel("value")
    return figure


def import_figure() -> Any:
    """Returns the class of matplotlib's figures.

    Raises:
      ModuleNotFoundError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'plot needs matplotlib. Install it by python -m pip install "tfp_sgmcmc[plots]"'
        ) from error
    return Figure
