"""Coordinates in which effects of a centred hierarchy, alone or in blocks, have a fixed prior."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.adaptation.hierarchies.location_scale import (
    LocationScale,
    find_location_scale,
    parameters_of,
)
from tfp_sgmcmc.adaptation.hierarchies.normal_blocks import NormalBlocks, find_normal_blocks
from tfp_sgmcmc.adaptation.hierarchies.prior_scale import density_of_effects
from tfp_sgmcmc.internal.nest import State, entry_names, flatten_events, unflatten_events
from tfp_sgmcmc.targets import MinibatchLogProb
from tfp_sgmcmc.targets.base import kept_program, value_and_gradient
from tfp_sgmcmc.targets.laplace.laplace import vector_bijector

tfb = tfp.bijectors
Rows = list[list[tf.Tensor]]
Law = LocationScale | NormalBlocks
_MOST_LEVELS = 4  # of effects of effects


class BlockNonCentering(tfb.Bijector):
    r"""Maps standard normals z to effects that are normal in blocks, given the other entries.

    In a block of K entries the slopes of the log prior at 0 and at the unit vectors give

    \[
    P_{jk} = \partial_j \log p(\theta_b = 0) - \partial_j \log p(\theta_b = e_k), \quad
    P = U U^T, \quad \theta_b = U^{-T} (z_b + U^{-1} \partial_b \log p(\theta_b = 0)),
    \]

    whatever they depend on, with an upper triangular U, so that \( U^{-T} \) is the lower
    triangular factor of the covariance. Where only the log posterior is known, its slopes give the
    normal distribution of the effects given data and rest.

    Args:
      problem: the target.
      like: one unconstrained state.
      blocks: the places of the effects in a flat state, `[blocks, K]`.
      is_shared: whether all blocks have the precision of the first one.
    """

    def __init__(
        self,
        problem: MinibatchLogProb,
        like: State,
        blocks: np.ndarray,
        is_shared: bool = False,
    ):
        parameters = dict(locals())
        flat = flatten_events(like, 0)
        self._problem, self._like, self._blocks, self._is_shared = problem, like, blocks, is_shared
        dim, (count, size) = flat.shape[0], blocks.shape
        self._is_effect = np.isin(np.arange(dim), blocks)
        places = np.concatenate([np.flatnonzero(~self._is_effect), blocks.T.ravel()])
        self._order, self._size, self._count = np.argsort(places), size, count
        sizes = [x.shape.num_elements() for x in tf.nest.flatten(like)]
        of_parts = np.split(np.arange(dim), np.cumsum(sizes)[:-1])
        self._places = [x if self._is_effect[x].any() else None for x in of_parts]
        self._last: Any = (None, None, None)
        self._units = np.zeros([size + 1, dim])
        for k in range(size):
            self._units[k + 1, blocks[:, k]] = 1.0
        super().__init__(
            forward_min_event_ndims=1,
            dtype=flat.dtype,
            parameters=parameters,
            name="block_non_centering",
        )

    @classmethod
    def _parameter_properties(cls, dtype: Any) -> dict[str, Any]:
        del dtype
        return {}

    def factor_and_shift(self, x: tf.Tensor) -> tuple[Rows, list[tf.Tensor]]:
        """Returns the entries of U, `[..., blocks]` or `[..., 1]`, and of U^-1 times slopes.

        Those of the last tensor are kept, because a density needs them for the state and for the
        Jacobian, and to trace third derivatives twice takes long.
        """
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        last_x, last_graph, found = self._last
        if x is not last_x or graph is not last_graph:
            found = self._factor_and_shift(x)
            self._last = x, graph, found
        return found

    def _factor_and_shift(self, x: tf.Tensor) -> tuple[Rows, list[tf.Tensor]]:
        size, lead = self._size, x.shape.rank - 1
        zero = tf.where(tf.constant(self._is_effect), tf.zeros([], x.dtype), x)
        units = tf.reshape(tf.constant(self._units, x.dtype), [size + 1, *[1] * lead, x.shape[-1]])
        ends = tf.reshape(units + zero, [-1, x.shape[-1]])  # a prior may want one axis of chains
        state = unflatten_events(ends, self._like, 0)
        slopes = self._slopes(state, tf.concat([[size + 1], tf.shape(x)[:-1]], axis=0))
        used = [s[..., :1] for s in slopes] if self._is_shared else slopes
        precision = [[used[i][0] - used[i][k + 1] for k in range(size)] for i in range(size)]
        factor = _upper_factor(precision)
        return factor, _solve_upper(factor, [s[0] for s in slopes])

    def _slopes(self, state: State, lead: tf.Tensor) -> list[tf.Tensor]:
        """Returns the prior's slopes along each entry of a block, `[*lead, blocks]`.

        Only parts with effects are differentiated: in XLA the third derivatives of `tf.concat`, as
        in the bijectors of other parts, are not known.
        """
        parts = tf.nest.flatten(state)
        used = [i for i, places in enumerate(self._places) if places is not None]

        def density(moved: list[tf.Tensor]) -> tf.Tensor:
            every = [*parts]
            for i, x in zip(used, moved, strict=True):
                every[i] = x
            return density_of_effects(self._problem)(tf.nest.pack_sequence_as(state, every))

        found = value_and_gradient(density, [parts[i] for i in used], connected=False)[1]
        flat = flatten_events(found, 1)
        slopes = tf.reshape(flat, tf.concat([lead, [flat.shape[-1]]], axis=0))
        at = np.concatenate([places for places in self._places if places is not None])
        at = np.searchsorted(at, self._blocks)
        return [tf.gather(slopes, at[:, k], axis=-1) for k in range(self._size)]

    def _forward(self, x: tf.Tensor) -> tf.Tensor:
        factor, shift = self.factor_and_shift(x)
        parts = [z + s for z, s in zip(self._parts(x), shift, strict=True)]
        return self._joined(x, _solve_lower(factor, parts))

    def _inverse(self, y: tf.Tensor) -> tf.Tensor:
        factor, shift = self.factor_and_shift(y)
        effects, found = self._parts(y), []
        for i in range(self._size):
            found.append(sum(factor[k][i] * effects[k] for k in range(i + 1)) - shift[i])
        return self._joined(y, found)

    def _forward_log_det_jacobian(self, x: tf.Tensor) -> tf.Tensor:
        factor = self.factor_and_shift(x)[0]
        logs = sum(tf.math.log(factor[i][i]) for i in range(self._size))
        return -(self._count if self._is_shared else 1) * tf.reduce_sum(logs, axis=-1)

    def _parts(self, x: tf.Tensor) -> list[tf.Tensor]:
        return [tf.gather(x, self._blocks[:, k], axis=-1) for k in range(self._size)]

    def _joined(self, x: tf.Tensor, parts: list[tf.Tensor]) -> tf.Tensor:
        """Returns x with other effects."""
        rest = tf.gather(x, np.flatnonzero(~self._is_effect), axis=-1)
        return tf.gather(tf.concat([rest, *parts], axis=-1), self._order, axis=-1)


def _upper_factor(matrix: Rows) -> Rows:
    """Returns U, NaN where there is none: a matrix that is U U^T, entry by entry.

    Small matrices are not worth the loops of XLA's factorisations, and those of TensorFlow raise.
    """
    size = len(matrix)
    found: Any = [[None] * size for _ in range(size)]
    for j in reversed(range(size)):
        for i in range(j + 1):
            left = matrix[i][j] - sum(found[i][k] * found[j][k] for k in range(j + 1, size))
            if i < j:
                found[i][j] = left
            else:
                found[j][j] = tf.sqrt(left)
        for i in range(j):
            found[i][j] = found[i][j] / found[j][j]
    return found


def _solve_upper(factor: Rows, right: list[tf.Tensor]) -> list[tf.Tensor]:
    found: Any = [None] * len(right)
    for i in reversed(range(len(right))):
        known = sum(factor[i][k] * found[k] for k in range(i + 1, len(right)))
        found[i] = (right[i] - known) / factor[i][i]
    return found


def _solve_lower(factor: Rows, right: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the solution of U^T x = right."""
    found: Any = [None] * len(right)
    for i in range(len(right)):
        known = sum(factor[k][i] * found[k] for k in range(i))
        found[i] = (right[i] - known) / factor[i][i]
    return found


def non_centering(problem: MinibatchLogProb, like: State, law: LocationScale) -> tfb.Bijector:
    r"""Maps variables z with a fixed prior to the effects of a hierarchy, given the other entries.

    \[ \theta_e = m_e(\theta_{-e}) + w_e(\theta_{-e}) z_e \]

    All other entries stay as they are.

    Args:
      problem: the target.
      like: one unconstrained state.
      law: m and w of the effects.
    """
    weights = np.concatenate([law.location, law.log_width])  # [4, effects, D]
    used = [np.flatnonzero(part.any(axis=0)) for part in weights]

    def location_and_width(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns m and w of all entries, which are 0 and 1 where there is no effect."""
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

    def forward(z: tf.Tensor) -> tf.Tensor:
        location, width = location_and_width(z)
        return location + width * z

    def inverse(x: tf.Tensor) -> tf.Tensor:
        location, width = location_and_width(x)
        return (x - location) / width

    return tfb.Inline(
        forward_fn=forward,
        inverse_fn=inverse,
        forward_log_det_jacobian_fn=lambda z: tf.reduce_sum(
            tf.math.log(location_and_width(z)[1]), axis=-1
        ),
        forward_min_event_ndims=1,
        name="non_centering",
    )


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
    return _joined(laws)


def _joined(laws: Sequence[Law]) -> tuple[Law, ...]:
    """Returns laws, those of like effects in one: rounding hides some of them at first."""
    found = list[Law]()
    for law in laws:
        last = found[-1] if found else None
        if isinstance(last, LocationScale) and isinstance(law, LocationScale):
            both = last.joined(law)
            if both is not None:
                found[-1] = both
                continue
        found.append(law)
    return tuple(found)


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
        step = BlockNonCentering(problem, state, blocks)
        problem, state = _changed(problem, state, step, f"non-centred {blocks.tolist()}")
    kept_program(problem, "hierarchy", state, lambda: None)  # it need not be looked for again
    return problem, state


def _by_one_law(
    problem: MinibatchLogProb,
    state: State,
    law: Law,
    model: tuple[MinibatchLogProb, State],
) -> tuple[MinibatchLogProb, tf.Tensor]:
    """Returns the target of coordinates by a law, and the state."""
    if isinstance(law, NormalBlocks):
        step: tfb.Bijector = BlockNonCentering(problem, state, law.blocks, law.is_shared)
    else:
        step = non_centering(*model, law)
    return _changed(problem, state, step, f"non-centred by a law of {len(law.entries)} effects")


def _changed(
    problem: MinibatchLogProb, state: State, step: tfb.Bijector, name: str
) -> tuple[MinibatchLogProb, tf.Tensor]:
    """Returns the target of other coordinates, kept by name with what is compiled, and the state"""

    def make() -> MinibatchLogProb:
        return problem.with_bijector(vector_bijector(problem.bijector, state, [step]))

    return kept_program(problem, name, state, make), step.inverse(flatten_events(state, 0))
