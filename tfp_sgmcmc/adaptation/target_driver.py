"""The automatic run: chooses settings for a target, samples, and checks the draws."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.adaptation import target_arguments
from tfp_sgmcmc.adaptation.draw_checks import DrawCheck, check_draws, flags_of_spacing, whitened
from tfp_sgmcmc.adaptation.fallback import sample_nonquadratic
from tfp_sgmcmc.adaptation.hierarchies.prior_scale import NotNearGaussian
from tfp_sgmcmc.adaptation.kernel_selector import KernelSelector
from tfp_sgmcmc.adaptation.out_of_reach import Place
from tfp_sgmcmc.adaptation.settings import PreparedKernel, SampleCall, settled
from tfp_sgmcmc.adaptation.settings_file import FILE, load, save, saved_jit_compile
from tfp_sgmcmc.internal.nest import State
from tfp_sgmcmc.sampling.loop import start_of
from tfp_sgmcmc.sampling.progress import write_line
from tfp_sgmcmc.sampling.result import Explanation, Flag, SampleResult
from tfp_sgmcmc.sampling.run import run_kernel
from tfp_sgmcmc.storage.directory import RunDirectory
from tfp_sgmcmc.targets import MinibatchLogProb, StreamedLogProb, preflight
from tfp_sgmcmc.targets.base import kept_program
from tfp_sgmcmc.targets.one_example import KeptTargets
from tfp_sgmcmc.targets.validation.changed_functions import forget_if_changed

_MOST_RUNS = 3
_MISFIT = "the proposals of independent draws do not reach all of the posterior"
_MOST_LACKING = 3.0  # independent draws are made again with so many times the steps at most
_SMALLER_STEP = 0.4  # beside the step with which trajectories of NUTS diverged
_MOST_SECONDS = 60.0  # of sampling, for draws that are made again because they are slow


class TargetSettings:
    """Chooses the settings of an automatic run, and others if its draws are wrong.

    Args:
      target: the target that the user gave.
      initial_state: the start that the user gave, or None.
      bijector: for a callable, bijectors to its arguments.
      folder: the directory of the run, which keeps the settings and the pool of a stream; None for
        memory.
      num_results: number of draws of each chain.
      num_chains: number of chains.
      jit_compile: whether XLA compiles the steps; None compiles them where that is faster.
      progress_bar: whether to show the passes over a stream.

    Attributes:
      problem: the target in memory.
      state: the start.
      jit_compile: whether XLA compiles the steps.
      places: parts of the posterior that draws may miss, found so far.
    """

    def __init__(self, call: SampleCall, folder: Path | None):
        target, initial_state, jit_compile = call.target, call.initial_state, call.jit_compile
        self._pool, self._folder, self._exact_log_prob_fn = None, folder, None
        called = "initial_state" if initial_state is not None else "the medians of the prior"
        if isinstance(target, StreamedLogProb):
            self._exact_log_prob_fn = target.log_prob_of_many
            initial_state = target_arguments.single_state(target.of_one_batch, initial_state)
            target, self._pool = target_arguments.pool_of(call, initial_state, folder)
        self.problem = target_arguments.as_problem(target, call.bijector)
        state = target_arguments.single_state(self.problem, initial_state)
        self.state, self._notes = target_arguments.finite_start(self.problem, state, called)
        forget_if_changed(self.problem, self.state)
        if not isinstance(target, MinibatchLogProb):
            KeptTargets.of(target).keep(target, call.bijector, self.problem, self.state)
        self._num_results, self._num_chains = call.num_results, call.num_chains
        self.places = list[Place]()
        before = None if folder is None else saved_jit_compile(folder)
        if before is False or jit_compile is None:  # XLA may have failed
            jit_compile = before
        self.jit_compile, self._lines = target_arguments.choose_jit_compile(
            self.problem, state, jit_compile
        )

    def load(self, seed: tf.Tensor | None) -> PreparedKernel | None:
        """Returns the settings that an earlier process chose for the directory, or None."""
        if self._folder is None:
            return None
        return load(
            self._folder, self.problem, self.state, seed, self._num_chains, self.jit_compile
        )

    def save(self, prepared: PreparedKernel, seed: tf.Tensor) -> None:
        """Writes the settings into the directory, if there is one."""
        if self._folder is not None:
            save(self._folder, prepared, seed, self.problem, self.state, self.jit_compile)

    def choose(self, seed: tf.Tensor, preflight_check: bool) -> PreparedKernel:
        """Returns the kernel to begin with."""
        problem, state = self.problem, self.state
        if preflight_check:  # once for each target
            kept_program(problem, "preflight", state, lambda: preflight(problem, state))
        try:
            prepared = self._select(problem, state, seed)
        except NotNearGaussian as reason:
            prepared = self.start_anew(reason, seed)
        flags, lines = (*self._notes, *prepared.flags), (*self._lines, *prepared.lines)
        if self._pool is not None:
            flags = *(Flag("wrong", text) for text in self._pool.flags), *flags
            lines = *self._pool.lines, *lines
        return dataclasses.replace(prepared, lines=lines, flags=flags)

    def _select(self, problem: MinibatchLogProb, at: State, seed: tf.Tensor) -> PreparedKernel:
        options = self._num_chains, seed, self.jit_compile, self._exact_log_prob_fn
        self._selector = KernelSelector(problem, at, *options)
        try:
            return self._selector(self._num_results)
        finally:
            self.places += self._selector.places

    def start_anew(
        self, reason: NotNearGaussian, seed: tf.Tensor, again: bool = False
    ) -> PreparedKernel:
        """Returns a kernel for a posterior that no mode describes, with flags of all places."""
        options = self._num_results, self._num_chains, seed, self.jit_compile

        def select(other: MinibatchLogProb, at: State) -> PreparedKernel:
            if other is self.problem:  # then places are near a mode that is far lower
                self.places.clear()
            return self._select(other, at, seed)

        prepared = sample_nonquadratic(
            self.problem, self.state, *options, reason, None if again else select
        )
        flags = (place.flag for place in self.places)
        flags = (flag for flag in flags if flag not in prepared.flags)
        return dataclasses.replace(prepared, flags=(*flags, *prepared.flags))

    def settled(
        self, prepared: PreparedKernel, draws_failed: bool, states: Any
    ) -> tuple[Flag, ...]:
        """Returns the flags that hold before a run after its draws were checked.

        Draws of a sampler with a Metropolis test that pass every check settle the doubts, and the
        flags of places where they come often. What is said of such a place is said once.
        """
        flags = settled(prepared.flags, prepared.choices, draws_failed)
        if prepared.is_noisy or draws_failed:
            return flags
        places = {place.flag: place for place in self.places}
        after = {f: places[f].settled(states) for f in flags if f in places}
        told = [places[f].cause[1:-1] for f in after]
        return tuple(
            after.get(f, f) for f in flags if f in after or not any(t in f.cause for t in told)
        )

    def after(
        self, prepared: PreparedKernel, found: DrawCheck, result: SampleResult, seed: tf.Tensor
    ) -> PreparedKernel | None:
        """Returns the kernel to run after flagged draws, or None if nothing else would help.

        Raises:
          NotNearGaussian: HMC with all examples does not work either.
        """
        if is_misfit(prepared, found):
            was_changed = bool(prepared.choices.noncentered)
            better = self.start_anew(NotNearGaussian(_MISFIT), seed, was_changed)
            before = (flag for flag in prepared.flags if flag not in better.flags)
            return dataclasses.replace(better, flags=(*before, *better.flags))
        selector, seconds = self._selector, result.timings.seconds
        better = next_attempt(prepared, selector, self._num_results, found, seconds)
        # Other draws are made from the end of the dropped ones.
        if better is not None and better.gradients is not None:
            ends = whitened(result.final_state, prepared.bijector)
            better = better.with_choices(start=ends)
        return better


def sample_target(
    call: SampleCall, run: RunDirectory | None, checkpoint_seconds: float
) -> SampleResult:
    """Samples a target with settings that it chooses. See `sample` for the arguments."""
    seed = None if call.seed is None else random.as_seed(call.seed)
    settings = TargetSettings(call, None if run is None else run.path)
    prepared = settings.load(seed)
    if prepared is None and run is not None and run.has_run:
        raise ValueError(
            f"directory must be new, or hold a run of a target. Received: {run.path}, which has no "
            f"{FILE}. It holds a run of a kernel, or that file was deleted: put it back to go on."
        )
    seed = random.as_seed(random.fresh_seed()) if seed is None else seed
    choice_seed, run_seed, check_seed = random.split(seed, 3)
    if prepared is None:
        prepared = settings.choose(choice_seed, call.preflight_check)
        prepared = prepared.with_choices(seed=random.integers_of(random.fold_in(run_seed, 0)))
        settings.save(prepared, seed)
    tell(prepared.lines, call.progress_bar)
    goal = min(call.min_ess, 0.5 * call.num_results * call.num_chains)
    for attempt in range(1, _MOST_RUNS + 1):
        choices, loop = prepared.choices, prepared.loop if run is None else None
        result = run_kernel(
            prepared.kernel,
            choices.first_state,
            prepared.plan(call.num_results),
            seed=random.as_seed(choices.seed),
            num_chains=None,
            trace_fn=choices.trace_fn,
            jit_compile=settings.jit_compile,
            progress_bar=call.progress_bar,
            run=run,
            checkpoint_seconds=checkpoint_seconds,
            preflight_check=False,
            view=(prepared.view or prepared.bijector.forward) if loop is None else loop.parameters,
            loop=loop,
            start_fn=start_of if loop is None else loop.start,
        )
        found = check_draws(result, prepared, check_seed, goal, settings.problem)
        if not found.is_wrong or not result.is_complete or attempt == _MOST_RUNS:
            break
        if run is not None:
            found.flags.append(
                Flag(
                    "note",
                    f"The directory {run.path} keeps these draws, so the run was not repeated with "
                    "other settings.",
                    "The same call with more results goes on with the same chain. A call without a "
                    "directory, or with another one, chooses anew and repeats what is wrong.",
                )
            )
            break
        try:
            better = settings.after(prepared, found, result, choice_seed)
        except NotNearGaussian as reason:
            line = f"HMC with all examples was then tried and dropped, because {reason}."
            prepared = dataclasses.replace(prepared, lines=(*prepared.lines, line))
            break
        if better is None:
            break
        dropped = f"{attempt}. draws, with {choices.sampler}, were dropped: {' '.join(found.flags)}"
        better = better.with_choices(seed=random.integers_of(random.fold_in(run_seed, attempt)))
        prepared = dataclasses.replace(better, lines=(*better.lines, dropped))
    draws_failed = any(flag.grade != "note" for flag in found.flags)
    before = settings.settled(prepared, draws_failed, result.states)
    states = tf.nest.map_structure(np.asarray, result.states)
    spacing = flags_of_spacing(states, settings.problem)  # no other kernel mends it
    flags = [*before, *found.flags, *spacing]
    tell_and_warn([found.line], flags, call.progress_bar)
    return dataclasses.replace(
        result,
        seed=random.integers_of(seed),
        bijector=prepared.bijector,
        choices=prepared.with_choices(**found.measured).choices,
        explanation=Explanation((*prepared.lines, found.line)),
        flags=tuple(flags),
        certificate=found.certificate,
    )


def is_misfit(prepared: PreparedKernel, found: DrawCheck) -> bool:
    """Returns whether independent draws failed in a way that a few more steps do not mend.

    Weights of finitely many proposals may miss that the posterior's tails are too heavy for them. A
    chain that comes there stays.
    """
    return prepared.certify is not None and not 1 < found.lacking <= _MOST_LACKING


def next_attempt(
    prepared: PreparedKernel,
    select: KernelSelector,
    num_results: int,
    found: DrawCheck,
    seconds: float,
) -> PreparedKernel | None:
    """Returns the kernel to run after flagged draws, or None if nothing else would help.

    If trajectories of NUTS diverged and nothing else is wrong, its step becomes smaller. If draws
    are too dependent, fewer of the states are kept. Neither is done if it takes over a minute.
    Draws that are wrong although the noise is known to be small are made again with all examples.

    Raises:
      NotNearGaussian: HMC with all examples does not work either.
    """
    if found.only_diverges:
        is_short = seconds / _SMALLER_STEP <= _MOST_SECONDS
        return prepared.with_step_size(_SMALLER_STEP) if is_short else None
    if found.lacking > 1:
        times = min(8, int(found.lacking) + 1)
        if times * seconds > _MOST_SECONDS:
            return None
        stride = times * (prepared.choices.num_steps_between_results + 1)
        # Chains go on from their end, but those of independent draws begin at the center again.
        burn_in = times * prepared.choices.num_burnin_steps if prepared.gradients is None else 0
        return prepared.with_choices(num_burnin_steps=burn_in, num_steps_between_results=stride - 1)
    return select.with_all_examples(num_results) if prepared.is_noisy else None


def tell(lines: Any, progress_bar: bool | None) -> None:
    """Shows lines above the progress bar, unless there is none."""
    if progress_bar is not False:
        for line in lines:
            write_line(str(line))


def tell_and_warn(lines: Sequence[str], flags: Sequence[Flag], progress_bar: bool | None) -> None:
    """Shows what was found of the draws, and warns the caller of `sample` of all but notes."""
    tell([*lines, *flags], progress_bar)
    for flag in flags:
        if flag.grade != "note":
            warnings.warn(flag, stacklevel=5)
