"""The choice of a sampler where the posterior is near the quadratic at its mode."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.kernels import UnderdampedLangevin
from tfp_sgmcmc.sampling.automatic.chains import Chains, gradients_at
from tfp_sgmcmc.sampling.automatic.choices import Choices
from tfp_sgmcmc.sampling.automatic.figures import Fit, fit
from tfp_sgmcmc.sampling.automatic.selection import (
    FRICTION,
    STEP_SIZES,
    Setting,
    cheapest,
    leapfrog,
    safe_settings,
)
from tfp_sgmcmc.sampling.steps import Plan
from tfp_sgmcmc.state import State
from tfp_sgmcmc.targets import (
    ControlVariate,
    FullDataLogProb,
    MinibatchLogProb,
    find_center,
    whiten,
)
from tfp_sgmcmc.targets.predicted_noise import excess_variance_factor, remainder_covariance

_PREDICTION_DRAWS = 16
_WIDER = 1.3  # the pilot's starts, in deviations of Laplace's approximation
_MOST_PILOTS = 4
_HMC_STRIDE = 2


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A kernel that is ready to run, and what was found on the way.

    Attributes:
      kernel: the kernel, whose states are z.
      start: z of all chains.
      bijector: from z to the user's parameters.
      target: the target that estimates gradients at z.
      is_noisy: whether its gradients come from minibatches.
      burn_in, stride: steps before the first draw, and between draws.
      choices: see `Choices`.
      lines: what was done and why.
      flags: what cannot be promised.
    """

    kernel: Any
    start: tf.Tensor
    bijector: Any
    target: Any
    is_noisy: bool
    burn_in: int
    stride: int
    choices: Choices
    lines: tuple[str, ...]
    flags: tuple[str, ...] = ()

    def plan(self, num_results: int) -> Plan:
        return Plan(num_results, self.burn_in, self.stride)

    def gradients_at(self, z: np.ndarray, seed: tf.Tensor) -> np.ndarray:
        return gradients_at(self.target, z, seed)


def prepare(
    problem: MinibatchLogProb,
    state: State,
    num_results: int,
    num_chains: int,
    seed: tf.Tensor,
    jit_compile: bool,
) -> Prepared:
    """Chooses kernel, minibatch and step for a posterior, and tries them in a pilot."""
    start_seed, noise_seed, pilot_seed, check_seed = random.split(seed, 4)
    center, report = find_center(problem, state)
    whitened, bijector = whiten(problem, center)
    dtype = tf.nest.flatten(state)[0].dtype
    dim = sum(x.shape.num_elements() for x in tf.nest.flatten(state))
    zero, total = tf.zeros([dim], dtype), problem.num_examples
    start = tf.cast(_WIDER * random.normal([num_chains, dim], tf.float64, start_seed), dtype)
    exact = FullDataLogProb(whitened)
    lines = [
        f"A mode of the posterior was found in {report.num_passes} passes over {total} examples. "
        f"The curvature there gives coordinates in which the posterior of all {dim} parameters is "
        "about N(0, I), so that one step size suits every posterior."
    ]
    milliseconds: dict[str, float] = {}
    settings: list[Setting] = []
    control: Any = None
    timed: dict[int, Chains] = {}

    def at_batch(n: int) -> Chains:
        if n not in timed:
            smaller = control.with_batch_size(n)
            timed[n] = Chains(
                lambda h: UnderdampedLangevin(smaller, h, FRICTION),
                1.0,
                start,
                pilot_seed,
                jit_compile,
            )
            milliseconds[f"UnderdampedLangevin, n = {n}"] = 1e3 * timed[n].seconds_per_step()
        return timed[n]

    def seconds(n: int) -> float:
        at_batch(n)
        return milliseconds[f"UnderdampedLangevin, n = {n}"] / 1e3

    if total > 1:
        control = ControlVariate(whitened, zero, order=2, importance="pilot")
        draws = random.normal([_PREDICTION_DRAWS, dim], tf.float64, noise_seed).numpy()
        covariance = remainder_covariance(control, draws)
    h, count = leapfrog(dim)
    hmc = Chains(
        lambda e: tfp.mcmc.HamiltonianMonteCarlo(whitened, e, count),
        h,
        start,
        pilot_seed,
        jit_compile,
    )
    of_hmc = hmc.seconds_per_step()
    milliseconds["HamiltonianMonteCarlo"] = 1e3 * of_hmc
    steps, predicted, measured = STEP_SIZES, None, None
    for _ in range(_MOST_PILOTS):
        chosen = None
        if total > 1:
            settings = safe_settings(covariance, total, steps)
            chosen = cheapest(settings, seconds)
        if (
            chosen is None
            or seconds(chosen.batch_size) * chosen.steps_per_draw > _HMC_STRIDE * of_hmc
        ):
            chosen = None
            break
        if predicted is None:
            predicted = chosen.mean, chosen.worst
        chains = at_batch(chosen.batch_size)
        h, n = chosen.step_size, chosen.batch_size
        found = _pilot(
            chains, control.with_batch_size(n), h, chosen.steps_per_draw, start, 200, check_seed
        )
        if found is None:
            steps = tuple(x for x in STEP_SIZES if x < h)
            continue
        z, figures = found
        picked = z[np.linspace(0, len(z) - 1, _PREDICTION_DRAWS // num_chains + 1).astype(int)]
        covariance = remainder_covariance(control, picked.reshape(-1, dim))
        eigenvalues = np.linalg.eigvalsh(covariance) * excess_variance_factor(h, FRICTION) / n
        measured = float(eigenvalues.mean()), float(eigenvalues[-1])
        if figures.excess - measured[0] > 0.015 + 2.5 * figures.error:
            steps = tuple(x for x in STEP_SIZES if x < h)
            continue
        if measured[0] < 1.5 * chosen.mean + 0.002:
            break
    if chosen is None:
        h, count = leapfrog(dim)
        found = _pilot(hmc, exact, h, _HMC_STRIDE, start, 100, check_seed)
        z, figures = found
        arguments: dict[str, Any] = {"step_size": h, "num_leapfrog_steps": count}
        kernel = tfp.mcmc.HamiltonianMonteCarlo(whitened, **arguments)
        name, stride, target, chains = "HamiltonianMonteCarlo", _HMC_STRIDE, exact, hmc
        n = None
    else:
        arguments: dict[str, Any] = {"step_size": h, "friction": FRICTION}
        target = control.with_batch_size(n)
        kernel = UnderdampedLangevin(target, **arguments)
        name, stride = "UnderdampedLangevin", chosen.steps_per_draw
    if n is not None and predicted is not None and measured is not None:
        lines += [
            f"A step takes {n} of the {total} examples, those more often whose log likelihood is "
            "far from its quadratic. Their noise was predicted to make variances "
            f"{100 * predicted[0]:.2g} % too large on average and {100 * predicted[1]:.2g} % in "
            f"the worst direction; at the pilot's draws it is {100 * measured[0]:.2g} % and "
            f"{100 * measured[1]:.2g} %.",
        ]
    costs = ", ".join(f"{k} {v:.3g} ms" for k, v in milliseconds.items())
    lines += [
        f"{name} takes {stride} steps of {h:g} for a nearly independent draw, the cheapest by "
        f"measured times of a step of all chains ({costs}).",
        f"A pilot of {len(z)} draws from dispersed starts had {figures.temperature:.3f} +- "
        f"{figures.error:.3f} of the posterior's variance by its gradients, and "
        f"{figures.radius:.3f} of the Laplace approximation's.",
    ]
    choices = Choices(
        sampler=name,
        arguments=arguments,
        batch_size=n,
        importance=n is not None,
        coordinates="hessian",
        center=tf.nest.map_structure(lambda x: x.numpy(), center),
        start=z[-1],
        seed=(0, 0),
        num_burnin_steps=0,
        num_steps_between_results=stride - 1,
        predicted_excess=predicted,
        measured_excess=measured,
        milliseconds=milliseconds,
    )
    return Prepared(
        kernel,
        tf.constant(z[-1]),
        bijector,
        target,
        n is not None,
        0,
        stride,
        choices,
        tuple(lines),
    )


def _pilot(
    chains: Chains, target: Any, h: float, stride: int, start: tf.Tensor, num_draws: int, seed: Any
) -> tuple[np.ndarray, Fit] | None:
    chains.restart(h, start)
    if not chains.burn_in(10 * stride):
        return None
    z = chains.draw(num_draws, stride)
    if z is None:
        return None
    return z, fit(z, gradients_at(target, z, seed))
