"""The step size that a model's curvature and gradient noise suggest for a kernel."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks, extras
from tfp_sgmcmc.keras.adaptation.linear_predictions import (
    KernelSettings,
    LinearPredictions,
    predictions_for,
)
from tfp_sgmcmc.keras.chain.chain import Chain, check_variables
from tfp_sgmcmc.keras.chain.collection import Collection
from tfp_sgmcmc.keras.checks.data_check import check_data
from tfp_sgmcmc.keras.checks.local_geometry import CompiledGradients, measure_geometry
from tfp_sgmcmc.keras.data.fit_batches import training_arrays
from tfp_sgmcmc.keras.data.training_data import Source, check_targets
from tfp_sgmcmc.keras.model import compiled_loss, internals
from tfp_sgmcmc.keras.model.priors import as_log_prior, check_prior

_KERNELS = ("SGLD", "UnderdampedLangevin")
_STEP_SIZES = 61  # of the picture


class StepSize(NamedTuple):
    """A suggested step size, and the measurements behind it.

    Attributes:
      kernel: the name of the kernel.
      step_size: the suggested step size.
      friction: the suggested friction; None for SGLD.
      largest_stable_step: the step size above which the mean dynamics leave the mode.
      largest_curvature: the largest eigenvalue of the negative Hessian of the log posterior.
      noise_over_curvature: the variance of a batch's gradient along its noisiest direction, over
        the curvature there.
      temperature: the temperatures that the linear law gives this step, "worst" of a direction and
        "mean" over the weights.
      steps_to_forget: steps until the slowest direction has forgotten its start.
      place: the measured curvature and noise.
    """

    kernel: str
    step_size: float
    friction: float | None
    largest_stable_step: float
    largest_curvature: float
    noise_over_curvature: float
    temperature: dict[str, float]
    steps_to_forget: float
    place: LinearPredictions

    def __str__(self) -> str:
        friction = "" if self.friction is None else f", friction={self.friction:.3g}"
        return (
            f"The largest curvature of the log posterior is {self.largest_curvature:.3g}; "
            f"{self.kernel} is stable below step_size={self.largest_stable_step:.3g}.\n"
            "The gradient noise of a batch along the noisiest direction is "
            f"{self.noise_over_curvature:.3g} times the curvature there.\n"
            f"Suggested: {self.kernel}(target, step_size={self.step_size:.3g}{friction}). The "
            f"temperature will be {self.temperature['worst']:.3g} in the hottest direction and "
            f"{self.temperature['mean']:.3g} on average, and all directions forget their start in "
            f"about {self.steps_to_forget:.2g} steps."
        )

    def plot(self) -> Any:
        """Returns a `matplotlib.figure.Figure`: temperature and slowness against the step size.

        Raises:
          ModuleNotFoundError: matplotlib is not installed.
        """
        make_figure = extras.import_figure()
        steps = self.largest_stable_step * np.geomspace(1e-6, 0.99, _STEP_SIZES)
        low = min(steps[0], self.step_size / 10)
        steps = np.geomspace(low, steps[-1], _STEP_SIZES)
        schemes = [KernelSettings(self.kernel, h, self.friction) for h in steps.tolist()]
        excess = np.array([self.place.excess(s) for s in schemes])
        slowest = [self.place.slowest(s) for s in schemes]
        figure = make_figure(figsize=(6, 6), layout="constrained")
        above, below = figure.subplots(2, sharex=True)
        above.loglog(steps, np.max(excess, axis=1), label="hottest direction")
        above.loglog(steps, excess[:, -1], label="mean over the weights")
        above.set_ylabel("excess temperature")
        above.legend()
        below.loglog(steps, slowest)
        below.set(xlabel=f"step_size of {self.kernel}", ylabel="steps to forget the start")
        for axes in (above, below):
            axes.axvline(self.step_size, color="k", linestyle=":")
            axes.axvline(self.largest_stable_step, color="r", linestyle="--")
        return figure


def find_step_size(
    model: keras.Model,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    prior: Any,
    batch_size: int = 32,
    kernel: str = "SGLD",
    max_excess_temperature: float = 0.1,
    verbose: Any = "auto",
) -> StepSize:
    r"""Suggests a step size for sampling a model's weights, by curvature and gradient noise there.

    Both are measured at the weights that the model has, so train it first. Along a direction of
    curvature a and noise s the linear law of a step h gives the stationary temperature. For SGLD
    it is \( (1 + h s / 4) / (1 - h a / 4) \). The suggestion is the largest step whose excess
    temperature is within the bound along the twenty noisiest directions and on average, and at most
    the stable step for nine times the curvature, as it grows where a chain goes. A chain that meets
    more noise than there is here will be hotter. `SamplerCallback("auto")` also tries its choice,
    and preconditions.

    Examples:
      >>> import keras, numpy as np, tensorflow_probability as tfp
      >>> import tfp_sgmcmc as sgmcmc
      >>> x = np.random.default_rng(0).normal(size=[1000, 2]).astype(np.float32)
      >>> model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
      >>> model.compile(loss=keras.losses.BinaryCrossentropy(from_logits=True))
      >>> found = sgmcmc.keras.find_step_size(model, x, x[:, :1] > x[:, 1:], batch_size=50,
      ...                                     prior=tfp.distributions.Normal(0., 1.), verbose=0)
      >>> found.kernel, bool(found.step_size < found.largest_stable_step / 9)
      ('SGLD', True)
      >>> make_kernel_fn = lambda target: sgmcmc.SGLD(target, found.step_size)

    Args:
      model: a compiled model.
      x: inputs, a nest of arrays `[N, ...]`: all training examples.
      y: targets, a nest of arrays `[N, ...]`.
      sample_weight: weights, a nest of arrays `[N, ...]`.
      prior: as in `SamplerCallback`.
      batch_size: n, the examples of a batch.
      kernel: "SGLD" or "UnderdampedLangevin", for which a friction is suggested, too.
      max_excess_temperature: by how much the chain may be too hot in any direction, as a share of
        the temperature.
      verbose: whether to print the result: 0, 1 or "auto" (1).

    Raises:
      ValueError: as in `SamplerCallback` and `fit`; an unknown kernel; numbers out of range.
    """
    checks.one_of("kernel", kernel, _KERNELS)
    bound = checks.positive("max_excess_temperature", max_excess_temperature)
    check_prior(prior)
    compiled_loss.check_likelihoods(model)
    tensors, num_examples = training_arrays(x, y, sample_weight)
    arrays = internals.map_arrays(np.asarray, tensors)
    size = min(checks.integer("batch_size", batch_size, 1), num_examples)
    source = Source("arrays", num_examples, size, -(-num_examples // size), arrays)
    check_targets(source)
    compiled_loss.build(model, *source.batch(2))
    check_variables(model.trainable_variables)
    check_data(model, source)
    log_prior = as_log_prior(prior, model)
    chain = Chain(
        model, lambda target: sgmcmc.SGLD(target, 1.0), num_examples, log_prior,
        Collection(0, 0), random.as_seed(0), role="descent",
    )  # fmt: skip
    scale = [np.ones(v.shape, v.dtype) for v in model.trainable_variables]
    found = measure_geometry(chain, CompiledGradients(chain), source, size, scale)
    place = predictions_for(found, num_examples, size)
    best = place.fastest([(kernel, None)], bound)
    excess = place.excess(best)
    stable = place.most(kernel, margin=1.0)
    result = StepSize(
        kernel=kernel,
        step_size=best.step_size,
        friction=best.friction,
        largest_stable_step=stable,
        largest_curvature=found.largest_curvature,
        noise_over_curvature=float(
            place.scale * found.noise[0] / max(found.curvature[0], place.least)
        ),
        temperature={"worst": 1 + float(excess.max()), "mean": 1 + float(excess[-1])},
        steps_to_forget=place.slowest(best),
        place=place,
    )
    if verbose:
        print(result)
    return result
