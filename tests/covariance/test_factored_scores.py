"""Factored scores compared with the scores that they stand for, and estimators that use them."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfp_sgmcmc.covariance import Diag, History, factored_scores
from tfp_sgmcmc.covariance.estimators import KINDS
from tfp_sgmcmc.covariance.factored_scores import EmbeddingScores, FactoredScores, OuterProducts

GENERATOR = np.random.default_rng(0)
N, INPUTS, OUTPUTS, SCALE = 7, 4, 3, 0.3


def outer_products(*leading: int, positions: int) -> tuple[FactoredScores, np.ndarray]:
    a = GENERATOR.normal(size=[*leading, N, positions, INPUTS])
    d = GENERATOR.normal(size=[*leading, N, positions, OUTPUTS])
    rows = SCALE * np.einsum("...npi,...npo->...nio", a, d)
    event = [2, 2, OUTPUTS]  # like a convolution, whose kernel has two axes for its inputs
    scores = OuterProducts(tf.constant(a), tf.constant(d), event, SCALE)
    return scores, rows.reshape([*leading, N, *event])


def lookups(*leading: int, positions: int) -> tuple[FactoredScores, np.ndarray]:
    """Half of the positions look up the same row as another position of the example."""
    indices = GENERATOR.integers(0, max(positions // 2, INPUTS - 1), size=[*leading, N, positions])
    indices %= INPUTS
    d = GENERATOR.normal(size=[*leading, N, positions, OUTPUTS])
    rows = SCALE * np.einsum("...npi,...npo->...nio", np.eye(INPUTS)[indices], d)
    indices = tf.constant(indices, tf.int32)
    return EmbeddingScores(indices, tf.constant(d), [INPUTS, OUTPUTS], SCALE), rows


MAKERS = {"outer products": outer_products, "lookups": lookups}


@pytest.fixture(params=[None, 2], ids=["one chunk", "chunks"])
def chunk_rows(request: Any, monkeypatch: Any) -> int | None:
    """Sets chunks of two examples, of which the first has one example."""
    if request.param is not None:
        numbers = INPUTS * OUTPUTS  # for outer products; lookups take others
        monkeypatch.setattr(factored_scores, "_CHUNK", request.param * numbers)
    return request.param


@pytest.mark.parametrize("positions", [1, 6])
@pytest.mark.parametrize("chains", [(), (2,)])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_closed_forms(
    make: Any, chains: tuple[int, ...], positions: int, chunk_rows: int | None
) -> None:
    scores, rows = make(*chains, positions=positions)
    axis = len(chains)
    assert scores.num_rows == N
    np.testing.assert_allclose(scores.rows(), rows, rtol=1e-12, atol=1e-14)
    variances = rows.var(axis=axis, ddof=1).reshape([*chains, -1])
    np.testing.assert_allclose(scores.variances(), variances, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("positions", [1, 6])
@pytest.mark.thorough
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_number_of_rows_known_at_run_time_only(
    make: Any, positions: int, chunk_rows: int | None
) -> None:
    full, rows = make(positions=positions)
    inputs, gradients = full._inputs, full._gradients
    specs = [tf.TensorSpec([None, *x.shape[1:]], x.dtype) for x in (inputs, gradients)]

    @tf.function(jit_compile=True, autograph=False, input_signature=specs)
    def variances(inputs: tf.Tensor, gradients: tf.Tensor) -> tf.Tensor:
        return type(full)(inputs, gradients, full._event_shape, SCALE).variances()

    for n in (N, 3):
        expected = rows[:n].var(axis=0, ddof=1).ravel()
        found = variances(inputs[:n], gradients[:n])
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_variances_of_equal_scores_are_zero_and_never_negative() -> None:
    a, d = tf.ones([50, 1, 20]) * 0.1, tf.ones([50, 1, 30]) * 0.3
    variances = OuterProducts(a, d, [20, 30]).variances()
    assert float(tf.reduce_min(variances)) >= 0.0
    np.testing.assert_allclose(variances, 0.0, atol=1e-8)


@pytest.mark.parametrize("chains", [(), (2,)])
@pytest.mark.parametrize("name", KINDS)
def test_estimators_take_them_for_what_they_are(name: str, chains: tuple[int, ...]) -> None:
    """The state has another part with its scores in a tensor."""
    factored, rows = outer_products(*chains, positions=2)
    bias = tf.constant(GENERATOR.normal(size=[*chains, N, OUTPUTS]))
    shapes = ([2, 2, OUTPUTS], [OUTPUTS])
    like = [tf.zeros([*chains, *shape], tf.float64) for shape in shapes]
    estimator = KINDS[name](History(1))
    own = estimator.init(like, len(chains), N)
    v = [tf.random.stateless_normal(x.shape, [0, 1], dtype=tf.float64) for x in like]
    products = []
    for scores in (factored, tf.constant(rows)):
        sigma, _ = estimator.evaluate(own, [scores, bias], 2.0, like, len(chains))
        products.append(sigma.multiply(v))
    for x, y in zip(*products, strict=True):
        assert float(tf.reduce_max(tf.abs(x))) > 0.1
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12)


def test_scores_that_are_not_finite_are_left_out() -> None:
    a, d = np.ones([N, 1, INPUTS]), np.ones([N, 1, OUTPUTS])
    d[2, 0, 1] = np.inf
    like = tf.zeros([INPUTS, OUTPUTS], tf.float64)
    own = Diag().init(like, 0, N)
    scores = OuterProducts(tf.constant(a), tf.constant(d), [INPUTS, OUTPUTS])
    _, own = Diag().evaluate(own, scores, 1.0, like, 0)
    assert int(own.num_skipped) == 1 and int(own.averages[0].count) == 0


@pytest.mark.parametrize("name", KINDS)
def test_minibatch_of_one_score_is_left_out_but_not_counted(name: str) -> None:
    like = [tf.zeros([3]), tf.zeros([2])]
    estimator = KINDS[name](History(1))
    own = estimator.init(like, 0, 4)
    drawn = [tf.random.stateless_normal([4, *x.shape], [1, 2]) for x in like]
    _, own = estimator.evaluate(own, drawn, 1.0, like, 0)
    _, after = estimator.evaluate(own, [x[:1] for x in drawn], 1.0, like, 0)
    assert int(after.num_skipped) == 0
    # A history has an empty slot for it, so the next estimate has no minibatch.
    assert [float(tf.reduce_sum(x.count)) for x in after.averages] == [0.0] * len(after.averages)


def test_low_rank_takes_smaller_minibatches_and_refuses_larger_or_unknown_ones() -> None:
    like, estimator = tf.zeros([5], tf.float64), KINDS["low_rank"](History(1))
    own = estimator.init(like, 0, N)
    rows = GENERATOR.normal(size=[N + 1, 5])
    sigma, _ = estimator.evaluate(own, tf.constant(rows[:4]), 1.0, like, 0)
    expected = rows[:4].var(axis=0, ddof=1)
    np.testing.assert_allclose(sigma.diag_part(), expected, rtol=1e-12)
    with pytest.raises(ValueError, match=f"at most {N} scores, .* Received: {N + 1}"):
        estimator.evaluate(own, tf.constant(rows), 1.0, like, 0)
    with pytest.raises(ValueError, match="a batch_size that divides .*, or num_groups"):
        estimator.init(like, 0, None)
