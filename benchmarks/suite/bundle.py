"""Makes asv's page read nothing from other sites: `python -m benchmarks.suite.bundle`.

`asv publish` writes a page whose scripts and styles come from other sites, each with a hash. This
fetches them, checks the hashes, and rewrites the page to read the copies in its folder `vendor`.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path

from benchmarks.common import command_line
from benchmarks.suite.thresholds import CONFIGURATION

PAGE = CONFIGURATION.parent / ".asv" / "html"
_TAG = re.compile(r'<(?:script|link)\b[^>]*?\b(?:src|href)="(https?://[^"]+)"[^>]*>')


def bundle(*, page: Path = PAGE, cache: str = "") -> list[str]:
    """Rewrites `index.html`; returns the addresses that it read before.

    Args:
      page: the folder of the page.
      cache: a folder that already has the files by their names, or receives them; empty is the
        page's own.

    Raises:
      ValueError: a tag has no hash, or a file does not match it.
      FileNotFoundError: there is no page.
    """
    import pooch

    index = page / "index.html"
    text, found = index.read_text(encoding="utf-8"), []
    vendor = page / "vendor"
    for tag, address in {match.group(0): match.group(1) for match in _TAG.finditer(text)}.items():
        name = address.rpartition("/")[2]
        file = pooch.retrieve(
            address, _hash(tag, address), fname=name, path=cache or vendor, progressbar=False
        )
        vendor.mkdir(exist_ok=True)
        (vendor / name).write_bytes(Path(file).read_bytes())
        rest = re.sub(r' (?:integrity|crossorigin|referrerpolicy)="[^"]*"', "", tag)
        text = text.replace(tag, rest.replace(address, f"vendor/{name}"))
        found.append(address)
    index.write_text(text, encoding="utf-8")
    return found


def _hash(tag: str, address: str) -> str:
    """Returns the hash of a tag as pooch writes it."""
    match = re.search(r'integrity="(sha256|sha512)-([^"]+)"', tag)
    if match is None:
        raise ValueError(f'{address} must have a hash, integrity="sha...". Received: {tag}.')
    return f"{match.group(1)}:{base64.b64decode(match.group(2)).hex()}"


def show(found: list[str]) -> None:
    print(f"{len(found)} files are read from the page's own folder now.")


if __name__ == "__main__":
    command_line.main(__doc__, bundle, show)
