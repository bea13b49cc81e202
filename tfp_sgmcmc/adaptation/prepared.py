"""What the choice of settings hands to the run: a kernel, its start, and what was found."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from tfp_sgmcmc.adaptation.chains import Gradients
from tfp_sgmcmc.adaptation.coordinates import Coordinates
from tfp_sgmcmc.adaptation.excess_variance import Noise
from tfp_sgmcmc.adaptation.pilot import Pilot
from tfp_sgmcmc.adaptation.settings import Choices
from tfp_sgmcmc.sampling.steps import StepPlan


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A kernel that is ready to run.

    Attributes:
      kernel: the kernel, whose states are z.
      bijector: from z to the user's parameters.
      gradients: estimates gradients at z.
      choices: all settings, with the start.
      lines: what was done and why.
      flags: what cannot be promised.
      noise: the noise of a control variate's estimates at z; None for other targets.
      most_results: the number of draws that there is time for; None for any number.
    """

    kernel: Any
    bijector: Any
    gradients: Gradients
    choices: Choices
    lines: tuple[str, ...]
    flags: tuple[str, ...] = ()
    noise: Noise | None = None
    most_results: int | None = None

    @property
    def is_noisy(self) -> bool:
        """Whether gradients come from minibatches."""
        return self.choices.batch_size is not None

    def with_flags(self, flags: tuple[str, ...]) -> Prepared:
        return dataclasses.replace(self, flags=(*self.flags, *flags))

    def plan(self, num_results: int) -> StepPlan:
        c, most = self.choices, self.most_results
        num_results = num_results if most is None else min(num_results, most)
        return StepPlan(num_results, c.num_burnin_steps, c.num_steps_between_results + 1)

    def with_choices(self, **changes: Any) -> Prepared:
        return dataclasses.replace(self, choices=dataclasses.replace(self.choices, **changes))


def prepare(
    kernel: Any,
    found: Coordinates,
    gradients: Gradients,
    pilot: Pilot,
    milliseconds: dict[str, float],
    lines: list[str],
    *,
    stride: int,
    noise: Noise | None = None,
    **settings: Any,
) -> Prepared:
    """Returns a kernel whose pilot was sound, with all settings and with what to tell of them."""
    stride *= pilot.draws_per_sample
    precision = None if found.kind == "hessian" else found.precision
    choices = Choices(
        coordinates=found.kind,
        center=tf.nest.map_structure(lambda x: x.numpy(), found.center),
        hessian=None if precision is None else -precision,
        start=pilot.z[-1],
        num_burnin_steps=0,
        num_steps_between_results=stride - 1,
        milliseconds=milliseconds,
        **settings,
    )
    where = {
        "hessian": "The curvature there gives",
        "low rank": "The largest curvatures there give",
        "widths": "The prior has kinks there, so the posterior's widths give",
        "pilot": "A pilot's draws, and the data's curvature at their mean, give",
        "covariance": "The mean and the covariance of a pilot's draws give",
    }[found.kind]
    costs = ", ".join(f"{k}: {v:.3g} ms" for k, v in milliseconds.items())
    fits, every = pilot.fit, "state" if stride == 1 else f"{stride}. state"
    told = [
        f"A mode of the posterior was found in {found.num_passes} passes over the data. "
        f"{where} coordinates in which all {pilot.z.shape[-1]} parameters are about N(0, I), so "
        "that one step size suits every posterior.",
        *lines,
        f"{choices.sampler} with step {choices.arguments['step_size']:.2g} keeps every {every}. "
        f"Measured times of a step of all chains: {costs}.",
        f"A pilot from dispersed starts had {fits.temperature:.3f} +- {fits.error:.3f} of the "
        f"posterior's variance, by its gradients, and {fits.radius:.2f} of the variance that "
        "these coordinates say (1 for Laplace's approximation).",
    ]
    return Prepared(kernel, found.bijector, gradients, choices, tuple(told), noise=noise)
