"""The choice of a kernel for a posterior near its mode."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.adaptation.coordinates import Coordinates, whiten_at_mode, with_known_remedy
from tfp_sgmcmc.adaptation.hierarchies.noncentering import repeats_prior
from tfp_sgmcmc.adaptation.hierarchies.prior_scale import NotNearGaussian, prior_widths
from tfp_sgmcmc.adaptation.independent_draws import independent_draws, mixture_draws
from tfp_sgmcmc.adaptation.langevin import LangevinSelector
from tfp_sgmcmc.adaptation.mode_search import (
    FEWEST_ROUNDS,
    GRADIENTS_OF_ROUND,
    NUM_STARTS,
    Climbs,
    OtherMode,
    Search,
    climb,
    every_other_mode,
    exchanged,
    far_starts,
    find_other_mode,
    has_dip,
)
from tfp_sgmcmc.adaptation.out_of_reach import Place, other_mode
from tfp_sgmcmc.adaptation.pilot import PilotRuns
from tfp_sgmcmc.adaptation.settings import PreparedKernel
from tfp_sgmcmc.adaptation.timed_hmc import TimedHMC
from tfp_sgmcmc.diagnostics.vector_functions import (
    LogProbs,
    ValuesAndGradients,
    num_padded,
    value_and_gradient_of_z,
)
from tfp_sgmcmc.internal.nest import State, flatten_events, unflatten_events
from tfp_sgmcmc.sampling.result import Flag
from tfp_sgmcmc.targets import MinibatchLogProb
from tfp_sgmcmc.targets.laplace.newton import newton_ascent
from tfp_sgmcmc.targets.laplace.quadratic import (
    hessian_products,
    inverse_of_factor,
    root_of_inverse,
)
from tfp_sgmcmc.targets.streaming.pooled import PooledLogProb

_MOST_STEPS, _SAME = 50, 1.0  # of Newton's method, and deviations between two ends at one mode
_HARDLY_WIDER = 0.05  # what a second mode adds to a variance that is as good as nothing
_MOST_MODES, _NEARLY_ALL = 3, 10.0  # that are tried, and the logarithm of a mass over another
_LONG_SEARCH = 60.0  # seconds, for all modes
_QUICK_SEARCH, _MOST_SEARCHES = 3.0, 9  # seconds, and rounds, for one other mode
_FEWEST_ENTRIES = 20_000  # N D; a gradient of fewer costs about what a step's operations cost


class KernelSelector:
    """Chooses kernel, minibatch and step for a posterior near its mode, and tries them in pilots.

    Args:
      problem: the target.
      state: one unconstrained state to begin at.
      num_chains: number of chains.
      seed: the seed of all that is drawn before the run.
      jit_compile: whether XLA compiles the steps.
      exact_log_prob_fn: for a pool of rows, the log posterior of all rows, a function of states
        `[S, ...]`. None: not known.

    Attributes:
      places: parts of the posterior that draws may miss.
    """

    def __init__(
        self,
        problem: MinibatchLogProb,
        state: State,
        num_chains: int,
        seed: tf.Tensor,
        jit_compile: bool,
        exact_log_prob_fn: Callable[[State], tf.Tensor] | None = None,
    ):
        self._problem, self._state, self._exact_log_prob_fn = problem, state, exact_log_prob_fn
        flat = flatten_events(state, 0)
        pilot_seed, self._noise_seed, self._mode_seed = random.split(seed, 3)
        self._runs = PilotRuns(num_chains, flat.shape[0], flat.dtype, pilot_seed, jit_compile)
        self._found: Coordinates | None = None
        self._of_gradient = 0.0  # seconds, at one state
        self._others: list[OtherMode] = []  # all modes but that of the coordinates, if known
        self.places: list[Place] = []

    @property
    def _flags(self) -> tuple[Flag, ...]:
        return tuple(place.flag for place in self.places)

    def __call__(self, num_results: int) -> PreparedKernel:
        """Returns the cheapest kernel whose pilot was sound.

        Raises:
          NotNearGaussian: no mode with a usable curvature was found, or draws wander far from it.
          ImproperError: the posterior has no finite integral.
        """
        try:
            return self._select(num_results)
        except NotNearGaussian as reason:
            if reason.place is not None:
                self.places.append(reason.place)
            told = with_known_remedy(reason, self._found)
            told.center = reason.center
            if told.center is None and self._found is not None:
                told.center = self._found.center
            raise told from reason

    def _select(self, num_results: int) -> PreparedKernel:
        found = self._at_heaviest_mode()
        if found.factor is None:
            return self.with_all_examples(num_results)
        seed = random.fold_in(self._mode_seed, 1).numpy()
        options = self._runs, seed, num_results
        if self._others:
            mixture = mixture_draws(self._problem, found, self._others, *options)
            if mixture is not None:
                self.places.clear()  # draws come to all modes
                return mixture
        has_other_mode = bool(self.places)
        try:
            beyond = has_other_mode, self._exact_fn()
            independent, found = independent_draws(self._problem, found, *options, *beyond)
        except NotNearGaussian as reason:
            # Wide draws may find a narrow mode that no climb from dispersed starts came to.
            others = self._modes_from(reason.place, found)
            mixture = mixture_draws(self._problem, found, others, *options) if others else None
            if mixture is None:
                raise
            return mixture
        self._found = found
        if independent is not None:
            return dataclasses.replace(independent, flags=self._flags)
        num_examples = self._problem.num_examples
        is_small = num_examples * self._runs.dim < _FEWEST_ENTRIES
        if is_small or repeats_prior(self._problem.bijector):
            why = "each example's gradient would evaluate the prior of all effects"
            if is_small:
                why = f"a gradient of all {num_examples:,} examples costs no more than one of a few"
            if num_examples > 1:
                self._runs.dropped.append(
                    f"UnderdampedLangevin with minibatches was not tried, because {why}."
                )
            return self.with_all_examples(num_results)
        options = self._runs, self._noise_seed, self._of_gradient
        langevin = LangevinSelector(self._problem, found, *options)
        prepared = langevin()
        self._found = langevin.found
        if prepared is None:
            return self.with_all_examples(num_results)
        return dataclasses.replace(prepared, flags=self._flags)

    def with_all_examples(self, num_results: int) -> PreparedKernel:
        """Returns HMC on all examples; raises NotNearGaussian if its pilot is not sound."""
        if self._found is None:
            raise NotNearGaussian("no mode was found")
        hmc = TimedHMC(self._problem, self._found, self._runs)
        return dataclasses.replace(hmc(num_results), flags=self._flags)

    def _at_heaviest_mode(self) -> Coordinates:
        """Returns coordinates at a mode, and notes the place of another one.

        Where the other one holds nearly all of the mass of both, it takes the first one's place.
        """
        state = self._state
        for num_modes in range(1, _MOST_MODES + 1):
            found = self._found = whiten_at_mode(self._problem, state)
            if found.factor is None:  # too many parameters to search from the prior's widths
                break
            search = self._search(found)
            other = self._other_mode(search)
            if other is None:
                break
            offset = found.factor @ other.z
            if num_modes == _MOST_MODES or other.log_mass < _NEARLY_ALL:
                figures = offset, float(np.linalg.norm(other.z)), other.log_prob
                self.places.append(other_mode(self._problem, found.center, *figures))
                self._others = self._every_other_mode(search)
                break
            flat = flatten_events(found.center, 0).numpy()
            state = unflatten_events((flat + offset).astype(flat.dtype), found.center, 0)
        return found

    def _modes_from(self, place: Place | None, found: Coordinates) -> list[OtherMode]:
        """Returns all other modes, with those that climbs from a place reach."""
        if place is None or place.state is None:
            return []
        offset = place.state - flatten_events(found.center, 0).numpy()
        return self._every_other_mode(self._search(found, [offset]))

    def _other_mode(self, search: Search) -> OtherMode | None:
        """Returns another mode, searched for in several rounds of climbs where they are quick."""
        for number in range(_MOST_SEARCHES):
            rough = find_other_mode(search.value_and_gradient_fn, search.ends_fn(number))
            if rough is not None and (other := search.refine(rough)) is not None:
                return other
            if (number + 2) * GRADIENTS_OF_ROUND * self._of_gradient > _QUICK_SEARCH:
                break
        return None

    def _every_other_mode(self, search: Search) -> list[OtherMode]:
        """Returns all other modes; none if some may be unseen, or if the search would take long.

        None of a pool of rows either, which is accurate near its center only.
        """
        is_long = FEWEST_ROUNDS * GRADIENTS_OF_ROUND * self._of_gradient > _LONG_SEARCH
        if is_long or isinstance(self._problem, PooledLogProb):
            return []
        return every_other_mode(search) or []

    def _search(self, found: Coordinates, offsets: Sequence[np.ndarray] = ()) -> Search:
        """Returns the search for other modes, which also begins at `offsets` from the center."""
        like, factor, runs = found.center, found.factor, self._runs
        assert factor is not None
        inverse = inverse_of_factor(factor)
        first = flatten_events(self._state, 0).numpy() - flatten_events(like, 0).numpy()
        widths = prior_widths(self._problem, like, np.sqrt((factor**2).sum(axis=-1)))
        begin = [inverse @ offset for offset in offsets]
        at_once = max(1, num_padded(self._problem, like) // (1 + NUM_STARTS))  # rounds, in a call

        @functools.cache  # the first rounds are looked at twice where there is another mode
        def several(group: int) -> Climbs:
            runs.num_starts += at_once * NUM_STARTS
            seed, starts = self._mode_seed.numpy(), list[np.ndarray]()
            for number in range(group * at_once, (group + 1) * at_once):
                far = far_starts(runs.dim, inverse @ first, inverse * widths, seed, number)
                starts.extend([*begin, *far[len(begin) :]])
            return climb(at, np.stack(starts))

        def ends(number: int) -> Climbs:
            group, place = divmod(number, at_once)
            mine = np.arange(NUM_STARTS) + place * NUM_STARTS + 1
            return Climbs(*(x[[0, *mine]] for x in several(group)))

        center = flatten_events(like, 0).numpy()
        parts = [tuple(x.shape) for x in tf.nest.flatten(like)]

        def exchange(z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            return (exchanged(center + z @ factor.T, parts, rng) - center) @ inverse.T

        exact_fn, dismissed = self._exact_fn(), list[np.ndarray]()

        def refine(other: OtherMode) -> OtherMode | None:
            mode = self._with_mass(found, at, other)
            if mode is None or any(np.linalg.norm(mode.z - z) < _SAME for z in dismissed):
                return None
            line = np.linspace(0, 1, NUM_STARTS + 1)[:, np.newaxis] * (factor @ mode.z)
            if exact_fn is None or has_dip(exact_fn(center + line)):
                return mode
            dismissed.append(mode.z)
            return None

        options = like, factor, runs.jit_compile
        at = self._timed(value_and_gradient_of_z(self._problem, *options))
        return Search(at, ends, refine, exchange)

    def _exact_fn(self) -> LogProbs | None:
        """Returns the log posterior of all rows, a function of flat states, if it needs a pass.

        Far from its center a pool of rows may have modes that the posterior has not.
        """
        exact, problem, like = self._exact_log_prob_fn, self._problem, self._state
        if exact is None or not isinstance(problem, PooledLogProb):
            return None

        def of_flat(flat: np.ndarray) -> np.ndarray:
            states = unflatten_events(flat, like, 0)
            log_prob = exact(problem.state_of_pool(states))
            return (log_prob + problem.log_det_to_pool(states)).numpy()

        return of_flat

    def _timed(self, at: ValuesAndGradients) -> ValuesAndGradients:
        """Returns the function, whose calls tell the time of the gradient at one state."""

        def call(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            began = time.perf_counter()
            found = at(z)
            seconds = (time.perf_counter() - began) / len(z)
            self._of_gradient = min(self._of_gradient or seconds, seconds)
            return found

        return call

    def _with_mass(
        self, found: Coordinates, at: ValuesAndGradients, other: OtherMode
    ) -> OtherMode | None:
        """Returns another mode as Newton's method finds it, or None if it hardly has any mass.

        A climb along a ridge ends where the ridge is flat, and may be far from any mode. Laplace's
        approximations tell the masses of both modes, by their heights and curvatures. If the second
        adds less than 5 % to the variance along the line between them, or if the ascent ends at the
        first, draws lose nothing without it. If it ends at no mode, the mode stays as it is.
        """
        factor, flat = found.factor, flatten_events(found.center, 0).numpy()
        assert factor is not None
        products = hessian_products(self._problem, found.center)

        def derivatives(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            there = products.matrices((flat + factor @ z).astype(flat.dtype))
            return factor.T @ there.posterior @ factor, factor.T @ there.gradient

        def log_prob(z: np.ndarray) -> float:
            return float(at(z[np.newaxis])[0][0])

        resolution = float(np.finfo(flat.dtype).eps)
        ascent = newton_ascent(log_prob, derivatives, other.z, _MOST_STEPS, resolution)
        if ascent is None or not ascent.is_mode:
            return other
        distance = float(np.linalg.norm(ascent.theta))
        rise = ascent.log_prob - log_prob(0 * other.z)
        precision = -derivatives(ascent.theta)[0]
        log_det = np.linalg.slogdet(precision)[1]  # it is 0 at the first mode
        log_mass = float(rise - log_det / 2)
        if distance < _SAME or np.exp(min(log_mass, 0.0)) * distance**2 < _HARDLY_WIDER:
            return None
        return OtherMode(rise, ascent.theta, log_mass, root_of_inverse(precision))
