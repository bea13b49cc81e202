"""Refuses to measure a copy of the package in place of the working tree."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def refuse_copy(environment: str, root: Path = ROOT) -> None:
    """Raises RuntimeError if asv measures this Python and `tfp_sgmcmc` is not that of `root`.

    `environment` is asv's kind of environment, "existing" for `--python=same`. The package is found
    without importing it.
    """
    if environment != "existing":
        return
    found = importlib.util.find_spec("tfp_sgmcmc")
    origin = Path(found.origin).resolve() if found and found.origin else None
    if origin is None or root.resolve() not in origin.parents:
        raise RuntimeError(
            f"tfp_sgmcmc must be that of the working tree {root} for asv --python=same. Received: "
            f"{origin}. Install it with: python -m pip install --editable {root}"
        )
