"""Downloads that continue where an earlier attempt stopped."""

import shutil
from collections.abc import Callable
from pathlib import Path

from datasets._optional import require


def resumable(part: Path) -> Callable[[str, str, object], None]:
    """Returns a downloader for pooch that keeps what has arrived in `part`.

    pooch downloads to a temporary file, which it deletes when the connection breaks. This
    downloader writes to `part`, which stays. The next attempt asks the server for the rest only.
    If the server cannot send a part of the file, it sends the whole file and `part` is overwritten.

    Args:
      part: the file for what has arrived so far. The caller removes it after a success.

    Returns:
      A function of (url, output file, pooch), as for the `downloader` argument of pooch. It raises
      an exception of requests or urllib3 if the whole file cannot be downloaded.
    """

    def download(url: str, output_file: str, pooch: object) -> None:
        part.parent.mkdir(parents=True, exist_ok=True)
        while not _fetch_rest(url, part):
            part.unlink()
        shutil.copyfile(part, output_file)

    return download


def _fetch_rest(url: str, part: Path) -> bool:
    """Completes `part`; returns False if `part` does not fit the server's file."""
    requests = require("requests")
    have = part.stat().st_size if part.is_file() else 0
    # Byte ranges count compressed bytes when the server compresses, so compression is turned off.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with requests.get(url, headers=headers, stream=True, timeout=30) as response:
        content_range = response.headers.get("Content-Range", "")
        if have and response.status_code == 416:
            return content_range == f"bytes */{have}"
        response.raise_for_status()
        if have and response.status_code == 206 and not content_range.startswith(f"bytes {have}-"):
            return False
        continues = have and response.status_code == 206
        arrived = 0
        with part.open("ab" if continues else "wb") as file:
            # Some servers label a .gz file as gzip encoding, which iter_content would decompress.
            for chunk in response.raw.stream(1 << 16, decode_content=False):
                arrived += file.write(chunk)
        expected = int(response.headers.get("Content-Length", arrived))
        if arrived != expected:
            raise requests.ConnectionError(f"{url} sent {arrived} of {expected} bytes.")
    return True
