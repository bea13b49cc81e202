"""A posterior in coordinates in which it is near a standard normal distribution."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp
import tree

from tfp_sgmcmc.state import State, convert_state, flatten_events
from tfp_sgmcmc.targets.center import check_single_state
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb, checked_target
from tfp_sgmcmc.targets.quadratic import quadratic_at

tfb = tfp.bijectors


def whiten(target: MinibatchLogProb, center: State) -> tuple[MinibatchLogProb, tfb.Bijector]:
    r"""Returns a target in whitened coordinates, and the bijector back to the model's parameters.

    \[
    \theta = \hat\theta + L z, \qquad L L^T = (-H)^{-1}, \qquad
    H = \nabla^2 \log p(\hat\theta \mid x_{1:N})
    \]

    A state z is one vector of D entries, whatever the structure of \( \theta \). Laplace's
    approximation at the center \( \hat\theta \) is N(0, I) in z, so step sizes mean the same for
    every posterior: with exact gradients, the step h of a sampler with momenta is stable below
    about 2, and SGLD's epsilon below about 4. Draws come back by `bijector.forward(z)`, in the
    structure of the state, constrained if the target has a bijector. Laplace's approximation is
    the distribution `bijector(tfd.Sample(tfd.Normal(0., 1.), D))`.

    Examples:
      With `target` as in `MinibatchLogProb`:

      >>> center, _ = sgmcmc.find_center(target, tf.constant(0.))
      >>> whitened, bijector = sgmcmc.whiten(target, center)
      >>> control = sgmcmc.ControlVariate(whitened, tf.zeros([1]), order=2)
      >>> kernel = sgmcmc.UnderdampedLangevin(control, step_size=1., friction=1.5)
      >>> run = tf.function(tfp.mcmc.sample_chain, jit_compile=True)
      >>> z = run(2000, tf.zeros([4, 1]), kernel=kernel, trace_fn=None, num_burnin_steps=100,
      ...         seed=tf.constant([0, 1]))
      >>> bool(abs(tf.math.reduce_std(z) - 1) < 0.1)
      True
      >>> bijector.forward(z).shape
      TensorShape([2000, 4])

    Args:
      target: a `MinibatchLogProb` without `score_fn`.
      center: a mode of the posterior, such as `find_center` returns: one state without chain
        dimensions, unconstrained if the target has a bijector.

    Raises:
      TypeError: the target is not a plain `MinibatchLogProb`.
      ValueError: the center has chain dimensions, or more than 4096 entries; the Hessian there is
        not finite or not negative definite; the target has a `score_fn`.
    """
    checked_target(target)
    if target.has_score_fn:
        raise ValueError(
            "target must be made without score_fn, which returns scores in other coordinates. "
            "Received: a target with a score_fn."
        )
    center = convert_state(center, initial=True, called="center")
    check_single_state("center", target, center)
    flat = flatten_events(center, 0)
    factor = tf.constant(quadratic_at(target, center).factor(), flat.dtype)
    steps = [tfb.Shift(flat), tfb.ScaleMatvecTriL(factor)]
    bijector = tfb.Chain([*_to_parameters(target.bijector, center), *_to_parts(center), *steps])
    return target.with_bijector(bijector), bijector


def _to_parts(center: State) -> list[tfb.Bijector]:
    """Returns the steps of a `Chain` that split a vector into the parts of `center`."""
    parts = tf.nest.flatten(center)
    reshapes = [tfb.Reshape(x.shape, [x.shape.num_elements()]) for x in parts]
    if not tf.nest.is_nested(center):
        return reshapes
    names = tf.nest.pack_sequence_as(center, [*range(len(parts))])
    split = tfb.Split([x.shape.num_elements() for x in parts], axis=-1)
    return [tfb.Restructure(names), tfb.JointMap(reshapes), split]


def _to_parameters(bijector: Any, center: State) -> list[tfb.Bijector]:
    """Returns the step of a `Chain` that constrains the parts, none if there is no bijector."""
    if bijector is None or isinstance(bijector, tfb.Bijector):
        return [] if bijector is None else [bijector]
    bijectors = tree.map_structure_up_to(
        center, lambda _, b: tfb.Identity() if b is None else b, center, bijector
    )
    return [tfb.JointMap(bijectors)]
