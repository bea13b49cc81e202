"""The noise of minibatches at draws: what it does to variances, and where the guard is at work."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tfp_sgmcmc.adaptation.selection import excess_variance_factor
from tfp_sgmcmc.targets import ControlVariate
from tfp_sgmcmc.targets.control_variates.noise_prediction import RemainderCovariance
from tfp_sgmcmc.targets.laplace.quadratic import GUARD

NUM_STATES = 16  # at which the noise is evaluated at a time
_OF_STEPS = 0.01  # excess variance that a step of 1 may cause, to either side


class Excess(NamedTuple):
    """What noise adds to the variance 1 of a direction: on average, and to the worst direction."""

    mean: float
    worst: float


class Noise:
    """The covariance of a whitened control variate's estimates from one example."""

    def __init__(self, control: ControlVariate):
        self._covariance = RemainderCovariance(control, NUM_STATES)

    def at(self, z: np.ndarray, blocks: int = 1) -> np.ndarray:
        """Returns the mean covariance at 16 states a block out of `z`, `[..., D]`."""
        flat = z.reshape(-1, z.shape[-1])
        picked = flat[np.linspace(0, len(flat) - 1, blocks * NUM_STATES).astype(int)]
        return np.mean([self._covariance(part) for part in np.split(picked, blocks)], axis=0)


def excess_of(covariance: np.ndarray, step_size: float, batch_size: int) -> Excess:
    """Returns the excess variance with n examples a step, by a covariance from one example."""
    factor = excess_variance_factor(step_size) / batch_size
    eigenvalues = factor * np.linalg.eigvalsh(covariance)
    return Excess(float(eigenvalues.mean()), float(eigenvalues[-1]))


def excess_of_parameters(
    covariance: np.ndarray, factor: np.ndarray, step_size: float, batch_size: int
) -> float:
    """Returns the mean over parameters of the relative excess of their variances.

    `factor` is L in theta = center + L z. Directions that the data hardly inform, which have little
    noise, make up most of the variances of parameters.
    """
    ratios = ((factor @ covariance) * factor).sum(axis=-1) / (factor**2).sum(axis=-1)
    return float(excess_variance_factor(step_size) / batch_size * ratios.mean())


def temperature(noise: float, unexplained: float, error: float) -> float:
    r"""Returns the temperature at which the parameters' variances are right on average.

    \[
    T = 1 - m - \frac{0.01^2}{0.01^2 + \sigma^2} u
    \]

    with the mean excess m of the parameters' variances by the noise, and the excess
    \( u \pm \sigma \) that gradients at the pilot's draws show beyond what the noise explains. That
    is the step's effect, of about 0.01.

    >>> round(temperature(0.02, unexplained=0.01, error=0.01), 4)
    0.975
    """
    return 1 - noise - _OF_STEPS**2 / (_OF_STEPS**2 + error**2) * unexplained


def guarded_share(z: np.ndarray) -> float:
    """Returns the share of states `[..., D]` at which the guard w of control variates is below 1.

    >>> guarded_share(np.array([[1.0, 1.0], [2.0, 0.0]]))
    0.5
    """
    return float(np.mean((z**2).mean(axis=-1) > GUARD))
