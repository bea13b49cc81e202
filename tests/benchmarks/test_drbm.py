"""The DRBM: probabilities by enumeration, closed scores, and one posterior seen in two ways."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.common import drbm, drbm_sums

HIDDEN, FEATURES, CLASSES, ROWS = 3, 4, 5, 12


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal([ROWS, FEATURES]).astype(np.float32)
    return x, rng.integers(CLASSES, size=ROWS).astype(np.int32)


def weights(chains: tuple[int, ...] = ()) -> drbm.Weights:
    drawn = drbm.initial(HIDDEN, FEATURES, CLASSES, seed=1, chains=chains)
    rng = np.random.default_rng(2)  # biases that are not zero
    return drawn._replace(
        c=tf.constant(rng.standard_normal(drawn.c.shape), tf.float32),
        d=tf.constant(rng.standard_normal(drawn.d.shape), tf.float32),
    )


def test_probabilities_are_sums_over_all_hidden_units() -> None:
    x, _ = data()
    W, U, c, d = (part.numpy().astype(np.float64) for part in weights())
    joint = np.zeros([ROWS, CLASSES])
    for h in itertools.product([0, 1], repeat=HIDDEN):
        joint += np.exp(d + np.array(h) @ U + (np.array(h) @ (c + x @ W.T).T)[:, None])
    expected = joint / joint.sum(axis=1, keepdims=True)
    (found,) = drbm.probabilities(drbm.Weights(*(part[None] for part in weights())), x)
    np.testing.assert_allclose(found, expected, rtol=2e-5)


@pytest.mark.parametrize("chains", [(), (2,)])
def test_closed_scores_are_the_gradients(chains: tuple[int, ...]) -> None:
    x, y = data()
    state = weights(chains)
    batch = {"x": tf.constant(x), "y": tf.constant(y)}
    found = drbm.scores(*state, batch)
    for i in range(ROWS):
        row = {name: leaf[i : i + 1] for name, leaf in batch.items()}
        with tf.GradientTape() as tape:
            tape.watch(state)
            value = tf.reduce_sum(drbm.log_likelihood(*state, row))
        for part, gradient in zip(found, tape.gradient(value, state), strict=True):
            of_row = tf.gather(part, i, axis=len(chains))
            np.testing.assert_allclose(of_row, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("factor", [1.0, 60.0])
def test_sums_are_those_of_the_scores(factor: float) -> None:
    """Also for inputs of several hundred, whose exponentials overflow."""
    x, y = data()
    state = drbm.Weights(*(factor * part for part in weights((2,))))
    fast, slow = drbm_sums.Target(x, y, 6, 3.0), drbm.target(x, y, 6, 3.0, shared_batch=True)
    ours, theirs = (target.estimate(state, tf.constant([0, 1])) for target in (fast, slow))
    np.testing.assert_allclose(ours.log_prob, theirs.log_prob, rtol=1e-5)
    for found, expected in zip(ours.gradient, theirs.gradient, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    for found, rows in zip(ours.scores, theirs.scores, strict=True):
        expected = np.var(rows, axis=1, ddof=1).reshape(2, -1)
        np.testing.assert_allclose(found.variances(), expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.mean(), np.mean(rows, axis=1), rtol=1e-4, atol=1e-5)
    assert fast.estimate(state, tf.constant([0, 1]), with_scores=False).scores == ()


def test_scores_that_are_not_kept_serve_the_diagonal_alone() -> None:
    x, y = data()
    scores = drbm_sums.Target(x, y, 6).estimate(weights((2,)), tf.constant([0, 1])).scores
    with pytest.raises(ValueError, match="Use covariance='diag'"):
        scores.W.rows()


def test_aligned_states_have_the_same_probabilities() -> None:
    x, _ = data()
    like, state = weights(), weights((6,))
    W, U, c, d = (part.numpy() for part in like)
    negative = drbm.Weights(W * [[-1], [1], [-1]], U * [[-1], [1], [-1]], c * [-1, 1, -1], d)
    negative = negative._replace(d=d + U[0] + U[2])
    for mine, part in zip(drbm.aligned(negative, like), like, strict=True):
        np.testing.assert_allclose(mine, part, rtol=1e-5, atol=1e-6)
    found = drbm.aligned(state, like)
    as_float = drbm.Weights(*(part.astype(np.float32) for part in found))
    np.testing.assert_allclose(
        drbm.probabilities(as_float, x), drbm.probabilities(state, x), rtol=1e-4
    )
    assert not np.array_equal(found.W, state.W)
    products = np.sum(found.W * W, -1) + np.sum(found.U * U, -1) + found.c * c
    assert np.all(products >= 0)


@pytest.mark.thorough
def test_layer_in_fit_has_the_log_posterior_of_the_target() -> None:
    x, y = data()
    start, target, h = weights(), drbm.target(x, y, ROWS), 1e-3
    with tf.GradientTape() as tape:
        tape.watch(start)
        value = target(*start)
    model = keras.Sequential([keras.Input([FEATURES]), drbm.DRBM(HIDDEN, CLASSES)])
    model.set_weights(list(start))
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True
    )
    normal = tfp.distributions.Normal(0.0, 1.0)
    seen = []

    def make_kernel(of_model: sgmcmc.keras.ModelLogProb) -> sgmcmc.SGLD:
        seen.append(of_model)
        return sgmcmc.SGLD(of_model, h, temperature=0.0)

    sampler = sgmcmc.keras.SamplerCallback(
        make_kernel,
        prior=normal,
        collect=sgmcmc.keras.Collect(0, 0),
        seed=0,
        num_examples=ROWS,
    )
    model.fit(x, y, batch_size=ROWS, epochs=1, verbose=0, callbacks=[sampler])
    for kept, part, gradient in zip(
        sampler.samples, start, tape.gradient(value, start), strict=True
    ):
        np.testing.assert_allclose(kept[0], part + h / 2 * gradient, rtol=1e-5, atol=1e-6)
    # The value and the scores, on one batch.
    estimate = sgmcmc.keras.ModelLogProb(
        model,
        ROWS,
        lambda parts: sum(tf.reduce_sum(normal.log_prob(part)) for part in parts),
        (tf.constant(x), tf.constant(y), None),
    ).estimate(list(start), tf.constant([0, 0]))
    constant = drbm.num_parameters(HIDDEN, FEATURES, CLASSES) * normal.log_prob(0.0)
    np.testing.assert_allclose(estimate.log_prob, value + constant, rtol=1e-5)
    expected = drbm.scores(*start, {"x": tf.constant(x), "y": tf.constant(y)})
    for found, closed in zip(estimate.scores, expected, strict=True):
        np.testing.assert_allclose(found, closed, rtol=1e-4, atol=1e-6)
