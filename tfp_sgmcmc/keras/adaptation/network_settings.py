"""What `SamplerCallback("auto")` chooses, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.keras.adaptation.linear_predictions import Place
from tfp_sgmcmc.keras.chain.chain import Chain
from tfp_sgmcmc.keras.checks.local_geometry import Landscape
from tfp_sgmcmc.keras.records.recorder import Recorder
from tfp_sgmcmc.keras.records.sample_log import StoredSampleLog
from tfp_sgmcmc.kernels import NOGIN, SGLD, UnderdampedLangevin

DEFAULT_BOUND = 0.1
ENOUGH = 10  # relaxation times that a variance takes to be seen
_STEADY = 2.0  # growth in the last trial up to which a prediction holds
_UNKNOWN = 1e-4  # smallest curvature over the largest, where the prior does not tell
_WITH_MOMENTA: dict[str, Any] = {"UnderdampedLangevin": UnderdampedLangevin, "NOGIN": NOGIN}


class Limits(NamedTuple):
    """What the choice must keep to.

    Attributes:
      bound: the largest excess temperature; None keeps to 0.1 where the fit's steps allow it, and
        otherwise takes the least bias.
      num_examples: N.
      batch_size: n.
      num_steps: steps of the fit after the pilot; None if they are not known.
      covariances: forms in which a kernel can know the covariance of the gradient noise.
      growth: by how much curvature and noise are expected to grow.
    """

    bound: float | None
    num_examples: int
    batch_size: int
    num_steps: int | None
    covariances: tuple[str, ...]
    growth: float = 1.0


class Choices:
    """The kernel that a pilot chose, with what it measured and predicts.

    `print` shows it in words, and `code` the kernel as it can be written by hand. `make_kernel` is
    that kernel: `SamplerCallback(choices.make_kernel, ...)` samples the same chain from the same
    weights.

    Attributes:
      numbers: what was measured, chosen and predicted, by name, as JSON values.
      scale: M, an array for each trainable variable: the preconditioner of SGLD, and the inverse
        mass of the others.
      directions: the noisiest directions in coordinates where M is the identity, `[k, D]`.
    """

    def __init__(self, numbers: Mapping[str, Any], scale: list[Any], directions: Any):
        self.numbers = dict(numbers)
        with tf.init_scope():  # captured by compiled steps, not baked into them
            self._scale = [tf.constant(s) for s in scale]
            self._mass = [1 / s for s in self._scale]
        self.directions = np.asarray(directions)

    @property
    def scale(self) -> list[np.ndarray]:
        return [s.numpy() for s in self._scale]

    @property
    def arrays(self) -> dict[str, Any]:
        """What `numbers` leaves out, for a checkpoint."""
        return {"scale": self.scale, "directions": self.directions}

    def describe(self, chain: Chain, recorder: Recorder) -> None:
        """Has the run of a chain with this kernel keep the choices."""
        chain.kernel_description |= {"choices": self.numbers}
        recorder.also_saved = {"choices": self.arrays}
        if isinstance(recorder.samples, StoredSampleLog):
            recorder.samples.describe(chain.kernel_description)

    @property
    def predicted(self) -> dict[str, float]:
        """The temperatures that were predicted: that of the hottest direction, and their mean."""
        names = ("worst", "mean")
        return {name: 1 + self.numbers[f"predicted_excess_{name}"] for name in names}

    @property
    def doubts(self) -> str | None:
        """Why the temperatures cannot be told beforehand; None if they can."""
        own, found = self.numbers, []
        if own["num_steps"] is not None and own["num_steps"] < ENOUGH * own["steps_of_hottest"]:
            found.append(
                f"the hottest direction takes {own['steps_of_hottest']:.2g} steps to forget its "
                f"start, and only {own['num_steps']} follow in this fit"
            )
        if own["growth"] > _STEADY:
            found.append(
                f"curvature or noise may grow {own['growth']:.3g}-fold from where the pilot ended, "
                "by what its trials met; more num_burnin_epochs would tell"
            )
        return "; ".join(found) or None

    def is_stable(self, found: Landscape) -> bool:
        """Whether the step is stable at the curvature of a place."""
        own = self.numbers
        place = place_of(found, own["num_examples"], own["batch_size"])
        return own["step_size"] < place.most(own["kernel"], margin=1.0)

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
        """What to change if the fit has too few steps for the bound; None if it has enough."""
        own = self.numbers
        if own["num_steps"] is None or own["steps_within_bound"] <= own["num_steps"]:
            return None
        found = (
            f"The gradient noise of batches of {own['batch_size']} is "
            f"{own['noise_over_curvature']:.3g} times the curvature along the noisiest direction. "
            f"An excess temperature of at most {own['bound']:g} would take about "
            f"{own['steps_within_bound']:.2g} steps until flat directions have forgotten "
            f"their start. Received: {own['num_steps']} steps after the pilot. "
        )
        reached = f"{100 * own['share_of_flat']:.2g} % of their variance along flat"
        if own["keeps_bound"]:
            found += f"The bound is kept, and the samples will have {reached} directions. "
        else:
            found += (
                "No step keeps both, and the least bias was chosen: the samples will have "
                f"up to {self.predicted['worst']:.3g} times their variance along the hottest "
                f"direction, and {reached} directions. "
            )
        size, steps = own["better_batch_size"], own["better_steps"]
        most = " (all examples)" if size == own["num_examples"] else ""
        return f"{found}With batch_size={size}{most} it would take about {steps:.2g} steps."

    def __str__(self) -> str:
        own = self.numbers
        known = own["covariance"]
        flat = "" if own["has_flat"] else " if flat ones have 0.0001 of the largest curvature"
        lines = [
            f"The largest curvature of the log posterior is {own['largest_curvature']:.3g} in "
            "units of the preconditioner"
            + ("" if own["growth"] == 1 else f", and {own['growth']:.3g} times as much is expected")
            + ("." if own["has_hessian"] else ", estimated from the noise: no second derivatives."),
            f"The gradient noise of batches of {own['batch_size']} along the noisiest direction is "
            f"{own['noise_over_curvature']:.3g} times the curvature there (N / n = "
            f"{own['num_examples'] / own['batch_size']:.3g}).",
            f"Kernel: {own['kernel']}, step_size={own['step_size']:.3g}"
            + ("" if own["friction"] is None else f", friction={own['friction']:.3g}")
            + ("" if known is None else f', covariance="{known}"')
            + ", with a fixed diagonal preconditioner.",
            f"Predicted temperature: {self.predicted['worst']:.3g} in the hottest direction, "
            f"{self.predicted['mean']:.3g} on average over the weights."
            + (f" It cannot be told for sure: {self.doubts}." if self.doubts else ""),
            f"All directions forget their start in about {own['steps_to_forget']:.2g} steps{flat}"
            + ("." if own["num_steps"] is None else f"; {own['num_steps']} follow in this fit."),
        ]
        return "\n".join(lines)


def choose(found: Landscape, limits: Limits) -> Choices:
    """Returns the kernel that forgets its start in the fewest steps within the bound.

    Of two kernels the simpler one is taken (SGLD, then `UnderdampedLangevin`, then `NOGIN`) unless
    the other needs less than half as many steps. If no bound was given and these steps are too
    many, the kernel with the least bias takes its place: that whose samples, in the fit's steps,
    have the variance that is nearest to the right one by ratio along the direction where it is
    farthest from it, too large by gradient noise or too small for want of steps.
    """
    bound = DEFAULT_BOUND if limits.bound is None else limits.bound
    grown = found._replace(
        largest_curvature=limits.growth * found.largest_curvature,
        noise=limits.growth * found.noise,
        noise_of_diagonal=limits.growth * found.noise_of_diagonal,
        mean_noise=limits.growth * found.mean_noise,
    )
    near = place_of(found, limits.num_examples, limits.batch_size)._replace(found=grown)
    within = near.fastest(_kernels(limits), bound)
    best, num_steps = within, limits.num_steps
    is_slow = num_steps is not None and near.slowest(within) > num_steps
    if is_slow and limits.bound is None:
        best = near.least_biased(_kernels(limits), within, num_steps)
    better, better_steps = None, None
    for size in _larger_batches(limits) if is_slow else ():
        place = near._replace(scale=_noise_scale(limits.num_examples, size))
        better, better_steps = size, place.slowest(place.fastest(_kernels(limits), bound))
        if num_steps is not None and better_steps <= num_steps:
            break
    curvature = max(float(found.curvature[0]), near.least)
    excess = near.excess(best)
    numbers = {
        **best._asdict(),
        "max_excess_temperature": limits.bound,
        "bound": bound,
        "keeps_bound": best == within,
        "num_examples": limits.num_examples,
        "batch_size": limits.batch_size,
        "num_steps": num_steps,
        "largest_curvature": found.largest_curvature,
        "growth": limits.growth,
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
    return Choices(numbers, found.scale, found.directions)


def place_of(found: Landscape, num_examples: int, batch_size: int) -> Place:
    """Returns the landscape as batches of n examples meet it."""
    least = found.prior_curvature or _UNKNOWN * found.largest_curvature
    return Place(found, _noise_scale(num_examples, batch_size), least)


def _kernels(limits: Limits) -> Iterator[tuple[str, str | None]]:
    yield "SGLD", None
    yield "UnderdampedLangevin", None
    for covariance in limits.covariances:
        yield "NOGIN", covariance


def _noise_scale(num_examples: int, batch_size: int) -> float:
    """Returns c, with c V the covariance of the gradient's estimate from a batch."""
    size = min(batch_size, num_examples)
    return num_examples * (num_examples - size) / size


def _larger_batches(limits: Limits) -> Iterator[int]:
    size = 2 * limits.batch_size
    while size < limits.num_examples:
        yield size
        size *= 2
    yield limits.num_examples
