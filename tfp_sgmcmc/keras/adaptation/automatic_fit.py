"""Guides the chains of `SamplerCallback("auto")`: pilot, temperatures, check of predictions."""

from __future__ import annotations

import math
import warnings
from typing import Any

import keras

from tfp_sgmcmc.keras.adaptation.linear_predictions import KernelSettings, predictions_for
from tfp_sgmcmc.keras.adaptation.network_pilot import NetworkPilot, batch_size
from tfp_sgmcmc.keras.adaptation.network_settings import NetworkSettings
from tfp_sgmcmc.keras.adaptation.temperature_monitor import TemperatureMonitor
from tfp_sgmcmc.keras.chain.chain import Chain
from tfp_sgmcmc.keras.checks.local_geometry import CompiledGradients, measure_geometry
from tfp_sgmcmc.keras.data.training_data import Source

_AS_PREDICTED = 2.0  # largest factor on a prediction that has held


class AutomaticFit:
    """Guides the chains of a callback with "auto".

    Attributes:
      pilot: chooses the kernel.
      has_failed: whether the last check found unpredicted temperatures; None before.

    Args:
      pilot: the pilot.
      num_burnin_epochs: epochs of the burn-in, which include the pilot.
    """

    def __init__(self, pilot: NetworkPilot, num_burnin_epochs: int):
        self.pilot, self._num_burnin_epochs = pilot, num_burnin_epochs
        self._monitor: TemperatureMonitor | None = None
        self._local = {"worst": math.nan, "mean": math.nan}
        self._has_warned = False
        self.has_failed: bool | None = None
        self._compiled: tuple[Chain, CompiledGradients] | None = None

    @property
    def choices(self) -> NetworkSettings | None:
        """The chosen settings; None before."""
        return self.pilot.choices

    @property
    def temperatures(self) -> dict[str, dict[str, float]]:
        """See `SamplerCallback.temperatures`."""
        if self.choices is None:
            return {}
        found = {"predicted": self.choices.predicted}
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

    def begin_epoch(
        self, chain: Chain | None, source: Source, total_epochs: int, params: dict[str, Any]
    ) -> None:
        """Begins to measure temperatures if burn-in ends after `total_epochs` epochs."""
        is_due = self._monitor is None and total_epochs >= self._num_burnin_epochs
        if self.choices is not None and chain is not None and is_due:
            self._monitor = TemperatureMonitor(self.choices, params["steps"])
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
        choices = self.choices
        if choices is None or chain is None or self._monitor is None or chain.is_pilot:
            return
        if chain.state.status().first_bad >= 0 or source.batch(2) is None:
            return
        own, size = choices.numbers, batch_size(chain, source)
        state, compiled = chain.first_state(), self._compiled_for(chain)
        found = measure_geometry(chain, compiled, state, source, size, choices.scale)
        settings = KernelSettings(*(own[name] for name in KernelSettings._fields))
        excess = predictions_for(found, chain.num_examples, size).excess(settings)
        worst, mean = float(excess.max()), float(excess[-1])
        self._local = {"worst": 1 + worst, "mean": 1 + mean}
        least = max(_AS_PREDICTED * own["predicted_excess_worst"], own["bound"])
        measured, predicted = self._monitor.sure_worst, choices.predicted["worst"]
        is_off = measured > _AS_PREDICTED * predicted or measured < predicted / _AS_PREDICTED
        self.has_failed = is_off or worst > least
        if self._has_warned:
            return
        if is_off:
            self._has_warned = True
            warnings.warn(
                f"The measured temperature of the hottest direction is {measured:.3g}, where "
                f"{predicted:.3g} was predicted. The log posterior or the noise along the chain "
                "differs from the pilot's last measurement, so neither temperature shows whether "
                "the samples are right. Begin again from these weights with a new callback and "
                "more num_burnin_epochs.",
                stacklevel=2,
            )
        elif worst > least:
            self._has_warned = True
            warnings.warn(
                "Gradient noise or curvature has grown since the pilot. At the chain's state the "
                f"linear law gives the hottest direction the temperature {1 + worst:.3g}, where "
                f"{choices.predicted['worst']:.3g} was predicted. The pilot was too short to see "
                "this, so the predicted temperatures do not hold. Begin again from these weights "
                "with a new callback, or with more num_burnin_epochs.",
                stacklevel=2,
            )

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
            "SamplerCallback(pilot.choices.make_kernel, ...), with the same batch size over all "
            "replicas and the weights of the first model."
        )
