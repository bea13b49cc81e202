"""The file that identifies the rows of a stream in a run's directory, so that others are refused.

A run whose files are as they were, and begin with the same rows, resumes without a pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from tfp_sgmcmc.storage import npz
from tfp_sgmcmc.targets.data import RowSums, form_of
from tfp_sgmcmc.targets.streamed import StreamedLogProb
from tfp_sgmcmc.targets.streaming.passes import Show

FILE = "data.npz"
_VERSION = 2  # of the format


def save(path: Path, target: StreamedLogProb) -> None:
    """Writes the record of a stream after a pass over its rows."""
    num_first, first_rows = target._first_sums
    sums = target._row_sums
    arrays = {f"weights{i}": x for i, x in enumerate(sums.weights)}
    arrays |= {f"centers{i}": x for i, x in enumerate(sums.centers)}
    arrays["first_rows"] = first_rows
    if 0 in target._sums:
        arrays["all_rows"] = target._sums[0]
    header = {
        "version": _VERSION,
        "rows": _rows_of(target),
        "offset": sums.offset,
        "num_first": num_first,
        "files": _files_of(target),
        "arrays": [*arrays],
    }
    npz.write(path, header, arrays)


def difference(path: Path, target: StreamedLogProb, show: Show) -> str:
    """Returns in what the rows of a stream differ from those of a record, or ''.

    All rows are read, unless this process has read them, or the record says of which files they
    are, these were not written since, and they begin with the same rows.

    Raises:
      ValueError: the record is damaged.
      StreamReadError: the rows cannot be read.
    """
    advice = " Remove it to go on without comparing the data with those of the run."
    with npz.reading(path, "sample", advice) as (header, array):
        if header["version"] != _VERSION:
            raise ValueError(f"it has version {header['version']}, not {_VERSION}")
        arrays = {name: array(name, "float64") for name in header["arrays"]}
        weights, centers = (
            [x for name, x in arrays.items() if name.startswith(of)]
            for of in ("weights", "centers")
        )
        sums, expected = RowSums(weights, centers, header["offset"]), arrays.get("all_rows")
        rows, files, num_first = header["rows"], header["files"], header["num_first"]
    if rows != _rows_of(target):
        return f"It was begun with {rows}, and the data have {_rows_of(target)}."
    changed = _changed(files, _files_of(target))
    if not (sums.equals(target._row_sums) and 0 in target._sums):
        first = next(target.blocks(target._given_rows))
        count = len(tf.nest.flatten(first)[0])
        target._row_sums, target._sums = sums, {}
        target._first_sums = count, sums(first)
        is_same = count == num_first and not sums.differ(arrays["first_rows"], sums(first), count)
        if files and _files_of(target) and not changed and is_same:
            return ""
        seen = 0
        try:
            for block in target.blocks(target.block_rows):
                seen += len(tf.nest.flatten(block)[0])
                show("comparing", seen)
        except ValueError as error:
            return f"{changed} {error}".strip()
    found = target._sums.get(0)
    if expected is None or found is None:  # a shuffled dataset drops other rows in each pass
        return ""
    is_other = sums.differ(expected, found, target.num_examples)
    return f"{changed} The rows are others, whatever their order.".strip() if is_other else ""


def _rows_of(target: StreamedLogProb) -> str:
    return f"{target.num_examples} examples of {form_of(target.row_spec)[0]}"


def _files_of(target: StreamedLogProb) -> list[list[Any]]:
    """Returns name, size and time of each file, as JSON values."""
    return [[file.name, *(stat or ())] for file, stat in target._faults.stats.items()]


def _changed(before: list[list[Any]], now: list[list[Any]]) -> str:
    """Returns a sentence that names files that were written since, or '' if none were."""
    if [name for name, *_ in before] != [name for name, *_ in now]:
        return "It was begun with other files." if before and now else ""
    found = [
        f"{name} has {size} bytes, and had {old[1]}"
        if size != old[1]
        else f"{name} was written again"
        for (name, size, *time), old in zip(now, before, strict=True)
        if [size, *time] != old[1:]
    ]
    return f"Since it began, {'; '.join(found)}." if found else ""
