"""`sample` takes data on disk, with nothing chosen, and resumes without reading them again."""

import functools
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.adaptation import settings_file, target_arguments
from tfp_sgmcmc.adaptation.hierarchies import prior_scale
from tfp_sgmcmc.adaptation.kernel_selector import KernelSelector
from tfp_sgmcmc.adaptation.settings import SampleCall
from tfp_sgmcmc.targets.data import RowSums
from tfp_sgmcmc.targets.laplace.laplace import vector_bijector
from tfp_sgmcmc.targets.streaming.pooled import Pass, PooledLogProb, PoolReport

N, D, MOST = 4_000, 2, 400
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, D]).astype(np.float32)
Y = (X @ [1.0, -1.0] + RNG.normal(size=N)).astype(np.float32)
ORDER = np.argsort(Y)
OPTIONS: dict[str, Any] = dict(seed=1, progress_bar=False, jit_compile=False, min_ess=100)
quiet = functools.partial(SampleCall, jit_compile=False, progress_bar=False)


def stream(
    rows: Any, num_examples: int = N, files: Any = (), memory: int = MOST * 4 * (D + 1)
) -> sgmcmc.StreamedLogProb:
    return sgmcmc.StreamedLogProb(
        lambda w: -0.5 * tf.reduce_sum(w**2, axis=-1),
        lambda w, b: -0.5 * (b["y"] - tf.linalg.matvec(b["x"], w)) ** 2,
        rows,
        num_examples,
        batch_size=100,
        memory=memory,
        files=files,
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
    with pytest.raises(ValueError, match="begun with 4000 examples of .* data have 3000 ex"):
        sgmcmc.sample(stream(rows, 3_000), start, 240, **options)
    (tmp_path / "data.npz").unlink()
    words = r"pool.npz must hold a pool of 3000 .* 4000 .* directory\.$"
    with pytest.warns(UserWarning, match="has no data.npz"), pytest.raises(ValueError) as wrong:
        sgmcmc.sample(stream(rows, 3_000), start, 240, **options)
    assert re.search(words, str(wrong.value))


@pytest.mark.parametrize(
    ("has_files", "is_loaded"),
    [(True, False), pytest.param(False, False, marks=pytest.mark.thorough), (False, True)],
)
def test_a_run_goes_on_only_with_the_data_with_which_it_was_begun(
    tmp_path: Path, has_files: bool, is_loaded: bool
) -> None:
    """Choices need no file here, because the pool is compared before them."""
    file, reads, blocks = tmp_path / "y.npy", list[int](), 20
    folder = tmp_path / "run"
    folder.mkdir()

    def read() -> Any:
        reads.append(1)
        y = np.load(file)
        for block in np.split(np.arange(N), blocks):
            yield {"x": X[block], "y": y[block]}

    spec = {"x": tf.TensorSpec([None, D], tf.float32), "y": tf.TensorSpec([None], tf.float32)}
    rows = tf.data.Dataset.from_generator(read, output_signature=spec)

    options = {"files": [file]} if has_files else {"memory": 10**6} if is_loaded else {}

    def pool(is_compared: bool = False) -> tuple[int, np.ndarray]:
        """Returns the number of passes, and the pool, as a new process does."""
        target = stream(rows, **options)
        target._is_compared = is_compared  # as on a worker of shards
        before = len(reads)
        found, _ = target_arguments.pool_of(quiet(target), tf.zeros([D]), folder)
        return len(reads) - before, found(tf.ones([D])).numpy()

    np.save(file, Y)
    _, expected = pool()
    (folder / settings_file.FILE).touch()
    written = (folder / "data.npz").stat().st_mtime_ns
    assert pool(is_compared=True)[0] == is_loaded
    passes, found = pool()
    assert (folder / "data.npz").stat().st_mtime_ns == written  # workers may be reading it
    assert passes == (1 if has_files else 2) + is_loaded  # the first rows, and all
    np.testing.assert_array_equal(found, expected)
    for name in ("data.npz",) if is_loaded else ("data.npz", "pool.npz"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:-9])
        with pytest.raises(ValueError, match=rf"{name} is damaged, .* Remove it"):
            pool()
        if name == "pool.npz":
            (folder / name).unlink()
            np.testing.assert_array_equal(pool()[1], expected)
            assert (folder / name).exists()  # so that it is not drawn once more
        (folder / name).write_bytes(whole)
    os.utime(file, ns=(1, 1))
    assert pool()[0] >= 1  # read, and found the same
    changed = Y.copy()
    changed[-5:] += 1.0
    np.save(file, changed)
    words = "began, y.npy was written again. The rows" if has_files else "begun. The rows"
    with pytest.raises(ValueError, match=f"must go on with .*{words} are others"):
        pool()
    if has_files:  # which the target need not name again
        options = {}
        with pytest.raises(ValueError, match="must go on with .* The rows are others"):
            pool()
    (folder / settings_file.FILE).unlink()
    assert pool()[1] != expected  # drawn again, as there were no choices


def test_rows_that_a_dataset_leaves_out_are_flagged() -> None:
    rows = tf.data.Dataset.from_tensor_slices({"x": X, "y": Y}).batch(1_500, drop_remainder=True)
    target = sgmcmc.StreamedLogProb(
        lambda w: -0.5 * tf.reduce_sum(w**2, axis=-1),
        lambda w, b: -0.5 * (b["y"] - tf.linalg.matvec(b["x"], w)) ** 2,
        rows,
        N,
    )
    with pytest.warns(UserWarning, match="leaves out 1000 of the 4000 rows"):
        result = sgmcmc.sample(target, tf.zeros([D]), 200, **OPTIONS)
    assert not result.is_trusted
    few = PoolReport(1_000_000, 999_700, (Pass(999_700, 1.0),))  # 300 rows move means by 0.017
    assert few.flags == () and "drops 300 rows" in few.lines[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_column_far_from_zero_hides_no_other(dtype: type) -> None:
    """Such as a time, whose rounding would be taken for that of all columns."""
    rng = np.random.default_rng(0)
    rows = np.stack([rng.normal(size=1000), 1.7e9 + 1e3 * rng.random(1000)], axis=1).astype(dtype)
    sums = RowSums.scaled_to(rows)
    assert not sums.differ(sums(rows), sums(rows[::-1]), len(rows))
    other = rows.copy()
    other[200:, 0] += 3.0
    assert sums.differ(sums(rows), sums(other), len(rows))


@pytest.mark.thorough
def test_the_rows_of_a_run_may_come_in_another_order(tmp_path: Path) -> None:
    (tmp_path / settings_file.FILE).touch()
    for seed in (1, 2):
        rows = tf.data.Dataset.from_tensor_slices({"x": X, "y": Y}).shuffle(N, seed=seed).batch(500)
        target_arguments.pool_of(quiet(stream(rows)), tf.zeros([D]), tmp_path)


def test_the_exact_quadratic_part_is_no_prior() -> None:
    """Its tails, which fade, would look like effects whose widths depend on each other."""
    rows = tf.data.Dataset.from_tensor_slices({"x": X, "y": Y}).batch(200)
    pool, _ = sgmcmc.draw_pool(stream(rows), tf.zeros([D]), seed=0, jit_compile=False)
    theta = np.array([[0.0, 0.0], [1.0, -2.0], [30.0, 0.5]])
    for target in (pool, pool.with_bijector(tfp.bijectors.Chain([tfp.bijectors.Scale(2.0)]))):
        scale = 1.0 if target is pool else 2.0
        found = prior_scale.prior_slopes(target, tf.zeros([D]), theta)
        np.testing.assert_allclose(found, -theta * scale**2, rtol=1e-6)
    with_correction = tfp.math.value_and_gradient(pool.log_prior, tf.constant(theta, tf.float32))
    # A thousand times what the comparison above allows; which rows are drawn differs by processor.
    assert np.abs(with_correction[1] + theta).max() > 0.03


def test_the_exact_density_in_other_coordinates_has_their_jacobian() -> None:
    """As in those of a hierarchy. Densities of both coordinates differ by that alone."""
    model = stream(tf.data.Dataset.from_tensor_slices({"x": X, "y": Y}).batch(500)).of_one_batch
    rows = {"x": tf.constant(X[:50]), "y": tf.constant(Y[:50])}
    pool = PooledLogProb(model, rows, np.ones(50, np.float32))
    start = tf.zeros([D])
    sinh = vector_bijector(pool.bijector, start, [tfp.bijectors.Sinh()])
    moved = pool.with_bijector(sinh)
    options = 2, tf.constant([0, 1]), False, pool
    z = np.random.default_rng(0).normal(size=[5, D]).astype(np.float32)
    exact = KernelSelector(moved, start, *options)._exact_fn()
    assert exact is not None
    np.testing.assert_allclose(exact(z), moved(tf.constant(z)), rtol=1e-4)
    assert np.ptp(exact(z) - pool(tf.sinh(z))) > 1  # negative control: without it


def test_a_stream_in_another_order_goes_on_where_it_fits_into_memory(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    results = []
    for number, count in enumerate((100, 120)):
        rows = tf.data.Dataset.from_tensor_slices({"x": X, "y": Y}).shuffle(N, seed=number)
        target = stream(rows.batch(500), memory=10**6)
        options = OPTIONS | dict(directory=tmp_path)
        results.append(sgmcmc.sample(target, tf.zeros([D]), count, **options))
    first, more = (np.asarray(x.states) for x in results)
    assert len(more) == 120
    np.testing.assert_array_equal(more[:100], first)
    rows = tf.data.Dataset.from_tensor_slices({"x": X, "y": Y + (np.arange(N) == 7)}).batch(500)
    with pytest.raises(ValueError, match="must go on with the data with which it was begun"):
        sgmcmc.sample(stream(rows, memory=10**6), tf.zeros([D]), 130, **options)


def test_the_seed_of_a_result_gives_the_same_draws() -> None:
    target = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1))
    first = sgmcmc.sample(target, tf.zeros([2]), 50, seed=7, progress_bar=False)
    again = sgmcmc.sample(target, tf.zeros([2]), 50, seed=first.seed, progress_bar=False)
    assert first.seed == (0, 7)
    np.testing.assert_array_equal(first.states, again.states)
