"""A posterior of posteriordb as a target of this library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

BATCH_SIZE = 100  # of targets, which the automatic run may replace
RADII = {"zeros": 0.0, "uniform": 2.0, "far": 20.0}  # of the uniform starts
tfb = tfp.bijectors


class Posterior(NamedTuple):
    """Functions, data and bijectors of a posterior, with parameters of Stan's names and units.

    Attributes:
      log_prior: parts -> log prior.
      log_likelihood: parts, batch -> log likelihood of each row.
      data: a nest of arrays with a leading axis of rows; floating ones are cast to a target's
        dtype.
      shapes: the shape of each unconstrained part of the state, by name.
      bijector: the bijectors of constrained parts, by name.
      derived: parts by name -> further quantities of the reference by name, or of parts in other
        coordinates, with any leading dimensions.
      reference: the name of the reference draws, if another posterior has them.
      hidden: parts that are not compared, because they have no moments, or are not identified.
    """

    log_prior: Callable[..., tf.Tensor]
    log_likelihood: Callable[..., tf.Tensor]
    data: Any
    shapes: Mapping[str, list[int]]
    bijector: Mapping[str, Any]
    derived: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda parts: {}
    reference: str = ""
    hidden: tuple[str, ...] = ()

    def target(self, dtype: str) -> sgmcmc.MinibatchLogProb:
        num_examples = len(tf.nest.flatten(self.data)[0])
        return sgmcmc.MinibatchLogProb(
            self.log_prior,
            self.log_likelihood,
            self.data,
            min(BATCH_SIZE, num_examples),
            bijector={name: self.bijector.get(name) for name in self.shapes},
            dtype=dtype,
        )

    def start(self, kind: str, dtype: str, seed: int = 0, chains: tuple[int, ...] = ()) -> Any:
        """Returns unconstrained states: zeros, uniform in (-2, 2) as Stan's starts, or far away."""
        rng = np.random.default_rng(seed)
        shapes = {name: (*chains, *shape) for name, shape in self.shapes.items()}
        radius = RADII[kind]
        draw = lambda shape: rng.uniform(-radius, radius, shape)  # noqa: E731
        return {name: tf.constant(draw(shape), dtype) for name, shape in shapes.items()}

    def columns(self, parts: Mapping[str, Any], names: tuple[str, ...]) -> np.ndarray:
        """Returns draws of constrained parts, `[..., event...]`, as columns `[..., D]`."""
        parts = {name: tf.convert_to_tensor(np.asarray(x)) for name, x in parts.items()}
        found = {**parts, **self.derived(parts)}
        return np.stack([entry(found, name) for name in names], axis=-1).astype(np.float64)


def entry(parts: Mapping[str, Any], name: str) -> np.ndarray:
    """Returns an entry by Stan's name of it.

    >>> entry({"beta": np.array([3.0, 4.0])}, "beta[2]")
    array(4.)
    """
    part, _, index = name.removesuffix("]").partition("[")
    x = np.asarray(parts[part])
    return np.asarray(x[..., int(index) - 1] if index else x)


def density(distribution: Any, x: tf.Tensor, *parameters: float) -> tf.Tensor:
    """Returns the log density of a distribution whose parameters have the dtype of `x`."""
    return distribution(*(tf.constant(p, x.dtype) for p in parameters)).log_prob(x)


def gathered(effects: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns the effects `[chains..., K]` of groups, `[n]` or `[chains..., n]`, for each row."""
    return tf.gather(effects, rows, axis=-1, batch_dims=rows.shape.rank - 1)
