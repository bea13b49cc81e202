"""A report about a run on one page: verdict, convergence diagnostics, worst traces."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.diagnostics import chain_checks
from tfp_sgmcmc.diagnostics.base import refuse_trace
from tfp_sgmcmc.diagnostics.bias import Bias, EntryTests, draws_and_gradients, find_bias
from tfp_sgmcmc.diagnostics.convergence import rhat_text
from tfp_sgmcmc.diagnostics.draw_summary import entry_names, plot_deviations
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal.extras import import_figure
from tfp_sgmcmc.internal.nest import dotted_names
from tfp_sgmcmc.internal.tables import Table, as_html, histogram_picture, number
from tfp_sgmcmc.targets.base import Target, as_target
from tfp_sgmcmc.targets.data import evenly_spread

_MOST_ENTRIES, _MOST_TESTED = 1000, 4000  # of a variable; of a run, against the gradients
_MOST_NUMBERS = 5e7  # in the gradients
_MOST_LINES = 12  # of one kind, so that a report stays one page
_NOT_SEEN = (
    "What no check of draws can see: all chains in one of several modes; data that are wrong or "
    "counted twice."
)


@dataclasses.dataclass(frozen=True, repr=False)
class Report:
    """The result of `report`, which `print` shows.

    Attributes:
      problems: the problems found, in plain words.
      rows: the figures of each variable.
      temperature: the configurational temperature and its standard error, or None.
      notes: small but certain deviations, such as a bias of 9 %, in plain words.
      tested: widths and means of single entries by the gradients, or None.
    """

    problems: tuple[str, ...]
    rows: tuple[chain_checks.Row, ...]
    temperature: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()
    tested: EntryTests | None = None

    def __repr__(self) -> str:
        lines = ["Verdict: no problem was found."]
        if self.problems:
            lines = ["Verdict: do not trust these draws yet.", *(f"- {p}" for p in self.problems)]
        elif self.notes:
            lines = ["Verdict: no problem was found, but read the notes."]
        lines += [f"- note: {n}" for n in self.notes]
        lines += ["", f"{'variable':<24} {'entries':>8} {'R-hat':>7} {'draws':>8} {'time':>8}"]
        for row in self.rows:
            figures = f"{rhat_text(row.rhat):>7} {row.num_draws:>8.0f} {row.time:>8.1f}"
            lines.append(f"{row.name:<24} {row.num_entries:>8} {figures}")
        lines += [
            "",
            "draws: number of independent draws, all chains together",
            "time: number of results between two independent draws of a chain",
        ]
        return "\n".join([*lines, *self._last_lines()])

    def _repr_html_(self) -> str:
        verdict, *_ = str(self).split("\n", 1)
        flags = [("wrong", p) for p in self.problems] + [("note", n) for n in self.notes]
        rows = []
        for row in self.rows:
            figures = rhat_text(row.rhat), number(row.num_draws, 0), number(row.time, 1)
            rows.append((row.name, str(row.num_entries), *figures))
        columns = "variable", "entries", "R-hat", "independent draws", "results between them"
        pictures = [
            histogram_picture(np.asarray(row.trace, np.float64).ravel()) for row in self.rows
        ]
        return as_html(Table(verdict, columns, rows, self._last_lines(), flags, {}, pictures))

    def _last_lines(self) -> list[str]:
        """Returns whether bias was checked, and what no check sees."""
        bias = "Bias was not checked. Give target_log_prob_fn to check it."
        if self.temperature is not None:
            bias = "configurational temperature: {:.4g} +- {:.2g}".format(*self.temperature)
        return [bias, _NOT_SEEN]

    def plot(self, num_entries: int = 30) -> Any:
        """Returns a `matplotlib.figure.Figure`: widths and means of entries by the gradients.

        Entries inside the grey bands are as wide as the target's and have its mean, up to 4 % and
        a tenth of a standard deviation. Red ones are rejected by tests that reject sound draws with
        probability 1e-3, all together.

        Args:
          num_entries: the number of entries to show, those that are farthest off.

        Raises:
          ModuleNotFoundError: matplotlib is not installed.
          ValueError: the report was made without a target.
        """
        checks.integer("num_entries", num_entries, 1)
        if self.tested is None:
            raise ValueError(
                "plot needs a report with gradients: report(result, target_log_prob_fn). Received: "
                "a report without."
            )
        names, width, shift, *wrong = self.tested
        order = np.argsort(-np.maximum(np.abs(width) / 0.04, np.abs(shift) / 0.1))[:num_entries]
        rejected = np.stack(wrong)[:, order]
        return plot_deviations([names[i] for i in order], width[order], shift[order], rejected)

    def figure(self) -> Any:
        """Returns the page, a `matplotlib.figure.Figure`: the text above the three worst traces.

        Raises:
          ModuleNotFoundError: matplotlib is not installed.
        """
        figure_type = import_figure("figure")
        worst = sorted(self.rows, key=lambda r: -np.nan_to_num(r.rhat, nan=np.inf))[:3]
        wrap = textwrap.TextWrapper(90, drop_whitespace=False).wrap
        lines = [part for line in str(self).split("\n") for part in wrap(line) or [""]]
        heights = [0.15 * len(lines), *[2.5] * len(worst)]  # inches
        page = figure_type(figsize=(8.3, sum(heights)), layout="constrained")
        panels = page.subplots(len(heights), 1, height_ratios=heights, squeeze=False)
        top, *panels = panels[:, 0]
        top.axis("off")
        top.text(0, 1, "\n".join(lines), va="top", family="monospace", fontsize=8)
        for axes, row in zip(panels, worst, strict=True):
            axes.plot(row.trace, linewidth=0.5)
            axes.set(title=f"{row.name}: entry with the largest R-hat, {rhat_text(row.rhat)}")
            axes.set(xlabel="result")
        return page


def report(
    result: Any,
    target_log_prob_fn: Any = None,
    *,
    temperature: float = 1.0,
    seed: Any = None,
    kernel: Any = None,
    num_gradients: int = 500,
) -> Report:
    r"""Checks the draws of a run and reports plainly whether they can be trusted.

    It looks for entries that are not finite, chains that do not move or disagree (R-hat above
    1.01), fewer than 400 independent draws, and a start far from the rest. R-hat and effective
    sample sizes are those of Stan and ArviZ: rank-normalised, of bulk and tails. For chains with
    negative correlations, the size is at most S log10(S) for S results, and chains that depend on
    each other, as by shared minibatches, count for as many as they are worth. A note says so.

    If a target is given, every entry is tested by \( E[g_i] = 0 \) and
    \( -E[(\theta_i - a_i) g_i] = T \), where g is the gradient of the log posterior, and so are
    combinations of entries. All tests of a report together reject sound draws with probability
    1e-3. A rejected entry is a problem if its width is off by more than 15 %, or its mean by more
    than a quarter of a standard deviation. Smaller deviations are notes, and deviations below 4 %
    or a tenth are not mentioned.
    The log posterior must be smooth and have unbounded support.

    If the kernel is known, its step is compared with the largest stable one at the first, middle
    and last draws. Its last results are searched for skipped minibatches and NaN log posteriors. In
    large variables, 1000 entries are checked.

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
      Bias was not checked. Give target_log_prob_fn to check it.
      What no check of draws can see: all chains in one of several modes; data that are wrong or
      counted twice.

    Args:
      result: the result of `sample` or another object with `named_draws`, an
        `xarray.DataTree` or `arviz.InferenceData`, or a dict of arrays `[draws, chains, event...]`.
        With a target that has a bijector, a dict has the unconstrained states that kernels move, as
        `tfp.mcmc.sample_chain` returns them. So has ArviZ's data, unless `to_inference_data` of a
        result of `sample` made them. `target.unconstrain` maps parameters to states.
      target_log_prob_fn: the log posterior that was meant: the kernel's target, or a plain
        callable. The states of ArviZ's data are dicts, name -> array, unless `to_inference_data` of
        a result gave names to a tensor or a list.
      temperature: the temperature of the run.
      seed: an integer or two, which names minibatches for the gradients; None takes all examples.
      kernel: the kernel of the run; None takes that of a `SampleResult`.
      num_gradients: the number of results at which gradients are taken, in all chains. Runs with
        many variables take fewer, so that 50 million numbers are kept at most.

    Raises:
      ValueError: there are no variables, or arrays have too few dimensions or draws, or are not
        numbers; an argument is out of range.
      TypeError: the result or another argument is of another kind.

    References:
      A. Vehtari, A. Gelman, D. Simpson, B. Carpenter and P.-C. Buerkner. Rank-normalization,
      folding, and localization: an improved R-hat for assessing convergence of MCMC. Bayesian
      Analysis, 2021.
      O. G. Jepps, G. Ayton and D. J. Evans. Microscopic expressions for the thermodynamic
      temperature. Physical Review E, 2000.
    """
    temperature = checks.positive("temperature", temperature)
    num_gradients = checks.integer("num_gradients", num_gradients, 4)
    target = None
    if target_log_prob_fn is not None:
        target = as_target(target_log_prob_fn, full_data_expected=True)
    posterior = getattr(result, "posterior", None)
    if hasattr(posterior, "named_draws"):
        result = posterior  # of a `SamplerCallback`
    if kernel is not None and not isinstance(kernel, tfp.mcmc.TransitionKernel):
        raise TypeError(
            "kernel must be a tfp.mcmc.TransitionKernel, or None for that of the result. "
            f"Received: {kernel!r}."
        )
    kernel = getattr(result, "kernel", None) if kernel is None else kernel
    variables, states = _variables(result), getattr(result, "states", None)
    bijector = getattr(result, "bijector", None)  # of a run that chose its own coordinates
    moved = states if bijector is None else _inverse(bijector.inverse, states)
    is_mapped = getattr(result, "has_parameters", False)
    if draws_of := getattr(posterior, "attrs", {}).get("draws_of"):
        is_mapped, states = draws_of == "parameters", _without_names(variables)
    if is_mapped and hasattr(target, "unconstrain"):
        states = _inverse(target.unconstrain, states)
    last, trace = (getattr(result, n, None) for n in ("final_kernel_results", "trace"))
    sampled = getattr(kernel, "target_log_prob_fn", target)
    problems = [
        *chain_checks.results_faults(last, trace, sampled),
        *chain_checks.swap_faults(last, sampled),
    ]
    broken = [n for n, x in variables.items() if not np.isfinite(x).all()]
    if broken:
        problems.insert(0, f"There are NaN or infinite entries in {', '.join(broken)}.")
        return Report(tuple(problems), ())
    rows, of_chains = [], []
    for name, x in variables.items():
        entries = x.reshape(*x.shape[:2], -1)
        looked_at = entries[..., evenly_spread(entries.shape[-1], _MOST_ENTRIES)].astype(np.float64)
        rows.append(chain_checks.worst_entries(name, entries.shape[-1], looked_at))
        of_chains += chain_checks.chain_problems(rows[-1], looked_at)
    problems += of_chains[:_MOST_LINES]
    if len(of_chains) > _MOST_LINES:
        problems.append(f"There are {len(of_chains) - _MOST_LINES} more lines of this kind.")
    bias = Bias()
    if target is not None:
        states = _with_chains(variables if states is None else states, target, moved is not None)
        bias = _bias(states, target, rows, temperature, num_gradients, seed)
    problems += bias.problems
    steps = ([], [])
    if kernel is not None and moved is not None:
        is_off = bias.is_hot or bool(bias.problems)
        steps = chain_checks.step_faults(kernel, moved, last, bias.is_hot, is_off)
    found = None if target is None else bias.temperature
    alike = [note for row in rows for note in chain_checks.dependence_note(row)][:_MOST_LINES]
    notes = (*bias.notes, *steps[1], *alike)
    return Report((*steps[0], *problems), tuple(rows), found, notes, bias.tested)


def _bias(
    states: Any, target: Target, rows: list[Any], temperature: float, num_gradients: int, seed: Any
) -> Bias:
    """Tests at most 4000 entries; `rows` have the convergence of all variables."""
    size = sum(int(np.prod(np.shape(x)[1:])) for x in tf.nest.flatten(states))
    num_gradients = min(num_gradients, max(20, int(_MOST_NUMBERS / max(size, 1))))
    x, g = draws_and_gradients(states, target, num_gradients, seed)
    names, most = dotted_names(states, "state"), max(1, _MOST_TESTED // len(x))
    variables, labels = list[str](), list[str]()
    columns = list[tuple[np.ndarray, np.ndarray]]()
    for name, of_x, of_g in zip(names, x, g, strict=True):
        shape, (a, b) = of_x.shape[2:], (y.reshape(*y.shape[:2], -1) for y in (of_x, of_g))
        picked = evenly_spread(a.shape[-1], min(most, _MOST_ENTRIES))
        picked = picked[np.ptp(a[..., picked], axis=(0, 1)) > 0]
        columns.append((a[..., picked], b[..., picked]))
        variables += [name] * len(picked)
        labels += entry_names(name, shape, picked)
    if not labels:
        return Bias()
    of_x, of_g = (np.concatenate(parts, axis=-1) for parts in zip(*columns, strict=True))
    # An autocorrelation time is as large a share of the draws that are tested as of all.
    times, share = [r.time for r in rows if np.isfinite(r.time)], len(of_x) / len(rows[0].trace)
    time, dependence = max(1.0, share * max(times, default=1.0)), max(r.dependence for r in rows)
    return find_bias(of_x, of_g, variables, labels, temperature, time, dependence)


def _with_chains(states: Any, target: Any, is_of_run: bool) -> Any:
    """Returns states with an axis of chains, which those of a run of one chain may lack."""
    first = tf.nest.map_structure(lambda x: tf.convert_to_tensor(np.asarray(x[0])), states)
    if len(target.chain_shape(first)):
        return states
    if is_of_run:
        return tf.nest.map_structure(lambda x: np.asarray(x)[:, np.newaxis], states)
    shapes = tf.nest.map_structure(np.shape, states)
    raise ValueError(
        "result must have draws [draws, chains, event...], where the target finds an axis of "
        f"chains. Received: shapes {shapes}, without. Write x[:, np.newaxis] for one chain."
    )


def _inverse(fn: Any, states: Any) -> Any:
    """Returns a function of states, such as a bijector's inverse, at draws as arrays."""
    return fn(tf.nest.map_structure(lambda x: tf.convert_to_tensor(np.asarray(x)), states))


def _without_names(variables: dict[str, np.ndarray]) -> Any:
    """Returns draws of a tensor or a list as such, which ArviZ's data of a result give names."""
    if [*variables] == ["state"]:
        return variables["state"]
    is_list = [*variables] == [f"state.{i}" for i in range(len(variables))]
    return [*variables.values()] if is_list else variables


def _variables(result: Any) -> dict[str, np.ndarray]:
    """Returns arrays `[draws, chains, event...]` by name."""
    refuse_trace(result)
    if hasattr(result, "named_draws"):
        found = result.named_draws()
    elif hasattr(result, "posterior"):  # an xarray.DataTree is a mapping, too
        posterior = result.posterior
        found = {str(n): np.swapaxes(posterior[n].values, 0, 1) for n in posterior.data_vars}
    elif isinstance(result, Mapping):
        found = {str(name): np.asarray(x) for name, x in result.items()}
    else:
        raise TypeError(
            "result must come from `sample`, or be ArviZ's data or a dict of arrays. "
            f"Received: {checks.a_type(result)}. Give draws the names of the log posterior's "
            'arguments, as in {"w": draws}.'
        )
    if not found:
        raise ValueError("result must have variables. Received: none.")
    for name, x in found.items():
        if x.ndim < 2 or len(x) < 4 or not x.size:
            raise ValueError(
                f"{name} must have shape [draws, chains, event...] with at least 4 draws. "
                f"Received: shape {x.shape}."
            )
        if x.dtype.kind not in "fiu":
            raise ValueError(f"{name} must hold real numbers. Received: dtype {x.dtype}.")
        others = next(iter(found.values())).shape
        if x.shape[:2] != others[:2]:
            raise ValueError(
                f"All variables must have the same numbers of draws and chains. Received: {name} "
                f"with {x.shape[:2]}, and another with {others[:2]}."
            )
    return found
