"""The pilot of `SamplerCallback("auto")`: it comes down, looks around, and chooses a kernel."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.keras.adaptation.linear_predictions import MARGIN
from tfp_sgmcmc.keras.adaptation.network_settings import Choices, Limits, choose
from tfp_sgmcmc.keras.chain.chain import Chain
from tfp_sgmcmc.keras.checks.local_geometry import Landscape, Views, first_state, survey
from tfp_sgmcmc.keras.data.training_data import Source
from tfp_sgmcmc.keras.model.layer_calls import layers_with_scores
from tfp_sgmcmc.keras.records import fit_fingerprint
from tfp_sgmcmc.kernels import SGLD
from tfp_sgmcmc.preconditioners import RMSprop
from tfp_sgmcmc.storage.checkpoint import load
from tfp_sgmcmc.storage.directory import CHECKPOINT

_RATE, _STEPS = 3e-3, 100.0  # the descent's first step in a weight; it falls after so many steps
_TRIALS = (1, 2, 4)  # parts of the pilot: a longer trial sees more of where the chain samples
_AFTER_FAILURE = 16.0  # times the curvature is allowed for after a trial that failed
_AFTER_SUCCESS = 4.0  # times less is allowed for after a trial that did not
_FLOOR = 0.1  # no entry of M is more than 1 / _FLOOR times that of a typical weight
_MOST_FULL = 1000  # weights whose gradient noise has a full covariance


class Pilot:
    r"""Chooses a kernel in the first three quarters of the burn-in's epochs.

    The chain first comes down to a mode by RMSprop without noise, which takes the scale of the
    gradient from each weight, so that fresh and trained models of any kind will do. That takes a
    third of the pilot. Then curvature and gradient noise are measured, and `choose` takes a kernel
    with the diagonal preconditioner

    \[ M_{ii} = 1 / (0.1 + \sqrt{V_{ii} / \bar V}), \]

    where V is the average of RMSprop's squared gradients, and its bar the mean over weights.

    Curvature and noise where a chain samples can be far above those at a mode, as a prior of unit
    variance lets the weights of a wide network grow, and hot chains meet more noise. So the kernel
    is tried, and chosen again by what is found where that leads, up to three times, each time for
    twice as many epochs. Both may go on to grow as in the last trial, or ninefold. A trial that
    becomes NaN or infinite, or comes to where its step is unstable, is taken back, and the next
    one expects 16 times as much growth.

    `SGHMC` is not among the kernels. Without the covariance it is `UnderdampedLangevin` with a
    larger error of the step. With it, its friction must exceed h / 2 times the largest eigenvalue
    of the noise in all directions, which slows flat ones; `NOGIN` damps only the noisy ones.

    Attributes:
      choices: what was chosen; None before.
      starts: where the pilot left several chains; None before, and for a single chain.

    Args:
      bound: see `Limits`.
      num_burnin_epochs: epochs of the burn-in.
      choices: what an earlier run of the script chose, or None.
    """

    def __init__(self, bound: float | None, num_burnin_epochs: int, choices: Choices | None):
        self.bound, self.choices = bound, choices
        self.starts: list[np.ndarray] | None = None
        self._trial: Choices | None = None
        self._views: Views | None = None
        self._found: Landscape | None = None  # where a trial began
        self._growth = 1.0
        self._weights: list[np.ndarray] = []  # of the model where a trial began
        last = 3 * num_burnin_epochs // 4
        first = max(1, last // 3)
        ends = np.cumsum([0, *_TRIALS]) / sum(_TRIALS)
        self._ends = sorted({first + round((last - first) * x) for x in ends.tolist()})

    @property
    def role(self) -> Literal["chain", "descent", "trial"]:
        """What the next chain is for."""
        if self.choices is not None:
            return "chain"
        return "descent" if self._trial is None else "trial"

    def make_kernel(self, target: Any) -> tfp.mcmc.TransitionKernel:
        """Returns the kernel over a target: the descent, or one that was chosen."""
        chosen = self.choices or self._trial
        return self._descent(target) if chosen is None else chosen.make_kernel(target)

    def _descent(self, target: Any) -> tfp.mcmc.TransitionKernel:
        rate = 2 * _RATE / target.num_examples  # M g is about N in each weight

        def step_size(step: tf.Tensor) -> tf.Tensor:
            return rate / tf.sqrt(1 + tf.cast(step, tf.float32) / _STEPS)

        preconditioner = RMSprop(decay=0.99, epsilon=1e-8, gamma=False)
        return SGLD(target, step_size, temperature=0.0, preconditioner=preconditioner)

    def check(self, source: Source) -> None:
        """Raises ValueError for data that cannot be seen beforehand, or whose batches grow."""
        if source.sizes is not None:
            raise ValueError(
                'make_kernel_fn must be a function for batches that grow, because "auto" chooses '
                'a step for batches of one size. Received: "auto" with growth='
                f"{source.sizes.growth}."
            )
        if self.choices is None and source.batch(2) is None:
            raise ValueError(
                'SamplerCallback("auto") must see some of the data, to measure curvature and '
                f"gradient noise. Received: {source.kind}, which may be read only once. Give fit "
                "arrays, or sgmcmc.keras.IndependentBatches."
            )

    def is_due(self, total_epochs: int) -> bool:
        """Whether it is time to look, after so many epochs."""
        return self.choices is None and total_epochs in self._ends

    def look(self, chain: Chain, source: Source, total_epochs: int, num_epochs: int) -> None:
        """Chooses by what is found at the state of the pilot's chain.

        Args:
          chain: the pilot's chain.
          source: the data.
          total_epochs: epochs so far.
          num_epochs: epochs that follow in this fit.

        Warns:
          UserWarning: the bound leaves flat directions too few steps.
        """
        size = batch_size(chain, source)
        self._views = self._views or Views(chain)
        num_steps = None if source.num_batches is None else source.num_batches * num_epochs
        several = chain.state.num_chains is not None
        found, state = self._found, [np.asarray(x) for x in chain.state.read()]
        if chain.state.status().first_bad < 0:
            scale = _scale(chain) if found is None else found.scale
            here = survey(chain, self._views, first_state(chain), source, size, scale)
            growth = 1.0 if found is None else _growth(found, here)
            if self._trial is None or self._trial.is_stable(here):
                least = max(1.0, self._growth / _AFTER_SUCCESS)
                found, self._growth = here, max(least, min(growth, MARGIN))
        assert found is not None  # a descent that fails has raised
        if found is self._found:  # the trial failed
            self._growth *= _AFTER_FAILURE
            for variable, value in zip(chain.model.weights, self._weights, strict=True):
                variable.assign(value)
            state = self.starts or [v.numpy() for v in chain.state.variables]
        covariances = _covariances(chain, source)
        limits = Limits(self.bound, chain.num_examples, size, num_steps, covariances, self._growth)
        chosen = choose(found, limits)
        self.starts = state if several else None
        if total_epochs < self._ends[-1]:
            self._trial, self._found = chosen, found
            self._weights = [v.numpy() for v in chain.model.weights]
            return
        self.choices, self._weights, self._found, self._views = chosen, [], None, None
        if chosen.advice is not None:
            warnings.warn(chosen.advice, stacklevel=2)


def batch_size(chain: Chain, source: Source) -> int:
    """Returns n, the number of examples of a batch, 32 if it is not known."""
    return min(fit_fingerprint.describe_batches(source)["batch_size"] or 32, chain.num_examples)


def pilot_of(
    make_kernel_fn: Any,
    max_excess_temperature: Any,
    directory: Any,
    num_burnin_epochs: int,
    **others: Any,
) -> Pilot | None:
    """Returns the pilot that `make_kernel_fn` asks for, or None for a function.

    `others` are arguments that must be None with "auto".

    Raises:
      ValueError: `make_kernel_fn` is another word, or an argument does not go with "auto".
    """
    bound = max_excess_temperature
    if bound is not None:
        bound = checks.positive("max_excess_temperature", bound)
    if not isinstance(make_kernel_fn, str):
        return None
    if make_kernel_fn != "auto":
        raise ValueError(
            'make_kernel_fn must be "auto" or a function, target -> kernel. Received: '
            f"{make_kernel_fn!r}."
        )
    for name, value in others.items():
        if value is not None:
            raise ValueError(
                f'{name} must be None with make_kernel_fn="auto", which chooses the kernel by the '
                f"gradient noise itself. Received: {value!r}."
            )
    if num_burnin_epochs < 4:
        raise ValueError(
            'num_burnin_epochs must be at least 4 with make_kernel_fn="auto": the pilot takes the '
            f"first three quarters of these epochs. Received: {num_burnin_epochs}."
        )
    return Pilot(bound, num_burnin_epochs, _stored(directory))


def _growth(before: Landscape, after: Landscape) -> float:
    """Returns the factor by which curvature or noise has grown, whichever has more."""
    noise = float(np.max(after.noise) / max(np.max(before.noise), 1e-30))
    return max(after.largest_curvature / max(before.largest_curvature, 1e-30), noise)


def _scale(chain: Chain) -> list[np.ndarray]:
    """Returns the diagonal of M from the squared gradients of the descent."""
    average = chain.state.results.preconditioner_state.average
    if chain.state.num_chains is not None:
        average = [x.mean(axis=0) for x in average]
    total = sum(float(np.sum(x, dtype=np.float64)) for x in average)
    typical = total / sum(x.size for x in average) or 1.0
    return [(1 / (_FLOOR + np.sqrt(x / typical))).astype(x.dtype) for x in average]


def _covariances(chain: Chain, source: Source) -> tuple[str, ...]:
    """Returns the forms in which a kernel can know the covariance of this fit's gradient noise.

    Batches must be independent, and scores must come from the backward pass of the gradient. A low
    rank is left to the user: a few thousand scores say too little of more than 1000 weights for
    NOGIN to solve with, and heat it.
    """
    if not source.are_independent or source.num_examples is None:
        return ()
    layers = layers_with_scores(chain.model, source.batch(2)[0])
    tapped = {id(v) for layer in layers for v in layer.trainable_variables}
    draws = any("seed_generator_state" in v.path for v in chain.model.non_trainable_variables)
    if draws or any(id(v) not in tapped for v in chain.state.variables):
        return ()
    return ("full",) if chain.num_variables <= _MOST_FULL else ("diag",)


def _stored(directory: str | os.PathLike[str] | None) -> Choices | None:
    """Returns the choices of the run in a directory, or None if there are none."""
    if directory is None or not (Path(directory) / CHECKPOINT).is_file():
        return None
    saved = load(Path(directory) / CHECKPOINT)
    numbers = saved.header["fingerprint"].get("choices")
    if numbers is None:
        return None
    names = sorted(n for n in saved.leaves if n.startswith("choices['scale']"))
    scale = [saved.leaves[f"choices['scale'][{i}]"] for i in range(len(names))]
    return Choices(numbers, scale, saved.leaves["choices['directions']"])
