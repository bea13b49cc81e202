"""The states that are kept, in all modes of compilation, and their stationary law."""

import keras
import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tests.keras.small_models import affine, assert_close, assert_equal, linear, sgld

N = 40
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, 3]).astype(np.float32)
Y = RNG.integers(0, 4, size=[N])


def sampler(burnin=0, between=0, **arguments):
    arguments |= {"num_burnin_steps": burnin, "num_steps_between_results": between}
    return small_models.sampler(sgld(), N, small_models.standard_normal(), **arguments)


def classifier(**compiled):
    keras.utils.set_random_seed(1)
    layers = keras.layers.Dense(5, "tanh"), keras.layers.Dense(4)
    return small_models.sequential(*layers, **compiled)


def fit(model, callback, epochs=3, batch_size=4):
    small_models.fit(model, callback, X, Y, batch_size=batch_size, epochs=epochs)
    return callback.samples


@pytest.fixture(
    scope="module", params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["graph", "xla"]
)
def jit_compile(request):
    return request.param


@pytest.fixture(scope="module")
def every_step(jit_compile):
    """Returns the states after each of 30 steps, with one step in a compiled execution."""
    return fit(classifier(jit_compile=jit_compile), sampler())


@pytest.mark.thorough
def test_every_state_is_kept(every_step):
    assert [s.shape for s in every_step] == [(30, 3, 5), (30, 5), (30, 5, 4), (30, 4)]
    assert all(np.abs(np.diff(s, axis=0)).reshape(29, -1).max(axis=1).min() > 0 for s in every_step)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "burnin, between, steps_per_execution",
    [
        pytest.param(0, 0, 7, marks=pytest.mark.slow),
        (5, 2, 7),
        pytest.param(0, 39, 10, marks=pytest.mark.slow),
    ],
)
def test_burnin_thinning_and_executions(
    jit_compile, every_step, burnin, between, steps_per_execution
):
    """Kept are the states that `sample_chain` keeps, bit for bit equal to those of single steps."""
    model = classifier(jit_compile=jit_compile, steps_per_execution=steps_per_execution)
    got = fit(model, sampler(burnin, between))
    assert_equal(got, [every[burnin :: between + 1] for every in every_step])
    assert_equal(model.get_weights(), [every[-1] for every in every_step])


@pytest.mark.thorough
def test_no_sample_before_the_end_of_burnin():
    samples = fit(classifier(run_eagerly=True), sampler(burnin=10), epochs=1)
    assert [s.shape for s in samples] == [(0, 3, 5), (0, 5), (0, 5, 4), (0, 4)]


def test_second_fit_goes_on(jit_compile, every_step):
    model, callback = classifier(jit_compile=jit_compile), sampler(burnin=2, between=3)
    fit(model, callback, epochs=1)
    assert len(callback.samples[0]) == 2  # steps 3 and 7 of 10
    model.steps_per_execution = 3
    fit(model, callback, epochs=2)
    assert_equal(callback.samples, [every[2::4] for every in every_step])


@pytest.mark.thorough
def test_seed():
    """Equal seeds give equal steps, and other seeds give others."""
    runs = [
        fit(classifier(run_eagerly=True), sampler(seed=s), 1, batch_size=N)[0]
        for s in (0, 0, 1, [0, 1])
    ]
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_array_equal(runs[2], runs[3])
    assert np.abs(runs[0] - runs[2]).max() > 1e-3


@pytest.mark.thorough
def test_eager_and_graph_give_the_same_chain(jit_compile, every_step):
    """Both draw Philox numbers, but may round sums differently."""
    if jit_compile:
        pytest.skip("XLA draws other numbers.")
    eager = fit(classifier(run_eagerly=True, steps_per_execution=3), sampler(), 1)
    assert_close(eager, [every[:10] for every in every_step], rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_kernel_results_are_carried_between_steps():
    """A schedule sees steps 0, 1, 2 and so on, so moves at temperature 0 have its ratios.

    The loss is linear, so the gradient is the same everywhere.
    """
    model = linear(lambda y, f: -f, 1, jit_compile=True, steps_per_execution=3)
    initial = model.get_weights()[0]
    kernel = sgld(lambda t: 1e-3 * (1.0 + tf.cast(t, tf.float32)), temperature=0.0)
    callback = small_models.sampler(kernel, N)
    model.fit(X, Y, batch_size=N, epochs=4, verbose=0, callbacks=[callback])
    moves = np.diff(np.concatenate([[initial], callback.samples[0]]), axis=0)
    gradient = X.sum(axis=0)[:, None]
    for t in range(4):
        np.testing.assert_allclose(moves[t], 0.5e-3 * (t + 1) * gradient, rtol=2e-4, atol=1e-6)


class TestStationaryLaw:
    """For linear regression with Gaussian noise and full batches, SGLD's law is known exactly.

    A step is theta <- A theta + b + sqrt(eps) z with A = I - eps/2 H and H = X'X + I/s^2. The mean
    is H^-1 X'y, and the covariance C solves C = A C A' + eps I, which includes the bias of the step
    size. A is symmetric, so the chain along its eigenvectors is independent AR(1) series. The mean
    and the mean square of S states of each have known Gaussian limits.
    """

    EPS, S = 0.01, 3000
    FALSE_ALARM = 1e-6 / 8  # over 8 statistics, two-sided

    def law(self, prior_scale=0.5):
        design = np.hstack([X.astype(np.float64), np.ones([N, 1])])
        y = design @ [1.0, -2.0, 0.5, 3.0] + np.random.default_rng(1).normal(size=N)
        hessian = design.T @ design + np.eye(4) / prior_scale**2
        matrix = np.eye(4) - self.EPS / 2 * hessian
        covariance = scipy.linalg.solve_discrete_lyapunov(matrix, self.EPS * np.eye(4))
        return y.astype(np.float32), np.linalg.solve(hessian, design.T @ y), covariance, matrix

    def fit(self, y):
        """Runs at EPS, then at three times EPS, in one compiled program."""
        step_size = tf.Variable(self.EPS)
        model = affine(small_models.unit_normal, 1, steps_per_execution=1000, jit_compile=True)
        kernel, prior = sgld(lambda _: step_size.read_value()), tfp.distributions.Normal(0.0, 0.5)
        arguments = {"num_burnin_steps": 1000, "check_num_examples": False}
        callback = small_models.sampler(kernel, N, prior, seed=3, **arguments)
        data = tf.data.Dataset.from_tensors((X, y[:, None])).repeat()
        steps = self.S + 1000
        for value in (self.EPS, 3 * self.EPS):
            step_size.assign(value)
            model.fit(data, steps_per_epoch=steps, shuffle=False, verbose=0, callbacks=[callback])
        samples = np.concatenate([s.reshape(len(s), -1) for s in callback.samples], axis=1)
        return samples[: self.S], samples[-self.S :]  # each after a burn-in of 1000 steps

    def p_values(self, samples, mean, covariance, matrix):
        decay, vectors = np.linalg.eigh(matrix)
        variance = np.diag(vectors.T @ covariance @ vectors)
        series = (samples - mean) @ vectors
        # Long-run variances of an AR(1) series and of its square.
        of_mean = variance * (1 + decay) / (1 - decay) / self.S
        of_square = 2 * variance**2 * (1 + decay**2) / (1 - decay**2) / self.S
        z = [series.mean(axis=0) / np.sqrt(of_mean)]
        z += [((series**2).mean(axis=0) - variance) / np.sqrt(of_square)]
        return 2 * scipy.stats.norm.sf(np.abs(np.concatenate(z)))

    def test_mean_and_covariance(self):
        """The test also detects 3 times the step size, a mean 0.3 deviations off, and no prior."""
        y, mean, covariance, matrix = self.law()
        right, wrong = self.fit(y)
        assert self.p_values(right, mean, covariance, matrix).min() > self.FALSE_ALARM
        assert self.p_values(wrong, mean, covariance, matrix).min() < self.FALSE_ALARM
        shifted = mean + 0.3 * np.sqrt(np.diag(covariance))
        assert self.p_values(right, shifted, covariance, matrix).min() < self.FALSE_ALARM
        _, flat_mean, flat_covariance, _ = self.law(prior_scale=1e6)
        assert self.p_values(right, flat_mean, flat_covariance, matrix).min() < self.FALSE_ALARM

    @pytest.mark.slow
    def test_sample_chain_has_the_same_law(self):
        y, mean, covariance, matrix = self.law()
        x = np.hstack([X, np.ones([N, 1], np.float32)])
        target = sgmcmc.MinibatchLogProb(
            lambda theta: -tf.reduce_sum(theta**2, axis=-1) * 2,
            lambda theta, batch: -0.5 * (batch[1] - tf.linalg.matvec(batch[0], theta)) ** 2,
            data=(x, y),
            batch_size=N,
        )

        @tf.function(jit_compile=True, autograph=False)
        def run(seed):
            return tfp.mcmc.sample_chain(
                self.S, tf.zeros([4]), kernel=sgmcmc.SGLD(target, self.EPS),
                num_burnin_steps=1000, trace_fn=None, seed=seed,
            )  # fmt: skip

        samples = run(tf.constant([0, 3])).numpy()
        assert self.p_values(samples, mean, covariance, matrix).min() > self.FALSE_ALARM
