"""`sample` on a posterior, and NUTS of TensorFlow Probability with its step size adaptation."""

from __future__ import annotations

import collections
import time
import warnings
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.common.chains import compiled
from benchmarks.posteriordb.accuracy import Accuracy, judge
from benchmarks.posteriordb.posterior import Posterior
from datasets.posteriordb import Moments

NUM_CHAINS = 4
BLOCK = 50  # steps of NUTS between two looks at the clock
MOST_R_HAT = 1.01


class Run(NamedTuple):
    """The outcome of a run.

    Attributes:
      sampler: the sampler, or what it raised instead.
      is_trusted: whether nothing said that the draws are wrong.
      flags: what was said of the draws, behind a grade and a colon.
      accuracy: the errors of the draws; None without draws.
      seconds: processor seconds of the whole call.
    """

    sampler: str
    is_trusted: bool
    flags: tuple[str, ...]
    accuracy: Accuracy | None
    seconds: float

    @property
    def is_right(self) -> bool:
        return self.accuracy is not None and self.accuracy.is_right

    @property
    def grades(self) -> str:
        """The grades of the flags and how often each occurs, as in "2 note, 1 wrong"."""
        counts = collections.Counter(flag.split(":")[0] for flag in self.flags)
        return ", ".join(f"{count} {grade}" for grade, count in counts.items())

    @property
    def verdict(self) -> str:
        """Whether it is trusted and right, in a few words."""
        trusted = "trusted" if self.is_trusted else "not trusted"
        if self.accuracy is None:
            return "no draws"
        return f"{trusted}, {'right' if self.is_right else 'WRONG'}"


def automatic(
    posterior: Posterior, reference: Moments, dtype: str, start: Any, num_results: int, seed: int
) -> Run:
    """Runs `sample(target, initial_state, num_results)`."""
    begin = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target = posterior.target(dtype)
            result = sgmcmc.sample(
                target, start, num_results, num_chains=NUM_CHAINS, seed=seed, progress_bar=False
            )
    except Exception as error:  # an error is a result, too
        text = " ".join(str(error).split())
        flag = f"error: {type(error).__name__}: {text}"
        return Run("raised", False, (flag,), None, time.process_time() - begin)
    seconds = time.process_time() - begin
    draws = posterior.columns(result.states, reference.names)
    flags = tuple(f"{flag.grade}: {flag}" for flag in result.flags)
    accuracy = judge(draws, reference)
    return Run(result.choices.sampler, bool(result.is_trusted), flags, accuracy, seconds)


def nuts(
    posterior: Posterior,
    reference: Moments,
    dtype: str,
    start: Any,
    num_results: int,
    seed: int,
    most_seconds: float,
) -> Run:
    """Runs NUTS for `num_results` steps of adaptation and as many draws of each chain.

    A run that takes longer than `most_seconds` of processor time has no draws.
    """
    begin = time.process_time()
    target = posterior.target(dtype)
    names = [*start]
    num_blocks = -(-num_results // BLOCK)
    sampler = tfp.mcmc.NoUTurnSampler(
        lambda *parts: target(**dict(zip(names, parts, strict=True))), tf.constant(0.1, dtype)
    )
    kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(
        sampler, int(0.8 * num_blocks * BLOCK), target_accept_prob=tf.constant(0.8, dtype)
    )
    run = compiled(kernel, BLOCK)
    state = [start[name] for name in names]
    try:
        results, kept = kernel.bootstrap_results(state), []
        for i in range(2 * num_blocks):
            last = run(state, results, tf.constant([seed, i]))
            state, results = [x[-1] for x in last.all_states], last.final_kernel_results
            if i >= num_blocks:
                kept.append([x.numpy() for x in last.all_states])
            if time.process_time() - begin > most_seconds:
                flag = f"wrong: stopped after {i + 1} of {2 * num_blocks} blocks of {BLOCK} steps"
                return Run("stopped", False, (flag,), None, time.process_time() - begin)
    except Exception as error:  # an error is a result, too
        flag = f"error: {type(error).__name__}: {' '.join(str(error).split())}"
        return Run("raised", False, (flag,), None, time.process_time() - begin)
    seconds = time.process_time() - begin
    parts = [np.concatenate(part) for part in zip(*kept, strict=True)]
    z = np.concatenate([np.reshape(x, [*x.shape[:2], -1]) for x in parts], axis=-1)
    r_hat = np.max(tfp.mcmc.potential_scale_reduction(z, split_chains=True))
    flags = () if r_hat < MOST_R_HAT else (f"wrong: R-hat is {r_hat:.3f}",)
    states = target.constrain(dict(zip(names, map(tf.constant, parts), strict=True)))
    draws = posterior.columns(states, reference.names)
    return Run("NoUTurnSampler", not flags, flags, judge(draws, reference), seconds)
