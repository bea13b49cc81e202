"""One chain over two processes, by `MultiWorkerMirroredStrategy` on the loopback interface."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.sampling.shards.worker_program import KERNELS, chain
from tests.targets.shards import sharded

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
SECONDS = 400  # for a gang, on a machine that others use


def start(folder: Path, mode: str) -> list[subprocess.Popen[str]]:
    """Starts two workers."""
    sockets = [socket.socket() for _ in range(2)]
    for s in sockets:
        s.bind(("localhost", 0))
    addresses = [f"localhost:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    workers = []
    for index in range(2):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        with (folder / f"log-{index}.txt").open("a") as log:
            workers.append(
                subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "tests.sampling.shards.worker_program",
                        str(folder),
                        mode,
                    ],
                    cwd=ROOT,
                    env={**os.environ, "TF_CONFIG": json.dumps(config)},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
    return workers


def run(folder: Path, mode: str) -> None:
    """Runs two workers to their end."""
    workers = start(folder, mode)
    try:
        codes = [worker.wait(SECONDS) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert codes == [0, 0], "\n".join((folder / f"log-{i}.txt").read_text() for i in range(2))


def test_two_workers_give_the_numbers_of_one(tmp_path: Path) -> None:
    """Also, both have the same bits."""
    run(tmp_path, "all_chains")
    found, other = (np.load(tmp_path / f"chains-{i}.npz") for i in range(2))
    assert found["loaded"].tolist() == [0, 2] and other["loaded"].tolist() == [1]
    for name in KERNELS:
        np.testing.assert_array_equal(found[name], other[name])
        # Float32 sums in another order differ by 6e-8 a step, which these chains contract.
        np.testing.assert_allclose(found[name], chain(name).states, rtol=0, atol=2e-5)
    center, report = sgmcmc.find_center(sharded(), tf.zeros([3]))
    np.testing.assert_allclose(found["center"], center, atol=1e-4)
    np.testing.assert_allclose(found["log_prob"], report.log_prob, rtol=1e-5)


def test_chains_that_differ_are_noticed(tmp_path: Path) -> None:
    """Control: without the sum over replicas, workers go to different places."""
    run(tmp_path, "not_summed")
    for worker in range(2):
        message = (tmp_path / f"error-{worker}.txt").read_text()
        assert message.startswith("The chains of workers 0 and 1 differ by step"), message


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """Returns the draws of a run that nothing interrupts."""
    pytest.importorskip("zarr")
    folder = tmp_path_factory.mktemp("whole")
    run(folder, "on_disk")
    return np.load(folder / "on_disk.npz")["states"]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_run_goes_on_after_a_worker_was_killed(
    tmp_path: Path, lost: int, whole: np.ndarray
) -> None:
    cut = tmp_path
    workers = start(cut, "on_disk")
    try:
        deadline = time.monotonic() + SECONDS
        while not (cut / "run-0" / "checkpoint.npz").exists():
            assert time.monotonic() < deadline and workers[0].poll() is None
            time.sleep(0.02)
        os.kill(workers[lost].pid, signal.SIGKILL)
        # The other worker ends, and says why.
        assert workers[1 - lost].wait(SECONDS) not in (0, None)
    finally:
        for worker in workers:
            worker.kill()
    assert not (cut / "on_disk.npz").exists()
    assert "Another worker of this run was lost" in (cut / f"log-{1 - lost}.txt").read_text()
    run(cut, "on_disk")
    np.testing.assert_array_equal(np.load(cut / "on_disk.npz")["states"], whole)


def test_workers_that_differ_are_refused(tmp_path: Path) -> None:
    """All workers raise, with the same names."""
    run(tmp_path, "refused")
    both = [json.loads((tmp_path / f"messages-{i}.json").read_text()) for i in range(2)]
    same = "ValueError: Workers 0 and 1 must be given the same. Received: "
    expected = {
        "seed": f"{same}seed: [0, 0] and [0, 1]",
        "kernel": f"{same}kernel: 'SGLD' and 'NOGIN'",
        "number of results": f"{same}plan: [40, 0, 1] and [41, 0, 1]",
        "start": f"{same}initial_state: ",
        "batch size": f"{same}batch_size: 12 and 15",
        "sum of rows": "ValueError: num_examples must be 90, the number of rows of all shards.",
        "form of rows": "ValueError: All shards must have the same arrays",
        "version": f"{same}version of tfp_sgmcmc: ",
    }
    for messages in both:
        for name, message in expected.items():
            assert messages[name].startswith(message), messages[name]
    assert both[1]["loading"] == "OSError: no such file"
    assert both[0]["loading"].startswith("ValueError: Worker 1 could not load its shards.")
    assert both[0]["directory"].startswith("ValueError: The directory /dev/null cannot be used")
    assert both[1]["directory"].startswith("ValueError: Worker 0 could not open ")
