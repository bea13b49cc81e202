"""The errors of a chain against its cost so far, and the cost of an error."""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from benchmarks.common.chains import compiled, effective_sizes
from benchmarks.common.methods import Cost, Method
from benchmarks.common.reference import Reference

BLOCK_EXAMPLES = 400_000  # examples that a compiled call evaluates, roughly
LEAST_BLOCKS = 4  # compiled calls of a chain
MOST_DRAWS = 4_000  # draws of a compiled call
RATIO = 2**0.25  # of the numbers of draws of two records


class Curve(NamedTuple):
    """Errors of the second half of the draws so far, recorded at geometric intervals."""

    # Passes over the data so far, [records]. They include burn-in and the work before the first
    # step.
    passes: np.ndarray
    seconds: np.ndarray  # seconds so far, for the same work, without compilation, [records]
    mean_error: np.ndarray  # E1, [records]
    covariance_error: np.ndarray  # E2, [records]. It is infinite while there are too few draws.

    def cost(self, error: str, bound: float) -> Cost:
        """Returns the cost until `error` fell below `bound` for good; infinite if it did not."""
        errors = getattr(self, error)
        return Cost(*(first_below(x, errors, bound) for x in (self.passes, self.seconds)))


class Trajectory(NamedTuple):
    """A finished chain."""

    curve: Curve  # the errors
    draws: np.ndarray  # the second half of the draws, [S, D]
    seconds: float  # seconds of the second half
    steps: int  # steps of the second half
    examples: int  # examples whose gradient the second half evaluated
    failed: bool  # whether the chain became infinite. The curve ends before that.

    def effective_sample_sizes(self) -> np.ndarray:
        """Returns the sizes for the second half, `[D]`, at the rate of its last 5,000 draws."""
        if self.failed or len(self.draws) < 4:
            return np.zeros(self.draws.shape[-1])
        last = self.draws[-5_000:]
        found = effective_sizes(last)
        # The estimate from few draws can be negative. It then tells nothing, and counts as zero.
        return np.nan_to_num(np.clip(found, 0, len(last))) * len(self.draws) / len(last)


class Runner:
    """Runs chains of a method, compiled once for all steps and seeds."""

    def __init__(self, method: Method, num_examples: int):
        self.method, self.num_examples = method, num_examples
        per_draw = method.examples * method.thinning
        self.num_results = int(np.clip(BLOCK_EXAMPLES // per_draw, 1, MOST_DRAWS))

        self._block = compiled(
            method.make_kernel,
            self.num_results,
            method.thinning,
            trace_fn=lambda _, results: method.count(results),
        )
        begin = time.process_time()
        state, results, h = self._first(1.0)
        self._block(state, results, tf.constant([0, 0]), h)
        self.compile_seconds = time.process_time() - begin

    def _first(self, factor: float) -> tuple[Any, Any, Any]:
        h = tf.constant(factor * self.method.unit, tf.float32)
        state = tf.constant(self.method.start, tf.float32)
        return state, self.method.make_kernel(h).bootstrap_results(state), h

    def bytes_of_state(self) -> int:
        """Returns the bytes of the state and the kernel results, which a chain carries on."""
        state, results, _ = self._first(1.0)
        leaves = (tf.convert_to_tensor(x) for x in tf.nest.flatten((state, results)))
        return sum(x.dtype.size * x.shape.num_elements() for x in leaves)

    def __call__(
        self,
        factor: float,
        seed: int,
        seconds: float,
        reference: Reference,
        bounds: tuple[float, float] = (0.0, 0.0),
    ) -> Trajectory:
        """Runs a chain from the method's start, at a step of `factor` units.

        Args:
          seconds: processor seconds after which the chain ends, unless it has run fewer than
            `LEAST_BLOCKS` compiled calls. If its errors are then less than 4 times the bounds, it
            may take 16 times as long, because errors fall with the square root of the cost.
          bounds: bounds of E1 and E2. The chain ends once both errors have stayed below them for
            the second half of the cost.
        """
        state, results, h = self._first(factor)
        once, used = self.method.once, 0.0
        draws, clock, examples, records = [], [0.0], [0], []
        edges, failed = [0], False
        while (
            used < seconds
            or len(draws) < LEAST_BLOCKS
            or (used < 16 * seconds and np.all(np.array(records[-1][2:]) < 4 * np.array(bounds)))
        ):
            begin = time.process_time()
            last = self._block(state, results, tf.constant([seed, len(draws)]), h)
            drawn = self.method.to_parameters(last.all_states)
            used += time.process_time() - begin
            state, results = last.all_states[-1], last.final_kernel_results
            if not np.all(np.isfinite(drawn)):
                failed = True
                break
            draws.append(drawn)
            clock.append(used)
            counted = self.method.thinning * int(np.sum(last.trace, dtype=np.int64))
            examples.append(examples[-1] + counted)
            if len(draws) >= edges[-1] * RATIO:
                edges.append(len(draws))
                half = max(e for e in edges if e <= len(draws) / 2)
                errors = errors_of(np.concatenate(draws[half:]), reference)
                passes = once.passes + examples[-1] / self.num_examples
                records.append((passes, once.seconds + used, *errors))
                if _settled(records, bounds):
                    break
        half = len(draws) // 2
        return Trajectory(
            Curve(*np.array(records, float).reshape(-1, 4).T),
            np.concatenate(draws[half:]) if draws else np.zeros([0, len(self.method.start)]),
            clock[-1] - clock[half],
            (len(draws) - half) * self.num_results * self.method.thinning,
            examples[-1] - examples[half],
            failed,
        )


def progress(i: int, total: int, name: str, runner: Runner) -> None:
    """Reports on standard error that the chains of a method have been run."""
    text = f"[{i}/{total}] {name}: compiled in {runner.compile_seconds:.1f} s"
    print(text, file=sys.stderr, flush=True)


def errors_of(draws: np.ndarray, reference: Reference) -> tuple[float, float]:
    """Returns E1 and E2 of draws `[S, D]`; E2 of fewer than two draws is infinite."""
    if len(draws) < 2:
        return reference.errors(np.concatenate([draws, draws]))[0], np.inf
    return reference.errors(draws)


def first_below(costs: np.ndarray, errors: np.ndarray, bound: float) -> float:
    """Returns the cost after which all errors are below the bound, or infinity if there is none.

    Costs ascend, and are interpolated between two records on a log-log line. NaN is not below any
    bound.

    >>> round(first_below(np.array([1., 10., 100.]), np.array([1., .1, .01]), bound=.05), 3)
    20.0
    """
    below = np.asarray(errors) < bound
    if not len(below) or not below[-1]:
        return np.inf
    i = int(np.max(np.flatnonzero(~below), initial=-1)) + 1
    if i == 0 or not np.isfinite(errors[i - 1]) or errors[i] <= 0:
        return float(costs[i])
    slope = np.log(costs[i] / costs[i - 1]) / np.log(errors[i] / errors[i - 1])
    return float(costs[i - 1] * (bound / errors[i - 1]) ** slope)


def _settled(records: list[tuple[float, ...]], bounds: tuple[float, float]) -> bool:
    recent = [r[2:] for r in records if r[0] >= records[-1][0] / 2]
    return len(recent) > 4 and bool(np.all(np.array(recent) < bounds))
