"""The annealed ensemble that `SamplerCallback()` makes: its kernel, its pool and its members.

The pool holds training rows that some chains never see. It chooses the windows of time whose states
predict best.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.keras.adaptation.layer_masses import LayerMass, layer_masses
from tfp_sgmcmc.keras.data.training_data import Source
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.model.log_prob import RowsOfChains, folds, num_missed, row_hashes
from tfp_sgmcmc.keras.posterior.posterior import Posterior
from tfp_sgmcmc.kernels.annealed_sghmc import AnnealedSGHMC
from tfp_sgmcmc.schedules import CosineTail, GeometricDecay

_SHARE, _MOST = 0.4, 400  # of the rows, and rows

Window = tuple[float, float]

#: Shares of the run, `(after, until)`.
WINDOWS: tuple[Window, ...] = (
    (0.05, 0.15), (0.1, 0.2), (0.15, 0.3), (0.2, 0.4), (0.3, 0.5),
    (0.4, 0.6), (0.5, 0.7), (0.6, 0.8), (0.7, 0.9), (0.8, 1.0),
)  # fmt: skip
_ROUNDING = 1e-9

NUM_CHAINS, NUM_STATES = 5, 80
_RELAXATION = 100.0  # factor of the prior's variance from the first step to the last
_MASS_AVERAGING, _STEP_FALLS = 0.01, 0.8
_ROWS = 512  # that show the size of the inputs
_ATTENTION = (
    keras.layers.MultiHeadAttention,
    keras.layers.GroupQueryAttention,
    keras.layers.Attention,
    keras.layers.AdditiveAttention,
)


class LeftOutPool(NamedTuple):
    """The rows of the pool.

    Attributes:
      rows: decides which rows of a batch each chain sees.
      x: their inputs, a nest of arrays `[q, ...]`.
      y: their targets, in the same form.
      fold: the first of the two chains that never see a row, `[q]`; the other one follows it.
      weight: the rows' weights, positive, with mean 1, `[q]`.
    """

    rows: RowsOfChains
    x: Any
    y: Any
    fold: np.ndarray
    weight: np.ndarray


def left_out_pool(
    source: Source, num_examples: int, num_chains: int, key: int
) -> LeftOutPool | None:
    """Returns a pool of min(0.4 N, 400) rows; None if rows cannot be read twice alike.

    Rows of weight 0 count as absent, in N, too. The data are read once, and data that are not
    arrays twice: rows that an augmentation has changed do not come again.

    Args:
      source: the data of `fit`.
      num_examples: N, with the rows of weight 0.
      num_chains: C.
      key: see `RowsOfChains`.

    Raises:
      ValueError: the rows' weights are all zero, or one is negative.
    """
    if source.passes is None:
        return None
    hashes, weights = _hashes_and_weights(source.passes(), key)
    counts = weights != 0
    total = num_examples * (np.count_nonzero(counts) / len(counts))
    size, ordered = int(min(_SHARE * total, _MOST)), np.sort(hashes[counts])
    bound = int(ordered[size]) if size < len(ordered) else 2**32
    wanted = ordered[ordered < bound]
    batches = source.passes()
    if source.arrays is not None:
        batches = iter([source.rows(np.flatnonzero(np.isin(hashes, wanted) & counts))])
    found = _rows_with(wanted, batches, key)
    if found is None:
        return None
    hashes, x, y, weight = found
    fold = np.asarray(folds(hashes, num_chains))
    num_seen = total - num_missed(fold, num_chains)
    mean_weight = float(weights[counts].mean(dtype=np.float64))
    rows = RowsOfChains(bound, num_chains, key, num_seen, mean_weight)
    return LeftOutPool(rows, x, y, fold, weight / weight.mean())


def _hashes_and_weights(batches: Iterator[Any], key: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the hashes and the mean weights of all rows."""
    hashes, means, given = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    for x, y, weight in batches:
        hashes.append(row_hashes(x, key).numpy())
        means.append(_row_weights(y, weight, len(hashes[-1])))
        given += [np.ravel(a) for a in internals.array_leaves(weight)]
    checks.nonnegative_weights("sample_weight", np.concatenate(given or means))
    return np.concatenate(hashes), np.concatenate(means)


def _rows_with(
    wanted: np.ndarray, batches: Iterator[Any], key: int
) -> tuple[np.ndarray, Any, Any, np.ndarray] | None:
    """Returns hashes, inputs, targets and weights of the rows with such hashes, in their order.

    Rows of weight 0 are left out. None is returned if a hash does not come again, or if targets of
    different length cannot be joined.
    """
    parts = list[tuple[Any, ...]]()
    for x, y, weight in batches:
        hashes = row_hashes(x, key).numpy()
        each = _row_weights(y, weight, len(hashes))
        chosen = np.flatnonzero(np.isin(hashes, wanted) & (each != 0))
        if len(chosen):
            parts.append(_taken((hashes, x, y, each), chosen))
    forms = [[a.shape[1:] for a in internals.array_leaves(part[2])] for part in parts]
    if not parts or any(form != forms[0] for form in forms):
        return None
    hashes, *others = map(_joined, zip(*parts, strict=True))
    if not np.isin(wanted, hashes).all():
        return None
    return _taken((hashes, *others), np.argsort(hashes, kind="stable"))


def _taken(nest: Any, rows: np.ndarray) -> Any:
    """Returns rows of a nest of arrays."""
    return internals.map_arrays(lambda a: np.asarray(a)[rows], nest)


def _row_weights(y: Any, weight: Any, num_rows: int) -> np.ndarray:
    """Returns the mean of each row's weights that are not 0, over places and then outputs.

    It is 1 without weights, and 0 if all of them are.
    """

    def mean(x: np.ndarray) -> np.ndarray:
        return x.sum(axis=1) / np.maximum(np.count_nonzero(x, axis=1), 1)

    means = [mean(np.reshape(a, [num_rows, -1])) for a in internals.array_leaves(weight)]
    if not means or internals.has_unweighted_targets(y, weight):
        means.append(np.ones(num_rows))
    return mean(np.stack(means, axis=1))


def _joined(nests: Sequence[Any]) -> Any:
    """Returns nests of arrays concatenated leaf by leaf; leaves may be None.

    Rows of batches of different length, such as texts, are completed by zeros, as hashes count
    them.
    """

    def joined(*arrays: Any) -> Any:
        if arrays[0] is None:
            return None
        longest = np.max([a.shape[1:] for a in arrays], axis=0, initial=0)
        return np.concatenate([
            np.pad(a, [(0, 0), *((0, n - m) for n, m in zip(longest, a.shape[1:], strict=True))])
            for a in arrays
        ])  # fmt: skip

    return keras.tree.map_structure(joined, *nests)


class WindowChoice(NamedTuple):
    """The windows whose states make the ensemble.

    Attributes:
      windows: the windows, as shares of the run.
      loss: the extrapolated loss of each window of `WINDOWS` that has states, in nats, by window.
        Empty where there was no pool to choose with.
      num_rows: the rows of the pool.
      is_chosen: whether a state belongs to a window, `[S]`.
    """

    windows: tuple[Window, ...]
    loss: dict[Window, float]
    num_rows: int
    is_chosen: np.ndarray

    def __str__(self) -> str:
        shown = ", ".join(f"{100 * a:.0f}-{100 * b:.0f} %" for a, b in self.windows)
        states = f"{int(self.is_chosen.sum())} states a chain from {shown} of the run"
        if not self.loss:
            return f"{states}. No rows were left out to choose with, so these are the last ones."
        best = min(self.loss.values())
        return f"{states}, chosen by {self.num_rows} rows: loss {best:.4f} nats (extrapolated)."


def choose_windows(
    log_likelihood: np.ndarray,
    times: np.ndarray,
    fold: np.ndarray,
    weight: np.ndarray | float = 1.0,
) -> WindowChoice:
    r"""Chooses all windows that are as good as the best within one standard error.

    Two of the C chains have never seen a row of the pool. With the mean predictions p1 and p2 of
    these chains over the states of a window, the loss of the mean over C chains is extrapolated as

    \[
    E = -\log \frac{p_1 + p_2}{2}
      - \Bigl( 1 - \frac 2 C \Bigr) \frac{\delta^2}{2},
    \qquad \delta = \frac{p_1 - p_2}{p_1 + p_2},
    \]

    because the loss of a mean of c chains falls about as 1/c, from one chain to two by
    \( -\tfrac12 \log(1 - \delta^2) \), of which this is the leading term. (The logarithm itself
    would promise no end of gain where one of the chains is sure of a wrong class.) A window is
    chosen if the mean over rows of its E minus that of the best window is at most its standard
    error.

    Args:
      log_likelihood: of the pool's rows by each state, `[S, C, q]`.
      times: the share of the run after which each state was left, in (0, 1], `[S]`.
      fold: the first of the two chains that have not seen a row, `[q]`.
      weight: the rows' weights, `[q]`, with mean 1.
    """
    num_chains, rows = log_likelihood.shape[1], np.arange(len(fold))
    extrapolated: dict[Window, np.ndarray] = {}
    for window in WINDOWS:
        inside = log_likelihood[_is_in(times, window)]
        if not len(inside):
            continue
        by_chain = np.logaddexp.reduce(inside, axis=0) - np.log(len(inside))  # [C, q]
        pair = np.stack([by_chain[(fold + i) % num_chains, rows] for i in (0, 1)])
        delta = np.tanh((pair[0] - pair[1]) / 2)
        loss = np.log(2) - np.logaddexp(*pair)
        extrapolated[window] = loss - (1 - 2 / num_chains) * delta**2 / 2
    if not extrapolated:
        return last_window(times)
    means = {window: float((weight * e).mean()) for window, e in extrapolated.items()}
    best = extrapolated[min(means, key=lambda w: means[w])]
    chosen = []
    for window, e in extrapolated.items():
        gap = e - best
        mean = (weight * gap).mean()
        error = np.mean((weight * (gap - mean)) ** 2) ** 0.5 / len(gap) ** 0.5
        if mean <= error + 1e-12:
            chosen.append(window)
    return WindowChoice(tuple(chosen), means, len(fold), _is_in(times, *chosen))


def last_window(times: np.ndarray) -> WindowChoice:
    """Returns the states of the last window; of a run that ended before, the last fifth of it."""
    after, until = (x * min(1.0, float(times.max())) for x in WINDOWS[-1])
    return WindowChoice(((after, until),), {}, 0, _is_in(times, (after, until)))


def _is_in(times: np.ndarray, *windows: Window) -> np.ndarray:
    """Returns whether a time is in one of the windows."""
    inside = [(times > a + _ROUNDING) & (times <= b + _ROUNDING) for a, b in windows]
    return np.any(inside, axis=0)


class _Pace(NamedTuple):
    """Steps and temperatures of a run, and a factor of the prior's variances.

    Steps and temperatures have a value where the run begins and one where it ends, and steps also a
    peak.
    """

    first_step: float
    largest_step: float
    last_step: float
    first_temperature: float
    last_temperature: float
    prior_variance: float = 1.0


_PACE = _Pace(7e-4, 5e-3, 5e-4, 0.03, 0.001)
_PACE_OF_RECURRENT = _Pace(3e-3, 3e-3, 3e-4, 0.3, 0.01)
_PACE_OF_ATTENTION = _Pace(3e-3, 3e-3, 3e-4, 0.003, 0.0001)
_PACE_OF_EMBEDDINGS = _Pace(1e-3, 3e-3, 3e-4, 0.003, 0.0001, prior_variance=100.0)


class AnnealedEnsemble:
    r"""Five chains whose prior relaxes and whose temperature falls along one `fit` of K steps.

    With t = k / K after k steps, the kernel is `AnnealedSGHMC` with the first masses m and the
    centres of `layer_masses`, the prior N(0, 2 100^t / m) for weights and N(0, 100^t) for other
    variables, and the temperature \( 0.03\, (0.001 / 0.03)^t \). Masses follow the gradients
    (`mass_averaging` of 0.01). The largest learning rate grows from 0.0007 to 0.005 in the first
    four fifths, and falls to 0.0005 by a cosine over the last one (`CosineTail`), so that early
    states are those of slow training and late ones those of a long way. With recurrent layers it is
    0.003 until it falls to 0.0003, and temperatures are 10 times as high; with attention they are a
    tenth. With embeddings but neither of them it grows from 0.001 to 0.003 and falls to 0.0003,
    temperatures are a tenth, and the prior's variances 100 times as large. All chains see the same
    batches, but each row of a pool is hidden from two of them (see `RowsOfChains`): it counts for
    nothing in their gradients, and N is the number of rows that a chain sees. These chains tell
    afterwards from which part of the run predictions are taken (see `choose_windows`). Inputs of
    layers are measured on the pool, and the initial weights of layers whose inputs are large are
    divided by their size.

    Attributes:
      num_steps: K, or None before the first `fit`.
      choice: the windows that `members` chose last; None before.

    Args:
      key: decides which rows make the pool.
    """

    def __init__(self, key: int):
        self._key = key
        self._pool: LeftOutPool | None = None
        self._batch: Any = None  # some rows, if there is no pool
        self.num_steps: int | None = None
        self.choice: WindowChoice | None = None
        self._masses = list[LayerMass]()
        self._kernel: dict[str, Any] = {}
        self._members: tuple[int, Posterior] | None = None

    @property
    def rows_of_chains(self) -> RowsOfChains | None:
        """Which rows each chain sees; None if there is no pool."""
        return None if self._pool is None else self._pool.rows

    def settle(self, source: Source, num_examples: int, num_chains: int, num_steps: Any) -> None:
        """Takes on what follows from the data and the length of the first `fit`.

        Raises:
          ValueError: the number of steps is unknown or 0.

        Warns:
          UserWarning: rows cannot be told apart, so there is no pool.
        """
        if num_steps is None:
            raise ValueError(
                "SamplerCallback() needs to know how many steps fit takes, because it cools along "
                f"them. Received: {source.kind} of unknown length. Pass fit steps_per_epoch."
            )
        if num_steps < 1:
            raise ValueError(
                "SamplerCallback() must take at least one step in fit. Received: no epochs."
            )
        self.num_steps = int(num_steps)
        self._pool = left_out_pool(source, num_examples, num_chains, self._key)
        if self._pool is None:
            self._batch = source.batch(_ROWS)
            reason = (
                f"{source.kind}, which cannot be read again or gives other rows when it is "
                "(augment in layers of the model, and leave drop_remainder out after a shuffle)"
                if source.arrays is None
                else f"{num_examples} examples with too few different inputs"
            )
            warnings.warn(
                "SamplerCallback() cannot hide rows from some chains, which choose the part of the "
                f"run that predicts best. Received: {reason}. The last fifth of the run is taken.",
                stacklevel=2,
            )

    def begin_chain(self, model: keras.Model) -> None:
        """Takes on the masses of a built model."""
        assert self.num_steps is not None  # settled
        rows = None if self._batch is None else self._batch[0]
        found = self._masses = layer_masses(model, rows if self._pool is None else self._pool.x)
        k, pace = self.num_steps, _pace(model)
        self._kernel = {
            "step_size": CosineTail(
                pace.first_step, pace.last_step, k, _STEP_FALLS, pace.largest_step
            ),
            "mass_averaging": _MASS_AVERAGING,
            "mass": [m.mass for m in found],
            "prior_variance": [pace.prior_variance * m.variance for m in found],
            "centers": [(k, m.bias, m.center) for k, m in enumerate(found) if m.bias is not None],
            "prior_scale": GeometricDecay(1.0, _RELAXATION, k),
            "temperature": GeometricDecay(pace.first_temperature, pace.last_temperature, k),
        }

    def scale_starts(self, states: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Divides states from initialisers, `[chains, ...]` by variable, where inputs are large.

        The layer's outputs at its mean input are then its initial biases.
        """
        scaled = list(states)
        for k, m in enumerate(self._masses):
            if np.all(m.divisor == 1):
                continue
            scaled[k] = scaled[k] / tf.cast(m.divisor, scaled[k].dtype)
            if m.bias is not None:
                inputs = range(1, scaled[k].shape.rank - 1)
                at_mean = tf.reduce_sum(tf.cast(m.center, scaled[k].dtype) * scaled[k], [*inputs])
                scaled[m.bias] -= tf.cast(at_mean, scaled[m.bias].dtype)
        return scaled

    def make_kernel(self, target: Any) -> AnnealedSGHMC:
        """Returns the kernel over a target with a flat prior."""
        return AnnealedSGHMC(target, **self._kernel)

    def members(self, every: Posterior, steps: np.ndarray) -> Posterior:
        """Returns the states of the chosen windows, from all states and the steps that left them.

        Choosing evaluates each state on the pool.
        """
        if self._members is None or self._members[0] != len(every):
            assert self.num_steps is not None  # there are states
            times = np.minimum((np.asarray(steps[:]) + 1) / self.num_steps, 1.0)
            if self._pool is None:
                self.choice = last_window(times)
            else:
                pool = self._pool
                y = _without_absent(pool.y)
                found = every.log_likelihood(pool.x, y, len(pool.fold), verbose=0)
                self.choice = choose_windows(
                    found.astype(np.float64), times, pool.fold, pool.weight
                )
            chosen = np.flatnonzero(self.choice.is_chosen)
            samples = [np.asarray(x[:])[chosen] for x in every.samples]
            self._members = len(every), every.with_samples(samples)
        return self._members[1]


def _without_absent(y: Any) -> Any:
    """Returns targets without None, which stands for those of an output without a loss."""
    leaves, given = keras.tree.flatten(y), internals.array_leaves(y)
    if len(leaves) == len(given):
        return y
    return given[0] if len(given) == 1 else given


def check_alone(**given: Any) -> None:
    """Raises ValueError if arguments are given that belong to a kernel."""
    found = [name for name, value in given.items() if value is not None]
    if found:
        raise ValueError(
            f"{', '.join(found)} must be left out without a kernel, because the annealed ensemble "
            "of SamplerCallback() has its own. Received: a value. For the posterior of the model "
            'give a kernel, such as SamplerCallback("posterior", prior=...).'
        )


def _pace(model: keras.Model) -> _Pace:
    """Returns the pace for the layers of a model that have trainable weights."""
    layers = [layer for layer in internals.layers(model) if layer.trainable_variables]
    if any(isinstance(layer, _ATTENTION) for layer in layers):
        return _PACE_OF_ATTENTION
    if any(isinstance(layer, keras.layers.RNN) for layer in layers):
        return _PACE_OF_RECURRENT
    has_embeddings = any(isinstance(layer, keras.layers.Embedding) for layer in layers)
    return _PACE_OF_EMBEDDINGS if has_embeddings else _PACE
