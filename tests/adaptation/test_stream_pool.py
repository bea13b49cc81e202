"""`sample` takes data on disk, with nothing chosen, and resumes without reading them again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc

N, D, MOST = 4_000, 2, 400
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, D]).astype(np.float32)
Y = (X @ [1.0, -1.0] + RNG.normal(size=N)).astype(np.float32)
ORDER = np.argsort(Y)
OPTIONS: dict[str, Any] = dict(seed=1, progress_bar=False, jit_compile=False, min_ess=100)


def stream(rows: Any, num_examples: int = N) -> sgmcmc.StreamedLogProb:
    return sgmcmc.StreamedLogProb(
        lambda w: -0.5 * tf.reduce_sum(w**2, axis=-1),
        lambda w, b: -0.5 * (b["y"] - tf.linalg.matvec(b["x"], w)) ** 2,
        rows,
        num_examples,
        batch_size=100,
        memory=MOST * 4 * (D + 1),
    )


def test_sample_takes_files_that_are_sorted_and_resumes_from_its_pool(tmp_path: Path) -> None:
    """The posterior is normal. Means and widths have errors of six standard errors at most."""
    pytest.importorskip("zarr")
    reads = []

    def read() -> Any:
        reads.append(1)
        for block in np.split(ORDER, 20):
            yield {"x": X[block], "y": Y[block]}

    spec = {"x": tf.TensorSpec([None, D], tf.float32), "y": tf.TensorSpec([None], tf.float32)}
    rows = tf.data.Dataset.from_generator(read, output_signature=spec)
    target, start = stream(rows), tf.zeros([D])
    options = OPTIONS | dict(directory=tmp_path)
    before = len(reads)
    result = sgmcmc.sample(target, start, 200, **options)
    assert len(reads) - before == 3  # passes
    assert "pool of" in result.explanation[0] and not result.flags
    precision = X.T.astype(np.float64) @ X + np.eye(D)
    mean, covariance = np.linalg.solve(precision, X.T @ Y), np.linalg.inv(precision)
    z = (np.asarray(result.states).reshape(-1, D) - mean) / np.sqrt(np.diag(covariance))
    assert np.abs(z.mean(axis=0)).max() < 6 / 200**0.5
    assert np.abs(z.std(axis=0) - 1).max() < 6 / (2 * 200) ** 0.5
    before = len(reads)
    more = sgmcmc.sample(target, start, 220, **options)
    assert len(reads) == before
    np.testing.assert_array_equal(np.asarray(more.states)[:200], result.states)
    with pytest.raises(ValueError, match="of 3000 examples .* Received: .* 4000 examples"):
        sgmcmc.sample(stream(rows, 3_000), start, 240, **options)
