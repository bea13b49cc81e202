"""The library's answers to damaged files: a run's directory, a posterior, the data sets.

Files are damaged at random: bytes flipped, written over, put in, cut off, or replaced by another
file of the same kind; some are replaced by a pipe or a link to a device. What happens is one of

  unchanged  everything is read as it was written
  refused    a ValueError (for a run in a directory, also when its draws are read)
  other      another exception
  changed    other numbers are returned
  hangs      nothing within ten seconds

The second table has archives that declare or unpack to far more than they hold, and the memory that
is allocated before they are refused. The aim is that all files are refused or read unchanged.
"""

from __future__ import annotations

import bz2
import collections
import functools
import gzip
import hashlib
import io
import json
import lzma
import os
import shutil
import signal
import tempfile
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import keras
import numpy as np

from benchmarks.common import command_line
from datasets import _fetch
from tfp_sgmcmc.keras import NegativeLogLikelihood, Posterior
from tfp_sgmcmc.storage import checkpoint, zarr_store
from tfp_sgmcmc.storage.directory import RunDirectory
from tfp_sgmcmc.storage.stored_draws import Variable

OUTCOMES = ("unchanged", "refused", "other", "changed", "hangs")
_SECONDS = 10
_BOMB_BYTES = 3 * 2**27  # more than any data set has
_MOST_BYTES = 2**29 + 2**27  # that a bomb may make the library allocate


class Row(NamedTuple):
    """The outcome for one damaged file.

    Attributes:
      subject: what was read.
      file: the name of the file.
      damage: what was done to it.
      outcome: one of `OUTCOMES`.
      said: the type and the message of the exception.
    """

    subject: str
    file: str
    damage: str
    outcome: str
    said: str


class Subject(NamedTuple):
    """Files, and how they are read.

    Attributes:
      name: for the table.
      write: writes the files into a folder.
      read: reads them from a folder, as arrays or bytes.
    """

    name: str
    write: Callable[[Path], None]
    read: Callable[[Path], list[Any]]


# Three chunks and a tail of each array, so that there are chunks to swap.
VARIABLES = {
    "posterior": {"w": Variable((2, 3), "float32", 1), "v": Variable((2, 3), "float32", 1)},
    "sample_stats": {"step_size": Variable((), "float64", None)},
}
_FINGERPRINT = {"seed": [0, 1]}


def write_run(folder: Path) -> None:
    rng = np.random.default_rng(0)
    with RunDirectory(folder) as run:
        run.start(VARIABLES, _FINGERPRINT)
        for _ in range(7):
            draws = {
                group: {n: rng.normal(size=[2, *v.shape]) for n, v in members.items()}
                for group, members in VARIABLES.items()
            }
            run.append(draws)
        run.commit({"state": rng.normal(size=3), "step": np.int64(14)}, finish=True)


def read_run(folder: Path) -> list[Any]:
    with RunDirectory(folder, resume="must") as run:
        saved = run.start(VARIABLES, _FINGERPRINT)
        if saved is None:
            raise ValueError("The run has begun again.")
        arrays = [saved.restore("state", np.zeros(3)), saved.restore("step", np.int64(0))]
        entries = [(group, name) for group, members in VARIABLES.items() for name in members]
        return arrays + [np.asarray(run.draws(group, name)) for group, name in entries]


def write_checkpoint(folder: Path) -> None:
    rng = np.random.default_rng(1)
    nest = {"w": rng.normal(size=[4, 5]), "b": None, "n": rng.integers(0, 9, size=7)}
    checkpoint.save(folder / "c.npz", {"seed": [0, 1]}, {"state": nest})


def read_checkpoint(folder: Path) -> list[Any]:
    like = {"w": np.zeros([4, 5]), "b": None, "n": np.zeros(7, np.int64)}
    loaded = checkpoint.load(folder / "c.npz").restore("state", like)
    return [loaded["w"], loaded["n"]]


@functools.cache
def model() -> keras.Model:
    made = keras.Sequential([keras.Input([3]), keras.layers.Dense(2, name="d")], name="m")
    made.compile(loss=NegativeLogLikelihood(lambda out: out), run_eagerly=True)
    return made


def write_posterior(folder: Path) -> None:
    rng = np.random.default_rng(2)
    variables = list(model().trainable_variables)
    samples = [rng.normal(size=[4, 2, *v.shape]).astype(np.float32) for v in variables]
    Posterior(model(), variables, samples, 2).save(folder / "p.npz")


def read_posterior(folder: Path) -> list[Any]:
    return list(Posterior.load(folder / "p.npz", model()).samples)


CONTENT = np.random.default_rng(3).integers(0, 9, size=2000, dtype=np.uint8).tobytes()


def zipped(name: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        file.writestr(name, content)
    return packed.getvalue()


PACK: dict[str, Callable[[bytes], bytes]] = {
    "d.data": bytes,
    "d.data.gz": lambda x: gzip.compress(x, 1),
    "d.data.xz": lambda x: lzma.compress(x, preset=0),
    "d.data.zip": functools.partial(zipped, "d.data"),
    "d.gz": lambda x: gzip.compress(x, 1, mtime=0),
    "d.bz2": lambda x: bz2.compress(x, 1),
}


def source(name: str, with_hash: bool = True) -> _fetch.Source:
    """Returns the source of a file as it is stored; that of a packed copy is the file inside."""
    plain = name.startswith("d.data")
    content = CONTENT if plain else PACK[name](CONTENT)
    digest = hashlib.sha256(content).hexdigest() if with_hash else None
    return _fetch.Source("d.data" if plain else name, "http://127.0.0.1:9/", digest)


def write_data(name: str, folder: Path) -> None:
    (folder / name).write_bytes(PACK[name](CONTENT))


def read_data(name: str, folder: Path) -> list[Any]:
    os.environ[_fetch.VARIABLE] = str(folder)
    # The checksum in the file is all there is where the upstream publishes no hash.
    return [_fetch.read(source(name, with_hash=name != "d.bz2"))]


SUBJECTS = [
    Subject("run in a directory", write_run, read_run),
    Subject("checkpoint", write_checkpoint, read_checkpoint),
    Subject("posterior", write_posterior, read_posterior),
    *(
        Subject(
            f"data set {name}",
            functools.partial(write_data, name),
            functools.partial(read_data, name),
        )
        for name in PACK
    ),
]

Damage = Callable[[Path, bytes, np.random.Generator, list[Path]], Any]


def _flip(path: Path, content: bytes, rng: np.random.Generator, _: list[Path]) -> None:
    changed = bytearray(content)
    for at in rng.integers(0, len(content), size=int(rng.integers(1, 4))):
        changed[at] ^= 1 << int(rng.integers(0, 8))
    path.write_bytes(changed)


def _write_over(path: Path, content: bytes, rng: np.random.Generator, _: list[Path]) -> None:
    start, size = int(rng.integers(0, len(content))), int(rng.integers(1, 64))
    new = rng.bytes(size) if rng.random() < 0.5 else bytes(size)
    path.write_bytes(content[:start] + new + content[start + size :])


def _put_in(path: Path, content: bytes, rng: np.random.Generator, _: list[Path]) -> None:
    at = int(rng.integers(0, len(content) + 1))
    path.write_bytes(content[:at] + rng.bytes(int(rng.integers(1, 9))) + content[at:])


def _cut(path: Path, content: bytes, rng: np.random.Generator, _: list[Path]) -> None:
    path.write_bytes(content[: int(rng.integers(0, len(content)))])


def _swap(path: Path, content: bytes, rng: np.random.Generator, others: list[Path]) -> None:
    alike = [p for p in others if p.suffix == path.suffix and p != path]
    if alike:
        content = alike[int(rng.integers(0, len(alike)))].read_bytes()
    else:
        content = rng.bytes(len(content))
    path.write_bytes(content)


def _replace(path: Path, content: bytes, rng: np.random.Generator, _: list[Path]) -> None:
    path.unlink()
    if rng.random() < 0.5:
        os.mkfifo(path)
    else:
        path.symlink_to(os.devnull)


DAMAGES: dict[str, Damage] = {
    "bits flipped": _flip,
    "written over": _write_over,
    "bytes put in": _put_in,
    "cut off": _cut,
    "another file": _swap,
    "no file": _replace,
}


def _too_long(*_: Any) -> None:
    raise TimeoutError("nothing happened")


def outcome(subject: Subject, folder: Path, expected: list[Any]) -> tuple[str, str]:
    """Reads damaged files; returns the outcome, and the exception in words."""
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(_SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = subject.read(folder)
    except TimeoutError as error:
        return "hangs", str(error)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        return ("refused" if isinstance(error, ValueError) else "other"), said
    finally:
        signal.alarm(0)
    same = len(found) == len(expected) and all(
        np.array_equal(np.asarray(x), np.asarray(y)) and np.asarray(x).dtype == np.asarray(y).dtype
        for x, y in zip(found, expected, strict=True)
    )
    return ("unchanged" if same else "changed"), ""


def damaged(subject: Subject, count: int, folder: Path) -> Iterator[Row]:
    """Damages one file of a subject at a time."""
    whole, copy = folder / "whole", folder / "copy"
    whole.mkdir()
    subject.write(whole)
    expected = subject.read(whole)
    files = sorted(p.relative_to(whole) for p in whole.rglob("*") if p.is_file())
    for number in range(count):
        rng = np.random.default_rng([number, len(subject.name)])
        name, (damage, change) = files[number % len(files)], _drawn(rng)
        shutil.copytree(whole, copy)
        content = (copy / name).read_bytes()
        change(copy / name, content, rng, [copy / f for f in files])
        yield Row(subject.name, str(name), damage, *outcome(subject, copy, expected))
        shutil.rmtree(copy)


def _drawn(rng: np.random.Generator) -> tuple[str, Damage]:
    # Pipes and links are two cases in all, so that they are rare.
    weights = np.array([4, 4, 4, 4, 4, 1]) / 21
    return list(DAMAGES.items())[int(rng.choice(len(DAMAGES), p=weights))]


def rows(quick: bool = False) -> list[Row]:
    """Damages thousands of files, or about a twentieth of them."""
    found: list[Row] = []
    short_chunks = mock.patch.object(zarr_store, "_CHUNK_ROWS", 4)
    # Only a machine that stops needs what is flushed to the disk.
    with short_chunks, mock.patch.object(os, "fsync", lambda descriptor: None):
        for subject in SUBJECTS:
            is_run = subject.read is read_run
            count = (60 if is_run else 20) if quick else (1500 if is_run else 500)
            with tempfile.TemporaryDirectory() as folder:
                found += damaged(subject, count, Path(folder))
    return found


def npy_of_shape(shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


def bombs() -> Iterator[tuple[str, str, str, int]]:
    """Yields archive, its bytes, what is said, and the bytes allocated before."""
    leaves = [["state['w']", "float64"], ["state['b']", None], ["state['n']", "int64"]]
    header = json.dumps({"format": 1, "header": {}, "leaves": leaves})
    zeros = bytes(_BOMB_BYTES)
    entries = {
        "compressed zeros": (zipfile.ZIP_DEFLATED, header, zeros),
        "a shape of 2^50": (zipfile.ZIP_STORED, header, npy_of_shape((2**50,))),
        "nested brackets": (zipfile.ZIP_STORED, "[" * 1_000_000, b""),
    }
    made: dict[str, tuple[Subject, str, bytes]] = {}
    for name, (how, text, array) in entries.items():
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", how, compresslevel=1) as file:
            file.writestr("header.json", text)
            file.writestr("0.npy", array)
        made[f"checkpoint, {name}"] = SUBJECTS[1], "c.npz", packed.getvalue()
    for subject in SUBJECTS[4:]:
        name = subject.name.split()[-1]
        made[f"{subject.name}, zeros"] = subject, name, PACK[name](zeros)
    del zeros
    for what, (subject, name, content) in made.items():
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / name).write_bytes(content)
            tracemalloc.start()
            how, said = outcome(subject, Path(folder), [])
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        yield what, how, said, peak


def run(*, quick: bool = False, list: bool = False) -> tuple[Sequence[Row], bool]:
    """Damages files.

    Args:
      quick: damages about a twentieth of the files.
      list: prints each file that was neither refused nor read unchanged.
    """
    return rows(quick), list


def show(result: tuple[Sequence[Row], bool]) -> None:
    """Prints the tables; raises SystemExit if the aim is missed."""
    found, listed = result
    for row in found:
        if listed and row.outcome not in ("unchanged", "refused"):
            print(f"{row.outcome:9} {row.subject}, {row.file}, {row.damage}: {row.said[:300]}")
    formats = {"subject": "20s", "files": "d", **dict.fromkeys(OUTCOMES, "d")}
    kinds = [*dict.fromkeys(row.subject for row in found), *DAMAGES]
    table = []
    for kind in kinds:
        inside = collections.Counter(r.outcome for r in found if kind in (r.subject, r.damage))
        table.append((kind, inside.total(), *(inside[o] for o in OUTCOMES)))
    command_line.print_table(formats, table)
    types = collections.Counter(r.said.split(":")[0] for r in found if r.said)
    print("exceptions:", ", ".join(f"{name} {n}" for name, n in types.most_common()), "\n")
    bad = sum(row.outcome not in ("unchanged", "refused") for row in found)
    exploded = [*bombs()]
    columns = {"archive": "35s", "outcome": "s", "MB allocated": ".0f"}
    command_line.print_table(columns, [(what, how, n / 1e6) for what, how, _, n in exploded])
    bad += sum(how != "refused" or n > _MOST_BYTES for _, how, _, n in exploded)
    if bad:
        raise SystemExit(f"{bad} files were neither refused by a ValueError nor read unchanged.")


def main() -> None:
    command_line.main(__doc__, run, show)


if __name__ == "__main__":
    main()
