"""Plants slowdowns and biases in every kernel and target, and counts what the suite tells.

    python -m benchmarks.robustness.planted                       # all
    python -m benchmarks.robustness.planted --reruns 20           # and an unchanged tree again
    python -m benchmarks.robustness.planted --kept cells.json     # goes on where it was cut off

A bias is told by the exact figures of `benchmarks.suite.exact_laws`, and a slowdown by the seconds
of a step, each by its threshold in `asv.conf.json`. Seconds are those of the processor, the least
of some calls that take turns with calls of the unchanged kernel. Reruns measure the unchanged
figures with other seeds. The script fails if a planted change is not told, or an unchanged figure
is.

A kernel with a Metropolis-Hastings test is right with any gradient, and has no half steps.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from benchmarks.common import command_line, tables
from benchmarks.suite import ENVIRONMENT, thresholds

os.environ.update(ENVIRONMENT)  # before TensorFlow

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import tensorflow_probability as tfp  # noqa: E402

from benchmarks.common.chains import compiled  # noqa: E402
from benchmarks.suite import exact_laws  # noqa: E402
from benchmarks.suite.exact import FLOOR, tracked  # noqa: E402
from tfp_sgmcmc import random  # noqa: E402
from tfp_sgmcmc.kernels import (  # noqa: E402
    ccadl,
    independent_metropolis,
    nogin,
    sghmc,
    sgnht,
    underdamped_langevin,
)

NOISE, SCALE, STALE, HALF = "noise x 1.05", "gradient x 1.02", "stale gradient", "half step dropped"
SLOW, THERMOSTAT = "step x 1.3", "thermostat fed |p|"
NONE = "none"
LIMIT = FLOOR * (1 + thresholds.threshold("exact.Exact.track_exact_error"))
SLOWER = 1 + thresholds.threshold("steps.Steps.time_steps")
EXACT_BY_TEST = ("CorrectedLangevin", "IndependentMetropolis")
WITH_MOMENTA = (ccadl, nogin, sghmc, sgnht, underdamped_langevin)
# Kernels whose step has two half steps of theta; that of the others has a whole one.
TWO_HALVES = ("UnderdampedLangevin", "SGNHT, adodab", "CCAdL", "NOGIN")


class Cell(NamedTuple):
    """A setting with a fault, and the figure: a relative error, or a ratio of seconds."""

    setting: str
    fault: str
    figure: float
    told: bool


def faults_of(name: str) -> tuple[str, ...]:
    """Returns the faults that a setting can have."""
    if "thermostat" in name:
        return (THERMOSTAT,)
    if name in exact_laws.TARGETS:
        return (SCALE, STALE)
    return (NOISE, SLOW) if name in EXACT_BY_TEST else (NOISE, SCALE, STALE, HALF, SLOW)


@contextlib.contextmanager
def planted(name: str, fault: str) -> Generator[Callable[[Any], Any]]:
    """Plants the fault while chains are compiled; gives the change of the target."""
    with contextlib.ExitStack() as stack:

        def patch(module: Any, attribute: str, new: Any) -> None:
            if hasattr(module, attribute):
                stack.enter_context(mock.patch.object(module, attribute, new))

        if fault == NOISE:
            normal_like, defensive = random.normal_like, independent_metropolis.defensive_normal
            patch(random, "normal_like", lambda *a: _times(1.05, normal_like(*a)))
            patch(independent_metropolis, "defensive_normal", lambda *a: 1.05 * defensive(*a))
        if fault == THERMOSTAT:
            for module in WITH_MOMENTA:
                patch(module, "kinetic_temperature", lambda p, *_: tf.reduce_mean(tf.abs(p), -1))
        is_overdamped = not any(name.startswith(k) for k in ("SG", "CC", "NO", "Under")) or (
            name in ("SGLD", "SGFS")
        )
        if fault == HALF and not is_overdamped:
            for module in WITH_MOMENTA:
                if hasattr(module, "drift"):
                    patch(module, "drift", _half(module.drift, name in TWO_HALVES))
        if fault == SCALE or (fault == HALF and is_overdamped):
            factor = 1.02 if fault == SCALE else 0.5
            yield lambda target: with_estimate(target, _scaled(target, factor))
        elif fault == STALE:
            yield stale
        else:
            yield lambda target: target


def _times(factor: float, state: Any) -> Any:
    return tf.nest.map_structure(lambda x: factor * x, state)


def _half(drift: Callable[..., Any], has_two: bool) -> Callable[..., Any]:
    """Returns a drift that leaves out the second half step, or half of the only one."""
    calls = [0]

    def changed(theta: Any, p: Any, mass: Any, h: Any) -> Any:
        calls[0] += 1
        if has_two:
            return theta if calls[0] % 2 == 0 else drift(theta, p, mass, h)
        return drift(theta, p, mass, h / 2)

    return changed


def with_estimate(target: Any, estimate: Callable[..., Any]) -> Any:
    """Returns a copy of the target with another method `estimate`."""
    other = copy.copy(target)
    other.estimate = estimate
    return other


def _scaled(target: Any, factor: float) -> Callable[..., Any]:
    def estimate(*args: Any, **kwargs: Any) -> Any:
        found = target.estimate(*args, **kwargs)
        return found._replace(gradient=_times(factor, found.gradient))

    return estimate


def stale(target: Any) -> Any:
    """Returns a target that estimates at the state of the estimate before."""

    def estimate(
        state: Any, seed: Any, target_state: Any = (), probe: Any = None, with_scores: bool = True
    ) -> Any:
        inner, last = target_state or (target.bootstrap(state), state)
        found = target.estimate(last, seed, inner, probe, with_scores)
        return found._replace(target_state=(found.target_state, tf.convert_to_tensor(state)))

    other = with_estimate(target, estimate)
    other.bootstrap = lambda state: (target.bootstrap(state), tf.convert_to_tensor(state))
    return other


class Slow(tfp.mcmc.TransitionKernel):
    """A kernel that makes two steps in place of one in three of ten steps, or blocks of steps."""

    def __init__(self, inner: Any, block: int = 1):
        self.inner, self._block = inner, block

    @property
    def is_calibrated(self) -> bool:
        return True

    @property
    def parameters(self) -> dict[str, Any]:
        return {}

    def bootstrap_results(self, state: Any) -> Any:
        return self.inner.bootstrap_results(state), tf.zeros([], tf.int32)

    def one_step(self, state: Any, results: Any, seed: Any = None) -> Any:
        own, step = results
        seed = random.as_seed(seed)
        num_steps = tf.where((step // self._block) % 10 < 3, 2, 1)
        _, state, own = tf.while_loop(
            lambda i, *_: i < num_steps,
            lambda i, x, r: (i + 1, *self.inner.one_step(x, r, seed=random.fold_in(seed, i))),
            (tf.zeros([], tf.int32), state, own),
        )
        return state, (own, step + 1)


def ratio_of_seconds(name: str, num_repeats: int) -> float:
    """Returns how many times as long the slowed kernel takes, by the least of some calls each."""
    setting = exact_laws.SETTINGS[name]
    kernel = setting.kernel(setting.target())
    block = kernel.parameters.get("block_size", 1)
    state, seconds = tf.zeros([exact_laws.CHAINS, exact_laws.DIMENSIONS]), [np.inf, np.inf]
    steps = 200 if block == 1 else 10 * block
    kernels = (kernel, Slow(kernel, block))
    runs = [(compiled(k, 1, steps), k.bootstrap_results(state)) for k in kernels]
    for i in range(num_repeats + 1):
        for j, (run, results) in enumerate(runs):
            start = time.process_time()
            run(state, results, tf.constant([0, i])).all_states.numpy()
            if i:  # the first call compiles
                seconds[j] = min(seconds[j], time.process_time() - start)
    return seconds[1] / seconds[0]


def run(
    *,
    settings: tuple[str, ...] = tuple(exact_laws.SETTINGS),
    reruns: int = 0,
    num_repeats: int = 9,
    kept: str = "",
) -> list[Cell]:
    """Measures all settings with all their faults.

    Args:
      settings: names of settings in `benchmarks.suite.exact_laws`.
      reruns: how often the unchanged figures are measured again, with other seeds.
      num_repeats: calls of each kernel, of which the quickest counts.
      kept: a file of the figures so far, which are not measured again.
    """
    path = Path(kept) if kept else None
    known: dict[str, float] = json.loads(path.read_text()) if path and path.exists() else {}

    def cell(name: str, fault: str, key: str, measure: Callable[[], float]) -> Cell:
        if key not in known:
            known[key] = measure()
            print(f"{key}: {known[key]:.4f}", flush=True)
            if path:
                path.write_text(json.dumps(known, indent=1), encoding="utf-8")
        figure = known[key]
        told = figure > SLOWER if fault == SLOW else tracked(figure) > LIMIT
        return Cell(name, fault, figure, told)

    found = []
    for name in settings:
        seed = zlib.crc32(name.encode()) % 10_000
        for fault in faults_of(name):

            def measure(name: str = name, fault: str = fault, seed: int = seed) -> float:
                if fault == SLOW:
                    return ratio_of_seconds(name, num_repeats)
                with planted(name, fault) as wrap:
                    return exact_laws.Measurement(exact_laws.SETTINGS[name], wrap)(seed).error

            found.append(cell(name, fault, f"{name}, {fault}", measure))
        unchanged: list[exact_laws.Measurement] = []
        for i in range(reruns):

            def again(
                i: int = i, name: str = name, seed: int = seed, made: Any = unchanged
            ) -> float:
                if not made:
                    made.append(exact_laws.Measurement(exact_laws.SETTINGS[name]))
                return made[0](10_000 * (i + 1) + seed).error

            found.append(cell(name, NONE, f"{name}, {NONE}, {i}", again))
    return found


def show(found: list[Cell]) -> tables.Table:
    faults = (NOISE, SCALE, STALE, HALF, SLOW, THERMOSTAT)
    cells = {(c.setting, c.fault): c for c in found if c.fault != NONE}
    lines = []
    for name in dict.fromkeys(c.setting for c in found):
        line = [name]
        for fault in faults:
            c = cells.get((name, fault))
            text = "" if c is None else f"{c.figure:.2f}" if fault == SLOW else f"{c.figure:+.1%}"
            line.append(text if c is None or c.told else f"**not told** {text}")
        lines.append(tuple(line))
    missed = [c for c in cells.values() if not c.told]
    reruns = [c for c in found if c.fault == NONE]
    alarms = [c for c in reruns if c.told]
    note = f"{len(cells) - len(missed)} of {len(cells)} planted changes were told."
    if reruns:
        worst = max(abs(c.figure) for c in reruns)
        runs = len(reruns) // len({c.setting for c in reruns})
        note += (
            f" {runs} reruns of {len(reruns) // runs} unchanged figures gave {len(alarms)} alarms; "
            f"the largest error was {worst:.2%}, where {LIMIT:.1%} alarms."
        )
    table = tables.Table(("kernel or target", *faults), lines, note)
    print(table.markdown())
    return table


def main() -> None:
    """Runs the command, and fails if a planted change was not told or an unchanged figure was."""
    cells: list[Cell] = []
    command_line.main(
        __doc__,
        run,
        lambda found: (cells.extend(found), show(found))[1],
        choices={"settings": exact_laws.SETTINGS},
        table="robustness.planted",
    )
    wrong = [f"{c.setting}, {c.fault}" for c in cells if c.told == (c.fault == NONE)]
    if wrong:
        sys.exit(f"wrongly told or missed: {'; '.join(wrong)}")


if __name__ == "__main__":
    main()
