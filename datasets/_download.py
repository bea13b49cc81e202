"""Download of a file that goes on where an earlier attempt stopped."""

import shutil
from collections.abc import Callable
from pathlib import Path

from datasets._optional import require


def resumable(part: Path) -> Callable[[str, str, object], None]:
    """Make a downloader for pooch that keeps what has arrived in `part`.

    pooch downloads to a temporary file that it deletes when the connection breaks. Here the
    bytes go to `part`, which stays; the next attempt asks the server for the rest only. A server
    that cannot send the rest sends the whole file, and `part` is written anew.

    Args:
        part: the file for what has arrived so far. The caller removes it after a success.

    Returns:
        A function of (url, output file, pooch) as pooch's `downloader` argument wants it. It
        raises an exception of requests or urllib3 when the file cannot be had in full.
    """

    def download(url: str, output_file: str, pooch: object) -> None:
        part.parent.mkdir(parents=True, exist_ok=True)
        while not _fetch_rest(url, part):
            part.unlink()
        shutil.copyfile(part, output_file)

    return download


def _fetch_rest(url: str, part: Path) -> bool:
    """Complete `part`; False if the server has no such rest and `part` must go."""
    requests = require("requests")
    have = part.stat().st_size if part.is_file() else 0
    # A byte range counts compressed bytes if the server may compress, so it must not.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with requests.get(url, headers=headers, stream=True, timeout=30) as response:
        content_range = response.headers.get("Content-Range", "")
        if have and response.status_code == 416:
            return content_range == f"bytes */{have}"
        response.raise_for_status()
        if have and response.status_code == 206 and not content_range.startswith(f"bytes {have}-"):
            return False
        goes_on = have and response.status_code == 206
        arrived = 0
        with part.open("ab" if goes_on else "wb") as file:
            # Not iter_content: some servers label a .gz file as gzip encoding, and it would then
            # be decompressed on the way.
            for chunk in response.raw.stream(1 << 16, decode_content=False):
                arrived += file.write(chunk)
        expected = int(response.headers.get("Content-Length", arrived))
        if arrived != expected:
            raise requests.ConnectionError(f"{url} sent {arrived} of {expected} bytes")
    return True
