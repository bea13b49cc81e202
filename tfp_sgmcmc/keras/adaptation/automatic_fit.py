"""What `SamplerCallback("auto")` does beside sampling: pilot, thermometer, and a look back."""

from __future__ import annotations

import math
import warnings
from typing import Any

import keras

from tfp_sgmcmc.keras.adaptation.excess import Scheme
from tfp_sgmcmc.keras.adaptation.network_pilot import Pilot, batch_size
from tfp_sgmcmc.keras.adaptation.network_settings import Choices, place_of
from tfp_sgmcmc.keras.adaptation.temperature_monitor import Thermometer
from tfp_sgmcmc.keras.chain.chain import Chain
from tfp_sgmcmc.keras.checks.local_geometry import Views, first_state, survey
from tfp_sgmcmc.keras.data.training_data import Source

_AS_PREDICTED = 2.0  # times the predicted excess, up to which the prediction has held


class Automatic:
    """Guides the chains of a callback with "auto".

    Attributes:
      pilot: chooses the kernel.
      has_failed: whether the temperatures were others than predicted at the last look; None before.

    Args:
      pilot: the pilot.
      num_burnin_epochs: epochs of the burn-in, of which the pilot takes a part.
    """

    def __init__(self, pilot: Pilot, num_burnin_epochs: int):
        self.pilot, self._num_burnin_epochs = pilot, num_burnin_epochs
        self._thermometer: Thermometer | None = None
        self._local = {"worst": math.nan, "mean": math.nan}
        self._has_warned = False
        self.has_failed: bool | None = None
        self._views: tuple[Chain, Views] | None = None

    @property
    def choices(self) -> Choices | None:
        """What was chosen; None before."""
        return self.pilot.choices

    @property
    def temperatures(self) -> dict[str, dict[str, float]]:
        """See `SamplerCallback.temperatures`."""
        if self.choices is None:
            return {}
        found = {"predicted": self.choices.predicted}
        if self._thermometer is not None:
            found |= {"local": self._local, "measured": self._thermometer.temperatures}
        return found

    @property
    def logs(self) -> dict[str, float]:
        """The temperatures by the names that the logs give them."""
        return {
            f"{kind}_temperature_{name}": value
            for kind, found in self.temperatures.items()
            for name, value in found.items()
        }

    def begin_epoch(
        self, chain: Chain | None, source: Source, total_epochs: int, params: dict[str, Any]
    ) -> None:
        """Begins to measure if burn-in is over, after so many epochs of all fits."""
        is_due = self._thermometer is None and total_epochs >= self._num_burnin_epochs
        if self.choices is not None and chain is not None and is_due:
            self._thermometer = Thermometer(self.choices, params["steps"])
            self.look_back(chain, source)

    def at_batch(self, batch: int, chain: Chain | None, source: Source) -> None:
        """Measures if it is time."""
        if self._thermometer is not None and chain is not None:
            self._thermometer.at_batch(batch, chain, self._views_of(chain), source)

    def look_back(self, chain: Chain | None, source: Source) -> None:
        """Compares the place where the chain is with what was predicted.

        Warns:
          UserWarning: the noise there makes the chain more than twice as hot above its temperature
            as was predicted, and hotter than the bound, or the measured temperature along the
            hottest direction is more than twice or less than half of what was predicted.
        """
        choices = self.choices
        if choices is None or chain is None or self._thermometer is None or chain.is_pilot:
            return
        if chain.state.status().first_bad >= 0 or source.batch(2) is None:
            return
        own, size = choices.numbers, batch_size(chain, source)
        views = self._views_of(chain)
        found = survey(chain, views, first_state(chain), source, size, choices.scale)
        scheme = Scheme(*(own[name] for name in Scheme._fields))
        excess = place_of(found, chain.num_examples, size).excess(scheme)
        worst, mean = float(excess.max()), float(excess[-1])
        self._local = {"worst": 1 + worst, "mean": 1 + mean}
        least = max(_AS_PREDICTED * own["predicted_excess_worst"], own["bound"])
        measured, predicted = self._thermometer.sure_worst, choices.predicted["worst"]
        is_off = measured > _AS_PREDICTED * predicted or measured < predicted / _AS_PREDICTED
        self.has_failed = is_off or worst > least
        if self._has_warned:
            return
        if is_off:
            self._has_warned = True
            warnings.warn(
                f"The measured temperature of the hottest direction is {measured:.3g}, where "
                f"{predicted:.3g} was predicted. The log posterior or the noise along the chain is "
                "far from what the pilot met at its end, so neither tells how right the samples "
                "are. Begin again from these weights with a new callback, and more "
                "num_burnin_epochs.",
                stacklevel=2,
            )
        elif worst > least:
            self._has_warned = True
            warnings.warn(
                "Gradient noise or curvature has grown since the pilot. At the chain's place the "
                f"temperature of the hottest direction is {1 + worst:.3g} by the linear law, and "
                f"{choices.predicted['worst']:.3g} was predicted. The pilot was too short to see "
                "this, so the predicted temperatures do not hold. Begin again from these weights "
                "with a new callback, or with more num_burnin_epochs.",
                stacklevel=2,
            )

    def _views_of(self, chain: Chain) -> Views:
        """Returns the views of the chain that samples, which are compiled once."""
        if self._views is None or self._views[0] is not chain:
            self._views = (chain, Views(chain))
        return self._views[1]


def check_single_replica(model: keras.Model) -> None:
    """Raises ValueError for a model with several replicas, which a pilot does not support."""
    count = model.distribute_strategy.num_replicas_in_sync
    if count > 1:
        raise ValueError(
            'SamplerCallback("auto") needs a model on one device, where the pilot measures the '
            f"gradient noise. Received: a model on {count} replicas. Make and fit the model "
            "outside the strategy's scope for the pilot's epochs, then give the distributed model "
            "SamplerCallback(pilot.choices.make_kernel, ...), with the same batch size over all "
            "replicas and the weights of the first model."
        )
