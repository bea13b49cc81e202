"""The log posterior of data on disk, by a pool of weighted rows and the exact quadratic part.

Rows are kept with probabilities that the error by the pool decides. `save` writes a pool to a file,
so that a run resumes without a pass over the data.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal.nest import State, convert_state, flatten_events, num_entries
from tfp_sgmcmc.storage import npz
from tfp_sgmcmc.targets.base import ExpansionError
from tfp_sgmcmc.targets.data import form_of
from tfp_sgmcmc.targets.laplace.laplace import to_state
from tfp_sgmcmc.targets.laplace.quadratic import inverse_of_factor
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb
from tfp_sgmcmc.targets.model_target import LinearModel
from tfp_sgmcmc.targets.streamed import StreamedLogProb
from tfp_sgmcmc.targets.streaming.block_sums import Sums
from tfp_sgmcmc.targets.streaming.row_remainders import Moments, RowRemainders

# Errors by the pool, in standard deviations of a mean and as a share of a standard deviation.
MOST_MEAN_ERROR, MOST_WIDTH_ERROR = 0.02, 0.01
# Standard deviations from the center to the mode. Draws must be where the correction has not faded.
MOST_OFFSET = 4.0
_LEAST_ROWS, _MOST_ROWS = 100_000, 1_000_000
_MIXED = 0.2  # of the mean norm, which is added to all
_WANTED = 0.2  # of the largest errors

tfb = tfp.bijectors
FILE = "pool.npz"
_VERSION = 2  # of the format
_DAMAGED = " Remove it, and the pool is drawn again."


class Pass(NamedTuple):
    """A pass over the data.

    Attributes:
      num_rows: the rows that were read.
      seconds: the time that it took.
    """

    num_rows: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class PoolReport:
    """The passes in which a pool was drawn, and the error that it leaves.

    Attributes:
      num_examples: N.
      num_rows: M, the rows in memory.
      passes: the passes over the data that were made.
      mean_error: standard error that the pool causes in posterior means, in standard deviations,
        in the worst direction of whitened coordinates. 0 if all rows are in memory.
      width_error: the same of standard deviations, as a share.
      offset: the distance from the center to the mode, in standard deviations.
    """

    num_examples: int
    num_rows: int
    passes: tuple[Pass, ...]
    mean_error: float = 0.0
    width_error: float = 0.0
    offset: float = 0.0

    @property
    def _num_dropped(self) -> int:
        return self.num_examples - self.passes[0].num_rows

    @property
    def error_of_dropped(self) -> float:
        """The share of rows that were not read, by its root: what as many random rows move."""
        return (self._num_dropped / self.num_examples) ** 0.5

    @property
    def lines(self) -> tuple[str, ...]:
        """The passes over the data and the error of the pool, in plain words."""
        seconds = ", ".join(f"{p.seconds:.3g} s" for p in self.passes)
        read, count = self.passes[0], len(self.passes)
        rate = read.num_rows / max(read.seconds, 1e-9)
        took = (
            f"{count} pass{'es' * (count > 1)} over the {self.num_examples} rows on disk took "
            f"{seconds} (the first, which only reads, {rate:.3g} rows a second)."
        )
        if 0 < self.error_of_dropped < MOST_MEAN_ERROR:
            took += f" The dataset drops {self._num_dropped} rows, which do not fill a batch."
        if self.num_rows == read.num_rows:
            return (f"{took} All rows fit into memory and were loaded.",)
        return (
            f"{took} The sum of all log likelihoods is known exactly to second order at a center "
            f"{self.offset:.2g} standard deviations from the mode. What is beyond is estimated by "
            f"a pool of {self.num_rows} rows in memory, which were drawn in proportion to it. The "
            f"pool's standard errors are {self.mean_error:.1g} standard deviations in means and "
            f"{100 * self.width_error:.1g} % in standard deviations. Below, the examples are "
            "those of the pool.",
        )

    @property
    def flags(self) -> tuple[str, ...]:
        """Warnings of rows that were not read, and of a pool that is too small."""
        found = []
        if self.error_of_dropped >= MOST_MEAN_ERROR:
            found.append(
                f"The dataset leaves out {self._num_dropped} of the {self.num_examples} rows, "
                "which do not fill a batch. So many random rows move means by about "
                f"{self.error_of_dropped:.2g} standard deviations. Make its batches without "
                "drop_remainder=True."
            )
        if self.offset > MOST_OFFSET:
            found.append(
                f"The mode of all rows was not found: it is about {self.offset:.2g} standard "
                "deviations from where the pool is accurate. Raise memory= of the StreamedLogProb, "
                "or begin nearer to it."
            )
        elif self.mean_error >= MOST_MEAN_ERROR or self.width_error >= MOST_WIDTH_ERROR:
            found.append(
                f"The pool of {self.num_rows} rows is too small: its standard errors are "
                f"{self.mean_error:.2g} standard deviations in means and "
                f"{100 * self.width_error:.2g} % in standard deviations. Raise memory= of the "
                "StreamedLogProb."
            )
        return (*found,)


def moments_of(remainders: RowRemainders, rows: Any) -> Moments:
    """Returns the moments of all rows in memory."""
    total = len(tf.nest.flatten(rows)[0])
    found, size = [], -(-total // -(-total // remainders.block_rows))
    for start in range(0, total, size):
        first = min(start, total - size)
        part = remainders.moments(tf.nest.map_structure(lambda x, a=first: x[a : a + size], rows))
        found.append([x[start - first :] for x in part])
    moments = Moments(*(np.concatenate(x) for x in zip(*found, strict=True)))
    if not np.isfinite(moments.norms).all():
        raise ExpansionError(
            "The gradients of all log likelihoods must be finite at draws of Laplace's "
            "approximation. Received: NaN or infinite ones."
        )
    return moments


class KeepingProbabilities(NamedTuple):
    """The probabilities of rows to be kept, a function of the norms of their remainders.

    Attributes:
      scale: rows that are wanted for each unit of a norm.
      mixed: added to all norms, because remainders at other states differ.
    """

    scale: float
    mixed: float

    def __call__(self, norms: np.ndarray) -> np.ndarray:
        return np.minimum(1.0, self.scale * (norms + self.mixed))


def keeping_probabilities(moments: Moments, total: int, most_rows: int) -> KeepingProbabilities:
    """Returns the probabilities for a pool of as many rows as its error needs.

    It has at most as many as fit.
    """
    mean = float(moments.norms.mean())
    mixed = _MIXED * mean if mean > 0 else 1.0  # a quadratic log likelihood has no remainders

    def of_size(count: float) -> KeepingProbabilities:
        # The norms' mean over a sample of rows stands for that over all rows.
        return KeepingProbabilities(count / (total * (mean + mixed)), mixed)

    # The number of rows that are kept varies by its square root.
    most = min(max(most_rows - 3 * most_rows**0.5, most_rows / 2), _MOST_ROWS)
    count = min(most, _LEAST_ROWS)
    while count < most:
        mean_error, width_error = pool_errors(moments, of_size(count)(moments.norms), total)
        if mean_error < _WANTED * MOST_MEAN_ERROR and width_error < _WANTED * MOST_WIDTH_ERROR:
            break
        count = min(2 * count, most)
    return of_size(count)


def pool_errors(moments: Moments, probabilities: np.ndarray, total: int) -> tuple[float, float]:
    """Returns the standard errors that a pool causes in means and standard deviations."""
    weights = total / len(probabilities) * (1 / probabilities - 1)
    # `einsum` makes no array of squares as large as the moments.
    squares = (np.einsum("n,nd,nd->d", weights, x, x) for x in (moments.means, moments.tilts))
    means, tilts = (float(np.sqrt(x.max())) for x in squares)
    return means, tilts / 2


class Correction(NamedTuple):
    r"""Difference of the exact sum and the pool's, to second order at a center.

    It is a function of whitened offsets from the center, \( z = L^{-1} (\theta - c) \) with
    \( (L L^T)^{-1} = P \), minus the Hessian of the log posterior there. In single precision
    \( d^T P d \) is lost where columns are nearly collinear, and \( |z|^2 \) is not.

    Attributes:
      center: c, a state, flat, `[D]`.
      whitening: \( L^{-1} \), `[D, D]`.
      value: a, the difference of the log likelihoods there.
      gradient: \( L^T b \) of the difference b of their gradients, `[D]`.
      hessian: \( L^T A L \) of the difference A of their Hessians, `[D, D]`.
      radius: R, in standard deviations.
    """

    center: tf.Tensor
    whitening: tf.Tensor
    value: tf.Tensor
    gradient: tf.Tensor
    hessian: tf.Tensor
    radius: tf.Tensor

    def __call__(self, flat: tf.Tensor) -> tf.Tensor:
        r"""Returns \( a + (b^T d + \tfrac12 d^T A d) / (1 + u^2) \) for states `[chains..., D]`.

        \( d = L z \), and \( u = \max(0, |z|^2 / R^2 - 1) \) is 0 where posterior draws are. Far
        away, the correction fades, because the pool's log likelihood may fall less than a quadratic
        there.
        """
        z = tf.linalg.matvec(self.whitening, flat - self.center)
        beyond = tf.maximum(tf.reduce_sum(z**2, axis=-1) / self.radius**2 - 1, 0)
        slope = self.gradient + tf.linalg.matvec(self.hessian, z) / 2
        return self.value + tf.reduce_sum(slope * z, axis=-1) / (1 + beyond**2)

    @classmethod
    def of(cls, center: np.ndarray, lacking: Sums, factor: np.ndarray, dtype: tf.DType) -> Self:
        r"""Returns the correction by sums that are lacking, with L.

        It begins to fade at \( \max(\sqrt D + 8, 5 |L^T b|) \) standard deviations. The mode of the
        pool without correction is about \( |L^T b| \) away, so that the pool has no second mode
        there.
        """
        gradient, hessian = factor.T @ lacking.gradient, factor.T @ lacking.hessian @ factor
        radius = max(len(gradient) ** 0.5 + 8, 5 * np.linalg.norm(gradient))
        fields = (
            center,
            inverse_of_factor(factor),
            lacking.log_likelihood,
            gradient,
            hessian,
            radius,
        )
        return cls(*(tf.constant(x, dtype) for x in fields))


class PooledLogProb(MinibatchLogProb):
    r"""The log posterior of N rows on disk, from M rows in memory.

    \[
    \log p(\theta \mid x_{1:N}) \approx \log p(\theta) + q(\theta)
      + \sum_{j=1}^M w_j \bigl( \log p(x_j \mid \theta) - q_j(\theta) \bigr)
    \]

    \( q_j \) is the second-order expansion of a row's log likelihood at a center, and q the sum
    over all N rows, which is exact. So mode, curvature and width there are those of all rows, and
    only the remainders, of third order in the distance, are estimated by the pool.

    Args:
      model: evaluates prior and likelihood.
      rows: the pool, a nest of `[M, ...]`.
      weights: \( w_j \), `[M]`.
    """

    correction: Correction | None = None
    _to_state: Any = None  # from the coordinates of `whiten` to those of the correction

    def __init__(self, model: MinibatchLogProb, rows: Any, weights: np.ndarray):
        likelihood: Any = model._log_likelihood_fn
        if isinstance(likelihood, LinearModel):
            fn = likelihood._log_prob_fn
            likelihood = LinearModel(
                lambda eta, y: _times(y[1], fn(eta, y[0])), likelihood.num_outputs
            )
            data = rows[0], (rows[1], weights)
        else:
            likelihood, data = _weighted(likelihood), (rows, weights)
        super().__init__(
            model._log_prior_fn,
            likelihood,
            data,
            min(100, len(weights)),
            bijector=model.bijector,
        )
        if model.initial_state is not None:
            self.initial_state = model.initial_state

    def rows_and_weights(self) -> tuple[Any, tf.Tensor]:
        """Returns the pool, `[M, ...]`, and its weights, `[M]`."""
        first, second = self._data
        if isinstance(self._log_likelihood_fn, LinearModel):
            return (first, second[0]), second[1]
        return first, second

    def corrected(self, correction: Correction) -> Self:
        """Returns this target with the correction."""
        other = self.with_minibatches(self.batch_size)
        other.correction = correction
        other.__dict__.pop("_programs", None)  # which are those of the target without it
        return other

    def with_bijector(self, bijector: Any, curvature: Any = None) -> Self:
        other = super().with_bijector(bijector, curvature)
        inner = to_state(bijector, self.bijector)
        other._to_state = inner if self._to_state is None else tfb.Chain([self._to_state, inner])
        return other

    def model_log_prior(self, state: State) -> tf.Tensor:
        return super().log_prior(state)

    def log_prior(self, state: State) -> tf.Tensor:
        """Returns the log prior plus what the pool lacks of the exact quadratic part."""
        prior = self.model_log_prior(state)
        if self.correction is None:
            return prior
        return prior + self.correction(flatten_events(self.state_of_pool(state), prior.shape.rank))

    def state_of_pool(self, state: State) -> State:
        """Returns a state in the coordinates in which the pool was drawn."""
        return state if self._to_state is None else self._to_state.forward(state)

    def log_det_to_pool(self, state: State) -> Any:
        """Returns the log determinant of that map's Jacobian, at vectors `[..., D]`."""
        if self._to_state is None:
            return 0.0
        return self._to_state.forward_log_det_jacobian(state, event_ndims=1)


def _times(weights: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    return values * tf.cast(weights, values.dtype)


def _weighted(fn: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Returns a log likelihood of (rows, weights) that multiplies `fn` by the weights."""

    @functools.wraps(fn)
    def weighted(*args: Any, **kwargs: Any) -> tf.Tensor:
        if "batch" in kwargs:
            rows, weights = kwargs.pop("batch")
            return _times(weights, fn(*args, batch=rows, **kwargs))
        *parts, (rows, weights) = args
        return _times(weights, fn(*parts, rows))

    return weighted


def save(path: Path, pool: MinibatchLogProb, report: PoolReport) -> None:
    """Writes the pool; nothing if it is all of the data, which are read again."""
    if not isinstance(pool, PooledLogProb):
        return
    rows, weights = pool.rows_and_weights()
    assert pool.correction is not None
    leaves = [x.numpy() for x in tf.nest.flatten(rows)]
    parts = {f"rows{i}": x for i, x in enumerate(leaves)}
    parts |= {name: x.numpy() for name, x in pool.correction._asdict().items()}
    parts["weights"] = weights.numpy()
    header = {
        "version": _VERSION,
        "form": form_of(rows)[0],
        "num_examples": report.num_examples,
        "passes": [list(p) for p in report.passes],
        "errors": [report.mean_error, report.width_error, report.offset],
        "dtypes": {name: x.dtype.name for name, x in parts.items()},
    }
    npz.write(path, header, parts)


def load(
    path: Path, target: StreamedLogProb, initial_state: Any
) -> tuple[PooledLogProb, PoolReport]:
    """Returns a pool and its report.

    Raises:
      ValueError: the file is of another version, or of other data.
    """
    like = target.row_spec
    expected = f"{target.num_examples} examples of {form_of(like)[0]}"
    with npz.reading(path, "sample", _DAMAGED) as (header, _):
        if header["version"] != _VERSION:
            raise ValueError(f"it has version {header['version']}, not {_VERSION}")
        found = f"{header['num_examples']} examples of {header['form']}"
    if found != expected:
        raise ValueError(
            f"{path} must hold a pool of {expected}. Received: {found}. Use a new directory."
        )
    with npz.reading(path, "sample", _DAMAGED) as (header, array):
        dtypes = header["dtypes"]
        count = len(tf.nest.flatten(like))
        rows = tf.nest.pack_sequence_as(
            like, [array(f"rows{i}", dtypes[f"rows{i}"]) for i in range(count)]
        )
        weights = array("weights", dtypes["weights"])
        correction = Correction(
            **{name: tf.constant(array(name, dtypes[name])) for name in Correction._fields}
        )
        passes = tuple(Pass(*p) for p in header["passes"])
        report = PoolReport(header["num_examples"], len(weights), passes, *header["errors"])
    state = convert_state(initial_state, initial=True, called="initial_state")
    dim = num_entries(state)
    if dim != correction.center.shape[0]:
        raise ValueError(
            f"initial_state must have {correction.center.shape[0]} entries, as in the run of "
            f"{path}. Received: {dim}."
        )
    return PooledLogProb(target.of_one_batch, rows, weights).corrected(correction), report
