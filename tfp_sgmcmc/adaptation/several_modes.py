"""Independent draws of a posterior with several modes, by a mixture with a component for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tfp_sgmcmc.adaptation.coordinates import Coordinates
from tfp_sgmcmc.adaptation.independent_draws import (
    FAR,
    LEAST_EFFICIENCY,
    NUM_DRAWS,
    NUM_GRADIENTS,
    NUM_STARTS,
    Climbs,
    OtherMode,
    climb,
    figures_of,
    settings_of,
    timed_log_prob,
    with_proposal,
)
from tfp_sgmcmc.adaptation.out_of_reach import place_beyond
from tfp_sgmcmc.adaptation.pilot import PilotRuns
from tfp_sgmcmc.adaptation.prior_scale import NotNearGaussian
from tfp_sgmcmc.adaptation.settings import PreparedKernel
from tfp_sgmcmc.diagnostics.certificate import MOST_FOR_MOMENTS, fit_kl_normal
from tfp_sgmcmc.diagnostics.vector_functions import value_and_gradient_of_vectors
from tfp_sgmcmc.diagnostics.weighted_sample import (
    FIRST_SHARE,
    MixtureProposal,
    Proposal,
    fit_proposal,
    num_draws_for,
)
from tfp_sgmcmc.targets import MinibatchLogProb
from tfp_sgmcmc.targets.laplace.quadratic import lower_factor

_MOST_MODES = 12
FEWEST_ROUNDS, _MOST_ROUNDS = 5, 30  # of sixteen climbs
_LEAST_ARRIVALS = 3  # climbs to a mode; one that is hardly reached tells of others not reached
GRADIENTS_OF_ROUND = NUM_STARTS * NUM_GRADIENTS  # at most
_SAME = 1.0  # deviations between two ends at one mode
_MOST_SECONDS = 20.0


class Search(NamedTuple):
    """A search for modes other than the one at z = 0.

    Attributes:
      value_and_gradient_fn: z, `[K + 1, D]` -> log posteriors and gradients.
      ends_fn: number of a round -> where climbs from dispersed starts end.
      refine: returns a mode with its mass and its factor, or None if it has hardly any mass.
      exchange: z, `[K, D]`, generator -> z where entries of state parts changed places.
    """

    value_and_gradient_fn: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    ends_fn: Callable[[int], Climbs]
    refine: Callable[[OtherMode], OtherMode | None]
    exchange: Callable[[np.ndarray, np.random.Generator], np.ndarray]


def every_other_mode(search: Search) -> list[OtherMode] | None:
    """Returns all modes that a search finds, or None if some may be unseen.

    Climbs go on until three have come to each mode, and 80 in a row to no new one. By the estimate
    of Good and Turing, the share of climbs that would end at a mode not seen is about that of the
    climbs to modes seen once, which is then zero. Every other round begins at the modes with
    entries exchanged, and at recombinations of the modes, entry by entry. Labels of components can
    often be exchanged, and starts that are spread like the prior hardly find all such modes.

    References:
      I. J. Good. The population frequencies of species and the estimation of population parameters.
      Biometrika, 1953.
    """
    modes, arrivals, dismissed = list[OtherMode](), list[int](), list[np.ndarray]()
    last_new = -1
    for number in range(_MOST_ROUNDS):
        if number % 2 and modes:
            starts = _varied(modes, search.exchange, np.random.default_rng(number))
            ends = climb(search.value_and_gradient_fn, starts)
        else:
            ends = search.ends_fn(number)
        for z, log_prob in zip(ends.z[ends.is_mode], ends.log_probs[ends.is_mode], strict=True):
            distance = float(np.linalg.norm(z))
            if distance < FAR or any(np.linalg.norm(z - x) < _SAME for x in dismissed):
                continue
            near = _nearest(modes, z, FAR)
            if near is None:
                rough = OtherMode(distance, float(log_prob - ends.log_probs[0]), z)
                mode = search.refine(rough)
                if mode is None:
                    dismissed.append(z)
                    continue
                if mode.factor is None:
                    return None
                near = _nearest(modes, mode.z, _SAME)
                if near is None:
                    near, last_new = len(modes), number
                    modes.append(mode)
                    arrivals.append(0)
            arrivals[near] += 1
        if len(modes) >= _MOST_MODES:
            return None
        is_quiet = number - last_new >= FEWEST_ROUNDS
        if is_quiet and all(x >= _LEAST_ARRIVALS for x in arrivals):
            return modes
    return None


def _varied(
    modes: Sequence[OtherMode],
    exchange: Callable[[np.ndarray, np.random.Generator], np.ndarray],
    rng: np.random.Generator,
) -> np.ndarray:
    """Returns starts: modes with entries exchanged, and with entries of random modes, by turns.

    Their noise is a third of the modes' spread.
    """
    places = np.stack([np.zeros_like(modes[0].z), *(mode.z for mode in modes)])
    shape = NUM_STARTS, places.shape[1]
    chosen = rng.integers(len(places), size=shape)
    chosen[::2] = chosen[::2, :1]
    starts = np.take_along_axis(places, chosen, axis=0)
    starts[::2] = exchange(starts[::2], rng)
    return starts + rng.standard_normal(shape) * places.std(axis=0) / 3


def exchanged(
    flat: np.ndarray, shapes: Sequence[tuple[int, ...]], rng: np.random.Generator
) -> np.ndarray:
    """Returns flat states, `[K, D]`, where the first axis of all parts is in a random order.

    Parts with equally long first axes have the same order, as those of a mixture's components.
    """
    states = flat.copy()
    for row in states:
        orders = {shape[0]: rng.permutation(shape[0]) for shape in shapes if shape}
        begin = 0
        for shape in shapes:
            end = begin + math.prod(shape)
            if shape:
                row[begin:end] = row[begin:end].reshape(shape)[orders[shape[0]]].ravel()
            begin = end
    return states


def _nearest(modes: Sequence[OtherMode], z: np.ndarray, most: float) -> int | None:
    """Returns the number of the mode within `most` of its own deviations, if there is one."""
    if not modes:
        return None
    offsets = np.stack([z - mode.z for mode in modes])[..., np.newaxis]
    factors = np.array([mode.factor for mode in modes])
    distances = np.linalg.norm(np.linalg.solve(factors, offsets)[..., 0], axis=-1)
    nearest = int(distances.argmin())
    return nearest if distances[nearest] < most else None


def mixture_draws(
    problem: MinibatchLogProb,
    found: Coordinates,
    others: Sequence[OtherMode],
    runs: PilotRuns,
    seed: np.ndarray,
    num_results: int,
    num_chains: int,
) -> PreparedKernel | None:
    """Returns `IndependentMetropolis` with a mixture, or None if its weights are poor.

    Args:
      problem: the target.
      found: coordinates at the first mode.
      others: the other modes, in these coordinates.
      runs: notes why the mixture was dropped.
      seed: two integers, of the fit.
      num_results: number of draws of each chain.
      num_chains: number of chains.

    Raises:
      NotNearGaussian: wide draws find a part of the posterior where the mixture hardly comes.
    """
    first = found.factor
    assert first is not None
    log_prob_fn, mean, seconds = timed_log_prob(problem, found.center, runs)
    size = (1 + len(others)) * max(NUM_DRAWS, num_draws_for(runs.dim))
    if seconds * (2 * size + num_results * num_chains) > _MOST_SECONDS:
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
    sample, rounds = fit_proposal(log_prob_fn, mixture, size, rng)
    how = f"in {rounds} round{'s' * (rounds > 1)} of {size} draws"
    figures = figures_of(sample)
    if not sample.is_reliable or sample.efficiency < LEAST_EFFICIENCY:
        runs.dropped.append(
            f"A mixture with a component for each of {1 + len(others)} modes was dropped, because "
            f"its weights have {figures}."
        )
        return None
    if (missed := place_beyond(problem, found.center, log_prob_fn, sample, rng)) is not None:
        place, far = missed
        raise NotNearGaussian(str(far), place=place)
    choices = settings_of(problem, found.center, sample, runs, seconds, num_results, num_chains)
    assert isinstance(sample.proposal, MixtureProposal)
    shares = sample.proposal.shares(sample.draws, sample.weights)
    listed = ", ".join(f"{100 * share:.3g} %" for share in shares)
    lines = (
        f"The posterior has {1 + len(others)} modes, with {listed} of its mass. At least "
        f"{_LEAST_ARRIVALS} climbs from dispersed starts ended at each of them.",
        "A mixture with a normal distribution with heavy tails for each mode was fitted to the "
        f"posterior {how}. Weighed by the exact posterior, its draws have {figures}.",
    )
    return with_proposal(problem, choices, lines, sample, runs.num_starts)
