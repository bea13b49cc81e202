"""Deliberately broken samplers, for negative controls."""

import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def mutant(kernel: type, *changes: tuple[str, str]) -> Any:
    """Returns `kernel` compiled from its source with `old` replaced by `new` in each pair.

    Raises:
      ValueError: an `old` does not occur exactly once.
    """
    source = textwrap.dedent(inspect.getsource(kernel))
    for old, new in changes:
        if (count := source.count(old)) != 1:
            raise ValueError(f"{old!r} must occur once in {kernel.__name__}. Received: {count}.")
        source = source.replace(old, new)
    namespace = dict(vars(sys.modules[kernel.__module__]))
    exec(source, namespace)
    return namespace[kernel.__name__]


def changed(kernel: Any, change: Callable[[Any, Any, Any], tuple[Any, Any]]) -> Any:
    """Returns `kernel` with `change(state, moved, results)` applied at the end of each step."""

    class Changed(kernel):
        def _update(self, state: Any, results: Any, seed: tf.Tensor) -> Any:
            return change(state, *super()._update(state, results, seed))

    return Changed


def frozen_part(state: tf.Tensor, moved: tf.Tensor, results: Any) -> tuple[Any, Any]:
    """A change that never moves the last entry of theta."""
    return tf.concat([moved[..., :-1], state[..., -1:]], axis=-1), results


def copies(_: tf.Tensor, moved: tf.Tensor, results: Any) -> tuple[Any, Any]:
    """A change that makes chains copies of the first one, with its momenta."""
    moved, momentum = (x[:1] + tf.zeros_like(x) for x in (moved, results.momentum))
    return moved, results._replace(momentum=momentum)


def last_groups_broken(kernel: Any, num: int) -> Any:
    """Returns a sampler whose last two groups of chains have a frozen entry, or are copies."""

    def change(state: tf.Tensor, moved: tf.Tensor, results: Any) -> tuple[Any, Any]:
        before, groups = tf.split(state, num), tf.split(moved, num)
        groups[-2] = tf.concat([before[-2][:, :1], groups[-2][:, 1:]], axis=-1)
        groups[-1] = tf.broadcast_to(groups[-1][:1], tf.shape(groups[-1]))
        return tf.concat(groups, axis=0), results

    return changed(kernel, change)


def forgets_momentum(kernel: Any) -> Any:
    """Returns a sampler that starts each step at rest, so that theta walks at random."""

    class ForgetsMomentum(kernel):
        def _update(self, state: Any, results: Any, seed: tf.Tensor) -> Any:
            momentum = tf.nest.map_structure(tf.zeros_like, results.momentum)
            return super()._update(state, results._replace(momentum=momentum), seed)

    return ForgetsMomentum
