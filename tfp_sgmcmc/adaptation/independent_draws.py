"""Independent draws: a proposal fitted to the posterior, whose weights prove that it fits.

Where there are several modes, it is a mixture with a component for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.adaptation.coordinates import Coordinates, whiten_by_normal
from tfp_sgmcmc.adaptation.hierarchies.prior_scale import NotNearGaussian
from tfp_sgmcmc.adaptation.mode_search import LEAST_ARRIVALS, NUM_STARTS, OtherMode
from tfp_sgmcmc.adaptation.out_of_reach import NUM_WIDE, check_reach
from tfp_sgmcmc.adaptation.pilot import PilotRuns, seconds_of_second
from tfp_sgmcmc.adaptation.settings import Choices, PreparedKernel
from tfp_sgmcmc.diagnostics.certificate import (
    MOST_FOR_MOMENTS,
    Certificate,
    compare,
    fit_kl_normal,
    num_evaluations,
    weighted_sample_of,
)
from tfp_sgmcmc.diagnostics.vector_functions import (
    block_size,
    log_prob_of_vectors,
    parameters_of_states,
    value_and_gradient_of_vectors,
)
from tfp_sgmcmc.diagnostics.weighted_sample import (
    FIRST_SHARE,
    MixtureProposal,
    Proposal,
    WeightedSample,
    fit_proposal,
    num_draws_for,
    weigh,
)
from tfp_sgmcmc.internal.nest import State, flatten_events, unflatten_events
from tfp_sgmcmc.kernels.independent_metropolis import IndependentMetropolis
from tfp_sgmcmc.targets import MinibatchLogProb
from tfp_sgmcmc.targets.laplace.laplace import parameters_bijector
from tfp_sgmcmc.targets.laplace.quadratic import lower_factor, precision_of, root_of_inverse

NUM_DRAWS = 2000  # that are weighed
_MOST_ENTRIES = 10_000_000  # N D
_MOST_SECONDS = 40.0  # HMC takes longer
_MOST_OF_MIXTURE, _MOST_PRODUCTS = 20.0, 1.5e10  # seconds, and products of numbers in its fit
_MANY_ENTRIES, _MOST_OF_MANY = 1_000_000, 20.0  # N D, and seconds: so long do minibatches take
LEAST_EFFICIENCY = 0.2
_MOST_FOR_NUTS = 50_000  # N D; on more data HMC is worth a try
_LOST = 0.1  # nats of efficiency by dimension; where more is lost, HMC's pilot wanders
_BLOCK = 1000  # proposals of all chains that are evaluated at once
_WORTH = 0.6  # independent draws in a kept one, at least
_BURN_IN = 10  # proposals that would be accepted


def independent_draws(
    problem: MinibatchLogProb,
    found: Coordinates,
    runs: PilotRuns,
    seed: np.ndarray,
    num_results: int,
    has_other_mode: bool = False,
    exact_fn: Callable[[np.ndarray], np.ndarray] | None = None,
) -> tuple[PreparedKernel | None, Coordinates]:
    """Returns `IndependentMetropolis` with a fitted proposal, and coordinates for other kernels.

    The first is None if that is not cheap, or if the weights of the best proposal are poor. The
    reason is then noted in `runs`. The coordinates are `found`, or those of the normal distribution
    nearest to the posterior, if that was fitted.

    Args:
      problem: the target.
      found: coordinates, whose center and factor are the first proposal.
      runs: notes what was dropped, and times.
      seed: two integers, of the fit.
      num_results: number of draws of each chain.
      has_other_mode: whether another mode is known, so that what lies beyond the proposal is not
        looked for.
      exact_fn: flat states, `[S, D]` -> log posterior, where that of `problem`, a pool of rows, is
        exact near the mode only; or None.

    Raises:
      NotNearGaussian: no normal distribution is near to the posterior of few data, or one is near
        to a part of it only.
    """
    assert found.factor is not None
    if (size := problem.num_examples * runs.dim) > _MOST_ENTRIES:
        runs.dropped.append(
            "Independent draws were not tried, because all examples would be evaluated thousands "
            f"of times: N D is {size:,}, above {_MOST_ENTRIES:,}."
        )
        return None, found
    log_prob_fn, mean, seconds = timed_log_prob(problem, found.center, runs)
    num_evaluated = num_evaluations(runs.dim, NUM_DRAWS) + 2 * NUM_WIDE
    cost = seconds * (num_evaluated + num_results * runs.num_chains)
    if cost > (_MOST_SECONDS if size < _MANY_ENTRIES else _MOST_OF_MANY):
        runs.dropped.append(
            f"Independent draws were dropped, because they would take about {cost:.0f} s."
        )
        return None, found
    rng = np.random.default_rng(seed.astype(np.uint32))
    first = problem, found.center, mean, found.factor
    sample, how, normal = weighted_sample_of(*first, NUM_DRAWS, rng, runs.jit_compile)
    figures = figures_of(sample)
    if not sample.is_reliable or sample.efficiency < LEAST_EFFICIENCY:
        if size <= _MOST_FOR_NUTS and sample.efficiency < np.exp(-_LOST * runs.dim):
            raise NotNearGaussian(
                f"the weights of a normal distribution that was fitted to it have {figures}"
            )
        runs.dropped.append(
            "Independent draws were dropped, because the weights of a normal distribution with "
            f"heavy tails have {figures}."
        )
        if normal is not None and normal.converged:
            found = whiten_by_normal(problem, found, normal.mean, normal.factor)
        return None, found
    beyond = problem, found.center, log_prob_fn, sample, rng, exact_fn
    if not has_other_mode:
        check_reach(*beyond)
    lines = (
        f"A mode of the posterior was found in {found.num_passes} passes over the data, and "
        f"{runs.num_starts} other starts were searched for further modes.",
        f"A normal distribution with heavy tails was fitted to the posterior {how}. Weighed by "
        f"the exact posterior, its draws have {figures}.",
    )
    return propose(problem, found.center, sample, runs, seconds, num_results, lines), found


def mixture_draws(
    problem: MinibatchLogProb,
    found: Coordinates,
    others: Sequence[OtherMode],
    runs: PilotRuns,
    seed: np.ndarray,
    num_results: int,
) -> PreparedKernel | None:
    """Returns `IndependentMetropolis` with a mixture, or None if its weights are poor.

    Args:
      problem: the target.
      found: coordinates at the first mode.
      others: the other modes, in these coordinates.
      runs: notes why the mixture was dropped.
      seed: two integers, of the fit.
      num_results: number of draws of each chain.

    Raises:
      NotNearGaussian: wide draws find a part of the posterior where the mixture hardly comes.
    """
    first = found.factor
    assert first is not None
    log_prob_fn, mean, seconds = timed_log_prob(problem, found.center, runs)
    size = (1 + len(others)) * max(NUM_DRAWS, num_draws_for(runs.dim))
    if seconds * (2 * size + num_results * runs.num_chains) > _MOST_OF_MIXTURE:
        runs.dropped.append("A mixture of all modes was dropped, because it would take long.")
        return None
    rng = np.random.default_rng(seed.astype(np.uint32))
    components = [Proposal(mean, first, FIRST_SHARE)]
    for mode in others:
        factor = lower_factor(first @ mode.factor)
        components.append(Proposal(mean + first @ mode.z, factor, FIRST_SHARE))
    if runs.dim > MOST_FOR_MOMENTS:
        gradient_fn = value_and_gradient_of_vectors(problem, found.center, runs.jit_compile)
        normals = [fit_kl_normal(gradient_fn, q.mean, q.factor, rng) for q in components]
        components = [Proposal(x.mean, x.factor, FIRST_SHARE) for x in normals]
    log_masses = np.array([0.0, *(mode.log_mass for mode in others)])
    masses = np.exp(log_masses - log_masses.max())
    mixture = MixtureProposal.with_masses(tuple(components), masses)
    most_points = _MOST_PRODUCTS / (len(components) * runs.dim**2)
    sample, rounds = fit_proposal(log_prob_fn, mixture, size, rng, most_points)
    how = f"in {rounds} round{'s' * (rounds > 1)} of {size} draws"
    figures = figures_of(sample)
    if not sample.is_reliable or sample.efficiency < LEAST_EFFICIENCY:
        runs.dropped.append(
            f"A mixture with a component for each of {1 + len(others)} modes was dropped, because "
            f"its weights have {figures}."
        )
        return None
    check_reach(problem, found.center, log_prob_fn, sample, rng)
    assert isinstance(sample.proposal, MixtureProposal)
    shares = sample.proposal.shares(sample.draws, sample.weights)
    listed = ", ".join(f"{100 * share:.3g} %" for share in shares)
    lines = (
        f"The posterior has {1 + len(others)} modes, with {listed} of its mass. At least "
        f"{LEAST_ARRIVALS} climbs from dispersed starts ended at each of them.",
        "A mixture with a normal distribution with heavy tails for each mode was fitted to the "
        f"posterior {how}. Weighed by the exact posterior, its draws have {figures}.",
    )
    return propose(problem, found.center, sample, runs, seconds, num_results, lines)


def timed_log_prob(
    problem: MinibatchLogProb, center: State, runs: PilotRuns
) -> tuple[Callable[[np.ndarray], np.ndarray], np.ndarray, float]:
    """Returns log posteriors of flat states, the flat center, and the seconds of one of many."""
    log_prob_fn = log_prob_of_vectors(problem, center, runs.jit_compile)
    mean = flatten_events(center, 0).numpy().astype(np.float64)
    many = np.tile(mean, [block_size(problem), 1])
    return log_prob_fn, mean, seconds_of_second(lambda: log_prob_fn(many)) / len(many)


def figures_of(sample: WeightedSample) -> str:
    """Returns a clause with the efficiency and the shape of the weights, and their bounds."""
    k = f"of {sample.pareto_k:.2f}" if sample.pareto_k >= 0 else "below 0"
    return (
        f"an efficiency of {sample.efficiency:.2f} (at least {LEAST_EFFICIENCY} is needed) and a "
        f"Pareto k {k} (below {sample.most_k} is needed)"
    )


def propose(
    problem: MinibatchLogProb,
    like: State,
    sample: WeightedSample,
    runs: PilotRuns,
    seconds: float,
    num_results: int,
    lines: tuple[str, ...],
) -> PreparedKernel:
    """Returns `IndependentMetropolis` with the proposal of weighted draws.

    Args:
      problem: the target.
      like: one unconstrained state.
      sample: the weighted draws.
      runs: gets the milliseconds of a step.
      seconds: what a log posterior takes.
      num_results: number of draws of each chain.
      lines: what was done and why.
    """
    steps = sample.autocorrelation_times.max()  # for a draw
    stride, burn_in = int(np.ceil(_WORTH * steps)), int(np.ceil(_BURN_IN * steps))
    num_chains = runs.num_chains
    runs.milliseconds["IndependentMetropolis"] = 1e3 * seconds * num_chains
    proposal, arguments = sample.proposal, dict[str, Any]()
    if isinstance(proposal, Proposal):
        center = unflatten_events(proposal.mean, like, 0)
        arguments["tail_share"], hessian = proposal.tail_share, -precision_of(proposal.factor)
    else:
        means = np.stack([q.mean for q in proposal.components])
        center = unflatten_events(means, like, 0)
        arguments["tail_share"] = [q.tail_share for q in proposal.components]
        arguments["weights"] = proposal.weights.tolist()
        hessian = np.stack([-precision_of(q.factor) for q in proposal.components])
    num_steps = burn_in + num_results * stride
    arguments["block_size"] = proposals_at_once(problem, num_chains, num_steps)
    choices = Choices(
        sampler="IndependentMetropolis",
        arguments=arguments,
        batch_size=None,
        coordinates="covariance",
        center=tf.nest.map_structure(lambda x: x.numpy(), center),
        hessian=hessian,
        start=np.zeros([num_chains, runs.dim], runs.dtype.as_numpy_dtype),
        num_burnin_steps=burn_in,
        num_steps_between_results=stride - 1,
        milliseconds=runs.milliseconds,
    )
    return with_proposal(problem, choices, lines, sample, runs.num_starts)


def proposals_at_once(problem: MinibatchLogProb, num_chains: int, num_steps: int) -> int:
    """Returns how many proposals of each chain are evaluated at once, of so many in all.

    Blocks of a large target are equal, so that few proposals of the last one are left over.
    """
    size = max(1, min(_BLOCK // num_chains, num_steps))
    is_small = block_size(problem) >= _BLOCK  # then a smaller block takes as long
    return size if is_small else -(-num_steps // -(-num_steps // size))


def with_proposal(
    problem: MinibatchLogProb,
    choices: Choices,
    lines: tuple[str, ...] = (),
    sample: WeightedSample | None = None,
    num_starts: int = NUM_STARTS,
) -> PreparedKernel:
    """Returns the kernel that `choices` describe.

    The weighted draws `sample` certify its results; None makes them anew when they are needed.
    From at least `num_starts` starts other modes were searched.
    """
    center = tf.nest.map_structure(tf.constant, choices.center)
    kernel = IndependentMetropolis(problem, center, choices.hessian, **choices.arguments)
    like = kernel.first_center
    bijector = parameters_bijector(problem.bijector, like)

    def certify(parameters: Any) -> Certificate:
        weighted = _sample(problem, choices, like) if sample is None else sample
        return compare(parameters, weighted, like, bijector.forward, num_starts)

    stride = choices.num_steps_between_results + 1
    every = "every state" if stride == 1 else f"one state in {stride}"
    tested = (
        "Its draws are proposed to a Metropolis test, which makes them exact and nearly "
        f"independent. IndependentMetropolis keeps {every}."
    )
    lines, view = (*lines, tested), parameters_of_states(problem, like)
    return PreparedKernel(kernel, bijector, None, choices, lines, certify=certify, view=view)


def _sample(problem: MinibatchLogProb, choices: Choices, like: State) -> WeightedSample:
    assert choices.hessian is not None
    rng = np.random.default_rng(np.asarray(choices.seed).astype(np.uint32))
    center = tf.nest.map_structure(tf.constant, choices.center)
    if (weights := choices.arguments.get("weights")) is None:
        mean, factor = flatten_events(center, 0).numpy(), root_of_inverse(-choices.hessian)
        options = mean.astype(np.float64), factor, NUM_DRAWS, rng
        return weighted_sample_of(problem, like, *options)[0]
    means, shares = flatten_events(center, 1).numpy(), np.array(choices.arguments["tail_share"])
    factors = np.stack([root_of_inverse(-x) for x in choices.hessian])
    mixture = MixtureProposal.of(means, factors, shares, np.array(weights))
    return weigh(log_prob_of_vectors(problem, like), mixture, NUM_DRAWS, rng)[0]
