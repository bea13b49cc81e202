"""`tune`: chooses step sizes, frictions and batch sizes by Stein discrepancies of short runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.diagnostics.stein import estimates_at, squared_kernel_stein_discrepancy
from tfp_sgmcmc.internal import xla
from tfp_sgmcmc.internal.checks import boolean, eager, function, integer, number, positive
from tfp_sgmcmc.internal.nest import State, flatten_events
from tfp_sgmcmc.kernels.base import check_kernel
from tfp_sgmcmc.sampling.loop import Loop, Position, start_of, state_tensors
from tfp_sgmcmc.targets import FullDataLogProb, Target
from tfp_sgmcmc.targets.base import as_target

_ROWS_A_COLUMN = 10  # fewest rows for each column to estimate a correlation from
_LEAST_VARIANCE = 1e-12  # relative to the largest
_MOST_BELOW = 100.0  # distance of the mean log posterior to the best one's, for each parameter
_STANDARD_ERRORS = 5.0

Candidate = Mapping[str, Any]


class SteinComparison:
    """Computes squared kernel Stein discrepancies of several candidates' states.

    A score is the absolute value of the U-statistic. The statistic estimates a nonnegative number,
    but can itself be negative: slightly for good chains, and without bound if steps overshoot,
    because the gradients at successive states then have opposite signs.

    Where a chain was thrown far away, gradients may hardly grow while the distances between states
    do, and the discrepancy goes to zero. So a candidate has an infinite score if its mean log
    posterior is lower than the best one's by 100 for each parameter, and by more than minibatch
    noise explains. Draws of a posterior differ by about a half for each parameter.

    Parameters are divided by their standard deviations, and the discrepancy's preconditioner is
    their correlation (see `spread`), the same for all candidates. Otherwise the narrowest direction
    of a posterior alone would decide, although mean and covariance hardly depend on it. Each state
    gets a separate minibatch, even if the target's chains share them. Otherwise the gradients would
    be dependent, and the discrepancy would be biased.

    Args:
      target: the target whose gradients are taken.
      chain_ndims: number of leading axes of its states that count chains.
      exact_gradients, scale: see `tune`.
      jit_compile: whether XLA compiles the gradients from minibatches.
    """

    def __init__(
        self,
        target: Target,
        chain_ndims: int,
        exact_gradients: bool,
        scale: float,
        jit_compile: bool,
    ):
        self._chain_ndims = chain_ndims
        self._is_exact = exact_gradients or isinstance(target, FullDataLogProb)
        self._at_all = tf.function(
            lambda states: estimates_at(target, states, None, chain_ndims), autograph=False
        )
        self._at_minibatches = tf.function(
            lambda states, seed: estimates_at(target, states, seed, 0),
            autograph=False,
            jit_compile=jit_compile,
        )
        self._discrepancy = tf.function(
            lambda x, g, m: squared_kernel_stein_discrepancy(x, g, preconditioner=m, scale=scale),
            autograph=False,
        )

    def __call__(
        self,
        states: Sequence[State],
        seeds: Sequence[tf.Tensor],
        map_fn: Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]] = map,
    ) -> np.ndarray:
        """Returns the scores. Lower is better.

        A score is infinite if states, gradients or log posteriors are not finite, or if a chain was
        thrown far away.

        Each candidate has a nest of parts `[results, chains..., event...]`, and a seed for its
        minibatches. `map_fn` evaluates candidates one after the other, like `map`, or in parallel.
        """
        rows = [_rows(x, 1 + self._chain_ndims) for x in states]
        scores = np.full(len(rows), np.inf)
        finite = np.flatnonzero([np.isfinite(x).all() for x in rows])
        found = dict(
            zip(finite, map_fn(lambda i: self.estimates(states[i], seeds[i]), finite), strict=True)
        )
        near = _not_thrown({i: x[0] for i, x in found.items()}, rows[0].shape[1])
        if not near:
            return scores
        deviations, correlation = spread([rows[i] for i in near])

        def score(i: int) -> float:
            x, g = rows[i] / deviations, found[i][1] * deviations
            value = abs(float(self._discrepancy(x, g, correlation)))
            return value if np.isfinite(value) else np.inf

        scores[near] = list(map_fn(score, near))
        return scores

    def estimates(self, states: State, seed: tf.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Returns log posteriors `[results * chains]`, and gradients `[results * chains, D]`."""
        ndims = 1 + self._chain_ndims
        if self._is_exact:
            log_probs, gradients = self._at_all(states)
            return np.ravel(log_probs).astype(np.float64), _rows(gradients, ndims)
        pooled = tf.nest.map_structure(lambda x: tf.reshape(x, [-1, *x.shape[ndims:]]), states)
        log_probs, gradients = self._at_minibatches(pooled, seed)
        return np.asarray(log_probs, np.float64), _rows(gradients, 1)


def _not_thrown(log_probs: Mapping[int, np.ndarray], size: int) -> list[int]:
    """Returns the candidates whose mean log posterior is not far below the best one's."""
    finite = {i: x for i, x in log_probs.items() if np.isfinite(x).all()}
    means = {i: x.mean() for i, x in finite.items()}
    errors = {i: _STANDARD_ERRORS * x.std() / np.sqrt(x.size) for i, x in finite.items()}
    least = max((means[i] - errors[i] for i in finite), default=0.0) - _MOST_BELOW * size
    return [i for i in finite if means[i] + errors[i] >= least]


def spread(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns deviations and correlation of the candidate whose total variance is the median.

    The states of some candidates have not spread yet, and others have spread too far.

    >>> x = np.random.default_rng(0).normal(size=[1000, 2]) * [1.0, 5.0]
    >>> deviations, correlation = spread([x, 0.01 * x, 100.0 * x])
    >>> deviations.round(1), correlation.round(1) + 0.0
    (array([1. , 4.9]), array([[1., 0.], [0., 1.]]))

    Args:
      rows: for each candidate, its states `[n, D]`.

    Returns:
      Deviations `[D]`, and the correlation `[D, D]`, or None if n is below 10 D.
    """
    variances = [np.var(x, axis=0) for x in rows]
    middle = np.argsort([v.sum() for v in variances], kind="stable")[(len(rows) - 1) // 2]
    x, most = rows[middle], variances[middle].max()
    # Parameters that hardly moved must be divided by a positive number as well.
    least = _LEAST_VARIANCE * most if most > 0 else 1.0
    deviations = np.sqrt(np.maximum(variances[middle], least))
    if len(x) < _ROWS_A_COLUMN * x.shape[1]:
        return deviations, None
    z = (x - x.mean(axis=0)) / deviations
    return deviations, z.T @ z / len(z)


def _rows(nest: State, lead_ndims: int) -> np.ndarray:
    flat = flatten_events(tf.nest.flatten(nest), lead_ndims).numpy().astype(np.float64)
    return flat.reshape(-1, flat.shape[-1])


class TuningRound(NamedTuple):
    """One round of `tune`.

    Attributes:
      candidates: the candidates that took part.
      scores: their squared kernel Stein discrepancies (absolute values of the U-statistic). Lower
        is better. Infinite means that a chain became NaN or infinite, or was thrown far away.
      num_steps: number of steps of each candidate in this round.
    """

    candidates: list[Candidate]
    scores: np.ndarray
    num_steps: int


class TuningResult(NamedTuple):
    """The result of `tune`.

    Attributes:
      best: the best candidate: arguments of `make_kernel_fn`.
      rounds: the candidates and their scores in each round.
      state: the last state of the best candidate's chains, from which a run may start.
      num_steps: number of steps of all candidates together.
    """

    best: Candidate
    rounds: list[TuningRound]
    state: State
    num_steps: int


def tune(
    make_kernel_fn: Callable[..., tfp.mcmc.TransitionKernel],
    candidates: Mapping[str, Sequence[Any]] | Sequence[Candidate],
    target_log_prob_fn: Any,
    initial_state: State,
    *,
    num_steps: int,
    seed: Any,
    num_results: int = 100,
    reduction: float = 2.0,
    exact_gradients: bool = False,
    scale: float = 1.0,
    jit_compile: bool = True,
    num_parallel: int | None = None,
) -> TuningResult:
    r"""Chooses among settings of a kernel by successive halving on the kernel Stein discrepancy.

    In each of K rounds, the remaining \( M_k \) candidates take
    \( \lfloor B / (K M_k) \rfloor \) steps each from where they were. The better
    \( \lceil M_k / r \rceil \) stay, until one is left. The score is the
    `squared_kernel_stein_discrepancy` of the round's states of all chains, with gradients from
    minibatches of the target. It detects bias as well as slow mixing, and needs no reference.
    Chains that were thrown far from the others, where their log posterior is much lower, drop out.
    Parameters are divided by their deviations, and their correlation is the discrepancy's
    preconditioner (if there are 10 states for each parameter). Both come from the candidate whose
    states have the median variance, so that errors count as they do in the posterior's moments. The
    paper's budget is seconds; here it is steps, so that the same call gives the same result.

    The best candidate depends on the length of a chain, because small steps are less biased and mix
    more slowly. Let the last round, B / (2 K) steps, be about as long as the run to come.

    Examples:
      >>> import tensorflow as tf, tfp_sgmcmc as sgmcmc
      >>> target = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1))
      >>> found = sgmcmc.tune(
      ...     lambda step_size: sgmcmc.SGLD(target, step_size), {"step_size": [1e-5, 0.3, 3.9]},
      ...     target, tf.zeros([4, 2]), num_steps=1500, seed=0)
      >>> found.best, [len(r.candidates) for r in found.rounds]
      ({'step_size': 0.3}, [3, 2])

    Args:
      make_kernel_fn: a candidate's values, by name -> kernel. Floats are passed as tensors, so that
        candidates that differ in floats only share one compiled program. If this raises a TypeError
        or NotImplementedError (for a schedule or matrix that needs floats, or a target that is made
        in `make_kernel_fn`), each candidate is compiled separately.
      candidates: name -> values, to try all combinations; or a sequence of combinations.
      target_log_prob_fn: a target or a plain callable, whose gradients the comparison uses.
      initial_state: a state with leading axes of chains; more chains sharpen the comparison.
      num_steps: B, the steps of all candidates and rounds together; a step moves all chains.
      seed: an integer or two. The same seed gives the same result on the same device.
      num_results: number of states of each chain that a round's comparison uses.
      reduction: r, above 1.
      exact_gradients: whether the comparison uses gradients over all examples.
      scale: c of the discrepancy's kernel, in deviations of the chains.
      jit_compile: whether XLA compiles the steps.
      num_parallel: number of candidates that take their steps at a time, each in a thread. The
        result is the same for any number. None means one for each core that this process may use,
        or 1 with a GPU.

    Raises:
      ValueError: there are no candidates; the budget is too small for `num_results`; `reduction` is
        at most 1; all candidates' chains became NaN or infinite.

    References:
      J. Coullon, L. South and C. Nemeth. Efficient and generalizable tuning strategies for
      stochastic gradient MCMC. Statistics and Computing, 2023.
    """
    eager("tune")
    num_parallel = xla.num_parallel_programs() if num_parallel is None else num_parallel
    integer("num_parallel", num_parallel, 1)
    function("make_kernel_fn", make_kernel_fn, "a candidate's values by name -> kernel")
    boolean("exact_gradients", exact_gradients)
    boolean("jit_compile", jit_compile)
    scale = positive("scale", scale)
    integer("num_steps", num_steps, 1)
    integer("num_results", num_results, 2)
    left = list(enumerate(_combinations(candidates)))
    number("reduction", reduction, "a number above 1", lambda x: x > 1)
    sizes = _sizes(len(left), reduction)
    if num_steps // (len(sizes) * sizes[0]) < num_results:
        raise ValueError(
            f"num_steps must be at least {len(sizes) * sizes[0]} for each of the {num_results} "
            f"results ({len(sizes)} rounds, the first with {sizes[0]} candidates). Received: "
            f"{num_steps}."
        )
    target = as_target(target_log_prob_fn, full_data_expected=True)
    seed = random.as_seed(seed)
    initial_state = state_tensors(initial_state)
    try:
        chain_ndims = len(tf.TensorShape(target.chain_shape(initial_state)))
    except (TypeError, AttributeError) as error:
        raise TypeError(
            "target_log_prob_fn must take the parts of initial_state and return log probabilities. "
            f"Received: {error}"
        ) from error
    run_seed, score_seed = random.split(seed, 2)
    programs = _Programs(make_kernel_fn, num_results, jit_compile)
    compare = SteinComparison(target, chain_ndims, exact_gradients, scale, jit_compile)
    positions = [programs.start(c, initial_state) for _, c in left]
    for (_, candidate), position in zip(left, positions, strict=True):
        programs.trace(candidate, position)
    rounds: list[TuningRound] = []
    device = xla.device()  # threads begin without the caller's

    def map_fn(fn: Callable[..., Any], *columns: Iterable[Any]) -> Iterator[Any]:
        def placed(*args: Any) -> Any:
            with tf.device(device):
                return fn(*args)

        return map(fn, *columns) if num_parallel == 1 else pool.map(placed, *columns)

    with ThreadPoolExecutor(num_parallel) as pool:
        for round_number, size in enumerate(sizes):
            stride = num_steps // (len(sizes) * size) // num_results
            indices, tried = zip(*left, strict=True)
            seeds = [random.fold_in(run_seed, index) for index in indices]
            moved = map_fn(programs.advance, tried, positions, seeds, [stride] * size)
            positions, states, good = zip(*moved, strict=True)
            round_seed = random.fold_in(score_seed, round_number)
            seeds = [random.fold_in(round_seed, index) for index in indices]
            scores = np.where(good, compare(states, seeds, map_fn), np.inf)
            rounds.append(TuningRound([*tried], scores, stride * num_results))
            if not np.any(np.isfinite(scores)):
                raise ValueError(
                    f"The chains of all candidates became NaN or infinite: {[*tried]}. Smaller "
                    "step sizes are the usual cure."
                )
            order = np.argsort(scores, kind="stable")[: int(np.ceil(size / reduction))]
            left, positions = [left[i] for i in order], [positions[i] for i in order]
    taken = sum(len(r.candidates) * r.num_steps for r in rounds)
    return TuningResult(left[0][1], rounds, positions[0].state, taken)


def _combinations(candidates: Any) -> list[Candidate]:
    found: list[Candidate]
    if isinstance(candidates, Mapping):
        values = [_listed(name, v) for name, v in candidates.items()]
        found = [dict(zip(candidates, v, strict=True)) for v in itertools.product(*values)]
    elif isinstance(candidates, Sequence) and all(isinstance(c, Mapping) for c in candidates):
        found = [dict(c) for c in candidates]
    else:
        raise TypeError(
            "candidates must be a mapping from names to sequences of values, or a sequence of "
            f"mappings from names to values. Received: {candidates!r}."
        )
    for name in (name for c in found for name in c if not isinstance(name, str)):
        raise TypeError(f"candidates must have strings as names. Received: {name!r}.")
    if not found or not all(found):
        raise ValueError(
            f"candidates must have at least one combination of values. Received: {candidates!r}."
        )
    return found


def _listed(name: str, values: Any) -> list[Any]:
    try:
        if isinstance(values, str):
            raise TypeError
        return list(values)
    except TypeError:
        raise TypeError(
            f"candidates[{name!r}] must be a sequence of values. Received: {values!r}."
        ) from None


def _hashable(value: Any) -> Hashable:
    """Returns the value, or what stands for an array or a nest of them in a key."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


def _sizes(size: int, reduction: float) -> list[int]:
    """Returns the number of candidates in each round; a single candidate has one round."""
    sizes = [size]
    while (size := int(np.ceil(size / reduction))) > 1 and size < sizes[-1]:
        sizes.append(size)
    return sizes


class _Programs:
    """Compiled runs. Candidates that differ only in floats share one."""

    def __init__(self, make_kernel_fn: Callable[..., Any], num_results: int, jit_compile: bool):
        self._make_kernel_fn, self._num_results = make_kernel_fn, num_results
        self._jit_compile, self._takes_tensors = jit_compile, True
        self._made: dict[Hashable, tuple[Callable[..., Any], Callable[..., Position]]] = {}
        self._loops: dict[Hashable, Loop] = {}

    def start(self, candidate: Candidate, state: State) -> Position:
        """Returns the position before the first step."""
        key, values = self._program(candidate, state)
        try:
            return self._made[key][1](values, state)
        except (TypeError, NotImplementedError):
            if not values:
                raise
            self._takes_tensors = False
            return self.start(candidate, state)

    def trace(self, candidate: Candidate, position: Position) -> None:
        """Traces the program of `advance`, so that only this thread calls `make_kernel_fn`."""
        key, values = self._program(candidate, position.state)
        if key not in self._loops:
            options = self._jit_compile, self._num_results
            self._loops[key] = Loop(self._made[key][0], None, position, *options)
        with xla.compilable():
            self._loops[key].trace(position, tf.constant(1, tf.int64), random.as_seed(0), values)

    def advance(
        self, candidate: Candidate, position: Position, seed: tf.Tensor, stride: int
    ) -> tuple[Position, State, bool]:
        """Returns the position `num_results * stride` steps on, and every `stride`-th state.

        The last value is False if the states or their log posteriors are not finite.
        """
        key, values = self._program(candidate, position.state)
        position, kept, health = self._loops[key](
            position, self._num_results, stride, tf.constant(stride, tf.int64), seed, values
        )
        return position, tf.nest.map_structure(tf.constant, kept[0]), health.is_good

    def _program(self, candidate: Candidate, state: State) -> tuple[Hashable, dict[str, tf.Tensor]]:
        """Returns the key of a candidate's program, and the tensors that it takes."""
        dtype = tf.nest.flatten(state)[0].dtype
        floats = {k: v for k, v in candidate.items() if isinstance(v, float | np.floating)}
        floats = floats if self._takes_tensors else {}
        others = {k: v for k, v in candidate.items() if k not in floats}
        named = ((k, _hashable(v)) for k, v in others.items())
        key = (*floats, *named)
        if key not in self._made:
            kernel_fn = self._kernel_fn(others, bool(floats))
            start_fn = tf.function(lambda v, x: start_of(kernel_fn(v), x), autograph=False)
            self._made[key] = kernel_fn, start_fn
        return key, {k: tf.constant(v, dtype) for k, v in floats.items()}

    def _kernel_fn(self, others: Candidate, has_floats: bool) -> Callable[[Any], Any]:
        def make(**values: tf.Tensor) -> tfp.mcmc.TransitionKernel:
            named = {**values, **others}
            try:
                kernel = self._make_kernel_fn(**named)
            except (TypeError, ValueError) as error:
                kind = TypeError if isinstance(error, TypeError) else ValueError
                raise kind(
                    f"make_kernel_fn must make a kernel of a candidate's {', '.join(named)}. "
                    f"Received from it: {error}"
                ) from error
            return check_kernel("The result of make_kernel_fn", kernel)

        made = None if has_floats else make()
        return lambda values: make(**values) if made is None else made
