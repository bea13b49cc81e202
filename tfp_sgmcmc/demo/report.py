"""The tables of the demonstration, printed and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Column(NamedTuple):
    """A column of a printed table: its title, the key of its values, and their format."""

    title: str
    key: str
    format: str


POSTERIOR = (
    Column("sampler", "sampler", "s"),
    Column("E1", "E1", ".3f"),
    Column("E2", "E2", ".3f"),
    Column("seconds", "seconds", ".1f"),
    Column("compile s", "compile_seconds", ".1f"),
    Column("ESS", "effective_sample_size", ".0f"),
    Column("s / ESS", "seconds_per_effective_sample", ".2g"),
    Column("passes", "passes", ".0f"),
)
CLASSIFIER = (
    Column("classifier", "classifier", "s"),
    Column("accuracy", "accuracy", ".4f"),
    Column("NLL", "negative_log_likelihood", ".4f"),
    Column("ECE", "expected_calibration_error", ".4f"),
)


def table(columns: Sequence[Column], rows: Sequence[dict[str, Any]]) -> str:
    """Formats `rows`; a dash stands for a value that a row lacks.

    >>> columns = (Column("sampler", "name", "s"), Column("E1", "error", ".2f"))
    >>> print(table(columns, [{"name": "SGLD", "error": 0.034}, {"name": "HMC"}]))
    sampler    E1
    SGLD     0.03
    HMC         -
    """
    cells = [[c.title for c in columns]]
    for row in rows:
        cells.append([format(row[c.key], c.format) if c.key in row else "-" for c in columns])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for line in cells:
        first, *others = zip(line, widths, strict=True)
        lines.append("  ".join([f"{first[0]:<{first[1]}}", *(f"{c:>{w}}" for c, w in others)]))
    return "\n".join(lines)


def quality(reference: dict[str, float]) -> str:
    """Describes in words how reliable E1 and E2 are.

    >>> quality({"r_hat": 1.2, "E1_between_halves": 0.1, "E2_between_halves": 0.4})
    'The reference has not converged (R-hat 1.200): E1 and E2 say little.'
    """
    if not reference["r_hat"] < 1.05:
        return (
            f"The reference has not converged (R-hat {reference['r_hat']:.3f}): "
            "E1 and E2 say little."
        )
    return (
        f"The reference: R-hat is at most {reference['r_hat']:.3f}. One half of its chains against "
        f"the other has E1 {reference['E1_between_halves']:.3f} and "
        f"E2 {reference['E2_between_halves']:.3f}; its own errors are about half of that."
    )


def save(path: Path, results: dict[str, Any]) -> None:
    """Writes `results` as JSON."""
    path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
