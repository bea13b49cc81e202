"""Processor time from a call to 400 effective samples, everything included.

Each posterior runs in a new process, on one core: `sample(target)` twice, the second time with
another seed, and NUTS of TensorFlow Probability with dual averaging of the step, compiled by XLA,
twice with the same compiled program. With `--python`, an interpreter of an environment that has
NumPyro, its NUTS runs twice too. All start at zeros. Times include the search for a mode,
adaptation, tracing and compilation, but neither the import of packages nor the making of data. If
fewer than 400 effective samples of the worst parameter came out, the time of drawing is multiplied
accordingly.

The columns are, for `sample` and each kind of NUTS,

  first    processor seconds of the first call,
  second   of the second,
  cached   of the first call of `sample` in another process with XLA's cache on disk, which an
           earlier process filled,
  ESS      effective samples of the worst parameter, all chains together, and
  ratio    seconds of the faster NUTS divided by those of `sample`, first and second call.

A call of NUTS that takes longer than `--most-seconds` has no figures. TensorFlow Probability's is
stopped between blocks of 50 draws, or within a block when the process has used twice as much.

A second table has the programs of the first call of `sample`, which take at least 0.1 s, and all
others of a posterior together:

  operations    of TensorFlow, those of loops and branches included,
  instructions  of XLA, after it has optimised; none where XLA does not compile the program,
  tracing       processor seconds, and
  compiling     those of the program's first call less those of its second.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.chains import compiled, effective_sizes
from benchmarks.common.environment import use_one_core
from benchmarks.common.logistic import as_batch, gaussian_log_prior, log_likelihood
from benchmarks.common.memory import in_new_process
from benchmarks.common.programs import Program, listed
from benchmarks.common.tables import Table
from benchmarks.cost.numpyro_nuts import NUM_WARMUP
from benchmarks.posteriordb.regressions import POSTERIORS as REGRESSIONS

tfd = tfp.distributions
_GOAL, _NUM_CHAINS, _BLOCK = 400, 4, 50
_WORTH_A_ROW = 0.1  # seconds of a program
ROOT = Path(__file__).resolve().parents[2]


class Times(NamedTuple):
    """Processor seconds of two calls, and effective samples of the worst parameter."""

    first: float
    second: float
    ess: float


UNKNOWN = Times(np.nan, np.nan, np.nan)


class Problem(NamedTuple):
    """A target, where to start, and the arrays and the family for `numpyro_nuts`."""

    target: sgmcmc.MinibatchLogProb
    start: Any
    for_numpyro: dict[str, Any]


def logistic(num_examples: int, dim: int) -> Problem:
    """Logistic regression on synthetic data with a standard normal prior."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal([num_examples, dim]).astype(np.float32)
    p = 1 / (1 + np.exp(-x @ rng.standard_normal(dim) / dim**0.5))
    return _logistic(as_batch(x, (rng.random(num_examples) < p).astype(np.float32)))


def _logistic(data: dict[str, np.ndarray]) -> Problem:
    target = sgmcmc.MinibatchLogProb(gaussian_log_prior, log_likelihood, data, 100)
    return Problem(target, tf.zeros([data["x"].shape[1]]), _as_family("logistic", data))


def _as_family(family: str, data: Mapping[str, np.ndarray], scale: float = 0.0) -> dict[str, Any]:
    return {"family": np.array(family), "scale": np.array(scale), **data}


def breast_cancer() -> Problem:
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return _logistic(as_batch(((x - x.mean(0)) / x.std(0)).astype(np.float32), y))


def poisson(num_examples: int, dim: int) -> Problem:
    """Poisson regression on synthetic data with a standard normal prior."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal([num_examples, dim]).astype(np.float32) / dim**0.5
    y = rng.poisson(np.exp(x @ rng.standard_normal(dim))).astype(np.float32)
    target = sgmcmc.MinibatchLogProb(
        gaussian_log_prior,
        lambda w, b: tfd.Poisson(log_rate=tf.linalg.matvec(b[0], w)).log_prob(b[1]),
        (x, y),
        100,
    )
    return Problem(target, tf.zeros([dim]), _as_family("poisson", {"x": x, "y": y}))


def robust(num_examples: int) -> Problem:
    """Location and scale of heavy-tailed observations."""
    rng = np.random.default_rng(2)
    y = (3 + 2 * rng.standard_t(4, num_examples)).astype(np.float32)

    target = sgmcmc.MinibatchLogProb(
        lambda mu, log_sigma: (
            tfd.Normal(0.0, 10.0).log_prob(mu) + tfd.Normal(0.0, 2.0).log_prob(log_sigma)
        ),
        lambda mu, log_sigma, y: tfd.StudentT(
            4.0, mu[..., None], tf.exp(log_sigma[..., None])
        ).log_prob(y),
        y,
        100,
    )
    return Problem(target, [tf.zeros([]), tf.zeros([])], _as_family("student", {"y": y}))


def from_posteriordb(name: str) -> Problem:
    posterior = REGRESSIONS[name]()
    scale = 2.5 if name.startswith("kidiq-") else 0.0
    given = _as_family("normal", posterior.data, scale)
    return Problem(posterior.target("float64"), posterior.start("zeros", "float64"), given)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "earnings-logearn_height": lambda: from_posteriordb("earnings-logearn_height"),
    "kidiq-kidscore_momiq": lambda: from_posteriordb("kidiq-kidscore_momiq"),
    "mesquite-logmesquite": lambda: from_posteriordb("mesquite-logmesquite"),
    "breast cancer, D = 30": breast_cancer,
    "Poisson, N = 5,000, D = 10": lambda: poisson(5_000, 10),
    "Student t, N = 100,000, D = 2": lambda: robust(100_000),
    "logistic, N = 2,000, D = 3": lambda: logistic(2_000, 3),
    "logistic, N = 20,000, D = 50": lambda: logistic(20_000, 50),
    "logistic, N = 1,000,000, D = 10": lambda: logistic(1_000_000, 10),
    "logistic, N = 5,000, D = 500": lambda: logistic(5_000, 500),
}


def worst_size(states: Any) -> float:
    parts = [np.asarray(x, np.float64) for x in tf.nest.flatten(states)]
    flat = np.concatenate([x.reshape(*x.shape[:2], -1) for x in parts], axis=-1)
    return float(np.min(effective_sizes(flat, cross_chain_dims=1)))


def time_of_sample(name: str, num_results: int, calls: int = 2) -> Times:
    """Times calls of `sample(target)`, the first and the last."""
    use_one_core()
    target, start, _ = PROBLEMS[name]()
    seconds, ess = [], 0.0
    for seed in range(calls):
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = sgmcmc.sample(target, start, num_results, seed=seed, progress_bar=False)
        elapsed, ess = time.process_time() - began, worst_size(result.states)
        seconds.append(elapsed + result.timings.seconds * max(0.0, _GOAL / ess - 1))
    return Times(seconds[0], seconds[-1], ess)


def time_of_cached(name: str, num_results: int) -> float:
    """Returns the seconds of a first call whose programs XLA finds on disk."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TF_XLA_FLAGS"] = f"--tf_xla_persistent_cache_directory={folder}"
        try:
            for _ in range(2):
                found = Times(*in_new_process(time_of_sample, name, num_results, 1))
        finally:
            del os.environ["TF_XLA_FLAGS"]
    return found.first


def programs_of(name: str, num_results: int) -> list[Program]:
    """Returns the programs of a first call, and the sum of those that take little."""
    use_one_core()
    target, start, _ = PROBLEMS[name]()
    with listed() as programs, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sgmcmc.sample(target, start, num_results, seed=0, progress_bar=False)
    long = sorted((p for p in programs if p.seconds >= _WORTH_A_ROW), key=lambda p: -p.seconds)
    short = [p for p in programs if p.seconds < _WORTH_A_ROW]
    instructions = [p.instructions for p in short if p.instructions is not None]
    rest = Program(
        f"{len(short)} others",
        operations=sum(p.operations for p in short),
        instructions=sum(instructions) if instructions else None,
        tracing=sum(p.tracing for p in short),
        compiling=sum(p.compiling for p in short),
    )
    return [*long, rest]


def time_of_numpyro(name: str, num_results: int, python: str, most_seconds: float) -> Times:
    """Times NumPyro's NUTS in its own environment."""
    problem = PROBLEMS[name]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "problem.npz")
        np.savez(path, allow_pickle=False, **problem.for_numpyro)
        command = [python, "-m", "benchmarks.cost.numpyro_nuts", path, str(num_results)]
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False,
            preexec_fn=functools.partial(limit, most_seconds),
        )  # fmt: skip
    if done.returncode:
        return UNKNOWN
    found = json.loads(done.stdout)
    if max(found["seconds"]) > most_seconds:
        return UNKNOWN
    ess, share = found["ess"], num_results / (num_results + NUM_WARMUP)
    more = 1 + share * max(0.0, _GOAL / ess - 1)
    return Times(*(seconds * more for seconds in found["seconds"]), ess)


def limit(most_seconds: float) -> None:
    """Keeps this process on one core, and ends it where two calls of NUTS would take too long."""
    use_one_core()
    most = int(time.process_time() + 2 * most_seconds + 60)  # of making the data and importing
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))


def time_of_nuts(name: str, num_results: int, most_seconds: float) -> Times:
    """Times NUTS with its adaptation, compiled once and run twice."""
    limit(most_seconds)
    target, start, _ = PROBLEMS[name]()
    dtype = tf.nest.flatten(start)[0].dtype
    zeros = tf.nest.map_structure(lambda x: tf.zeros([_NUM_CHAINS, *x.shape], dtype), start)
    parts = tf.nest.flatten(zeros)

    def log_prob(*parts: tf.Tensor) -> tf.Tensor:
        state = tf.nest.pack_sequence_as(zeros, parts)
        return target(**state) if isinstance(state, dict) else target(*parts)

    nuts = tfp.mcmc.NoUTurnSampler(log_prob, tf.constant(0.1, dtype))
    kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(nuts, 400)
    run, seconds, ess = compiled(kernel, _BLOCK), list[float](), 0.0
    num_blocks = -(-num_results // _BLOCK)
    for seed in range(2):
        began = time.process_time()
        state, results, kept = parts, kernel.bootstrap_results(parts), list[Any]()
        for i in range(NUM_WARMUP // _BLOCK + num_blocks):
            last = run(state, results, tf.constant([seed, i]))
            state, results = [x[-1] for x in last.all_states], last.final_kernel_results
            if i >= NUM_WARMUP // _BLOCK:
                kept.append([x.numpy() for x in last.all_states])
            if time.process_time() - began > most_seconds:
                return UNKNOWN
        elapsed = time.process_time() - began
        ess = worst_size([np.concatenate(part) for part in zip(*kept, strict=True)])
        share = num_blocks / (num_blocks + NUM_WARMUP // _BLOCK)
        seconds.append(elapsed * (1 + share * max(0.0, _GOAL / ess - 1)))
    return Times(*seconds, ess)


def _times(
    problems: tuple[str, ...], num_results: int, most_seconds: float, python: str
) -> Iterator[tuple[Any, ...]]:
    for name in problems:
        ours = Times(*in_new_process(time_of_sample, name, num_results))
        cached = time_of_cached(name, num_results)
        try:
            nuts = Times(*in_new_process(time_of_nuts, name, num_results, most_seconds))
        except BrokenProcessPool:  # the process was ended
            nuts = UNKNOWN
        other = time_of_numpyro(name, num_results, python, most_seconds) if python else UNKNOWN
        fastest = (np.fmin(nuts.first, other.first), np.fmin(nuts.second, other.second))
        ratios = fastest[0] / ours.first, fastest[1] / ours.second
        yield name, ours.first, ours.second, cached, ours.ess, *nuts, *other, *ratios


def _programs(problems: tuple[str, ...], num_results: int) -> Iterator[tuple[Any, ...]]:
    for name in problems:
        for program in in_new_process(programs_of, name, num_results):
            instructions = "" if program.instructions is None else str(program.instructions)
            yield name, program.name, program.operations, instructions, *program[3:]


def run(
    *,
    problems: tuple[str, ...] = tuple(PROBLEMS),
    num_results: int = 500,
    most_seconds: float = 200.0,
    python: str = "",
) -> tuple[Iterator[tuple[Any, ...]], Iterator[tuple[Any, ...]]]:
    """Measures one posterior after the other: times, and then programs.

    Args:
      problems: names of posteriors.
      num_results: draws of each of four chains.
      most_seconds: processor seconds that a call of NUTS may take.
      python: an interpreter that has NumPyro; empty leaves it out.
    """
    times = _times(problems, num_results, most_seconds, python)
    return times, _programs(problems, num_results)


def show(found: tuple[Iterator[tuple[Any, ...]], Iterator[tuple[Any, ...]]]) -> dict[str, Table]:
    times, programs = found
    seconds, size = "7.1f", "6.0f"
    columns = {"posterior": "32s", "first": seconds, "second": seconds, "cached": seconds}
    columns |= {"ESS": size}
    for nuts in ("TFP", "NumPyro"):
        columns |= {f"{nuts} first": seconds, f"{nuts} second": seconds, f"{nuts} ESS": size}
    columns |= {"ratio first": seconds, "ratio second": seconds}
    table = command_line.print_table(columns, times)
    columns = {"posterior": "32s", "program": "50s", "operations": "d", "instructions": ">4s"}
    columns |= {"tracing": "7.2f", "compiling": "7.2f"}
    return {"": table, "Programs of the first call": command_line.print_table(columns, programs)}


if __name__ == "__main__":
    given = {"problems": PROBLEMS}
    command_line.main(__doc__, run, show, choices=given, table="cost.time_to_answer")
