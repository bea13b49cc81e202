"""Independent draws: a proposal fitted to the posterior, whose weights prove that it fits.

Other modes, which the fit would miss, are searched for from places far from the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.adaptation.coordinates import Coordinates, whiten_by_normal
from tfp_sgmcmc.adaptation.out_of_reach import NUM_WIDE, place_beyond
from tfp_sgmcmc.adaptation.pilot import PilotRuns, seconds_of_second
from tfp_sgmcmc.adaptation.prior_scale import NotNearGaussian
from tfp_sgmcmc.adaptation.settings import Choices, PreparedKernel
from tfp_sgmcmc.diagnostics.certificate import (
    Certificate,
    compare,
    num_evaluations,
    weighted_sample_of,
)
from tfp_sgmcmc.diagnostics.vector_functions import (
    block_size,
    log_prob_of_vectors,
    value_and_gradient_of_vectors,
)
from tfp_sgmcmc.diagnostics.weighted_sample import MixtureProposal, Proposal, WeightedSample, weigh
from tfp_sgmcmc.internal.nest import State, flatten_events, unflatten_events
from tfp_sgmcmc.kernels.independent_metropolis import IndependentMetropolis
from tfp_sgmcmc.targets import MinibatchLogProb
from tfp_sgmcmc.targets.laplace.laplace import parameters_bijector
from tfp_sgmcmc.targets.laplace.quadratic import precision_of, root_of_inverse

FAR = 4.0  # distance, in deviations of Laplace's approximation, from which a mode is another one
_DIP = 0.5  # nats below the lower of two modes, on the line between them
_DEPTH = 10.0  # difference of the log posterior from which a mode has hardly any mass
_RADII = (5.0, 15.0)  # of the nearer starts, in deviations of an entry
NUM_STARTS = 16
NUM_GRADIENTS, _FLAT = 100, 0.03  # of a climb at most, and the gradient at which it ends
_SEVERAL = 10  # gradients after which the speed of climbs is looked at

NUM_DRAWS = 2000  # that are weighed
_MOST_ENTRIES = 10_000_000  # N D
_MOST_SECONDS = 40.0  # HMC takes longer
_MANY_ENTRIES, _MOST_OF_MANY = 1_000_000, 20.0  # N D, and seconds: so long do minibatches take
LEAST_EFFICIENCY = 0.2
_MOST_FOR_NUTS = 50_000  # N D; on more data HMC is worth a try
_LOST = 0.1  # nats of efficiency by dimension; where more is lost, HMC's pilot wanders
_BLOCK = 1000  # proposals of all chains that are evaluated at once
_WORTH = 0.6  # independent draws in a kept one, at least
_BURN_IN = 10  # proposals that would be accepted


class OtherMode(NamedTuple):
    """A mode far from the center.

    Attributes:
      distance: its distance from the center, in deviations of Laplace's approximation there.
      log_prob: its log posterior minus the log posterior at the center.
      z: where it is.
      log_mass: the logarithm of its mass over that of the mode at the center, by Laplace's
        approximations; 0 if that is not known.
      factor: a Cholesky factor of the covariance of z by Laplace's approximation there, `[D, D]`;
        None if that is not known.
    """

    distance: float
    log_prob: float
    z: np.ndarray
    log_mass: float = 0.0
    factor: np.ndarray | None = None


class Climbs(NamedTuple):
    """Ends of climbs; the first is the mode at the center, z = 0.

    Attributes:
      z: where they are, `[K + 1, D]`.
      log_probs: the log posteriors there, `[K + 1]`.
      is_mode: which of them are modes that are not far lower than the first, `[K + 1]`.
    """

    z: np.ndarray
    log_probs: np.ndarray
    is_mode: np.ndarray


def value_and_gradient_of_z(
    problem: MinibatchLogProb, center: State, factor: np.ndarray, jit_compile: bool
) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Returns the function of z, `[K, D]`, that gives log posteriors and gradients.

    The state is center + L z with the factor L. The compiled function is that of the state, so it
    serves every center.
    """
    flat = flatten_events(center, 0).numpy()
    evaluate = value_and_gradient_of_vectors(problem, center, jit_compile, in_blocks=False)

    def of_z(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, gradient = evaluate(flat + z @ factor.T)
        with np.errstate(all="ignore"):  # climbs turn back where derivatives are not finite
            return value, gradient @ factor

    return of_z


def far_starts(
    dim: int, first: np.ndarray, widths: np.ndarray, seed: Any, number: int = 0
) -> np.ndarray:
    """Returns z of sixteen starts, `[16, D]`.

    In rounds 0, 2, ... four lie near the center. The others are spread like the prior, around the
    center and around the user's start. In rounds 1, 3, ... they lie at distances between, because
    far out all climbs may lead to the widest mode.

    Args:
      dim: D.
      first: z of the user's start, `[D]`.
      widths: linear map from a standard normal to z with the prior's widths, `[D, D]`.
      seed: an integer or two, of the normals.
      number: the number of the round.
    """
    seeds = [*np.atleast_1d(seed), *([number] if number else [])]
    rng = np.random.default_rng(np.array(seeds).astype(np.uint32))
    if number % 2 == 0:
        near = np.repeat(_RADII, 2)[:, np.newaxis] * rng.standard_normal([4, dim])
        wide = rng.standard_normal([NUM_STARTS - 4, dim]) @ widths.T
        wide[::2] += first
        return np.concatenate([near, wide])
    starts = rng.standard_normal([NUM_STARTS, dim]) @ widths.T
    distances = np.linalg.norm(starts, axis=1, keepdims=True)
    share = rng.uniform(size=[NUM_STARTS, 1])  # on a logarithmic scale
    starts *= np.minimum((_RADII[0] / distances) ** share, 1.0)
    starts[::2] += (1 - share[::2]) * first
    return starts


def find_other_mode(
    value_and_gradient_fn: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], ends: Climbs
) -> OtherMode | None:
    """Returns the highest other mode where climbs ended, or None.

    The function returns the log posterior of z and its gradient at `[K + 1, D]`. Where the log
    posterior does not dip on the line to the center, a climb ended in a flat tail, and not at
    another mode.
    """
    z, log_probs, is_mode = ends
    heights, distances = log_probs - log_probs[0], np.linalg.norm(z, axis=-1)
    others = np.flatnonzero(is_mode & (distances > FAR))
    # Between two modes the log posterior is lower. A flat tail has no such dip.
    share = np.linspace(0, 1, len(z))[:, np.newaxis]
    for i in sorted(others, key=lambda i: -heights[i]):
        between, _ = value_and_gradient_fn(share * z[i])
        if not between.min() > min(log_probs[0], log_probs[i]) - _DIP:
            return OtherMode(float(distances[i]), float(heights[i]), z[i])
    return None


def climb(
    value_and_gradient_fn: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], starts: np.ndarray
) -> Climbs:
    """Climbs from `starts`, `[K, D]`, and from the center, which is a mode.

    The posterior of z is near N(0, I) at the center. The steps are those of Barzilai and Borwein,
    halved where the log posterior falls. The climbs end when each has come to a mode, or rises so
    slowly that it would not come near the height of the first.
    """
    at = value_and_gradient_fn
    z = np.concatenate([0 * starts[:1], starts])
    value, gradient = at(z)
    before = value
    with np.errstate(all="ignore"):
        step = np.linalg.norm(z, axis=-1) / np.maximum(np.linalg.norm(gradient, axis=-1), 1e-30)
        step = np.minimum(0.1 * step, 1.0)
        for number in range(NUM_GRADIENTS):
            ended = np.abs(gradient).max(axis=-1) < _FLAT
            if number % _SEVERAL == 0:
                rounds_left = (NUM_GRADIENTS - number) / _SEVERAL
                within_reach = value + rounds_left * (value - before)
                ended |= (number > 0) & (within_reach < value[0] - _DEPTH)
                before = value
            if ended.all():
                break
            moved = z + step[:, np.newaxis] * gradient
            there, slope = at(moved)
            good = (there >= value - 1e-3 * np.abs(value)) & np.isfinite(slope).all(axis=-1)
            offset, change = moved - z, gradient - slope
            curvature = (offset * change).sum(axis=-1)
            wanted = (offset**2).sum(axis=-1) / np.maximum(curvature, 1e-12)
            step = np.where(good, np.clip(wanted, 1e-6, 4 * step + 1e-3), step / 4)
            keep = good[:, np.newaxis]
            z, gradient = np.where(keep, moved, z), np.where(keep, slope, gradient)
            value = np.where(good, there, value)
    heights = value - value[0]
    is_mode = np.isfinite(heights) & (np.abs(gradient).max(axis=-1) < 1.0) & (heights > -_DEPTH)
    return Climbs(z, value, is_mode)


def independent_draws(
    problem: MinibatchLogProb,
    found: Coordinates,
    runs: PilotRuns,
    seed: np.ndarray,
    num_results: int,
    num_chains: int,
    has_other_mode: bool = False,
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
      num_chains: number of chains.
      has_other_mode: whether another mode is known, so that what lies beyond the proposal is not
        looked for.

    Raises:
      NotNearGaussian: no normal distribution is near to the posterior of few data, or one is near
        to a part of it only.
    """
    if found.factor is None:
        return None, found
    if (size := problem.num_examples * runs.dim) > _MOST_ENTRIES:
        runs.dropped.append(
            "Independent draws were not tried, because all examples would be evaluated thousands "
            f"of times: N D is {size:,}, above {_MOST_ENTRIES:,}."
        )
        return None, found
    log_prob_fn, mean, seconds = timed_log_prob(problem, found.center, runs)
    num_evaluated = num_evaluations(runs.dim, NUM_DRAWS) + 2 * NUM_WIDE
    cost = seconds * (num_evaluated + num_results * num_chains)
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
    beyond = problem, found.center, log_prob_fn, sample, rng
    if not has_other_mode and (missed := place_beyond(*beyond)) is not None:
        place, far = missed
        raise NotNearGaussian(str(far), place=place)
    assert isinstance(sample.proposal, Proposal)
    choices = settings_of(problem, found.center, sample, runs, seconds, num_results, num_chains)
    lines = (
        f"A mode of the posterior was found in {found.num_passes} passes over the data, and "
        f"{runs.num_starts} other starts were searched for further modes.",
        f"A normal distribution with heavy tails was fitted to the posterior {how}. Weighed by "
        f"the exact posterior, its draws have {figures}.",
    )
    return with_proposal(problem, choices, lines, sample, runs.num_starts), found


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
    return (
        f"an efficiency of {sample.efficiency:.2f} (at least {LEAST_EFFICIENCY} is needed) and a "
        f"Pareto k of {sample.pareto_k:.2f} (below {sample.most_k} is needed)"
    )


def settings_of(
    problem: MinibatchLogProb,
    like: State,
    sample: WeightedSample,
    runs: PilotRuns,
    seconds: float,
    num_results: int,
    num_chains: int,
) -> Choices:
    """Returns settings of `IndependentMetropolis` with the proposal of weighted draws.

    Args:
      problem: the target.
      like: one unconstrained state.
      sample: the weighted draws.
      runs: gets the milliseconds of a step.
      seconds: what a log posterior takes.
      num_results: number of draws of each chain.
      num_chains: number of chains.
    """
    steps = sample.autocorrelation_times.max()  # for a draw
    stride, burn_in = int(np.ceil(_WORTH * steps)), int(np.ceil(_BURN_IN * steps))
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
    return Choices(
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
    return PreparedKernel(kernel, bijector, None, choices, (*lines, tested), certify=certify)


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
