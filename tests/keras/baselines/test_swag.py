"""SWAG: moments and draws against their closed forms, what is collected, moving statistics."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness.statistics import Rejected, check_covariance
from tests.keras.small_models import assert_close, assert_equal, linear, sequential

RNG = np.random.default_rng(0)
X = RNG.normal(size=[24, 3]).astype(np.float32)
Y = (X @ [[1.0], [-2.0], [0.5]] + RNG.normal(size=[24, 1])).astype(np.float32)
RATE = 0.05


def regression(loss="mse", **compiled):
    compiled = {"run_eagerly": True, "optimizer": keras.optimizers.SGD(RATE), **compiled}
    return linear(loss, 1, **compiled)


def iterates(start, num_steps, batch_size=24):
    """Returns the weights `[num_steps, 3]` that gradient descent leaves, by its closed form."""
    theta, left = np.asarray(start, np.float64), []
    for step in range(num_steps):
        rows = np.arange(step * batch_size, (step + 1) * batch_size) % len(X)
        x, y = X[rows].astype(np.float64), Y[rows]
        theta = theta - RATE * 2 / batch_size * x.T @ (x @ theta - y)
        left.append(theta[:, 0])
    return np.stack(left)


def covariance(weights, rank):
    """Returns the matrix whose `scale`-fold is the covariance of the draws, from its definition."""
    running = np.cumsum(weights, axis=0) / np.arange(1, len(weights) + 1)[:, None]
    deviations = (weights - running)[-rank:]
    low_rank = deviations.T @ deviations / (len(deviations) - 1)
    return np.diag(weights.var(axis=0)) + low_rank


def fed(weights, rank=4):
    """Returns a callback that has collected the given weights, `[T, 3]`."""
    model, swag = regression(), sgmcmc.keras.SWAG(0, rank=rank)
    swag.set_model(model)
    for number, value in enumerate(weights):
        model.trainable_variables[0].assign(np.reshape(value, [3, 1]))
        swag.on_epoch_begin(number)
        swag.on_epoch_end(number)
    return swag


def test_moments_are_those_of_the_iterates_of_gradient_descent():
    model, swag = regression(), sgmcmc.keras.SWAG(burn_in=2, collect_every=3, rank=2)
    expected = iterates(model.trainable_variables[0].numpy(), 12)[[2, 5, 8, 11]]
    model.fit(X, Y, batch_size=24, epochs=5, verbose=0, callbacks=[swag])
    model.fit(X, Y, batch_size=24, epochs=7, verbose=0, callbacks=[swag])
    assert swag.num_collected == 4
    assert_close([x[:, 0] for x in swag.mean], [expected.mean(axis=0)])
    assert_close([x[:, 0] for x in swag.variance], [expected.var(axis=0)], atol=0, rtol=1e-4)
    found = swag.deviations[0][..., 0]
    running = [expected[: n + 1].mean(axis=0) for n in (2, 3)]
    assert_close(found, expected[2:] - running)
    assert_close(  # the model keeps what the optimizer left
        [model.trainable_variables[0].numpy()[:, 0]], [expected[-1]]
    )


@pytest.mark.parametrize("per_execution", [pytest.param(1, marks=pytest.mark.thorough), 3])
def test_steps_are_counted_over_epochs_and_executions(per_execution):
    compiled = {"run_eagerly": False, "jit_compile": False, "steps_per_execution": per_execution}
    model = regression(**compiled)
    swag = sgmcmc.keras.SWAG(burn_in=1, collect_every=3, unit="steps", rank=0)
    expected = iterates(model.trainable_variables[0].numpy(), 12, batch_size=6)
    model.fit(X, Y, batch_size=6, epochs=3, shuffle=False, verbose=0, callbacks=[swag])
    # 4 steps an epoch. Executions end after steps 3, 4, 7, 8, 11 and 12, counted from 1.
    taken = [1, 4, 7, 10] if per_execution == 1 else [2, 6, 7, 10]
    assert swag.num_collected == 4
    assert_close([x[:, 0] for x in swag.mean], [expected[taken].mean(axis=0)])


def test_variances_do_not_suffer_from_cancellation():
    """Averages of squares in single precision would be wrong by 6 % of 1000^2."""
    weights = (1000 + 0.01 * RNG.normal(size=[40, 3])).astype(np.float32)
    found = fed(weights).variance[0][:, 0]
    np.testing.assert_allclose(found, weights.astype(np.float64).var(axis=0), rtol=1e-9)


@pytest.fixture(scope="module")
def correlated():
    """Returns weights with strong correlations, and the callback that has collected them."""
    weights = RNG.normal(size=[7, 3]) @ [[1.0, 0.9, 0.0], [0.0, 0.3, 0.2], [0.0, 0.0, 0.5]] + 3
    weights = weights.astype(np.float32)
    return weights.astype(np.float64), fed(weights)


@pytest.mark.parametrize("scale", [0.5, pytest.param(2.0, marks=pytest.mark.thorough)])
def test_draws_have_the_mean_and_the_covariance(correlated, scale):
    """One check of the first two moments. A diagonal and another scale are found."""
    weights, swag = correlated
    draws = swag.posterior(40_000, seed=1, scale=scale).samples[0].reshape(-1, 1, 3)
    mean, expected = weights.mean(axis=0), scale * covariance(weights, rank=4)
    check_covariance(draws, mean, expected, 0.1)
    for wrong in (2 * expected, np.diag(np.diag(expected)), expected - scale * np.diag(
        weights.var(axis=0))):  # fmt: skip
        with pytest.raises(Rejected):
            check_covariance(draws, mean, wrong + 1e-3 * np.eye(3), 0.1)
    with pytest.raises(Rejected):
        check_covariance(draws, weights[-1], expected, 0.1)


def test_draws_without_rank_are_independent_and_without_scale_the_mean(correlated):
    weights, _ = correlated
    swag = fed(weights, rank=0)
    draws = swag.posterior(40_000, seed=2, scale=1.0).samples[0].reshape(-1, 1, 3)
    check_covariance(draws, weights.mean(axis=0), np.diag(weights.var(axis=0)), 0.1)
    (means,) = swag.posterior(2, seed=3, scale=0.0).samples
    assert_close(means, np.stack([swag.mean[0]] * 2), atol=0)


def test_draws_repeat_by_their_seed_and_are_a_posterior_like_any_other(correlated, tmp_path):
    _, swag = correlated
    posterior, same, other = (swag.posterior(5, seed=s) for s in (4, 4, 5))
    assert_equal(posterior.samples, same.samples)
    assert not np.array_equal(posterior.samples[0], other.samples[0])
    posterior.save(tmp_path / "draws.npz")
    model = swag.model
    model.compile(loss=sgmcmc.keras.losses.GaussianNLL(scale=1.0))
    loaded = sgmcmc.keras.Posterior.load(tmp_path / "draws.npz", model)
    assert_equal(loaded.samples, posterior.samples)
    expected = (X @ posterior.samples[0][..., 0].T).mean(axis=1)
    assert_close([loaded.predict(X).mean[:, 0]], [expected])
    assert_close([loaded.to_keras_model()(X)["mean"][:, 0]], [expected])
    assert loaded.evaluate(X, Y).log_predictive_density < 0


def normalized(**arguments):
    normalization = keras.layers.BatchNormalization(momentum=0.9, **arguments)
    return sequential(
        keras.layers.Dense(4), normalization, keras.layers.Dense(1),
        loss="mse", optimizer="sgd", run_eagerly=True,
    )  # fmt: skip


def test_each_draw_has_moving_statistics_of_its_own():
    model, swag = normalized(), sgmcmc.keras.SWAG(1)
    model.fit(X, Y, batch_size=8, epochs=4, verbose=0, callbacks=[swag])
    before = model.get_weights()
    posterior = swag.posterior(3, seed=0, x=X, batch_size=16)  # batches of 16 and 8 rows
    assert_equal(model.get_weights(), before)
    names = [v.path.split("/")[-1] for v in posterior.variables]
    assert names[-2:] == ["moving_mean", "moving_variance"] and len(posterior.samples) == 8
    kernel, bias, *_, mean, variance = posterior.samples
    for s in range(3):
        hidden = X @ kernel[s] + bias[s]
        parts = hidden[:16].var(axis=0), hidden[16:].var(axis=0)
        assert_close([mean[s]], [hidden.mean(axis=0)])
        assert_close([variance[s]], [(2 * parts[0] + parts[1]) / 3])


class Tracker(keras.layers.Layer):
    """Keeps a moving mean of its inputs."""

    def build(self, shape):
        self.moving = self.add_weight(shape=[shape[-1]], initializer="zeros", trainable=False)

    def call(self, inputs, training=False):
        if training:
            self.moving.assign(0.9 * self.moving + 0.1 * tf.reduce_mean(inputs, axis=0))
        return inputs


@pytest.mark.parametrize(
    "model, arguments, message",
    [
        (normalized, {}, r"x must be the training inputs.*moving_mean"),
        (lambda: normalized(renorm=True), {"x": X}, "must have renorm=False"),
        (
            lambda: sequential(
                Tracker(), keras.layers.Dense(1), loss="mse", optimizer="sgd", run_eagerly=True
            ),
            {"x": X},
            "must be those of BatchNormalization.*Received: .*tracker",
        ),
    ],
    ids=["no inputs", "renorm", "other statistics"],
)
def test_statistics_that_a_draw_would_lack_are_refused(model, arguments, message):
    model, swag = model(), sgmcmc.keras.SWAG(0)
    model.fit(X, Y, epochs=2, verbose=0, callbacks=[swag])
    with pytest.raises(ValueError, match=message):
        swag.posterior(2, seed=0, **arguments)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"burn_in": -1}, ValueError, "burn_in must be at least 0"),
        ({"burn_in": 1.5}, TypeError, "burn_in must be an integer"),
        ({"burn_in": 0, "collect_every": 0}, ValueError, "collect_every must be at least 1"),
        ({"burn_in": 0, "unit": "batches"}, ValueError, "unit must be 'epochs' or 'steps'"),
        ({"burn_in": 0, "rank": 1}, ValueError, "rank must be 0, or at least 2"),
    ],
)
def test_wrong_arguments_are_refused_before_fit(arguments, error, message):
    with pytest.raises(error, match=message):
        sgmcmc.keras.SWAG(**arguments)


def test_the_rank_may_be_an_integer_of_numpy():
    sgmcmc.keras.SWAG(rank=np.int64(3))


def test_too_few_weights_wrong_draws_and_another_model_are_refused(correlated):
    weights, swag = correlated
    with pytest.raises(ValueError, match=r"at least 2 times. Received: 1, after 1 epochs"):
        fed(weights[:1]).posterior(2)
    with pytest.raises(ValueError, match="at least 1 times. Received: 0"):
        sgmcmc.keras.SWAG(0).mean  # noqa: B018
    with pytest.raises(ValueError, match="scale must be a number of at least 0"):
        swag.posterior(2, scale=-1.0)
    with pytest.raises(ValueError, match="num_samples must be at least 1"):
        swag.posterior(0)
    with pytest.raises(ValueError, match="another model"):
        swag.set_model(regression())
    with pytest.raises(ValueError, match=r"must be finite.*after 3 epochs"):
        fed([*weights[:2], [np.nan] * 3])


@pytest.mark.parametrize(
    ("unit", "collected"), [("epochs", 2), pytest.param("steps", 4, marks=pytest.mark.thorough)]
)
def test_without_burn_in_the_second_half_is_collected(unit, collected):
    """There are 4 epochs of 2 steps; a second fit adds all of its weights."""
    swag = sgmcmc.keras.SWAG(unit=unit)
    model = regression()
    for total in (collected, 3 * collected):
        model.fit(X, Y, batch_size=12, epochs=4, verbose=0, callbacks=[swag])
        assert swag.num_collected == total


def test_without_burn_in_the_length_of_an_epoch_must_be_known():
    swag = sgmcmc.keras.SWAG(unit="steps")
    endless = (pair for pair in [(X, Y)])
    with pytest.raises(ValueError, match="burn_in must be an integer where an epoch has no known"):
        regression().fit(endless, epochs=4, shuffle=False, verbose=0, callbacks=[swag])
