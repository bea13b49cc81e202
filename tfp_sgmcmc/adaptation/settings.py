"""All that an automatic run chose, so that it can be written out by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, repr=False)
class Choices:
    """What `sample` chose for a target. `print` shows it with the program that does the same.

    Attributes:
      sampler: name of the kernel.
      arguments: the kernel's arguments beside the target, by name.
      batch_size: n, or None for all examples in every step.
      coordinates: where the coordinates z come from: "hessian", the curvature at the center;
        "pilot" or "widths", where the prior has kinks; "covariance", that of a pilot's draws.
      hessian: what `whiten` takes for the Hessian at the center, or None for its own; of a diagonal
        matrix only the diagonal.
      center: the center, in the structure of the state, unconstrained.
      start: z at which the chains start, `[chains, D]`.
      seed: seed of the run that was kept.
      num_burnin_steps: steps before the first draw.
      num_steps_between_results: steps between draws.
      predicted_excess: relative excess of the draws' variance that the noise was predicted to
        cause: its mean over directions, and the worst direction. None without noise.
      measured_excess: the same from the noise at the pilot's draws. The temperature makes up for
        the mean, and for the effect of the step.
      run_excess: the same from the noise at the draws of the run.
      guarded_share: share of the run's draws so far out that the guard of the control variates, w,
        is below 1.
      milliseconds: measured milliseconds of a step of all chains, by name of the sampler.
    """

    sampler: str
    arguments: dict[str, Any]
    batch_size: int | None
    coordinates: str
    center: Any
    hessian: np.ndarray | None
    start: np.ndarray
    num_burnin_steps: int
    num_steps_between_results: int
    milliseconds: dict[str, float]
    predicted_excess: tuple[float, float] | None = None
    measured_excess: tuple[float, float] | None = None
    run_excess: tuple[float, float] | None = None
    guarded_share: float | None = None
    seed: tuple[int, int] = (0, 0)

    def __repr__(self) -> str:
        """Returns a line for each choice; arrays by their shapes."""
        lines = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray) and value.size > 4:
                value = f"array {list(value.shape)}"
            if field.name == "center":
                value = "result.choices.center"
            if isinstance(value, tuple):
                value = ", ".join(f"{x:.4g}" if isinstance(x, float) else str(x) for x in value)
            lines.append(f"  {field.name}: {value}")
        return "\n".join(["Choices:", *lines, "By hand:", *(f"  {x}" for x in self.program())])

    def program(self) -> list[str]:
        """Returns the lines of a program that makes the same draws, in whitened coordinates z."""
        given = ", ".join(f"{k}={v!r}" for k, v in self.arguments.items())
        module = "sgmcmc" if self.batch_size is not None else "tfp.mcmc"
        hessian = "" if self.hessian is None else ", hessian=result.choices.hessian"
        if self.hessian is not None and self.hessian.ndim == 1:
            hessian = ", hessian=np.diag(result.choices.hessian)"
        lines = [f"z, bijector = sgmcmc.whiten(target, result.choices.center{hessian})"]
        of = "z"
        if self.batch_size is not None:
            dim = self.start.shape[-1]
            lines.append(f"z = z.with_minibatches({self.batch_size})")
        if self.sampler == "UnderdampedLangevin":
            lines += [
                f"control = sgmcmc.ControlVariate(z, tf.zeros([{dim}]), order=2, "
                "importance='pilot')",
            ]
            of = "control"
        return [
            *lines,
            f"kernel = {module}.{self.sampler}({of}, {given})",
            "run = sgmcmc.sample_chain(kernel, result.choices.start, num_results, "
            f"seed={[*self.seed]}, num_burnin_steps={self.num_burnin_steps}, "
            f"num_steps_between_results={self.num_steps_between_results})",
            "draws = bijector.forward(run.states)",
        ]
