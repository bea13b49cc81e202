"""MinibatchLogProb: exact values in chunks, unbiased estimates, epochs, memory."""

import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.chains import run_chains
from tests.harness.gaussian_mean import GaussianMean
from tests.harness.statistics import Rejected, check_means

tfb, tfd = tfp.bijectors, tfp.distributions

GENERATOR = np.random.default_rng(0)
N, D = 23, 3
X = GENERATOR.standard_normal([N, D])
Y = GENERATOR.integers(0, 2, N)
TOLERANCE = {tf.float32: 2e-5, tf.float64: 1e-11}


def regression(dtype: tf.DType = tf.float64, batch_size: int = 5, **options: Any) -> Any:
    """A logistic regression with integer labels and data in a nested dict."""
    return sgmcmc.MinibatchLogProb(
        lambda theta: -0.5 * tf.reduce_sum(theta**2, axis=-1),
        lambda theta, batch: tfd.Bernoulli(tf.linalg.matvec(batch["x"]["raw"], theta)).log_prob(
            batch["y"]
        ),
        {"x": {"raw": X}, "y": Y},
        batch_size,
        dtype=dtype,
        **options,
    )


def scores(theta: np.ndarray) -> np.ndarray:
    return (Y - 1 / (1 + np.exp(-theta @ X.T)))[..., np.newaxis] * X


def log_posterior(theta: np.ndarray) -> np.ndarray:
    logits = theta @ X.T
    log_likelihoods = Y * logits - np.logaddexp(0, logits)
    return -0.5 * np.sum(theta**2, axis=-1) + log_likelihoods.sum(axis=-1)


def log_posterior_gradient(theta: np.ndarray) -> np.ndarray:
    return -theta + scores(theta).sum(axis=-2)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("chunk_size", [1, 4, 22, 23, None])
@pytest.mark.parametrize("chains", [(), (4,), (2, 3)])
def test_exact_value_and_gradient(
    chains: tuple[int, ...], chunk_size: int | None, dtype: tf.DType
) -> None:
    """Compares chunks, which divide N or do not, with NumPy over all examples at once."""
    target = regression(dtype, chunk_size=chunk_size)
    theta = GENERATOR.standard_normal([*chains, D])
    value, gradient = tfp.math.value_and_gradient(target, tf.constant(theta, dtype))
    assert value.shape == chains and value.dtype == dtype
    tolerance = dict(rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    np.testing.assert_allclose(value, log_posterior(theta), **tolerance)
    np.testing.assert_allclose(gradient, log_posterior_gradient(theta), **tolerance)


def test_upstream_gradients_reach_through_chunks() -> None:
    target = regression(chunk_size=4)
    theta = tf.constant(GENERATOR.standard_normal([2, D]))
    _, gradient = tfp.math.value_and_gradient(
        lambda x: tf.reduce_sum([2.0, -3.0] * target(x)), theta
    )
    np.testing.assert_allclose(gradient, [[2], [-3]] * log_posterior_gradient(theta.numpy()))


@pytest.mark.parametrize("in_graph", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_second_derivatives_are_right_or_refused(in_graph: bool) -> None:
    theta = GENERATOR.standard_normal(D)
    p = 1 / (1 + np.exp(-X @ theta))
    expected = -np.eye(D) - (X * (p * (1 - p))[:, np.newaxis]).T @ X

    state = tf.constant(theta)

    def hessian(target: Any) -> list[tf.Tensor]:
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(state)
            _, gradient = tfp.math.value_and_gradient(target, state)
            entries = tf.unstack(gradient)
        return [outer.gradient(entry, state) for entry in entries]

    evaluate = tf.function(hessian, autograph=False) if in_graph else hessian
    at_once, in_chunks = regression(chunk_size=N), regression(chunk_size=4)
    np.testing.assert_allclose(evaluate(at_once), expected, rtol=1e-9, atol=1e-9)
    with pytest.raises(NotImplementedError, match="chunks has first derivatives only"):
        evaluate(in_chunks)


@pytest.mark.thorough
@pytest.mark.parametrize("jit", [pytest.param(False, marks=pytest.mark.slow), True])
def test_compiled_values_and_estimates_are_the_eager_ones(jit: bool) -> None:
    """Every mode has the same minibatches, and the same results up to rounding."""
    target = regression(chunk_size=4, replacement=True)  # which compiles faster
    theta = tf.constant(GENERATOR.standard_normal([6, D]))

    def both(theta: tf.Tensor) -> Any:
        estimate = target.estimate(theta, tf.constant([1, 2]))
        return tfp.math.value_and_gradient(target, theta), estimate._replace(num_scores=())

    eager = tf.nest.flatten(both(theta))
    graph = tf.nest.flatten(tf.function(both, jit_compile=jit, autograph=False)(theta))
    assert len(eager) == len(graph) == 6  # including scores and their scale
    for x, y in zip(eager, graph, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("jit_compile", [None, False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("chunk_size", [12, 4, 5])
def test_what_the_functions_close_over_has_its_whole_gradient(
    chunk_size: int, jit_compile: bool | None
) -> None:
    """Both a variable and a watched tensor, as in empirical Bayes, beside the state's gradient.

    With y_i ~ N(theta, v), theta ~ N(0, v): d/dv = -(N + 1) / 2v + (theta^2 + sum r^2) / 2v^2.
    """
    y, theta, v = np.arange(12.0), 3.0, 4.0
    variance, factor, state = tf.Variable(v, dtype=tf.float64), tf.constant(1.0, tf.float64), theta

    def target_of(factor: tf.Tensor) -> sgmcmc.MinibatchLogProb:
        def normal(x: Any) -> tf.Tensor:
            w = factor * variance
            return -0.5 * tf.math.log(w) - 0.5 * x**2 / w

        return sgmcmc.MinibatchLogProb(
            normal, lambda t, batch: normal(batch - t[..., None]), y, 4, chunk_size=chunk_size
        )

    def gradients() -> Any:
        with tf.GradientTape() as tape:
            at = tf.constant(state, tf.float64)
            tape.watch((at, factor))
            value = made(at) if jit_compile is not None else target_of(factor)(at)
        return tape.gradient(value, (at, variance, factor))

    made = target_of(factor)
    if jit_compile is not None:
        gradients = tf.function(gradients, jit_compile=jit_compile, autograph=False)
    of_state, of_variance, of_factor = gradients()
    expected = -13 / (2 * v) + (theta**2 + np.sum((y - theta) ** 2)) / (2 * v**2)
    np.testing.assert_allclose(of_state, (np.sum(y - theta) - theta) / v, rtol=1e-12)
    np.testing.assert_allclose(of_variance, expected, rtol=1e-12)
    np.testing.assert_allclose(of_factor, v * expected, rtol=1e-12)


@pytest.mark.parametrize(
    "chunk_size",
    [pytest.param(None, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.thorough)],
)
def test_hamiltonian_monte_carlo_runs_on_the_target(chunk_size: int | None) -> None:
    """Compares 2,000 chains with the conjugate posterior; finds 0.2 standard deviations."""
    model = GaussianMean()
    target = model.target(4, tf.float64, chunk_size=chunk_size)
    kernel = tfp.mcmc.HamiltonianMonteCarlo(target, step_size=0.15, num_leapfrog_steps=3)
    samples = run_chains(kernel, tf.zeros([2000, 3], tf.float64), 1, 100, seed=1)[:, 0]
    white = np.linalg.cholesky(model.hessian).T @ (samples - model.mean).T
    check_means(white.T, 0.0, error=0.2)


def test_estimate_from_all_examples_is_exact() -> None:
    theta = GENERATOR.standard_normal([4, D])
    estimate = regression(batch_size=N).estimate(tf.constant(theta), tf.constant([1, 2]))
    np.testing.assert_allclose(estimate.gradient, log_posterior_gradient(theta), rtol=1e-10)
    np.testing.assert_allclose(estimate.log_prob, log_posterior(theta), rtol=1e-10)


@pytest.mark.parametrize("replacement", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_estimates_are_unbiased_with_covariance_c_v(replacement: bool) -> None:
    """V has the divisor N - 1 without replacement and N with replacement.

    Finds errors of 3% of a standard deviation of g and 5% of its variances.
    """
    batch, chains = 7, 100_000
    target = regression(tf.float64, batch, replacement=replacement)
    theta = GENERATOR.standard_normal(D)
    state = tf.constant(np.tile(theta, [chains, 1]))
    estimate = target.estimate(state, tf.constant([1, 2]))
    population = np.cov(scores(theta), rowvar=False, ddof=0 if replacement else 1)
    assert target.noise_scale == (N**2 / batch if replacement else N * (N - batch) / batch)
    root = np.linalg.cholesky(target.noise_scale * population)
    white = np.linalg.solve(root, (estimate.gradient - log_posterior_gradient(theta)).numpy().T).T
    rows, columns = np.tril_indices(D)
    check_means(white, 0.0, error=0.03, name="gradient")
    products = white[:, rows] * white[:, columns]
    check_means(products, rows == columns, error=0.05, name="covariance")
    with pytest.raises(Rejected):  # c and V of the other way of drawing
        ratio = (N - 1) / (N - batch)
        check_means(products * (ratio if replacement else 1 / ratio), rows == columns, error=0.1)
    values = estimate.log_prob.numpy()
    check_means(values, log_posterior(theta), error=0.03 * values.std(), name="log_prob")


def test_mean_over_every_subset_is_the_full_gradient() -> None:
    """The estimate is exactly the prior plus N/n times the sum, for all C(6, 2) batches."""
    data = GENERATOR.standard_normal(6)
    target = sgmcmc.MinibatchLogProb(
        lambda t: -0.5 * t**2, lambda t, x: -0.5 * (x - t[..., tf.newaxis]) ** 2, data, 2
    )
    theta = tf.fill([200], tf.constant(0.3, tf.float64))
    seed = tf.constant([0, 1])
    gradients = target.estimate(theta, seed).gradient.numpy()
    batches = np.sort(target.draw(seed, tf.range(2), [200]).numpy(), axis=-1)
    by_batch = {tuple(b): g for b, g in zip(batches, gradients, strict=True)}
    assert set(by_batch) == set(itertools.combinations(range(6), 2))
    for batch, gradient in by_batch.items():
        np.testing.assert_allclose(gradient, -0.3 + 3 * np.sum(data[list(batch)] - 0.3))
    np.testing.assert_allclose(np.mean(list(by_batch.values())), -0.3 + np.sum(data - 0.3))


def test_chains_share_minibatches_or_have_their_own() -> None:
    theta = tf.constant(np.tile(GENERATOR.standard_normal(D), [2, 4, 1]))
    for shared in (True, False):
        gradient = regression(shared_batch=shared).estimate(theta, tf.constant([1, 2])).gradient
        distinct = len(np.unique(np.round(gradient.numpy().reshape(8, D), 9), axis=0))
        assert distinct == (1 if shared else 8)


@pytest.mark.thorough
def test_one_chain_and_many_agree() -> None:
    """Many chains that share a minibatch use the same one as a single chain."""
    theta = GENERATOR.standard_normal([4, D])
    target = regression(shared_batch=True)
    many = target.estimate(tf.constant(theta), tf.constant([1, 2]))
    for i in range(4):
        alone = target.estimate(tf.constant(theta[i]), tf.constant([1, 2]))
        np.testing.assert_allclose(many.gradient[i], alone.gradient, rtol=1e-10)
        np.testing.assert_allclose(many.log_prob[i], alone.log_prob, rtol=1e-10)


def test_data_keep_their_dtypes_unless_floating() -> None:
    seen = {}

    def log_likelihood(theta: tf.Tensor, batch: Any) -> tf.Tensor:
        seen.update({k: v.dtype for k, v in batch.items()})
        x = tf.where(batch["flag"], batch["x"], -batch["x"]) * tf.cast(batch["k"], tf.float32)
        return -((theta[..., tf.newaxis] - x) ** 2)

    target = sgmcmc.MinibatchLogProb(
        lambda theta: -(theta**2),
        log_likelihood,
        {"x": X[:, 0], "k": Y.astype(np.int32), "flag": Y > 0},
        5,
        dtype=tf.float32,
    )
    value = target(tf.constant(0.5))
    assert seen == {"x": tf.float32, "k": tf.int32, "flag": tf.bool}
    np.testing.assert_allclose(value, -0.25 - np.sum((0.5 - X[:, 0] * Y) ** 2), rtol=1e-5)


@pytest.mark.parametrize(
    ("total", "batch"),
    [
        *(pytest.param(12, n, marks=pytest.mark.slow) for n in (4, 5)),
        (5, 3),
        pytest.param(7, 7, marks=pytest.mark.slow),
    ],
)
def test_epochs_take_every_example_once_a_pass(total: int, batch: int) -> None:
    """If n does not divide N, a minibatch ends one pass and begins the next."""
    target = sgmcmc.MinibatchLogProb(
        lambda t: 0.0 * t,
        lambda t, x: x * t[..., tf.newaxis],  # the gradient tells which examples were taken
        2.0 ** np.arange(total),
        batch,
        reshuffle="epoch",
    )
    chains, passes = 3, 6
    state = tf.zeros([chains], tf.float64)
    carried, taken = target.bootstrap(state), []
    for step in range(-(-passes * total // batch)):
        seed = tf.constant([9, step])
        indices = target.next_indices(seed, carried)[0](target, [chains]).numpy()
        estimate = target.estimate(state, seed, carried, with_scores=False)
        np.testing.assert_allclose(estimate.gradient, total / batch * np.sum(2.0**indices, axis=1))
        carried = estimate.target_state
        taken.append(indices)
    order = np.concatenate(taken, axis=1)[:, : passes * total].reshape(chains, passes, total)
    np.testing.assert_array_equal(
        np.sort(order, axis=-1), np.broadcast_to(np.arange(total), order.shape)
    )
    # Two of 18 permutations may be equal by chance; copies would leave 3 or 6 different ones.
    assert len(np.unique(order.reshape(-1, total), axis=0)) > 10
    assert len(np.unique(order[:, 0], axis=0)) == chains


@pytest.mark.thorough
def test_symmetric_sweeps_take_the_minibatches_forward_and_backward() -> None:
    """Step t of 2 K takes minibatch min(t, 2 K - 1 - t) of a permutation, as a set."""
    total, batch = 12, 3
    target = sgmcmc.MinibatchLogProb(
        lambda t: 0.0 * t,
        lambda t, x: x * t[..., tf.newaxis],  # the gradient tells which examples were taken
        2.0 ** np.arange(total),
        batch,
        reshuffle="symmetric",
    )
    state = tf.zeros([2], tf.float64)
    carried, gradients = target.bootstrap(state), []
    for step in range(4 * total // batch):
        estimate = target.estimate(state, tf.constant([9, step]), carried)
        carried = estimate.target_state
        gradients.append(estimate.gradient.numpy())
    sweeps = np.reshape(gradients, [2, 2 * total // batch, 2])
    np.testing.assert_array_equal(sweeps, sweeps[:, ::-1])
    every_example = np.full([2, 2], total / batch * (2.0**total - 1))
    np.testing.assert_allclose(sweeps[:, : total // batch].sum(axis=1), every_example)
    assert not np.any(sweeps[0] == sweeps[1])


MEMORY = """
import resource
import numpy as np, tensorflow as tf, tensorflow_probability as tfp, tfp_sgmcmc as sgmcmc

target = sgmcmc.MinibatchLogProb(
    lambda theta: -0.5 * tf.reduce_sum(theta**2, axis=-1),
    lambda theta, x: tf.math.log_sigmoid(tf.linalg.matvec(x, theta)),
    np.ones([1_000_000, 100], np.float32), batch_size=1000)
theta = tf.zeros([100])

def evaluate(theta):
    return tfp.math.value_and_gradient(target, theta)

open("/proc/self/clear_refs", "w").write("5")  # the peak starts at what is resident now
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for fn in (tf.function(evaluate), tf.function(evaluate, jit_compile=True), evaluate):
    value, gradient = fn(theta)
    assert abs(float(value) / (1e6 * np.log(0.5)) - 1) < 1e-3
    assert np.allclose(gradient, 5e5, rtol=1e-3)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resets the peak through /proc")
def test_exact_gradient_of_a_million_examples_takes_little_memory() -> None:
    """For 400 MB of data, value and gradient take less than 200 MB in every mode."""
    command = [sys.executable, "-c", MEMORY]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]
    added = [float(line) for line in run.stdout.split()]
    assert len(added) == 3 and max(added) < 200
