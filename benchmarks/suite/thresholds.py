"""The relative changes that count as regressions, as `asv publish` reads them."""

from __future__ import annotations

import json
import re
from pathlib import Path

CONFIGURATION = Path(__file__).resolve().parents[2] / "asv.conf.json"


def threshold(benchmark: str) -> float:
    """Returns the largest threshold of all patterns that match a benchmark, as asv does.

    >>> threshold("accuracy.Accuracy.track_covariance_error")
    0.5
    """
    patterns = json.loads(CONFIGURATION.read_text())["regressions_thresholds"]
    found = [value for pattern, value in patterns.items() if re.match(pattern, benchmark)]
    if not found:
        raise ValueError(f"{benchmark} has no threshold in {CONFIGURATION.name}.")
    return max(found)
