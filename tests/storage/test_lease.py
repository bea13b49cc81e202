"""The lease keeps a second writer out, and is taken over from a process that has ended."""

import contextlib
import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfp_sgmcmc.storage import lock
from tfp_sgmcmc.storage.directory import RunDirectory
from tfp_sgmcmc.storage.lock import SIGNATURE, Lease
from tfp_sgmcmc.storage.stored_draws import Variable

pytest.importorskip("zarr")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(lock, "EXPIRY_SECONDS", 0.5)
    monkeypatch.setattr(lock, "PATIENCE_SECONDS", 0.3)


def foreign(path: Path, **changed: Any) -> None:
    """Writes the lease of another process."""
    found = {**lock._place(), "process": os.getpid(), "beats": 0, **changed}
    path.with_suffix(".lease").write_text(f"{SIGNATURE}{json.dumps(found)}")


def test_a_lease_that_beats_keeps_others_out(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    held = Lease(path)
    with pytest.raises(ValueError, match=f"in use by process {os.getpid()} on "):
        Lease(path)
    assert held.is_held
    held.release()
    assert not held.is_held and not path.with_suffix(".lease").exists()
    Lease(path).release()


def test_a_holder_that_is_about_to_end_is_waited_for(tmp_path: Path) -> None:
    """An engine gives a task to another worker before the first one has ended."""
    held = Lease(tmp_path / "run.lock")
    threading.Timer(0.1, held.release).start()
    Lease(tmp_path / "run.lock").release()


def test_an_ended_process_is_succeeded_at_once(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(lock, "EXPIRY_SECONDS", 1e6)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    foreign(tmp_path / "run.lock", process=ended.pid)
    Lease(tmp_path / "run.lock").release()


@pytest.mark.parametrize(
    "changed",
    [{"host": "elsewhere"}, pytest.param({"processes": -1}, marks=pytest.mark.thorough)],
)
def test_another_host_is_succeeded_when_it_is_silent(tmp_path: Path, changed: Any) -> None:
    path = tmp_path / "run.lock"
    foreign(path, **changed)
    Lease(path).release()
    path.with_suffix(".lease").write_text("damaged")
    Lease(path).release()


def test_a_run_that_lost_its_lease_cannot_commit(tmp_path: Path) -> None:
    with RunDirectory(tmp_path, is_shared=True) as run:
        run.start({"posterior": {"x": Variable((2,), "float32")}}, {})
        run.commit({"x": np.zeros(2)})
        (tmp_path / "run.lease").unlink()  # it was suspended, and another process took over
        with RunDirectory(tmp_path, is_shared=True) as other:
            assert other.has_run
            with pytest.raises(ValueError, match="was closed, or opened again"):
                run.commit({"x": np.ones(2)})
            run.close()
            assert (tmp_path / "run.lease").exists()  # releasing does not take the other's lease


@pytest.mark.parametrize("text", ["", SIGNATURE])
def test_a_process_that_ended_at_its_first_steps_is_succeeded(tmp_path: Path, text: str) -> None:
    """It made the lease, which may be empty, and did not come to sign the lock."""
    (tmp_path / "run.lease").write_text(text)
    if text:  # it ended while it signed the lock
        (tmp_path / "run.lock.0.partial").write_text("")
    with RunDirectory(tmp_path, is_shared=True) as run:
        assert not run.has_run
    assert (tmp_path / "run.lock").read_text().startswith(SIGNATURE)


def test_a_lock_that_cannot_be_read_leaves_no_lease(tmp_path: Path) -> None:
    (tmp_path / "run.lock").mkdir()
    with pytest.raises(ValueError, match="cannot be used.*run.lock") as caught:
        RunDirectory(tmp_path, is_shared=True)
    assert caught.value.__cause__ and not (tmp_path / "run.lease").exists()


@pytest.mark.parametrize("text", [None, "[" * 100_000])
def test_a_damaged_lease_expires(tmp_path: Path, text: str | None) -> None:
    foreign(tmp_path / "run.lock", process=None)
    if text is not None:
        (tmp_path / "run.lease").write_text(text)
    with RunDirectory(tmp_path, is_shared=True) as run:
        assert not run.has_run


def test_a_worker_that_looks_while_another_one_begins_waits(tmp_path: Path) -> None:
    held = Lease(tmp_path / "run.lock")
    threading.Timer(0.1, held.release).start()
    with RunDirectory(tmp_path, is_shared=True, patience=10.0) as run:
        assert not run.has_run


def test_process_numbers_of_another_boot_say_nothing(tmp_path: Path) -> None:
    """Hosts may have the same name, and one that was started again gives numbers anew."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    holder = {**lock._place(), "process": ended.pid}
    assert lock._has_ended(holder)
    assert not lock._has_ended({**holder, "boot": "another"})


def test_a_lease_that_another_process_removes_is_no_wrong_file(tmp_path: Path) -> None:
    """It is there or not at every moment: nothing is looked up twice."""
    path, ended = tmp_path / "run.lease", threading.Event()

    def come_and_go() -> None:
        while not ended.is_set():
            path.write_text("here")
            path.unlink()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(5000):
            with contextlib.suppress(FileNotFoundError):
                assert lock._read_text(path) in ("", "here")
    finally:
        ended.set()
        thread.join()


def test_a_lease_that_cannot_be_written_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with monkeypatch.context() as patch:
        patch.setattr(lock.os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            Lease(tmp_path / "run.lock")
    if before:
        assert len(os.listdir("/proc/self/fd")) == before
    assert not [*tmp_path.iterdir()]
    Lease(tmp_path / "run.lock").release()


def test_a_heartbeat_never_writes_to_a_closed_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number may be that of another file by then."""
    at_beat, released, failed = threading.Event(), threading.Event(), []

    def slow(descriptor: int, beats: int) -> None:
        if beats:
            at_beat.set()
            released.wait(5)
            try:
                os.fstat(descriptor)
            except OSError as error:
                failed.append(error)

    monkeypatch.setattr(lock, "_write", slow)
    held = Lease(tmp_path / "run.lock")
    assert at_beat.wait(5)
    held.release()
    assert not (tmp_path / "run.lease").exists()
    beats = [t for t in threading.enumerate() if t.name.endswith("(_beat)")]
    released.set()
    for beat in beats:
        beat.join(5)
    assert beats and not failed
