"""Runs in shards on a dask cluster whose processes are killed, compared bit for bit.

A `LocalCluster` of two processes runs the shards of `sample_shards(..., executor=...)`. In the row

  workers    workers get a SIGKILL at random moments after they took the lease of a shard,
  scheduler  the process with the scheduler gets one when the first shard is over, and its workers
             with it. Then the same call is made on another cluster, which must leave the files of
             finished shards as they are,
  one worker a worker gets one, is not started again, and its lease is rewritten as that of another
             host. Its shard must go to the other worker, after the lease has expired.

The aim is that all runs end, and that no bit of their draws differs from a run that nobody killed.
Two settings of dask are raised. `distributed.scheduler.allowed-failures`: dask otherwise gives up a
task after three workers that died with it. `distributed.deploy.lost-worker-timeout`: a cluster
otherwise looks 15 seconds after it lost a worker whether that is back, and closes it for good if it
was just killed once more.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dask
import distributed
import numpy as np
from distributed.utils import get_mp_context

from benchmarks.common import command_line
from benchmarks.robustness import shard_problem
from tfp_sgmcmc.storage import checkpoint
from tfp_sgmcmc.storage.lock import EXPIRY_SECONDS, SIGNATURE

_IMPORTED = [
    "distributed",
    "zarr.codecs",
    "tfp_sgmcmc.keras",
    "benchmarks.robustness.shard_problem",
]
_LONGEST_WAIT = 4.0  # seconds after a worker took a lease
_KINDS = ("workers", "scheduler", "one worker")
_SETTINGS = {
    "distributed.scheduler.allowed-failures": 1000,
    "distributed.deploy.lost-worker-timeout": "1 hour",
    "distributed.worker.multiprocessing-method": "forkserver",  # a new worker imports nothing
    "distributed.worker.daemon": False,
    "logging.distributed": "critical",
}


class Row(NamedTuple):
    """The outcome of a run.

    Attributes:
      kind: what was killed.
      kills: number of processes that were killed.
      shards: number of shards that ended.
      equal: whether all draws equal those of a run that was not killed.
      as_expected: whether all kills came before the end, finished shards stayed as they were, or
        the lost shard waited for the lease.
      seconds: of the run.
    """

    kind: str
    kills: int
    shards: int
    equal: bool
    as_expected: bool
    seconds: float


@contextlib.contextmanager
def cluster() -> Generator[Any]:
    """Yields a client of two worker processes that start fast."""
    with dask.config.set(_SETTINGS):
        get_mp_context().set_forkserver_preload(_IMPORTED)
        with (
            distributed.LocalCluster(
                n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None,
                silence_logs="CRITICAL", memory_limit=0,
            ) as found,
            distributed.Client(found) as client,
        ):  # fmt: skip
            yield client


def leases(directory: Path) -> dict[Path, dict[str, Any]]:
    """Returns what the leases of shards under way say, by their files."""
    found = {}
    for path in directory.glob("shard-*/run.lease"):
        with contextlib.suppress(OSError, ValueError):  # just released, or being written
            found[path] = json.loads(path.read_text().removeprefix(SIGNATURE))
    return found


def kill(process: int) -> bool:
    """Kills a process; returns whether it was there."""
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def kill_workers(directory: Path, kills: int, count: list[int], stop: threading.Event) -> None:
    """Kills workers some time after they took a lease, until `kills` were killed."""
    rng, due = np.random.default_rng(0), dict[int, float]()
    while count[0] < kills and not stop.wait(0.01):
        now = time.monotonic()
        for process in {int(found["process"]) for found in leases(directory).values()}:
            due.setdefault(process, now + rng.uniform(0.0, _LONGEST_WAIT))
            if due[process] <= now and count[0] < kills:
                count[0] += kill(process)
                due[process] = np.inf


def workers(folder: Path, kills: int) -> Row:
    """Kills workers while a run goes on."""
    count, stop, began = [0], threading.Event(), time.monotonic()
    killer = threading.Thread(target=kill_workers, args=(folder, kills, count, stop))
    with cluster() as client:
        killer.start()
        try:
            result = shard_problem.sample(client, folder)
        finally:
            stop.set()
            killer.join()
    return row("workers", folder, result, count[0], count[0] >= kills, began)


def _run(folder: str) -> None:
    with cluster() as client:
        shard_problem.sample(client, Path(folder))


def scheduler(folder: Path) -> Row:
    """Kills a client with its scheduler and its workers, and makes the same call again."""
    began = time.monotonic()
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(str(folder),))
    process.start()
    while process.is_alive() and not finished(folder):
        time.sleep(0.05)
    held = {int(found["process"]) for found in leases(folder).values()}
    count = sum(map(kill, {process.pid or 0, *held}))
    process.join()
    before = {store: written_at(store) for store in finished(folder)}
    with cluster() as client:
        result = shard_problem.sample(client, folder)
    kept = bool(before) and all(written_at(store) == at for store, at in before.items())
    return row("scheduler", folder, result, count, kept, began)


def finished(folder: Path) -> list[Path]:
    """Returns the stores of shards that have all their draws and that no worker holds."""
    found = []
    for path in folder.glob("shard-*/checkpoint.npz"):
        if path.with_name("run.lease").exists():
            continue
        if checkpoint.load(path).header["num_draws"] == shard_problem.NUM_RESULTS:
            found.append(path.with_name("samples.zarr"))
    return found


def written_at(store: Path) -> int:
    """Returns when the last file of a store was written, in nanoseconds."""
    return max(path.stat().st_mtime_ns for path in store.rglob("*"))


def one_worker(folder: Path) -> Row:
    """Kills a worker that is not started again, and whose lease seems that of another host."""
    began, waited = time.monotonic(), [0.0]
    with cluster() as client:

        def lose() -> None:
            while len(found := leases(folder)) < 2:
                time.sleep(0.02)
            time.sleep(0.5)
            path, holder = next(iter(found.items()))
            for nanny in client.cluster.workers.values():
                if nanny.pid == holder["process"]:
                    nanny.auto_restart = False
            kill(int(holder["process"]))
            holder = {**holder, "host": "a host that is gone"}
            path.write_text(f"{SIGNATURE}{json.dumps(holder)}".ljust(300))
            lost = time.monotonic()
            while path.exists() and leases(folder).get(path, holder) == holder:
                time.sleep(0.05)
            waited[0] = time.monotonic() - lost

        thread = threading.Thread(target=lose, daemon=True)
        thread.start()
        result = shard_problem.sample(client, folder)
        thread.join(60.0)
    return row("one worker", folder, result, 1, waited[0] >= EXPIRY_SECONDS, began)


def row(kind: str, folder: Path, result: Any, kills: int, as_expected: bool, began: float) -> Row:
    """Compares a run with the one that nobody killed, which lies beside it."""
    found = np.asarray(result.states)
    equal = found.tobytes() == np.load(folder.parent / "whole.npy").tobytes()
    seconds = time.monotonic() - began
    return Row(kind, kills, len(result.shards), equal, as_expected, seconds)


def rows(kills: int, kinds: tuple[str, ...]) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with cluster() as client:
            whole = shard_problem.sample(client, folder / "whole")
        np.save(folder / "whole.npy", np.asarray(whole.states))
        if "workers" in kinds:
            yield workers(folder / "workers", kills)
        if "scheduler" in kinds:
            yield scheduler(folder / "scheduler")
        if "one worker" in kinds:
            yield one_worker(folder / "one")


def run(*, quick: bool = False, kills: int = 40, kinds: tuple[str, ...] = _KINDS) -> Iterator[Row]:
    """Kills processes of runs in shards.

    Args:
      quick: kills 3 workers, and no other process.
      kills: number of workers that are killed in the first row.
      kinds: the rows.
    """
    return rows(3, ("workers",)) if quick else rows(kills, kinds)


def show(coming: Iterator[Row]) -> None:
    """Prints the table as it comes; raises SystemExit if the aim is missed."""
    found: list[Row] = []

    def lines() -> Iterator[Row]:
        for one in coming:
            found.append(one)
            yield one

    columns = {"killed": "s", "kills": "d", "shards": "d", "equal": "", "as told": "", "s": ".0f"}
    command_line.print_table(columns, lines())
    expected = -(-shard_problem.NUM_CHAINS // shard_problem.CHAINS_PER_SHARD)
    bad = [x.kind for x in found if not (x.equal and x.as_expected and x.shards == expected)]
    if bad or not found:
        raise SystemExit(f"Runs with kills of {' and '.join(bad)} differ, or did not end.")


if __name__ == "__main__":
    command_line.main(__doc__, run, show, choices={"kinds": _KINDS})
