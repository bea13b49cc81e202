"""Measures the temperature of the chain in `fit` from its states and gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfp_sgmcmc.diagnostics import configurational_temperature
from tfp_sgmcmc.internal.nest import flatten_events
from tfp_sgmcmc.keras.adaptation.network_settings import ENOUGH, NetworkSettings
from tfp_sgmcmc.keras.chain.chain import Chain
from tfp_sgmcmc.keras.checks.local_geometry import CompiledGradients
from tfp_sgmcmc.keras.data.training_data import Source

_ROWS = 2048  # examples of the gradient; the same ones at all states, so there is no noise
_PER_EPOCH = 20  # measurements
_SURE = 5  # factor on ENOUGH, after which a temperature is within a factor of two
_LEAST = 5  # measurements before a temperature is given, and batches for its standard error


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
