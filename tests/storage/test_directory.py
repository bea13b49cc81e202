"""The directory of a run admits one process, leaves other files alone and loses no safe draw."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfp_sgmcmc.storage import directory, npz, zarr_store
from tfp_sgmcmc.storage.directory import Directory, RunDirectory
from tfp_sgmcmc.storage.stored_draws import Variable
from tfp_sgmcmc.storage.zarr_store import DrawStore

pytest.importorskip("zarr")

ROOT = Path(__file__).resolve().parents[2]
VARIABLES = {"posterior": {"w": Variable((3,), "float32")}}


def rows(count: int, first: int = 0) -> dict[str, dict[str, np.ndarray]]:
    return {"posterior": {"w": np.arange(first * 3, (first + count) * 3.0).reshape(-1, 3)}}


def make_run(path: Path, count: int = 5) -> None:
    with RunDirectory(path) as run:
        assert run.start(VARIABLES, {"seed": [0, 1]}) is None
        run.append(rows(count))
        run.commit({"step": np.int64(count)}, finish=True)


def assert_holds(path: Path, count: int) -> None:
    with RunDirectory(path) as run:
        run.start(VARIABLES, {"seed": [0, 1]})
        np.testing.assert_array_equal(run.draws("posterior", "w"), rows(count)["posterior"]["w"])


def test_a_run_goes_on(tmp_path: Path) -> None:
    make_run(tmp_path / "new" / "run")
    with RunDirectory(tmp_path / "new" / "run", resume="must") as run:
        saved = run.start(VARIABLES, {"seed": (0, 1)})
        assert saved is not None and saved.restore("step", np.int64(0)) == 5
        assert run.num_draws == run.num_committed == 5
        run.append(rows(4, first=5))
        assert (run.num_draws, run.num_committed) == (9, 5)
        run.commit({"step": np.int64(9)}, finish=True)
    assert_holds(tmp_path / "new" / "run", 9)


def test_a_run_without_draws_goes_on_with_one_that_is_zero(tmp_path: Path) -> None:
    """A chunk of zeros, such as the number of the first draw, is a file like any other."""
    make_run(tmp_path, count=0)
    with RunDirectory(tmp_path) as run:
        run.start(VARIABLES, {"seed": [0, 1]})
        run.append({"posterior": {"w": np.zeros([1, 3])}})
        run.commit({"step": np.int64(1)})
        run.commit({"step": np.int64(1)}, finish=True)
        np.testing.assert_array_equal(run.draws("posterior", "w"), np.zeros([1, 3]))
    with RunDirectory(tmp_path) as run:
        run.start(VARIABLES, {"seed": [0, 1]})
        assert run.num_draws == 1


@pytest.mark.parametrize(
    ("fingerprint", "variables", "message"),
    [
        ({"seed": [0, 2]}, VARIABLES, r"seed: \[0, 1\], but here \[0, 2\]"),
        ({"seed": [0, 1], "kernel": "SGLD"}, VARIABLES, "kernel: nothing of this name, but here"),
        (
            {"seed": [0, 1]},
            {"posterior": {"w": Variable((4,), "float32")}},
            r"posterior/w: float32 \[3\], but here float32 \[4\]",
        ),
        ({"seed": [0, 1]}, {"posterior": {"v": Variable((3,), "float32")}}, "posterior/v: nothing"),
    ],
)
def test_another_run_is_refused(
    tmp_path: Path, fingerprint: Any, variables: Any, message: str
) -> None:
    make_run(tmp_path)
    with RunDirectory(tmp_path) as run, pytest.raises(ValueError, match=message):
        run.start(variables, fingerprint)


def test_another_version_of_the_library_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path)
    monkeypatch.setattr("tfp_sgmcmc.storage.directory.__version__", "9.9")
    with RunDirectory(tmp_path) as run, pytest.raises(ValueError, match="library version: .* 9.9"):
        run.start(VARIABLES, {"seed": [0, 1]})


def test_resume_says_what_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for resume in ("must", True):
        for name in ("a", "empty"):
            with pytest.raises(ValueError, match="holds no run, but resume is"):
                RunDirectory(tmp_path / name, resume)
    assert [p.name for p in tmp_path.rglob("*")] == ["empty"]
    make_run(tmp_path / "a")
    for resume in ("never", False):
        with pytest.raises(ValueError, match="holds a run already"):
            RunDirectory(tmp_path / "a", resume)
    with pytest.raises(TypeError, match="directory must be a string or a path. Received: 3"):
        RunDirectory(3)  # ty: ignore[invalid-argument-type]
    with pytest.raises(ValueError, match="resume must be .* Received: 'yes'"):
        RunDirectory(tmp_path / "a", resume="yes")  # ty: ignore[invalid-argument-type]


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    code = (
        "import sys; from tfp_sgmcmc.storage.directory import RunDirectory\n"
        "run = RunDirectory(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    )
    command, pipe = [sys.executable, "-c", code, tmp_path], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(ValueError, match=f"in use by process {child.pid}"):
            RunDirectory(tmp_path)
        child.kill()  # like kill -9
    make_run(tmp_path)


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_fork_neither_keeps_nor_ends_the_lock(tmp_path: Path, is_shared: bool) -> None:
    """A data loader may fork while a run is under way, and outlive it."""
    run = RunDirectory(tmp_path, is_shared=is_shared)
    from_parent, to_child = os.pipe()
    child = os.fork()
    if child == 0:
        run._lock._close()  # as at the end of the process
        os.close(to_child)
        os.read(from_parent, 1)  # which ends with the parent
        os._exit(0)
    try:
        os.close(from_parent)
        time.sleep(0.2)
        assert run._lock.is_held
        run.close()
        RunDirectory(tmp_path, is_shared=is_shared, patience=0.0).close()
    finally:
        os.close(to_child)
        os.waitpid(child, 0)


def test_draws_of_a_run_that_another_object_goes_on_with(tmp_path: Path) -> None:
    """Those that were not committed must not be written over the other one's."""
    first = RunDirectory(tmp_path)
    first.start(VARIABLES, {"seed": [0, 1]})
    first.append(rows(2))
    first.commit({})
    first.append(rows(1, 2))
    second = RunDirectory(tmp_path)
    second.start(VARIABLES, {"seed": [0, 1]})
    second.append(rows(3, 2))
    second.commit({}, finish=True)
    with pytest.raises(ValueError, match="or opened again in this process"):
        first.finish()
    second.close()
    second.finish()
    np.testing.assert_array_equal(second.draws("posterior", "w"), rows(5)["posterior"]["w"])


def test_files_of_something_else_are_left_alone(tmp_path: Path) -> None:
    for name, content in (("notes.txt", b"mine"), ("run.lock", b"another program's")):
        folder = tmp_path / name.replace(".", "_")
        (folder / "samples.zarr").mkdir(parents=True)
        (folder / "samples.zarr" / "zarr.json").write_bytes(b"{}")
        (folder / name).write_bytes(content)
        with pytest.raises(ValueError, match="directory must be new, empty or hold a run"):
            RunDirectory(folder)
        assert sorted(p.name for p in folder.iterdir()) == sorted([name, "samples.zarr"])
        assert (folder / name).read_bytes() == content
    make_run(tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("beside a run there may be others")
    RunDirectory(tmp_path / "run", resume="must").close()


def test_a_directory_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ValueError, match="cannot be used"):
            RunDirectory(path)

    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    words = r"cannot be used: .*Permission denied.*To read draws, .*open_zarr\('.*a/samples.zarr'"
    with pytest.raises(ValueError, match=words):
        RunDirectory(tmp_path / "a")


def test_a_folder_in_the_place_of_the_last_chunk_is_named(tmp_path: Path) -> None:
    make_run(tmp_path)
    (chunk,) = (tmp_path / "samples.zarr" / "posterior" / "w").glob("c.*")
    chunk.unlink()
    chunk.mkdir()
    with (
        RunDirectory(tmp_path) as run,
        pytest.raises(OSError, match=r"/w/c[.0]*\): the run"),
    ):
        run.start(VARIABLES, {"seed": [0, 1]})


def test_a_tilde_is_the_home_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert Directory("~/run").path == tmp_path / "run" and Directory("run").path == "run"
    make_run(Path("~/run"))
    assert [*os.listdir(tmp_path)] == ["run"]


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_draws_without_their_checkpoint_are_left_alone(tmp_path: Path) -> None:
    """A run that lost its checkpoint differs from a run that ended before its first one."""
    make_run(tmp_path)
    (tmp_path / "checkpoint.npz").unlink()
    before = content(tmp_path)
    for resume in ("auto", "must", "never"):
        with pytest.raises(ValueError, match=r"checkpoint\.npz is missing, .* draws are in"):
            RunDirectory(tmp_path, resume)
    assert content(tmp_path) == before


@pytest.mark.parametrize("place", ["chunk", "flush", "checkpoint"])
def test_a_full_disk_loses_nothing_that_was_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(zarr_store, "_CHUNK_ROWS", 4)
    make_run(tmp_path)
    owner, name = {
        "chunk": (DrawStore, "_write"),
        "flush": (zarr_store, "sync"),
        "checkpoint": (npz, "_write_array"),
    }[place]
    with RunDirectory(tmp_path) as run:
        run.start(VARIABLES, {"seed": [0, 1]})
        with monkeypatch.context() as patch, pytest.raises(OSError) as caught:
            patch.setattr(owner, name, full)
            run.append(rows(6, first=5))
            run.commit({"step": np.int64(11)})
    assert caught.value.errno == errno.ENOSPC
    assert f": the run in {tmp_path} stopped. 5 draws are safe" in str(caught.value)
    assert_holds(tmp_path, 5)


def fail(error: BaseException) -> Any:
    def raise_it(*_: Any, **__: Any) -> None:
        raise error

    return raise_it


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (os, "pwrite", FULL),
        (os, "ftruncate", KeyboardInterrupt()),
        (zarr_store, "sync", FULL),
        (npz, "_write_array", KeyboardInterrupt()),
    ],
)
def test_the_same_process_opens_a_directory_again_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: BaseException
) -> None:
    """As in a notebook, which keeps the objects of a cell that failed."""
    make_run(tmp_path)
    kept = []
    with monkeypatch.context() as patch, pytest.raises((OSError, ValueError, KeyboardInterrupt)):
        patch.setattr(owner, name, fail(error))
        kept.append(RunDirectory(tmp_path))
        kept[0].start(VARIABLES, {"seed": [0, 1]})
        kept[0].append(rows(1, first=5))
        kept[0].commit({"step": np.int64(6)})
    assert_holds(tmp_path, 5)
    if kept:
        with pytest.raises(ValueError, match="was closed, or opened again in this process"):
            kept[0].append(rows(1, first=5))


def test_a_with_block_keeps_the_directory(tmp_path: Path) -> None:
    with (
        RunDirectory(tmp_path),
        pytest.raises(ValueError, match=f"in use by process {os.getpid()}"),
    ):
        RunDirectory(tmp_path)
    run = RunDirectory(tmp_path)
    del run  # the lock goes with the object
    RunDirectory(tmp_path).close()


def test_a_lost_lock_file_does_not_lose_the_run(tmp_path: Path) -> None:
    make_run(tmp_path)
    for damage in (
        lambda: (tmp_path / "run.lock").write_bytes(b"\0"),
        (tmp_path / "run.lock").unlink,
    ):
        damage()
        assert_holds(tmp_path, 5)
    (tmp_path / "run.lock").unlink()
    (tmp_path / "checkpoint.npz").write_bytes(b"another program's")
    with pytest.raises(ValueError, match="must be new, empty or hold a run"):
        RunDirectory(tmp_path)


@pytest.mark.parametrize("place", ["append", "commit"])
def test_a_directory_that_is_removed_under_way_is_not_called_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(zarr_store, "_CHUNK_ROWS", 4)
    folder = tmp_path / "run"
    make_run(folder)
    with RunDirectory(folder) as run:
        run.start(VARIABLES, {"seed": [0, 1]})
        shutil.rmtree(folder)
        with pytest.raises(OSError, match="files were removed while it was under way") as caught:
            run.append(rows(6 if place == "append" else 1, first=5))
            run.commit({"step": np.int64(11)})
    assert "safe" not in str(caught.value)


@pytest.mark.parametrize("name", ["run.lock", "samples.zarr", "checkpoint.npz"])
def test_symbolic_links_are_not_followed(tmp_path: Path, name: str) -> None:
    folder, outside = tmp_path / "run", tmp_path / "outside"
    make_run(folder)
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)
    before = content(tmp_path)
    with pytest.raises(ValueError, match=f"{name} must not be a symbolic link"):
        RunDirectory(folder)
    assert content(tmp_path) == before


def test_a_link_in_the_place_of_a_new_file_is_replaced(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    (tmp_path / "outside").write_text("mine")
    (tmp_path / "run" / "checkpoint.npz.new").symlink_to(tmp_path / "outside")
    with RunDirectory(tmp_path / "run") as run:
        run.start(VARIABLES, {"seed": [0, 1]})
        run.append(rows(1, first=5))
        run.commit({"step": np.int64(6)})
    assert (tmp_path / "outside").read_text() == "mine"


def test_a_pipe_in_the_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.lock")
    with pytest.raises(ValueError, match="run.lock|must be new, empty or hold a run"):
        RunDirectory(tmp_path)


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk: EFBIG instead of ENOSPC."""
    resource = pytest.importorskip("resource")
    assert resource.RLIMIT_FSIZE is not None
    code = (
        "import resource, signal, sys, numpy as np\n"
        "from tfp_sgmcmc.storage.directory import RunDirectory\n"
        "from tfp_sgmcmc.storage.stored_draws import Variable\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "run = RunDirectory(sys.argv[1])\n"
        "run.start({'posterior': {'w': Variable((3,), 'float32')}}, {'seed': [0, 1]})\n"
        "run.append({'posterior': {'w': np.arange(15.).reshape(5, 3)}})\n"
        "run.commit({'step': np.int64(5)}, finish=True)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\n"
        "try:\n"
        "    run.append({'posterior': {'w': np.zeros([20000, 3])}})\n"
        "    run.commit({'step': np.int64(20005)})\n"
        "except OSError as error:\n"
        "    print(error)\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", code, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "5 draws are safe there" in child.stdout, child.stdout + child.stderr
    assert f"{tmp_path / 'samples.zarr' / 'posterior'}" in child.stdout
    assert_holds(tmp_path, 5)


def test_without_zarr_the_line_that_installs_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zarr", None)
    with (
        RunDirectory(tmp_path) as run,
        pytest.raises(ModuleNotFoundError, match=r'pip install "tfp_sgmcmc\[results\]"'),
    ):
        run.start(VARIABLES, {})


def draws_of_a_run(path: Path, first: int = 0) -> Any:
    """Returns the stored draws of a new run with three chunks, the last of which is not full."""
    with RunDirectory(path) as run:
        run.start(VARIABLES, {"seed": [0, 1]})
        run.append(rows(10, first))
        run.commit({"step": np.int64(10)}, finish=True)
        return run.draws("posterior", "w")


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zarr_store, "_CHUNK_ROWS", 4)


def assert_unreadable(draws: Any, message: str) -> None:
    for read in (lambda: draws[-1], lambda: np.asarray(draws), lambda: list(draws), draws.verify):
        with pytest.raises(ValueError, match=message):
            read()


@pytest.mark.usefixtures("short_chunks")
def test_draws_of_a_directory_that_is_gone_or_renamed_are_not_zeros(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        draws = draws_of_a_run(Path(folder))
        assert draws[1:3].shape == (2, 3)
    assert_unreadable(draws, rf"{folder}/samples\.zarr/posterior/w/c\.0\.[02]\.0 is missing")
    draws = draws_of_a_run(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "renamed")
    assert_unreadable(draws, r"run/samples\.zarr/posterior/w/c\.0\.[02]\.0 is missing")


@pytest.mark.usefixtures("short_chunks")
def test_a_deleted_chunk_is_named_by_the_reads_that_need_it(tmp_path: Path) -> None:
    draws = draws_of_a_run(tmp_path)
    (tmp_path / "samples.zarr" / "posterior" / "w" / "c.0.1.0").unlink()
    np.testing.assert_array_equal(draws[:4], rows(4)["posterior"]["w"])
    with pytest.raises(ValueError, match=r"draws 4 \.\. 7 of .* read.*c\.0\.1\.0 is missing"):
        draws[:]
    with pytest.raises(ValueError, match=r"c\.0\.1\.0 is missing"):
        draws.first(6).verify()
    draws.first(4).verify()


@pytest.mark.usefixtures("short_chunks")
def test_a_relative_path_means_the_folder_where_the_run_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "other")
    draws_of_a_run(Path("run"), first=100)
    monkeypatch.chdir(tmp_path / "one")
    draws = draws_of_a_run(Path("run"))
    monkeypatch.chdir(tmp_path / "other")
    np.testing.assert_array_equal(draws, rows(10)["posterior"]["w"])


@pytest.mark.usefixtures("short_chunks")
def test_another_run_in_the_place_of_the_first_is_not_taken_for_it(tmp_path: Path) -> None:
    draws = draws_of_a_run(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "first")
    draws_of_a_run(tmp_path / "run", first=100)
    assert_unreadable(draws, "must have the checksum")


@pytest.mark.usefixtures("short_chunks")
def test_draws_stay_readable_when_their_run_goes_on(tmp_path: Path) -> None:
    """It writes the last chunk again."""
    draws = draws_of_a_run(tmp_path)
    with RunDirectory(tmp_path) as run:
        run.start(VARIABLES, {"seed": [0, 1]})
        run.append(rows(7, first=10))
        run.commit({"step": np.int64(17)}, finish=True)
        np.testing.assert_array_equal(run.draws("posterior", "w"), rows(17)["posterior"]["w"])
    np.testing.assert_array_equal(draws, rows(10)["posterior"]["w"])


def test_swapped_numbers_of_draws_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is whole, but xarray would show it with other numbers."""
    monkeypatch.setattr(zarr_store, "_CHUNK_ROWS", 2)
    make_run(tmp_path)
    first, second = (tmp_path / "samples.zarr" / "posterior" / "draw" / f"c.{i}" for i in (0, 1))
    first.rename(tmp_path / "x"), second.rename(first), (tmp_path / "x").rename(second)
    with (
        RunDirectory(tmp_path) as run,
        pytest.raises(ValueError, match="draw is damaged.*must have the checksum"),
    ):
        run.start(VARIABLES, {"seed": [0, 1]})


@pytest.mark.parametrize("header", [3, {}, {"fingerprint": 3, "num_draws": 5}])
def test_a_checkpoint_without_a_fingerprint_is_named(tmp_path: Path, header: Any) -> None:
    make_run(tmp_path)
    path = tmp_path / "checkpoint.npz"
    npz.write(path, {"format": 1, "header": header, "leaves": [[0, None]]}, {})
    with (
        RunDirectory(tmp_path) as run,
        pytest.raises(ValueError, match="checkpoint.npz is damaged"),
    ):
        run.start(VARIABLES, {"seed": [0, 1]})


def test_a_loss_of_power_leaves_no_files_without_the_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text of the lock and its name are on the disk before the draws' first file is made."""
    flushed, before = list[Path](), list[Path]()

    def store(*args: Any) -> DrawStore:
        before.extend(flushed)
        return DrawStore(*args)

    monkeypatch.setattr(directory, "sync", flushed.append)
    monkeypatch.setattr(directory, "DrawStore", store)
    make_run(tmp_path / "run")
    assert before == [tmp_path / "run" / "run.lock", tmp_path / "run"]
