"""The automatic run of a problem, and what it promises."""

from __future__ import annotations

import time
import warnings
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.no_knobs.accuracy import Accuracy, effective, judge
from benchmarks.no_knobs.by_hand import Timed
from benchmarks.no_knobs.problems import Problem
from benchmarks.no_knobs.references import Reference
from tfp_sgmcmc.internal.nest import flatten_events


class Automatic(NamedTuple):
    """The outcome of `sample(target, initial_state, num_results)`.

    Attributes:
      sampler: what it chose, with all arguments.
      took: the same in short.
      flags: what it does not promise, or the error that it raised.
      accuracy: the errors of its draws; None if it raised.
      effective: effective samples of the median parameter.
      seconds: of the whole call, with compilation, choice and pilot.
      sampling: seconds of the steps that led to the draws.
      milliseconds: processor time for an effective sample with what it chose, run again and timed
        as the settings by hand; NaN if that cannot be done.
    """

    sampler: str
    took: str
    flags: tuple[str, ...]
    accuracy: Accuracy | None
    effective: float
    seconds: float
    sampling: float
    milliseconds: float

    @property
    def fails(self) -> bool:
        """Whether it is wrong without a flag, or broke down with an error that is not its own."""
        is_wrong = self.accuracy is not None and not self.accuracy.is_good
        return self.sampler == "crashed" or (is_wrong and not self.flags)


def run(
    problem: Problem, reference: Reference, num_results: int, seed: int, seconds: float
) -> Automatic:
    """Runs and judges it; `seconds` is how long its settings are timed again, 0 for not at all."""
    target = problem.target()
    begin = time.perf_counter()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            result = sgmcmc.sample(
                target, problem.state(), num_results, seed=seed, progress_bar=False
            )
    except Exception as error:
        whole = time.perf_counter() - begin
        refusal = f"{type(error).__name__}: {error}"
        is_told = isinstance(error, ValueError | sgmcmc.NonFiniteChainError)
        how = "refused" if is_told else "crashed"
        return Automatic(how, how, (refusal,), None, np.nan, whole, np.nan, np.nan)
    whole = time.perf_counter() - begin
    warned = (str(w.message) for w in caught if issubclass(w.category, UserWarning))
    flags = (*result.flags, *warned)
    states = tf.nest.map_structure(tf.convert_to_tensor, result.states)
    draws = np.asarray(flatten_events(target.unconstrain(states), 2), np.float64)
    return Automatic(
        describe(result.choices),
        short(result.choices),
        tuple(dict.fromkeys(flags)),
        judge(draws, reference),
        effective(draws),
        whole,
        result.timings.seconds,
        again(result, seconds) if seconds else np.nan,
    )


def describe(choices: Any) -> str:
    """Returns sampler, minibatch and step in a few words."""
    written = {k: np.array2string(np.array(v), precision=3) for k, v in choices.arguments.items()}
    given = ", ".join(f"{k} = {v}" for k, v in written.items())
    size = "" if choices.batch_size is None else f", n = {choices.batch_size}"
    return f"{choices.sampler}{size}, {given}"


def short(choices: Any) -> str:
    """Returns n and h for control variates, and the name of another sampler."""
    if choices.sampler != "UnderdampedLangevin":
        return choices.sampler.replace("HamiltonianMonteCarlo", "HMC")
    return f"n = {choices.batch_size}, h = {choices.arguments['step_size']:.3g}"


def again(result: sgmcmc.SampleResult, seconds: float) -> float:
    """Returns milliseconds of an effective sample of the chosen kernel, from the chosen start."""
    stride = result.choices.num_steps_between_results + 1
    timed = Timed(result.kernel, result.choices.first_state, stride, seconds)
    return timed()[0]
