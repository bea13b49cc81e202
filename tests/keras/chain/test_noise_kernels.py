"""Samplers that need scores, in `fit`: the chain equals that of a target with scores by formula.

The scores of logistic regression, sum_i log sigmoid(y_i (w x_i + b)), are (t_i - p_i) (x_i, 1).
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tests.keras.small_models import BINARY_CROSSENTROPY, assert_close
from tfp_sgmcmc.targets.base import GradientEstimate, Target

N, D = 13, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, D]).astype(np.float32)
T = RNG.integers(0, 2, size=[N, 1]).astype(np.float32)


class ByHand(Target):
    """The same posterior with prior N(0, 1) on one batch."""

    def __init__(self, x, t, num_examples):
        self.num_examples, self.num_scores, self._batch = num_examples, x.shape[0], (x, t)

    def __call__(self, *args):
        raise NotImplementedError

    def chain_shape(self, state):
        return tf.TensorShape([])

    def estimate(self, state, seed, target_state=(), probe=None, with_scores=True):
        (w, b), (x, t), total = state, self._batch, self.num_examples
        n, residual = x.shape[0], t - tf.sigmoid(x @ w + b)
        scores = [x[:, :, None] * residual[:, None, :], residual]
        pairs = zip(scores, state, strict=True)
        gradient = [total / n * tf.reduce_sum(s, axis=0) - v for s, v in pairs]
        noise_scale = tf.constant(total * (total - n) / n)
        return GradientEstimate(gradient, tf.zeros([]), scores, noise_scale=noise_scale)


make_model = functools.partial(small_models.affine, BINARY_CROSSENTROPY, 1)


def sampler(make_kernel_fn, num_examples=N, **arguments):
    prior, arguments = small_models.standard_normal(), {"independent_batches": False, **arguments}
    return small_models.sampler(make_kernel_fn, num_examples, prior, **arguments)


def fit(model, callback, batch_size, epochs=1, num_examples=N):
    x, t = X[:num_examples], T[:num_examples]
    small_models.fit(model, callback, x, t, batch_size=batch_size, epochs=epochs)
    return callback.samples


def chain_by_hand(make_kernel_fn, state, batch_size, epochs, num_examples, compiled=lambda f: f):
    first = ByHand(X[:batch_size], T[:batch_size], num_examples)
    results, states = make_kernel_fn(first).bootstrap_results(state), []

    @compiled
    def one_step(state, results, x, t, step):
        kernel = make_kernel_fn(ByHand(x, t, num_examples))
        seed = sgmcmc.random.fold_in(sgmcmc.random.as_seed(0), step)
        return kernel.one_step(state, results, seed=seed)

    for _ in range(epochs):
        for start in range(0, num_examples, batch_size):
            rows = slice(start, min(start + batch_size, num_examples))
            step = tf.constant(len(states), tf.int64)
            state, results = one_step(state, results, X[rows], T[rows], step)
            states.append(state)
    return [np.stack(x) for x in zip(*states, strict=True)]


KERNELS = {
    "NOGIN": lambda covariance: (
        lambda t: sgmcmc.NOGIN(t, 0.3, 1.0, covariance, num_estimation_steps=0)
    ),
    "SGFS": lambda covariance: (
        lambda t: sgmcmc.SGFS(t, 0.1, covariance=covariance, num_estimation_steps=0)
    ),
    "SGHMC": lambda covariance: lambda t: sgmcmc.SGHMC(t, 0.02, 30.0, covariance),
    "CCAdL": lambda covariance: lambda t: sgmcmc.CCAdL(t, 0.05, 1.0, covariance, scheme="euler"),
    "ModifiedSGLD": lambda covariance: lambda t: sgmcmc.ModifiedSGLD(t, 0.01, covariance),
}
SHORT_LAST = (7, 2, N)  # batches of 7 and 6, which changes c
FIXED = (6, 2, 12)


@pytest.mark.parametrize(
    "name, covariance, sizes",
    [
        ("NOGIN", "diag", SHORT_LAST),
        pytest.param("NOGIN", "full", SHORT_LAST, marks=pytest.mark.thorough),
        *(
            pytest.param("NOGIN", kind, SHORT_LAST, marks=pytest.mark.slow)
            for kind in ("block", "low_rank")
        ),
        pytest.param("SGFS", "diag", SHORT_LAST, marks=pytest.mark.thorough),
        *(
            pytest.param("SGFS", kind, SHORT_LAST, marks=pytest.mark.slow)
            for kind in ("block", "full", "low_rank")
        ),
        *(
            pytest.param(name, "diag", FIXED, marks=pytest.mark.thorough)
            for name in ("SGHMC", "CCAdL", "ModifiedSGLD")
        ),
    ],
)
def test_chain_is_that_of_formulas(name, covariance, sizes):
    make_kernel_fn = KERNELS[name](covariance)
    model = make_model(run_eagerly=True)
    start = [tf.constant(w) for w in model.get_weights()]
    expected = chain_by_hand(make_kernel_fn, start, *sizes)
    samples = fit(model, sampler(make_kernel_fn, sizes[-1]), *sizes)
    assert all(np.abs(np.diff(want, axis=0)).min() > 1e-5 for want in expected)
    assert_close(samples, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["graph", "XLA"]
)
def test_compiled_chain_is_that_of_formulas(jit_compile):
    """XLA draws other numbers than the other modes."""
    make_kernel_fn = KERNELS["NOGIN"]("diag")
    model = make_model(jit_compile=jit_compile)
    start = [tf.constant(w) for w in model.get_weights()]
    compiled = tf.function(jit_compile=jit_compile, autograph=False)
    expected = chain_by_hand(make_kernel_fn, start, *FIXED, compiled)
    samples = fit(model, sampler(make_kernel_fn, 12), *FIXED)
    assert_close(samples, expected, rtol=1e-4, atol=1e-5)


def test_a_last_batch_of_one_example_moves_the_chain_and_not_the_covariance():
    make_kernel_fn = KERNELS["NOGIN"]("diag")
    model = make_model(run_eagerly=True)
    callback = sampler(make_kernel_fn)
    samples = fit(model, callback, 6)
    assert all(np.abs(np.diff(s, axis=0)).min() > 1e-5 for s in samples)
    own = callback.recorder.chain.state.results.covariance_state
    assert int(own.num_skipped) == 0 and [int(x.count) for x in own.averages] == [2, 2]


@pytest.mark.slow
def test_low_rank_needs_batches_of_known_size():
    """Compiled code knows the sizes if all batches are equal, or if there are groups."""
    make_kernel_fn = KERNELS["NOGIN"]("low_rank")
    with pytest.raises(ValueError, match="divides the number of examples, or num_groups"):
        fit(make_model(jit_compile=False), sampler(make_kernel_fn), 5)
    samples = fit(make_model(jit_compile=False), sampler(make_kernel_fn, 12), 4, 1, 12)
    assert len(samples[0]) == 3 and np.isfinite(samples[0]).all()
    samples = fit(make_model(jit_compile=False), sampler(make_kernel_fn, num_groups=2), 5)
    assert len(samples[0]) == 3 and np.isfinite(samples[0]).all()


def test_num_groups_is_checked():
    with pytest.raises(ValueError, match="num_groups must be at least 2. Received: 1"):
        sampler(KERNELS["NOGIN"]("diag"), num_groups=1)


@pytest.mark.parametrize(
    ("kernel", "covariance"),
    [
        ("NOGIN", "full"),
        *(
            pytest.param(*pair, marks=pytest.mark.thorough)
            for pair in (("SGHMC", "diag"), ("NOGIN", "diag"), ("SGHMC", "full"))
        ),
    ],
)
def test_one_chain_with_an_axis_of_chains(kernel, covariance):
    """Its size, which is known, is kept where the number of rows of a batch is not."""
    callback = sampler(KERNELS[kernel](covariance), num_chains=1)
    samples = fit(make_model(jit_compile=False), callback, 5, 2)
    assert [s.shape for s in samples] == [(6, 1, D, 1), (6, 1, 1)]
    assert all(np.isfinite(s).all() and np.abs(np.diff(s, axis=0)).min() > 0 for s in samples)


@pytest.mark.thorough
def test_chains_side_by_side():
    """Chains move and differ, and the first starts at the model's weights."""
    make_kernel_fn = KERNELS["NOGIN"]("diag")
    samples = fit(make_model(jit_compile=False), sampler(make_kernel_fn, num_chains=3), 5, 2)
    assert [s.shape for s in samples] == [(6, 3, D, 1), (6, 3, 1)]
    assert all(np.abs(np.diff(s, axis=1)).min() > 1e-6 for s in samples)
