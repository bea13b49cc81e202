"""Coordinates in which the effects of a centred hierarchy have a fixed prior."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.adaptation.priors.block_noncentering import BlockNonCentering
from tfp_sgmcmc.adaptation.priors.location_scale import (
    LocationScale,
    find_location_scale,
    parameters_of,
)
from tfp_sgmcmc.adaptation.priors.normal_blocks import NormalBlocks, find_normal_blocks
from tfp_sgmcmc.internal.nest import State, entry_names, flatten_events
from tfp_sgmcmc.targets import MinibatchLogProb
from tfp_sgmcmc.targets.base import kept_program
from tfp_sgmcmc.targets.laplace.laplace import vector_bijector

tfb = tfp.bijectors

Law = LocationScale | NormalBlocks
_MOST_LEVELS = 4  # of effects of effects


class NonCentering(tfb.Bijector):
    r"""Maps variables z with a fixed prior to the effects of a hierarchy, given the other entries.

    \[ \theta_e = m_e(\theta_{-e}) + w_e(\theta_{-e}) z_e \]

    All other entries stay as they are.

    Args:
      problem: the target.
      like: one unconstrained state.
      law: m and w of the effects.
    """

    def __init__(
        self,
        problem: MinibatchLogProb,
        like: State,
        law: LocationScale,
        name: str = "non_centering",
    ):
        parameters = dict(locals())
        self._problem, self._like, self._law = problem, like, law
        dtype = flatten_events(like, 0).dtype
        super().__init__(forward_min_event_ndims=1, dtype=dtype, parameters=parameters, name=name)

    @classmethod
    def _parameter_properties(cls, dtype: Any) -> dict[str, Any]:
        del dtype
        return {}

    def location_and_width(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns m and w of all entries, which are 0 and 1 where there is no effect."""
        return _by_law(self._problem, self._like, self._law, x)

    def _forward(self, x: tf.Tensor) -> tf.Tensor:
        location, width = self.location_and_width(x)
        return location + width * x

    def _inverse(self, y: tf.Tensor) -> tf.Tensor:
        location, width = self.location_and_width(y)
        return (y - location) / width

    def _forward_log_det_jacobian(self, x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.math.log(self.location_and_width(x)[1]), axis=-1)


def _by_law(
    problem: MinibatchLogProb, like: State, law: LocationScale, x: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns locations and widths of all entries of flat states."""
    weights = np.concatenate([law.location, law.log_width])  # [4, effects, D]
    used = [np.flatnonzero(part.any(axis=0)) for part in weights]
    values = [x, x, x, x]
    if len(used[1]) or len(used[3]):
        is_effect = np.isin(np.arange(x.shape[-1]), law.entries)
        values[1] = values[3] = parameters_of(
            problem, like, tf.where(is_effect, tf.zeros([], x.dtype), x)
        )
    parts = []
    for number, (value, entries) in enumerate(zip(values, used, strict=True)):
        value = tf.gather(value, entries, axis=-1)
        value = tf.math.log(tf.abs(value)) if number == 3 else value
        to_all = np.zeros([x.shape[-1], len(entries)])
        to_all[list(law.entries)] = weights[number][:, entries]
        parts.append(tf.linalg.matvec(tf.constant(to_all, x.dtype), value))
    offset = np.zeros(x.shape[-1])
    offset[list(law.entries)] = law.offset
    return tf.constant(offset, x.dtype) + parts[0] + parts[1], tf.exp(parts[2] + parts[3])


def repeats_prior(bijector: Any) -> bool:
    """Returns whether a bijector evaluates the slopes of the prior of all effects."""
    steps = getattr(bijector, "bijectors", ())
    is_chain = isinstance(steps, list | tuple)
    return isinstance(bijector, BlockNonCentering) or (is_chain and any(map(repeats_prior, steps)))


def laws_around(problem: MinibatchLogProb, state: State) -> tuple[Law, ...]:
    """Returns the laws of effects, then of what remains, as effects of effects; found once."""
    return kept_program(problem, "laws of effects", state, lambda: _laws(problem, state))


def _laws(problem: MinibatchLogProb, state: State) -> tuple[Law, ...]:
    names, laws, model = entry_names(state), list[Law](), (problem, state)
    rest = tuple(range(len(names)))
    while problem.has_prior and rest and len(laws) < _MOST_LEVELS:
        law: Law | None = find_location_scale(problem, state, names, rest, model)
        law = law or find_normal_blocks(problem, state, names, rest)
        if law is None:
            break
        laws.append(law)
        rest = tuple(j for j in rest if j not in law.entries)
        problem, state = _by_one_law(problem, state, law, model)
    return tuple(laws)


def noncentered(
    problem: MinibatchLogProb, state: State, entries: Sequence[int]
) -> tuple[MinibatchLogProb, tf.Tensor]:
    """Returns the target of flat states whose `entries` have a fixed prior, and such a state."""
    laws, model = laws_around(problem, state), (problem, state)
    if {j for law in laws for j in law.entries} == {*entries}:
        for law in laws:
            problem, state = _by_one_law(problem, state, law, model)
    else:
        blocks = np.array(entries)[:, np.newaxis]
        problem, state = _changed(problem, state, BlockNonCentering(problem, state, blocks))
    kept_program(problem, "hierarchy", state, lambda: None)  # it need not be looked for again
    return problem, state


def _by_one_law(
    problem: MinibatchLogProb,
    state: State,
    law: Law,
    model: tuple[MinibatchLogProb, State],
) -> tuple[MinibatchLogProb, tf.Tensor]:
    """Returns the target of coordinates by a law, kept with what is compiled, and the state."""
    if isinstance(law, NormalBlocks):
        step: tfb.Bijector = BlockNonCentering(problem, state, law.blocks, law.is_shared)
    else:
        step = NonCentering(*model, law)
    other, at = _changed(problem, state, step)
    return kept_program(problem, "non-centred by law", state, lambda: other), at


def _changed(
    problem: MinibatchLogProb, state: State, step: tfb.Bijector
) -> tuple[MinibatchLogProb, tf.Tensor]:
    other = problem.with_bijector(vector_bijector(problem.bijector, state, [step]))
    return other, step.inverse(flatten_events(state, 0))
