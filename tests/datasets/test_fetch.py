"""The search for a file, its check, and the errors for a file that is not found."""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import sys
import zipfile

import pytest

from datasets import _fetch
from datasets._fetch import Source, read
from datasets._optional import require

CONTENT = b"1,2,3\n" * 500
NOWHERE = "http://127.0.0.1:9/file.data"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def source(url=NOWHERE, name="some/file.data", content=CONTENT) -> Source:
    return Source(name, url, sha256(content))


def zipped(name: str, content: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as files:
        files.writestr(name, content)
    return archive.getvalue()


def put(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("added", "pack"), [("", bytes), (".xz", lzma.compress), (".gz", gzip.compress)]
)
@pytest.mark.parametrize("place", ["named", "shared", "cached"])
def test_local_copy_is_read_in_every_folder_and_form(folders, place, added, pack):
    put(getattr(folders, place), "some/file.data" + added, pack(CONTENT))
    assert read(source()) == CONTENT


def test_zip_archive_in_a_folder(folders):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("readme.txt", b"hello")
        files.writestr("folder/file.data", CONTENT)
    put(folders.named, "some/file.data.zip", archive.getvalue())
    assert read(source()) == CONTENT


def test_folders_are_searched_in_order(folders):
    # A copy with another hash is an error, so only the first folder with a copy is read.
    copies = [b"named", b"shared", b"cached"]
    for folder, copy in zip(folders, copies, strict=True):
        put(folder, "some/file.data", copy)
    for folder, copy in zip(folders, copies, strict=True):
        assert read(source(content=copy)) == copy
        (folder / "some/file.data").unlink()


def test_without_the_variable_the_shared_folder_comes_first(folders, monkeypatch):
    put(folders.named, "some/file.data", b"named")
    put(folders.shared, "some/file.data", b"shared")
    monkeypatch.delenv(_fetch.VARIABLE)
    assert read(source(content=b"shared")) == b"shared"


def test_real_folders_are_beside_the_repository_and_in_the_users_cache():
    assert _fetch._shared_folder().parts[-2:] == ("shared", "datasets")
    repository = _fetch._shared_folder().parents[1]
    assert any((child / "datasets" / "_fetch.py").is_file() for child in repository.iterdir())
    assert _fetch._cache_folder().name.lower() == "tfp_sgmcmc"


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress)], ids=["gz", "bz2"]
)
def test_upstreams_own_compression_is_hashed_packed_and_returned_unpacked(folders, suffix, pack):
    packed = pack(CONTENT)
    put(folders.named, "file" + suffix, packed)
    assert read(source(name="file" + suffix, content=packed)) == CONTENT
    # The hash is of the file without the additional .xz.
    put(folders.shared, "other" + suffix + ".xz", lzma.compress(packed))
    assert read(source(name="other" + suffix, content=packed)) == CONTENT


def test_a_file_is_hashed_once(folders, server, monkeypatch):
    hashed = []
    real = hashlib.sha256

    def counted(data=b"", **options):
        hashed.append(len(data))
        return real(data, **options)

    expected = source(server.url())
    server.content = CONTENT
    put(folders.named, "some/file.data", CONTENT)
    monkeypatch.setattr(_fetch.hashlib, "sha256", counted)
    read(expected)
    assert hashed == [len(CONTENT)]
    (folders.named / "some/file.data").unlink()
    read(expected)  # pooch hashes a download through hashlib.new or in pieces
    assert hashed.count(len(CONTENT)) == 1


@pytest.mark.parametrize("place", ["named", "cached"])
def test_wrong_hash_names_file_and_both_hashes(folders, place):
    path = put(getattr(folders, place), "some/file.data", b"other content")
    with pytest.raises(ValueError, match="Delete it and run again") as raised:
        read(source())
    message = str(raised.value)
    assert str(path) in message
    assert sha256(CONTENT) in message
    assert sha256(b"other content") in message
    assert path.read_bytes() == b"other content"


@pytest.mark.parametrize(
    ("name", "stored", "pack"),
    [
        ("file.data", "file.data.xz", lzma.compress),
        ("file.data", "file.data.gz", gzip.compress),
        ("file.gz", "file.gz", gzip.compress),
        ("file.bz2", "file.bz2", bz2.compress),
    ],
)
@pytest.mark.parametrize("keep", [0.5, 0.95])
def test_truncated_copy_says_so(folders, name, stored, pack, keep):
    packed = pack(bytes(range(256)) * 100)
    path = put(folders.named, stored, packed[: int(keep * len(packed))])
    whole = packed if name == stored else bytes(range(256)) * 100
    with pytest.raises(ValueError, match="truncated or corrupt") as raised:
        read(source(name=name, content=whole))
    assert str(path) in str(raised.value)
    assert "Delete it and run again" in str(raised.value)
    assert raised.value.__suppress_context__


BOMB = bytes(2**21)


@pytest.mark.parametrize(
    ("name", "stored", "packed"),
    [
        ("file.data", "file.data.xz", lzma.compress(BOMB)),
        ("file.data", "file.data.gz", gzip.compress(BOMB)),
        ("file.bz2", "file.bz2", bz2.compress(BOMB)),
        ("file.data", "file.data.zip", zipped("file.data", BOMB)),
        ("file.data", "file.data", BOMB),
    ],
    ids=["xz", "gz", "bz2", "zip", "plain"],
)
@pytest.mark.parametrize("is_known", [True, False])
def test_a_file_that_unpacks_to_too_much(folders, monkeypatch, name, stored, packed, is_known):
    monkeypatch.setattr(_fetch, "_MOST_BYTES", 2**20)
    put(folders.named, stored, packed)
    expected = source(name=name) if is_known else Source(name, NOWHERE, None)
    with pytest.raises(ValueError, match="than 1048576 bytes|at most 1048576 bytes"):
        read(expected)


def test_the_hash_is_checked_before_upstreams_file_is_unpacked(folders, monkeypatch):
    """A file of the right hash is unpacked once, and another one is never returned."""
    unpacked = []
    real = _fetch._unpack
    monkeypatch.setattr(_fetch, "_unpack", lambda *args: unpacked.append(args) or real(*args))
    packed = gzip.compress(CONTENT)
    put(folders.named, "file.gz", packed)
    assert read(source(name="file.gz", content=packed)) == CONTENT
    assert len(unpacked) == 1
    with pytest.raises(ValueError, match="must have the sha256"):
        read(source(name="file.gz", content=b"another"))


def encrypted() -> bytes:
    content = bytearray(zipped("file.data", CONTENT))
    content[6] |= 1  # of the entry
    content[content.index(b"PK\x01\x02") + 8] |= 1  # of the table
    return bytes(content)


def of_another_method() -> bytes:
    content = bytearray(zipped("file.data", CONTENT))
    content[8] = content[content.index(b"PK\x01\x02") + 10] = 97
    return bytes(content)


@pytest.mark.parametrize("make", [encrypted, of_another_method], ids=["encrypted", "method"])
def test_archives_that_python_cannot_read(folders, make):
    put(folders.named, "some/file.data.zip", make())
    with pytest.raises(ValueError, match="file.data.zip is truncated or corrupt"):
        read(source())


def test_a_pipe_is_not_waited_for(folders):
    (folders.named / "some").mkdir(parents=True)
    os.mkfifo(folders.named / "some" / "file.data")
    with pytest.raises(ValueError, match="must be a regular file. Received: a pipe or a device"):
        read(source())


def test_archive_without_the_file_lists_what_it_holds(folders):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("readme.txt", b"hello")
    path = put(folders.named, "some/file.data.zip", archive.getvalue())
    with pytest.raises(ValueError, match=r"holds readme.txt but not file.data") as raised:
        read(source())
    assert str(path) in str(raised.value)


def test_missing_file_without_network_says_what_to_do(folders):
    with pytest.raises(FileNotFoundError) as raised:
        read(source())
    message = str(raised.value)
    assert message.startswith("some/file.data was not found and could not be downloaded")
    assert f"Searched: {folders.named}, {folders.shared}, {folders.cached}." in message
    assert f"Download {NOWHERE} by hand" in message
    assert str(folders.cached / "some/file.data") in message
    assert _fetch.VARIABLE in message
    assert "ConnectionError" in message
    assert raised.value.__suppress_context__


def test_a_refusal_of_the_server_is_told(folders, server):
    server.status = 404
    with pytest.raises(FileNotFoundError, match="404"):
        read(source(server.url()))
    assert [path for path in folders.cached.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("package", ["pooch", "sklearn"])
def test_missing_package_says_how_to_install_it(folders, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError) as raised:
        require(package)
    assert package in str(raised.value)
    assert 'python -m pip install "tfp_sgmcmc[test]"' in str(raised.value)
    assert raised.value.name == package


def test_pooch_is_not_needed_for_a_local_copy(folders, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    put(folders.named, "some/file.data", CONTENT)
    assert read(source()) == CONTENT
    monkeypatch.undo()
