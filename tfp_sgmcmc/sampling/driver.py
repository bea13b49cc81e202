"""`sample`: a chain with a progress bar, on disk if wanted, that goes on where it stopped."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tree

from tfp_sgmcmc import random
from tfp_sgmcmc.checks import integer
from tfp_sgmcmc.diagnostics import NonFiniteChainError, check_finite
from tfp_sgmcmc.sampling.feed import Feed
from tfp_sgmcmc.sampling.introspection import chain_shape_of, target_of
from tfp_sgmcmc.sampling.loop import Loop, Position, start_of
from tfp_sgmcmc.sampling.plan import Pace, Plan
from tfp_sgmcmc.sampling.progress import held_back, progress
from tfp_sgmcmc.sampling.records import DirectoryRecords, MemoryRecords
from tfp_sgmcmc.sampling.result import Kept, SampleResult, Timings, kept_arrays
from tfp_sgmcmc.storage.directory import Resume, RunDirectory
from tfp_sgmcmc.storage.fingerprint import describe_kernel
from tfp_sgmcmc.targets import preflight
from tfp_sgmcmc.targets.streamed import StreamedLogProb


def sample(
    kernel: tfp.mcmc.TransitionKernel,
    initial_state: Any,
    num_results: int,
    *,
    seed: Any,
    num_burnin_steps: int = 0,
    num_steps_between_results: int = 0,
    num_chains: int | None = None,
    trace_fn: Callable[[Any, Any], Any] | None = None,
    jit_compile: bool = True,
    progress_bar: bool | None = None,
    directory: str | os.PathLike[str] | None = None,
    resume: Resume = "auto",
    checkpoint_seconds: float = 10.0,
    preflight_check: bool = True,
) -> SampleResult:
    r"""Runs a kernel's chain, as `tfp.mcmc.sample_chain` does, and keeps its draws.

    The first result is the state after \( b + 1 \) steps, each further one follows \( k + 1 \)
    steps later (b is `num_burnin_steps`, k `num_steps_between_results`). Step t draws from
    `random.fold_in(seed, t)`, so 10 steps and 10 more are 20, in one process or in several, and
    nothing else has influence on the draws: neither how many steps are compiled into one call, nor
    how many results are asked for.

    Before the first step `preflight` checks that the target's minibatches add up to its full data.
    With a `directory`, draws go there as they come and memory does not grow with their number; a
    run that is cut off, be it by `kill -9`, goes on from its last checkpoint bit for bit when the
    same call is made again, and a finished one when more results are asked for. Ctrl-C ends a run
    after the steps that are under way and returns what there is.

    `sgmcmc.report(result, target)` then says on one page whether the draws can be trusted.

    The draws are a zarr store, `directory / "samples.zarr"`, which others open during the run and
    after it: `xarray.open_zarr(path, group="posterior")`, or for ArviZ
    `arviz.InferenceData.from_datatree(xarray.open_datatree(path, engine="zarr"))`.

    #### Example

    >>> import numpy as np, tensorflow as tf, tensorflow_probability as tfp
    >>> import tfp_sgmcmc as sgmcmc
    >>> tfd = tfp.distributions
    >>> x = np.random.default_rng(0).normal(2., 1., size=[1000]).astype(np.float32)
    >>> target = sgmcmc.MinibatchLogProb(
    ...     log_prior_fn=tfd.Normal(0., 10.).log_prob,
    ...     log_likelihood_fn=lambda theta, batch: tfd.Normal(theta[..., None], 1.).log_prob(batch),
    ...     data=x, batch_size=50)
    >>> result = sgmcmc.sample(
    ...     sgmcmc.SGLD(target, step_size=1e-4), tf.zeros([]), num_results=2000, num_chains=4,
    ...     num_burnin_steps=200, seed=0, progress_bar=False,
    ...     trace_fn=lambda _, results: {"gradient_norm": results.gradient_norm})
    >>> result.states.shape, result.trace["gradient_norm"].shape, result.weights.shape
    ((2000, 4), (2000, 4), (2000,))
    >>> bool(abs(result.states.mean() - x.mean()) < 0.02)
    True

    In a directory, a run goes on, here since more results are asked for:

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for num_results in (10, 30):
    ...         result = sgmcmc.sample(
    ...             sgmcmc.SGLD(target, step_size=1e-4), tf.zeros([]), num_results, seed=0,
    ...             jit_compile=False, directory=folder, progress_bar=False)
    ...     last = result.states[-1]  # reads this draw alone
    >>> result.num_results, int(result.final_kernel_results.step), bool(last == result.final_state)
    (30, 30, True)

    Args:
      kernel: of this library or of `tfp.mcmc`.
      initial_state: a tensor or a nest of tensors; with leading axes of chains, if there are any
        and `num_chains` is None.
      num_results: draws to keep, those kept in `directory` before included.
      seed: an integer or two.
      num_burnin_steps: steps before the first that may be kept.
      num_steps_between_results: steps between kept ones.
      num_chains: C; every part of `initial_state` is repeated to `[C, ...]`, so that all chains
        start at the same place and differ by their draws alone.
      trace_fn: state, kernel results -> nest of tensors to be kept with each draw.
      jit_compile: whether XLA compiles the steps, which is much faster.
      progress_bar: shows steps a second, the time left and the log posterior (as the kernel last
        estimated it; the root mean square of the state for kernels that do not tell). None shows it
        where tqdm is installed.
      directory: where draws and checkpoints go; a new or empty one, or that of this run.
      resume: "auto" goes on with a run that `directory` holds; "must" (or True) wants one, "never"
        (or False) wants none.
      checkpoint_seconds: about so much time lies between checkpoints.
      preflight_check: whether `preflight` runs. It takes a pass over the data (of a
        `StreamedLogProb`, over its first batch).

    Raises:
      ValueError: numbers out of range; a state, target or trace that does not fit; a `directory`
        that holds something else, a run of another kernel, seed or shape, or a damaged one.
      TypeError: arguments of a wrong type.
      ModuleNotFoundError: zarr or tqdm is wanted and not installed.
      NonFiniteChainError: a state became NaN or infinite. `samples` holds the results before, which
        are in `directory`, too.
      OSError: `directory` cannot be written any more; the message says how many results are safe.
    """
    if not isinstance(kernel, tfp.mcmc.TransitionKernel):
        raise TypeError(
            f"kernel is a {type(kernel).__name__}; a tfp.mcmc.TransitionKernel is expected."
        )
    if trace_fn is not None and not callable(trace_fn):
        raise TypeError(f"trace_fn is a {type(trace_fn).__name__}; a callable is expected.")
    if not checkpoint_seconds > 0:
        raise ValueError(f"checkpoint_seconds is {checkpoint_seconds}; more than 0 is expected.")
    plan = Plan(
        integer("num_results", num_results, 1),
        integer("num_burnin_steps", num_burnin_steps, 0),
        integer("num_steps_between_results", num_steps_between_results, 0) + 1,
    )
    seed = random.as_seed(seed)
    if directory is None and resume not in ("auto", "never", False):
        raise ValueError(
            f"resume is {resume!r}, but directory is None: there is no run to go on with."
        )
    if num_chains is not None:
        initial_state = _repeated(initial_state, integer("num_chains", num_chains, 1))

    with contextlib.ExitStack() as stack:
        run = None
        if directory is not None:
            run = stack.enter_context(RunDirectory(directory, resume))
        began = time.perf_counter()
        start = start_of(kernel, initial_state)
        if preflight_check and (run is None or not run.has_run):
            target = target_of(kernel)
            if target is not None:
                # All of a dataset larger than memory is more than a check may read.
                is_streamed = isinstance(target, StreamedLogProb)
                preflight(target.of_one_batch if is_streamed else target, start.state)
        loop = Loop(kernel, trace_fn, seed, plan.stride, start, jit_compile)
        chain_shape = chain_shape_of(kernel, start) if num_chains is None else (num_chains,)
        kept = kept_arrays(loop.kept, chain_shape)
        attributes = {"tuning_steps": plan.num_burnin_steps}
        position = start
        if run is None:
            records: MemoryRecords | DirectoryRecords = MemoryRecords(kept, num_results)
        else:
            described = {
                **describe_kernel(kernel),
                "seed": seed.numpy().tolist(),
                "num_burnin_steps": plan.num_burnin_steps,
                "num_steps_between_results": plan.stride - 1,
                "jit_compile": jit_compile,
            }
            position = _opened(run, kept, described, attributes, start)
            records = DirectoryRecords(kept, run)
        first_step, is_complete = int(position.step), records.num_draws >= num_results
        sampling_began = time.perf_counter()
        if not is_complete:
            feed = Feed(target_of(kernel), position.results, run is not None)
            loop(position, 0, 1)
            sampling_began = time.perf_counter()
            bar = stack.enter_context(progress(progress_bar, plan.num_steps, first_step))
            position, is_complete = _run(
                loop, plan, position, records, feed, bar, checkpoint_seconds
            )
        seconds = time.perf_counter() - sampling_began

    draws = records.draws(min(num_results, records.num_draws))
    states, trace, weights = tree.unflatten_as(loop.kept, draws)
    steps = int(position.step) - first_step
    return SampleResult(
        states=states,
        trace=None if trace_fn is None else trace,
        weights=weights if tree.flatten(loop.kept[2]) else None,
        is_complete=is_complete,
        final_state=position.state,
        final_kernel_results=position.results,
        timings=Timings(sampling_began - began, seconds, steps / seconds if steps else np.nan),
        directory=None if directory is None else Path(directory),
        _kept=kept,
        _attributes=attributes,
    )


_SECONDS_A_CALL = 1.0


def _run(
    loop: Loop,
    plan: Plan,
    position: Position,
    records: MemoryRecords | DirectoryRecords,
    feed: Feed,
    show: Callable[[Position], None],
    checkpoint_seconds: float,
) -> tuple[Position, bool]:
    """Takes the steps; returns where the chain is, and whether all draws are there."""
    pace = Pace(min(_SECONDS_A_CALL, checkpoint_seconds))
    committed = time.perf_counter()
    with held_back() as interrupt:
        while records.num_draws < plan.num_results and not interrupt.asked:
            began, step = time.perf_counter(), int(position.step)
            results, most = feed(position.results)
            max_steps = min(pace.max_steps, most or pace.max_steps)
            rows, first = plan.next(step, records.num_draws, loop.slots, max_steps)
            moved, kept, is_finite = loop(position._replace(results=results), max(rows, 1), first)
            draws = [np.asarray(x)[:rows] for x in tree.flatten(kept)]
            if not is_finite:
                _fail(loop, moved, draws, records)
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
    is_complete = records.num_draws >= plan.num_results
    if not is_complete:
        warnings.warn(
            f"Interrupted: {records.num_draws} of {plan.num_results} results are returned.",
            stacklevel=3,
        )
    return position, is_complete


def _carried(position: Position, is_broken: bool = False) -> dict[str, Any]:
    """What the next step needs, and whether there can be one."""
    return {**position._asdict(), "is_broken": np.bool_(is_broken)}


def _fail(
    loop: Loop,
    position: Position,
    draws: list[np.ndarray],
    records: MemoryRecords | DirectoryRecords,
) -> NoReturn:
    """Keeps what is finite, and raises."""
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
    name = "the state" + "".join(f"[{key!r}]" for key in part)
    count = records.num_draws
    where = f"after result {count - 1}" if count else "before the first result"
    raise NonFiniteChainError(
        f"{name} became NaN or infinite {where}, by step {int(position.step)}. The {count} results "
        "before it are in the error's `samples`. A smaller step_size is the usual cure.",
        count,
        part,
        tree.unflatten_as(loop.kept[0], records.draws(count)[:num_states]),
    )


def _opened(
    run: RunDirectory,
    kept: Sequence[Kept],
    described: dict[str, Any],
    attributes: dict[str, Any],
    start: Position,
) -> Position:
    """Where the run in a directory is: at its start, or at its last checkpoint."""
    variables: dict[str, dict[str, Any]] = {}
    for k in kept:
        variables.setdefault(k.group, {})[k.name] = k.variable
    saved = run.start(variables, described, attributes)
    if saved is None:
        return start
    if saved.restore("is_broken", np.bool_(False)):
        raise ValueError(
            f"The run in {run.path} ended when its chain became NaN or infinite, after "
            f"{run.num_draws} results; it cannot go on. Start another with a smaller step_size."
        )
    restored = (saved.restore(name, leaf) for name, leaf in start._asdict().items())
    return Position(
        *(
            tree.map_structure(lambda x: None if x is None else tf.convert_to_tensor(x), nest)
            for nest in restored
        )
    )


def _repeated(state: Any, num_chains: int) -> Any:
    def repeat(x: Any) -> tf.Tensor:
        x = tf.convert_to_tensor(x)
        return tf.broadcast_to(x, [num_chains, *x.shape])

    return tf.nest.map_structure(repeat, state)
