"""Calls of the drivers `sample` and `tune`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import tfp_sgmcmc as sgmcmc
from benchmarks.robustness.calls import Entry
from benchmarks.robustness.catalogue_samplers import (
    ALSO,
    STATE,
    TARGET,
)
from benchmarks.robustness.values import (
    Named,
    boolean,
    choice,
    function,
    instance,
    integer,
    kernel,
    number,
    path,
    seed,
    state,
    target,
)

KERNEL = sgmcmc.SGLD(TARGET, 0.01)


def sampled(*, directory: Any = None, **arguments: Any) -> Any:
    """Returns the states of a run; True as directory stands for a new one."""
    if directory is not True:
        return sgmcmc.sample_chain(directory=directory, **arguments).states
    with tempfile.TemporaryDirectory() as folder:
        result = sgmcmc.sample_chain(directory=Path(folder) / "run", **arguments)
        return np.asarray(result.states)


def drivers() -> list[Entry]:
    traces = [None, "x", object(), {"a": "x"}, {"a": None}, np.array(["a"]), [1.0, "a"]]
    valid = dict(
        kernel=KERNEL,
        initial_state=STATE,
        num_results=2,
        seed=0,
        num_burnin_steps=0,
        num_steps_between_results=0,
        num_chains=None,
        trace_fn=None,
        jit_compile=False,
        progress_bar=False,
        directory=None,
        preflight_check=False,
    )
    files = [v for v in path(optional=True) if v is not True]
    tuned = dict(
        make_kernel_fn=lambda step_size: sgmcmc.SGLD(TARGET, step_size),
        candidates={"step_size": [0.01, 0.02]},
        target_log_prob_fn=TARGET,
        initial_state=np.zeros([2, 2], np.float32),
        num_steps=12,
        seed=0,
        num_results=3,
        reduction=2.0,
        exact_gradients=False,
        scale=1.0,
        jit_compile=False,
        num_parallel=1,
    )
    candidates = [{"step_size": []}, {"step_size": 0.1}, {"step_size": ["x"]}, {"other": [0.1]}]
    others = [{1: [0.1]}, [{"step_size": 0.1}, {"other": 1}], [0.1, 0.2], {"step_size": [-1.0]}]
    made = [None, "x", 1, [], {}, object(), TARGET, sgmcmc.SGLD, (KERNEL,)]
    return [
        Entry(
            "sampling",
            "sample_chain",
            sampled,
            valid,
            dict(
                kernel=kernel(),
                initial_state=state(),
                num_results=integer(1),
                seed=seed(optional=True),
                num_burnin_steps=integer(0),
                num_steps_between_results=integer(0),
                num_chains=integer(1, optional=True),
                trace_fn=function(2, *traces, optional=True),
                jit_compile=boolean(),
                progress_bar=boolean(optional=True),
                directory=files,
                preflight_check=boolean(),
            ),
            {**ALSO, "trace_fn": "trace_fn|trace"},
        ),
        Entry(
            "sampling",
            "sample_chain in a directory",
            sampled,
            {**valid, "directory": True},
            dict(
                trace_fn=function(2, *traces, optional=True),
                initial_state=state(),
            ),
            {**ALSO, "trace_fn": "trace_fn|trace"},
        ),
        Entry(
            "storage",
            "Directory",
            lambda **arguments: sgmcmc.Directory(**arguments).seconds_between_commits,
            dict(path="run", resume="auto", seconds_between_commits=10.0),
            dict(
                path=path(),
                resume=[v for v in choice("auto") if repr(v) != "True"],
                seconds_between_commits=number(-1.0),
            ),
            {"path": "path|directory"},
        ),
        Entry(
            "sampling",
            "sample_chain with preflight",
            sampled,
            {**valid, "preflight_check": True},
            dict(kernel=kernel(), initial_state=state()),
            ALSO,
        ),
        Entry(
            "sampling",
            "tune",
            lambda **arguments: sgmcmc.tune(**arguments).state,
            tuned,
            dict(
                make_kernel_fn=[
                    *[v for v in function(0, *made) if not isinstance(v, type)],
                    Named("of another name", lambda friction: None),
                    sgmcmc.SGLD,
                ],
                candidates=[*instance(), *candidates, *others],
                target_log_prob_fn=target(),
                initial_state=state(),
                num_steps=[*integer(1), 2],
                seed=seed(),
                num_results=[*integer(2), 1],
                reduction=number(1.0, 0.5, -1.0, 0.0),
                exact_gradients=boolean(),
                scale=number(0.0, -1.0),
                jit_compile=boolean(),
                num_parallel=integer(1, optional=True),
            ),
            {
                **ALSO,
                "candidates": "candidates|candidate",
                "make_kernel_fn": "make_kernel_fn|kernel",
            },
        ),
    ]


def in_shards(**arguments: Any) -> Any:
    """Returns the draws of a run of four chains in shards."""
    start = np.zeros([4, 2], np.float32)
    return sgmcmc.sample_shards(
        KERNEL, start, 2, seed=0, jit_compile=False, progress_bar=False, **arguments
    ).states


def of_target(**arguments: Any) -> Any:
    return sgmcmc.sample(seed=0, progress_bar=False, **arguments).states


def others() -> list[Entry]:
    """Calls of `sample` in shards and of a target, and of the functions around them."""
    folder = Path(tempfile.mkdtemp())
    run = folder / "run"
    in_shards(chains_per_shard=2, directory=run)
    executors = [v for v in instance(optional=True) if not hasattr(v, "submit")]
    return [
        Entry(
            "sampling",
            "sample_shards",
            in_shards,
            dict(chains_per_shard=2, executor=None),
            dict(chains_per_shard=integer(1, optional=True), executor=executors),
        ),
        Entry(
            "sampling",
            "sample of a target",
            of_target,
            dict(target=TARGET, initial_state=STATE, num_results=2),
            dict(initial_state=state(), num_results=integer(1)),
            ALSO,
        ),
        Entry(
            "sampling",
            "open_shards",
            lambda **arguments: np.asarray(next(iter(sgmcmc.open_shards(**arguments).values()))),
            dict(directory=run, shards=None),
            dict(
                directory=[*path(), str(folder), f"{folder}/other"],
                shards=[v for v in instance([7], [-1], ["a"], optional=True)],
            ),
        ),
        Entry(
            "sampling",
            "export_program",
            lambda **arguments: str(sgmcmc.export_program(**arguments)),
            dict(
                kernel=KERNEL,
                initial_state=STATE,
                num_results=2,
                path=folder / "chain.npz",
                seed=0,
                num_burnin_steps=0,
                num_steps_between_results=0,
                num_chains=None,
            ),
            dict(
                kernel=kernel(),
                initial_state=state(),
                num_results=integer(1),
                path=[*path(), str(folder), f"{folder}/none/chain.npz"],
                seed=seed(),
                num_burnin_steps=integer(0),
                num_steps_between_results=integer(0),
                num_chains=integer(1, optional=True),
            ),
            ALSO,
        ),
    ]


def entries() -> list[Entry]:
    return [*drivers(), *others()]
