"""One page about a run: a plain verdict, its figures, and the worst traces."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.diagnostics.autocorrelation import integrated_autocorrelation_time
from tfp_sgmcmc.diagnostics.stein import gradients_at
from tfp_sgmcmc.diagnostics.temperatures import configurational_temperature
from tfp_sgmcmc.targets.base import as_target

MOST_RHAT, LEAST_DRAWS = 1.01, 400  # Vehtari et al. 2021
_TEMPERATURE_ERROR = 0.1
_MOST_ENTRIES, _MOST_DRAWS = 1000, 200  # of a variable; of a run, for the temperature


class Row(NamedTuple):
    """The worst figures of a variable's entries.

    Attributes:
      name: name of the variable.
      num_entries: number of its entries.
      rhat: largest R-hat, with chains cut in halves.
      num_draws: smallest number of independent draws, all chains together.
      time: longest integrated autocorrelation time, in results; NaN if chains are too short.
      trace: trace of the entry with the largest R-hat, `[draws, chains]`.
    """

    name: str
    num_entries: int
    rhat: float
    num_draws: float
    time: float
    trace: np.ndarray


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of `report`, which `print` shows.

    Attributes:
      problems: the problems found, in plain words.
      rows: the figures of each variable.
      temperature: the configurational temperature and its standard error (NaN for one chain), or
        None.
    """

    problems: tuple[str, ...]
    rows: tuple[Row, ...]
    temperature: tuple[float, float] | None = None

    def __str__(self) -> str:
        lines = ["Verdict: no problem was found."]
        if self.problems:
            lines = ["Verdict: do not trust these draws yet.", *(f"- {p}" for p in self.problems)]
        lines += ["", f"{'variable':<24} {'entries':>8} {'R-hat':>7} {'draws':>8} {'time':>8}"]
        for row in self.rows:
            figures = f"{row.rhat:>7.3f} {row.num_draws:>8.0f} {row.time:>8.1f}"
            lines.append(f"{row.name:<24} {row.num_entries:>8} {figures}")
        lines += [
            "",
            "draws: number of independent draws, all chains together",
            "time: number of results between two independent draws of a chain",
        ]
        if self.temperature is None:
            lines.append("Bias was not checked. Give target_log_prob_fn to check the temperature.")
        else:
            value, error = self.temperature
            lines.append(f"configurational temperature: {value:.3f} +- {error:.3f}")
        return "\n".join(lines)

    def figure(self) -> Any:
        """Returns the page, a `matplotlib.figure.Figure`: the text above the three worst traces.

        Raises:
          ModuleNotFoundError: matplotlib is not installed.
        """
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                'figure needs matplotlib. Install it by python -m pip install "tfp_sgmcmc[demo]"'
            ) from error
        worst = sorted(self.rows, key=lambda r: -np.nan_to_num(r.rhat, nan=np.inf))[:3]
        wrap = textwrap.TextWrapper(90, drop_whitespace=False).wrap
        lines = [part for line in str(self).split("\n") for part in wrap(line) or [""]]
        heights = [0.15 * len(lines), *[2.5] * len(worst)]  # inches
        page = Figure(figsize=(8.3, sum(heights)), layout="constrained")
        panels = page.subplots(len(heights), 1, height_ratios=heights, squeeze=False)
        top, *panels = panels[:, 0]
        top.axis("off")
        top.text(0, 1, "\n".join(lines), va="top", family="monospace", fontsize=8)
        for axes, row in zip(panels, worst, strict=True):
            axes.plot(row.trace, linewidth=0.5)
            axes.set(title=f"{row.name}: entry with the largest R-hat, {row.rhat:.3f}")
            axes.set(xlabel="result")
        return page


def report(
    result: Any, target_log_prob_fn: Any = None, *, temperature: float = 1.0, seed: Any = None
) -> Report:
    """Checks the draws of a run and says plainly whether they can be trusted.

    It looks for entries that are not finite or do not move, for chains that disagree, and for fewer
    than 400 independent draws. Chains disagree if R-hat, the square root of
    `tfp.mcmc.potential_scale_reduction` of half chains, is above 1.01. If a target is given, the
    `configurational_temperature` must be right within a tenth. It shows steps that are too large or
    gradients that are too noisy, which a comparison of chains does not show. In large variables,
    1000 entries are checked.

    Examples:
      >>> import numpy as np, tensorflow as tf, tfp_sgmcmc as sgmcmc
      >>> draws = np.random.default_rng(0).standard_normal([500, 4, 3])
      >>> good = sgmcmc.report({"w": draws}, lambda w: -0.5 * tf.reduce_sum(w**2, axis=-1))
      >>> good.problems
      ()
      >>> print(sgmcmc.report({"w": 0 * draws + [1, 2, 3]}))
      Verdict: do not trust these draws yet.
      - w: 3 entries never move.
      <BLANKLINE>
      variable                  entries   R-hat    draws     time
      w                               3     nan        1      nan
      <BLANKLINE>
      draws: number of independent draws, all chains together
      time: number of results between two independent draws of a chain
      Bias was not checked. Give target_log_prob_fn to check the temperature.

    Args:
      result: the result of `sample` or another object with `to_inference_data`, an
        `arviz.InferenceData`, or a dict of arrays `[draws, chains, event...]`.
      target_log_prob_fn: the kernel's target, for the temperature. Its gradients are taken at 200
        results. The states of an `arviz.InferenceData` are dicts, name -> array.
      temperature: the temperature of the run.
      seed: an integer or two, which names minibatches for the gradients; None takes all examples.

    Raises:
      ValueError: there are no variables, or arrays have too few dimensions or draws.
      TypeError: the result is of another kind.

    References:
      A. Vehtari, A. Gelman, D. Simpson, B. Carpenter and P.-C. Buerkner. Rank-normalization,
      folding, and localization: an improved R-hat for assessing convergence of MCMC. Bayesian
      Analysis, 2021.
    """
    variables = _variables(result)
    broken = [n for n, x in variables.items() if not np.isfinite(x).all()]
    if broken:
        return Report((f"There are NaN or infinite entries in {', '.join(broken)}.",), ())
    problems, rows = [], []
    for name, x in variables.items():
        entries = x.reshape(*x.shape[:2], -1)
        picked = np.linspace(0, entries.shape[-1] - 1, min(entries.shape[-1], _MOST_ENTRIES))
        looked_at = entries[..., np.unique(picked.astype(int))].astype(np.float64)
        still = int(np.sum(np.ptp(looked_at, axis=0).max(axis=0) == 0))
        row = _row(name, entries.shape[-1], looked_at)
        rows.append(row)
        if still:
            problems.append(f"{name}: {still} entries never move.")
        elif not row.rhat <= MOST_RHAT:
            problems.append(
                f"{name}: the chains or their halves disagree. R-hat is {row.rhat:.3f}; it should "
                f"be at most {MOST_RHAT}. Run longer, or from better starts."
            )
        if not still and not row.num_draws >= LEAST_DRAWS:
            problems.append(
                f"{name}: the draws are worth {row.num_draws:.0f} independent draws; there should "
                f"be at least {LEAST_DRAWS}. Run longer."
            )
    found = None
    if target_log_prob_fn is not None:
        found = _temperature(getattr(result, "states", variables), target_log_prob_fn, seed)
        off = abs(found[0] / temperature - 1)
        if off > max(_TEMPERATURE_ERROR, 3 * np.nan_to_num(found[1]) / temperature):
            problems.append(
                f"The states have temperature {found[0]:.2f}, not {temperature}. If the chain is "
                "too hot, steps are too large or gradients too noisy. If it is too cold, it has "
                "not spread yet."
            )
    return Report(tuple(problems), tuple(rows), found)


def _variables(result: Any) -> dict[str, np.ndarray]:
    """Returns arrays `[draws, chains, event...]` by name."""
    if isinstance(result, Mapping):
        found = {str(name): np.asarray(x) for name, x in result.items()}
    else:
        data = result.to_inference_data() if hasattr(result, "to_inference_data") else result
        if not hasattr(data, "posterior"):
            raise TypeError(
                "result must come from `sample`, or be an arviz.InferenceData or a dict of arrays. "
                f"Received: a {type(result).__name__}."
            )
        posterior = data.posterior
        found = {n: np.swapaxes(posterior[n].values, 0, 1) for n in posterior.data_vars}
    if not found:
        raise ValueError("result must have variables. Received: none.")
    for name, x in found.items():
        if x.ndim < 2 or len(x) < 4:
            raise ValueError(
                f"{name} must have shape [draws, chains, event...] with at least 4 draws. "
                f"Received: shape {x.shape}."
            )
    return found


def _row(name: str, num_entries: int, x: np.ndarray) -> Row:
    """Returns the figures of a variable, x of shape `[draws, chains, entries]`."""
    with np.errstate(all="ignore"):
        rhat = np.sqrt(tfp.mcmc.potential_scale_reduction(x, split_chains=True).numpy())
    times = integrated_autocorrelation_time(x, chain_ndims=1)
    worst = int(np.argmax(np.nan_to_num(rhat, nan=np.inf)))
    # Chains that are too short for any window are known to be worth one draw at most.
    draws = np.where(np.isnan(times), 1.0, x.shape[0] * x.shape[1] / times)
    return Row(name, num_entries, rhat[worst], draws.min(), times.max(), x[..., worst])


def _temperature(states: Any, target_log_prob_fn: Any, seed: Any) -> tuple[float, float]:
    """Returns the mean over chains and its standard error, NaN for a single chain."""
    target = as_target(target_log_prob_fn, full_data_expected=True)
    num_draws = len(tf.nest.flatten(states)[0])
    picked = np.unique(np.linspace(0, num_draws - 1, min(num_draws, _MOST_DRAWS)).astype(int))
    states = tf.nest.map_structure(lambda x: tf.convert_to_tensor(np.asarray(x)[picked]), states)
    chain_ndims = len(target.chain_shape(tf.nest.map_structure(lambda x: x[0], states)))
    gradients = gradients_at(target, states, seed)
    found = np.ravel(configurational_temperature(states, gradients, chain_ndims=chain_ndims))
    error = found.std(ddof=1) / np.sqrt(len(found)) if len(found) > 1 else np.nan
    return float(found.mean()), float(error)
