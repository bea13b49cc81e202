"""Finds a data file on this machine or downloads it, checks it, and returns its content."""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from datasets._download import resumable
from datasets._optional import require
from datasets._unlzw import unlzw

VARIABLE = "TFP_SGMCMC_DATASETS"


class Source(NamedTuple):
    """One file of a data set.

    Attributes:
      name: the upstream's file name, with the folders that it is kept in below a data folder.
      url: the address for downloads. A `.zip` file is an archive that holds the file.
      sha256: hash of the file as the upstream ships it (for an archive: of the file inside), or
        None if no hash has been published. The caller then checks the content.
    """

    name: str
    url: str
    sha256: str | None

    @property
    def saved_name(self) -> str:
        """Name on this machine of the file that is downloaded."""
        return self.name + (".zip" if self.url.endswith(".zip") else "")


def registered(name: str) -> Source:
    """Returns the entry of `datasets/registry.txt` for a file name."""
    lines = Path(__file__).with_name("registry.txt").read_text().splitlines()
    sha256, url = {row[0]: row[1:] for row in map(str.split, lines)}[name]
    return Source(name, url, None if sha256 == "-" else sha256)


def read(source: Source) -> bytes:
    """Returns the content of a data file without any compression.

    The file is searched in this order: in the folder that the environment variable
    `TFP_SGMCMC_DATASETS` names, in `../shared/datasets` next to the repository, in pooch's cache,
    at the upstream's address. In a folder, its name may end in an additional `.xz`, `.gz` or
    `.zip`, or in `.zip` in place of its suffix. Its hash is checked before it is used, and no file
    is unpacked to more than 268 MB.

    Raises:
      FileNotFoundError: the file is in no folder and cannot be downloaded.
      ImportError: the file must be downloaded and pooch is not installed.
      ValueError: the file is truncated or corrupt, or has the wrong sha256.
    """
    for folder in _folders():
        whole = folder / source.name
        added = (whole.with_name(whole.name + suffix) for suffix in (".xz", ".gz", ".zip"))
        for path in (whole, *added, whole.with_suffix(".zip")):
            if path.is_file():
                return _content(path, source, check=True)
            if path.exists() and not path.is_dir():
                raise ValueError(f"{path} must be a regular file. Received: a pipe or a device.")
    # pooch has already hashed its download, except for an archive, where the file inside counts.
    return _content(_download(source), source, check=source.url.endswith(".zip"))


def local_files(name: str) -> Iterator[Path]:
    """Yields the files of this name in the folders of data sets, in the order of the search."""
    for folder in _folders():
        if (path := folder / name).is_file():
            yield path


def _folders() -> Iterator[Path]:
    if named := os.environ.get(VARIABLE):
        yield Path(named).expanduser()
    if _shared_folder().is_dir():
        yield _shared_folder()
    yield _cache_folder()  # comes last because it needs pooch


def _shared_folder() -> Path:
    return Path(__file__).resolve().parents[2] / "shared" / "datasets"


def _cache_folder() -> Path:
    return Path(require("pooch").os_cache("tfp_sgmcmc"))


def _content(path: Path, source: Source, check: bool) -> bytes:
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path} must have at most {_MOST_BYTES} bytes. {_AGAIN}")
    content = path.read_bytes()
    if path.suffix == ".zip":
        content = _unpacked(path, lambda: _member(content, Path(source.name).name))
    elif path.name != Path(source.name).name:
        content = _unpacked(path, lambda: _unpack(content, path.suffix))
    suffix = Path(source.name).suffix
    actual = hashlib.sha256(content).hexdigest() if check and source.sha256 is not None else None
    if suffix in _OPEN and actual not in (None, source.sha256):
        # Not used, but "truncated" says more about a file that ends early than its hash.
        _unpacked(path, lambda: _unpack(content, suffix))
    if actual not in (None, source.sha256):
        raise ValueError(_wrong_hash(path, str(source.sha256), str(actual)))
    return _unpacked(path, lambda: _unpack(content, suffix)) if suffix in _OPEN else content


_MOST_BYTES = 2**28  # of a file, packed and unpacked; the largest one here has 75 MB
_MOST_MEMORY = 2**28  # of a dictionary
_AGAIN = "Delete it and run again, or put a complete copy in its place."
_OPEN: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": lambda packed: gzip.GzipFile(fileobj=packed),
    ".xz": lzma.LZMAFile,
    ".bz2": bz2.BZ2File,
}


def _unpack(packed: bytes, suffix: str) -> bytes:
    """Returns the content of a packed file; raises ValueError if it is larger than any data set."""
    if suffix == ".xz" and packed:
        # Raises if the file asks for a larger dictionary than its content needs.
        lzma.LZMADecompressor(memlimit=_MOST_MEMORY).decompress(packed, max_length=1)
    with _OPEN[suffix](io.BytesIO(packed)) as file:
        return _bounded(file)


def _bounded(file: Any) -> bytes:
    pieces, left = [], _MOST_BYTES
    while piece := file.read(2**22):
        pieces.append(piece)
        if (left := left - len(piece)) < 0:
            raise ValueError(f"it unpacks to more than {_MOST_BYTES} bytes")
    return b"".join(pieces)


def _unpacked(path: Path, unpack: Callable[[], bytes]) -> bytes:
    try:
        return unpack()
    except Exception as error:  # each decompressor has other exceptions for damage
        reason = str(error) or type(error).__name__
        raise ValueError(f"{path} is truncated or corrupt ({reason}). {_AGAIN}") from None


def _member(archive: bytes, name: str) -> bytes:
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        for member in files.namelist():
            # UCI's archives hold some files in the format of Unix `compress`, with the suffix .Z.
            if Path(member).name in (name, name + ".Z"):
                with files.open(member) as file:
                    content = _bounded(file)
                return unlzw(content, _MOST_BYTES) if member.endswith(".Z") else content
        raise ValueError(f"the archive holds {', '.join(files.namelist())} but not {name}")


def _wrong_hash(path: Path, expected: str, actual: str) -> str:
    return (
        f"{path} must have the sha256 {expected}. Received: {actual}. "
        "The file is damaged or another version. Delete it and run again."
    )


def _download(source: Source) -> Path:
    pooch = require("pooch")
    requests, urllib3 = require("requests"), require("urllib3")
    target = _cache_folder() / source.saved_name
    part = target.with_name(target.name + ".part")
    whole = source.sha256 if source.saved_name == source.name else None
    try:
        pooch.retrieve(
            source.url,
            known_hash=f"sha256:{whole}" if whole else None,
            fname=target.name,
            path=target.parent,
            downloader=resumable(part),
        )
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise FileNotFoundError(_missing(source, error)) from None
    except ValueError:
        # pooch deletes a file with the wrong hash. The copy is kept for inspection under another
        # name, so that the next run starts from the beginning.
        rejected = part.replace(target.with_name(target.name + ".rejected"))
        actual = hashlib.sha256(rejected.read_bytes()).hexdigest()
        wrong = _wrong_hash(rejected, str(whole), actual)
        raise ValueError(f"{wrong} It was downloaded from {source.url}.") from None
    part.unlink(missing_ok=True)
    return target


def _missing(source: Source, cause: Exception) -> str:
    folders = list(_folders())
    return (
        f"{source.name} was not found and could not be downloaded "
        f"({type(cause).__name__}: {cause}).\n"
        f"Searched: {', '.join(map(str, folders))}.\n"
        f"Download {source.url} by hand and save it as {folders[-1] / source.saved_name}, or as "
        f"{source.saved_name} in a folder that the environment variable {VARIABLE} names. "
        "An interrupted download continues where it stopped when run again."
    )
