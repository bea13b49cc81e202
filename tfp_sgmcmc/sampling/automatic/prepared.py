"""What the choice of settings hands to the run: a kernel, its start, and what was found."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.sampling.automatic.chains import gradients_at
from tfp_sgmcmc.sampling.automatic.choices import Choices
from tfp_sgmcmc.sampling.steps import Plan


class NotQuadratic(Exception):
    """Says why the quadratic at the mode is of no use for sampling this posterior."""


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A kernel that is ready to run.

    Attributes:
      kernel: the kernel, whose states are z.
      bijector: from z to the user's parameters.
      target: the target that estimates gradients at z.
      choices: all settings, with the start.
      lines: what was done and why.
      flags: what cannot be promised.
    """

    kernel: Any
    bijector: Any
    target: Any
    choices: Choices
    lines: tuple[str, ...]
    flags: tuple[str, ...] = ()

    @property
    def is_noisy(self) -> bool:
        """Whether gradients come from minibatches."""
        return self.choices.batch_size is not None

    def plan(self, num_results: int) -> Plan:
        c = self.choices
        return Plan(num_results, c.num_burnin_steps, c.num_steps_between_results + 1)

    def with_choices(self, **changes: Any) -> Prepared:
        return dataclasses.replace(self, choices=dataclasses.replace(self.choices, **changes))

    def gradients_at(self, z: np.ndarray, seed: tf.Tensor) -> np.ndarray:
        return gradients_at(self.target, z, seed)
