"""The file that holds a pool of rows, so that a run resumes without a pass over the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from tfp_sgmcmc.internal.nest import convert_state
from tfp_sgmcmc.storage import npz
from tfp_sgmcmc.targets.data import form_of
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb
from tfp_sgmcmc.targets.streamed import StreamedLogProb
from tfp_sgmcmc.targets.streaming.pool_report import Pass, PoolReport
from tfp_sgmcmc.targets.streaming.pooled import Correction, PooledLogProb

FILE = "pool.npz"
_VERSION = 1  # of the format


def save(path: Path, pool: MinibatchLogProb, report: PoolReport) -> None:
    """Writes the pool; nothing if it is all of the data, which are read again."""
    if not isinstance(pool, PooledLogProb):
        return
    rows, weights = pool.rows_and_weights()
    assert pool.correction is not None
    leaves = [x.numpy() for x in tf.nest.flatten(rows)]
    parts = {f"rows{i}": x for i, x in enumerate(leaves)}
    parts |= {name: x.numpy() for name, x in pool.correction._asdict().items()}
    parts["weights"] = weights.numpy()
    header = {
        "version": _VERSION,
        "form": form_of(rows)[0],
        "num_examples": report.num_examples,
        "passes": [list(p) for p in report.passes],
        "errors": [report.mean_error, report.width_error, report.offset],
        "dtypes": {name: x.dtype.name for name, x in parts.items()},
    }
    npz.write(path, header, parts)


def load(
    path: Path, target: StreamedLogProb, initial_state: Any
) -> tuple[PooledLogProb, PoolReport]:
    """Returns a pool and its report.

    Raises:
      ValueError: the file is of another version, or of other data.
    """
    like = target.row_spec
    with npz.reading(path, writer="sample") as (header, array):
        form = form_of(target.row_spec)[0]
        found = header.get("version"), header.get("form"), header.get("num_examples")
        expected = _VERSION, form, target.num_examples
        if found != expected:
            raise ValueError(
                f"{path} must hold a pool of version {_VERSION}, of {expected[2]} examples with "
                f"{form}. Received: version {found[0]}, {found[2]} examples with {found[1]}. Use "
                "a new directory."
            )
        dtypes = header["dtypes"]
        count = len(tf.nest.flatten(like))
        rows = tf.nest.pack_sequence_as(
            like, [array(f"rows{i}", dtypes[f"rows{i}"]) for i in range(count)]
        )
        weights = array("weights", dtypes["weights"])
        correction = Correction(
            **{name: tf.constant(array(name, dtypes[name])) for name in Correction._fields}
        )
        passes = tuple(Pass(*p) for p in header["passes"])
        report = PoolReport(header["num_examples"], len(weights), passes, *header["errors"])
    state = convert_state(initial_state, initial=True, called="initial_state")
    dim = sum(x.shape.num_elements() for x in tf.nest.flatten(state))
    if dim != correction.center.shape[0]:
        raise ValueError(
            f"initial_state must have {correction.center.shape[0]} entries, as in the run of "
            f"{path}. Received: {dim}."
        )
    return PooledLogProb(target.of_one_batch, rows, weights).corrected(correction), report
