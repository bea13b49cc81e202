"""The automatic run in shards: one worker chooses the settings, and all workers use them."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tree

from tfp_sgmcmc import random
from tfp_sgmcmc.adaptation.draw_checks import (
    DrawCheck,
    check_draws,
    flags_of_convergence,
    flags_of_spacing,
)
from tfp_sgmcmc.adaptation.pilot import Convergence, limit_of_chains
from tfp_sgmcmc.adaptation.settings import Choices, SampleCall, settled
from tfp_sgmcmc.adaptation.settings_file import rebuild
from tfp_sgmcmc.adaptation.target_arguments import check_target
from tfp_sgmcmc.adaptation.target_driver import TargetSettings, tell, tell_and_warn
from tfp_sgmcmc.internal.checks import a_type
from tfp_sgmcmc.internal.extras import Workers, check_executor, pack_call, submit_call
from tfp_sgmcmc.sampling.result import Explanation, Flag, SampleResult
from tfp_sgmcmc.sampling.result_table import num_chains_of
from tfp_sgmcmc.sampling.shards.shard_driver import open_manifest, sample_shards, shard_size
from tfp_sgmcmc.sampling.shards.shard_worker import NUM_SEGMENTS, CheckedKernel
from tfp_sgmcmc.sampling.shards.sharded_result import ShardedResult
from tfp_sgmcmc.storage.directory import Directory, as_directory
from tfp_sgmcmc.targets import StreamedLogProb, Target


class KernelGivenError(TypeError):
    """The function that makes the target makes a kernel."""


class SharedSettings(NamedTuple):
    """The settings of an automatic run that all workers share.

    Attributes:
      choices: the settings.
      lines: what was done and why.
      flags: what holds before the run.
      most_results: the number of draws that there is time for; None for any number.
    """

    choices: Choices
    lines: tuple[str, ...]
    flags: tuple[Flag, ...]
    most_results: int | None


def sample_target_in_shards(
    call: SampleCall,
    chains_per_shard: int | None,
    executor: Any,
    directory: Directory | str | os.PathLike[str] | None,
) -> ShardedResult:
    """Samples a target in shards with settings that one worker chooses. See `sample`.

    Raises:
      KernelGivenError: `target` is a function that returns a kernel.
    """
    check_executor(executor)
    make_target, jit_compile = _make_target(call.target, executor), call.jit_compile is not False
    size = shard_size(chains_per_shard, call.num_chains, executor)
    place = as_directory(directory)
    folder = None if place is None else Path(place.path).absolute()
    resume = "auto" if place is None else place.resume
    seed = open_manifest(folder, resume, call.seed, call.num_chains, size)
    if call.initial_state is not None:
        call = call._replace(initial_state=tree.map_structure(np.asarray, call.initial_state))
    there = call._replace(target=None, seed=None, jit_compile=jit_compile, progress_bar=False)
    make_settings = functools.partial(_settings, make_target, there, folder, executor is not None)
    if executor is None:
        make_settings = functools.cache(make_settings)
        shared = choose_settings(make_settings, seed, call.preflight_check)
    else:
        packed = pack_call("target", choose_settings, make_settings, seed, call.preflight_check)
        shared = Workers(executor).result_of(submit_call(executor, packed))
        make_settings = functools.partial(make_settings, is_compared=True)
    tell(shared.lines, call.progress_bar)
    choices = shared.choices
    result = sample_shards(
        functools.partial(checked_kernel, make_settings, choices, seed, jit_compile),
        choices.first_state,
        min(call.num_results, shared.most_results or call.num_results),
        chains_per_shard=size,
        executor=executor,
        num_burnin_steps=choices.num_burnin_steps,
        num_steps_between_results=choices.num_steps_between_results,
        trace_fn=choices.trace_fn,
        seed=seed,
        directory=None if place is None else dataclasses.replace(place, resume="auto"),
        progress_bar=call.progress_bar,
        jit_compile=jit_compile,
        preflight_check=False,
    )
    found = _flags_of_shards(result)
    goal = min(call.min_ess, 0.5 * call.num_results * call.num_chains)
    found += _flags_of_all(result, goal)
    draws_failed = any(flag.grade != "note" for flag in found)
    flags = (*settled(shared.flags, choices, draws_failed), *found)
    lines = [f"Shard {i}: {x.line}" for i, x in zip(result.shards, result.checked, strict=True)]
    tell_and_warn(lines, flags, call.progress_bar)
    return dataclasses.replace(
        result, choices=choices, explanation=Explanation((*shared.lines, *lines)), flags=flags
    )


def choose_settings(
    make_settings: Callable[[], TargetSettings], seed: tuple[int, int], preflight_check: bool
) -> SharedSettings:
    """Returns the settings in the directory of a run, or chooses them."""
    settings, given = make_settings(), tf.constant(seed)
    prepared = settings.load(given)
    if prepared is None:
        chosen = settings.choose(random.split(given, 3)[0], preflight_check)
        prepared = settings.load(given)  # of another call that was faster
        if prepared is None:
            prepared = chosen.with_choices(seed=seed)
            settings.save(prepared, given)
    return SharedSettings(prepared.choices, prepared.lines, prepared.flags, prepared.most_results)


def checked_kernel(
    make_settings: Callable[[], TargetSettings],
    choices: Choices,
    seed: tuple[int, int],
    jit_compile: bool,
) -> CheckedKernel:
    """Returns the kernel of chosen settings, whose draws are parameters, and their checks."""
    settings = make_settings()
    prepared = rebuild(settings.problem, settings.state, choices, jit_compile)
    check_seed = random.split(tf.constant(seed), 3)[2]

    def check(result: SampleResult) -> DrawCheck:
        found = check_draws(result, prepared, check_seed, 0.0, settings.problem)
        states = tf.nest.map_structure(np.asarray, result.states)
        found.flags.extend(flags_of_spacing(states, settings.problem))
        return found

    return CheckedKernel(prepared.kernel, prepared.bijector.forward, check)


def _make_target(target: Any, executor: Any) -> Callable[[], Any]:
    """Returns the function that a worker calls for its target."""
    if not isinstance(target, Target) and _takes_nothing(target):
        return target
    if executor is None:
        return lambda: target
    raise TypeError(
        "target must be a function without arguments that returns the target, and loads its data, "
        f"on the worker, if there is an executor. Received: {a_type(target)}."
    )


def _takes_nothing(function: Any) -> bool:
    try:
        signature = inspect.signature(function)
        signature.bind()
    except (TypeError, ValueError):
        return False
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    return inspect.Parameter.VAR_POSITIONAL not in kinds  # which may take a state


def _settings(
    make_target: Callable[[], Any],
    call: SampleCall,
    folder: Path | None,
    is_shared: bool,
    is_compared: bool = False,
) -> TargetSettings:
    """Returns the settings of the target that is made here; `options` are their arguments.

    If `is_compared`, another worker has compared the data of a stream with those of the run.
    """
    target = make_target()
    if isinstance(target, tfp.mcmc.TransitionKernel):
        raise KernelGivenError(
            f"target must return a target. Received: {a_type(target)}, which is for sample_shards."
        )
    check_target(target, call.bijector)
    if isinstance(target, StreamedLogProb) and is_shared and folder is None:
        raise ValueError(
            "directory must be given for a StreamedLogProb and an executor, because it keeps the "
            "pool of rows for all workers. Received: None."
        )
    call = call._replace(target=target)
    if not is_compared or not isinstance(target, StreamedLogProb):
        return TargetSettings(call, folder)
    target._is_compared = True
    try:
        return TargetSettings(call, folder)
    finally:
        target._is_compared = False


def _flags_of_shards(result: ShardedResult) -> list[Flag]:
    """Returns what the checks of single shards found, with the numbers of these shards."""
    shards: dict[Flag, list[int]] = {}
    for number, checked in zip(result.shards, result.checked, strict=True):
        for flag in checked.flags:
            shards.setdefault(flag, []).append(number)

    def of(numbers: list[int]) -> str:
        return f"Shard{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"

    return [Flag(f.grade, f"{of(n)}: {f.cause}", f.remedy) for f, n in shards.items()]


def _flags_of_all(result: ShardedResult, goal: float) -> list[Flag]:
    """Returns what the moments of all chains say, without a second look at the draws."""
    if result.num_results < 2 * NUM_SEGMENTS:
        return []
    with np.errstate(all="ignore"):  # constants have no standard deviation
        leaves = tree.flatten(result.effective_sample_size()), tree.flatten(result.rhat())
    sizes, rhats = (np.concatenate([np.ravel(x) for x in nest]) for nest in leaves)
    varies = np.isfinite(sizes) & np.isfinite(rhats)
    if not varies.any():
        return []
    ess, rhat = sizes[varies].min(), rhats[varies].max()
    chains = num_chains_of(result)
    limit = limit_of_chains(result.num_results, chains, int(varies.sum()), ess)
    return flags_of_convergence(Convergence(float(rhat), float(ess), float(ess), limit), goal)
