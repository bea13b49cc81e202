"""Downloads from a local server: the cache, continued downloads, and wrong content."""

import gzip
import hashlib
import io
import random
import zipfile

import pytest

from datasets._fetch import Source, read

CONTENT = random.Random(0).randbytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def content(server):
    server.content = CONTENT


def files_in(folder):
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def test_download_goes_to_the_cache_and_is_asked_for_once(folders, server):
    source = Source("some/file.data", server.url(), SHA256)
    assert read(source) == CONTENT
    assert files_in(folders.cached) == ["some/file.data"]
    assert (folders.cached / "some/file.data").read_bytes() == CONTENT
    assert read(source) == CONTENT
    assert server.asked == [None]


def test_interrupted_download_goes_on_where_it_stopped(folders, server):
    source = Source("file.data", server.url(), SHA256)
    server.cut_at = 100_000
    with pytest.raises(FileNotFoundError, match="continues where it stopped"):
        read(source)
    assert files_in(folders.cached) == ["file.data.part"]
    assert (folders.cached / "file.data.part").read_bytes() == CONTENT[:100_000]
    server.cut_at = None
    assert read(source) == CONTENT
    assert server.asked == [None, "bytes=100000-"]
    assert files_in(folders.cached) == ["file.data"]


def test_server_without_ranges_sends_the_whole_file_again(folders, server):
    server.ranges = False
    (folders.cached / "file.data.part").write_bytes(CONTENT[:1000])
    assert read(Source("file.data", server.url(), SHA256)) == CONTENT
    assert server.asked == ["bytes=1000-"]
    assert files_in(folders.cached) == ["file.data"]


def test_complete_part_is_used(folders, server):
    (folders.cached / "file.data.part").write_bytes(CONTENT)
    assert read(Source("file.data", server.url(), SHA256)) == CONTENT
    assert server.asked == [f"bytes={len(CONTENT)}-"]


def test_part_that_is_longer_than_the_file_is_fetched_anew(folders, server):
    (folders.cached / "file.data.part").write_bytes(CONTENT + b"more")
    assert read(Source("file.data", server.url(), SHA256)) == CONTENT
    assert server.asked == [f"bytes={len(CONTENT) + 4}-", None]


def test_wrong_part_is_refused_and_the_next_run_starts_afresh(folders, server):
    source = Source("file.data", server.url(), SHA256)
    (folders.cached / "file.data.part").write_bytes(b"x" * 1000)
    with pytest.raises(ValueError, match=SHA256):
        read(source)
    assert read(source) == CONTENT
    assert server.asked == ["bytes=1000-", None]


def test_refused_download_is_kept_for_a_look(folders, server):
    server.content = b"<html>moved</html>"
    with pytest.raises(ValueError, match="Delete it and run again") as raised:
        read(Source("file.data", server.url(), SHA256))
    kept = folders.cached / "file.data.rejected"
    assert kept.read_bytes() == server.content
    message = str(raised.value)
    assert str(kept) in message and server.url() in message
    assert SHA256 in message and hashlib.sha256(server.content).hexdigest() in message
    assert files_in(folders.cached) == ["file.data.rejected"]


def test_gz_that_the_server_calls_an_encoding_stays_packed(folders, server):
    server.content = gzip.compress(CONTENT)
    server.extra_headers = {"Content-Encoding": "x-gzip"}
    source = Source("file.gz", server.url(), hashlib.sha256(server.content).hexdigest())
    assert read(source) == CONTENT
    assert (folders.cached / "file.gz").read_bytes() == server.content


def test_file_without_known_hash_is_not_judged(folders, server):
    assert read(Source("file.data", server.url(), None)) == CONTENT


def test_archive_is_judged_by_the_file_in_it(folders, server):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("file.data", CONTENT)
    server.content = archive.getvalue()
    source = Source("file.data", server.url("a+b.zip"), SHA256)
    assert read(source) == CONTENT
    assert files_in(folders.cached) == ["file.data.zip"]
    assert read(source) == CONTENT
    assert len(server.asked) == 1
    with pytest.raises(ValueError, match=r"file\.data\.zip must have the sha256"):
        read(source._replace(sha256="0" * 64))
