"""The noise that Fisher scoring injects, of covariance C, and systems with C and the Fisher matrix.

A Fisher matrix estimated from few scores, or of constant or collinear features, is singular. So C
is at least `LEAST` of its diagonal: the sampler then injects as much noise as it adds to the
matrix, which leaves the samples' law what it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.covariance import NoiseCovariance
from tfp_sgmcmc.kernels.base import value_at
from tfp_sgmcmc.kernels.momentum import scaled
from tfp_sgmcmc.preconditioners import FullMatrix
from tfp_sgmcmc.state import (
    State,
    append_dims,
    flatten_events,
    map_parts,
    squared_norm,
    unflatten_events,
)

LEAST = 1e-3


class InjectedNoise(NamedTuple):
    """The covariance C = rate B, before it is raised: a multiple of V, a diagonal, or dense.

    Attributes:
      multiple: how many times V is in C, a scalar or `[chains...]`.
      diagonal: the diagonal of C, in the structure and shapes of the state; zeros for a multiple of
        V.
      dense: C where it is a dense matrix over all entries, `[D, D]` or `[chains..., D, D]`.
      draw: `draw(matrix, share, shift, seed)` returns a draw from N(0, C), C raised: what is not
        `share` of `matrix` (of which multiples of V are made) and not dense is in `shift`.
    """

    multiple: tf.Tensor
    diagonal: State
    dense: tf.Tensor | None
    draw: Callable[[NoiseCovariance, tf.Tensor, State, tf.Tensor], State]


def injected_noise(
    B: Any, rate: tf.Tensor, step: tf.Tensor, state: State, chain_ndims: int, num_examples: int
) -> InjectedNoise:
    """Returns C = rate B for numbers, a `FullMatrix`, or `"fisher"`, which is B = N V.

    Raises:
      ValueError: a B that does not fit the state.
    """
    if isinstance(B, str):
        return InjectedNoise(
            multiple=num_examples * rate,
            diagonal=tf.nest.map_structure(tf.zeros_like, state),
            dense=None,
            draw=lambda matrix, share, shift, seed: matrix.draw(shift, share, seed),
        )
    if isinstance(B, FullMatrix):
        return _dense_noise(B, rate, state, chain_ndims)
    try:
        diagonal = value_at(B, step, state, "B")
    except ValueError as error:
        raise ValueError(f"{error} A matrix over all entries is given as FullMatrix(B).") from error
    return InjectedNoise(
        multiple=tf.zeros_like(rate),
        diagonal=map_parts(lambda x, b: scaled(rate, b + tf.zeros_like(x)), state, diagonal),
        dense=None,
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
    """The diagonal that is added to `matrix`, beside a dense C, and where it is more than C's.

    That is the diagonal of C, at least `LEAST` of the diagonal of `matrix`, but 1 where both are
    zero; and beside a dense C, what the diagonal of that lacks.
    """
    own = noise.diagonal

    def shift(m: tf.Tensor, c: tf.Tensor) -> tf.Tensor:
        raised = tf.maximum(LEAST * m, c)
        return tf.where(m + c > 0, raised if noise.dense is None else raised - c, 1)

    diagonal = matrix.diag_part()
    return map_parts(shift, diagonal, own), map_parts(lambda m, c: LEAST * m > c, diagonal, own)


def solve(
    matrix: NoiseCovariance, noise: InjectedNoise, shift: State, v: State, chain_ndims: int
) -> tuple[State, State]:
    """Returns (matrix + C)^-1 v, and which of its entries could not be had, and are zero.

    Those are the ones where the diagonals of `matrix` and C are both zero; and all of a chain, if
    its system could not be solved in this precision.
    """
    lost = map_parts(lambda m, c: m + c <= 0, matrix.diag_part(), noise.diagonal)
    if noise.dense is not None:
        matrix = matrix.plus(noise.dense)
    x = matrix.solve(shift, 1.0, v)
    failed = ~tf.math.is_finite(squared_norm(x, chain_ndims))
    lost = tf.nest.map_structure(lambda a: a | append_dims(failed, a), lost)
    return map_parts(lambda a, x: tf.where(~a, x, 0), lost, x), lost
