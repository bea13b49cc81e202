"""What `find_center` reports: how it ended, and the shape of the posterior at the center."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal.nest import State
from tfp_sgmcmc.targets.laplace.laplace import laplace
from tfp_sgmcmc.targets.laplace.quadratic import HessianForm, quadratic_at
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb


class Expansion(NamedTuple):
    """What the Hessian at a center is computed from."""

    target: MinibatchLogProb
    center: State
    form: HessianForm


@dataclasses.dataclass(frozen=True)
class CenterReport:
    """How `find_center` ended, with the Hessian and Laplace's approximation at the center.

    Attributes:
      converged: whether `offset` is at most the tolerance.
      offset: the largest entry of the gradient, in units of its standard deviation under the
        posterior: about the distance to the mode in standard deviations. Where parameters are
        strongly correlated, the mode can be farther away.
      log_prob: log posterior at the center.
      gradient_norm: Euclidean norm of the gradient of the log posterior at the center.
      num_passes: number of gradients and Hessian-vector products over all N examples that were
        evaluated.
      num_minibatches: number of gradients of minibatches that were evaluated.
      num_newton_steps: number of damped Newton steps, each of D Hessian-vector products or more.
    """

    converged: bool
    offset: float
    log_prob: float
    gradient_norm: float
    num_passes: int
    num_minibatches: int
    num_newton_steps: int
    expansion: Expansion = dataclasses.field(repr=False, compare=False)

    @functools.cached_property
    def _quadratic(self) -> Any:
        return quadratic_at(*self.expansion)

    @property
    def hessian(self) -> tf.Tensor | tf.linalg.LinearOperator:
        """The Hessian of the log posterior at the center, computed on first use.

        It is a matrix `[D, D]`, or with the form `"low_rank"` or `"diag"` an operator. The order of
        its entries is that of the flattened parts of the center, `tf.nest.flatten`.

        Raises:
          ValueError: as `whiten` does for a center without a finite, negative definite Hessian.
        """
        return self._quadratic.hessian

    @functools.cached_property
    def laplace(self) -> tfp.distributions.Distribution:
        """Laplace's approximation of the posterior, computed on first use.

        It is a distribution of the model's parameters, in the structure of the state, constrained
        if the target has a bijector. Raises as `hessian` does.
        """
        target, center, _ = self.expansion
        return laplace(target.bijector, center, self._quadratic)
