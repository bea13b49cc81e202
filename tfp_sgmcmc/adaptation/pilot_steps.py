"""Compiled steps in coordinates that are arguments of a program, for pilots and the run after them.

A program is kept with its target, so that pilots in other coordinates, the run and later runs do
not compile another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.diagnostics.vector_functions import value_and_gradient_of_z
from tfp_sgmcmc.internal.nest import State, unflatten_events
from tfp_sgmcmc.internal.xla import nest_by_blocks, traced
from tfp_sgmcmc.sampling.loop import FiniteCheck, Loop, Position, start_of
from tfp_sgmcmc.targets import MinibatchLogProb
from tfp_sgmcmc.targets.base import kept_program
from tfp_sgmcmc.targets.laplace.laplace import parameters_bijector

_ROWS = 200  # states whose parameters are computed at once


class Affine(NamedTuple):
    """Coordinates z of flat states: shift + root z.

    Attributes:
      shift: `[D]`.
      root: `[D, D]`, or the diagonal of such a matrix.
    """

    shift: Any
    root: Any

    @property
    def is_dense(self) -> bool:
        return len(self.root.shape) == 2

    def moved(self, z: Any) -> Any:
        """Returns flat states, of z `[..., D]`."""
        if tf.is_tensor(z):
            return self.shift + (tf.linalg.matvec(self.root, z) if self.is_dense else self.root * z)
        return self.shift + (z @ self.root.T if self.is_dense else z * self.root)

    def log_det(self) -> Any:
        """Returns the logarithm of the determinant of a triangular root."""
        return tf.reduce_sum(
            tf.math.log(tf.linalg.diag_part(self.root) if self.is_dense else self.root)
        )

    def tensors(self, dtype: tf.DType) -> Affine:
        return Affine(tf.constant(self.shift, dtype), tf.constant(self.root, dtype))


def log_prob_of_z(
    problem: MinibatchLogProb, like: State, affine: Affine
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the log posterior of z, Jacobian included."""
    log_det = affine.log_det()
    return lambda z: problem(unflatten_events(affine.moved(z), like, 0)) + log_det


def start_with(
    kernel_fn: Callable[[Callable[[tf.Tensor], tf.Tensor]], tfp.mcmc.TransitionKernel],
    problem: MinibatchLogProb,
    like: State,
    affine: Affine,
    z: np.ndarray,
    jit_compile: bool,
) -> Position:
    """Returns the position before the first step, with densities of a program kept by the target.

    An eager evaluation takes long where a prior has automatic batches, or where a bijector takes
    slopes of the prior.

    Args:
      kernel_fn: log posterior of z -> kernel.
      problem: the target.
      like: one unconstrained state.
      affine: the coordinates.
      z: of all chains, `[chains, D]`.
      jit_compile: whether XLA compiles the density of a large target.
    """
    dtype = tf.nest.flatten(like)[0].dtype
    start = start_of(kernel_fn(lambda z: tf.reduce_sum(z, axis=-1)), tf.constant(z, dtype))
    center = unflatten_events(affine.shift, like, 0)
    value, gradient = value_and_gradient_of_z(problem, center, affine.root, jit_compile)(z)
    value = value + affine.log_det().numpy()
    density = tf.constant(value, dtype), tf.constant(gradient, dtype)
    return start._replace(results=_with_density(start.results, *density))


def _with_density(results: Any, log_prob: tf.Tensor, gradient: tf.Tensor) -> Any:
    for name in ("inner_results", "accepted_results"):
        if hasattr(results, name):
            inner = _with_density(getattr(results, name), log_prob, gradient)
            return results._replace(**{name: inner})
    return results._replace(target_log_prob=log_prob, grads_target_log_prob=[gradient])


class PilotSteps:
    """A pilot's compiled steps of z as the `Loop` of a run, which keeps the model's parameters.

    Args:
      problem: the target.
      like: one unconstrained state.
      loop: the pilot's steps.
      values: the arguments of its program in the run.
      affine: the coordinates among them, as tensors.
      jit_compile: whether XLA compiles the density of a large target.
    """

    def __init__(
        self,
        problem: MinibatchLogProb,
        like: State,
        loop: Loop,
        values: Any,
        affine: Affine,
        jit_compile: bool,
    ):
        self._problem, self._like, self._jit_compile = problem, like, jit_compile
        self._loop, self.slots = loop.with_values(values), loop.slots
        self._affine, bijector = affine, parameters_bijector(problem.bijector, like)

        def parameters(z: tf.Tensor, affine: Affine) -> Any:
            return bijector.forward(unflatten_events(affine.moved(z), like, 0))

        self._parameters = kept_program(
            problem, "parameters of z", like, lambda: traced(parameters)
        )
        state, trace, size = self.of_run(loop.kept)
        found = self._parameters(tf.zeros([_ROWS, state.shape[-1]], state.dtype), affine)
        lead = state.shape[:-1]
        self.kept = (
            tf.nest.map_structure(lambda x: tf.TensorSpec(lead + x.shape[1:], x.dtype), found),
            trace,
            size,
        )

    def start(self, kernel: tfp.mcmc.TransitionKernel, z: np.ndarray) -> Position:
        """Returns the position of a run before its first step."""
        affine = Affine(*(x.numpy().astype(np.float64) for x in self._affine))
        return start_with(
            lambda log_prob_fn: kernel.copy(target_log_prob_fn=log_prob_fn),
            self._problem,
            self._like,
            affine,
            np.asarray(z, np.float64),
            self._jit_compile,
        )

    def __call__(
        self, position: Position, rows: int, first: int, stride: int, seed: Any
    ) -> tuple[Position, Any, FiniteCheck]:
        given = rows, first, tf.constant(stride, tf.int64), seed
        position, kept, health = self._loop(self.to_pilot(position), *given)
        z, trace, size = self.of_run(kept)
        states = self._states(z[: max(rows, 1)])
        finite = [np.isfinite(x).all() for x in tf.nest.flatten(states) if x.dtype.kind == "f"]
        if not all(finite):  # exp(z) overflows where z does not
            health = health._replace(states_are_finite=False)
        return self.from_pilot(position), (states, trace, size), health

    def parameters(self, z: tf.Tensor) -> Any:
        """Returns the parameters at z of all chains, `[chains, D]`."""
        return tf.nest.map_structure(tf.constant, self._states(z.numpy()))

    def _states(self, z: np.ndarray) -> Any:
        """Returns parameters by blocks of one size, for which one program is enough."""
        return nest_by_blocks(
            lambda block: self._parameters(block, self._affine), z, _ROWS, self.kept[0]
        )

    def to_pilot(self, position: Position) -> Position:
        """Returns a run's position as one of the pilot."""
        return position

    def from_pilot(self, position: Position) -> Position:
        """Returns a pilot's position as one of the run."""
        return position

    def of_run(self, kept: Any) -> Any:
        """Returns the state, the trace and the step size among what the pilot keeps."""
        return kept
