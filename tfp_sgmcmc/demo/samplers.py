"""The samplers that part 1 offers; importing this file does not import TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import tfp_sgmcmc as sgmcmc


class Pilot(NamedTuple):
    r"""The normal approximation at the mode, from which step sizes and preconditioners are set.

    Attributes:
      mode: of the log posterior, `[D]`.
      hessian: of minus the log posterior there, `[D, D]`.
      score_variance: of the single examples' scores there, `[D]`.
      num_examples: N.
      batch_size: n.
    """

    mode: np.ndarray
    hessian: np.ndarray
    score_variance: np.ndarray
    num_examples: int
    batch_size: int

    @property
    def covariance(self) -> np.ndarray:
        return np.linalg.inv(self.hessian)

    @property
    def rms_gradient(self) -> np.ndarray:
        """Root mean square of g / N over the posterior: what `RMSprop` will average to."""
        n, total = self.batch_size, self.num_examples
        noise = total * (total - n) / n * self.score_variance
        return np.sqrt(noise + np.diag(self.hessian)) / total

    def step_size(
        self, matrix: np.ndarray, excess: float = 0.05, batch_size: int | None = None
    ) -> float:
        r"""The epsilon at which the sampled variance is too large by a share of `excess`.

        Near the mode the scores' covariance is about H / N. In the direction of an eigenvalue
        \(\lambda\) of M H, SGLD's variance then exceeds the posterior's by a share of
        \(\epsilon \lambda N / 4 n\), discretisation and minibatch noise together; `excess` is that
        of the worst direction.
        """
        largest = np.linalg.eigvals(matrix @ self.hessian).real.max()
        return 4 * excess * (batch_size or self.batch_size) / self.num_examples / largest


class Sampler(NamedTuple):
    """A row of the table of samplers.

    Attributes:
      label: for the printed table.
      kernel: `(target, pilot, num_steps) -> kernel`.
      all_data: whether a step ends up with all data; it then takes as many fewer steps.
    """

    label: str
    kernel: Callable[[sgmcmc.MinibatchLogProb, Pilot, int], Any]
    all_data: bool = False


def _sgld(target: sgmcmc.MinibatchLogProb, pilot: Pilot, num_steps: int) -> Any:
    return sgmcmc.SGLD(target, pilot.step_size(pilot.covariance), preconditioner=_laplace(pilot))


def _decay(target: sgmcmc.MinibatchLogProb, pilot: Pilot, num_steps: int) -> Any:
    last = pilot.step_size(pilot.covariance)
    schedule = sgmcmc.schedules.PolynomialDecay.from_endpoints(5 * last, last, num_steps // 10)
    schedule = sgmcmc.schedules.ConstantBelow(schedule, last)
    return sgmcmc.SGLD(target, schedule, preconditioner=_laplace(pilot))


def _psgld(target: sgmcmc.MinibatchLogProb, pilot: Pilot, num_steps: int) -> Any:
    # A diagonal M leaves M H far from round: the excess of its worst direction, here 0.4, is eight
    # times that of the mean on the digits. Chains cross the posterior in thousands of steps, in
    # which M must hardly move; div M, which would cost two gradients more a step, vanishes with it.
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


SAMPLERS = {
    "sgld": Sampler("SGLD, M = inverse Hessian at the mode", _sgld),
    "decay": Sampler("SGLD, decaying then constant step, same M", _decay),
    "psgld": Sampler("pSGLD (RMSprop preconditioner)", _psgld),
    "growing": Sampler("SGLD, growing minibatch, same M", _growing, all_data=True),
}
