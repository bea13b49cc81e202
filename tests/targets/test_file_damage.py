"""Damaged files are named, and sound ones are not."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tfp_sgmcmc.targets.read_faults import ReadFaults, StreamReadError, damage_of

ROWS = np.random.default_rng(0).normal(size=[100, 3])


def write_npy(path: Path) -> None:
    np.save(path, ROWS)


def write_npz(path: Path) -> None:
    np.savez(path, x=ROWS)


def write_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(ROWS.tobytes()))


def write_parquet(path: Path) -> None:
    path.write_bytes(b"PAR1 ... PAR1")


def write_records(path: Path, packed: str = "") -> None:
    with tf.io.TFRecordWriter(str(path), packed) as file:
        for row in ROWS:
            file.write(row.tobytes())


def write_packed_records(path: Path) -> None:
    write_records(path, "GZIP")


KINDS = {
    "a.npy": write_npy,
    "a.npz": write_npz,
    "a.csv.gz": write_gzip,
    "a.parquet": write_parquet,
    "a.tfrecord": write_records,
    "a.TFRecords": write_packed_records,
}


@pytest.mark.parametrize("name", KINDS)
def test_a_file_that_is_cut_off_is_damaged(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    KINDS[name](path)
    assert damage_of(path) == ""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - 5])
    assert damage_of(path)
    path.write_bytes(b"")
    assert damage_of(path) == "it is empty"


def test_files_of_other_formats_are_not_accused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,")
    assert damage_of(path) == ""
    assert damage_of(tmp_path) == ""
    np.save(tmp_path / "objects.npy", np.array([None, "x"]), allow_pickle=True)
    assert damage_of(tmp_path / "objects.npy") == ""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1.0,abc,2.0", "line 9 has 'abc' where its second line has a number"),
        ("1.0,2.0", "line 9 has 2 fields, and its first line 3"),
        ("1.0,,2.0", ""),
        ("", ""),
    ],
)
def test_wrong_fields_of_csv_are_found(tmp_path: Path, line: str, words: str) -> None:
    lines = ["a,b,c", *["1,2,3"] * 9]
    lines[8] = line
    (tmp_path / "a.csv").write_text("\n".join(lines))
    assert damage_of(tmp_path / "a.csv") == words


def test_wrong_bytes_are_found_where_there_are_check_sums(tmp_path: Path) -> None:
    for name in ("a.npz", "a.csv.gz", "a.tfrecord"):
        path = tmp_path / name
        KINDS[name](path)
        content = bytearray(path.read_bytes())
        content[1000] ^= 255
        path.write_bytes(content)
        assert damage_of(path)


def test_a_pipe_among_the_files_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.npy")
    with pytest.raises(StreamReadError, match=f"{tmp_path / 'x.npy'}, a pipe.*Restore the file"):
        ReadFaults([tmp_path / "x.npy"])


def test_a_folder_of_files_is_not_damaged(tmp_path: Path) -> None:
    """As a table of Parquet files, or what another program wrote in parts."""
    for name in ("table.parquet", "rows.csv", "rows"):
        (tmp_path / name).mkdir()
        assert damage_of(tmp_path / name) == ""
