"""The pilot of `SamplerCallback("auto")`: optimises, measures, and chooses a kernel."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.keras.adaptation.linear_predictions import MARGIN
from tfp_sgmcmc.keras.adaptation.network_settings import NetworkSettings, choose
from tfp_sgmcmc.keras.chain.chain import Chain
from tfp_sgmcmc.keras.checks.local_geometry import (
    CompiledGradients,
    LocalGeometry,
    measure_geometry,
)
from tfp_sgmcmc.keras.data.training_data import Source
from tfp_sgmcmc.keras.model.example_scores import draws_numbers
from tfp_sgmcmc.keras.model.layer_calls import layers_with_scores
from tfp_sgmcmc.keras.records import fit_fingerprint
from tfp_sgmcmc.kernels import SGLD
from tfp_sgmcmc.preconditioners import RMSprop
from tfp_sgmcmc.storage.checkpoint import Checkpoint

_RATE, _STEPS = 3e-3, 100.0  # first step of the descent in a weight, and decay time of its steps
_TRIALS = (1, 2, 4)  # relative lengths of trials; longer ones come closer to typical states
_AFTER_FAILURE = 16.0  # factor on the expected growth after a failed trial
_AFTER_SUCCESS = 4.0  # its largest reduction after a successful trial
_FLOOR = 0.1  # entries of M are at most 1 / _FLOOR times that of a typical weight
_LEAST_EPOCHS = 4  # of a burn-in


class NetworkPilot:
    r"""Chooses a kernel in the first three quarters of the burn-in's epochs.

    The first third of the pilot descends to a mode by RMSprop without noise, which removes the
    scale of the gradient of each weight, so the model may be fresh or trained. Then curvature and
    gradient noise are measured, and `choose` selects a kernel with the diagonal preconditioner

    \[ M_{ii} = 1 / (0.1 + \sqrt{V_{ii} / \bar V}), \]

    where V is the average of RMSprop's squared gradients, and its bar the mean over weights.

    Typical states can have far more curvature and noise than a mode, because a prior with unit
    variance lets the weights of a wide network grow, and hot chains meet more noise. So up to three
    trials, each twice as long as the one before, run the chosen kernel, measure again where it
    leads, and choose again. The next choice allows for the growth in the last trial, at most
    ninefold. A trial that becomes NaN or infinite, or reaches a state where its step is unstable,
    is undone, and the next one allows for 16 times as much growth.

    `SGHMC` is not among the kernels. Without the covariance it is `UnderdampedLangevin` with a
    larger discretisation error. With it, its friction must exceed h / 2 times the largest
    eigenvalue of the noise in all directions, which slows flat ones. `NOGIN` damps only the noisy
    ones.

    Attributes:
      choices: the chosen settings; None before.
      starts: the states of several chains at the end of the pilot; None before, and for one chain.

    Args:
      bound: see `AdaptationConstraints`.
      num_burnin_epochs: epochs of the burn-in; None if they follow from the first `fit`.
      choices: the choices of an earlier run of the script, or None.

    Raises:
      ValueError: the burn-in has less than 4 epochs.
    """

    def __init__(
        self,
        bound: float | None,
        num_burnin_epochs: int | None,
        choices: NetworkSettings | None,
    ):
        self.bound, self.choices = bound, choices
        self.starts: list[np.ndarray] | None = None
        self._trial: NetworkSettings | None = None
        self._compiled: CompiledGradients | None = None
        self._found: LocalGeometry | None = None  # at the start of a trial
        self._growth = 1.0
        self._weights: list[np.ndarray] = []  # of the model at the start of a trial
        self._ends: list[int] = []  # epochs after which the descent and the trials end
        if num_burnin_epochs is not None:
            self.settle(num_burnin_epochs)

    def settle(self, num_burnin_epochs: int) -> None:
        """Takes on the number of epochs of the burn-in.

        Raises:
          ValueError: there are less than 4.
        """
        if num_burnin_epochs < _LEAST_EPOCHS:
            raise ValueError(
                f'num_burnin_epochs must be at least {_LEAST_EPOCHS} with kernel="posterior": the '
                "pilot takes the first three quarters of these epochs, which are half of the first "
                f"fit where they are left out. Received: {num_burnin_epochs}. Let fit take more "
                "epochs, of fewer steps_per_epoch if need be."
            )
        last = 3 * num_burnin_epochs // 4
        first = max(1, last // 3)
        ends = np.cumsum([0, *_TRIALS]) / sum(_TRIALS)
        self._ends = sorted({first + round((last - first) * x) for x in ends.tolist()})

    @property
    def role(self) -> Literal["chain", "descent", "trial"]:
        """The role of the next chain."""
        if self.choices is not None:
            return "chain"
        return "descent" if self._trial is None else "trial"

    def make_kernel(self, target: Any) -> tfp.mcmc.TransitionKernel:
        """Returns the kernel over a target: the descent, or the chosen kernel."""
        chosen = self.choices or self._trial
        return self._descent(target) if chosen is None else chosen.make_kernel(target)

    def _descent(self, target: Any) -> tfp.mcmc.TransitionKernel:
        rate = 2 * _RATE / target.num_examples  # M g is about N in each weight

        def step_size(step: tf.Tensor) -> tf.Tensor:
            return rate / tf.sqrt(1 + tf.cast(step, tf.float32) / _STEPS)

        preconditioner = RMSprop(decay=0.99, epsilon=1e-8, gamma=False)
        return SGLD(target, step_size, temperature=0.0, preconditioner=preconditioner)

    def check(self, source: Source) -> None:
        """Raises ValueError for data that cannot be read before the fit, or for growing batches."""
        if source.sizes is not None:
            raise ValueError(
                'kernel must be a function for batches that grow, because "auto" chooses a '
                f'step for batches of one size. Received: "auto" with growth={source.sizes.growth}.'
            )
        if self.choices is None and source.batch(2) is None:
            raise ValueError(
                'SamplerCallback("auto") needs data that can be read before the fit, to measure '
                f"curvature and gradient noise. Received: {source.kind}, which may be read only "
                "once. Give fit arrays, or sgmcmc.keras.IndependentBatches."
            )

    def is_due(self, total_epochs: int) -> bool:
        """Returns whether `measure_and_choose` is due after `total_epochs` epochs."""
        return self.choices is None and total_epochs in self._ends

    def measure_and_choose(
        self, chain: Chain, source: Source, total_epochs: int, num_epochs: int
    ) -> None:
        """Measures at the state of the pilot's chain, and chooses the next kernel.

        Args:
          chain: the pilot's chain.
          source: the data.
          total_epochs: epochs so far.
          num_epochs: remaining epochs of this fit.

        Warns:
          UserWarning: the fit has too few steps for flat directions within the bound.
        """
        size = batch_size(chain, source)
        self._compiled = self._compiled or CompiledGradients(chain)
        num_steps = None if source.num_batches is None else source.num_batches * num_epochs
        several = chain.state.num_chains is not None
        found, state = self._found, [np.asarray(x) for x in chain.state.read()]
        if chain.state.status().first_bad < 0:
            scale = _scale(chain) if found is None else found.scale
            here = measure_geometry(chain, self._compiled, source, size, scale)
            growth = 1.0 if found is None else _growth(found, here)
            if self._trial is None or self._trial.is_stable(here):
                least = max(1.0, self._growth / _AFTER_SUCCESS)
                found, self._growth = here, max(least, min(growth, MARGIN))
        assert found is not None  # because a failed descent raises
        if found is self._found:  # the trial failed
            self._growth *= _AFTER_FAILURE
            for variable, value in zip(chain.model.weights, self._weights, strict=True):
                variable.assign(value)
            state = self.starts or [v.numpy() for v in chain.state.variables]
        known = _covariances(chain, source)
        chosen = choose(found, self.bound, chain.num_examples, size, num_steps, known, self._growth)
        self.starts = state if several else None
        if total_epochs < self._ends[-1]:
            self._trial, self._found = chosen, found
            self._weights = [v.numpy() for v in chain.model.weights]
            return
        self.choices, self._weights, self._found, self._compiled = chosen, [], None, None
        if chosen.advice is not None:
            warnings.warn(chosen.advice, stacklevel=2)


def batch_size(chain: Chain, source: Source) -> int:
    """Returns n, the number of examples of a batch; 32 if unknown."""
    return min(fit_fingerprint.describe_batches(source)["batch_size"] or 32, chain.num_examples)


def make_pilot(
    bound: float | None, run: Checkpoint | None, num_burnin_epochs: int | None, **others: Any
) -> NetworkPilot:
    """Returns the pilot of "auto", with the choices of a stored run. `others` must be None.

    Raises:
      ValueError: an argument is incompatible with "auto".
    """
    for name, value in others.items():
        if value is not None:
            raise ValueError(
                f'{name} must be None with kernel="auto", which measures the gradient '
                f"noise itself. Received: {value!r}."
            )
    return NetworkPilot(bound, num_burnin_epochs, None if run is None else _stored(run))


def _growth(before: LocalGeometry, after: LocalGeometry) -> float:
    """Returns the growth factor of curvature or noise, whichever is larger."""
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
    """Returns the forms in which a kernel can estimate the covariance of the gradient noise.

    Batches must be independent, and scores must come from the backward pass of the gradient. A low
    rank is left to the user, because for more than 1000 weights a few thousand scores estimate it
    too inaccurately, which heats NOGIN.
    """
    if not source.are_independent or source.num_examples is None:
        return ()
    layers = layers_with_scores(chain.model, source.batch(2)[0])
    tapped = {id(v) for layer in layers for v in layer.trainable_variables}
    if draws_numbers(chain.model) or any(id(v) not in tapped for v in chain.state.variables):
        return ()
    return (chain.target_of_one(None).default_covariance,)


def _stored(run: Checkpoint) -> NetworkSettings | None:
    """Returns the choices of a run, or None without any."""
    numbers = run.header["fingerprint"].get("choices")
    if numbers is None:
        return None
    names = sorted(n for n in run.leaves if n.startswith("choices['scale']"))
    scale = [run.leaves[f"choices['scale'][{i}]"] for i in range(len(names))]
    return NetworkSettings(numbers, scale, run.leaves["choices['directions']"])
