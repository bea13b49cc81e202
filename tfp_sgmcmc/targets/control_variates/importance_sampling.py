"""Importance sampling of the examples whose second-order remainders are large."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal.checks import require
from tfp_sgmcmc.internal.nest import State, flatten_events, unflatten_events
from tfp_sgmcmc.internal.replicas import device_scope
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.targets.base import ExpansionError
from tfp_sgmcmc.targets.laplace.low_rank_hessian import LowRankHessian
from tfp_sgmcmc.targets.laplace.quadratic import Quadratic
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb
from tfp_sgmcmc.targets.stratified import shards_of

_NUM_DRAWS = 16
_LEAST_SHARE = 1e-4  # of the mean; the draws resolve 6e-8 of it
_MIXED = 0.05  # of the mean, added to all, because remainders at other states differ


class WeightedDraws:
    r"""Draws the examples of a part of a target by their probabilities, with replacement.

    A minibatch has n/S examples of each shard, which are drawn with probabilities \( r_i \) that
    sum to one within the shard. The sum of remainders times \( 1/(N q_i) \), \( q_i = r_i / S \),
    then estimates n/N times the sum over all examples without bias. Data in one place are a single
    shard, with \( q_i = r_i \).

    Attributes:
      probabilities: the \( q_i \) of the part's examples.

    Args:
      target: the target, which determines N and S.
      part: the part of the target.
      weights: weights of the part's examples, to which the \( r_i \) are proportional.
      dtype: dtype of the weights of a minibatch.
    """

    def __init__(self, target: Any, part: Any, weights: np.ndarray, dtype: tf.DType):
        shards = shards_of(part)
        firsts = np.cumsum([0, *(shard.size for shard in shards)])
        self._tables = []
        for shard, first in zip(shards, firsts, strict=False):
            own = weights[first : first + shard.size]
            table = random.AliasTable.from_probabilities(own / own.sum())
            self._tables.append((shard.number, int(first), table))
        found = np.concatenate([table.probabilities for *_, table in self._tables])
        self.probabilities = found / getattr(target, "num_shards", 1)
        self._weights = tf.constant(1 / (target.num_examples * self.probabilities), dtype)

    def __call__(self, part: Any, seed: tf.Tensor, chains: Any) -> tuple[tf.Tensor, tf.Tensor]:
        r"""Returns the indices of a minibatch of the part, and weights \( 1/(N q_i) \)."""
        chains = [] if part.shared_batch else chains
        positions, found = tf.range(part.batch_size // len(self._tables)), []
        for number, first, table in self._tables:
            named = tf.constant(0 if number is None else number, tf.int32)
            own = seed if number is None else random.numbered_seed(seed, named)
            found.append(first + table.draw(own, positions, chains))
        indices = found[0] if len(found) == 1 else tf.concat(found, axis=-1)
        return indices, tf.gather(self._weights, indices)


def weighted_draws(
    target: Any,
    importance: Any,
    quadratic: Quadratic | LowRankHessian,
    center: State,
    squared_norms: Any,
) -> dict[int, WeightedDraws]:
    """Returns the draws of each part of a target that this process holds, by the part's number.

    Args:
      target: the target.
      importance: "pilot", or N positive numbers in the order of all examples.
      quadratic: the expansion at the center.
      center: the center.
      squared_norms: see `pilot_weights`.

    Raises:
      ValueError: the numbers are not N positive finite ones, or remainders are not finite, here or
        on another worker.
    """
    if isinstance(importance, str) and importance == "pilot":

        def weights_of(part: Any) -> np.ndarray:
            return pilot_weights(part, center, quadratic, squared_norms)

    else:
        given = np.asarray(importance)
        each = f"{target.num_examples} positive finite numbers, one for each example"
        expected = f"None, 'pilot' or {each}"
        fits = given.shape == (target.num_examples,) and given.dtype.kind in "iuf"
        require("importance", f"shape {given.shape}, dtype {given.dtype}", fits, expected)
        given = given.astype(np.float64)
        wrong = ~(np.isfinite(given) & (given > 0))
        require("importance", given[wrong][:3], not wrong.any(), expected)
        _check_spread(given)

        def weights_of(part: Any) -> np.ndarray:
            return np.concatenate([given[s.start : s.start + s.size] for s in shards_of(part)])

    def draws() -> dict[int, WeightedDraws]:
        found, dtype = {}, flatten_events(center, 0).dtype
        for part in target.parts:
            with device_scope(target.replicas, part.number):
                found[part.number] = WeightedDraws(target, part, weights_of(part), dtype)
        return found

    if target.replicas is None:
        return draws()
    return target.replicas.together("weigh its examples", draws)


def _check_spread(weights: np.ndarray) -> None:
    """Raises ValueError for weights so small that their examples would hardly be drawn."""
    shares = weights / weights.mean()
    if shares.min() < _LEAST_SHARE:
        raise ValueError(
            f"importance must be at least {_LEAST_SHARE:g} of its mean for each example, because "
            "an example that is hardly ever drawn has a huge weight when it is. Received: "
            f"{shares.min():.3g} of the mean for example {int(shares.argmin())}. Add a share of "
            f"the mean to all, such as importance + {_MIXED} * np.mean(importance)."
        )


def pilot_weights(
    part: MinibatchLogProb,
    center: State,
    quadratic: Quadratic | LowRankHessian,
    squared_norms: Any,
) -> np.ndarray:
    r"""Returns examples' remainders under Laplace's approximation, plus 5 % of their shard's mean.

    \[
    r_i \propto m_i + 0.05 \, \bar m, \qquad
    m_i^2 = \frac 1 {16} \sum_{k=1}^{16} s_i(\theta_k)^T (-H)^{-1} s_i(\theta_k), \qquad
    \theta_k \sim N(\hat\theta, (-H)^{-1})
    \]

    Each of the 16 draws takes a pass over the data. `squared_norms(states, rows, size)` returns the
    \( m_i^2 \) of `size` rows at the draws.
    """
    flat = flatten_events(center, 0)
    normals = random.normal([_NUM_DRAWS, flat.shape[0]], tf.float64, random.as_seed(0))
    state = unflatten_events(flat + quadratic.root(tf.cast(normals, flat.dtype)), center, 0)
    total = part.num_examples
    size = max(1, min(part.chunk_size // _NUM_DRAWS, total))

    # Compiled by XLA, because oneDNN cannot vectorise the product of a whitened target in 32 bits.
    def squares(start: tf.Tensor) -> tf.Tensor:
        indices = tf.minimum(start + tf.range(size), total - 1)
        return squared_norms(state, part.rows(indices), size)

    compiled = traced(squares, jit_compile=True)
    found = [compiled(tf.constant(start)) for start in range(0, total, size)]
    norms = np.sqrt(np.concatenate(found)[:total].astype(np.float64))
    if not np.isfinite(norms).all():
        raise ExpansionError(
            "The remainders of all examples must be finite for importance='pilot'. Received: NaN "
            "or infinite ones at draws of Laplace's approximation. Use importance=None."
        )
    firsts = np.cumsum([0, *(shard.size for shard in shards_of(part))])
    for own in np.split(norms, firsts[1:-1]):
        # A quadratic log likelihood leaves no remainders, whichever examples are drawn.
        own += _MIXED * own.mean() if own.any() else 1.0
    return norms
