"""Bijectors for the parts of a state, given by the user or by a prior that is a distribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tree

from tfp_sgmcmc.internal.checks import a_type
from tfp_sgmcmc.internal.nest import State, convert_state
from tfp_sgmcmc.internal.tfp_mends import mend_tfp
from tfp_sgmcmc.internal.xla import traced

# Draws of a prior, whose medians are the start and that its bijector must give back, and their
# numbers. Where one of them is lost, more decide.
_FEW_DRAWS, _MOST_DRAWS, _MOST_NUMBERS = 1000, 4000, 1_000_000
# A draw is lost if an entry is off by this share of the largest. Rounding may lose some draws.
_MOST_ERROR, _MOST_LOST = 0.1, 1e-3


def check_bijectors(bijector: Any) -> None:
    """Raises TypeError unless `bijector` is None, a bijector, or a nest of None and bijectors."""
    mend_tfp()
    for leaf in tf.nest.flatten(bijector):
        if leaf is not None and not isinstance(leaf, tfp.bijectors.Bijector):
            raise TypeError(
                f"bijector must hold tfp.bijectors.Bijector or None. Received: {leaf!r}."
            )


def is_joint(bijector: Any) -> bool:
    """Returns whether `bijector` maps all parts of a state together.

    Such bijectors are a `tfp.bijectors.JointMap`, and the one that
    `experimental_default_event_space_bijector()` of a joint distribution returns.
    """
    if not isinstance(bijector, tfp.bijectors.Bijector):
        return False
    return tf.nest.is_nested(bijector.forward_min_event_ndims)


def map_bijectors(
    bijector: Any,
    fn: Callable[[Any, Any], Any],
    state: State,
    otherwise: Callable[[Any], Any] = lambda x: x,
) -> State:
    """Applies `fn(bijector, part)` to each part, or `otherwise` if it has no bijector.

    A dict of bijectors may leave parts out, which then have none. A list of one part is treated as
    that part, and a namedtuple as a dict, because `target(*[x])` sees x alone and `target(**named)`
    sees a dict.
    """
    called, bijector = _as_called(state), _as_called(bijector)
    if bijector is None:
        return state
    try:
        bijector = _completed(called, bijector)
        matched = tree.map_structure_up_to(called, _check, called, bijector)
    except (TypeError, ValueError) as error:
        hint = ""
        if isinstance(bijector, tfp.bijectors.Bijector):
            hint = (
                " A single bijector takes a state of one array. With a target of whiten, this is z "
                "of shape [chains..., D], and tf.zeros([4, D]) starts at its center."
            )
        raise ValueError(
            "bijector must have the structure of the state, whose parts have shapes "
            f"{tf.nest.map_structure(lambda x: x.shape, state)} (None, or no key, stands for no "
            f"bijector). Received: {bijector}.{hint}"
        ) from error
    mapped = tree.map_structure_up_to(
        called, lambda x, b: otherwise(x) if b is None else fn(b, x), called, matched
    )
    if hasattr(state, "_asdict"):
        return type(state)(**mapped)
    return mapped if called is state else type(state)([mapped])


def map_jointly(bijector: Any, fn: Callable[[Any], Any], state: State) -> State:
    """Applies `fn`, a method of a joint bijector, to the state, and keeps the structure."""
    return in_structure(state, fn(in_structure(bijector.forward_min_event_ndims, state)))


def joint_log_det(bijector: Any, state: State, chain_ndims: int) -> tf.Tensor:
    """Returns the log determinant of a joint bijector's Jacobian at `state`, `[chains...]`."""
    structure = bijector.forward_min_event_ndims
    ndims = tf.nest.map_structure(lambda x: x.shape.rank - chain_ndims, state)
    parts = in_structure(structure, state)
    return bijector.forward_log_det_jacobian(parts, in_structure(structure, ndims))


def in_structure(structure: Any, parts: Any) -> Any:
    """Returns the parts of a state in a joint bijector's `structure`.

    Parts go by name if both have names, otherwise by position.
    """
    names, given = _names(structure), _names(parts)
    values = parts if isinstance(parts, list | tuple) else [parts]
    if isinstance(parts, Mapping):
        values = [*parts.values()]
    if names is not None and given is not None:
        fits = {*names} == {*given}
        values = [values[given.index(name)] for name in names] if fits else []
    else:  # a list has the order of a namedtuple, and a dict has none
        fits = not (isinstance(structure, Mapping) or isinstance(parts, Mapping))
    is_one = not isinstance(structure, Mapping | list | tuple)
    if not fits or len(values) != (1 if is_one else len(structure)):
        raise ValueError(
            "bijector must have the structure of the state. Received: a joint bijector and a state "
            f"of the parts {names or _count(structure)} and {given or _count(parts)}."
        )
    if is_one:
        return values[0]
    if names is None:
        return type(structure)(values)
    # The class of a dict that a module of TensorFlow holds is dict, and its type is a wrapper.
    return structure.__class__(**dict(zip(names, values, strict=True)))


def _names(nest: Any) -> list[str] | None:
    if hasattr(nest, "_fields"):
        return [*nest._fields]
    return [*nest] if isinstance(nest, Mapping) else None


def _count(nest: Any) -> list[int]:
    return [*range(len(nest) if isinstance(nest, list | tuple) else 1)]


def _as_called(nest: Any) -> Any:
    """Returns the parts as a function sees them: a dict for names, or a single part alone."""
    if hasattr(nest, "_asdict"):
        return nest._asdict()
    return nest[0] if isinstance(nest, list | tuple) and len(nest) == 1 else nest


def _completed(parts: Any, bijector: Any) -> Any:
    """Returns bijectors in which a dict has a None for each part that it leaves out."""
    if not isinstance(parts, Mapping) or not (bijector is None or isinstance(bijector, Mapping)):
        return bijector
    given = bijector or {}
    if unknown := [name for name in given if name not in parts]:
        raise ValueError(f"no part is named {unknown[0]!r}")
    return {name: _completed(x, given.get(name)) for name, x in parts.items()}


def _check(_: Any, bijector: Any) -> Any:
    if tf.nest.is_nested(bijector):
        raise ValueError("a nest for a part")
    return bijector


def prior_and_bijector(
    joint: Any, options: Mapping[str, Any]
) -> tuple[Callable[..., tf.Tensor], Any]:
    """Returns the log density of a distribution of a state's parts, and `default_bijector`.

    Raises TypeError or ValueError unless it is one distribution, and if `options` of the target
    have another bijector.
    """
    if "bijector" in options:
        raise TypeError(
            "bijector must be left out, because that of joint is taken. Received: "
            f"{options['bijector']}. With another one, give joint.log_prob to the class."
        )
    if not isinstance(joint, tfp.distributions.Distribution):
        raise TypeError(
            "joint must be a tfp.distributions.Distribution, such as a JointDistributionNamed. "
            f"Received: {a_type(joint)}."
        )
    shapes = tf.nest.flatten(tf.nest.map_structure(tf.TensorShape, joint.batch_shape))
    if any(shape.rank != 0 for shape in shapes):
        raise ValueError(
            "joint must be one distribution. Received: a batch_shape of "
            f"{joint.batch_shape}. Wrap its parts in tfd.Sample or tfd.Independent."
        )
    return joint.log_prob, default_bijector(joint)


def default_bijector(prior: Any) -> Any:
    """Returns the bijector from unconstrained parts to those of `prior`; or raises TypeError."""
    mend_tfp()
    try:
        bijector = prior.experimental_default_event_space_bijector()
    except AttributeError as error:
        if "'NoneType'" not in str(error):  # the bijector of a discrete part is None
            raise
        raise _has_no_bijector(prior) from error
    if bijector is None:
        raise _has_no_bijector(prior)
    return bijector


def _has_no_bijector(prior: Any) -> TypeError:
    return TypeError(
        "joint must have continuous parts with a default bijector. Received: "
        f"{a_type(prior)} with parts of shapes {prior.event_shape}, of which one has none. "
        "Sum the likelihood over the values of a discrete part, because it has no gradient. For a "
        "mixture write the log prior as a function, and give bijector= if its values are "
        "constrained."
    )


def start_of(model: Any, initial_state: Any) -> State:
    """Returns a start as tensors; for None that of a model whose prior knows where to start."""
    if initial_state is None:
        initial_state = model.initial_state
    if initial_state is None:
        raise ValueError(
            "initial_state must be given, unless the target is made by from_joint from a prior "
            "that knows where to start, or is a pinned joint distribution. Received: None."
        )
    return convert_state(initial_state, initial=True, called="initial_state")


def median_start(sample: Callable[..., Any], log_prob: Callable[..., Any], model: Any) -> State:
    """Returns the medians of the entries of unconstrained draws that `sample` makes.

    Args:
      sample: draws from a prior.
      log_prob: the log density of draws.
      model: has `constrain` and `unconstrain`, by the default bijector of the prior.

    Raises:
      ValueError: the bijector does not reach all draws.
    """
    draw, size = _one_by_one(sample)
    most = 10 + _MOST_NUMBERS // size
    start, lost = None, []
    for count in sorted({min(_FEW_DRAWS, most), min(_MOST_DRAWS, most)}):
        draws = draw(count)
        free = model.unconstrain(draws)
        start = tf.nest.map_structure(_median, free) if start is None else start
        # New arrays, because bijectors remember what they have mapped.
        again = model.constrain(tf.nest.map_structure(lambda x: tf.constant(x.numpy()), free))
        pairs = zip(tree.flatten_with_path(draws), tree.flatten(again), strict=True)
        lost = [(path, x.shape[1:], _are_lost(x.numpy(), y.numpy())) for (path, x), y in pairs]
        if any(is_lost.any() for _, _, is_lost in lost):
            is_possible = np.isfinite(log_prob(draws))
            lost = [(*part, is_lost & is_possible) for *part, is_lost in lost]
        if not any(is_lost.any() for _, _, is_lost in lost):
            return start
    for path, shape, is_lost in lost:
        if is_lost.mean() > _MOST_LOST:
            part = f" of the part {'.'.join(map(str, path))}" * bool(path)
            raise ValueError(
                "joint must have a default bijector that reaches every value. Received: one that "
                f"does not give back {is_lost.sum()} of {len(is_lost)} draws{part}, of shape "
                f"{shape}. Write the log prior as a function, and give bijector= by hand: for "
                "matrices with a WishartTriL prior tfb.Chain([tfb.CholeskyOuterProduct(), "
                "tfb.FillScaleTriL()])."
            )
    return start


def _one_by_one(sample: Callable[..., Any]) -> tuple[Callable[[int], State], int]:
    """Returns a function of a count that makes draws, one after the other, and numbers in each.

    TFP takes seconds to vectorise gamma variables.
    """

    def one(seed: tf.Tensor) -> Any:
        return tf.nest.map_structure(tf.convert_to_tensor, sample(seed=seed))

    graph = tf.function(one, autograph=False).get_concrete_function(tf.zeros([2], tf.int32))
    outputs = graph.structured_outputs
    like = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), outputs)
    several = traced(lambda seeds: tf.map_fn(graph, seeds, fn_output_signature=like))
    size = sum(x.shape.num_elements() or 1 for x in tf.nest.flatten(like))
    return lambda count: several(tf.stack(tfp.random.split_seed((0, 0), count))), max(1, size)


def _median(x: tf.Tensor) -> tf.Tensor:
    return tf.constant(np.nan_to_num(np.median(x, axis=0)), x.dtype)


def _are_lost(draws: np.ndarray, again: np.ndarray) -> np.ndarray:
    """Returns for each draw whether a bijector and its inverse do not give it back."""
    x, y = (np.reshape(a, [len(draws), -1]) for a in (draws, again))
    size, limits = np.abs(x).max(axis=1), np.finfo(x.dtype)
    most = _MOST_ERROR * size + limits.tiny
    with np.errstate(invalid="ignore"):  # of infinite draws
        return ~(np.abs(y - x).max(axis=1) <= most) & (size < limits.max**0.75)
