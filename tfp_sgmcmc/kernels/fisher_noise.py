"""The noise that Fisher scoring injects, of covariance C, and systems with C and the Fisher matrix.

A Fisher matrix of few scores, or of constant or collinear features, is singular. C is therefore at
least `LEAST` of its diagonal, in the matrix and in the noise, so the samples keep their law.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.covariance import CovarianceEstimator, Diag, NoiseCovariance
from tfp_sgmcmc.internal.nest import (
    State,
    append_dims,
    flatten_events,
    map_parts,
    num_entries,
    squared_norm,
    unflatten_events,
)
from tfp_sgmcmc.kernels.base import value_at
from tfp_sgmcmc.kernels.momentum import scaled
from tfp_sgmcmc.preconditioners import FullMatrix
from tfp_sgmcmc.targets.base import Target

LEAST = 1e-3


class InjectedNoise(NamedTuple):
    """The covariance C = rate B, before it is raised: a multiple of V, a diagonal, or dense.

    Attributes:
      multiple: the factor of V in C, a scalar or `[chains...]`.
      diagonal: the diagonal of C, in the structure of the state; zeros for a multiple of V.
      draw: `draw(matrix, share, shift, seed)` returns a draw from N(0, C) with C raised. C is the
        sum of `share` times `matrix` (if it is a multiple of V), `dense` and the diagonal `shift`.
      dense: C if it is a dense matrix over all entries, `[D, D]` or `[chains..., D, D]`.
    """

    multiple: tf.Tensor
    diagonal: State
    draw: Callable[[NoiseCovariance, tf.Tensor, State, tf.Tensor], State]
    dense: tf.Tensor | None = None


def injected_noise(
    B: Any, rate: tf.Tensor, step: tf.Tensor, state: State, chain_ndims: int, fisher: tf.Tensor
) -> InjectedNoise:
    """Returns C = rate B for numbers, a `FullMatrix`, or a name, which is B = `fisher` V."""
    if isinstance(B, str):
        return InjectedNoise(
            multiple=fisher * rate,
            diagonal=tf.nest.map_structure(tf.zeros_like, state),
            draw=lambda matrix, share, shift, seed: matrix.draw(shift, share, seed),
        )
    if isinstance(B, FullMatrix):
        return _dense_noise(B, rate, state, chain_ndims)
    try:
        diagonal = value_at(B, step, state, "B")
    except ValueError as error:
        raise ValueError(f"{error} Give a matrix over all entries as FullMatrix(B).") from error
    return InjectedNoise(
        multiple=tf.zeros_like(rate),
        diagonal=map_parts(lambda x, b: scaled(rate, b + tf.zeros_like(x)), state, diagonal),
        draw=lambda _, share, shift, seed: _diagonal_draw(shift, seed),
    )


def _dense_noise(B: FullMatrix, rate: tf.Tensor, state: State, chain_ndims: int) -> InjectedNoise:
    local, _ = B.evaluate(state, chain_ndims)
    with tf.init_scope():  # a captured tensor, not a constant in every compiled program
        matrix = tf.constant(B.matrix, rate.dtype)
    flat = tf.linalg.diag_part(matrix) + tf.zeros_like(flatten_events(state, chain_ndims))
    diagonal = unflatten_events(flat, state, chain_ndims)

    def draw(_: NoiseCovariance, share: tf.Tensor, shift: State, seed: tf.Tensor) -> State:
        del share
        seeds = random.split(seed, 2)
        dense = local.sqrt_multiply(random.normal_like(state, seeds[0]))
        rest = _diagonal_draw(shift, seeds[1])
        return map_parts(lambda x, y: scaled(tf.sqrt(rate), x) + y, dense, rest)

    return InjectedNoise(
        multiple=tf.zeros_like(rate),
        diagonal=tf.nest.map_structure(lambda b: scaled(rate, b), diagonal),
        dense=(rate[..., tf.newaxis, tf.newaxis] if rate.shape.rank else rate) * matrix,
        draw=draw,
    )


def _diagonal_draw(variances: State, seed: tf.Tensor) -> State:
    return map_parts(lambda c, z: tf.sqrt(c) * z, variances, random.normal_like(variances, seed))


def raised_shift(matrix: NoiseCovariance, noise: InjectedNoise) -> tuple[State, State]:
    """Returns the diagonal to add to `matrix` and a dense C, and where it exceeds C's.

    With a dense C it is C's diagonal, at least `LEAST` of `matrix`'s, or 1 where both are zero.
    """
    diagonal, given = matrix.diag_part(), noise.diagonal

    def shift(m: tf.Tensor, c: tf.Tensor) -> tf.Tensor:
        raised = tf.maximum(LEAST * m, c)
        return tf.where(m + c > 0, raised if noise.dense is None else raised - c, 1)

    return map_parts(shift, diagonal, given), map_parts(lambda m, c: LEAST * m > c, diagonal, given)


def solve(
    matrix: NoiseCovariance, noise: InjectedNoise, shift: State, v: State, chain_ndims: int
) -> tuple[State, State]:
    """Returns (matrix + C)^-1 v, and which of its entries are unknown and set to zero.

    Those have zeros on the diagonals of `matrix` and C, or belong to a chain whose system could not
    be solved in this precision. Where v is not finite, x is not finite either.
    """
    lost = map_parts(lambda m, c: m + c <= 0, matrix.diag_part(), noise.diagonal)
    if noise.dense is not None:
        matrix = matrix.plus(noise.dense)
    x = matrix.solve(shift, 1.0, v)
    solvable = tf.math.is_finite(squared_norm(v, chain_ndims))
    failed = solvable & ~tf.math.is_finite(squared_norm(x, chain_ndims))
    lost = tf.nest.map_structure(lambda a: a | append_dims(failed, a), lost)
    return map_parts(lambda a, x, v: tf.where(a, 0 * v, x), lost, x, v), lost


def check_regular(
    covariance: CovarianceEstimator,
    target: Target,
    rate: tf.Tensor,
    is_fisher: bool,
    state: State,
    chain_ndims: int,
    rank: int | None,
) -> None:
    """Raises ValueError if the matrix of the first move, of at most that rank, is singular."""
    value = tf.get_static_value(rate)
    is_zero = value is not None and bool(np.any(value == 0))
    if is_zero and (target.noise_scale == 0 or target.becomes_exact):
        raise ValueError(
            "alpha must be positive if the target's minibatch holds or comes to hold all its "
            "examples, which bring no noise. Received: alpha = 0. Use a positive alpha or a "
            "smaller minibatch."
        )
    parts = tf.nest.flatten(state)
    if rank is None or not (is_zero or is_fisher) or isinstance(covariance, Diag):
        return
    for group in covariance.groups(parts):
        size = num_entries([parts[i] for i in group], chain_ndims)
        if rank < size:
            raise ValueError(
                f"The target's scores must span {size} dimensions, because with alpha = 0 or "
                f"B = 'fisher' a matrix of {size} entries is solved with. Received: "
                f"{target.num_scores} scores (its batch_size or num_groups), of which the first "
                f"matrix has a rank of at most {rank}. Use more scores or more steps of "
                "estimation, a positive alpha with another B, or covariance='diag'."
            )
