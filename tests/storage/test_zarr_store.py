"""Draws on disk are read back by us, xarray and ArviZ, and damage is named."""

import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfp_sgmcmc.storage import zarr_store as store_module
from tfp_sgmcmc.storage.directory import RunDirectory
from tfp_sgmcmc.storage.stored_draws import Variable
from tfp_sgmcmc.storage.zarr_store import Committed, DrawStore

xarray = pytest.importorskip("xarray")
pytest.importorskip("zarr")

VARIABLES = {
    "posterior": {
        "w": Variable((2, 3, 5), "float32", chain_ndims=2),
        "b": Variable((2, 3), "bfloat16", chain_ndims=2),
    },
    "sample_stats": {
        "step_size": Variable((), "float64", chain_ndims=None),
        "accepted": Variable((2, 3), "bool", chain_ndims=2),
    },
}


def rows(count: int, seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return {
        "posterior": {
            "w": rng.normal(size=[count, 2, 3, 5]).astype(np.float32),
            "b": np.asarray(tf.cast(rng.normal(size=[count, 2, 3]), tf.bfloat16)),
        },
        "sample_stats": {"step_size": np.zeros(count), "accepted": rng.random([count, 2, 3]) < 0.5},
    }


def joined(pieces: list[dict[str, dict[str, np.ndarray]]]) -> dict[str, dict[str, np.ndarray]]:
    return tf.nest.map_structure(lambda *x: np.concatenate(x), *pieces)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the path of a store with short chunks."""
    monkeypatch.setattr(store_module, "_CHUNK_ROWS", 4)
    return tmp_path / "s.zarr"


def assert_holds(store: DrawStore, expected: dict[str, dict[str, np.ndarray]]) -> None:
    for group, members in expected.items():
        for name, x in members.items():
            np.testing.assert_array_equal(store.draws(group, name), x.astype(np.float64))


@pytest.mark.parametrize("counts", [[11], [3, 3, 3], [4, 1, 8], [0, 5]])
def test_what_is_appended_is_read_back(path: Path, counts: list[int]) -> None:
    pieces = [rows(n, i) for i, n in enumerate(counts)]
    store = DrawStore(path, VARIABLES)
    for piece in pieces:
        store.append(piece)
        assert store.num_draws - len(store.tail["posterior"]["w"]) == store.num_draws // 4 * 4
    store.finish()
    store.sync()
    assert store.num_draws == sum(counts)
    assert_holds(store, joined(pieces))


def test_only_the_part_of_a_chunk_that_was_open_is_written_again(path: Path) -> None:
    store = DrawStore(path, VARIABLES)
    store.append(rows(10))
    store.finish()
    store.sync()
    folder = path / "posterior" / "w"
    before = {p.name: p.stat().st_mtime_ns for p in folder.glob("c.*")}
    store.append(rows(7, 1))
    store.sync()
    after = {p.name: p.stat().st_mtime_ns for p in folder.glob("c.*")}
    assert [n for n in sorted(before) if after[n] != before[n]] == ["c.0.2.0"]
    assert sorted(set(after) - set(before)) == ["c.0.3.0"]


def test_going_on_drops_what_was_not_committed(path: Path) -> None:
    first = DrawStore(path, VARIABLES)
    first.append(rows(6))
    first.sync()
    committed = Committed(6, first.tail, first.checksums)
    first.append(rows(9, 1))  # some of its chunks reach the disk
    (path / "posterior" / "w" / "c.0.9.0.1234.partial").write_bytes(b"torn")
    again = DrawStore(path, VARIABLES, committed=committed)
    assert again.num_draws == 6
    assert_holds(again, rows(6))
    again.append(rows(3, 2))
    again.finish()
    assert_holds(again, joined([rows(6), rows(3, 2)]))
    assert not list(path.parent.glob("**/*.partial"))


def test_readers_see_the_draws_of_the_last_sync(path: Path) -> None:
    store = DrawStore(path, VARIABLES)
    store.append(rows(9))
    store.sync()
    store.append(rows(9, 1))
    seen = xarray.open_zarr(path, group="posterior")
    assert dict(seen.sizes) == {"chain": 6, "draw": 8, "w_dim_0": 5}
    np.testing.assert_array_equal(seen.draw, np.arange(8))
    np.testing.assert_array_equal(seen.chain, np.arange(6))
    expected = rows(9)["posterior"]["w"][:8].reshape(8, 6, 5).swapaxes(0, 1)
    np.testing.assert_array_equal(seen.w, expected)


def test_arviz_opens_the_store(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # version 0 announces version 1
        arviz = pytest.importorskip("arviz")
    store = DrawStore(path, VARIABLES, {"tuning_steps": 5})
    store.append(rows(200))
    store.finish()
    store.sync()
    tree = xarray.open_datatree(path, engine="zarr")
    assert [*tree.children] == ["posterior", "sample_stats"]
    is_old = arviz.__version__.startswith("0.")
    data = arviz.InferenceData.from_datatree(tree) if is_old else tree
    assert data.posterior.attrs["tuning_steps"] == 5
    assert data.posterior.attrs["inference_library"] == "tfp_sgmcmc"
    assert data.sample_stats["step_size"].dims == ("draw",)
    assert data.sample_stats["accepted"].dtype == bool
    summary = arviz.summary(data, var_names=["w"])
    assert list(summary.index) == [f"w[{i}]" for i in range(5)]
    means = rows(200)["posterior"]["w"].mean(axis=(0, 1, 2))
    found = summary["mean"].astype(float)  # rounded, in version 1 to two digits
    np.testing.assert_allclose(found, means, atol=1e-3 if is_old else 1e-2)
    tree.close()


INDICES: list[Any] = [
    0,
    -1,
    np.int64(5),
    slice(None),
    slice(2, 9),
    slice(None, None, 3),
    slice(9, 1, -2),
    slice(None, None, -1),
    slice(5, 5),
    slice(100, 200),
    (slice(1, 11, 5), 0),
    (slice(None), slice(None), [0, 2]),
    (slice(None), ..., 0),
    (..., 0),
    (3, 1),
    [1, 7],
    np.arange(11) % 2 == 0,
]


@pytest.fixture(scope="module")
def store_of_11(tmp_path_factory: pytest.TempPathFactory) -> DrawStore:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "_CHUNK_ROWS", 4)
        store = DrawStore(tmp_path_factory.mktemp("store") / "s.zarr", VARIABLES)
    store.append(rows(11))
    store.finish()
    return store


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_stored_draws_are_indexed_as_arrays(store_of_11: DrawStore, index: Any) -> None:
    stored, array = store_of_11.draws("posterior", "w"), rows(11)["posterior"]["w"]
    np.testing.assert_array_equal(stored[index], array[index])
    assert stored.shape == array.shape and len(stored) == 11 and stored.dtype == array.dtype


def test_stored_draws_are_read_as_they_are_indexed(
    store_of_11: DrawStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = store_of_11.draws("posterior", "w")
    kind, real = type(stored), type(stored)._rows
    read: list[tuple[int, int]] = []
    monkeypatch.setattr(kind, "_rows", lambda self, a, b: read.append((a, b)) or real(self, a, b))
    stored[9], stored[0:3]
    assert [span for span in read if span != (0, 0)] == [(9, 10), (0, 3)]
    read.clear()
    stored[::10, 0]
    assert max(b - a for a, b in read) <= 4
    assert sum(1 for _ in stored) == 11 and np.asarray(stored, np.float64).dtype == np.float64
    with pytest.raises(IndexError):
        stored[11]
    with pytest.raises(ValueError, match="copy must be True or None"):
        np.array(stored, copy=False)


def stored(path: Path) -> Committed:
    store = DrawStore(path, VARIABLES)
    store.append(rows(10))
    store.sync()
    return Committed(10, store.tail, store.checksums)


def test_damaged_chunks_are_named(path: Path) -> None:
    committed = stored(path)
    chunk = path / "posterior" / "w" / "c.0.1.0"
    content = chunk.read_bytes()
    chunk.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    store = DrawStore(path, VARIABLES, committed=committed)
    draws = store.draws("posterior", "w")
    with pytest.raises(ValueError, match=r"draws 4 \.\. 7 of .*posterior/w cannot be read"):
        draws[2:]
    for damage in (lambda: chunk.write_bytes(content[:-1]), chunk.unlink):
        damage()
        message = r"c\.0\.1\.0 (must have 484 bytes. Received: 483|is missing)"
        for read in (
            lambda: DrawStore(path, VARIABLES, committed=committed),
            lambda: store.draws("posterior", "w")[6],
            lambda: draws[6],
        ):
            with pytest.raises(ValueError, match=message):
                read()


def test_a_chunk_in_the_place_of_another_is_found(path: Path) -> None:
    """Its checksum fits its content, but not its place."""
    committed = stored(path)
    first, second = (path / "posterior" / "w" / f"c.0.{i}.0" for i in (0, 1))
    first.write_bytes(second.read_bytes())
    with pytest.raises(ValueError, match=r"c\.0\.0\.0 must have the checksum"):
        DrawStore(path, VARIABLES, committed=committed)
    DrawStore(path, VARIABLES, committed=Committed(10, committed.tail))  # a run begun without


def test_a_last_chunk_that_differs_from_the_checkpoint_is_written_again(path: Path) -> None:
    committed = stored(path)
    DrawStore(path, VARIABLES, committed=committed)
    last, first = (path / "posterior" / "w" / f"c.0.{i}.0" for i in (2, 0))
    last.write_bytes(first.read_bytes())
    assert_holds(DrawStore(path, VARIABLES, committed=committed), rows(10))


def test_every_chunk_has_a_checksum(path: Path) -> None:
    stored(path)
    described = [json.loads(p.read_text()) for p in path.rglob("zarr.json")]
    codecs = [x["codecs"][-1]["name"] for x in described if x["node_type"] == "array"]
    assert codecs == ["crc32c"] * len(codecs) and len(codecs) >= 6


def test_symbolic_links_are_refused(path: Path, tmp_path: Path) -> None:
    committed = stored(path)
    outside = tmp_path / "outside"
    (path / "posterior" / "b").rename(outside)
    (path / "posterior" / "b").symlink_to(outside)
    before = {p: p.read_bytes() for p in outside.rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match="posterior/b must not be a symbolic link"):
        DrawStore(path, VARIABLES, committed=committed)
    assert before == {p: p.read_bytes() for p in outside.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", ["zarr.json", "posterior/w/zarr.json", "posterior/w/c.0.0.0"])
def test_pipes_are_not_waited_for(path: Path, name: str) -> None:
    committed = stored(path)
    (path / name).unlink()
    os.mkfifo(path / name)
    with pytest.raises(ValueError, match=f"{name} must be a regular file. Received: a pipe"):
        DrawStore(path, VARIABLES, committed=committed)


def test_the_last_chunk_is_made_anew_from_the_checkpoint(path: Path) -> None:
    """A run that was cut off has not written it, and zarr reads zeros for a missing chunk."""
    committed = stored(path)
    last = path / "posterior" / "w" / "c.0.2.0"
    assert not last.exists()
    assert_holds(DrawStore(path, VARIABLES, committed=committed), rows(10))
    whole = last.read_bytes()
    for damage in (last.unlink, lambda: last.write_bytes(whole[:-1])):
        damage()
        assert_holds(DrawStore(path, VARIABLES, committed=committed), rows(10))
    assert xarray.open_zarr(path, group="posterior").sizes["draw"] == 10


CUT_OFF = b'{"zarr_format": 3'


@pytest.mark.parametrize(
    ("place", "content"),
    [
        *[("posterior/b", content) for content in (None, b"", b"{}", CUT_OFF)],
        ("posterior", b""),
        ("", None),
        ("", CUT_OFF),
    ],
)
def test_damaged_metadata_are_named(path: Path, place: str, content: bytes | None) -> None:
    committed = stored(path)
    file = path / place / "zarr.json"
    file.unlink() if content is None else file.write_bytes(content)
    files = sorted(path.rglob("*"))
    with pytest.raises(ValueError, match=f"{path / place} is damaged or missing"):
        DrawStore(path, VARIABLES, committed=committed)
    assert sorted(path.rglob("*")) == files


@pytest.mark.parametrize("file", ["c/0", "zarr.json"])
@pytest.mark.parametrize("content", [None, b"", CUT_OFF, bytes(500)])
def test_lost_numbers_of_chains_are_written_again(
    path: Path, file: str, content: bytes | None
) -> None:
    committed = stored(path)
    damaged = path / "posterior" / "chain" / file
    damaged.unlink() if content is None else damaged.write_bytes(content)
    store = DrawStore(path, VARIABLES, committed=committed)
    store.sync()
    np.testing.assert_array_equal(xarray.open_zarr(path, group="posterior").chain, np.arange(6))
    before = damaged.stat().st_mtime_ns
    DrawStore(path, VARIABLES, committed=committed)
    assert damaged.stat().st_mtime_ns == before


def test_a_store_with_fewer_draws_than_committed_is_refused(path: Path) -> None:
    count, tail, _ = stored(path)
    (path / "sample_stats" / "accepted" / "c.0.2").write_bytes(b"0" * 28)
    for name in ("w", "b"):
        for file in (path / "posterior" / name).glob("c.*.1*"):
            (file.parent / file.name.replace(".1", ".2")).write_bytes(file.read_bytes())
    with pytest.raises(ValueError, match="at least 12 draws of float32. Received: 8"):
        DrawStore(path, VARIABLES, committed=Committed(count + 4, tail))


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"w/kernel": Variable((), "float32")}, "'w/kernel' cannot name an array of posterior"),
        ({"": Variable((), "float32")}, "cannot name"),
        ({".w": Variable((), "float32")}, "cannot name"),
        ({"chain": Variable((), "float32")}, "cannot name"),
        ({"zarr.json": Variable((), "float32")}, "cannot name"),
        ({"a\\b": Variable((), "float32")}, "cannot name"),
        ({"a\n": Variable((), "float32")}, "cannot name"),
        ({"w.partial": Variable((), "float32")}, "cannot name"),
        ({"w" * 201: Variable((), "float32")}, "cannot name .* 1 to 200 bytes"),
        ({"w": Variable((3, 0), "float32")}, "nothing to store"),
        (
            {"w": Variable((3,), "float32", 1), "b": Variable((), "float32", 0)},
            r"posterior must have equally many chains. Received: \[1, 3\]",
        ),
    ],
)
def test_variables_that_cannot_be_stored(
    path: Path, variables: dict[str, Variable], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        DrawStore(path, {"posterior": variables})
    assert not (path).exists()


def test_draws_that_do_not_fit(path: Path) -> None:
    store = DrawStore(path, VARIABLES)
    draws = rows(3)
    draws["posterior"]["w"] = draws["posterior"]["w"][..., :4]
    message = r"posterior/w must have shape \(2, 3, 5\). Received: \(2, 3, 4\)"
    with pytest.raises(ValueError, match=message):
        store.append(draws)
    draws = rows(3)
    draws["posterior"]["w"] = draws["posterior"]["w"][:2]
    with pytest.raises(ValueError, match=r"equally many draws. Received: \[2, 3\]"):
        store.append(draws)


def test_an_append_that_fails_leaves_all_arrays_as_long(path: Path, monkeypatch: Any) -> None:
    """As at Ctrl-C or on a full disk, after which the same run goes on."""
    pieces, wrong = [rows(3, 0), rows(3, 1)], rows(3, 1)
    wrong["sample_stats"]["accepted"] = wrong["sample_stats"]["accepted"][:, :1]
    store = DrawStore(path, VARIABLES)
    store.append(pieces[0])
    with pytest.raises(ValueError, match="must have shape"):
        store.append(wrong)
    write, calls = DrawStore._write, []

    def interrupted(*args: Any) -> None:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        write(*args)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(DrawStore, "_write", interrupted)
        store.append(pieces[1])
    store.append(pieces[1])
    store.finish()
    assert store.num_draws == 6
    assert_holds(store, joined(pieces))


def test_a_tail_is_written_once(path: Path, monkeypatch: Any) -> None:
    """Another process may go on with the run while this one still reads."""
    store, calls = DrawStore(path, VARIABLES), []
    store.append(rows(3))
    store.finish()
    monkeypatch.setattr(DrawStore, "_write", lambda *args: calls.append(args))
    store.finish()
    assert not calls
    store.append(rows(1))  # a whole chunk
    store.append(rows(1))
    calls.clear()
    store.finish()
    assert len(calls) == len(store.tail["posterior"]) + len(store.tail["sample_stats"]) + 2


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("codecs", lambda x: x[0]["configuration"].update(endian="big")),
        ("chunk_key_encoding", lambda x: x["configuration"].update(separator="/")),
        ("shape", lambda x: x.__setitem__(2, 2)),
        ("chunk_grid", lambda x: x["configuration"]["chunk_shape"].__setitem__(2, 2)),
    ],
)
def test_metadata_of_other_arrays_are_refused(tmp_path: Path, key: str, change: Any) -> None:
    """The checksums of chunks do not see how these are read."""
    variables = {"posterior": {"w": Variable((3,), "float32")}}
    with RunDirectory(tmp_path) as run:
        run.start(variables, {})
        run.append({"posterior": {"w": np.ones([5, 3], np.float32)}})
        run.commit({}, finish=True)
    file = tmp_path / "samples.zarr/posterior/w/zarr.json"
    metadata = json.loads(file.read_text())
    change(metadata[key])
    file.write_text(json.dumps(metadata))
    with (
        RunDirectory(tmp_path) as run,
        pytest.raises(ValueError, match=rf"posterior/w is damaged .*{key}"),
    ):
        run.start(variables, {})
