"""The automatic run: center, whitening, noise, costs, pilot, draws, checks."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from typing import Any

import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.adaptation.choose import Choice
from tfp_sgmcmc.adaptation.draw_checks import Verdict, coordinates, judge
from tfp_sgmcmc.adaptation.fallback import fall_back
from tfp_sgmcmc.adaptation.prepared import Prepared
from tfp_sgmcmc.adaptation.reasons import NotQuadratic
from tfp_sgmcmc.adaptation.settings_file import load, save
from tfp_sgmcmc.adaptation.target_arguments import as_problem, single_state
from tfp_sgmcmc.sampling.result import SampleResult
from tfp_sgmcmc.sampling.run import run_kernel
from tfp_sgmcmc.storage.directory import RunDirectory
from tfp_sgmcmc.targets import preflight

_MOST_RUNS = 3
_MOST_SECONDS = 60.0  # of sampling, for draws that are made again because they are slow


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
        found = judge(result, prepared, check_seed, goal)
        if not found.flags or not result.is_complete or attempt == _MOST_RUNS:
            break
        better, why = _better(prepared, choose, num_results, found, result.timings.seconds, run)
        if better is None:
            found.flags.extend(why)
            break
        # All draws are dropped, and others are made from their end.
        prepared = better.with_choices(
            start=coordinates(result.final_state, prepared.bijector),
            seed=_integers(random.fold_in(run_seed, attempt)),
        )
    prepared, last = prepared.with_choices(**found.along), found.line
    flags = found.flags
    flags = [*prepared.flags, *flags]
    _show([last, *flags], progress_bar)
    for flag in flags:
        warnings.warn(flag, stacklevel=4)
    lines = (*prepared.lines, last)
    return dataclasses.replace(
        result,
        bijector=prepared.bijector,
        choices=prepared.choices,
        explanation=lines,
        flags=tuple(flags),
    )


def _better(
    prepared: Prepared,
    choose: Choice,
    num_results: int,
    found: Verdict,
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


def _show(lines: Any, progress_bar: bool | None) -> None:
    if progress_bar is False:
        return
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        return
    for line in lines:
        tqdm.write(line, file=sys.stderr)
