"""`tune`: step sizes, frictions and batch sizes, chosen by short runs and no reference."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random, xla
from tfp_sgmcmc.checks import integer
from tfp_sgmcmc.sampling.comparison import Comparison
from tfp_sgmcmc.state import State
from tfp_sgmcmc.targets.base import as_target

Candidate = Mapping[str, Any]


class TuningRound(NamedTuple):
    """One round of `tune`.

    Attributes:
      candidates: those that took part.
      scores: their squared kernel Stein discrepancies (absolute values of the U-statistic), the
        lower the better; infinite where a chain became NaN or infinite.
      num_steps: that each of them took in this round.
    """

    candidates: list[Candidate]
    scores: np.ndarray
    num_steps: int


class TuningResult(NamedTuple):
    """What `tune` finds.

    Attributes:
      best: arguments of `make_kernel_fn`.
      rounds: what was tried, and how it did.
      state: of the best one's chains at the end, where a run may start.
      num_steps: steps taken by all candidates.
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

    In each of K rounds the \( M_k \) candidates left each take
    \( \lfloor B / (K M_k) \rfloor \) steps, going on from where they were, and the better
    \( \lceil M_k / r \rceil \) stay, until there is one. They are compared by
    `squared_kernel_stein_discrepancy` of the round's states, of all chains together, with
    gradients from minibatches of the target: it sees bias as well as slow mixing, and needs no
    reference. Parameters are divided by their deviations and the correlation between them is the
    discrepancy's preconditioner (if there are 10 states for each parameter), both of the candidate
    whose states' variance is the median. So errors count as they do in the posterior's moments. The
    paper's budget is seconds; here it is steps, so that the same call gives the same result.

    What is best depends on how long a chain is: small steps are less biased and mix slower. Let the
    last round, B / (2 K) steps, be about as long as the run to come.

    >>> import tensorflow as tf, tfp_sgmcmc as sgmcmc
    >>> target = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1))
    >>> found = sgmcmc.tune(
    ...     lambda step_size: sgmcmc.SGLD(target, step_size), {"step_size": [1e-5, 0.3, 3.9]},
    ...     target, tf.zeros([4, 2]), num_steps=1500, seed=0)
    >>> found.best, [len(r.candidates) for r in found.rounds]
    ({'step_size': 0.3}, [3, 2])

    Args:
      make_kernel_fn: a candidate's values, by name -> kernel. Floats come as tensors, so that one
        compiled program serves all candidates that differ in floats alone. Where that raises a
        TypeError or NotImplementedError (of a schedule or a matrix that wants floats, or a target
        that is made here and not beforehand), each candidate is compiled by itself.
      candidates: values to try by name, all combinations of them; or a sequence of combinations.
      target_log_prob_fn: a target or a plain callable: for the gradients that candidates are
        compared by, the same for all.
      initial_state: with leading axes of chains: more chains make the comparison sharper.
      num_steps: B, of all candidates and rounds together; each step is of all chains.
      seed: an integer, or two. The same one gives the same result, on the same device.
      num_results: states of each chain that a round's comparison takes.
      reduction: r, above 1.
      exact_gradients: whether to compare by gradients over all examples.
      scale: c of the kernel, in deviations of the chains.
      jit_compile: whether XLA compiles the steps.
      num_parallel: how many candidates take their steps at a time, each in a thread; the result is
        the same for any number. None is one for each core that this process may use, or 1 where
        there is a GPU.

    Raises:
      ValueError: no candidates; a budget that is too small for `num_results`; `reduction` of at
        most 1; all candidates' chains became NaN or infinite.

    #### References

    J. Coullon, L. South and C. Nemeth. Efficient and generalizable tuning strategies for stochastic
    gradient MCMC. Statistics and Computing, 2023.
    """
    num_parallel = xla.num_parallel_programs() if num_parallel is None else num_parallel
    for name, value in dict(num_parallel=num_parallel, num_steps=num_steps).items():
        integer(name, value, 1)
    integer("num_results", num_results, 2)
    left = list(enumerate(_combinations(candidates)))
    if not reduction > 1:
        raise ValueError(f"reduction is {reduction}; a number above 1 is expected.")
    sizes = _sizes(len(left), reduction)
    if num_steps // (len(sizes) * sizes[0]) < num_results:
        raise ValueError(
            f"num_steps is {num_steps} and num_results {num_results}; at least "
            f"{len(sizes) * sizes[0]} steps for each of them ({len(sizes)} rounds, the first with "
            f"{sizes[0]} candidates), are expected."
        )
    target, seed = as_target(target_log_prob_fn, full_data_expected=True), random.as_seed(seed)
    initial_state = tf.nest.map_structure(tf.convert_to_tensor, initial_state)
    chain_ndims = len(tf.TensorShape(target.chain_shape(initial_state)))
    run_seed, score_seed = random.split(seed, 2)
    programs = _Programs(make_kernel_fn, num_results, jit_compile)
    compare = Comparison(target, chain_ndims, exact_gradients, scale, jit_compile)
    positions = {index: programs.start(c, initial_state) for index, c in left}
    for index, candidate in left:
        programs.trace(candidate, positions[index])
    rounds: list[TuningRound] = []
    with ThreadPoolExecutor(num_parallel) as pool:
        map_fn = map if num_parallel == 1 else pool.map
        for number, size in enumerate(sizes):
            stride = num_steps // (len(sizes) * size) // num_results
            moved = map_fn(
                programs.advance,
                [candidate for _, candidate in left],
                [positions[index] for index, _ in left],
                [random.fold_in(run_seed, index) for index, _ in left],
                [stride] * size,
            )
            ends, states = zip(*moved, strict=True)
            positions = {index: end for (index, _), end in zip(left, ends, strict=True)}
            round_seed = random.fold_in(score_seed, number)
            seeds = [random.fold_in(round_seed, index) for index, _ in left]
            scores = compare(states, seeds, map_fn)
            rounds.append(TuningRound([c for _, c in left], scores, stride * num_results))
            if not np.any(np.isfinite(scores)):
                raise ValueError(
                    "The chains of all candidates became NaN or infinite: "
                    f"{[dict(c) for _, c in left]}. Smaller step sizes are the usual cure."
                )
            order = np.argsort(scores, kind="stable")
            left = [left[i] for i in order[: int(np.ceil(size / reduction))]]
    ((index, best),) = left[:1]
    taken = sum(len(r.candidates) * r.num_steps for r in rounds)
    return TuningResult(best, rounds, positions[index][0], taken)


def _combinations(candidates: Any) -> list[Candidate]:
    found: list[Candidate]
    if isinstance(candidates, Mapping):
        values = [list(v) for v in candidates.values()]
        found = [dict(zip(candidates, v, strict=True)) for v in itertools.product(*values)]
    else:
        found = [dict(c) for c in candidates]
    if not found or not all(found):
        raise ValueError(f"candidates are {candidates!r}; at least one combination is expected.")
    return found


def _sizes(size: int, reduction: float) -> list[int]:
    """Numbers of candidates in the rounds; a single candidate has one round, too."""
    sizes = [size]
    while (size := int(np.ceil(size / reduction))) > 1 and size < sizes[-1]:
        sizes.append(size)
    return sizes


class _Programs:
    """Compiled runs, one for all candidates that differ in floats alone."""

    def __init__(self, make_kernel_fn: Callable[..., Any], num_results: int, jit_compile: bool):
        self._make_kernel_fn, self._num_results = make_kernel_fn, num_results
        self._jit_compile, self._takes_tensors = jit_compile, True
        self._made: dict[Hashable, tuple[Any, Any]] = {}

    def start(self, candidate: Candidate, state: State) -> Any:
        """The position before the first step."""
        values, (begin, _) = self._program(candidate, state)
        try:
            return state, begin(values, state), 0
        except (TypeError, NotImplementedError):
            if not values:
                raise
            self._takes_tensors = False
            return self.start(candidate, state)

    def trace(self, candidate: Candidate, position: Any) -> None:
        """Traces what `advance` runs, so that `make_kernel_fn` is called in this thread alone."""
        state, results, step = position
        values, (_, run) = self._program(candidate, state)
        seed, step, stride = random.as_seed(0), tf.constant(step), tf.constant(1)
        run.get_concrete_function(values, state, results, seed, step, stride)

    def advance(
        self, candidate: Candidate, position: Any, seed: tf.Tensor, stride: int
    ) -> tuple[Any, State]:
        """The position `num_results * stride` steps on, and every `stride`-th state."""
        state, results, step = position
        values, (_, run) = self._program(candidate, state)
        state, results, states = run(
            values, state, results, seed, tf.constant(step), tf.constant(stride)
        )
        return (state, results, step + self._num_results * stride), states

    def _program(self, candidate: Candidate, state: State) -> tuple[Any, tuple[Any, Any]]:
        """What of a candidate are its tensors, and the program that takes them."""
        dtype = tf.nest.flatten(state)[0].dtype
        floats = {k: v for k, v in candidate.items() if isinstance(v, float | np.floating)}
        floats = floats if self._takes_tensors else {}
        others = {k: v for k, v in candidate.items() if k not in floats}
        named = ((k, v if isinstance(v, Hashable) else id(v)) for k, v in others.items())
        key = (*floats, *named)
        if key not in self._made:
            self._made[key] = self._make(others, bool(floats))
        return {k: tf.constant(v, dtype) for k, v in floats.items()}, self._made[key]

    def _make(self, others: Candidate, has_floats: bool) -> tuple[Any, Any]:
        made = None if has_floats else self._make_kernel_fn(**others)

        def kernel_of(values: Any) -> Any:
            kernel = self._make_kernel_fn(**values, **others) if made is None else made
            if not isinstance(kernel, tfp.mcmc.TransitionKernel):
                raise TypeError(
                    f"make_kernel_fn returned a {type(kernel).__name__}; a "
                    "tfp.mcmc.TransitionKernel is expected."
                )
            return kernel

        def begin(values: Any, state: State) -> Any:
            return kernel_of(values).bootstrap_results(state)

        def run(
            values: Any, state: State, results: Any, seed: Any, step: Any, stride: Any
        ) -> tuple[State, Any, State]:
            kernel = kernel_of(values)

            def one(i: tf.Tensor, state: State, results: Any) -> tuple[tf.Tensor, State, Any]:
                moved, results = kernel.one_step(state, results, seed=random.fold_in(seed, i))
                return i + 1, tf.nest.pack_sequence_as(state, tf.nest.flatten(moved)), results

            def row(k: tf.Tensor, arrays: list[Any], *position: Any) -> tuple[Any, ...]:
                end = step + (k + 1) * stride
                _, state, results = tf.while_loop(
                    lambda i, *_: i < end, one, (end - stride, *position), parallel_iterations=1
                )
                pairs = zip(arrays, tf.nest.flatten(state), strict=True)
                return k + 1, [a.write(k, x) for a, x in pairs], state, results

            arrays = [
                tf.TensorArray(x.dtype, self._num_results, element_shape=x.shape)
                for x in tf.nest.flatten(state)
            ]
            _, arrays, last, results = tf.while_loop(
                lambda k, *_: k < self._num_results,
                row,
                (tf.constant(0), arrays, state, results),
                parallel_iterations=1,
            )
            states = tf.nest.pack_sequence_as(state, [a.stack() for a in arrays])
            return last, results, states

        return (
            tf.function(begin, autograph=False),
            tf.function(run, autograph=False, jit_compile=self._jit_compile),
        )
