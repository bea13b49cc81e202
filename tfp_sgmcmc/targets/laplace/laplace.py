"""Laplace's approximation of a posterior, and its bijector from a standard normal."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal.nest import State, flatten_events
from tfp_sgmcmc.targets.bijectors import in_structure, is_joint, map_bijectors
from tfp_sgmcmc.targets.laplace.low_rank_hessian import LowRankHessian
from tfp_sgmcmc.targets.laplace.quadratic import Quadratic

tfb, tfd = tfp.bijectors, tfp.distributions


def laplace(
    bijector: Any, center: State, quadratic: Quadratic | LowRankHessian
) -> tfd.Distribution:
    """Returns Laplace's approximation in the coordinates of the model's parameters."""
    flat = flatten_events(center, 0)
    standard = tfd.Sample(tfd.Normal(tf.zeros([], flat.dtype), 1.0), flat.shape)
    return laplace_bijector(bijector, center, quadratic)(standard)


def laplace_bijector(
    bijector: Any, center: State, quadratic: Quadratic | LowRankHessian
) -> tfb.Bijector:
    r"""Returns the map from z, `[D]`, to the model's parameters at \( \hat\theta + L z \).

    Args:
      bijector: the target's bijector, from states to parameters.
      center: \( \hat\theta \), one state without chain dimensions.
      quadratic: the expansion there.
    """
    flat = flatten_events(center, 0)
    if isinstance(quadratic, LowRankHessian):
        scale = LowRankScale(quadratic)
    else:
        scale = tfb.ScaleMatvecTriL(tf.constant(quadratic.factor, flat.dtype))
    return vector_bijector(bijector, center, [tfb.Shift(flat), scale])


def vector_bijector(bijector: Any, like: State, steps: list[tfb.Bijector]) -> tfb.Chain:
    """Returns the map from vectors to the model's parameters that begins with the last of `steps`.

    Args:
      bijector: the target's bijector, from states to parameters.
      like: one state without chain dimensions, whose flat form `steps` lead to.
      steps: bijectors of vectors.
    """
    return tfb.Chain([*_to_parameters(bijector, like), *_to_parts(like), *steps])


def parameters_bijector(bijector: Any, center: State) -> tfb.Bijector:
    """Returns the map from states like `center` to the model's parameters as one bijector."""
    steps = _to_parameters(bijector, center)
    if steps:
        return tfb.Chain(steps)
    if not tf.nest.is_nested(center):
        return tfb.Identity()
    return tfb.JointMap(tf.nest.map_structure(lambda _: tfb.Identity(), center))


def to_state(whitening: tfb.Chain, bijector: Any) -> tfb.Bijector:
    """Returns the map from z to the unconstrained state, which `laplace_bijector` begins with.

    Args:
      whitening: what `laplace_bijector` returned.
      bijector: the target's bijector, which it was given.
    """
    num_steps = 3 if is_joint(bijector) else int(bijector is not None)
    return tfb.Chain(whitening.bijectors[num_steps:])


class LowRankScale(tfb.Bijector):
    """The bijector that multiplies vectors by the L of a `LowRankHessian`."""

    def __init__(self, quadratic: LowRankHessian):
        parameters = dict(locals())
        self._quadratic = quadratic
        super().__init__(
            forward_min_event_ndims=1,
            is_constant_jacobian=True,
            dtype=quadratic.diagonal.dtype,
            parameters=parameters,
            name="low_rank_scale",
        )
        self._log_det = quadratic.log_det_root()

    @classmethod
    def _parameter_properties(cls, dtype: Any) -> dict[str, Any]:
        del dtype
        return {}

    def _forward(self, x: tf.Tensor) -> tf.Tensor:
        return self._quadratic.root(x)

    def _inverse(self, y: tf.Tensor) -> tf.Tensor:
        return self._quadratic.inverse_root(y)

    def _forward_log_det_jacobian(self, x: tf.Tensor) -> tf.Tensor:
        del x
        return self._log_det


def _to_parts(center: State) -> list[tfb.Bijector]:
    """Returns the steps of a `Chain` that split a vector into the parts of `center`."""
    parts = tf.nest.flatten(center)
    reshapes = [tfb.Reshape(x.shape, [x.shape.num_elements()]) for x in parts]
    if not tf.nest.is_nested(center):
        return reshapes
    split = tfb.Split([x.shape.num_elements() for x in parts], axis=-1)
    return [tfb.Restructure(_places(center)), tfb.JointMap(reshapes), split]


def _to_parameters(bijector: Any, center: State) -> list[tfb.Bijector]:
    """Returns the steps of a `Chain` that constrain the parts, none if there is no bijector."""
    if is_joint(bijector):
        places = _places(center)
        theirs = in_structure(bijector.forward_min_event_ndims, places)
        return [tfb.Restructure(places, theirs), bijector, tfb.Restructure(theirs, places)]
    if bijector is None or isinstance(bijector, tfb.Bijector):
        return [] if bijector is None else [bijector]
    bijectors = map_bijectors(bijector, lambda b, _: b, center, otherwise=lambda _: tfb.Identity())
    return [tfb.JointMap(bijectors)]


def _places(center: State) -> Any:
    """Returns the structure of `center` with the index of each part in a flat list."""
    return tf.nest.pack_sequence_as(center, [*range(len(tf.nest.flatten(center)))])
