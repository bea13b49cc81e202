"""MinibatchLogProb: exact values in chunks, unbiased estimates, bijectors, epochs, memory."""

import itertools
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from scipy import stats

import tfp_sgmcmc as sgmcmc
from tests.harness.gaussian_mean import GaussianMean
from tests.harness.statistics import Rejected, check_means

tfb, tfd = tfp.bijectors, tfp.distributions

GENERATOR = np.random.default_rng(0)
N, D = 23, 3
X = GENERATOR.standard_normal([N, D])
Y = GENERATOR.integers(0, 2, N)
TOLERANCE = {tf.float32: 2e-5, tf.float64: 1e-11}


def regression(dtype: tf.DType = tf.float64, batch_size: int = 5, **options: Any) -> Any:
    """Logistic regression with integer labels: nested dict data."""
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


def log_likelihoods(theta: np.ndarray) -> np.ndarray:
    logits = theta @ X.T
    return Y * logits - np.logaddexp(0, logits)


def scores(theta: np.ndarray) -> np.ndarray:
    return (Y - 1 / (1 + np.exp(-theta @ X.T)))[..., np.newaxis] * X


def log_posterior(theta: np.ndarray) -> np.ndarray:
    return -0.5 * np.sum(theta**2, axis=-1) + log_likelihoods(theta).sum(axis=-1)


def log_posterior_gradient(theta: np.ndarray) -> np.ndarray:
    return -theta + scores(theta).sum(axis=-2)


# Exact value and gradient


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("chunk_size", [1, 4, 22, 23, None])
@pytest.mark.parametrize("chains", [(), (4,), (2, 3)])
def test_exact_value_and_gradient(
    chains: tuple[int, ...], chunk_size: int | None, dtype: tf.DType
) -> None:
    """By chunks that divide N and that do not; against NumPy over all examples at once."""
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


@pytest.mark.parametrize("in_graph", [False, True])
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


@pytest.mark.parametrize("jit", [pytest.param(False, marks=pytest.mark.slow), True])
def test_compiled_values_and_estimates_are_the_eager_ones(jit: bool) -> None:
    """Minibatches are the same in every mode, and so is everything but rounding."""
    target = regression(chunk_size=4, replacement=True)  # compiles faster
    theta = tf.constant(GENERATOR.standard_normal([6, D]))

    def both(theta: tf.Tensor) -> Any:
        return tfp.math.value_and_gradient(target, theta), target.estimate(
            theta, tf.constant([1, 2])
        )

    eager = tf.nest.flatten(both(theta))
    graph = tf.nest.flatten(tf.function(both, jit_compile=jit, autograph=False)(theta))
    assert len(eager) == len(graph) == 6  # scores and their scale among them
    for x, y in zip(eager, graph, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("chunk_size", [pytest.param(None, marks=pytest.mark.slow), 5])
def test_hamiltonian_monte_carlo_runs_on_the_target(chunk_size: int | None) -> None:
    """Means of 2,000 chains against the conjugate posterior. Power: 0.2 standard deviations."""
    model = GaussianMean()
    target = model.target(4, tf.float64, chunk_size=chunk_size)
    kernel = tfp.mcmc.HamiltonianMonteCarlo(target, step_size=0.15, num_leapfrog_steps=3)

    @tf.function(jit_compile=True, autograph=False)
    def run(seed: tf.Tensor) -> tf.Tensor:
        return tfp.mcmc.sample_chain(
            1,
            tf.zeros([2000, 3], tf.float64),
            kernel=kernel,
            num_burnin_steps=100,
            trace_fn=None,
            seed=seed,
        )

    white = (
        np.linalg.cholesky(model.hessian).T @ (run(tf.constant([0, 1]))[0].numpy() - model.mean).T
    )
    check_means(white.T, 0.0, error=0.2)


# Estimates


def test_estimate_from_all_examples_is_exact() -> None:
    theta = GENERATOR.standard_normal([4, D])
    estimate = regression(batch_size=N).estimate(tf.constant(theta), tf.constant([1, 2]))
    np.testing.assert_allclose(estimate.gradient, log_posterior_gradient(theta), rtol=1e-10)
    np.testing.assert_allclose(estimate.log_prob, log_posterior(theta), rtol=1e-10)


@pytest.mark.parametrize("replacement", [False, True])
def test_estimates_are_unbiased_with_covariance_c_v(replacement: bool) -> None:
    """Mean, and covariance of divisor N - 1 without replacement and N with.

    Power: 3% of a standard deviation of g, 5% of its variances.
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
    with pytest.raises(Rejected):  # c and V of the other scheme
        ratio = (N - 1) / (N - batch)
        check_means(products * (ratio if replacement else 1 / ratio), rows == columns, error=0.1)
    values = estimate.log_prob.numpy()
    check_means(values, log_posterior(theta), error=0.03 * values.std(), name="log_prob")


def test_mean_over_every_subset_is_the_full_gradient() -> None:
    """The estimate is prior + N/n sum over the batch: exactly, for all C(6, 2) batches."""
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


def test_hessian_product_is_that_of_the_same_minibatch() -> None:
    target = regression(batch_size=5)
    theta, probe = GENERATOR.standard_normal([2, 4, D])
    seed = tf.constant([1, 2])
    estimate = target.estimate(tf.constant(theta), seed, probe=tf.constant(probe))
    h = 1e-6
    up, down = (target.estimate(tf.constant(theta + s * probe), seed) for s in (h, -h))
    difference = (up.gradient - down.gradient) / (2 * h)
    np.testing.assert_allclose(estimate.hessian_product, difference, rtol=1e-6, atol=1e-6)


def test_chains_share_minibatches_or_have_their_own() -> None:
    theta = tf.constant(np.tile(GENERATOR.standard_normal(D), [2, 4, 1]))
    for shared in (True, False):
        gradient = regression(shared_batch=shared).estimate(theta, tf.constant([1, 2])).gradient
        distinct = len(np.unique(np.round(gradient.numpy().reshape(8, D), 9), axis=0))
        assert distinct == (1 if shared else 8)


def test_one_chain_and_many_agree() -> None:
    """A shared minibatch of many chains is the minibatch of a chain alone."""
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


# Epochs


@pytest.mark.parametrize(
    ("total", "batch"),
    [
        *(pytest.param(12, n, marks=pytest.mark.slow) for n in (4, 5)),
        (5, 3),
        pytest.param(7, 7, marks=pytest.mark.slow),
    ],
)
def test_epochs_take_every_example_once_a_pass(total: int, batch: int) -> None:
    """Also where n does not divide N: a minibatch then ends one pass and begins the next."""
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
        indices = target._epoch_draw(
            tf.where(step == 0, seed, carried.key), carried.step, [chains]
        ).numpy()
        estimate = target.estimate(state, seed, carried)
        np.testing.assert_allclose(estimate.gradient, total / batch * np.sum(2.0**indices, axis=1))
        carried = estimate.target_state
        taken.append(indices)
    order = np.concatenate(taken, axis=1)[:, : passes * total].reshape(chains, passes, total)
    np.testing.assert_array_equal(
        np.sort(order, axis=-1), np.broadcast_to(np.arange(total), order.shape)
    )
    # Of 18 permutations of 5 or more two may be equal by chance; copies would leave 3 or 6.
    assert len(np.unique(order.reshape(-1, total), axis=0)) > 10
    assert len(np.unique(order[:, 0], axis=0)) == chains


# Bijectors


def gamma_model(bijector: Any, dtype: tf.DType = tf.float64) -> Any:
    """Location and positive scale of Student's t."""
    return sgmcmc.MinibatchLogProb(
        lambda loc, scale: (
            tfd.Normal(tf.zeros([], dtype), 3.0).log_prob(loc)
            + tfd.Gamma(tf.constant(2.0, dtype), 1.0).log_prob(scale)
        ),
        lambda loc, scale, x: tfd.StudentT(
            tf.constant(4.0, dtype), loc[..., tf.newaxis], scale[..., tf.newaxis]
        ).log_prob(x),
        X[:, 0],
        5,
        dtype=dtype,
        bijector=bijector,
    )


@pytest.mark.parametrize(
    ("bijector", "forward", "derivative"),
    [
        (tfb.Exp(), np.exp, np.exp),
        (tfb.Softplus(), lambda u: np.logaddexp(0, u), lambda u: 1 / (1 + np.exp(-u))),
    ],
    ids=["exp", "softplus"],
)
def test_bijector_of_one_part(bijector: Any, forward: Any, derivative: Any) -> None:
    """Log posterior of the unconstrained state: prior + likelihood + log |d scale / d u|."""
    target = gamma_model([None, bijector])
    loc, u = np.array([0.3, -1.0]), np.array([-0.4, 1.2])
    scale = forward(u)
    expected = (
        stats.norm.logpdf(loc, 0, 3)
        + stats.gamma.logpdf(scale, 2)
        + stats.t.logpdf(X[:, :1], 4, loc, scale).sum(axis=0)
        + np.log(derivative(u))
    )
    state = [tf.constant(loc), tf.constant(u)]
    np.testing.assert_allclose(target(*state), expected, rtol=1e-10)
    whole = sgmcmc.MinibatchLogProb(
        target._log_prior_fn, target._log_likelihood_fn, X[:, 0], N, bijector=[None, bijector]
    )
    np.testing.assert_allclose(
        whole.estimate(state, tf.constant([0, 0])).log_prob, expected, rtol=1e-10
    )
    constrained = target.constrain(state)
    np.testing.assert_allclose(constrained[0], loc)
    np.testing.assert_allclose(constrained[1], scale)
    for x, y in zip(target.unconstrain(constrained), state, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10)


def test_bijector_of_a_single_part_and_of_a_dict() -> None:
    u = np.array([0.3, -0.7])

    def log_likelihood(rate: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        return tfd.Exponential(rate[..., tf.newaxis]).log_prob(batch)

    def log_prior(rate: tf.Tensor) -> tf.Tensor:
        return tfd.Exponential(tf.constant(1.0, tf.float64)).log_prob(rate)

    data = np.abs(X[:, 0])
    single = sgmcmc.MinibatchLogProb(log_prior, log_likelihood, data, 5, bijector=tfb.Exp())
    by_name = sgmcmc.MinibatchLogProb(
        log_prior, log_likelihood, data, 5, bijector={"rate": tfb.Exp()}
    )
    rate = np.exp(u)
    expected = -rate + N * u - rate * data.sum() + u
    np.testing.assert_allclose(single(tf.constant(u)), expected)
    np.testing.assert_allclose(by_name(rate=tf.constant(u)), expected)
    np.testing.assert_allclose(single.constrain(tf.constant(u)), rate)


@pytest.mark.parametrize("chains", [(), (3,), (2, 2)])
def test_bijector_that_changes_the_event_size(chains: tuple[int, ...]) -> None:
    """Probabilities of three classes from two numbers; labels are integers."""
    labels = GENERATOR.integers(0, 3, N)
    bijector = tfb.IteratedSigmoidCentered()
    target = sgmcmc.MinibatchLogProb(
        lambda p: tfd.Dirichlet(tf.constant([1.0, 2.0, 3.0], tf.float64)).log_prob(p),
        lambda p, batch: tf.math.log(tf.reduce_sum(p[..., tf.newaxis, :] * batch, axis=-1)),
        np.eye(3)[labels],
        5,
        bijector=bijector,
    )
    u = GENERATOR.standard_normal([*chains, 2])
    p = bijector.forward(tf.constant(u)).numpy()
    assert p.shape == (*chains, 3)
    prior = math.lgamma(6) - math.lgamma(2) - math.lgamma(3) + np.log(p) @ [0.0, 1.0, 2.0]
    jacobian = np.log(p).sum(axis=-1)  # of the first two probabilities: p_1 p_2 p_3
    expected = prior + np.log(p) @ np.bincount(labels, minlength=3) + jacobian
    value, gradient = tfp.math.value_and_gradient(target, tf.constant(u))
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    assert gradient.shape == u.shape
    estimate = target.estimate(tf.constant(u), tf.constant([0, 1]))
    assert estimate.log_prob.shape == chains and estimate.gradient.shape == u.shape
    np.testing.assert_allclose(target.unconstrain(target.constrain(tf.constant(u))), u, rtol=1e-8)


def test_bijector_from_vector_to_matrix() -> None:
    """A correlation matrix's factor, [3] -> [3, 3], with its Jacobian by differences."""
    bijector = tfb.CorrelationCholesky()
    target = sgmcmc.MinibatchLogProb(
        lambda factor: tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)), axis=-1),
        lambda factor, x: tfd.MultivariateNormalTriL(
            scale_tril=factor[..., tf.newaxis, :, :]
        ).log_prob(x),
        X,
        5,
        bijector=bijector,
    )
    u = np.array([[0.2, -0.5, 0.9], [0.0, 0.1, 0.4]])
    free = np.array([[1, 0], [2, 0], [2, 1]])  # the entries that parametrise the factor
    expected = []
    for row in u:
        factor = bijector.forward(tf.constant(row)).numpy()
        jacobian = np.empty([3, 3])
        for j in range(3):
            up, down = (
                bijector.forward(tf.constant(row + s * np.eye(3)[j])).numpy() for s in (1e-6, -1e-6)
            )
            jacobian[:, j] = ((up - down) / 2e-6)[free[:, 0], free[:, 1]]
        expected.append(
            np.log(np.diag(factor)).sum()
            + stats.multivariate_normal.logpdf(X, cov=factor @ factor.T).sum()
            + np.linalg.slogdet(jacobian)[1]
        )
    np.testing.assert_allclose(target(tf.constant(u)), expected, rtol=1e-7)


# Memory

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
    """400 MB of data; value and gradient add less than 200 MB: in a graph, compiled, and eager."""
    run = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr[-2000:]
    added = [float(line) for line in run.stdout.split()]
    assert len(added) == 3 and max(added) < 200
