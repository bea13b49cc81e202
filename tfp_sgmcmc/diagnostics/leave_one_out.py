r"""Leave-one-out cross-validation from draws, by all rows or by a random subset of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tfp_sgmcmc.internal.checks import a_type
from tfp_sgmcmc.internal.extras import pareto_smoothed
from tfp_sgmcmc.internal.tables import Table, decimals_for, number, shown_by

_SMALL = 1e-3  # a range of log ratios whose weights need no smoothing


class Total(NamedTuple):
    """An estimate of a sum over all rows.

    Attributes:
      value: the estimate.
      standard_error: its standard error as a measure of prediction of other data.
      subsampling_error: the part due to the rows that were left out.
    """

    value: float
    standard_error: float
    subsampling_error: float


@dataclasses.dataclass(frozen=True, repr=False)
class LeaveOneOut:
    r"""Expected log predictive density of unseen rows, `elpd`, by leaving out one row at a time.

    \[ \mathrm{elpd} = \sum_{i=1}^N \log p(y_i \mid y_{-i}) \]

    Attributes:
      elpd: the estimate, in nats; higher is better.
      standard_error: its standard error, which includes `subsampling_error`.
      subsampling_error: standard error due to the rows that were not looked at; 0 for all rows.
      p_loo: effective number of parameters, the fall of log predictive densities from rows that
        were seen to rows that were left out.
      num_examples: N.
      rows: the rows that were looked at, `[m]`.
      pointwise: log predictive density of each of them when it is left out, `[m]`.
      surrogate: log likelihood of every row at the posterior mean, `[N]`.
      pareto_k: shape of the importance weights of each row that was looked at, `[m]`.
      most_k: weights with a larger shape are not reliable.
    """

    elpd: float
    standard_error: float
    subsampling_error: float
    p_loo: float
    num_examples: int
    rows: np.ndarray
    pointwise: np.ndarray
    surrogate: np.ndarray
    pareto_k: np.ndarray
    most_k: float

    @property
    def num_unreliable(self) -> int:
        """The number of rows whose Pareto shape is too large."""
        return int(np.sum(~(self.pareto_k <= self.most_k)))

    @property
    def flags(self) -> tuple[str, ...]:
        """Doubts about the estimate, with their cures."""
        if not self.num_unreliable:
            return ()
        return (
            f"{self.num_unreliable} of {len(self.rows)} rows have a Pareto shape above "
            f"{self.most_k:.2f}: leaving them out changes the posterior too much for these draws, "
            "and elpd is likely too high. Look at these rows; a model with heavier tails, or a fit "
            "without each of them, tells.",
        )

    def table(self) -> Table:
        """Returns what `print` shows."""
        decimals = decimals_for(max(self.standard_error, 1e-5))
        cells = [number(x, decimals) for x in (self.elpd, self.standard_error)]
        cells += [f"{self.subsampling_error:.2g}", number(self.p_loo, 1)]
        row = ("", *cells, f"{np.max(self.pareto_k):.2f}")
        looked = f"{len(self.rows):,} of {self.num_examples:,} rows"
        return Table(
            f"Leave-one-out by {looked}",
            ("", "elpd", "SE", "subsampling SE", "p_loo", "largest k"),
            [row],
            flags=[("doubt", flag) for flag in self.flags],
        )

    __repr__, _repr_html_ = shown_by(lambda self: self.table())


def leave_one_out(
    log_likelihood: np.ndarray, rows: np.ndarray, surrogate: np.ndarray, efficiency: float
) -> LeaveOneOut:
    r"""Returns the estimate from log likelihoods at draws, by Pareto-smoothed importance sampling.

    Args:
      log_likelihood: `[draws, m]`, of the rows that are looked at.
      rows: their numbers, `[m]`.
      surrogate: cheap approximations for every row, `[N]`.
      efficiency: effective sample size of the draws, divided by their number.

    References:
      A. Vehtari, A. Gelman and J. Gabry. Practical Bayesian model evaluation using leave-one-out
      cross-validation and WAIC. Statistics and Computing 27, 2017. Equations 10 and 15.
    """
    log_p = np.asarray(log_likelihood, np.float64).T
    log_weights, k = _weights(-log_p, efficiency)
    pointwise = np.logaddexp.reduce(log_weights + log_p, axis=-1)
    seen = np.logaddexp.reduce(log_p, axis=-1) - math.log(log_p.shape[1])
    total, of_all = len(surrogate), difference_estimate(pointwise, surrogate, rows)
    return LeaveOneOut(
        *of_all,
        float(total * np.mean(seen - pointwise)),
        total,
        rows,
        pointwise,
        surrogate,
        k,
        min(1 - 1 / math.log10(log_p.shape[1]), 0.7),
    )


def _weights(log_ratios: np.ndarray, efficiency: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns normalised log weights `[m, draws]`, smoothed where they differ, and shapes `[m]`.

    Ratios that are equal up to rounding have no tail to fit. They keep their weights, with shape 0.
    """
    weights = log_ratios - np.logaddexp.reduce(log_ratios, axis=-1, keepdims=True)
    shapes = np.zeros(len(weights))
    differ = np.ptp(log_ratios, axis=-1) > _SMALL
    if differ.any():
        with np.errstate(divide="ignore", invalid="ignore"):  # tails with many equal ratios
            smoothed, shapes[differ] = pareto_smoothed(log_ratios[differ], efficiency)
        smoothed = np.asarray(smoothed)
        is_fit = np.isfinite(smoothed).all(axis=-1)
        weights[np.flatnonzero(differ)[is_fit]] = smoothed[is_fit]
    return weights, shapes


def difference_estimate(values: np.ndarray, surrogate: np.ndarray, rows: np.ndarray) -> Total:
    r"""Returns the sum of values over all N rows, from m of them and a surrogate for all.

    With \( e_j = \pi_j - \tilde\pi_j \) at rows drawn without replacement, their mean
    \( \bar e \) and their variance \( s_e^2 \),

    \[
    \hat\pi = \sum_{i=1}^N \tilde\pi_i + N \bar e, \qquad
    v = N^2 \left(1 - \frac m N\right) \frac{s_e^2}{m}.
    \]

    Both are unbiased, however good the surrogate is. The variance of the sum as a measure of
    prediction is N times the variance of \( \pi_i \) over rows, estimated without bias by

    \[
    \hat\sigma^2 = \sum_i \tilde\pi_i^2 + \frac N m \sum_j (\pi_j^2 - \tilde\pi_j^2)
      - \frac 1 N (\hat\pi^2 - v).
    \]

    Args:
      values: \( \pi_j \), `[m]`.
      surrogate: \( \tilde\pi_i \), `[N]`.
      rows: the rows j, `[m]`.

    Returns:
      The total, with the standard error \( \sqrt{\hat\sigma^2 + v} \).

    References:
      M. Magnusson, A. Vehtari, J. Jonasson and M. Andersen. Leave-one-out cross-validation for
      Bayesian model comparison in large data. AISTATS 2020.
    """
    total, m = len(surrogate), len(rows)
    shift = surrogate.mean()  # the variance does not depend on it, but its rounding error does
    given, cheap = values - shift, surrogate - shift
    e = given - cheap[rows]
    estimate = cheap.sum() + total * e.mean()
    spread = e.var(ddof=1) if m > 1 else np.nan
    v = total**2 * (1 - m / total) * spread / m if m < total else 0.0
    squares = np.sum(cheap**2) + total / m * np.sum(given**2 - cheap[rows] ** 2)
    variance = max(squares - (estimate**2 - v) / total, 0.0)
    return Total(float(estimate + total * shift), float(np.sqrt(variance + v)), float(np.sqrt(v)))


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison:
    """Models in the order of their elpd, the best first.

    Attributes:
      names: names of the models.
      results: their leave-one-out estimates.
      differences: elpd of each model less that of the best, with standard errors of the difference,
        which are smaller than those of each elpd, because rows are paired.
    """

    names: tuple[str, ...]
    results: tuple[LeaveOneOut, ...]
    differences: tuple[Total, ...]

    def table(self) -> Table:
        """Returns what `print` shows."""
        rows, flags = [], []
        for name, loo, diff in zip(self.names, self.results, self.differences, strict=True):
            decimals = decimals_for(max(loo.standard_error, 1e-5))
            of_diff = decimals_for(diff.standard_error) if diff.standard_error > 0 else decimals
            cells = [number(loo.elpd, decimals), number(loo.standard_error, decimals)]
            cells += [number(x, of_diff) for x in diff[:2]] + [f"{diff.subsampling_error:.2g}"]
            rows.append((name, *cells, number(loo.p_loo, 1), str(loo.num_unreliable)))
            flags += [("doubt", f"{name}: {flag}") for flag in loo.flags]
        first = self.results[0]
        title = f"Models by leave-one-out, {len(first.rows):,} of {first.num_examples:,} rows"
        columns = ("", "elpd", "SE", "difference", "SE of it", "subsampling SE", "p_loo", "bad k")
        notes = ["A difference of less than 4, or of two standard errors, decides nothing."]
        return Table(title, columns, rows, notes, flags)

    __repr__, _repr_html_ = shown_by(lambda self: self.table())


def compare(models: Mapping[str, Any]) -> Comparison:
    """Compares models of the same data by leave-one-out cross-validation.

    Examples:
      >>> import numpy as np, tensorflow as tf, tensorflow_probability as tfp
      >>> import tfp_sgmcmc as sgmcmc
      >>> tfd, rng = tfp.distributions, np.random.default_rng(0)
      >>> x = rng.normal(size=[200]).astype(np.float32)
      >>> y = np.float32(2 * x + rng.normal(size=[200]))
      >>> def sampled(slope):
      ...     target = sgmcmc.MinibatchLogProb(
      ...         tfd.Normal(0., 10.).log_prob,
      ...         lambda t, d: tfd.Normal(t[..., None] * d[0]**slope, 1.).log_prob(d[1]),
      ...         data=(x, y), batch_size=50)
      ...     return sgmcmc.sample(target, tf.zeros([]), 500, seed=0, progress_bar=False)
      >>> found = sgmcmc.compare({"constant": sampled(0), "line": sampled(1)})
      >>> found.names, bool(found.differences[1].value < -100)
      (('line', 'constant'), True)

    Args:
      models: results of `sample` or `sample_chain`, or of their method `loo`, by name. Results take
        `loo()` with its defaults.

    Raises:
      ValueError: there are fewer than two models, or they were evaluated on different rows.
      TypeError: `models` is no dict, or a model is something else.
    """
    if not isinstance(models, Mapping):
        raise TypeError(f"models must be a dict of results, by name. Received: {a_type(models)}.")
    if len(models) < 2:
        raise ValueError(f"models must hold at least two results. Received: {[*models]}.")
    found: dict[str, LeaveOneOut] = {}
    for name, model in models.items():
        found[str(name)] = model.loo() if hasattr(model, "loo") else model
        if not isinstance(found[str(name)], LeaveOneOut):
            raise TypeError(
                f"models must hold results, or what their method loo returns. Received: {name!r}, "
                f"{a_type(model)}."
            )
    names = sorted(found, key=lambda name: -found[name].elpd)
    best = found[names[0]]
    for name in names:
        loo = found[name]
        if loo.num_examples != best.num_examples or not np.array_equal(loo.rows, best.rows):
            raise ValueError(
                "All models must be evaluated on the same rows: use the same data, num_rows and "
                f"seed. Received: other rows for {name!r} than for {names[0]!r}."
            )
    differences = [
        difference_estimate(
            found[name].pointwise - best.pointwise,
            found[name].surrogate - best.surrogate,
            best.rows,
        )
        for name in names
    ]
    return Comparison(tuple(names), tuple(found[n] for n in names), tuple(differences))
