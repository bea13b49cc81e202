"""The choice of a sampler where the posterior is near the quadratic at its mode."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.adaptation import coordinates as to
from tfp_sgmcmc.adaptation.coordinates import Coordinates
from tfp_sgmcmc.adaptation.hmc import TimedHMC
from tfp_sgmcmc.adaptation.langevin import Langevin
from tfp_sgmcmc.adaptation.modes import far_starts, other_mode
from tfp_sgmcmc.adaptation.prepared import Prepared
from tfp_sgmcmc.adaptation.prior_scale import prior_widths
from tfp_sgmcmc.adaptation.reasons import NotQuadratic
from tfp_sgmcmc.adaptation.trials import Trials
from tfp_sgmcmc.internal.nest import State, flatten_events
from tfp_sgmcmc.targets import MinibatchLogProb


class Choice:
    """Chooses kernel, minibatch and step for a posterior, and tries them in pilots.

    Args:
      problem: the target.
      state: one unconstrained state to begin at.
      num_chains: number of chains.
      seed: the seed of all that is drawn before the run.
      jit_compile: whether XLA compiles the steps.
    """

    def __init__(
        self,
        problem: MinibatchLogProb,
        state: State,
        num_chains: int,
        seed: tf.Tensor,
        jit_compile: bool,
    ):
        self._problem, self._state = problem, state
        parts = tf.nest.flatten(state)
        dim, dtype = sum(x.shape.num_elements() for x in parts), parts[0].dtype
        trial_seed, self._noise_seed, self._mode_seed = random.split(seed, 3)
        self._trials = Trials(num_chains, dim, dtype, trial_seed, jit_compile)
        self._found: Coordinates | None = None
        self._flags: tuple[str, ...] = ()

    def __call__(self, num_results: int) -> Prepared:
        """Returns the cheapest kernel whose pilot was sound.

        Raises:
          NotQuadratic: no mode with a curvature of use was found, or draws wander far from it.
          ImproperError: the posterior has no finite integral.
        """
        found = self._found = to.at_mode(self._problem, self._state)
        self._look_for_modes(found)
        prepared = None
        if self._problem.num_examples > 1 and found.factor is not None:
            langevin = Langevin(self._problem, found, self._trials, self._noise_seed)
            prepared = langevin()
            self._found = langevin.found
        if prepared is None:
            return self.with_all_examples(num_results)
        return prepared.with_flags(self._flags)

    def with_all_examples(self, num_results: int) -> Prepared:
        """Returns HMC on all examples; raises NotQuadratic if its pilot is not sound."""
        if self._found is None:
            raise NotQuadratic("no mode was found")
        hmc = TimedHMC(self._problem, self._found, self._trials)
        return hmc(num_results).with_flags(self._flags)

    def _look_for_modes(self, found: Coordinates) -> None:
        if found.factor is None:  # too many parameters for a search from the prior's widths
            return
        like, inverse = found.center, np.linalg.inv(found.factor)
        first = flatten_events(self._state, 0).numpy() - flatten_events(like, 0).numpy()
        deviations = np.sqrt((found.factor**2).sum(axis=-1))
        widths = prior_widths(self._problem, like, deviations)
        seed, dim = self._mode_seed.numpy(), self._trials.dim
        starts = far_starts(dim, inverse @ first, inverse * widths, seed)
        other = other_mode(found.target, starts, self._trials.dtype, self._trials.jit_compile)
        if other is not None:
            self._flags = (
                "The posterior has several modes: another one was found "
                f"{other.distance:.0f} standard deviations from the first, with a log posterior "
                f"that differs by {other.log_prob:.1f}. These chains stay near one. "
                "ReplicaExchangeSGLD moves between modes.",
            )
