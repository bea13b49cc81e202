"""The kernel and settings that `SamplerCallback("auto")` chooses, with predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.keras.adaptation.linear_predictions import predictions_for
from tfp_sgmcmc.keras.chain.chain import Chain
from tfp_sgmcmc.keras.checks.local_geometry import LocalGeometry
from tfp_sgmcmc.keras.records.recorder import Recorder
from tfp_sgmcmc.keras.records.sample_log import StoredSampleLog
from tfp_sgmcmc.kernels import NOGIN, SGLD, UnderdampedLangevin
from tfp_sgmcmc.targets.minibatch import noise_scale

DEFAULT_BOUND = 0.1
ENOUGH = 10  # relaxation times after which a variance can be measured
_STEADY = 2.0  # largest growth in the last trial at which predictions hold
_WITH_MOMENTA: dict[str, Any] = {"UnderdampedLangevin": UnderdampedLangevin, "NOGIN": NOGIN}


class NetworkSettings:
    """The kernel that a pilot chose, with its measurements and predictions.

    `print` shows them in words, and `code` is the kernel as Python code. `make_kernel` makes the
    kernel: `SamplerCallback(choices.make_kernel, ...)` samples the same chain from the same
    weights.

    Attributes:
      numbers: measured, chosen and predicted values by name, as JSON values.
      scale: M, an array for each trainable variable: the preconditioner of SGLD, and the inverse
        mass of the others.
      directions: the noisiest directions in coordinates where M is the identity, `[k, D]`.
    """

    def __init__(self, numbers: Mapping[str, Any], scale: list[Any], directions: Any):
        self.numbers = dict(numbers)
        with tf.init_scope():  # so that compiled steps capture them as inputs
            self._scale = [tf.constant(s) for s in scale]
            self._mass = [1 / s for s in self._scale]
        self.directions = np.asarray(directions)

    @property
    def scale(self) -> list[np.ndarray]:
        return [s.numpy() for s in self._scale]

    def describe(self, chain: Chain, recorder: Recorder) -> None:
        """Records the choices in the run of a chain with this kernel."""
        chain.kernel_description |= {"choices": self.numbers}
        recorder.also_saved = {"choices": {"scale": self.scale, "directions": self.directions}}
        if isinstance(recorder.samples, StoredSampleLog):
            recorder.samples.fingerprint |= chain.kernel_description

    @property
    def predicted(self) -> dict[str, float]:
        """The predicted temperature of the hottest direction, and the mean temperature."""
        names = ("worst", "mean")
        return {name: 1 + self.numbers[f"predicted_excess_{name}"] for name in names}

    @property
    def doubts(self) -> str | None:
        """Reasons why the predicted temperatures are uncertain; None if they are not."""
        own, found = self.numbers, []
        if own["num_steps"] is not None and own["num_steps"] < ENOUGH * own["steps_of_hottest"]:
            found.append(
                f"the hottest direction takes {own['steps_of_hottest']:.2g} steps to forget its "
                f"start, and only {own['num_steps']} follow in this fit"
            )
        if own["growth"] > _STEADY:
            found.append(
                f"the pilot's trials suggest that curvature or noise may grow {own['growth']:.3g}"
                "-fold after the pilot, which more num_burnin_epochs would show"
            )
        return "; ".join(found) or None

    def is_stable(self, found: LocalGeometry) -> bool:
        """Returns whether the step is stable at the curvature near another state."""
        own = self.numbers
        near = predictions_for(found, own["num_examples"], own["batch_size"])
        return own["step_size"] < near.most(own["kernel"], margin=1.0)

    def make_kernel(self, target: Any) -> tfp.mcmc.TransitionKernel:
        """Returns the kernel over a target."""
        own = self.numbers
        if own["kernel"] == "SGLD":
            return SGLD(target, own["step_size"], preconditioner=self._scale)
        more = {} if own["covariance"] is None else {"covariance": own["covariance"]}
        make = _WITH_MOMENTA[own["kernel"]]
        return make(target, own["step_size"], own["friction"], mass=self._mass, **more)

    @property
    def code(self) -> str:
        """The kernel as Python code, in terms of `scale`."""
        own = self.numbers
        given = [f"step_size={own['step_size']!r}"]
        if own["friction"] is not None:
            given.append(f"friction={own['friction']!r}")
        if own["covariance"] is not None:
            given.append(f"covariance={own['covariance']!r}")
        last = "preconditioner=scale" if own["kernel"] == "SGLD" else "mass=[1 / s for s in scale]"
        return f"lambda target: sgmcmc.{own['kernel']}(target, {', '.join([*given, last])})"

    @property
    def advice(self) -> str | None:
        """Advice if the fit has too few steps for the bound; None if it has enough."""
        own = self.numbers
        if own["num_steps"] is None or own["steps_within_bound"] <= own["num_steps"]:
            return None
        found = (
            f"The gradient noise of batches of {own['batch_size']} is "
            f"{own['noise_over_curvature']:.3g} times the curvature along the noisiest direction. "
            f"With an excess temperature of at most {own['bound']:g}, flat directions take about "
            f"{own['steps_within_bound']:.2g} steps to forget their start. Received: "
            f"{own['num_steps']} steps after the pilot. "
        )
        reached = f"{100 * own['share_of_flat']:.2g} % of their variance along flat"
        if own["keeps_bound"]:
            found += f"The bound is kept, and the samples will have {reached} directions. "
        else:
            found += (
                "No step size satisfies both, so the least bias was chosen: the samples will have "
                f"up to {self.predicted['worst']:.3g} times their variance along the hottest "
                f"direction, and {reached} directions. "
            )
        size, steps = own["better_batch_size"], own["better_steps"]
        most = " (all examples)" if size == own["num_examples"] else ""
        return f"{found}With batch_size={size}{most}, about {steps:.2g} steps are enough."

    def __str__(self) -> str:
        own = self.numbers
        known = own["covariance"]
        flat = "" if own["has_flat"] else " if flat ones have 0.0001 of the largest curvature"
        lines = [
            f"The largest curvature of the log posterior is {own['largest_curvature']:.3g} in "
            "units of the preconditioner"
            + ("" if own["growth"] == 1 else f", and {own['growth']:.3g} times as much is expected")
            + (
                "."
                if own["has_hessian"]
                else ", estimated from the noise, because there are no second derivatives."
            ),
            f"The gradient noise of batches of {own['batch_size']} along the noisiest direction is "
            f"{own['noise_over_curvature']:.3g} times the curvature there (N / n = "
            f"{own['num_examples'] / own['batch_size']:.3g}).",
            f"Kernel: {own['kernel']}, step_size={own['step_size']:.3g}"
            + ("" if own["friction"] is None else f", friction={own['friction']:.3g}")
            + ("" if known is None else f', covariance="{known}"')
            + ", with a fixed diagonal preconditioner.",
            f"Predicted temperature: {self.predicted['worst']:.3g} in the hottest direction, "
            f"{self.predicted['mean']:.3g} on average over the weights."
            + (f" This is uncertain: {self.doubts}." if self.doubts else ""),
            f"All directions forget their start in about {own['steps_to_forget']:.2g} steps{flat}"
            + ("." if own["num_steps"] is None else f"; {own['num_steps']} follow in this fit."),
        ]
        return "\n".join(lines)


def choose(
    found: LocalGeometry,
    max_excess: float | None,
    num_examples: int,
    batch_size: int,
    num_steps: int | None,
    covariances: Sequence[str],
    growth: float = 1.0,
) -> NetworkSettings:
    """Returns the kernel with the shortest relaxation time within the bound.

    The order of kernels is SGLD, `UnderdampedLangevin`, `NOGIN`; a later one must need at most a
    third of the steps. If no bound was given and the fit has too few steps, the kernel with the
    least bias is returned instead. The bias is the largest ratio, among directions, between the
    variance of the fit's samples and the right one, in either direction: gradient noise makes
    variances too large, and too few steps make them too small.

    Args:
      found: curvature and noise.
      max_excess: the largest excess temperature; None means 0.1 if the fit has enough steps, and
        the least bias otherwise.
      num_examples: N.
      batch_size: n.
      num_steps: steps of the fit after the pilot; None if unknown.
      covariances: forms in which a kernel can estimate the covariance of the gradient noise.
      growth: expected growth factor of curvature and noise.
    """
    kernels = [("SGLD", None), ("UnderdampedLangevin", None), *(("NOGIN", c) for c in covariances)]
    bound = DEFAULT_BOUND if max_excess is None else max_excess
    grown = found._replace(
        largest_curvature=growth * found.largest_curvature,
        noise=growth * found.noise,
        noise_of_diagonal=growth * found.noise_of_diagonal,
        mean_noise=growth * found.mean_noise,
    )
    near = predictions_for(found, num_examples, batch_size)._replace(found=grown)
    within = best = near.fastest(kernels, bound)
    better, better_steps, size = None, None, batch_size
    if num_steps is not None and near.slowest(within) > num_steps:
        if max_excess is None:
            best = near.least_biased(kernels, within, num_steps)
        while better_steps is None or (better_steps > num_steps and size < num_examples):
            better = size = min(2 * size, num_examples)
            larger = near._replace(scale=noise_scale(num_examples, size, False))
            better_steps = larger.slowest(larger.fastest(kernels, bound))
    curvature = max(float(found.curvature[0]), near.least)
    excess = near.excess(best)
    numbers = {
        **best._asdict(),
        "max_excess_temperature": max_excess,
        "bound": bound,
        "keeps_bound": best == within,
        "num_examples": num_examples,
        "batch_size": batch_size,
        "num_steps": num_steps,
        "largest_curvature": found.largest_curvature,
        "growth": growth,
        "has_hessian": found.has_hessian,
        "has_flat": found.prior_curvature > 0,
        "noise_over_curvature": float(near.scale * found.noise[0]) / curvature,
        "hottest": int(np.argmax(excess[:-1])),
        "predicted_excess_worst": float(np.max(excess)),
        "predicted_excess_mean": float(excess[-1]),
        "steps_to_forget": near.slowest(best),
        "steps_of_hottest": near.of_hottest(best),
        "steps_within_bound": near.slowest(within),
        "share_of_flat": 1.0 if num_steps is None else near.share_of_flat(best, num_steps),
        "better_batch_size": better,
        "better_steps": better_steps,
    }
    return NetworkSettings(numbers, found.scale, found.directions)
