"""A log posterior that is no sum over examples, as a target whose only example has all of it."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tree

from tfp_sgmcmc.internal.nest import (
    State,
    call_with_state,
    convert_state,
    state_from_call,
    static_or_dynamic_shape,
)
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.targets.base import log_prob_from
from tfp_sgmcmc.targets.bijectors import default_bijector, median_start
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb

Pinned = tfp.experimental.distributions.JointDistributionPinned
_KEPT = "_targets_of_tfp_sgmcmc"  # the attribute that holds them
_DISTANCES = (1e-3, 1.0, 10.0, 100.0)  # from the start, of states where functions are compared


def one_example(target: Any, bijector: Any = None) -> MinibatchLogProb:
    """Returns a log posterior as a target of one example.

    Args:
      target: a callable, or a joint distribution with pinned data. The latter has a bijector, and a
        start: the medians of its prior.
      bijector: the bijectors of a callable.
    """
    if isinstance(target, Pinned):
        problem = _made(*_densities(target), default_bijector(target))
        problem.initial_state = median_start(
            target.sample_unpinned, target.unnormalized_log_prob, problem
        )
        return problem
    problem = _made(_NoPrior(target), target, target, bijector)
    problem.has_prior = False
    return problem


class _NoPrior:
    """A log prior of 0 for each chain of a state.

    The first call asks the log posterior for the number of chain dimensions. To ask each time would
    evaluate it twice wherever it is evaluated.
    """

    def __init__(self, log_prob_fn: Any):
        self._log_prob_fn = log_prob_fn
        self._event_rank: int | None = None  # of the first part

    def __call__(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        state = state_from_call(args, kwargs)
        part = tf.nest.flatten(state)[0]
        if self._event_rank is None:
            log_prob = log_prob_from("target", self._log_prob_fn, state)
            self._event_rank = part.shape.rank - log_prob.shape.rank
            return tf.zeros_like(log_prob)
        shape = static_or_dynamic_shape(part)
        return tf.zeros(shape[: part.shape.rank - self._event_rank], part.dtype)


class _OneExample(MinibatchLogProb):
    """A target whose only example has all of the likelihood.

    Its log posterior is a function of its own, because the log prior and the log likelihood of a
    joint distribution each take all densities.
    """

    log_posterior_fn: Any

    def __call__(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        return self.log_prob_of_many(convert_state(state_from_call(args, kwargs)))

    def log_prob_of_many(self, states: State) -> tf.Tensor:
        return self._log_density("target", self.log_posterior_fn, states)


def _made(prior: Any, likelihood: Any, posterior: Any, bijector: Any) -> MinibatchLogProb:
    """Returns the target of these log densities, functions of the state."""

    def of_row(*args: Any, **kwargs: Any) -> tf.Tensor:
        batch = kwargs.pop("batch", None)
        args = args[:-1] if batch is None else args
        return call_with_state(likelihood, state_from_call(args, kwargs))[..., tf.newaxis]

    with contextlib.suppress(TypeError, ValueError):  # some callables have no signature
        prior.__signature__ = signature = inspect.signature(likelihood)
        batch = inspect.Parameter("batch", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
        parameters = [*signature.parameters.values(), batch]
        of_row.__signature__ = signature.replace(parameters=parameters)  # ty: ignore
    target = _OneExample(prior, of_row, np.zeros([1], np.float32), 1, bijector=bijector)
    target.log_posterior_fn = posterior
    return target


def _densities(joint: Any) -> list[Any]:
    """Returns the functions of the state that give log prior, log likelihood and their sum.

    Without a graph, TFP would trace automatic batches in each call.
    """

    def in_graph(fn: Callable[..., Any]) -> Callable[..., Any]:
        graph = traced(lambda args, kwargs: fn(*args, **kwargs))

        def call(*args: Any, **kwargs: Any) -> tf.Tensor:
            return graph(args, kwargs) if tf.executing_eagerly() else fn(*args, **kwargs)

        return call

    def part(name: str, *args: Any, **kwargs: Any) -> tf.Tensor:
        found = joint.unnormalized_log_prob_parts(*args, **kwargs)
        return sum(tf.nest.flatten(getattr(found, name)))

    parts = (functools.partial(part, name) for name in ("unpinned", "pinned"))
    return [in_graph(fn) for fn in (*parts, joint.unnormalized_log_prob)]


class KeptTargets:
    """The targets that were made of a callable, which has this object as an attribute.

    So their compiled programs are used by later calls, as those of a target that the user made. A
    program has the arrays and numbers that the callable read when it was traced. Therefore a target
    is used again only if the callable gives the same numbers, bit for bit, at eight states: a
    normal draw for each distance from the start, in both directions.
    """

    def __init__(self, owner: Any = None):
        self._owner = owner
        self._entries: list[tuple[Any, MinibatchLogProb, State, list[bytes]]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptTargets, ()  # without programs, which no other process can use

    @classmethod
    def of(cls, target: Any) -> KeptTargets:
        """Returns those of a callable or a pinned joint distribution."""
        owner, name = target, _KEPT
        if inspect.ismethod(target):
            owner, name = target.__self__, f"{_KEPT}_{target.__name__}"
        attributes = getattr(owner, "__dict__", None)
        if not isinstance(attributes, dict):  # functions of C and classes take no attributes
            return cls(owner)
        found = attributes.get(name)
        # Copies and functools.wraps give another callable the attributes of the first one.
        if found is None or found._owner is not owner:
            found = attributes[name] = cls(owner)
        return found

    def find(self, target: Any, bijector: Any) -> MinibatchLogProb | None:
        """Returns a target that was kept for such a bijector, or None."""
        for entry in self._entries:
            given, problem, states, numbers = entry
            if _are_equal(given, bijector):
                if _numbers(target, problem, states) == numbers:
                    return problem
                self._entries.remove(entry)
                return None
        return None

    def keep(self, target: Any, bijector: Any, problem: MinibatchLogProb, start: State) -> None:
        """Keeps a target, unless its numbers near a start do not tell one target from another."""
        if any(problem is kept for _, kept, _, _ in self._entries):
            return
        rng = np.random.default_rng(0)

        def near(x: tf.Tensor) -> tf.Tensor:
            distances = np.reshape(_DISTANCES, [-1, *[1] * x.shape.rank])
            steps = distances * rng.standard_normal([len(_DISTANCES), *x.shape])
            return x + tf.constant(np.concatenate([steps, -steps]), x.dtype)

        states = tf.nest.map_structure(near, start)
        if numbers := _numbers(target, problem, states):
            self._entries.append((bijector, problem, states, numbers))


def _are_equal(first: Any, second: Any) -> bool:
    """Returns whether two nests have the same bijectors, which compare their parameters."""
    try:
        tree.assert_same_structure(first, second)
        pairs = zip(tree.flatten(first), tree.flatten(second), strict=True)
        return all(bool(a is b or a == b) for a, b in pairs)
    except (TypeError, ValueError):
        return False


def _numbers(target: Any, problem: MinibatchLogProb, states: State) -> list[bytes]:
    """Returns parameters and log posteriors at states; none unless two are finite."""
    log_prob_fn: Callable[..., Any] = target
    if isinstance(target, Pinned):
        log_prob_fn = target.unnormalized_log_prob
    try:
        parameters = problem.constrain(states)
        log_probs = np.asarray(call_with_state(log_prob_fn, parameters))
    except Exception:  # far from the start a user's function may raise anything: it is not kept
        return []
    if np.isfinite(log_probs).sum() < 2:
        return []
    return [x.tobytes() for x in (*map(np.asarray, tf.nest.flatten(parameters)), log_probs)]
