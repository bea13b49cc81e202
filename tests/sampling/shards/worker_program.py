"""One worker of a run of two; `test_workers.py` starts the workers.

`python -m tests.sampling.shards.worker_program FOLDER MODE` writes what it found to FOLDER.
TF_CONFIG names the workers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.targets.shards import SIZES, in_shards, kernels, sharded
from tfp_sgmcmc.targets import sharded as sharded_target
from tfp_sgmcmc.targets import stratified

KERNELS = ("SGLD", "NOGIN", "SGHMC", "ControlVariate", "pilot")
OPTIONS: dict[str, Any] = dict(seed=0, progress_bar=False, preflight_check=False)


def chain(name: str, num_results: int = 40, **options: Any) -> Any:
    """Returns a chain's result; XLA does not compile steps of a run on one replica either."""
    kernel = kernels(name, sharded())
    options = OPTIONS | {"jit_compile": False} | options
    return sgmcmc.sample_chain(kernel, tf.zeros([4, 3]), num_results, **options)


def all_chains(folder: Path, worker: int) -> None:
    loaded: list[int] = []

    def load_shard(s: int) -> Any:
        loaded.append(s)
        return in_shards(SIZES)(s)

    found: dict[str, Any] = {name: chain(name).states for name in KERNELS}
    target = sharded(load_shard=load_shard)
    center, report = sgmcmc.find_center(target, tf.zeros([3]))
    sgmcmc.preflight(target, center, kernel=sgmcmc.SGLD(target, 0.02))
    found |= {"center": center, "log_prob": report.log_prob, "loaded": loaded}
    np.savez(folder / f"chains-{worker}.npz", **found)


def not_summed(folder: Path, worker: int) -> None:
    """Control: each worker goes by its own shards alone."""
    sharded_target.total = lambda values: values
    try:
        chain("SGLD", 200)
        message = "nothing"
    except RuntimeError as error:
        message = str(error)
    (folder / f"error-{worker}.txt").write_text(message)


def on_disk(folder: Path, worker: int, num_results: int = 3000) -> None:
    """Worker 1 sees another directory, in which nothing is ever written."""
    directory = folder / f"run-{worker}"
    place = sgmcmc.Directory(directory, seconds_between_commits=0.2)
    result = chain("NOGIN", num_results, directory=place)
    assert result.is_complete
    if worker:
        assert not directory.exists() and result.states.shape == (0, 4, 3)
    else:
        np.savez(folder / "on_disk.npz", states=np.asarray(result.states))


def refused(folder: Path, worker: int) -> None:
    """Gives worker 1 something else each time; the messages go to a file."""

    def fails(s: int) -> Any:
        if worker == 1:
            raise OSError("no such file")
        return in_shards(SIZES)(s)

    def another_version() -> Any:
        stratified.__version__ += ".dev" if worker else ""
        return sharded()

    attempts: dict[str, Callable[[], Any]] = {
        "seed": lambda: chain("SGLD", seed=worker),
        "kernel": lambda: chain(KERNELS[worker]),
        "number of results": lambda: chain("SGLD", 40 + worker),
        "start": lambda: sgmcmc.sample_chain(
            sgmcmc.SGLD(sharded(), 0.01), worker * tf.ones([3]), 10, **OPTIONS
        ),
        "batch size": lambda: sharded(12 + 3 * worker),
        "sum of rows": lambda: sharded(num_examples=91),
        "form of rows": lambda: sharded(
            load_shard=lambda s: tf.nest.map_structure(
                lambda x: x.astype(np.float64 if worker else x.dtype), in_shards(SIZES)(s)
            )
        ),
        "loading": lambda: sharded(load_shard=fails),
        "directory": lambda: chain("SGLD", directory="/dev/null" if worker == 0 else folder / "x"),
        "version": another_version,
    }
    messages = {}
    for name, attempt in attempts.items():
        try:
            attempt()
            messages[name] = "nothing"
        except Exception as error:
            messages[name] = f"{type(error).__name__}: {error}"
    (folder / f"messages-{worker}.json").write_text(json.dumps(messages))


def main(folder: str, mode: str) -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    modes = {f.__name__: f for f in (all_chains, not_summed, on_disk, refused)}
    with strategy.scope():
        modes[mode](Path(folder), strategy.cluster_resolver.task_id)


if __name__ == "__main__":
    main(*sys.argv[1:])
