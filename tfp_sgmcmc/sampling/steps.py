"""The steps of a run: the number in each call, commits between calls, and early ends.

Several worker processes may take the steps together. A feed supplies a chain on a stream with its
minibatches.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import numpy as np
import tensorflow as tf
import tree

from tfp_sgmcmc.diagnostics import NonFiniteChainError, check_finite
from tfp_sgmcmc.internal.checks import integer
from tfp_sgmcmc.internal.nest import instances, path_name
from tfp_sgmcmc.internal.replicas import LOST, Replicas
from tfp_sgmcmc.sampling.loop import FiniteCheck, Loop, Position, as_tensors
from tfp_sgmcmc.sampling.progress import defer_interrupt
from tfp_sgmcmc.sampling.result import MemoryRecords, Records
from tfp_sgmcmc.targets import StreamReadError, Target
from tfp_sgmcmc.targets.streamed import StreamedLogProb, StreamState

_MOST_STEPS = 2**24  # which a float holds exactly
_LAST_STEP = 2**63 - 1  # which a counter holds
_SECONDS_A_CALL = 1.0


class ProcessGroup:
    """The worker processes that take the steps of a run together.

    Worker 0 chooses the seed and the pace, and alone writes a directory. It sends the others what
    it read there, so they need not see its files.

    Args:
      replicas: the replicas of the kernel's target; None for one replica in one process.

    Attributes:
      replicas: as given.
      is_first: whether this is worker 0, or the only one.
    """

    def __init__(self, replicas: Replicas | None = None):
        self.replicas = replicas
        several = replicas is not None and replicas.num_workers > 1
        self._others = replicas if several else None
        self.is_first = self._others is None or self._others.is_first

    def check_same(self, describe: Callable[[], dict[str, Any]]) -> None:
        """Raises ValueError if a JSON value in `describe()` differs between workers."""
        if self._others is not None:
            self._others.check_same(self._others.together("describe its call", describe))

    def run_on_first(self, action: str, fn: Callable[[], Any]) -> Any:
        """Returns `fn()` on worker 0, and None on others; if it raises, all workers raise.

        `action` names what `fn` does, for the error on the other workers.
        """
        if self._others is None:
            return fn()
        return self._others.together(action, fn if self.is_first else lambda: None)

    def broadcast(self, nest: Any) -> Any:
        """Returns worker 0's nest of tensors (or None)."""
        if self._others is None:
            return nest
        leaves = [x for x in tree.flatten(nest) if x is not None]
        found = iter(self._others.from_first(leaves))
        return as_tensors(tree.map_structure(lambda x: None if x is None else next(found), nest))

    def agree_on_steps(
        self, max_steps: int, is_interrupted: bool, position: Position
    ) -> tuple[int, bool]:
        """Returns worker 0's number of steps for the next call, and whether any was interrupted.

        Raises:
          RuntimeError: the chains of two workers differ.
        """
        if self._others is None:
            return max_steps, is_interrupted
        check = 0
        for x in tree.flatten(position.state):
            check = zlib.crc32(np.asarray(x).tobytes(), check)
        steps, step = min(max_steps, _MOST_STEPS), int(position.step)
        found = self._others.exchange(
            [steps, is_interrupted, check >> 16, check & 0xFFFF, step >> 24, step & 0xFFFFFF]
        )
        for worker, row in enumerate(found):
            if np.any(row[2:] != found[0][2:]):
                raise RuntimeError(
                    f"The chains of workers 0 and {worker} differ by step {step}. All workers must "
                    "have processors and libraries that compute the same numbers from the same "
                    "state, because each of them takes every step."
                )
        return int(found[0][0]), bool(np.any(found[:, 1]))

    @contextmanager
    def explain_lost_worker(self, remains: Callable[[], str]) -> Generator[None]:
        """Raises RuntimeError in place of TensorFlow's error when another worker is lost.

        `remains()` is a sentence about what remains of the run.
        """
        try:
            yield
        except LOST as error:
            if self._others is None:
                raise
            raise RuntimeError(
                "Another worker of this run was lost. Start all workers again with the same "
                f"arguments. {remains()} TensorFlow's error: {error.message[:300]}"
            ) from error


class StepPlan(NamedTuple):
    """The steps of a run.

    Attributes:
      num_results: number of draws to keep.
      num_burnin_steps: number of steps before the step of the first draw.
      stride: number of steps from one kept draw to the next.
    """

    num_results: int
    num_burnin_steps: int
    stride: int

    @classmethod
    def checked(
        cls, num_results: Any, num_burnin_steps: Any, num_steps_between_results: Any
    ) -> StepPlan:
        """Returns the plan; raises TypeError or ValueError for a wrong number."""
        plan = cls(
            integer("num_results", num_results, 1),
            integer("num_burnin_steps", num_burnin_steps, 0),
            integer("num_steps_between_results", num_steps_between_results, 0) + 1,
        )
        if plan.num_steps > _LAST_STEP:
            raise ValueError(
                "num_burnin_steps and num_results times num_steps_between_results must be at most "
                f"{_LAST_STEP:,} steps in all. Received: {plan.num_steps:,}."
            )
        return plan

    @property
    def num_steps(self) -> int:
        return self.num_burnin_steps + 1 + (self.num_results - 1) * self.stride

    def draws_before(self, step: int) -> int:
        """Returns how many draws of the whole run are kept before step number `step`.

        >>> plan = StepPlan(num_results=10, num_burnin_steps=5, stride=2)
        >>> plan.draws_before(6), plan.draws_before(7), plan.draws_before(2**62)
        (0, 1, 10)
        """
        first = self.num_burnin_steps + 1
        return max(0, min(self.num_results, -(-(step - first) // self.stride)))

    def next(self, step: int, done: int, max_rows: int, max_steps: int) -> tuple[int, int]:
        """Returns the number of draws that the next call keeps, and of steps to the first of them.

        Args:
          step: number of steps that the chain has taken.
          done: number of draws that are kept.
          max_rows: the most draws that a call can keep.
          max_steps: number of steps that a call should take.

        >>> plan = StepPlan(num_results=10, num_burnin_steps=5, stride=2)
        >>> plan.next(step=0, done=0, max_rows=100, max_steps=4)  # 4 steps, nothing kept
        (0, 4)
        >>> plan.next(step=4, done=0, max_rows=100, max_steps=8)  # steps 6, 8, 10, 12 are kept
        (4, 2)
        """
        first = self.num_burnin_steps + 1 + done * self.stride - step
        if first > max_steps:
            return 0, max_steps
        rows = 1 + (max_steps - first) // self.stride
        return min(rows, max_rows, self.num_results - done), first


class Pace:
    """Chooses the number of steps in a call that takes `seconds`; it begins with one step."""

    _MOST_GROWTH = 8

    def __init__(self, seconds: float):
        self._seconds = seconds
        self.max_steps = 1

    def took(self, steps: int, seconds: float) -> None:
        """Adapts `max_steps` to the seconds that the last call took."""
        wanted = int(self._seconds * steps / max(seconds, 1e-9))
        self.max_steps = max(1, min(wanted, self._MOST_GROWTH * self.max_steps, 2**30))


def take_steps(
    loop: Loop,
    plan: StepPlan,
    seed: tf.Tensor,
    position: Position,
    records: Records,
    feed: Feed,
    show: Callable[[Position], None],
    checkpoint_seconds: float,
    given: threading.Event | None,
    workers: ProcessGroup,
) -> Position:
    """Takes the remaining steps, or those before Ctrl-C; returns the last position.

    The event `given` replaces Ctrl-C, which only the main thread receives. All workers take the
    same number of steps in each call, and all stop if one of them is interrupted.
    """
    pace = Pace(min(_SECONDS_A_CALL, checkpoint_seconds))
    committed = time.perf_counter()
    with contextlib.nullcontext(given) if given else defer_interrupt() as interrupt:
        while records.num_draws < plan.num_results:
            with workers.explain_lost_worker(lambda: _remains(records)):
                paced, stops = workers.agree_on_steps(pace.max_steps, interrupt.is_set(), position)
            if stops:
                break
            began, step = time.perf_counter(), int(position.step)
            try:
                results, most = feed(position.results)
            except (StreamReadError, ValueError) as error:
                records.commit(_carried(position), finish=True)
                draws = records.draws(records.num_draws)[: len(tree.flatten(loop.kept[0]))]
                raise StreamReadError(
                    f"{error} The {records.num_draws} results before it are in the error's "
                    "`samples`, and in the directory if the run has one.",
                    tree.unflatten_as(loop.kept[0], draws),
                ) from error
            max_steps = min(paced, most or paced)
            rows, first = plan.next(step, records.num_draws, loop.slots, max_steps)
            with workers.explain_lost_worker(lambda: _remains(records)):
                moved, kept, health = loop(
                    position._replace(results=results), max(rows, 1), first, plan.stride, seed
                )
            draws = [np.asarray(x)[:rows] for x in tree.flatten(kept)]
            if not health.is_good:
                good = plan.draws_before(health.lost_at) - records.num_draws
                _fail(loop, moved, [x[: max(0, good)] for x in draws], records, health)
            if rows:
                records.append(draws)
            position = moved
            show(position)
            now = time.perf_counter()
            pace.took(int(position.step) - step, now - began)
            if now - committed >= checkpoint_seconds:
                records.commit(_carried(position))
                committed = time.perf_counter()
        records.commit(_carried(position), finish=True)
    if records.num_draws < plan.num_results and given is None:
        warnings.warn(
            f"Interrupted: {records.num_draws} of {plan.num_results} results are returned.",
            stacklevel=4,
        )
    return position


def _remains(records: Records) -> str:
    """Returns a sentence about what remains of a run that ends without a commit."""
    if type(records) is MemoryRecords:
        return "The draws so far are lost, because they were in memory."
    return "The run resumes from the last checkpoint in worker 0's directory."


def _carried(position: Position, is_broken: bool = False) -> dict[str, Any]:
    """Returns what a checkpoint holds for the next step, and whether the chain broke down."""
    return {**position._asdict(), "is_broken": np.bool_(is_broken)}


def _fail(
    loop: Loop,
    position: Position,
    draws: list[np.ndarray],
    records: Records,
    health: FiniteCheck,
) -> NoReturn:
    """Keeps the draws that are finite, and raises NonFiniteChainError."""
    num_states = len(tree.flatten(loop.kept[0]))
    good, part = len(draws[0]), ()
    last = tf.nest.map_structure(lambda x: np.asarray(x)[np.newaxis], position.state)
    for rows in (last, tree.unflatten_as(loop.kept[0], draws[:num_states])):
        try:
            check_finite(rows)
        except NonFiniteChainError as error:
            part = error.part
            if rows is not last:
                good = error.step
    if good:
        records.append([x[:good] for x in draws])
    records.commit(_carried(position, is_broken=True), finish=True)
    name = path_name("the state", part)
    count, cure = records.num_draws, "A smaller step_size is the usual cure."
    when = f"by step {int(position.step)}"
    if health.states_are_finite:
        name, when = "The log posterior", f"at step {health.lost_at}, where the state is finite"
        cure = "Check log_prior_fn and log_likelihood_fn, or take a smaller step_size."
    where = f"after result {count - 1}" if count else "before the first result"
    raise NonFiniteChainError(
        f"{name} became NaN or infinite {where}, {when}. The {count} results "
        f"before it are in the error's `samples`. {cure}",
        count,
        part,
        tree.unflatten_as(loop.kept[0], records.draws(count)[:num_states]),
    )


class Feed:
    """Replaces the batches in a kernel's results when its steps have used them.

    Args:
      target: the kernel's target. A target other than a `StreamedLogProb` needs no feed.
      results: the kernel's results where the run starts or resumes.
      must_repeat: whether to warn if the dataset gives other batches when it is read again.

    Raises:
      TypeError: the kernel takes no batches from the stream.
      ValueError: some batches in the results were used, and the dataset now gives other batches.
    """

    def __init__(self, target: Target | None, results: Any, must_repeat: bool = False):
        self._target = target if isinstance(target, StreamedLogProb) else None
        if self._target is None:
            return
        found: list[StreamState] = instances(results, StreamState)
        if not found:
            raise TypeError(
                "The kernel of a StreamedLogProb must take its batches, as the kernels of this "
                f"library do. Received: a kernel with {type(results).__name__}, which takes all "
                f"rows.{self._target.wrapping_advice}"
            )
        leaves, batches = tree.flatten(results), tree.flatten(found[0].batches)
        # Searched only once, because `tree.traverse` leaves reference cycles that hold batches of
        # many megabytes until the garbage collector runs.
        self._batches = [_index(leaves, x) for x in batches]
        self._position = _index(leaves, found[0].position)
        self._must_repeat = must_repeat
        step, size = int(found[0].position), self._target.batches_per_read
        start = max(step - 1, 0) // size * size  # first step of the batches in the results
        self._reads = self._target.reads(start)
        if step and not _are_same(batches, tree.flatten(next(self._reads))):
            raise ValueError(
                f"The run cannot go on from step {step}: the dataset gives other batches now than "
                f"before (the batches of steps {start} .. {start + size - 1} were compared). "
                f"{_REPEATABLE}"
            )

    def __call__(self, results: Any) -> tuple[Any, int | None]:
        """Returns results with unused batches, and their number of steps (None for no limit)."""
        if self._target is None:
            return results, None
        leaves = tree.flatten(results)
        step = int(leaves[self._position])
        used = step % self._target.batches_per_read
        if used == 0:
            new = tree.flatten(next(self._reads))
            before = [leaves[at] for at in self._batches]
            # The batches before the first step were read once already.
            if step == 0 and self._must_repeat and not _are_same(before, new):
                warnings.warn(
                    "The dataset gives other batches when it is read again, so this run cannot "
                    f"resume if it is cut off. {_REPEATABLE}",
                    stacklevel=5,
                )
            for at, batch in zip(self._batches, new, strict=True):
                leaves[at] = batch
            results = tree.unflatten_as(results, leaves)
        return results, self._target.batches_per_read - used


_REPEATABLE = (
    "The order of an epoch must depend only on its number. Instead of a dataset that shuffles by "
    "itself, give a function such as "
    "`lambda epoch: examples.shuffle(buffer_size, seed=epoch).batch(n, drop_remainder=True)`."
)


def _are_same(batches: list[Any], others: list[Any]) -> bool:
    """Returns whether all bits are equal, including those of NaNs."""
    pairs = zip(batches, others, strict=True)
    bits = ([np.asarray(x).view(np.uint8) for x in pair] for pair in pairs)
    return all(np.array_equal(x, y) for x, y in bits)


def _index(leaves: list[Any], wanted: Any) -> int:
    return next(i for i, x in enumerate(leaves) if x is wanted)
