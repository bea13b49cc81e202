"""Whether the mode of a posterior depends on the units of its parameters: it must not.

Each posterior of `python -m benchmarks.posteriordb` is searched for its mode from zeros, in
`float64`, as it is, and with every unconstrained entry in other units: multiplied by powers of ten
from 1e-6 to 1e6 at random, which is the same as dividing a regression's columns by them. The
columns are the number of parameters, whether both searches converged, and the largest distance of
an entry between the two modes, in standard deviations by the curvature there. `first order` is the
control, a search by gradients alone: L-BFGS with 400 iterations. The command fails if a distance is
above 1e-3. A posterior at whose end the Hessian is not negative definite, such as a funnel, has no
mode and no distance.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.kept_results import kept_result
from benchmarks.common.tables import Table
from benchmarks.posteriordb.__main__ import ALL
from benchmarks.posteriordb.posterior import Posterior
from benchmarks.posteriordb.table import picked
from tfp_sgmcmc.internal.nest import call_with_state, flatten_events, unflatten_events
from tfp_sgmcmc.targets.base import ExpansionError

tfb = tfp.bijectors
MOST_DISTANCE, MOST_POWER = 1e-3, 6.0


class Row(NamedTuple):
    """A posterior, and how far the modes in two systems of units are apart."""

    name: str
    dimension: int
    converged: bool
    distance: float
    of_first_order: float


def run(*, posteriors: tuple[str, ...] = ("all",), seed: int = 0, keep: str = "") -> Iterator[Row]:
    """Yields a row for each posterior.

    Args:
      posteriors: names, or beginnings of names; "all" for all.
      seed: seed of the powers of ten.
      keep: a folder that keeps the rows, so that a command that was cut off goes on.
    """
    for name, make in picked(ALL, posteriors).items():
        row = functools.partial(_row, name, make, seed)
        yield kept_result(keep, f"{name}_{seed}", row, lambda found: Row(*found))


def _row(name: str, make: Callable[[], Posterior], seed: int) -> Row:
    return compared(name, make(), np.random.default_rng(seed))


def compared(name: str, posterior: Posterior, rng: np.random.Generator) -> Row:
    start = posterior.start("zeros", "float64")
    powers = {
        name: rng.uniform(-MOST_POWER, MOST_POWER, shape).round()
        for name, shape in posterior.shapes.items()
    }
    found, first_order = [], []
    for sign in (0, 1):
        units = {name: 10.0 ** (sign * power) for name, power in powers.items()}
        target = in_units(posterior, units)
        scale = np.concatenate([np.ravel(units[key]) for key in sorted(units)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            center, report = sgmcmc.find_center(target, start)
        flat = flatten_events(center, 0).numpy()
        try:
            hessian = np.asarray(report.hessian)
        except ExpansionError:
            return Row(name, len(scale), False, np.nan, np.nan)
        found.append((flat * scale, scale / np.sqrt(np.abs(np.diag(hessian))), report.converged))
        first_order.append(by_gradients(target, start) * scale)
    (first, deviation, one), (second, _, other) = found
    distance = float(np.abs((first - second) / deviation).max())
    control = float(np.abs((first_order[0] - first_order[1]) / deviation).max())
    return Row(name, len(first), one and other, distance, control)


def in_units(posterior: Posterior, units: dict[str, np.ndarray]) -> sgmcmc.MinibatchLogProb:
    """Returns the target whose unconstrained parts are divided by `units`."""
    bijectors = {}
    for name in posterior.shapes:
        scale = tfb.Scale(tf.constant(units[name], tf.float64))
        inner = posterior.bijector.get(name)
        bijectors[name] = scale if inner is None else tfb.Chain([inner, scale])
    return posterior.target("float64").with_bijector(bijectors)


def by_gradients(target: Any, start: Any) -> np.ndarray:
    """Returns the end of L-BFGS in the given units."""

    def descent(theta: tf.Tensor) -> Any:
        return tfp.math.value_and_gradient(
            lambda x: -call_with_state(target, unflatten_events(x, start, 0)), theta
        )

    run = tf.function(
        lambda x: tfp.optimizer.lbfgs_minimize(descent, x, max_iterations=400), autograph=False
    )
    return run(flatten_events(start, 0)).position.numpy()


def show(rows: Iterator[Row]) -> Table:
    """Prints the table; exits with an error if a mode depends on units."""
    done = []
    columns = dict.fromkeys(("", "D", "converged", "distance", "first order"), "")

    def lines() -> Iterator[list[str]]:
        for row in rows:
            done.append(row)
            found = row.distance, row.of_first_order
            distances = ["no mode" if np.isnan(x) else f"{x:.1e}" for x in found]
            yield [row.name, str(row.dimension), "yes" if row.converged else "no", *distances]

    table = command_line.print_table(columns, lines())
    failed = [row.name for row in done if row.distance > MOST_DISTANCE]
    if failed:
        raise SystemExit(f"The mode depends on units: {', '.join(failed)}.")
    return table


if __name__ == "__main__":
    command_line.main(__doc__, run, show, table="posteriordb.units")
