"""Parts of a posterior that draws may miss: other modes, and what lies far beyond a proposal."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.adaptation.hierarchies.prior_scale import NotNearGaussian
from tfp_sgmcmc.diagnostics.vector_functions import LogProbs
from tfp_sgmcmc.diagnostics.weighted_sample import Proposal, WeightedSample
from tfp_sgmcmc.internal.nest import State, flatten_events, unflatten_events
from tfp_sgmcmc.internal.xla import by_blocks, traced
from tfp_sgmcmc.sampling.result import Flag
from tfp_sgmcmc.targets import MinibatchLogProb
from tfp_sgmcmc.targets.base import kept_program
from tfp_sgmcmc.targets.laplace.laplace import parameters_bijector

_SCALES = (2.0, 4.0, 8.0, 16.0, 32.0)  # of wide draws, in deviations of the proposal
NUM_WIDE, _MORE = 1000, 5  # draws that are wide along all entries, and as many along one; again
_FEWEST_EFFECTIVE, _MOST_TERMS = 10.0, 1e9  # draws; rows of data times wide draws
_FEW_TERMS = 1e8  # the same, of a second look at a share that seems small
_MOST_LOG = 600.0  # of a weight; a larger one would overflow
_RARE = 30.0  # posterior over proposal; thousands of proposals hardly come where it is larger
_MOST_SHARE = 0.02  # of the posterior where proposals hardly come
_MOST_SPREAD = 0.2  # added to a variance, so that a standard deviation is 10 % too small
_CLEARLY = 4.0  # times smaller, so that a few draws are enough to tell
_LEAST_VISITS = 30  # of a place whose share of the posterior is not known
_FEWEST_VISITS, _NOTED_SHARE = 5, 0.02  # of others, and the error of the share that is accepted
_NOTED_DEVIATION = 0.05  # the relative error of a standard deviation that is accepted
_CHANGE = 0.5  # of a standard normal's log density between a state and that of its parameters
_LEAST_TIME = 0.25  # that draws spend beyond a distance, of what they should


@dataclasses.dataclass(frozen=True)
class Place:
    """A part of a posterior that draws may miss, found before they are made.

    Attributes:
      cause: what was found.
      missed: what to say if draws miss it, and what to do then.
      is_there: whether flat unconstrained states are there, given all draws.
      least_time: the share of draws that must be there.
      least_visits: how often the chains must enter it, all together.
      bijector: from unconstrained states to draws.
      state: a flat unconstrained state that is there, if one is known.
    """

    cause: str
    missed: tuple[str, str]
    is_there: LogProbs
    least_time: float
    least_visits: float
    bijector: Any
    state: np.ndarray | None = None

    @property
    def flag(self) -> Flag:
        """The flag of draws that miss it."""
        return Flag("wrong", f"{self.cause} {self.missed[0]}", self.missed[1])

    def settled(self, states: Any) -> Flag:
        """Returns the flag, or a note if draws `[results, chains, event...]` come there.

        The chains must enter the place often enough, and be there long enough. Where they come too
        rarely, the flag tells how many more results to ask for.
        """
        at = self.bijector.inverse(tf.nest.map_structure(tf.convert_to_tensor, states))
        is_there = self.is_there(flatten_events(at, 2).numpy().astype(np.float64))
        visits, time = np.sum(is_there[1:] & ~is_there[:-1]), is_there.mean()
        if time < self.least_time or visits < min(_FEWEST_VISITS, self.least_visits):
            return self.flag
        if visits < self.least_visits:
            come = f"These chains came there {visits} times, which is too rarely to tell how much"
            times = math.ceil(self.least_visits / visits)
            remedy = f"Ask for {times} times as many results."
            return Flag("wrong", f"{self.cause} {come} is there.", remedy)
        how = f"{100 * time:.0f} % of the draws are there, and all passed every check."
        return Flag("note", f"{self.cause} {how}")


def other_mode(
    problem: MinibatchLogProb, center: State, offset: np.ndarray, distance: float, log_prob: float
) -> Place:
    """Returns the place of another mode than `center`, at `offset` from it, `[D]`.

    Draws are there if they are nearer to it than to the center along the line between both, as a
    linear discriminant by their covariance sees it.

    Args:
      problem: the target.
      center: the unconstrained state of the first mode.
      offset: the way from there to the other one.
      distance: its length in standard deviations of Laplace's approximation.
      log_prob: the log posterior of the other mode minus that of the first.
    """
    first = flatten_events(center, 0).numpy().astype(np.float64)

    def is_there(draws: np.ndarray) -> np.ndarray:
        scale = draws.std(axis=(0, 1))
        scale = np.where(scale > 0, scale, 1.0)  # no unit of a parameter matters
        z, way = (draws - first) / scale, offset / scale
        covariance = np.cov(z.reshape(-1, z.shape[-1]), rowvar=False).reshape(2 * way.shape)
        normal = np.linalg.solve(covariance + 1e-6 * np.eye(len(way)), way)
        return z @ normal > 0.5 * way @ normal

    cause = (
        f"The posterior has several modes: another one was found {distance:.0f} standard "
        f"deviations from the first, with a log posterior that differs by {log_prob:.1f}."
    )
    missed = "These chains stay near one.", "ReplicaExchangeSGLD moves between modes."
    bijector = parameters_bijector(problem.bijector, center)
    return Place(cause, missed, is_there, 0.0, _LEAST_VISITS, bijector)


class FarMass(NamedTuple):
    """A part of a posterior where a proposal hardly comes.

    Attributes:
      share: the share of the posterior that it holds.
      spread: what it adds to the variances of the proposal, on average over all directions.
      distance: half of it is farther from the proposal's mean, in its standard deviations.
      widest: what it adds to the variance along the direction where that is most.
      num_effective: the number of equal draws whose share would be known as well.
      heaviest: the draw with most of it, `[D]`.
    """

    share: float
    spread: float
    distance: float
    widest: float
    num_effective: float
    heaviest: np.ndarray | None = None

    @property
    def is_small(self) -> bool:
        """Whether means and standard deviations without it are good enough.

        Of few draws the widest direction is mostly that of one of them, and no reason.
        """
        widest = self.widest if self.is_known else self.spread
        return self.share <= _MOST_SHARE and max(self.spread, widest) <= _MOST_SPREAD

    @property
    def is_known(self) -> bool:
        """Whether it rests on more than a few draws."""
        return self.num_effective >= _FEWEST_EFFECTIVE

    @property
    def is_clearly_small(self) -> bool:
        """Whether that is so, also along the widest direction, with a factor to spare."""
        return _CLEARLY * self.share <= _MOST_SHARE and _CLEARLY * self.widest <= _MOST_SPREAD

    def __str__(self) -> str:
        return (
            f"wide draws find about {100 * self.share:.1f} % of the posterior where a normal "
            "distribution with heavy tails, which fits the rest, hardly comes, half of it more "
            f"than {self.distance:.0f} of its standard deviations from the mean"
        )


def far_mass(
    log_prob_fn: LogProbs,
    sample: WeightedSample,
    rng: np.random.Generator,
    num_wide: int = NUM_WIDE,
    corrected_fn: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
) -> FarMass:
    r"""Returns how much of a posterior is where a proposal q hardly comes, by far wider draws.

    Weights of draws of q cannot tell: a narrow peak on a broad shelf looks like the peak alone. So
    some draws have 2 to 32 times the deviations of q, and some are so wide along the regression
    line of one entry. With the density m of the mixture of these and of the weighted draws of q,
    the share is the mean over the mixture of

    \[ \frac{p(\theta)}{Z m(\theta)} \; 1\Bigl[ \frac{p(\theta)}{Z q(\theta)} > 30 \Bigr], \]

    where Z is the mean weight of the draws of q. It is unbiased for given Z, so by Markov's
    inequality it exceeds c with probability at most (true share) / c, however few its draws.

    Args:
      log_prob_fn: x, `[S, D]` -> log posterior, `[S]`, up to a constant.
      sample: weighted draws of q, whose weights are reliable.
      rng: a generator of random numbers.
      num_wide: number of draws that are wide along all entries, and of those along one.
      corrected_fn: called where much of the posterior seems to be, with x and `log_prob_fn` there;
        returns the log posterior. None: `log_prob_fn` needs no correction.
    """
    base = sample.proposal.as_one()
    mean, factor, dim = base.mean, base.factor, len(base.mean)
    scales = np.repeat(_SCALES, num_wide // len(_SCALES))[:, np.newaxis]
    along = factor / np.linalg.norm(factor, axis=1, keepdims=True)  # regression lines, in z
    lines = along[rng.integers(dim, size=num_wide)]
    z = rng.standard_normal([2, num_wide, dim])
    z[0] *= scales
    z[1] += (scales - 1) * (z[1] * lines).sum(axis=1, keepdims=True) * lines
    wide = z.reshape(-1, dim)
    draws = np.concatenate([sample.draws, mean + wide @ factor.T])
    z = np.concatenate([base.whitened(sample.draws), wide])
    log_q = sample.proposal.log_prob(draws)
    with np.errstate(all="ignore"):
        log_probs = log_prob_fn(draws[len(sample.draws) :]).astype(np.float64)
    log_probs = np.where(np.isfinite(log_probs), log_probs, -np.inf)
    log_z = np.logaddexp.reduce(sample.log_weights) - np.log(len(sample.draws))
    own = sample.log_weights + log_q[: len(sample.draws)]
    log_ratio = np.concatenate([own, log_probs]) - log_z - log_q
    counts = np.log([len(sample.draws), num_wide, num_wide]) - np.log(len(draws))
    log_dets = np.log(np.diag(factor)).sum()
    densities = log_q, *(x - log_dets for x in _wide_log_probs(z, along))
    log_mixture = np.logaddexp.reduce([c + x for c, x in zip(counts, densities, strict=True)])

    def mass_of() -> np.ndarray:
        mass = np.exp(np.minimum(log_ratio + log_q - log_mixture, _MOST_LOG)) / len(draws)
        return np.where(log_ratio > np.log(_RARE), mass, 0.0)

    mass = mass_of()
    (heavy,) = np.nonzero(mass[len(sample.draws) :])
    if corrected_fn is not None and len(heavy):
        there = len(sample.draws) + heavy
        log_ratio[there] += corrected_fn(draws[there], log_probs[heavy]) - log_probs[heavy]
        mass = mass_of()
    if not (total := mass.sum()) > 0:
        return FarMass(0.0, 0.0, np.inf, 0.0, 0.0)
    distances = np.linalg.norm(z, axis=1)
    order = np.argsort(distances)
    middle = np.searchsorted(mass[order].cumsum(), total / 2)
    distance = distances[order[min(middle, len(z) - 1)]]
    share, spread = total / (1 + total), mass @ distances**2 / dim
    widest = np.linalg.eigvalsh(z.T @ (mass[:, np.newaxis] * z))[-1]
    num_effective = total**2 / (mass**2).sum()
    figures = map(float, (share, spread, distance, widest, num_effective))
    return FarMass(*figures, draws[int(np.argmax(mass))])


def _wide_log_probs(z: np.ndarray, along: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns log densities of draws that are wide along all entries, and along one of `along`."""
    dim, scales = z.shape[1], np.array(_SCALES)
    squares = (z**2).sum(axis=1)
    constant = -0.5 * dim * np.log(2 * np.pi)
    all_wide = -0.5 * np.outer(1 / scales**2, squares) - dim * np.log(scales)[:, np.newaxis]
    parts = (z @ along.T) ** 2 / 2
    largest = parts.max(axis=1)
    parts -= largest[:, np.newaxis]
    one_wide = [
        (1 - s**-2) * largest + np.log(np.exp((1 - s**-2) * parts).sum(axis=1)) - np.log(dim * s)
        for s in scales
    ]
    one = np.logaddexp.reduce(one_wide) - 0.5 * squares
    return tuple(x + constant - np.log(len(scales)) for x in (np.logaddexp.reduce(all_wide), one))


def check_reach(
    problem: MinibatchLogProb,
    center: State,
    log_prob_fn: LogProbs,
    sample: WeightedSample,
    rng: np.random.Generator,
    exact_fn: LogProbs | None = None,
) -> None:
    """Raises NotNearGaussian, with the place, if a proposal does not reach much of a posterior.

    What few wide draws find is looked at with five times as many others. If that is much and a few
    of these have most of it, again: a part that few of them reach is mostly estimated too small.
    States that rounding maps to the parameters of another state have no density of their own, so it
    is taken as zero. With `exact_fn`, x -> log posterior, `[S]`, the given one is only near to it.
    """
    base = sample.proposal.as_one()

    def corrected(x: np.ndarray, log_probs: np.ndarray) -> np.ndarray:
        is_own = has_own_parameters(problem, center, base, x)
        if exact_fn is not None and is_own.any():
            log_probs = exact_fn(x)
        return np.where(is_own, log_probs, -np.inf)

    for num_wide in (NUM_WIDE, _MORE * NUM_WIDE, _MORE**2 * NUM_WIDE):
        far = far_mass(log_prob_fn, sample, rng, num_wide, corrected)
        is_second = num_wide > NUM_WIDE
        if far.is_small and (far.is_known or far.is_clearly_small or is_second):
            return
        most = _FEW_TERMS if far.is_small else _MOST_TERMS
        if (far.is_known and is_second) or _MORE * num_wide * problem.num_examples > most:
            break
    if not far.is_small:
        raise NotNearGaussian(str(far), place=beyond(problem, center, base, far))


def has_own_parameters(
    problem: MinibatchLogProb, center: State, proposal: Proposal, states: np.ndarray
) -> np.ndarray:
    """Returns at which flat unconstrained states, `[S, D]`, the bijector can be inverted.

    Far out, rounding maps many states to one: where theta = mu + tau z is sampled by z, all z with
    a tau that is too small to change mu; or all u below -88 with tau = exp(u), which is then zero.
    The bijector counts as inverted where a standard normal density in the proposal's coordinates
    would change by at most about exp(1/2) between a state and the one that its parameters lead to.
    """
    if problem.bijector is None:
        return np.ones([len(states)], bool)
    to_parameters = parameters_bijector(problem.bijector, center)
    dtype = tf.nest.flatten(center)[0].dtype

    def there_and_back(states: tf.Tensor) -> list[tf.Tensor]:
        parameters = to_parameters.forward(unflatten_events(states, center, 0))
        # Copies, because bijectors remember what they have mapped.
        back = to_parameters.inverse(tf.nest.map_structure(tf.identity, parameters))
        return [flatten_events(back, 1)]

    try:
        program = kept_program(problem, "there and back", center, lambda: traced(there_and_back))
        (back,) = by_blocks(program, states, NUM_WIDE, dtype)
    except tf.errors.InvalidArgumentError:  # from a bijector that checks its arguments
        return np.ones([len(states)], bool)
    z = proposal.whitened(states)
    with np.errstate(invalid="ignore"):
        moved = proposal.whitened(back.astype(np.float64)) - z
        change = np.linalg.norm(moved, axis=1) * np.maximum(1, np.linalg.norm(z, axis=1))
        return change < _CHANGE


def beyond(problem: MinibatchLogProb, center: State, proposal: Proposal, far: FarMass) -> Place:
    """Returns the place where a proposal hardly comes.

    Args:
      problem: the target.
      center: one unconstrained state.
      proposal: the proposal.
      far: what is there.
    """

    def is_there(draws: np.ndarray) -> np.ndarray:
        z = proposal.whitened(draws.reshape(-1, draws.shape[-1]))
        return (np.linalg.norm(z, axis=1) > far.distance).reshape(draws.shape[:-1])

    clause = str(far)
    missed = (
        "These chains come there too rarely to tell how much is there.",
        "Compare with chains that begin there. ReplicaExchangeSGLD moves between far places.",
    )
    cause = f"{clause[0].upper()}{clause[1:]}."
    bijector = parameters_bijector(problem.bijector, center)
    # With v visits, the share of the time there is known to about 1 / sqrt(v) of itself.
    of_deviation = far.widest / 2 / (1 + far.widest)
    visits = max(
        _FEWEST_VISITS,
        (far.share / 2 / _NOTED_SHARE) ** 2,
        (of_deviation / _NOTED_DEVIATION) ** 2,
    )
    if far.share >= 1 - _MOST_SHARE:  # chains need not leave it
        visits = 0.0
    least_time = _LEAST_TIME * far.share / 2
    return Place(cause, missed, is_there, least_time, visits, bijector, far.heaviest)
