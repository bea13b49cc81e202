"""The automatic run: center, whitening, noise, costs, pilot, draws, checks."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.sampling.automatic.choose import Choice
from tfp_sgmcmc.sampling.automatic.fallbacks import fall_back
from tfp_sgmcmc.sampling.automatic.figures import Convergence, Fit, convergence, fit
from tfp_sgmcmc.sampling.automatic.noise import Excess, excess_of, guarded_share
from tfp_sgmcmc.sampling.automatic.prepared import Prepared
from tfp_sgmcmc.sampling.automatic.problem import as_problem, single_state
from tfp_sgmcmc.sampling.automatic.reasons import NotQuadratic
from tfp_sgmcmc.sampling.automatic.saved import load, save
from tfp_sgmcmc.sampling.automatic.selection import MOST_WORST
from tfp_sgmcmc.sampling.result import SampleResult
from tfp_sgmcmc.sampling.run import run_kernel
from tfp_sgmcmc.state import flatten_events
from tfp_sgmcmc.storage.directory import RunDirectory
from tfp_sgmcmc.targets import preflight

_MOST_TESTED = 500  # results at which gradients are taken
_LEAST_RESULTS = 50
_MOST_SECONDS = 60.0  # of sampling, for draws that are made again because they are slow
_MOST_RUNS = 3
# What is not told apart from sound draws: relative variance, and standard deviations.
_NOTED_EXCESS, _NOTED_SHIFT = 0.04, 0.05


def sample_target(
    target: Any,
    initial_state: Any,
    num_results: int,
    *,
    seed: tf.Tensor | None,
    num_chains: int,
    min_ess: int,
    jit_compile: bool,
    progress_bar: bool | None,
    run: RunDirectory | None,
    checkpoint_seconds: float,
    preflight_check: bool,
) -> SampleResult:
    """Samples a target with settings that are chosen for it. Arguments are those of `sample`."""
    problem = as_problem(target)
    state = single_state(problem, initial_state)
    prepared = None if run is None else load(run.path, problem, state, seed, jit_compile)
    if prepared is None and run is not None and run.has_run:
        raise ValueError(
            f"directory must be new, or hold a run of a target. Received: {run.path}, which holds "
            "a run of a kernel."
        )
    seed = random.as_seed(random.fresh_seed()) if seed is None else seed
    choice_seed, run_seed, check_seed = random.split(seed, 3)
    choose = Choice(problem, state, num_chains, choice_seed, jit_compile)
    if prepared is None:
        if preflight_check:
            preflight(problem, state)
        try:
            prepared = choose(num_results)
        except NotQuadratic as reason:
            options = num_results, num_chains, choice_seed, jit_compile
            prepared = fall_back(problem, state, *options, reason)
        prepared = prepared.with_choices(seed=_integers(random.fold_in(run_seed, 0)))
        if run is not None:
            save(run.path, prepared, seed)
    _show(prepared.lines, progress_bar)
    goal = min(min_ess, 0.5 * num_results * num_chains)
    for attempt in range(1, _MOST_RUNS + 1):
        choices = prepared.choices
        result = run_kernel(
            prepared.kernel,
            tf.constant(choices.start),
            prepared.plan(num_results),
            seed=random.as_seed(choices.seed),
            num_chains=None,
            trace_fn=None,
            jit_compile=jit_compile,
            progress_bar=progress_bar,
            run=run,
            checkpoint_seconds=checkpoint_seconds,
            preflight_check=False,
            view=prepared.bijector.forward,
        )
        found = _judge(result, prepared, check_seed, goal)
        if not found.flags or not result.is_complete or attempt == _MOST_RUNS:
            break
        better, why = _better(prepared, choose, num_results, found, result.timings.seconds, run)
        if better is None:
            found.flags.extend(why)
            break
        # All draws are dropped, and others are made from their end.
        prepared = better.with_choices(
            start=_coordinates(result.final_state, prepared.bijector),
            seed=_integers(random.fold_in(run_seed, attempt)),
        )
    prepared, last = prepared.with_choices(**found.along), found.line
    flags = found.flags
    flags = [*prepared.flags, *flags]
    _show([last, *flags], progress_bar)
    for flag in flags:
        warnings.warn(flag, stacklevel=3)
    lines = (*prepared.lines, last)
    return dataclasses.replace(
        result,
        bijector=prepared.bijector,
        choices=prepared.choices,
        explanation=lines,
        flags=tuple(flags),
    )


class _Verdict(NamedTuple):
    """What the checks of the draws found.

    Attributes:
      flags: what is wrong, in plain words.
      line: how good the draws are.
      lacking: the goal over the effective sample size.
      along: figures of the run for `Choices`.
    """

    flags: list[str]
    line: str
    lacking: float
    along: dict[str, Any]


def _judge(result: SampleResult, prepared: Prepared, seed: tf.Tensor, goal: float) -> _Verdict:
    if result.num_results < _LEAST_RESULTS:
        flag = f"Fewer than {_LEAST_RESULTS} draws of a chain cannot be checked. Ask for more."
        line = f"{result.num_results} draws of each chain were taken."
        return _Verdict([flag], line, 0.0, {})
    found, fits, z = _figures(result, prepared, seed)
    line = (
        f"The draws of all chains are worth {found.ess:.0f} independent ones for the worst "
        f"parameter, R-hat is {found.rhat:.3f}, and their gradients say that the variance is "
        f"{fits.temperature:.3f} +- {fits.error:.3f} of the posterior's."
    )
    flags, along = _flags(found, fits, goal), {}
    if prepared.noise is not None:
        c = prepared.choices
        share, covariance = guarded_share(z), prepared.noise.at(z)
        excess = excess_of(covariance, c.arguments["step_size"], c.batch_size or 1)
        along = {"guarded_share": share, "run_excess": excess}
        line += (
            f" The noise at these draws makes variances {100 * excess.mean:.2g} % too large on "
            "average before the temperature, and the control variates were held back at "
            f"{100 * share:.2g} % of them."
        )
        flags += _flags_of_noise(excess, c.arguments["temperature"])
    return _Verdict(flags, line, goal / found.ess, along)


def _flags_of_noise(excess: Excess, temperature: float) -> list[str]:
    left = excess.mean + temperature - 1
    if abs(left) < _NOTED_EXCESS and excess.worst < 2 * MOST_WORST:
        return []
    return [
        f"The noise of minibatches grew along the run: it makes variances {100 * left:.2g} % too "
        f"large on average, and {100 * excess.worst:.2g} % in the worst direction."
    ]


def _better(
    prepared: Prepared,
    choose: Choice,
    num_results: int,
    found: _Verdict,
    seconds: float,
    run: RunDirectory | None,
) -> tuple[Prepared | None, list[str]]:
    """Returns what to run after draws that were flagged, or None and why there is nothing.

    Draws that are slow are kept more seldom, if that takes a minute at most. Draws that are wrong
    although the noise is known to be small are made again with all examples.
    """
    if run is not None:
        return None, [
            f"The directory {run.path} keeps these draws, so the run was not repeated with other "
            "settings. The same call with more results goes on with the same chain. A call without "
            "a directory, or with another one, chooses anew and repeats what is flagged."
        ]
    if found.lacking > 1:
        times = min(8, int(found.lacking) + 1)
        if times * seconds > _MOST_SECONDS:
            return None, []
        stride = times * (prepared.choices.num_steps_between_results + 1)
        return prepared.with_choices(num_burnin_steps=0, num_steps_between_results=stride - 1), []
    if prepared.is_noisy:
        try:
            return choose.with_all_examples(num_results), []
        except NotQuadratic:
            return None, []
    return None, []


def _integers(seed: tf.Tensor) -> tuple[int, int]:
    first, second = seed.numpy().tolist()
    return first, second


def _figures(
    result: SampleResult, prepared: Prepared, seed: tf.Tensor
) -> tuple[Convergence, Fit, np.ndarray]:
    """Returns figures of all draws and of the gradients at some, which are the third, as z."""
    states = tf.nest.map_structure(np.asarray, result.states)
    flat = flatten_events(tf.nest.map_structure(tf.convert_to_tensor, states), 2).numpy()
    most = min(len(flat), _MOST_TESTED if prepared.is_noisy else max(50, len(flat) // 10))
    picked = np.unique(np.linspace(0, len(flat) - 1, most).astype(int))
    z = _coordinates(tf.nest.map_structure(lambda x: x[picked], states), prepared.bijector)
    return convergence(flat), fit(z, prepared.gradients(z, seed)), z


def _coordinates(states: Any, bijector: Any) -> np.ndarray:
    return bijector.inverse(tf.nest.map_structure(tf.convert_to_tensor, states)).numpy()


def _flags(found: Convergence, fits: Fit, goal: float) -> list[str]:
    """Returns what is wrong with the draws, in plain words."""
    flags = []
    if not found.rhat <= found.limit:
        flags.append(
            f"The chains disagree: R-hat is {found.rhat:.3f}. Do not trust these draws. The "
            "posterior may have several modes or a funnel; ReplicaExchangeSGLD moves between modes."
        )
    if not found.ess >= goal:
        flags.append(
            f"The draws are worth {found.ess:.0f} independent ones for the worst parameter, fewer "
            f"than {goal:.0f}. Ask for more results."
        )
    if not abs(fits.excess) <= _NOTED_EXCESS + 3 * fits.error:
        way = "wide" if fits.excess > 0 else "narrow"
        flags.append(
            f"The draws are too {way}: by their gradients, the variance is {fits.temperature:.3f} "
            f"+- {fits.error:.3f} of the posterior's on average."
        )
    if not fits.shift**2 <= _NOTED_SHIFT**2 + 4 * fits.shift_error**2:
        flags.append(
            f"The means are off by about {fits.shift:.2f} standard deviations, by their gradients."
        )
    return flags


def _show(lines: Any, progress_bar: bool | None) -> None:
    if progress_bar is False:
        return
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        return
    for line in lines:
        tqdm.write(line, file=sys.stderr)
