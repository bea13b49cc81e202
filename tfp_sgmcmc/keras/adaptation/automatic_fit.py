"""Guides the chains of `SamplerCallback("auto")`: pilot, temperatures, check of predictions."""

from __future__ import annotations

import math
import warnings
from typing import Any

import keras
import numpy as np

from tfp_sgmcmc.diagnostics import configurational_temperature
from tfp_sgmcmc.internal.nest import flatten_events
from tfp_sgmcmc.keras.adaptation.linear_predictions import KernelSettings, predictions_for
from tfp_sgmcmc.keras.adaptation.network_pilot import NetworkPilot, batch_size
from tfp_sgmcmc.keras.adaptation.network_settings import ENOUGH, NetworkSettings
from tfp_sgmcmc.keras.chain.chain import Chain
from tfp_sgmcmc.keras.checks.local_geometry import CompiledGradients, measure_geometry
from tfp_sgmcmc.keras.data.training_data import Source

_AS_PREDICTED = 2.0  # largest factor on a prediction that has held
_ROWS = 2048  # examples of the gradient; the same ones at all states, so there is no noise
_PER_EPOCH = 20  # measurements
_SURE = 5  # factor on ENOUGH, after which a temperature is within a factor of two
_LEAST = 5  # measurements before a temperature is given, and batches for its standard error


class AutomaticFit:
    """Guides the chains of a callback with "auto".

    Attributes:
      pilot: chooses the kernel.
      has_failed: whether the last check found unpredicted temperatures; None before.

    Args:
      pilot: the pilot.
    """

    def __init__(self, pilot: NetworkPilot):
        self.pilot = pilot
        self._monitor: TemperatureMonitor | None = None
        self._local = {"worst": math.nan, "mean": math.nan}
        self._has_warned = False
        self.has_failed: bool | None = None
        self._compiled: tuple[Chain, CompiledGradients] | None = None

    @property
    def temperatures(self) -> dict[str, dict[str, float]]:
        """See `SamplerCallback.temperatures`."""
        if self.pilot.choices is None:
            return {}
        found = {"predicted": self.pilot.choices.predicted}
        if self._monitor is not None:
            found |= {"local": self._local, "measured": self._monitor.temperatures}
        return found

    @property
    def logs(self) -> dict[str, float]:
        """The measured temperature of the hottest direction, once there are enough steps.

        All others are in `temperatures`: epoch lines stay short.
        """
        measured = self.temperatures.get("measured", {})
        return {
            f"measured_temperature_{name}": measured[name]
            for name in ("worst", "worst_error")
            if math.isfinite(measured.get(name, math.nan))
        }

    def after_burnin(self, chain: Chain | None, source: Source, params: dict[str, Any]) -> None:
        """Begins to measure temperatures, unless it has begun."""
        if self.pilot.choices is not None and chain is not None and self._monitor is None:
            self._monitor = TemperatureMonitor(self.pilot.choices, params["steps"])
            self.check_prediction(chain, source)

    def at_batch(self, batch: int, chain: Chain | None, source: Source) -> None:
        """Measures temperatures if it is due."""
        if self._monitor is not None and chain is not None:
            self._monitor.at_batch(batch, chain, self._compiled_for(chain), source)

    def check_prediction(self, chain: Chain | None, source: Source) -> None:
        """Compares the predictions with the geometry and the temperatures of the chain.

        Warns:
          UserWarning: the geometry at the chain's state implies more than the bound and more than
            twice the predicted excess temperature, or the measured temperature along the hottest
            direction is more than twice or less than half of the predicted one.
        """
        choices = self.pilot.choices
        if choices is None or chain is None or self._monitor is None or chain.is_pilot:
            return
        if chain.state.status().first_bad >= 0 or source.batch(2) is None:
            return
        own, size = choices.numbers, batch_size(chain, source)
        found = measure_geometry(chain, self._compiled_for(chain), source, size, choices.scale)
        settings = KernelSettings(*(own[name] for name in KernelSettings._fields))
        excess = predictions_for(found, chain.num_examples, size).excess(settings)
        worst, mean = float(excess.max()), float(excess[-1])
        self._local = {"worst": 1 + worst, "mean": 1 + mean}
        least = max(_AS_PREDICTED * own["predicted_excess_worst"], own["bound"])
        measured, predicted = self._monitor.sure_worst, choices.predicted["worst"]
        is_off = measured > _AS_PREDICTED * predicted or measured < predicted / _AS_PREDICTED
        self.has_failed = is_off or worst > least
        if self._has_warned or not self.has_failed:
            return
        self._has_warned = True
        if is_off:
            message = (
                f"The measured temperature of the hottest direction is {measured:.3g}, where "
                f"{predicted:.3g} was predicted. The log posterior or the noise along the chain "
                "differs from the pilot's last measurement, so neither temperature shows whether "
                "the samples are right. Begin again from these weights with a new callback and "
                "more num_burnin_epochs."
            )
        else:
            message = (
                "Gradient noise or curvature has grown since the pilot. At the chain's state the "
                f"linear law gives the hottest direction the temperature {1 + worst:.3g}, where "
                f"{choices.predicted['worst']:.3g} was predicted. The pilot was too short to see "
                "this, so the predicted temperatures do not hold. Begin again from these weights "
                "with a new callback, or with more num_burnin_epochs."
            )
        warnings.warn(message, stacklevel=2)

    def _compiled_for(self, chain: Chain) -> CompiledGradients:
        """Returns the gradients of the sampling chain, compiled once."""
        if self._compiled is None or self._compiled[0] is not chain:
            self._compiled = (chain, CompiledGradients(chain))
        return self._compiled[1]


def check_single_replica(model: keras.Model) -> None:
    """Raises ValueError for a model with several replicas, which pilots do not support."""
    count = model.distribute_strategy.num_replicas_in_sync
    if count > 1:
        raise ValueError(
            'SamplerCallback("auto") needs a model on one device, where the pilot measures the '
            f"gradient noise. Received: a model on {count} replicas. Make and fit the model "
            "outside the strategy's scope for the pilot's epochs, then give the distributed model "
            "SamplerCallback(pilot.result.choices.make_kernel, ...), with the same batch size "
            "over all replicas and the weights of the first model."
        )


class TemperatureMonitor:
    r"""Measures the configurational temperature along the hottest direction, and on average.

    Along a direction u it is the sample covariance of \( -u^T M^{-1/2} \theta \) and
    \( u^T M^{1/2} g \), as in `sgmcmc.diagnostics.configurational_temperature`. It is too low until
    the direction has moved through its whole range, so it is NaN for the first ten relaxation times
    of the linear law: of the hottest direction, and for the mean of the slowest one.

    Args:
      choices: the kernel, with the direction that is predicted to be the hottest.
      steps: calls of `on_train_batch_begin` in an epoch; None if unknown.
    """

    def __init__(self, choices: NetworkSettings, steps: int | None):
        root = np.concatenate([np.sqrt(s).ravel() for s in choices.scale])
        hottest = choices.directions[choices.numbers["hottest"]]
        self._of_state, self._of_gradient = hottest / root, hottest * root
        self._every = max(1, (steps or 10 * _PER_EPOCH) // _PER_EPOCH)
        self._pairs: list[tuple[float, float]] = []
        self._mean_state, self._mean_gradient = np.zeros([2, len(root)])
        self._product = 0.0
        names = {"worst": "steps_of_hottest", "mean": "steps_to_forget"}
        self._enough = {k: ENOUGH * choices.numbers[name] for k, name in names.items()}
        self._steps: list[int] = []  # of the first and the last measurement
        self._batch: Any = None

    def at_batch(
        self, batch: int, chain: Chain, compiled: CompiledGradients, source: Source
    ) -> None:
        """Measures at the first chain's state if it is due."""
        if batch % self._every:
            return
        if self._batch is None:
            self._batch = source.batch(_ROWS)
        state, num_steps = chain.first_state(), chain.state.status().num_steps
        self._steps = [*self._steps[:1], num_steps]
        x = flatten_events(state, 0).numpy().astype(np.float64)
        g = compiled.gradient(state, self._batch).astype(np.float64)
        self._pairs.append((float(x @ self._of_state), float(g @ self._of_gradient)))
        count, off = len(self._pairs), x - self._mean_state
        self._mean_state += off / count
        self._mean_gradient += (g - self._mean_gradient) / count
        self._product += float(off @ (g - self._mean_gradient))

    @property
    def temperatures(self) -> dict[str, float]:
        """The temperature along the hottest direction, its standard error, and the mean.

        They are NaN while unknown. The standard error comes from five batch means.
        """
        count = len(self._pairs)
        if count < _LEAST:
            return {"worst": math.nan, "worst_error": math.nan, "mean": math.nan}
        x, g = np.array(self._pairs).T
        mean = -self._product / ((count - 1) * len(self._mean_state))
        worst = float(configurational_temperature(x[:, None], g[:, None]))
        watched = self._steps[-1] - self._steps[0]
        found = {"worst": worst, "worst_error": standard_error(x, g), "mean": mean}
        is_known = {name: watched >= enough for name, enough in self._enough.items()}
        return {k: v if is_known[k.removesuffix("_error")] else math.nan for k, v in found.items()}

    @property
    def sure_worst(self) -> float:
        """The temperature along the hottest direction, or NaN while its error is large.

        After 50 relaxation times a sample variance is nearly chi-square with 50 degrees of freedom,
        so it is below half or above twice its mean with probability 1e-4. The same holds for 50
        measurements.
        """
        if len(self._pairs) < max(_LEAST, _SURE * ENOUGH):
            return math.nan
        is_sure = self._steps[-1] - self._steps[0] >= _SURE * self._enough["worst"]
        return self.temperatures["worst"] if is_sure else math.nan


def standard_error(x: np.ndarray, gradients: np.ndarray) -> float:
    r"""Returns the standard error of the mean of \( -(x - \bar x)(g - \bar g) \) by batch means.

    It is too small unless a batch is much longer than the correlation time of the products.
    """
    products = (x - x.mean()) * (gradients - gradients.mean())
    means = [np.mean(part) for part in np.array_split(products, _LEAST)]
    return float(np.std(means, ddof=1) / math.sqrt(_LEAST))
