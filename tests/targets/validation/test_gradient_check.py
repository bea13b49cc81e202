"""preflight accepts right targets, and reports errors of others."""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.fast_settings import fast_settings
from tests.harness.gaussian_mean import GaussianMean

tfb, tfd = tfp.bijectors, tfp.distributions

GENERATOR = np.random.default_rng(0)
X = GENERATOR.standard_normal(50).astype(np.float32)


def normal(theta: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
    return -0.5 * (batch - theta[..., tf.newaxis]) ** 2


def target(log_likelihood: Callable, batch_size: int = 7, **options: Any) -> Any:
    return sgmcmc.MinibatchLogProb(
        lambda theta: -0.5 * theta**2, log_likelihood, X, batch_size, **options
    )


def size_of(batch: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.shape(batch)[-1], batch.dtype)


BUGS = {
    "divided by n": lambda t, x: normal(t, x) / size_of(x),
    "times N / n": lambda t, x: normal(t, x) * 50 / size_of(x),
    "mean repeated": lambda t, x: (
        tf.reduce_mean(normal(t, x), axis=-1, keepdims=True) / size_of(x) + 0 * normal(t, x)
    ),
    "batch normalised": lambda t, x: normal(t, x - tf.reduce_mean(x, axis=-1, keepdims=True)),
    "shifted by the first example": lambda t, x: normal(t, x - x[..., :1]),
    "weighted by the batch": lambda t, x: normal(t, x) * tf.reduce_max(x, axis=-1, keepdims=True),
}

SEEN_FAST = [("times N / n", 7), ("mean repeated", 7), ("shifted by the first example", 7)]


def test_two_chains_are_tried_at_a_state_of_one() -> None:
    """One scalar broadcasts to all examples, and two do not."""
    scalar = sgmcmc.MinibatchLogProb(
        lambda mu, sigma: -(mu**2) - sigma**2,
        lambda mu, sigma, x: -((x - mu[..., None]) ** 2) * tf.exp(-sigma) - sigma,
        X,
    )
    one = [tf.constant(0.1), tf.constant(0.2)]
    with pytest.raises(ValueError, match="log_likelihood_fn failed|must return") as caught:
        sgmcmc.preflight(scalar, one)
    assert "sigma[..., tf.newaxis]" in "".join(caught.value.__notes__)
    with pytest.raises(ValueError, match="of two equal chains what it returns for one"):
        sgmcmc.preflight(target(lambda t, x: normal(tf.reduce_sum(t) + 0 * t, x)), one[0])
    sgmcmc.preflight(target(normal), one[0])


@pytest.mark.parametrize(
    ("name", "batch_size"),
    [
        *(
            pytest.param(name, size, marks=[pytest.mark.thorough] * ((name, size) not in SEEN_FAST))
            for name in BUGS
            for size in (7, 25, 50)
        ),
    ],
)
def test_likelihoods_that_depend_on_the_batch(name: str, batch_size: int) -> None:
    with pytest.raises(ValueError, match="do not add up to the full one: .* over all N = 50"):
        sgmcmc.preflight(target(BUGS[name], batch_size), tf.constant([0.7, -0.2]))


@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        (sgmcmc.GrowingBatch, "divided by n"),
        pytest.param(sgmcmc.SVRG, "shifted by the first example", marks=pytest.mark.slow),
    ],
)
def test_wrapped_targets_are_checked(wrap: Any, name: str) -> None:
    with pytest.raises(ValueError, match="do not add up to the full one"):
        sgmcmc.preflight(wrap(target(BUGS[name])), tf.constant(0.7))
    sgmcmc.preflight(wrap(target(normal)), tf.constant(0.7))


def test_the_part_whose_gradient_is_nan_is_named() -> None:
    """sqrt(b) has a value at 0, but no gradient."""
    broken = sgmcmc.MinibatchLogProb(
        lambda a, b: -(a**2) - b**2,
        lambda a, b, batch: normal(a, batch) + tf.sqrt(b * 0.0)[..., tf.newaxis],
        X,
        7,
    )
    a, b = tf.constant(1.0), tf.constant(0.0)
    for state, name in (([a, b], r"state\[1\]"), ({"a": a, "b": b}, r"state\['b'\]")):
        message = rf"gradient of the log posterior is NaN or infinite .* \({name}\)"
        with pytest.raises(ValueError, match=message):
            sgmcmc.preflight(broken, state)


def test_an_infinite_log_posterior() -> None:
    infinite = target(lambda t, x: tf.math.log(t)[..., tf.newaxis] + 0 * x)
    with pytest.raises(ValueError, match="The log posterior is NaN or infinite at the initial"):
        sgmcmc.preflight(infinite, tf.constant(-1.0))


STATES = [0.3, [0.3, -2.0], [[0.1, 0.2], [3.0, 100.0]]]
CHUNKS = [{}, {"chunk_size": 3}, {"chunk_size": 50}]


@pytest.mark.parametrize(
    ("size", "chains"),
    [
        pytest.param(i, j, marks=[] if i == j != 1 else [pytest.mark.thorough])
        for i in range(3)
        for j in range(3)
    ],
)
def test_right_targets_pass(size: int, chains: int) -> None:
    """Tests a Latin square of the 27 triples of state, batch size and chunks."""
    options = CHUNKS[(size + chains) % 3]
    sgmcmc.preflight(target(normal, [1, 7, 50][size], **options), tf.constant(STATES[chains]))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"replacement": True}, marks=pytest.mark.thorough),
        pytest.param({"reshuffle": "epoch"}, marks=pytest.mark.thorough),
        {"reshuffle": "symmetric"},
    ],
)
def test_every_way_of_drawing_passes(options: dict[str, Any]) -> None:
    sgmcmc.preflight(target(normal, **options), tf.constant(0.3))


def test_float32_near_the_mode_of_many_examples_passes() -> None:
    """The terms of 1e5 examples cancel in the gradient; rounding must not look like a bug."""
    model = GaussianMean(num_examples=100_000)
    state = tf.constant(np.tile(model.mean, [3, 1]), tf.float32)
    sgmcmc.preflight(model.target(500), state)
    sgmcmc.preflight(model.target(77, chunk_size=10_000), state)


def test_small_errors_of_float64_are_seen() -> None:
    """Finds a relative error of 1e-6 in the likelihood, which is rounding in float32."""
    leak = GaussianMean(num_examples=1000)
    right = leak.target(50, tf.float64)
    wrong = sgmcmc.MinibatchLogProb(
        right.log_prior,
        lambda theta, x: (
            -0.5
            * tf.reduce_sum((x - theta[..., tf.newaxis, :]) ** 2, axis=-1)
            * (1 + 1e-6 * 1000 / tf.cast(tf.shape(x)[-2], x.dtype))
        ),
        leak.data,
        50,
    )
    state = tf.zeros([3], tf.float64)
    sgmcmc.preflight(right, state)
    with pytest.raises(ValueError, match="do not add up"):
        sgmcmc.preflight(wrong, state)


def test_dict_states_bijectors_and_chains_pass() -> None:
    model = sgmcmc.MinibatchLogProb(
        lambda loc, scale: -0.5 * loc**2 - scale,
        lambda loc, scale, batch: tfd.Normal(loc[..., None], scale[..., None]).log_prob(batch),
        X,
        7,
        bijector={"loc": None, "scale": tfb.Softplus()},
    )
    sgmcmc.preflight(model, {"loc": tf.zeros([2, 3]), "scale": tf.ones([2, 3])})


@pytest.mark.parametrize("fn", [tf.math.log, sgmcmc.FullDataLogProb(tf.math.log)])
def test_plain_targets_pass_if_finite(fn: Any) -> None:
    sgmcmc.preflight(fn, tf.constant(2.0))
    with pytest.raises(ValueError, match="The log posterior is NaN or infinite"):
        sgmcmc.preflight(fn, tf.constant(-2.0))
    with pytest.raises(TypeError, match="target must be a callable, .* an int"):
        sgmcmc.preflight(3, tf.constant(0.5))


def test_tolerance_is_taken() -> None:
    slightly = target(lambda t, x: normal(t, x) * (1 + 0.02 / size_of(x)))
    sgmcmc.preflight(slightly, tf.constant(0.7), rtol=0.1)
    with pytest.raises(ValueError, match="do not add up"):
        sgmcmc.preflight(slightly, tf.constant(0.7), rtol=1e-4)


class SomeResults(NamedTuple):
    step_size: Any


class SomeKernel(tfp.mcmc.TransitionKernel):
    """A stand-in whose dynamics theta += h/2 M g are stable below h = 4 / curvature."""

    def __init__(self, step_size: Any, scale: Any = 1.0):
        self.step_size, self.scale = step_size, scale

    is_calibrated = False

    def one_step(self, current_state: Any, previous_kernel_results: Any, seed: Any = None) -> Any:
        raise NotImplementedError

    def bootstrap_results(self, init_state: Any) -> SomeResults:
        del init_state
        first = self.step_size(0) if callable(self.step_size) else self.step_size
        return SomeResults(tf.nest.map_structure(tf.convert_to_tensor, first))

    def largest_stable_step(self, largest_curvature: float, results: Any = None) -> float:
        assert results is None
        return 4 / largest_curvature if largest_curvature else np.inf

    def metric_product(self, vector: Any, state: Any, results: Any) -> Any:
        assert isinstance(results, SomeResults)
        return tf.nest.map_structure(lambda x: self.scale * x, vector)


def quadratic(*precisions: float) -> Any:
    """Returns the log density of independent normals, one for each part of the state."""
    return sgmcmc.FullDataLogProb(
        lambda *parts: -0.5 * sum(p * x**2 for p, x in zip(precisions, parts, strict=True))
    )


@pytest.mark.parametrize(
    "step_size",
    [
        0.99,
        pytest.param(tf.constant([0.99, 0.5]), marks=pytest.mark.thorough),
        pytest.param([0.99], marks=pytest.mark.thorough),
        pytest.param(
            lambda step: 0.99 / (1 + tf.cast(step, tf.float32)), marks=pytest.mark.thorough
        ),
    ],
)
def test_stable_steps_pass(step_size: Any) -> None:
    """The 51 terms of prior and data have a curvature of 51, in a metric of 4 / 51."""
    found = sgmcmc.preflight(
        target(normal), [tf.constant([0.3, 0.4])], kernel=SomeKernel(step_size, 4 / 51)
    )
    assert found.is_stable
    assert found.step_size == pytest.approx(0.99)
    assert "largest_noise" not in repr(found) and "np.float" not in repr(found)
    np.testing.assert_allclose(found[:2], [4.0, 1.0], rtol=1e-5)


@pytest.mark.parametrize(
    "step_size",
    [
        pytest.param(1.01, marks=pytest.mark.thorough),
        pytest.param(tf.constant([0.5, 1.01]), marks=pytest.mark.thorough),
        pytest.param([1.01], marks=pytest.mark.thorough),
        lambda step: tf.constant(1.01),
    ],
)
def test_unstable_steps_are_reported_with_the_largest_stable_one(step_size: Any) -> None:
    message = (
        "step_size must be below 1 for SomeKernel at this state, where the largest curvature of "
        "the log posterior is 4. Received: 1.01 at step 0. .* Make the step smaller"
    )
    with pytest.warns(UserWarning, match=message):
        found = sgmcmc.preflight(
            target(normal), [tf.constant([0.3, 0.4])], kernel=SomeKernel(step_size, 4 / 51)
        )
    assert not found.is_stable


def test_a_step_for_each_part_is_compared_with_the_curvature_there() -> None:
    """A part that is four times as stiff takes a quarter of the step."""
    state, log_prob = [tf.constant(0.5), tf.constant(0.1)], quadratic(4.0, 1.0)
    for factor, is_stable in ((0.99, True), (1.01, False)):
        for steps in ([1.0, 4.0], [1.0, 0.1], [0.1, 4.0]):
            kernel = SomeKernel([factor * h for h in steps])
            with contextlib.nullcontext() if is_stable else pytest.warns(match="must be below"):
                found = sgmcmc.preflight(log_prob, state, kernel=kernel)
            assert found.is_stable == is_stable


@pytest.mark.parametrize(
    ("wrap", "reshuffle"),
    [
        (lambda t: t, "symmetric"),
        pytest.param(sgmcmc.SVRG, "epoch", marks=pytest.mark.thorough),
        pytest.param(lambda t: t, "epoch", marks=pytest.mark.thorough),
        pytest.param(sgmcmc.SVRG, "symmetric", marks=pytest.mark.thorough),
    ],
    ids=["plain symmetric", "wrapped epoch", "plain epoch", "wrapped symmetric"],
)
def test_epochs_too_long_for_their_noise_to_cancel_are_reported(reshuffle: Any, wrap: Any) -> None:
    """The curvature is 51, K = 10, and the lengths of an epoch are K eps a / 2 and K h sqrt(a)."""
    drawn = wrap(target(normal, 5, reshuffle=reshuffle))
    lengths = {  # of the step size
        sgmcmc.SGLD: lambda eps: 10 * eps * 51 / 2,
        sgmcmc.UnderdampedLangevin: lambda h: 10 * h * 51**0.5,
    }
    for kernel, length in lengths.items():
        unit = 1 / length(1.0)
        sgmcmc.preflight(drawn, tf.constant(0.3), kernel=kernel(drawn, 0.99 * unit))
        message = (
            f"gradient noise of reshuffle='{reshuffle}' is not small: an epoch is 1.01 times as "
            f"long .* K = 10, step_size = {1.01 * unit:.3g}, and lambda = 51."
        )
        with pytest.warns(UserWarning, match=message):
            sgmcmc.preflight(drawn, tf.constant(0.3), kernel=kernel(drawn, 1.01 * unit))


@pytest.mark.thorough
def test_no_length_of_an_epoch_without_epochs_or_noise() -> None:
    for drawn in (target(normal, 5), target(normal, 50, reshuffle="symmetric")):
        sgmcmc.preflight(drawn, tf.constant(0.3), kernel=sgmcmc.SGLD(drawn, 0.07))


def test_flat_log_posteriors_and_other_kernels_are_not_judged() -> None:
    flat = sgmcmc.FullDataLogProb(lambda x: 3.0 * x)
    found = sgmcmc.preflight(flat, tf.constant(1.0), kernel=SomeKernel(1e6))
    assert found == (0.0, np.inf, pytest.approx(1e6), 0.0)
    hmc = tfp.mcmc.HamiltonianMonteCarlo(flat, 0.1, 1)
    assert sgmcmc.preflight(flat, tf.constant(1.0), kernel=hmc) is None
    assert sgmcmc.preflight(flat, tf.constant(1.0)) is None


def test_a_log_posterior_without_second_derivatives_is_reported() -> None:
    @tf.custom_gradient
    def once(x: tf.Tensor) -> Any:
        @tf.custom_gradient
        def slope(x: tf.Tensor) -> Any:
            def refuse(_: tf.Tensor) -> Any:
                raise NotImplementedError("no second derivative")

            return -x, refuse

        return -0.5 * x**2, lambda upstream: upstream * slope(x)

    with pytest.warns(UserWarning, match="was not compared .* Received: no second derivative"):
        found = sgmcmc.preflight(
            sgmcmc.FullDataLogProb(once), tf.constant(1.0), kernel=SomeKernel(1.0)
        )
    assert found is None


@pytest.mark.parametrize(
    ("state", "rtol", "error", "message"),
    [
        ("here", None, TypeError, "state must have a floating dtype.* dtype string"),
        (tf.constant(1), None, TypeError, "state must have a floating dtype.* dtype int32"),
        (np.nan, None, ValueError, "The initial state must be finite"),
        ([], None, ValueError, "The state must have at least one part"),
        (0.5, "1e-3", TypeError, "rtol must be a positive finite number. Received: '1e-3'"),
        (0.5, np.nan, ValueError, "rtol must be a positive finite number. Received: nan"),
    ],
)
def test_bad_input(state: Any, rtol: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        sgmcmc.preflight(target(normal), state, rtol)


@pytest.mark.parametrize("kernel", [3, "SGLD", sgmcmc.SGLD, lambda: None, [None]])
def test_what_is_no_kernel_is_refused(kernel: Any) -> None:
    with pytest.raises(TypeError, match="kernel must be a tfp.mcmc.TransitionKernel"):
        sgmcmc.preflight(target(normal), 0.5, kernel=kernel)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("chains", fast_settings([(), (4,), (2, 3)], (), (2, 3)))
def test_scores_that_are_not_the_gradient_are_refused(shared: bool, chains: tuple) -> None:
    def scores(factor: float) -> Any:
        return lambda theta, batch: factor * (batch - theta[..., tf.newaxis])

    state = tf.fill(chains, 0.3)
    sgmcmc.preflight(target(normal, score_fn=scores(1.0), shared_batch=shared), state)
    wrong = target(normal, score_fn=scores(1.1), shared_batch=shared)
    with pytest.raises(ValueError, match="score_fn must return the gradient .* in state"):
        sgmcmc.preflight(wrong, state)
