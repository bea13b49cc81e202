"""Thermostats and SGHMC at several steps and frictions, as curves against passes over the data.

The experiments of Shang, Zhu, Leimkuhler & Storkey (NIPS 2015) on large data share this form.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.chains import draws
from benchmarks.reproductions.experiment import subplots
from tfp_sgmcmc.covariance import Diag, Full, RunningMean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# (target, h, A) -> kernel. Sigma averages all minibatches, the current one included, as in the
# paper. SGHMC has no knowledge of the noise.
Make = Callable[[Any, Any, Any], Any]
SAMPLERS: dict[str, Make] = {
    "SGHMC": functools.partial(sgmcmc.SGHMC, covariance=None),
    "SGNHT": sgmcmc.SGNHT,
    "CCAdL": functools.partial(
        sgmcmc.CCAdL, covariance=Diag(RunningMean(), include_current=True), scheme="euler"
    ),
}
WITH_FULL: dict[str, Make] = {
    **SAMPLERS,
    "CCAdL full": functools.partial(
        sgmcmc.CCAdL, covariance=Full(RunningMean(), include_current=True), scheme="euler"
    ),
}


class Curve(NamedTuple):
    """One sampler at one step size and friction."""

    sampler: str
    step_size: float  # h
    friction: float  # A
    passes: np.ndarray  # passes over the data so far, [records]
    values: np.ndarray  # the measure at these passes, [records]; not finite if the chain was not
    rows: np.ndarray  # the measure of each test row at the last record, [rows]

    @property
    def final(self) -> float:
        """The mean over the last quarter of the records."""
        return float(np.mean(self.values[-(len(self.values) // 4 or 1) :]))

    @property
    def overall(self) -> float:
        """The mean over all records, which counts the way down."""
        return float(np.mean(self.values))

    def after(self, share: float) -> float:
        """Returns the mean over the records after this share of the passes."""
        return float(np.mean(self.values[self.passes > share * self.passes[-1] * (1 + 1e-9)]))


def paired(ours: Curve, other: Curve) -> float:
    """Returns by how many standard errors the last measure of `ours` is above the other's.

    The difference is taken row by row, so that rows which are hard for both do not count. It is 0
    where no row differs, and NaN where a chain was not finite.
    """
    gap = ours.rows.astype(np.float64) - other.rows
    if not np.any(gap):
        return 0.0
    return float(gap.mean() / (gap.std(ddof=1) / len(gap) ** 0.5))


def curves(
    target: Any,
    start: Any,
    measure: Callable[[Any], np.ndarray],
    samplers: Mapping[str, Make],
    step_sizes: Sequence[float],
    frictions: Sequence[float],
    num_passes: int,
    seed: int,
) -> list[Curve]:
    """Runs each sampler, with one chain for each pair of a step size and a friction.

    Args:
      target: the log posterior.
      start: parts of the state of one chain, from which all chains start.
      measure: (states of one chain after each pass) -> the measure of each test row at equally
        spaced passes, `[records, rows]`.
      samplers: makers of kernels by name.
      step_sizes: values of h.
      frictions: values of A.
      num_passes: passes over the data, one record after each.
      seed: seed of the chains.
    """
    h, a = (x.ravel().astype(np.float32) for x in np.meshgrid(step_sizes, frictions, indexing="ij"))
    steps_a_pass = math.ceil(target.num_examples / target.batch_size)
    last = num_passes * steps_a_pass * target.batch_size / target.num_examples
    starts = tf.nest.map_structure(lambda x: tf.stack([x] * len(h)), start)
    found = []
    for name, make in samplers.items():
        kernel = make(target, tf.constant(h), tf.constant(a))
        states = draws(kernel, starts, [seed, 0], num_passes, steps_a_pass)
        for i in range(len(h)):
            chain = tf.nest.map_structure(lambda x, i=i: x[:, i], states)
            rows = measure(chain)
            passes = last * np.arange(1, len(rows) + 1) / len(rows)
            found.append(Curve(name, float(h[i]), float(a[i]), passes, rows.mean(axis=1), rows[-1]))
    return found


def pairs(found: Iterable[Curve]) -> dict[tuple[float, float], dict[str, Curve]]:
    """Returns the samplers' curves by name, for each pair (h, A)."""
    result: dict[tuple[float, float], dict[str, Curve]] = {}
    for curve in found:
        result.setdefault((curve.step_size, curve.friction), {})[curve.sampler] = curve
    return result


def show(found: list[Curve], name: str) -> None:
    """Prints the measure called `name`, overall and at the end."""
    columns = {"sampler": "", "h": "g", "A": "g", f"{name}, all passes": ".4f", "at the end": ".4f"}
    command_line.print_table(columns, [(*c[:3], c.overall, c.final) for c in found])


def draw(rows: Mapping[str, list[Curve]], ylabel: str) -> Figure:
    """Draws one row of panels for each entry, with one panel for each of its step sizes."""
    step_sizes = {k: sorted({curve.step_size for curve in found}) for k, found in rows.items()}
    figure, axes = subplots(len(rows), max(map(len, step_sizes.values())))
    styles = ("-", "--", ":", "-.")
    for line, (name, found) in zip(axes, rows.items(), strict=True):
        frictions = sorted({curve.friction for curve in found})
        samplers = list(dict.fromkeys(curve.sampler for curve in found))
        for axis, h in zip(line, step_sizes[name], strict=False):
            for curve in found:
                if curve.step_size == h:
                    axis.plot(
                        curve.passes,
                        curve.values,
                        styles[frictions.index(curve.friction)],
                        color=f"C{samplers.index(curve.sampler)}",
                        label=f"{curve.sampler}, A = {curve.friction:g}",
                    )
            axis.set(
                title=f"{name}, h = {h:g}".lstrip(", "),
                xlabel="passes over the data",
                ylabel=ylabel,
            )
        line[0].legend(fontsize=6)
        for axis in line[len(step_sizes[name]) :]:
            axis.remove()
    return figure
