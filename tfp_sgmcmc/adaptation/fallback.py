"""Settings where the quadratic at the mode does not help: NUTS, or NOGIN on large data."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.adaptation.coordinates import standardize
from tfp_sgmcmc.adaptation.hierarchies import centered_hierarchy
from tfp_sgmcmc.adaptation.hierarchies.noncentering import noncentered
from tfp_sgmcmc.adaptation.hierarchies.prior_scale import NotNearGaussian
from tfp_sgmcmc.adaptation.nuts_pilot import MAX_TREE_DEPTH, NUTSPilot, run_nuts_pilot
from tfp_sgmcmc.adaptation.pilot import (
    Gradients,
    dispersed_starts,
    gradients_of,
    seconds_of_second,
)
from tfp_sgmcmc.adaptation.pilot_steps import Affine
from tfp_sgmcmc.adaptation.settings import Choices, PreparedKernel
from tfp_sgmcmc.adaptation.typical_set import TypicalStarts, far_above, typical_starts
from tfp_sgmcmc.diagnostics.vector_functions import (
    value_and_gradient_of_vectors,
    value_and_gradient_of_z,
)
from tfp_sgmcmc.internal.nest import State, call_with_state, entry_names, flatten_events
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.kernels import NOGIN
from tfp_sgmcmc.sampling.result import Flag
from tfp_sgmcmc.targets import MinibatchLogProb, find_center, largest_curvature
from tfp_sgmcmc.targets.base import ExpansionError, value_and_gradient
from tfp_sgmcmc.targets.laplace.quadratic import inverse, root_of_inverse

_LEAPFROG_STEPS = 30  # a guess of the gradients in a step of NUTS
_MOST_SECONDS = 3600.0
_ROWS_PER_CHAIN = 12  # at which priors are compared
Select = Callable[[MinibatchLogProb, State], PreparedKernel]
_BATCH_SIZE, _BURN_IN, _STRIDE = 1000, 2000, 20
_NO_QUADRATIC = "The run does not use a quadratic at the mode, because {}."


class _Run(NamedTuple):
    """The problem and the size of a run, and what its attempts share.

    Attributes:
      problem: the target, without a quadratic at its mode.
      state: a state of one chain.
      reason: why the quadratic does not help.
      select: returns a kernel for another problem or start, or raises the reason why it cannot.
      num_results: number of draws of each chain.
      num_chains: number of chains.
      seeds: of the starts and of the pilot.
      jit_compile: whether XLA compiles the steps.
      names: the name of the part of each entry, which non-centred coordinates lose.
    """

    problem: MinibatchLogProb
    state: State
    reason: NotNearGaussian
    select: Select | None
    num_results: int
    num_chains: int
    seeds: Any
    jit_compile: bool
    names: list[str]


def sample_nonquadratic(
    problem: MinibatchLogProb,
    state: State,
    num_results: int,
    num_chains: int,
    seed: tf.Tensor,
    jit_compile: bool,
    reason: NotNearGaussian,
    select: Select | None = None,
) -> PreparedKernel:
    """Returns NUTS on all data in coordinates that a pilot whitens; on large data NOGIN.

    The result has a flag, because no prediction was made for such a posterior. The effects of a
    centred hierarchy become standard normals first, and `select` then chooses a kernel, if it can.
    It does so too where chains begin or come far above the end of the search for a mode.

    Raises:
      ValueError: the log posterior is not finite where the pilot goes, or its integral is not.
    """
    seeds = random.split(random.fold_in(seed, 1), 2)
    size = num_results, num_chains, seeds, jit_compile
    run = _Run(problem, state, reason, select, *size, entry_names(state))
    hierarchy = centered_hierarchy.hierarchy_around(problem, state)
    prepared = _sampler(run) if hierarchy is None else _noncentered(run, hierarchy)
    flags, most = [*prepared.flags], prepared.most_results or num_results
    if most < num_results:
        flags.append(
            Flag(
                "note",
                f"Only {most} of {num_results} draws are taken, which is as many as an hour "
                "allows.",
                "With a directory, the same call goes on from there.",
            )
        )
    return dataclasses.replace(prepared, flags=tuple(flags), most_results=most)


def _sampler(run: _Run, may_be_centered: bool = True) -> PreparedKernel:
    """Returns NUTS if it takes less than an hour, else NOGIN."""
    problem, state, reason, select = run.problem, run.state, run.reason, run.select
    num_chains, seed, jit_compile = run.num_chains, run.seeds[0].numpy(), run.jit_compile

    def is_slow(seconds: float) -> bool:  # a single example has no minibatches
        total = seconds * _LEAPFROG_STEPS * (run.num_results + 700)
        return problem.num_examples > 1 and total > _MOST_SECONDS

    seconds = _seconds(run)
    if is_slow(seconds) and is_slow(seconds := _compiled_seconds(run)):
        return _nogin(run, seconds)
    starts = typical_starts(problem, state, num_chains, seed, jit_compile)
    if may_be_centered:
        hierarchy = _hierarchy_around_starts(starts, problem, state, seed)
        if hierarchy is not None and hierarchy.entries:
            return _noncentered(run, hierarchy)

    @functools.cache
    def pilot() -> NUTSPilot:
        return run_nuts_pilot(problem, state, starts, run.seeds[1], jit_compile, run.reason)

    if select is not None and reason.center is not None:
        above = functools.partial(far_above, problem, reason.center, jit_compile)
        if higher := above(starts.states) or above(pilot().draws[-num_chains:]):
            start, gain = higher
            try:
                prepared = select(problem, start)
            except NotNearGaussian as error:
                run = run._replace(reason=error)
            else:
                line = (
                    f"The log posterior is higher by {gain:.0f} where chains began or came, so a "
                    "mode was searched for from there."
                )
                return dataclasses.replace(prepared, lines=(line, *prepared.lines))
    return _nuts(pilot(), run, seconds)


def _noncentered(run: _Run, hierarchy: centered_hierarchy.CenteredHierarchy) -> PreparedKernel:
    """Returns a kernel for the non-centred form of a centred hierarchy."""
    other, at = noncentered(run.problem, run.state, hierarchy.entries)
    reason, prepared = run.reason, None
    if hierarchy.is_joint:  # second derivatives of its prior's slopes take longer than NUTS
        reason = NotNearGaussian(
            f"no mode was searched for, as {hierarchy.effects} are correlated", has_shape=False
        )
    elif run.select is not None:
        try:
            prepared = run.select(other, at)
        except NotNearGaussian as error:
            reason = error
    if prepared is None:
        run = run._replace(problem=other, state=at, reason=reason, select=None)
        prepared = _sampler(run, may_be_centered=False)
    note = Flag("note", hierarchy.note)
    prepared = dataclasses.replace(prepared, flags=(note, *prepared.flags))
    return prepared.with_choices(noncentered=hierarchy.entries)


def _hierarchy_around_starts(
    starts: TypicalStarts, problem: MinibatchLogProb, state: State, seed: np.ndarray
) -> centered_hierarchy.CenteredHierarchy | None:
    """Returns the centred hierarchy whose effects are normal, by the prior around `starts`."""
    rng = np.random.default_rng(seed.astype(np.uint32))
    around = np.repeat(starts.states, _ROWS_PER_CHAIN, axis=0)
    around += rng.standard_normal(around.shape) * np.sqrt(starts.variance)
    return centered_hierarchy.find_centered_hierarchy(problem, state, around)


def _nuts(pilot: NUTSPilot, run: _Run, seconds: float) -> PreparedKernel:
    """Returns NUTS on all data, started anew: no use is made of the mode that failed."""
    problem, reason, is_dense = run.problem, run.reason, pilot.covariance.ndim == 2
    hessian = -inverse(pilot.covariance) if is_dense else -1 / pilot.covariance
    root = root_of_inverse(-hessian) if is_dense else np.sqrt(pilot.covariance)
    affine = Affine(flatten_events(pilot.center, 0).numpy(), root)
    target, bijector = standardize(problem, pilot.center, hessian)
    arguments: dict[str, Any] = {"step_size": pilot.step_size, "max_tree_depth": MAX_TREE_DEPTH}
    choices = Choices(
        sampler="NoUTurnSampler",
        arguments=arguments,
        batch_size=None,
        coordinates="covariance" if is_dense else "pilot",
        center=tf.nest.map_structure(lambda x: x.numpy(), pilot.center),
        hessian=hessian,
        start=pilot.start,
        num_burnin_steps=0,
        num_steps_between_results=0,
        milliseconds={"gradient of all data": 1e3 * seconds},
    )
    metric = "covariance" if is_dense else "variances"
    lines = (
        _NO_QUADRATIC.format(reason),
        f"NoUTurnSampler uses all {problem.num_examples} examples. Its chains began at "
        f"{run.num_chains} places near the typical set, and a pilot adapted the step, "
        f"{pilot.step_size:.2g}, and the metric, the {metric} of its draws.",
    )
    hierarchy = centered_hierarchy.find_centered_hierarchy(
        problem, pilot.center, pilot.draws, run.names
    )
    remedy = reason.remedy if hierarchy is None else hierarchy.remedy
    return PreparedKernel(
        tfp.mcmc.NoUTurnSampler(target, **arguments),
        bijector,
        gradients_of(value_and_gradient_of_z(problem, pilot.center, root, run.jit_compile)),
        choices,
        lines,
        (_caveat(reason) if hierarchy is None else _untrusted(hierarchy),),
        most_results=max(1, int(_MOST_SECONDS / pilot.seconds_per_draw)),
        remedy=remedy,
        loop=pilot.chains.steps_of_run(affine),
    )


def _nogin(run: _Run, seconds: float) -> PreparedKernel:
    """Returns NOGIN, which corrects for the noise of minibatches."""
    problem, reason, center = run.problem, run.reason, _center(run.problem, run.state)
    flat = flatten_events(center, 0)
    variance = _variances(problem, center)
    start = dispersed_starts(run.num_chains, flat.shape[0], flat.dtype, run.seeds[0])
    target, bijector = standardize(problem, center, -1 / variance)
    n = min(_BATCH_SIZE, problem.num_examples)
    estimates = target.with_minibatches(n)
    # A step that is stable at the largest curvature.
    curvature = largest_curvature(estimates, tf.zeros_like(start[0]))
    arguments: dict[str, Any] = {
        "step_size": float(0.5 / np.sqrt(max(curvature, 1.0))),
        "friction": 1.0,
    }
    choices = Choices(
        sampler="NOGIN",
        arguments=arguments,
        batch_size=n,
        coordinates="scores",
        center=tf.nest.map_structure(lambda x: x.numpy(), center),
        hessian=-1 / variance,
        start=start.numpy(),
        num_burnin_steps=_BURN_IN,
        num_steps_between_results=_STRIDE - 1,
        milliseconds={"gradient of all data": 1e3 * seconds},
    )
    lines = (
        _NO_QUADRATIC.format(reason),
        f"NOGIN, which corrects for the noise of minibatches, uses {n} of the "
        f"{problem.num_examples} examples, because a step with all of them takes too long.",
    )
    kernel, gradients = NOGIN(estimates, **arguments), Gradients(estimates, run.jit_compile)
    return PreparedKernel(
        kernel, bijector, gradients, choices, lines, (_caveat(reason),), remedy=reason.remedy
    )


def _untrusted(hierarchy: centered_hierarchy.CenteredHierarchy) -> Flag:
    """Returns the flag of effects that stayed centred, whose chains no check of draws can judge."""
    return Flag(
        "wrong",
        f"Chains of effects whose width depends on {hierarchy.scale} miss its small values, and "
        "neither R-hat nor divergences need show it.",
        hierarchy.remedy,
    )


def _caveat(reason: NotNearGaussian) -> Flag:
    """Returns what remains unchecked, in words that fit the reason, with its remedy if known."""
    if reason.remedy is not None:
        cause = f"These draws may miss parts of the posterior, because {reason}."
        return Flag("doubt", cause, reason.remedy)
    if reason.has_shape:
        return Flag(
            "doubt",
            f"These draws may miss parts of the posterior, because {reason}. A funnel or several "
            "modes look like that.",
            "Reparameterise the model, or use ReplicaExchangeSGLD for several modes, and compare.",
        )
    return Flag(
        "doubt",
        "The error of minibatches and steps was not predicted and could not be checked "
        f"beforehand, because {reason}.",
        "See the report, and compare with a second run.",
    )


def _center(problem: MinibatchLogProb, state: State) -> State:
    """Returns a mode, or the start if none is found."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return find_center(problem, state)[0]
        except ExpansionError:  # the reason says so
            return state


def _variances(problem: MinibatchLogProb, center: State) -> np.ndarray:
    """Returns variances by the squares of single examples' scores, `[D]`."""
    scores = problem.estimate(center, tf.constant([0, 0])).scores
    squares = tf.nest.map_structure(lambda s: tf.reduce_mean(s**2, axis=0), scores)
    total = problem.num_examples if problem.num_examples > 1 else 0
    return 1 / (1 + total * flatten_events(squares, 0).numpy().astype(np.float64))


def _seconds(run: _Run) -> float:
    """Returns the time of a gradient of all data at all chains, or more, by a kept program."""
    at = np.tile(flatten_events(run.state, 0).numpy(), [run.num_chains, 1])
    evaluate = value_and_gradient_of_vectors(
        run.problem, run.state, run.jit_compile, in_blocks=False
    )
    with np.errstate(all="ignore"):
        return seconds_of_second(lambda: evaluate(at))


def _compiled_seconds(run: _Run) -> float:
    """Returns the time of a gradient of all data at all chains."""
    chains = tf.nest.map_structure(lambda x: tf.stack([x] * run.num_chains), run.state)
    gradient = traced(
        lambda s: value_and_gradient(lambda s: call_with_state(run.problem, s), s), run.jit_compile
    )
    return seconds_of_second(lambda: gradient(chains)[0].numpy())
