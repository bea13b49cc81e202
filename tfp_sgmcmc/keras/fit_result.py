"""The samples of a `SamplerCallback`, and how its fits went."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from tfp_sgmcmc.keras.adaptation.annealed_ensemble import WindowChoice
from tfp_sgmcmc.keras.adaptation.network_settings import NetworkSettings
from tfp_sgmcmc.keras.fit_settings import FitSettings
from tfp_sgmcmc.keras.posterior.posterior import Posterior
from tfp_sgmcmc.keras.records.fit_plan import CheckResults
from tfp_sgmcmc.keras.records.recorder import Recorder
from tfp_sgmcmc.sampling.result import Timings


class FitResult:
    """The samples of a `SamplerCallback` so far, and how its fits went.

    Attributes:
      timings: the times that the last `fit` took. Its first batch counts as compilation.

    Args:
      recorder: holds the chain and its samples.
      results: the latest result of each check.
      settings: the settings of the callback.
    """

    def __init__(self, recorder: Recorder, results: CheckResults, settings: FitSettings):
        self._recorder, self._checks = recorder, results
        self._settings, self._ensemble = settings, settings.ensemble
        self._posterior: Posterior | None = None  # kept for what it has compiled
        self.timings = Timings(0.0, 0.0, np.nan)
        self._began = self._num_before = 0.0
        self._first_call_ended: float | None = None

    def begin_fit(self) -> None:
        """Starts the clock of a `fit`."""
        self._began, self._first_call_ended = time.monotonic(), None
        self.begin_steps()

    def begin_steps(self) -> None:
        """Counts steps from here, as after a saved chain was restored."""
        self._num_before = self._num_steps

    def end_execution(self) -> None:
        """Takes the time after the first compiled call."""
        if self._first_call_ended is None:
            self._first_call_ended = time.monotonic()

    def end_fit(self) -> None:
        """Stops the clock."""
        now = time.monotonic()
        compiled = self._first_call_ended or now
        seconds, steps = now - compiled, self._num_steps - self._num_before
        per_second = steps / seconds if seconds and steps else np.nan
        self.timings = Timings(compiled - self._began, seconds, per_second)

    @property
    def _num_steps(self) -> int:
        chain = self._recorder.chain
        return 0 if chain is None else chain.state.status().num_steps

    def __repr__(self) -> str:
        return f"FitResult({len(self._recorder.samples)} samples, warnings={self.warnings})"

    @property
    def samples(self) -> list[Any]:
        """Samples, `[num_kept, ...]` for each of `model.trainable_variables`.

        If there are several chains, their axis is the second, `[num_kept, num_chains, ...]`.
        Samples in a directory are arrays that read from there what is sliced out of them.
        """
        return self._recorder.trainable_values

    @property
    def non_trainable_samples(self) -> dict[str, Any]:
        """Moving statistics that belong to the samples, in the same layout, by variable path."""
        chain, samples = self._recorder.chain, self._recorder.samples
        if chain is None or not len(samples):
            return {}
        recorded = list(zip(chain.rings.recorded, samples.values, strict=True))
        return {v.path: x for v, x in recorded[len(chain.state.variables) :]}

    @property
    def trace(self) -> dict[str, np.ndarray]:
        """Arrays `[num_kept]`: "step", the step that left each sample, from 0, and "step_size".

        A step size is the largest one of the state's parts.
        """
        samples = self._recorder.samples
        return {"step": samples.steps, "step_size": samples.step_sizes}

    @property
    def warnings(self) -> tuple[str, ...]:
        """The checks that failed when they were made last, and what an automatic `fit` advises."""
        failed = tuple(f"The check of the {name} failed." for name in self._checks.failed)
        advice = None if self.choices is None else self.choices.advice
        return failed if advice is None else (*failed, advice)

    @property
    def posterior(self) -> Posterior:
        """The samples so far as a `Posterior`, which predicts, evaluates and saves.

        Of an annealed ensemble, whose states are kept along the whole run, it has those that
        predict best (see `windows`). They are no draws from the posterior (`is_tempered`).

        If their step sizes differ, these are the samples' weights (see `weighted_expectation` of
        `sgmcmc.diagnostics`), except with a `mixing_distance` and in the sampling phases of a
        `Cyclical`, whose samples have equal weights.

        Raises:
          ValueError: there are no samples yet.
        """
        chain, samples = self._recorder.chain, self._recorder.samples
        if chain is None or not self._num_steps:
            raise ValueError(
                "There are no samples yet, because no fit with this callback has taken a step. If "
                "fit ended with an error, its message says what to change."
            )
        if not len(samples) and self._recorder.failed:
            raise ValueError(
                "There are no samples, because the chain became NaN or infinite before one was "
                "kept. The NonFiniteChainError of fit says what to change."
            )
        if not len(samples):
            raise ValueError(
                "There are no samples yet. Run fit for more steps (batches) than the burn-in takes."
            )
        values = samples.values
        if self._posterior is None:
            recorded, num_chains = chain.rings.recorded, chain.state.num_chains
            self._posterior = Posterior(chain.model, recorded, values, num_chains, temperature=None)
        if self._ensemble is not None:
            every = self._posterior.with_samples(values)
            return self._ensemble.members(every, samples.steps)
        self._posterior.temperature = chain.temperature(int(samples.steps[-1]))
        sizes, collection = samples.step_sizes, self._settings.numbers.collection
        may_weigh = not collection.has_equal_weights and np.isfinite(sizes).all()
        weights = sizes if may_weigh and np.ptp(sizes) > 0 else None
        return self._posterior.with_samples(values, weights)

    @property
    def windows(self) -> WindowChoice | None:
        """From which parts of the run an annealed ensemble predicts; None with a kernel.

        `print` shows them with the loss that the choice expects.
        """
        if self._ensemble is None or not len(self._recorder.samples):
            return None
        _ = self.posterior  # which chooses
        return self._ensemble.choice

    @property
    def choices(self) -> NetworkSettings | None:
        """All that "auto" chose and predicts; None before the pilot is over, and without "auto".

        `print(choices)` explains it, and `choices.code` is the kernel written by hand.
        """
        return None if self._settings.auto is None else self._settings.auto.pilot.choices

    @property
    def temperatures(self) -> dict[str, dict[str, float]]:
        """Predicted and measured temperatures of the kernel that "auto" chose.

        Each kind has "worst", the temperature along the hottest direction, and "mean", the mean
        over the weights. "predicted" and "local" follow from the linear law: "predicted" with the
        noise and curvature that the pilot expects, "local" with those where the chain was when
        burn-in or the last fit ended. "measured" is the configurational temperature after burn-in
        along the direction that is predicted to be the hottest, with a rough standard error,
        "worst_error". It is NaN until the chain has taken ten times the steps in which a direction
        forgets its start. This direction is the hottest one for "worst", and the slowest for
        "mean".
        """
        return {} if self._settings.auto is None else self._settings.auto.temperatures
