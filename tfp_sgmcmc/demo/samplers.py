"""The samplers that part 1 offers; importing this file does not import TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.kernels import registry as registry

EXCESS = 0.05  # of the variance, in the worst direction, by which step sizes are set


class Pilot(NamedTuple):
    """The normal approximation at the mode, from which step sizes and preconditioners are set."""

    mode: np.ndarray  # mode of the log posterior, [D]
    hessian: np.ndarray  # Hessian of minus the log posterior at the mode, [D, D]
    score_variance: np.ndarray  # variance of the single examples' scores at the mode, [D]
    num_examples: int  # N
    batch_size: int  # n
    # Largest eigenvalue of the covariance of the gradient noise, in coordinates in which the normal
    # approximation has the covariance I; the median over draws of the approximation. Only samplers
    # in these coordinates need it, and it is NaN for others.
    noise: float = np.nan

    @property
    def covariance(self) -> np.ndarray:
        return np.linalg.inv(self.hessian)

    @property
    def rms_gradient(self) -> np.ndarray:
        """Root mean square of g / N over the posterior, to which `RMSprop` converges."""
        n, total = self.batch_size, self.num_examples
        noise = total * (total - n) / n * self.score_variance
        return np.sqrt(noise + np.diag(self.hessian)) / total

    def step_size(
        self, matrix: np.ndarray, excess: float = EXCESS, batch_size: int | None = None
    ) -> float:
        r"""Returns the epsilon at which the sampled variance is too large by a share of `excess`.

        Near the mode the covariance of the scores is about H / N. In the direction of an eigenvalue
        \(\lambda\) of M H, SGLD's variance then exceeds the posterior's by a share of
        \(\epsilon \lambda N / 4 n\), from discretisation and minibatch noise together. `excess`
        is the share in the worst direction.
        """
        largest = np.linalg.eigvals(matrix @ self.hessian).real.max()
        return 4 * excess * (batch_size or self.batch_size) / self.num_examples / largest


class Sampler(NamedTuple):
    """A choice of the option `--sampler`."""

    label: str  # the name in the printed table
    # `(target, pilot, num_steps) -> kernel`
    kernel: Callable[[sgmcmc.MinibatchLogProb, Pilot, int], Any]
    # Whether a step takes all data, at least in the end. The sampler then takes proportionally
    # fewer steps.
    all_data: bool = False
    # Whether the target has coordinates in which the normal approximation is N(0, I).
    is_whitened: bool = False


def _sgld(target: sgmcmc.MinibatchLogProb, pilot: Pilot, num_steps: int) -> Any:
    return sgmcmc.SGLD(target, pilot.step_size(pilot.covariance), preconditioner=_laplace(pilot))


def _decay(target: sgmcmc.MinibatchLogProb, pilot: Pilot, num_steps: int) -> Any:
    last = pilot.step_size(pilot.covariance)
    schedule = sgmcmc.schedules.PolynomialDecay.from_endpoints(5 * last, last, num_steps // 10)
    schedule = sgmcmc.schedules.ConstantBelow(schedule, last)
    return sgmcmc.SGLD(target, schedule, preconditioner=_laplace(pilot))


def _psgld(target: sgmcmc.MinibatchLogProb, pilot: Pilot, num_steps: int) -> Any:
    # With a diagonal M, the eigenvalues of M H differ widely. On the digits the excess in the worst
    # direction, 0.4, is eight times the mean excess. Chains cross the posterior in thousands of
    # steps, in which M must hardly move. So div M, which costs two gradients a step, is left out.
    return sgmcmc.SGLD(
        target,
        pilot.step_size(np.diag(1 / pilot.rms_gradient), excess=0.4),
        preconditioner=sgmcmc.preconditioners.RMSprop(decay=0.9999, gamma=False),
    )


def _growing(target: sgmcmc.MinibatchLogProb, pilot: Pilot, num_steps: int) -> Any:
    growing = sgmcmc.GrowingBatch(target, growth=1.1, initial_size=target.batch_size)
    step_size = pilot.step_size(pilot.covariance, batch_size=target.num_examples)
    return sgmcmc.SGLD(growing, step_size, preconditioner=_laplace(pilot))


def _laplace(pilot: Pilot) -> sgmcmc.preconditioners.FullMatrix:
    return sgmcmc.preconditioners.FullMatrix(pilot.covariance)


def _from_registry(row: registry.RegisteredSampler) -> Sampler:
    """Returns a row of the registry in whitened coordinates, where all curvatures are 1.

    At the friction 1 / h, noise of the covariance Sigma heats by h^2 Sigma / 2, which is `EXCESS`
    here. `UnderdampedLangevin` needs that, as it does not correct for noise. Other samplers cross
    the posterior fastest at the friction 1.
    """

    def kernel(target: sgmcmc.MinibatchLogProb, pilot: Pilot, num_steps: int) -> Any:
        noise = 0.0 if row.all_data else pilot.noise
        h = (2 * EXCESS / (1 + noise)) ** 0.5
        friction = 1 / h if row.name == "UnderdampedLangevin" else 1.0
        return row.make(target, h, friction, noise, "full")

    return Sampler(f"{row.label}, whitened coordinates", kernel, row.all_data, is_whitened=True)


SAMPLERS = {
    "sgld": Sampler("SGLD, M = inverse Hessian at the mode", _sgld),
    "decay": Sampler("SGLD, decaying then constant step, same M", _decay),
    "psgld": Sampler("pSGLD (RMSprop preconditioner)", _psgld),
    "growing": Sampler("SGLD, growing minibatch, same M", _growing, all_data=True),
}
for _row in registry.SAMPLERS:
    SAMPLERS.setdefault(_row.label.lower().replace(" ", "-"), _from_registry(_row))
