"""The annealed ensemble that `SamplerCallback()` makes: its kernel, its pool and its members."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import keras
import numpy as np

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.keras.annealing.layer_masses import layer_masses
from tfp_sgmcmc.keras.annealing.window_choice import WindowChoice, choose_windows, last_window
from tfp_sgmcmc.keras.data.left_out_pool import LeftOutPool, left_out_pool
from tfp_sgmcmc.keras.data.training_data import Source
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.model.rows_of_chains import RowsOfChains
from tfp_sgmcmc.keras.posterior.posterior import Posterior
from tfp_sgmcmc.kernels.annealed_sghmc import AnnealedSGHMC
from tfp_sgmcmc.schedules import CosineTail, GeometricDecay

NUM_CHAINS, NUM_STATES = 5, 80
_RELAXATION = 100.0  # factor of the prior's variance from the first step to the last
_MASS_AVERAGING, _STEP_FALLS = 0.01, 0.8
_ROWS = 512  # that show the size of the inputs
_ATTENTION = (
    keras.layers.MultiHeadAttention,
    keras.layers.GroupQueryAttention,
    keras.layers.Attention,
    keras.layers.AdditiveAttention,
)


class _Pace(NamedTuple):
    """Steps and temperatures of a run, and a factor of the prior's variances.

    Steps and temperatures have a value where the run begins and one where it ends, and steps also a
    peak.
    """

    first_step: float
    largest_step: float
    last_step: float
    first_temperature: float
    last_temperature: float
    prior_variance: float = 1.0


_PACE = _Pace(7e-4, 5e-3, 5e-4, 0.03, 0.001)
_PACE_OF_RECURRENT = _Pace(3e-3, 3e-3, 3e-4, 0.3, 0.01)
_PACE_OF_ATTENTION = _Pace(3e-3, 3e-3, 3e-4, 0.003, 0.0001)
_PACE_OF_EMBEDDINGS = _Pace(1e-3, 3e-3, 3e-4, 0.003, 0.0001, prior_variance=100.0)


class AnnealedEnsemble:
    r"""Five chains whose prior relaxes and whose temperature falls along one `fit` of K steps.

    With t = k / K after k steps, the kernel is `AnnealedSGHMC` with the first masses m and the
    centres of `layer_masses`, the prior N(0, 2 100^t / m) for weights and N(0, 100^t) for other
    variables, and the temperature \( 0.03\, (0.001 / 0.03)^t \). Masses follow the gradients
    (`mass_averaging` of 0.01). The largest learning rate grows from 0.0007 to 0.005 in the first
    four fifths, and falls to 0.0005 by a cosine over the last one (`CosineTail`), so that early
    states are those of slow training and late ones those of a long way. With recurrent layers it is
    0.003 until it falls to 0.0003, and temperatures are 10 times as high; with attention they are a
    tenth. With embeddings but neither of them it grows from 0.001 to 0.003 and falls to 0.0003,
    temperatures are a tenth, and the prior's variances 100 times as large. All chains see the same
    batches, but each row of a pool is hidden from two of them (see `RowsOfChains`): it counts for
    nothing in their gradients, and N is the number of rows that a chain sees. These chains tell
    afterwards from which part of the run predictions are taken (see `choose_windows`). Inputs of
    layers are measured on the pool.

    Attributes:
      num_steps: K, or None before the first `fit`.
      choice: the windows that `members` chose last; None before.

    Args:
      key: decides which rows make the pool.
    """

    def __init__(self, key: int):
        self._key = key
        self._pool: LeftOutPool | None = None
        self._batch: Any = None  # some rows, if there is no pool
        self.num_steps: int | None = None
        self.choice: WindowChoice | None = None
        self._kernel: dict[str, Any] = {}
        self._members: tuple[int, Posterior] | None = None

    @property
    def rows_of_chains(self) -> RowsOfChains | None:
        """Which rows each chain sees; None if there is no pool."""
        return None if self._pool is None else self._pool.rows

    def settle(self, source: Source, num_examples: int, num_chains: int, num_steps: Any) -> None:
        """Takes on what follows from the data and the length of the first `fit`.

        Raises:
          ValueError: the number of steps is unknown.

        Warns:
          UserWarning: rows cannot be told apart, so there is no pool.
        """
        if not num_steps:
            raise ValueError(
                "SamplerCallback() needs to know how many steps fit takes, because it cools along "
                f"them. Received: {source.kind} of unknown length. Pass fit steps_per_epoch."
            )
        self.num_steps = int(num_steps)
        self._pool = left_out_pool(source, num_examples, num_chains, self._key)
        if self._pool is None:
            self._batch = source.batch(_ROWS)
            reason = (
                f"{source.kind}, which cannot be read again or gives other rows when it is (an "
                "augmentation, for example, is better done in layers of the model)"
                if source.arrays is None
                else f"{num_examples} examples with too few different inputs"
            )
            warnings.warn(
                "SamplerCallback() cannot hide rows from some chains, which choose the part of the "
                f"run that predicts best. Received: {reason}. The last fifth of the run is taken.",
                stacklevel=2,
            )

    def begin_chain(self, model: keras.Model) -> None:
        """Takes on the masses of a built model."""
        assert self.num_steps is not None  # settled
        rows = None if self._batch is None else self._batch[0]
        found = layer_masses(model, rows if self._pool is None else self._pool.x)
        k, pace = self.num_steps, _pace(model)
        self._kernel = {
            "step_size": CosineTail(
                pace.first_step, pace.last_step, k, _STEP_FALLS, pace.largest_step
            ),
            "mass_averaging": _MASS_AVERAGING,
            "mass": [m.mass for m in found],
            "prior_variance": [pace.prior_variance * m.variance for m in found],
            "centers": [(k, m.bias, m.center) for k, m in enumerate(found) if m.bias is not None],
            "prior_scale": GeometricDecay(1.0, _RELAXATION, k),
            "temperature": GeometricDecay(pace.first_temperature, pace.last_temperature, k),
        }

    def make_kernel(self, target: Any) -> AnnealedSGHMC:
        """Returns the kernel over a target with a flat prior."""
        return AnnealedSGHMC(target, **self._kernel)

    def members(self, every: Posterior, steps: np.ndarray) -> Posterior:
        """Returns the states of the chosen windows, from all states and the steps that left them.

        Choosing evaluates each state on the pool.
        """
        if self._members is None or self._members[0] != len(every):
            assert self.num_steps is not None  # there are states
            times = np.minimum((np.asarray(steps[:]) + 1) / self.num_steps, 1.0)
            if self._pool is None:
                self.choice = last_window(times)
            else:
                pool = self._pool
                found = every.log_likelihood(pool.x, pool.y, len(pool.fold), verbose=0)
                self.choice = choose_windows(found.astype(np.float64), times, pool.fold)
            chosen = np.flatnonzero(self.choice.is_chosen)
            samples = [np.asarray(x[:])[chosen] for x in every.samples]
            self._members = len(every), every.with_samples(samples)
        return self._members[1]


def check_alone(**given: Any) -> None:
    """Raises ValueError if arguments are given that belong to a kernel."""
    found = [name for name, value in given.items() if value is not None]
    if found:
        raise ValueError(
            f"{', '.join(found)} must be left out without a kernel, because the annealed ensemble "
            "of SamplerCallback() has its own. Received: a value. For the posterior of the model "
            'give a kernel, such as SamplerCallback("posterior", prior=...).'
        )


def _pace(model: keras.Model) -> _Pace:
    """Returns the pace for the layers of a model that have trainable weights."""
    layers = [layer for layer in internals.layers(model) if layer.trainable_variables]
    if any(isinstance(layer, _ATTENTION) for layer in layers):
        return _PACE_OF_ATTENTION
    if any(isinstance(layer, keras.layers.RNN) for layer in layers):
        return _PACE_OF_RECURRENT
    has_embeddings = any(isinstance(layer, keras.layers.Embedding) for layer in layers)
    return _PACE_OF_EMBEDDINGS if has_embeddings else _PACE


def check_chains(num_chains: int | None) -> int:
    """Returns the number of chains; raises ValueError if it is below 3."""
    return checks.integer("chains", 1 if num_chains is None else num_chains, 3)
