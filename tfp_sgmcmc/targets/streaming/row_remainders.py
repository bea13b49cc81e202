"""Remainders of rows' log likelihoods beyond their second-order expansions at a center."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal.nest import State, flatten_events
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.targets.base import kept_program
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb
from tfp_sgmcmc.targets.scores import expansion_remainders
from tfp_sgmcmc.targets.streaming.linear_blocks import NUM_PAIRS, Draws, LinearBlocks, is_simple

_MOST_NUMBERS = 2**20  # of a block's gradients at all draws


class Moments(NamedTuple):
    r"""Moments of rows' remainders over draws of Laplace's approximation, in whitened coordinates.

    Attributes:
      norms: root mean squares of \( |s_i| \), `[n]`.
      means: means of \( s_i \), `[n, D]`. By Stein's identity, a row that counts with an error e
        in its weight moves the posterior's mean by about e times this, in standard deviations.
      tilts: means of \( s_i z \), entry by entry, `[n, D]`, which change variances likewise.
    """

    norms: np.ndarray
    means: np.ndarray
    tilts: np.ndarray


class RowRemainders:
    r"""Computes \( s_i(\theta_k) \), the gradient of row i after its second-order expansion.

    \[
    s_i(\theta) = L^T \left( \nabla \log p(x_i \mid \theta) - \nabla \log p(x_i \mid \hat\theta)
      - \nabla^2 \log p(x_i \mid \hat\theta) \, (\theta - \hat\theta) \right), \qquad
    \theta_k = \hat\theta + L z_k
    \]

    The \( z_k \) are four standard normal draws and their mirror images, for which odd orders
    cancel exactly in `Moments.tilts`, and even ones in products with z.

    Args:
      model: evaluates log likelihoods.
      center: \( \hat\theta \).
      factor: L, `[D, D]`.
      seed: of the draws.
      jit_compile: whether XLA compiles blocks of rows.
      shift: z around which the draws lie, `[D]`; the mode if the center is not at it.
    """

    def __init__(
        self,
        model: MinibatchLogProb,
        center: State,
        factor: np.ndarray,
        seed: tf.Tensor,
        jit_compile: bool = True,
        shift: Any = 0.0,
    ):
        flat = flatten_events(center, 0)
        self._dim, self.factor = flat.shape[0], factor
        z = _mirrored_normals(tuple(seed.numpy().tolist()), self._dim)
        self.at = Draws.of(flat.numpy(), z, (shift + z) @ factor.T, factor, flat.dtype)
        is_linear = is_simple(model)
        blocks = LinearBlocks(model, center) if is_linear else _BlockRemainders(model, center)
        each = self._dim * (1 if is_linear else 2 * NUM_PAIRS)
        #: The number of rows that are evaluated at once.
        self.block_rows = max(64, _MOST_NUMBERS // each)
        self._moments = kept_program(
            model,
            f"moments of rows, {jit_compile=}",
            center,
            lambda: traced(blocks.moments, jit_compile),
        )
        if isinstance(blocks, _BlockRemainders):
            self._norms = kept_program(
                model,
                f"norms of rows, {jit_compile=}",
                center,
                lambda: traced(blocks.norms, jit_compile),
            )

    def norms(self, rows: Any) -> np.ndarray:
        """Returns `Moments.norms` of a block of rows, unless the model is linear."""
        total, size, parts = len(tf.nest.flatten(rows)[0]), self.block_rows, []
        for start in range(0, total, size):
            part = tf.nest.map_structure(lambda x, a=start: x[a : a + size], rows)
            parts.append(self._norms(self.at, part).numpy())
        return np.concatenate(parts).astype(np.float64)

    def moments(self, rows: Any) -> Moments:
        """Returns the moments of a block of up to `block_rows` rows."""
        norms, means, tilts = (np.asarray(x) for x in self._moments(self.at, rows))
        return Moments(norms.astype(np.float64), means, tilts)


@functools.lru_cache(maxsize=8)
def _mirrored_normals(seed: tuple[int, ...], dim: int) -> np.ndarray:
    """Returns normal draws and their mirror images, `[2 NUM_PAIRS, dim]`."""
    half = random.normal([NUM_PAIRS, dim], tf.float64, tf.constant(seed)).numpy()
    return np.concatenate([half, -half])


class _BlockRemainders:
    """Evaluates remainders of a block of rows; draws are arguments, so that programs are kept."""

    def __init__(self, model: MinibatchLogProb, like: State):
        self._model, self._like = model, like

    def norms(self, at: Draws, rows: Any) -> tf.Tensor:
        """Returns `Moments.norms`."""
        return _norms(self._slopes(at, rows))

    def moments(self, at: Draws, rows: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns `Moments`."""
        slopes = self._slopes(at, rows)
        tilts = tf.reduce_mean(slopes * at.z[:, tf.newaxis], axis=0)
        return _norms(slopes), tf.reduce_mean(slopes, axis=0), tilts

    def _slopes(self, at: Draws, rows: Any) -> tf.Tensor:
        """Returns remainders of whitened gradients at each draw, `[K, n, D]`."""
        size = tf.nest.flatten(rows)[0].shape[0]
        given = at.center + at.offsets, at.center, at.offsets
        remainders = expansion_remainders(self._model, self._like, rows, size, *given)
        return tf.linalg.matmul(remainders, at.factor)


def _norms(slopes: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(tf.reduce_mean(tf.reduce_sum(slopes**2, axis=-1), axis=0))
