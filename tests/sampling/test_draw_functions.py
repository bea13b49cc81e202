"""Generated quantities, predictions and leave-one-out of a result, against closed forms."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.sampling import draw_functions

tfd = tfp.distributions
N, D, SIGMA, TAU, DRAWS, CHAINS = 3000, 4, 0.7, 2.0, 1000, 4
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, D])
Y = X @ [1.0, -2.0, 0.5, 0.0] + SIGMA * RNG.normal(size=N)
PRECISION = X.T @ X / SIGMA**2 + np.eye(D) / TAU**2
MEAN = np.linalg.solve(PRECISION, X.T @ Y / SIGMA**2)
FACTOR = np.linalg.inv(np.linalg.cholesky(PRECISION)).T


def exact_leave_one_out() -> np.ndarray:
    """Returns log p(y_i | y_-i) by the leverages h: mean y_i - r_i / (1 - h_i), variance over."""
    leverage = np.einsum("nd,de,ne->n", X, np.linalg.inv(PRECISION), X) / SIGMA**2
    residual = (Y - X @ MEAN) / (1 - leverage)
    variance = SIGMA**2 / (1 - leverage)
    return -0.5 * np.log(2 * np.pi * variance) - 0.5 * residual**2 / variance


EXACT = exact_leave_one_out()


def log_prior(w: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(
        tfd.Normal(tf.constant(0.0, w.dtype), tf.constant(TAU, w.dtype)).log_prob(w), axis=-1
    )


def log_likelihood(w: tf.Tensor, batch: Any) -> tf.Tensor:
    x, y = batch
    return log_likelihood_of_means(tf.einsum("...d,nd->...n", w, x), y)


def log_likelihood_of_means(mean: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tfd.Normal(mean, tf.constant(SIGMA, mean.dtype)).log_prob(y)


def target(x: np.ndarray = X, y: np.ndarray = Y) -> sgmcmc.MinibatchLogProb:
    n = min(100, len(x))
    return sgmcmc.MinibatchLogProb(log_prior, log_likelihood, (x, y), n, shared_batch=True)


class Exact(tfp.mcmc.TransitionKernel):
    """Draws independently from the posterior."""

    is_calibrated = True

    def __init__(self, target_log_prob_fn: Any = None):
        self.parameters = {"target_log_prob_fn": target_log_prob_fn}

    def bootstrap_results(self, init_state: Any) -> Any:
        return ()

    def one_step(self, current_state: Any, previous_kernel_results: Any, seed: Any = None) -> Any:
        z = tf.random.stateless_normal(tf.shape(current_state), seed, dtype=tf.float64)
        return MEAN + tf.linalg.matvec(FACTOR, z), ()


@pytest.fixture(scope="module")
def result() -> sgmcmc.SampleResult:
    return sgmcmc.sample_chain(
        Exact(target()), tf.zeros([CHAINS, D], tf.float64), DRAWS, seed=1, jit_compile=False,
        progress_bar=False, preflight_check=False,
    )  # fmt: skip


def test_the_log_likelihood_of_rows(result: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [5, 2, 2999]
    found = result.log_likelihood(rows)
    eta = np.einsum("scd,nd->scn", result.states, X[rows])
    expected = -0.5 * np.log(2 * np.pi * SIGMA**2) - 0.5 * ((Y[rows] - eta) / SIGMA) ** 2
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    monkeypatch.setattr(draw_functions, "_MOST_NUMBERS", 700)
    np.testing.assert_allclose(result.log_likelihood(slice(0, 7))[..., [5, 2]], found[..., :2])
    with pytest.raises(ValueError, match="pass target="):
        result.map(lambda w: w).log_likelihood(rows)
    given = result.map(lambda w: w).log_likelihood([0], target=target(X[rows], Y[rows]))
    np.testing.assert_allclose(given[..., 0], found[..., 0])


def test_loo_of_some_rows_is_exact_leave_one_out(result: Any) -> None:
    """The error of subsampling is 5 of its standard errors with probability 6e-7.

    Importance sampling with 4,000 draws adds an error of about 0.01. The mean of 200 rows alone
    would have an error of 120.
    """
    pytest.importorskip("arviz", exc_type=ImportError)
    loo = result.loo(200)
    assert loo.num_examples == N and len(loo.rows) == 200 and not loo.flags
    np.testing.assert_allclose(loo.pointwise, EXACT[loo.rows], atol=0.01)
    assert abs(loo.elpd - EXACT.sum()) < 5 * loo.subsampling_error + 0.02 * N / 200
    assert loo.subsampling_error < 0.3
    assert loo.standard_error == pytest.approx(np.sqrt(N) * EXACT.std(), rel=0.02)
    plain = N * np.std(loo.pointwise, ddof=1) / np.sqrt(200)
    assert plain > 100 * loo.subsampling_error  # negative control: without the surrogate
    assert loo.p_loo == pytest.approx(D, rel=0.5)


@pytest.mark.thorough
def test_loo_of_all_rows_is_exact_leave_one_out() -> None:
    pytest.importorskip("arviz", exc_type=ImportError)
    drawn = sgmcmc.sample_chain(
        Exact(), tf.zeros([D], tf.float64), 2000, seed=2, num_chains=1, jit_compile=False,
        progress_bar=False, preflight_check=False,
    )  # fmt: skip
    loo = drawn.loo(10_000, target=target())
    assert loo.subsampling_error == 0 and len(loo.rows) == N
    assert loo.elpd == pytest.approx(EXACT.sum(), abs=0.3)  # of -3,200; p_loo is 4


@pytest.mark.parametrize("kind", ["sharded", "streamed", "with a rest", "control variate"])
def test_other_targets_have_the_same_rows(result: Any, kind: str) -> None:
    pytest.importorskip("arviz", exc_type=ImportError)
    expected, other = result.loo(50), target()
    if kind in ("streamed", "with a rest"):
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(100 if kind == "streamed" else 700)
        other = sgmcmc.StreamedLogProb(log_prior, log_likelihood, data, N)
    elif kind == "sharded":
        halves = slice(0, N // 2), slice(N // 2, N)
        other = sgmcmc.ShardedLogProb(
            log_prior, log_likelihood, lambda i: (X[halves[i]], Y[halves[i]]), 2, N, 100
        )
    else:
        other = sgmcmc.ControlVariate(other, tf.constant(MEAN))
    found = result.loo(50, target=other)
    np.testing.assert_allclose(found.pointwise, expected.pointwise, rtol=1e-9)
    assert found.elpd == pytest.approx(expected.elpd, rel=1e-9)


def test_a_pool_of_rows_is_not_taken_for_all_rows(result: Any) -> None:
    """Each stands for several, so that leaving one out would leave out several."""
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(500)
    streamed = sgmcmc.StreamedLogProb(
        log_prior,
        lambda w, batch: log_likelihood_of_means(tf.linalg.matvec(batch[0], w), batch[1]),
        data,
        N,
        memory=20_000,
    )
    pool, report = sgmcmc.draw_pool(streamed, tf.zeros([D], tf.float64), jit_compile=False)
    assert report.num_rows < N
    pooled = dataclasses.replace(result, kernel=Exact(pool))
    for evaluate in (pooled.loo, pooled.log_likelihood):
        with pytest.raises(ValueError, match="Pass the StreamedLogProb as target="):
            evaluate()
    np.testing.assert_allclose(
        pooled.log_likelihood([1, N - 1], target=streamed),
        result.log_likelihood([1, N - 1], target=target()),
    )


def test_rows_that_a_dataset_leaves_out_are_told(result: Any) -> None:
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(700, drop_remainder=True)
    other = sgmcmc.StreamedLogProb(log_prior, log_likelihood, data, N)
    with pytest.raises(ValueError, match="leaves out 200. Make its batches without drop_remainder"):
        result.log_likelihood([1], target=other)


def test_draws_in_other_coordinates_than_the_kernels_find_their_rows(result: Any) -> None:
    """As those of `sample`, which are parameters, while its kernel moves whitened states."""
    bijector = tfp.bijectors.Shift(tf.constant(MEAN))(tfp.bijectors.Exp())
    whitened = target().with_bijector(bijector)
    moved = dataclasses.replace(
        result, states=result.states + 5.0, bijector=bijector, kernel=Exact(whitened)
    )
    expected = result.map(lambda w: w + 5.0).log_likelihood([1, 7], target=target())
    for given in (None, target(), whitened):
        found = moved.log_likelihood([1, 7], target=given)
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    copied = dataclasses.replace(moved, kernel=None, bijector=None, choices="of sample")
    found = copied.log_likelihood([1, 7], target=whitened)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_generated_quantities(result: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw_functions, "_BLOCK", 3000)  # 23 draws
    found = result.map(lambda w: {"ratio": w[..., 0] / w[..., 1], "squares": w**2})
    np.testing.assert_allclose(found.states["ratio"], result.states[..., 0] / result.states[..., 1])
    assert found.summary().names == ("ratio", *(f"squares[{i}]" for i in range(D)))
    assert found.num_results == DRAWS and "ratio" in repr(found)
    again = found.map(lambda ratio, squares: ratio)
    np.testing.assert_array_equal(again.states, found.states["ratio"])
    assert sgmcmc.report(found).rows[0].name == "ratio"
    with pytest.raises(ValueError, match=r"leading axes of the draws, \[23, 4\].*shape \[4"):
        result.map(lambda w: w[0])


def test_predictions(result: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def eta(w: Any, batch: Any) -> Any:
        return tf.einsum("sd,nd->sn", w, batch)

    found = result.predict(eta, X[:40])
    sd = np.sqrt(np.einsum("nd,de,ne->n", X[:40], np.linalg.inv(PRECISION), X[:40]))
    assert np.all(np.abs(found.mean - X[:40] @ MEAN) < 6 * sd / np.sqrt(DRAWS * CHAINS))
    np.testing.assert_allclose(found.standard_deviation, sd, rtol=0.1)
    np.testing.assert_allclose(found.quantiles[1] - found.quantiles[0], 3.29 * sd, rtol=0.15)
    monkeypatch.setattr(draw_functions, "_MOST_NUMBERS", 7 * DRAWS * CHAINS)
    again = result.predict(eta, X[:40])
    np.testing.assert_allclose(again.quantiles, found.quantiles)
    with pytest.raises(ValueError, match=r"\[draws, rows, ...\]"):
        result.predict(lambda w, batch: w[:, 0], X[:40])
    text = str(found)
    assert f"{found.mean[9]:.4g}" in text and "quantile 2" in text and "30 more rows." in text
    with pytest.raises(TypeError, match="fn must be callable with 2 arguments"):
        result.predict(lambda w: w, X[:40])


def test_draws_without_a_result_to_look_at_are_told(result: Any) -> None:
    """A run that was interrupted before its first draw."""
    none = dataclasses.replace(result, states=result.states[:0])
    looks = (none.summary, none.plot_marginals, none.log_likelihood, lambda: none.map(tf.identity))
    for look in looks:
        with pytest.raises(ValueError, match="The result must have draws"):
            look()
    assert "0 draws" in repr(none)
    with pytest.raises(ValueError, match=f"at least one of the {N} rows. Received: slice"):
        result.log_likelihood(slice(5, 5))


def test_copies_of_draws_that_are_parameters_are_taken_for_them() -> None:
    """A copy by pickle lacks the bijector, as do draws in shards.

    Of log x with x of a normal posterior, draws of x have no error. Taken for log x, they would be
    far off.
    """
    bijector = tfp.bijectors.Exp()
    scale = np.linspace(1.0, 2.0, 100)
    chosen = sgmcmc.MinibatchLogProb(
        tfd.Gamma(tf.constant(2.0, tf.float64), 1.0).log_prob,
        lambda x, rows: tfd.Normal(x[..., None], 1.0).log_prob(rows),
        scale, 10, bijector=bijector,
    )  # fmt: skip
    sampled = sgmcmc.sample(chosen, tf.zeros([], tf.float64), 200, seed=0, progress_bar=False)
    copied = dataclasses.replace(sampled, bijector=None, kernel=None)
    assert sampled.has_parameters and copied.has_parameters
    for one in (sampled, copied):
        found = sgmcmc.certify(one, chosen, num_draws=500)
        assert abs(found.largest_offset[0]) < 0.5 and 0.8 < found.largest_ratio[0] + 1 < 1.2
        assert not sgmcmc.report(one, chosen).problems
    states = dataclasses.replace(copied, choices=None)  # negative control
    assert sgmcmc.report(states, chosen).problems
