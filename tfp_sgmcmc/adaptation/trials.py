"""Chains that are made, timed and tried before the run, all from the same dispersed starts."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.adaptation.chains import Chains, Gradients
from tfp_sgmcmc.adaptation.pilot import Pilot, dispersed_starts, run_pilot


class Trials:
    """Makes chains of z, times their steps, and runs pilots.

    Args:
      num_chains: number of chains.
      dim: D.
      dtype: of z.
      seed: of starts and pilots.
      jit_compile: whether XLA compiles the steps.
    """

    def __init__(
        self, num_chains: int, dim: int, dtype: tf.DType, seed: tf.Tensor, jit_compile: bool
    ):
        start_seed, self._seed = random.split(seed, 2)
        self.dim, self.dtype, self.jit_compile = dim, dtype, jit_compile
        self._start = dispersed_starts(num_chains, dim, dtype, start_seed)
        self._num_pilots = 0
        #: Measured milliseconds of a step of all chains, by what was timed.
        self.milliseconds: dict[str, float] = {}

    def chains(self, kernel_fn: Any, settings: Any) -> Chains:
        """Returns chains at the starts. The arguments are those of `Chains`."""
        return Chains(kernel_fn, settings, self._start, self._seed, self.jit_compile)

    def seconds(self, name: str, chains: Chains) -> float:
        """Returns the time of a step, and notes it under a name."""
        seconds = chains.seconds_per_step()
        self.milliseconds[name] = 1e3 * seconds
        return seconds

    def gradients(self, target: Any) -> Gradients:
        return Gradients(target, self.jit_compile)

    def pilot(
        self, chains: Chains, gradients: Gradients, settings: Any, stride: int, num_draws: int
    ) -> Pilot | None:
        """Runs chains from the starts, each time with another seed; None if one breaks down."""
        self._num_pilots += 1
        seed = random.fold_in(self._seed, self._num_pilots)
        return run_pilot(chains, gradients, settings, stride, self._start, num_draws, seed)
