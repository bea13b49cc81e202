"""Laplace's approximation of a posterior, its bijector, and coordinates whitened by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal.checks import array, eager, require
from tfp_sgmcmc.internal.nest import State, convert_state, flatten_events
from tfp_sgmcmc.targets.bijectors import in_structure, is_joint, map_bijectors
from tfp_sgmcmc.targets.laplace.low_rank_hessian import LowRankHessian, check_definite
from tfp_sgmcmc.targets.laplace.quadratic import (
    HessianForm,
    Quadratic,
    hessian_products,
    least_eigenvalue,
    quadratic_at,
    quadratic_in,
)
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb, checked_target

tfb, tfd = tfp.bijectors, tfp.distributions


def whiten(
    target: MinibatchLogProb, center: State, hessian: HessianForm | Any = "auto"
) -> tuple[MinibatchLogProb, tfb.Bijector]:
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
    the distribution `bijector(tfd.Sample(tfd.Normal(0., 1.), D))`. `find_center` reports it.

    The full H takes D Hessian-vector products over the data, and two matrices of D x D. Beyond 4096
    entries the default is `hessian="low_rank"`,

    \[
    -H \approx P^{1/2} (I + U \operatorname{diag}(s) U^T) P^{1/2}, \qquad
    L = P^{-1/2} \left( I + U \left( (I + \operatorname{diag}(s))^{-1/2} - I \right) U^T \right),
    \]

    where P is the diagonal of the prior's curvature, and s and U are up to 256 eigenpairs of the
    curvature that the data add, or up to N if N is at most 1024, from a Lanczos iteration with as
    many products over all data (over 16,384 random examples of larger data). If the eigenvalues
    that it leaves out reach r > 1, L has P (1 + r) / 2 instead of P, and only larger eigenpairs, so
    that steps are stable as above.
    Directions that the data hardly determine are then wider than N(0, 1) in z, and mix slowly. The
    report of `find_center` keeps P and all pairs.
    Where the prior has no curvature (flat, Laplace), P is the diagonal of the likelihood's.
    `"diag"` has the diagonal of all curvature as P, and s = 0. The likelihood's diagonal is exact
    up to D = 1024, and beyond that the sum of the examples' squared scores.

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
        dimensions, unconstrained if the target has a bijector. Warns if it is far from a mode.
      hessian: the form of H: `"full"`, `"low_rank"`, `"diag"`, or `"auto"`, which is full up to
        4096 entries and low rank beyond. Or H itself, `[D, D]`, in the order of the flattened
        parts, where the derivatives at the center do not describe the posterior (a prior with
        kinks).

    Raises:
      TypeError: the target is not a plain `MinibatchLogProb`.
      ValueError: the center has chain dimensions, or more than 4096 entries with `"full"`; the
        Hessian there is not finite or not negative definite; the log likelihood has no second
        derivatives, or only zeros (it is piecewise linear); the target has a `score_fn`.
    """
    eager("whiten")
    checked_target(target)
    if target.has_score_fn:
        raise ValueError(
            "target must be made without score_fn, which returns scores in other coordinates. "
            "Received: a target with a score_fn."
        )
    center = convert_state(center, initial=True, called="center")
    check_single_state("center", target, center)
    if isinstance(hessian, str):
        quadratic = quadratic_at(target, center, hessian)
    else:
        quadratic = _given(target, center, hessian)
    if isinstance(quadratic, LowRankHessian):
        quadratic = quadratic.bounded()
    is_diag = isinstance(hessian, str) and hessian == "diag"
    return whiten_by(target, center, quadratic, keeps_curvature=not is_diag)


def whiten_by(
    target: MinibatchLogProb,
    center: State,
    quadratic: Quadratic | LowRankHessian,
    keeps_curvature: bool = True,
) -> tuple[MinibatchLogProb, tfb.Bijector]:
    """Whitens a target as `whiten`, by a known expansion at `center`.

    With `keeps_curvature` the target keeps its expansion at z = 0.
    """
    bijector = laplace_bijector(target.bijector, center, quadratic)
    curvature = None
    if isinstance(quadratic, Quadratic):
        likelihood = quadratic.whitened_likelihood()
        minus_identity = -tf.eye(len(likelihood), dtype=quadratic.dtype)
        curvature = Quadratic(tf.constant(likelihood, quadratic.dtype), minus_identity)
    elif keeps_curvature:
        ones, zeros = tf.ones_like(quadratic.diagonal), tf.zeros_like(quadratic.values)
        curvature = LowRankHessian(ones, quadratic.vectors, zeros)
    return target.with_bijector(bijector, curvature), bijector


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
        scale = _low_rank_scale(quadratic)
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


def check_single_state(name: str, target: MinibatchLogProb, state: State) -> None:
    """Raises ValueError if `state`, an argument called `name`, has chain dimensions."""
    chains = tf.TensorShape(target.chain_shape(state))
    if chains.rank:
        raise ValueError(
            f"{name} must be one state without chain dimensions, at which log_prior_fn returns a "
            f"scalar. Received: a state at which it returns shape {chains}. If these are the "
            "entries of a parameter, sum the log prior over them, as tfd.Sample(tfd.Normal(0., 1.),"
            " 10) does; if they are chains, give the state of one."
        )


def _low_rank_scale(quadratic: LowRankHessian) -> tfb.Bijector:
    """Returns the bijector that multiplies vectors by the L of a `LowRankHessian`."""
    log_det = quadratic.log_det_root()
    return tfb.Inline(
        forward_fn=quadratic.root,
        inverse_fn=quadratic.inverse_root,
        forward_log_det_jacobian_fn=lambda x: log_det,
        forward_min_event_ndims=1,
        is_constant_jacobian=True,
        name="low_rank_scale",
    )


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


def _given(target: MinibatchLogProb, center: State, hessian: Any) -> Quadratic:
    """Returns the expansion with the Hessian `hessian` of the log posterior."""
    flat = flatten_events(center, 0)
    given = array("hessian", hessian, 2).astype(np.float64)
    expected = f"a form such as 'auto', or a symmetric matrix of shape {[flat.shape[0]] * 2}"
    fits = given.shape == (flat.shape[0],) * 2 and np.allclose(given, given.T)
    require("hessian", f"shape {given.shape}", fits, expected)
    check_definite(least_eigenvalue(-given))
    found = hessian_products(target, center).matrices(flat.numpy())
    return quadratic_in(flat.dtype, found._replace(posterior=given))
