"""A pool that workers of an executor draw from parts of the rows is that of one process."""

import concurrent.futures
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.targets.streaming import passes

N, PARTS = 3_000, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, 2]).astype(np.float32)
Y = RNG.poisson(np.exp(X @ [0.5, -0.5])).astype(np.float32)
X, Y = X[np.argsort(Y)], np.sort(Y)  # parts differ
START = tf.zeros([2])


def make_part(i: int, memory: int = 3_600, x: np.ndarray = X) -> sgmcmc.StreamedLogProb:
    rows = slice(i * N // PARTS, (i + 1) * N // PARTS)
    return sgmcmc.StreamedLogProb(
        lambda w: -0.5 * tf.reduce_sum(w**2, axis=-1),
        sgmcmc.LinearModel(lambda eta, y: y * eta - tf.exp(eta)),
        tf.data.Dataset.from_tensor_slices((x[rows], Y[rows])).batch(100),
        N // PARTS,
        memory=memory,
    )


class Inline(concurrent.futures.Executor):
    """Makes each call at once. A worker dies in the second one, and its engine repeats it."""

    num_calls = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> concurrent.futures.Future:
        self.num_calls += 1
        future = concurrent.futures.Future[Any]()
        try:
            if self.num_calls == 2:
                fn(*args)
                passes._kept.cache_clear()
            future.set_result(fn(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def test_workers_give_the_pool_of_one_process() -> None:
    """The same rows and sums, and a posterior near that of all rows at draws of its width."""
    pytest.importorskip("cloudpickle")
    options: dict[str, Any] = dict(num_parts=PARTS, jit_compile=False)
    expected, report = sgmcmc.draw_pool(make_part, START, **options)
    found, other = sgmcmc.draw_pool(make_part, START, executor=Inline(), **options)
    assert report.num_examples == N and [p.num_rows for p in report.passes] == [N] * 3
    assert (other.num_rows, other.mean_error) == (report.num_rows, report.mean_error)
    z = tf.constant([0.5, -0.5] + RNG.normal(size=[50, 2]) / 50, tf.float32)
    np.testing.assert_array_equal(found(z), expected(z))
    prior = -0.5 * tf.norm(z, axis=-1) ** 2  # which is in each part
    exact = tf.add_n([make_part(i)(z) for i in range(PARTS)]) - (PARTS - 1) * prior
    np.testing.assert_allclose(np.ptp(found(z) - exact), 0, atol=0.1)
    assert np.ptp(exact) > 1


def test_parts_that_fit_are_loaded_in_order() -> None:
    pool, report = sgmcmc.draw_pool(lambda i: make_part(i, 10**6), START, num_parts=PARTS)
    assert (pool.num_examples, len(report.passes)) == (N, 1)
    np.testing.assert_array_equal(pool.rows(tf.range(N))[1], Y)


def test_errors_name_the_part() -> None:
    x = X.copy()
    x[2_500, 1] = np.nan
    with pytest.raises(ValueError, match="first in example 500 of epoch 0") as raised:
        sgmcmc.draw_pool(lambda i: make_part(i, x=x), START, num_parts=PARTS)
    assert raised.value.__notes__ == ["This was in part 2 of the stream."]
    with pytest.raises(
        ValueError, match=r"float32 \[2\].* in part 0, and .*float32 \[\] in part 1"
    ):
        sgmcmc.draw_pool(lambda i: make_part(i, x=X if i == 0 else Y), START, num_parts=2)


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        (make_part(0), {"num_parts": 2}, "target must be a StreamedLogProb, or with num_parts"),
        (make_part(0), {"executor": Inline()}, "which workers of an executor call. Received"),
        (make_part, {}, "num_parts=None"),
        (make_part, {"num_parts": 2, "executor": 3}, "executor must have a method submit"),
        (lambda i: 3, {"num_parts": 2}, r"target\(0\) must return a StreamedLogProb"),
    ],
)
def test_wrong_arguments(target: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        sgmcmc.draw_pool(target, START, **options)


SHIFT = [0.0]


def shifted_part(i: int) -> sgmcmc.StreamedLogProb:
    return make_part(i, memory=10**6, x=X + np.float32(SHIFT[0]))


def test_workers_read_the_data_of_each_call_anew() -> None:
    """Within a call they keep what they have made of a part."""
    pytest.importorskip("cloudpickle")
    means = []
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        for SHIFT[0] in (0.0, 5.0):
            pool, _ = sgmcmc.draw_pool(shifted_part, START, num_parts=PARTS, executor=executor)
            means.append(float(tf.reduce_mean(pool.rows(tf.range(N))[0])))
    assert means[1] - means[0] == pytest.approx(5.0, abs=1e-3)
