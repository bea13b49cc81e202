"""Checkpoints return every dtype and structure bit for bit, and name what does not fit."""

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tfp_sgmcmc.storage import checkpoint, npz


class Pair(NamedTuple):
    first: Any
    second: Any


DTYPES = ["bfloat16", "float16", "float32", "float64", "uint32", "int64", "uint8", "bool"]


def nest() -> dict[str, Any]:
    numbers = np.arange(-3, 3).reshape(2, 3)
    return {
        "parts": [tf.cast(numbers, dtype) for dtype in DTYPES],
        "empty": (),
        "none": None,
        "pair": Pair(tf.zeros([0, 2]), {"w/kernel": tf.Variable(1.5), "at": np.int64(2**40)}),
    }


def test_leaves_of_all_dtypes_and_structures_survive(tmp_path: Path) -> None:
    path, saved = tmp_path / "c.npz", nest()
    checkpoint.save(path, {"seed": [0, 1]}, {"results": saved, "step": np.int64(7)})
    loaded = checkpoint.load(path)
    assert loaded.header == {"seed": [0, 1]}
    assert loaded.restore("step", np.int64(0)) == 7
    restored = loaded.restore("results", nest())
    tf.nest.assert_same_structure(restored, saved)
    assert restored["empty"] == () and restored["none"] is None
    for x, y in zip(tf.nest.flatten(restored), tf.nest.flatten(saved), strict=True):
        if y is not None:
            y = np.asarray(y)
            assert x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
    assert restored["parts"][0].dtype == tf.bfloat16.as_numpy_dtype


@pytest.mark.parametrize(
    ("like", "named"),
    [
        ({"w": np.zeros(3), "b": None}, r"state\['w'\]: float32 \[3\], but here float64 \[3\]"),
        ({"w": np.zeros(2, np.float32), "b": None}, r"float32 \[3\], but here float32 \[2\]"),
        ({"w": np.zeros(3, np.float32), "b": 1.0}, r"state\['b'\]: None, but here float64 \[\]"),
        ({"w": np.zeros(3, np.float32)}, r"state\['b'\]: None, but here nothing of this name"),
        ({"w": None, "b": None, "c": 1}, r"state\['c'\]: nothing of this name, but here int64"),
    ],
)
def test_differences_are_named(tmp_path: Path, like: Any, named: str) -> None:
    checkpoint.save(tmp_path / "c.npz", {}, {"state": {"w": np.zeros(3, np.float32), "b": None}})
    loaded = checkpoint.load(tmp_path / "c.npz")
    with pytest.raises(ValueError, match=named):
        loaded.restore("state", like)


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.thorough)])
def test_every_flipped_byte_and_every_cut_is_found(tmp_path: Path, every: int) -> None:
    path = tmp_path / "c.npz"
    values = np.arange(50, dtype=np.uint8)
    checkpoint.save(path, {}, {"state": values})
    content = path.read_bytes()
    start = content.index(values.tobytes())
    for at in range(0, len(content), every):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        try:  # a bit that nobody reads, such as one of a date, may change
            np.testing.assert_array_equal(checkpoint.load(path).restore("state", values), values)
        except ValueError as error:
            assert "is damaged" in str(error)
        else:
            assert not start <= at < start + 50
    path.write_bytes(content.replace(values.tobytes(), bytes(50)))
    with pytest.raises(ValueError, match="c.npz is damaged.*CRC"):
        checkpoint.load(path)
    for length in range(0, len(content), every):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match="is damaged"):
            checkpoint.load(path)


def test_a_checkpoint_of_version_0_1_0(tmp_path: Path) -> None:
    leaves = [["state['b']", None], ["state['w']", "bfloat16"], ["step", "int64"]]
    text = json.dumps({"format": 1, "header": {"seed": [0, 1]}, "leaves": leaves})
    members = {"1": np.array([0x3FC0, 0xC000], np.uint16), "2": np.int64(7)}
    np.savez(tmp_path / "c.npz", contents=np.frombuffer(text.encode(), np.uint8), **members)
    loaded = checkpoint.load(tmp_path / "c.npz")
    assert loaded.header == {"seed": [0, 1]} and loaded.restore("step", np.int64(0)) == 7
    like = {"w": tf.constant([1.5, -2.0], tf.bfloat16), "b": None}
    restored = loaded.restore("state", like)
    np.testing.assert_array_equal(restored["w"], like["w"])
    assert restored["w"].dtype == tf.bfloat16.as_numpy_dtype and restored["b"] is None


def npy(shape: Any, descr: str = "<f4", data: bytes = b"") -> bytes:
    file = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + data


HEADER = json.dumps({"format": 1, "header": {}, "leaves": [["state", "float32"]]})
NESTED = "[" * 100_000


@pytest.mark.parametrize(
    ("header", "array", "how", "message"),
    [
        (HEADER, npy((3,), data=bytes(12)), zipfile.ZIP_DEFLATED, "is compressed"),
        (HEADER, npy((3,), data=bytes(12)), zipfile.ZIP_LZMA, "is compressed"),
        (HEADER, npy((2**40,), data=bytes(12)), 0, r"not that of shape \(1099511627776,\)"),
        (HEADER, npy((-3,), data=bytes(12)), 0, "not that of shape"),
        (HEADER, npy((2,), data=bytes(12)), 0, "not that of shape"),
        (HEADER, npy((3,), "<f8", bytes(24)), 0, "not the array of float32"),
        (HEADER, npy((3,), "|O", b"cos\nsystem\n."), 0, "has Python objects"),
        (HEADER, b"", 0, "damaged"),
        (NESTED, b"", 0, "damaged"),
        ("[1]", b"", 0, "not a JSON object"),
        ('{"format": 1}', b"", 0, "damaged"),
        (HEADER.replace("float32", "nothing"), npy((3,), data=bytes(12)), 0, "damaged"),
    ],
)
def test_what_others_wrote_is_refused_before_it_is_unpacked(
    tmp_path: Path, header: str, array: bytes, how: int, message: str
) -> None:
    path = tmp_path / "c.npz"
    with zipfile.ZipFile(path, "w", how) as file:
        file.writestr("header.json", header, zipfile.ZIP_STORED)
        file.writestr("0.npy", array)
    with pytest.raises(
        ValueError, match=f"c.npz is damaged, or was not written by a run: .*{message}|{message}"
    ):
        checkpoint.load(path)


def test_two_entries_of_one_name_are_refused(tmp_path: Path) -> None:
    array = npy((3,), data=bytes(12))
    with (
        zipfile.ZipFile(tmp_path / "c.npz", "w") as file,
        pytest.warns(UserWarning, match="Duplicate name"),
    ):
        for name, content in (("header.json", HEADER), ("0.npy", array), ("0.npy", array)):
            file.writestr(name, content)
    with pytest.raises(ValueError, match="two entries have the same name"):
        checkpoint.load(tmp_path / "c.npz")


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(ValueError, match="must be a file. Received: a folder or a device"):
            checkpoint.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        checkpoint.load(tmp_path / "none")


def test_another_format_and_pickles_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.npz"
    with pytest.raises(TypeError, match="state must hold numbers"):
        checkpoint.save(path, {}, {"state": np.array([{}])})
    np.savez(path, contents=np.array([{}]))
    with pytest.raises(ValueError, match="damaged.*allow_pickle=False"):
        checkpoint.load(path)
    monkeypatch.setattr(checkpoint, "FORMAT_VERSION", 2)
    checkpoint.save(path, {}, {"state": 1})
    monkeypatch.undo()
    with pytest.raises(ValueError, match="must have format 1. Received: format 2"):
        checkpoint.load(path)


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.npz"
    checkpoint.save(path, {}, {"state": 1})

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    for module, name in ((npz, "_write_array"), (npz.os, "fsync")):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space.*c.npz"):
            patch.setattr(module, name, full)
            checkpoint.save(path, {}, {"state": 2})
        assert checkpoint.load(path).restore("state", 0) == 1
        assert [p.name for p in tmp_path.iterdir()] == ["c.npz"]
