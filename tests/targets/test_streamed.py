"""Streamed data: step t uses batch t of the dataset, for any size of a read and on resuming."""

import gc
import itertools
import os
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.fast_settings import fast_settings
from tfp_sgmcmc import random
from tfp_sgmcmc.sampling.steps import Feed
from tfp_sgmcmc.targets.streamed import StreamState

tfd = tfp.distributions

N, SIZE = 23, 4  # five batches, and three examples that an epoch leaves out
X = np.random.default_rng(0).normal(2.0, 1.0, size=[N]).astype(np.float32)
PRIOR = tfd.Normal(0.0, 10.0).log_prob
EXAMPLES = tf.data.Dataset.from_tensor_slices(X)
CHECKED: dict[str, Any] = dict(seed=0, jit_compile=False, progress_bar=False)
OPTIONS: dict[str, Any] = CHECKED | dict(preflight_check=False)


def log_likelihood(theta: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
    return tfd.Normal(theta[..., tf.newaxis], 1.0).log_prob(batch)


def shuffled(**options: Any) -> tf.data.Dataset:
    return EXAMPLES.shuffle(N, **options).batch(SIZE, drop_remainder=True)


def dataset(epoch: int) -> tf.data.Dataset:
    return shuffled(seed=epoch)


def target(**options: Any) -> sgmcmc.StreamedLogProb:
    arguments: dict[str, Any] = dict(
        log_prior_fn=PRIOR, log_likelihood_fn=log_likelihood, dataset=dataset, num_examples=N
    )
    return sgmcmc.StreamedLogProb(**arguments | options)


def batches(count: int, of: Callable[[int], tf.data.Dataset] = dataset) -> list[np.ndarray]:
    epochs = (of(epoch).as_numpy_iterator() for epoch in itertools.count())
    return list(itertools.islice(itertools.chain.from_iterable(epochs), count))


def by_hand(used: list[np.ndarray], step_size: float, start: np.ndarray) -> np.ndarray:
    """Returns the states theta + eps/2 g + sqrt(eps) z by NumPy, with the noise of `SGLD`."""
    theta, states = start, []
    for t, batch in enumerate(used):
        gradient = -theta / 100 + N / SIZE * np.sum(batch - theta[:, None], axis=-1)
        noise_seed = random.split(random.fold_in(random.as_seed(0), t), 3)[1]
        z = random.normal_like(tf.constant(theta), noise_seed).numpy()
        theta = theta + step_size / 2 * gradient + np.sqrt(step_size) * z
        states.append(theta)
    return np.stack(states)


@pytest.mark.thorough
@pytest.mark.parametrize("batches_per_read", [1, 3, 50])
def test_each_step_uses_the_next_batch(batches_per_read: int) -> None:
    kernel = sgmcmc.SGLD(target(batches_per_read=batches_per_read), 0.01)
    result = sgmcmc.sample_chain(kernel, tf.zeros([2]), 16, **OPTIONS)
    expected = by_hand(batches(16), np.float32(0.01), np.zeros(2, np.float32))
    np.testing.assert_allclose(result.states, expected, rtol=1e-4, atol=1e-5)
    assert int(result.final_kernel_results.target_state.position) == 16


def run(of: Any, num_results: int, **options: Any) -> Any:
    kernel = sgmcmc.SGLD(target(dataset=of, batches_per_read=3), 0.01)
    return sgmcmc.sample_chain(kernel, tf.zeros([2]), num_results, **OPTIONS, **options)


IN_ORDER = EXAMPLES.batch(SIZE, drop_remainder=True)


# The run resumes in the middle of a read, or at its end.
@pytest.mark.parametrize(
    ("of", "count"),
    [
        pytest.param(dataset, 5, id="callable", marks=pytest.mark.slow),
        pytest.param(IN_ORDER, 6, id="dataset"),
    ],
)
def test_a_run_goes_on_with_the_next_batch(tmp_path: Path, of: Any, count: int) -> None:
    pytest.importorskip("zarr")
    run(of, count, directory=tmp_path)
    result = run(of, 14, directory=sgmcmc.Directory(tmp_path, resume="must"))
    np.testing.assert_array_equal(result.states, run(of, 14).states)


def test_a_dataset_is_read_anew_in_each_epoch() -> None:
    used = batches(12, lambda epoch: IN_ORDER)
    np.testing.assert_array_equal(used[0], used[5])
    expected = by_hand(used, np.float32(0.01), np.zeros(2, np.float32))
    np.testing.assert_allclose(run(IN_ORDER, 12).states, expected, rtol=1e-4, atol=1e-5)


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("seed", "count"), [(None, 7), pytest.param(1, 9, marks=pytest.mark.thorough)]
)  # both in the second epoch
def test_a_dataset_that_shuffles_by_itself_is_not_gone_on_with(
    tmp_path: Path, count: int, seed: int | None
) -> None:
    """By chance, two orders of 12 examples agree once in 23! / 11! = 6e14 times."""
    pytest.importorskip("zarr")
    with pytest.warns(UserWarning, match="cannot resume if it is cut off. .*seed=epoch"):
        run(shuffled(seed=seed), count, directory=tmp_path)
    before = content(tmp_path)
    first = count - count % 3 if count % 3 else count - 3
    message = rf"cannot go on from step {count}: .* steps {first} \.\. {first + 2} .*seed=epoch"
    with pytest.raises(ValueError, match=message):
        run(shuffled(seed=seed), 14, directory=tmp_path)
    assert content(tmp_path) == before
    assert run(shuffled(seed=seed), count, directory=tmp_path).num_results == count


@pytest.mark.thorough
def test_in_memory_a_dataset_may_shuffle_by_itself() -> None:
    assert run(shuffled(), 7).is_complete  # without a warning


@pytest.mark.thorough
def test_another_likelihood_is_not_gone_on_with(tmp_path: Path) -> None:
    """The batches and the prior are the same. An order that changes makes no other likelihood."""
    pytest.importorskip("zarr")

    def run_with(scale: float, of: Any, num_results: int, folder: Path) -> Any:
        fn = lambda theta, x: tfd.Normal(theta[..., tf.newaxis], scale).log_prob(x)  # noqa: E731
        of_batches = target(dataset=of, log_likelihood_fn=fn, batches_per_read=3)
        kernel = sgmcmc.SGLD(of_batches, 0.01)
        return sgmcmc.sample_chain(kernel, tf.zeros([2]), num_results, directory=folder, **OPTIONS)

    for name, of in {"callable": dataset, "shuffled": shuffled()}.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the dataset shuffles by itself
            run_with(1.0, of, 5, tmp_path / name)
        before = content(tmp_path / name)
        with pytest.raises(ValueError, match="log posterior of a read: .*, but here"):
            run_with(1.01, of, 14, tmp_path / name)
        assert content(tmp_path / name) == before
        assert run_with(1.0, of, 5, tmp_path / name).num_results == 5
    assert run_with(1.0, dataset, 14, tmp_path / "callable").num_results == 14


@pytest.mark.thorough
def test_an_order_that_only_this_process_knows_is_not_gone_on_with(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    run(shuffled(reshuffle_each_iteration=False), 4, directory=tmp_path)
    with pytest.raises(ValueError, match="cannot go on from step 4"):
        run(shuffled(reshuffle_each_iteration=False), 14, directory=tmp_path)


def test_estimates_are_those_of_the_batch_in_memory() -> None:
    """Compares each form of estimate with a MinibatchLogProb over that batch."""
    state = tf.constant([0.5, -1.0, 2.0])
    streamed = target(num_groups=2)
    ready = streamed.bootstrap(state)
    moved = StreamState(ready.batches, tf.constant(7, tf.int64))
    (batch,) = batches(8)[7:]
    resident = sgmcmc.MinibatchLogProb(
        PRIOR, log_likelihood, batch, SIZE, shared_batch=True, num_groups=2
    )
    prior = PRIOR(state)
    for probe, with_scores in ((None, True), (None, False), (tf.ones([3]), False)):
        got = streamed.estimate(state, tf.constant([0, 0]), moved, probe, with_scores)
        same = resident.estimate(state, tf.constant([0, 0]), (), probe, with_scores)
        # the log prior plus N/n times the sum; the target in memory has N = n
        np.testing.assert_allclose(
            got.log_prob - prior, N / SIZE * (same.log_prob - prior), rtol=1e-5
        )
        np.testing.assert_allclose(
            got.gradient + state / 100, N / SIZE * (same.gradient + state / 100), rtol=1e-4
        )
        if with_scores:  # sums over groups of two, scaled to the covariance of single scores
            pairs = np.sum(batch.reshape(2, 2) - state.numpy()[:, None, None], axis=-1)
            np.testing.assert_allclose(got.scores, pairs / np.sqrt(2), rtol=1e-5, atol=1e-6)
        if probe is not None:
            np.testing.assert_allclose(got.hessian_product, -N * np.ones(3) - 0.01, rtol=1e-5)
        assert got.target_state.position == 8
        np.testing.assert_allclose(got.noise_scale, N * (N - SIZE) / SIZE)


def test_used_batches_are_freed_at_once() -> None:
    """Waiting for the garbage collector would fill the memory with a large dataset."""
    streamed = target(batches_per_read=2)
    start = sgmcmc.SGLD(streamed, 0.01).bootstrap_results(tf.zeros([]))
    feed = Feed(streamed, start)
    gc.disable()
    try:
        first, _ = feed(start)
        used = weakref.ref(first.target_state.batches)
        state = first.target_state._replace(position=tf.constant(2, tf.int64))
        results = first._replace(target_state=state)
        del first, state
        second, steps = feed(results)
        del results
        assert used() is None and steps == 2
    finally:
        gc.enable()
    np.testing.assert_array_equal(second.target_state.batches, batches(4)[2:])


def centred(theta: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
    return log_likelihood(theta, batch - tf.reduce_mean(batch))


@pytest.mark.parametrize("is_wrong", fast_settings([False, True], True))
def test_before_a_run_the_first_batch_is_checked(
    monkeypatch: pytest.MonkeyPatch, is_wrong: bool
) -> None:
    def read_all(self: Any, state: Any) -> tf.Tensor:
        raise AssertionError("the whole dataset is read")

    monkeypatch.setattr(sgmcmc.StreamedLogProb, "__call__", read_all)
    kernel = sgmcmc.SGLD(target(**{"log_likelihood_fn": centred} if is_wrong else {}), 1e-3)
    if is_wrong:
        with pytest.raises(ValueError, match="do not add up"):
            sgmcmc.sample_chain(kernel, tf.zeros([]), 2, **CHECKED)
    else:
        assert sgmcmc.sample_chain(kernel, tf.zeros([]), 2, **CHECKED).is_complete


def test_the_full_log_posterior_is_a_pass_over_the_dataset() -> None:
    theta = tf.constant([0.5, -1.0])
    seen = np.concatenate(batches(5))
    with tf.GradientTape() as tape:
        tape.watch(theta)
        value = target()(theta)
    by_formula = N / len(seen) * np.sum(tfd.Normal(theta[:, None], 1.0).log_prob(seen), -1)
    np.testing.assert_allclose(value, by_formula + PRIOR(theta), rtol=1e-5)
    gradient = N / len(seen) * np.sum(seen - theta.numpy()[:, None], -1) - theta / 100
    np.testing.assert_allclose(tape.gradient(value, theta), gradient, rtol=1e-4)
    with pytest.raises(ValueError, match=r"outside of tf\.function"):
        tf.function(target())(theta)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (dict(dataset=X), TypeError, r"a callable, .* or a tf\.data\.Dataset. .* an ndarray"),
        (dict(dataset=lambda epoch: X), TypeError, r"dataset\(0\) must be .* an ndarray"),
        (dict(dataset=lambda epoch: EXAMPLES), ValueError, "which are single rows"),
        (dict(dataset=lambda epoch: dataset(0).take(0)), ValueError, "23 examples .* 0 has 0"),
        (
            dict(dataset=IN_ORDER.repeat()),
            ValueError,
            r"without \.repeat\(\). Received: an inf",
        ),
        (dict(dataset=IN_ORDER.repeat(2)), ValueError, "5 batches of 4 .* epoch 0 has 10"),
        (dict(num_examples=30), ValueError, "7 batches of 4 .* epoch 0 has 5"),
        (dict(num_examples=3), ValueError, "num_examples must be at least 4. Received: 3"),
        (dict(batches_per_read=0), ValueError, "batches_per_read must be at least 1. Received: 0"),
    ],
)
def test_bad_input(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        target(**change)


def test_a_later_epoch_of_another_dtype_is_named() -> None:
    def epochs(epoch: int) -> tf.data.Dataset:
        return dataset(epoch).map(lambda x: tf.cast(x, tf.float64)) if epoch else dataset(epoch)

    of = target(dataset=epochs)
    with pytest.raises(TypeError, match=r"dataset\(1\) must .* float32. Received: float64"):
        list(of.blocks(4, epoch=1))


def test_a_later_epoch_of_another_length() -> None:
    def shorter(epoch: int) -> tf.data.Dataset:
        return dataset(epoch).filter(lambda x: epoch < 2 or x[0] > X.min())  # unknown cardinality

    lengths = [len(list(shorter(epoch))) for epoch in range(8)]
    bad = next(epoch for epoch, length in enumerate(lengths) if length != 5)
    with pytest.raises(ValueError, match=f"5 batches of 4 .* epoch {bad} has {lengths[bad]}"):
        list(target(dataset=shorter, batches_per_read=4).reads())


def rows_at_run_time(x: np.ndarray, size: int) -> tf.data.Dataset:
    """Returns blocks of rows whose shapes are unknown until they are read."""

    def read() -> Any:
        yield from (x[i : i + size] for i in range(0, len(x), size))

    return tf.data.Dataset.from_generator(read, tf.float32)


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(EXAMPLES.batch(5), marks=pytest.mark.thorough),
        rows_at_run_time(X, 7),
        EXAMPLES.batch(2, drop_remainder=False),
    ],
)
def test_blocks_of_any_size_are_cut_and_joined_to_batches(of: tf.data.Dataset) -> None:
    of_blocks = target(dataset=of, batch_size=SIZE, batches_per_read=3)
    state = tf.zeros([2])
    read = next(of_blocks.reads()).numpy()
    np.testing.assert_array_equal(read, X[: 3 * SIZE].reshape(3, SIZE))
    # The full log posterior is of all rows.
    by_formula = np.sum(tfd.Normal(0.5, 1.0).log_prob(X)) + PRIOR(0.5)
    np.testing.assert_allclose(of_blocks(tf.constant(0.5)), by_formula, rtol=1e-5)
    with pytest.warns(UserWarning, match="leave out the last 3 examples of each epoch"):
        assert of_blocks.bootstrap(state).batches.shape == (3, SIZE)
    kernel = sgmcmc.SGLD(of_blocks, 0.001)  # warnings are errors here, of which one was enough
    assert sgmcmc.sample_chain(kernel, state, 12, **OPTIONS).is_complete


def test_a_file_that_changes_is_named_and_draws_are_kept(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    parts = np.split(X[:20], 5)
    files = [tmp_path / f"part-{i}.npy" for i in range(5)]
    for file, part in zip(files, parts, strict=True):
        np.save(file, part)

    def read() -> Any:
        yield from (np.load(file) for file in files)

    rows = tf.data.Dataset.from_generator(read, output_signature=tf.TensorSpec([4], tf.float32))

    def run_to(num_results: int, folder: Any = None, **options: Any) -> Any:
        of = target(dataset=rows, num_examples=20, batches_per_read=5, **options)
        kernel = sgmcmc.SGLD(of, 0.001)

        def trace(state: Any, results: Any) -> Any:
            return ()

        return sgmcmc.sample_chain(
            kernel, tf.zeros([2]), num_results, directory=folder, trace_fn=trace, **OPTIONS
        )

    whole = run_to(15).states
    run_to(5, tmp_path / "run", files=files)
    first = sgmcmc.sampling.steps.Feed.__call__
    calls = []

    def damage(self: Any, results: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            files[3].write_bytes(b"cut off")
        return first(self, results)

    for folder in (tmp_path / "run", None):
        calls.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sgmcmc.sampling.steps.Feed, "__call__", damage)
            with pytest.raises(sgmcmc.StreamReadError, match=r"part-3.npy has 7 bytes") as raised:
                run_to(15, folder, files=files)
        kept = np.asarray(raised.value.samples)
        np.testing.assert_array_equal(kept, whole[: len(kept)])
        assert len(kept) >= 5
        np.save(files[3], parts[3])
    files[3].unlink()
    with pytest.raises(sgmcmc.StreamReadError, match=r"part-3.npy, which is missing"):
        run_to(15, tmp_path / "run", files=files)
    with pytest.raises(sgmcmc.StreamReadError, match=r"epoch 0, in examples 0 \.\. 19.*part-3.npy"):
        run_to(15, tmp_path / "run")  # the files are not given, so the error of reading names it
    np.save(files[3], parts[3])
    np.testing.assert_array_equal(run_to(15, tmp_path / "run", files=files).states, whole)


def test_rows_that_are_not_finite_are_refused_before_a_step_takes_them(tmp_path: Path) -> None:
    """The draws before them are kept, and the run goes on when the rows are mended."""
    pytest.importorskip("zarr")
    wrong, passes = X[:20].copy(), []
    wrong[13] = np.nan

    def run(num_results: int, wrong_pass: int | None) -> Any:
        passes.clear()

        def read() -> Any:
            passes.append(1)
            yield from np.split(wrong if len(passes) == wrong_pass else X[:20], 5)

        rows = tf.data.Dataset.from_generator(read, output_signature=tf.TensorSpec([4], tf.float32))
        of = target(dataset=rows, num_examples=20, batches_per_read=5)
        return sgmcmc.sample_chain(
            sgmcmc.SGLD(of, 0.001), tf.zeros([2]), num_results, directory=tmp_path, **OPTIONS
        )

    with pytest.raises(sgmcmc.StreamReadError, match=r"in example 13 of epoch \d. .*The \d+ res"):
        run(100, 6)
    of = target(dataset=tf.data.Dataset.from_tensor_slices(wrong).batch(4), num_examples=20)
    for refused in (
        lambda: sgmcmc.preflight(of, tf.zeros([2])),
        lambda: sgmcmc.sample_chain(sgmcmc.SGLD(of, 0.001), tf.zeros([2]), 20, **OPTIONS),
    ):
        with pytest.raises(ValueError, match="first in example 13 of epoch 0"):
            refused()
    assert run(100, None).is_complete


def test_files_must_be_a_list_and_the_kernel_must_take_batches(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="files must be a list of paths. Received: '/"):
        target(files=str(tmp_path))
    of = target(dataset=tf.data.Dataset.from_tensor_slices(X[:20]).batch(4), num_examples=20)
    hmc = tfp.mcmc.HamiltonianMonteCarlo(lambda t: -(t**2), 0.1, 2)
    with pytest.raises(TypeError, match="kernel of a StreamedLogProb must take its batches"):
        Feed(of, hmc.bootstrap_results(tf.zeros([])))


def test_the_damaged_file_and_the_line_of_the_generator_are_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(400, dtype=np.float32))

    def read() -> Any:
        yield np.load(tmp_path / "a.npy")[:4]
        yield np.load(tmp_path / "a.npy", mmap_mode="r")[4:]

    rows = tf.data.Dataset.from_generator(read, output_signature=tf.TensorSpec([None], tf.float32))
    of = target(dataset=rows, num_examples=400, batch_size=4, files=[tmp_path / "a.npy"])
    list(of.blocks(100))
    content = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(content[:-40])
    with pytest.raises(sgmcmc.StreamReadError, match="a.npy has 1688 bytes, and had 1728 at first"):
        list(of.blocks(100))
    with pytest.raises(sgmcmc.StreamReadError) as raised:  # of a new run
        target(dataset=rows, num_examples=400, batch_size=4, files=[tmp_path / "a.npy"])
    said = str(raised.value)
    assert "a.npy is damaged: 40 bytes are lacking at its end. It raised: ValueError" in said
    assert "test_streamed.py, line" in said and "{{" not in said


def of_blocks(read: Any, count: int = 400, **options: Any) -> sgmcmc.StreamedLogProb:
    rows = tf.data.Dataset.from_generator(read, output_signature=tf.TensorSpec([None], tf.float32))
    return target(dataset=rows, num_examples=count, batch_size=4, **options)


ROWS = np.random.default_rng(1).normal(size=[400]).astype(np.float32)


def test_rows_that_change_between_passes_are_refused_and_their_order_is_not() -> None:
    passes = [ROWS]
    of = of_blocks(lambda: np.split(passes[0], 4))
    shuffled_rows = np.random.default_rng(2).permutation(ROWS)
    one_changed = ROWS + np.where(np.arange(400) == 123, 0.1, 0).astype(np.float32)
    one_lost = np.where(np.arange(400) == 123, np.nan, ROWS).astype(np.float32)
    rounded = np.nextafter(ROWS, 2 * ROWS)
    for rows in (ROWS, shuffled_rows, rounded):
        passes[:] = [rows]
        list(of.blocks(50))
    passes[:] = [one_changed]
    with pytest.raises(ValueError, match="other rows in pass 4 over epoch 0 than before. Rows"):
        of(tf.constant(0.5))
    passes[:] = [one_lost]
    with pytest.raises(ValueError, match="other rows in pass 5 over epoch 0 than before. Rows"):
        of(tf.constant(0.5))


def test_labels_that_are_given_to_other_rows_are_refused() -> None:
    labels = [ROWS]

    def read() -> Any:
        yield from zip(np.split(ROWS, 4), np.split(labels[0], 4), strict=True)

    spec = (tf.TensorSpec([None], tf.float32),) * 2
    of = target(
        dataset=tf.data.Dataset.from_generator(read, output_signature=spec), num_examples=400
    )
    list(of.blocks(400))
    labels[0] = ROWS[::-1]
    with pytest.raises(ValueError, match="other rows in pass 2"):
        list(of.blocks(400))


def test_a_change_is_seen_in_rows_whose_label_the_first_block_lacks() -> None:
    """Files are sorted by label, so that the first block has a column of zeros."""
    labels, rows = np.repeat(np.float32([0, 1]), 200), [ROWS]

    def read() -> Any:
        yield from zip(np.split(rows[0], 4), np.split(labels, 4), strict=True)

    spec = (tf.TensorSpec([None], tf.float32),) * 2
    of = target(
        dataset=tf.data.Dataset.from_generator(read, output_signature=spec), num_examples=400
    )
    list(of.blocks(400))
    rows[0] = ROWS + labels
    with pytest.raises(ValueError, match="other rows in pass 2"):
        list(of.blocks(400))


def test_an_endless_epoch_is_refused() -> None:
    of = of_blocks(lambda: itertools.repeat(ROWS), batches_per_read=100)
    with pytest.raises(ValueError, match="epoch 0 has more than 400"):
        list(of.blocks(100))
    with pytest.raises(ValueError, match="100 batches of 4 .* epoch 0 has more than 100"):
        list(itertools.islice(of_blocks(lambda: [ROWS, ROWS], batches_per_read=60).reads(), 9))


def test_passes_do_not_wait_for_the_thread_that_tunes_a_dataset() -> None:
    """It wakes after 10, 30, 70, ... ms. Options of the dataset's own stay."""
    tuned = tf.data.Options()
    tuned.autotune.enabled = True
    for options, expected in ((tf.data.Options(), False), (tuned, True)):
        stream = target(dataset=shuffled(seed=0).with_options(options))
        for used in (stream._in_blocks(0, 10), stream._batches(0)):
            assert used.options().autotune.enabled is expected


def test_empty_blocks_are_skipped() -> None:
    none = ROWS[:0]
    for size in (4, 250):
        of = of_blocks(lambda: [none, none, ROWS[:200], none, ROWS[200:], none])
        np.testing.assert_array_equal(np.concatenate([*of.blocks(size)]), ROWS)
    np.testing.assert_array_equal(next(of.reads()), ROWS.reshape(100, 4))
    with pytest.raises(ValueError, match="400 examples .* epoch 0 has 0"):
        of_blocks(lambda: [none, none])


def test_a_file_that_was_written_again_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.npy"
    np.save(file, ROWS)
    of = of_blocks(lambda: [np.load(file)], files=[file])
    list(of.blocks(100))
    os.utime(file, ns=(1, 1))
    with pytest.raises(sgmcmc.StreamReadError, match="a.npy was written again. Restore .* again"):
        list(of.blocks(100))


def test_an_error_of_reading_names_the_examples_the_pass_and_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    is_wrong = [False]

    def read() -> Any:
        yield ROWS[:250]
        if is_wrong[0]:
            raise KeyError("row 11 of a database")
        yield ROWS[250:]

    of = of_blocks(read, files=[tmp_path / "a.txt"])
    list(of.blocks(100))
    is_wrong[0] = True
    expected = (
        r"in pass 2 over epoch 0, in examples 200 \.\. 299. The files are .*/a.txt. The smallest, "
        ".*/a.txt, has 1 bytes. It raised: K"
    )
    with pytest.raises(sgmcmc.StreamReadError, match=expected):
        list(of.blocks(100))
    with pytest.raises(sgmcmc.StreamReadError, match=r"epoch 0, in examples 200 \.\. 399"):
        list(itertools.islice(of_blocks(read, batches_per_read=50).reads(), 3))


def test_too_few_rows_may_be_an_empty_file_or_records_that_are_cut_off(tmp_path: Path) -> None:
    whole, empty = tmp_path / "a.tfrecord", tmp_path / "b.tfrecord"
    with tf.io.TFRecordWriter(str(whole)) as file:
        file.write(b"x")
    empty.touch()
    for files, words in (
        ([whole, empty], "b.tfrecord is damaged: it is empty"),
        ([whole], "cut off at the end of one. The files are .*/a.tfrecord. The smallest"),
    ):
        with pytest.raises(ValueError, match=f"epoch 0 has 300.*{words}"):
            list(of_blocks(lambda: [ROWS[:300]], files=files).blocks(100))


def test_the_advice_on_dtypes_can_be_followed() -> None:
    rows = EXAMPLES.map(lambda x: tf.cast(x, tf.float64)).batch(4)
    of = target(dataset=rows, batch_size=4)
    with pytest.raises(TypeError, match=r"cast the rows of the dataset, .*tf.cast\(..., 'float32'"):
        of(tf.constant(0.5))


@pytest.mark.parametrize("epoch", [-1, 0.5, [0], None])
def test_the_epoch_of_blocks_is_checked(epoch: Any) -> None:
    of = of_blocks(lambda: np.split(ROWS, 4))
    with pytest.raises((TypeError, ValueError), match="epoch must be"):
        next(of.blocks(100, epoch))


def test_a_traced_chain_takes_the_first_batches() -> None:
    """As with `tfp.mcmc.sample_chain` in a function, which no feed supplies with others."""
    data = np.random.default_rng(0).normal(1.0, 1.0, size=[100]).astype(np.float32)
    target = sgmcmc.StreamedLogProb(
        lambda t: -0.5 * t**2,
        lambda t, x: -0.5 * (x - t[..., None]) ** 2,
        tf.data.Dataset.from_tensor_slices(data).batch(10),
        100,
    )
    kernel, options = sgmcmc.SGLD(target, 1e-3), dict(trace_fn=None, seed=[0, 1])
    run = tf.function(
        lambda state: tfp.mcmc.sample_chain(20, state, kernel=kernel, **options), autograph=False
    )
    traced, eager = (
        run(tf.zeros([2])),
        tfp.mcmc.sample_chain(20, tf.zeros([2]), kernel=kernel, **options),
    )
    np.testing.assert_allclose(traced, eager, rtol=1e-5)
    with pytest.raises(ValueError, match="seed must be None for a StreamedLogProb"):
        sgmcmc.diagnostics.gradients_at(target, traced, seed=1)
