"""States of several parts, and Sigma of each kind as an operator and as NumPy matrices."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tests.harness.every_minibatch import flat
from tfp_sgmcmc.covariance import NoiseCovariance, Solver
from tfp_sgmcmc.covariance.matrices import DenseMatrix, DiagonalMatrix, LowRankMatrix, as_solver

SHAPES = {"a": (2,), "b": (), "w": (2, 2)}
SIZE = 7  # entries of all parts
PLACES = [slice(0, 2), slice(2, 3), slice(3, 7)]  # of each part
KINDS = ["full", "block", "diag", "low_rank"]


def draw_parts(
    generator: np.random.Generator, *leading: int, dtype: Any = np.float64
) -> dict[str, Any]:
    """Draws normal arrays in the structure of the state, with leading dimensions."""
    return {k: generator.standard_normal([*leading, *s]).astype(dtype) for k, s in SHAPES.items()}


def tensors(parts: Any) -> Any:
    return tf.nest.map_structure(tf.constant, parts)


def kept(kind: str) -> np.ndarray:
    """Returns a mask of the entries of V that a kind keeps, `[7, 7]`."""
    part = np.repeat(np.arange(3), [2, 1, 4])
    everything = np.ones([SIZE, SIZE], bool)
    return {"block": part[:, np.newaxis] == part, "diag": np.eye(SIZE, dtype=bool)}.get(
        kind, everything
    )


def explicit(operation: Callable[[Any], Any], chains: tuple[int, ...]) -> np.ndarray:
    """Returns the matrices of a linear map of states, `[chains..., 7, 7]`."""
    columns = []
    for e in np.eye(SIZE):
        v = {k: e[p].reshape(s) for (k, s), p in zip(SHAPES.items(), PLACES, strict=True)}
        v = {k: np.broadcast_to(x, [*chains, *x.shape]) for k, x in v.items()}
        columns.append(flat(operation(tensors(v)), len(chains)))
    return np.stack(columns, axis=-1)


class Example(NamedTuple):
    """Sigma as an operator and as matrices, `[chains..., 7, 7]`."""

    sigma: NoiseCovariance
    matrix: np.ndarray


def make(
    kind: str,
    chains: tuple[int, ...],
    solver: str | Solver = "auto",
    dtype: Any = np.float64,
    noise_scale: float = 3.0,
    copies: int = 1,
) -> Example:
    """Makes Sigma = c V of rank 4 (for `low_rank`) or 7, with c = `noise_scale`.

    The operator has `copies` chains for each chain of the matrices.
    """
    generator = np.random.default_rng(0)
    rows = generator.standard_normal([*chains, 4 if kind == "low_rank" else 12, SIZE])
    weights = generator.uniform(0.1, 1.0, rows.shape[:-1])
    v = np.swapaxes(rows, -1, -2) @ (weights[..., np.newaxis] * rows)
    v = np.where(kept(kind), v, 0)
    solver = as_solver(solver)

    def constant(x: np.ndarray) -> tf.Tensor:
        return tf.constant(x if copies == 1 else np.repeat(x, copies, axis=0), dtype)

    groups, places = [[0], [1], [2]], PLACES
    if kind in ("full", "low_rank"):
        groups, places = [[0, 1, 2]], [slice(0, SIZE)]
    matrices: list[Any] = [DenseMatrix(constant(v[..., p, p]), solver) for p in places]
    if kind == "low_rank":
        matrices = [LowRankMatrix(constant(rows), constant(weights), solver)]
    elif kind == "diag":
        diagonal = np.diagonal(v, axis1=-2, axis2=-1)
        matrices = [DiagonalMatrix(constant(diagonal[..., p])) for p in places]
    like = tf.nest.map_structure(constant, draw_parts(generator, *chains))
    sigma = NoiseCovariance(matrices, groups, noise_scale, like, len(chains))
    return Example(sigma, noise_scale * v)
