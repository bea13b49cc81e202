"""`SamplerCallback("auto")`: what its pilot measures, predicts and chooses."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tests.keras.small_models import assert_equal, unit_normal
from tfp_sgmcmc.keras.fit import choices, landscape, pilot, thermometer
from tfp_sgmcmc.keras.fit.excess import Scheme, law
from tfp_sgmcmc.keras.fit.landscape import Landscape

N, D = 120, 3
RNG = np.random.default_rng(0)
X = (RNG.normal(size=[N, D]) * [3.0, 1.0, 0.1]).astype(np.float32)
Y = (X @ np.float32([1.0, -1.0, 0.5]) + RNG.normal(size=N)).astype(np.float32)[:, None]

def regression(**arguments):
    return small_models.linear(unit_normal, 1, inputs=D, **arguments)


def auto(num_examples=N, **arguments):
    arguments = {"num_burnin_epochs": 4, "seed": 0, **arguments}
    prior = small_models.standard_normal()
    return sgmcmc.keras.SamplerCallback("auto", num_examples, prior, **arguments)


def quietly(model, callback, x=X, y=Y, **arguments):
    """Fits without warnings of bounds that cannot be kept."""
    arguments = {"epochs": 6, "verbose": 0, **arguments}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(x, y, callbacks=[callback], **arguments).history


def surveyed(model, callback, batch_size=12, epochs=4):
    """Returns what the pilot measured, and the weights where it did."""
    seen = {}
    survey = pilot.survey

    def remember(chain, views, state, *arguments):
        seen["weights"] = [x.numpy() for x in state]
        seen["landscape"] = survey(chain, views, state, *arguments)
        return seen["landscape"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pilot, "survey", remember)
        quietly(model, callback, batch_size=batch_size, epochs=epochs)
    return seen["landscape"], seen["weights"]


class TestLandscape:
    def test_a_linear_regression_has_its_closed_form(self):
        """H = X^T X + I, and V is the sample covariance of the scores. All examples are seen."""
        found, (weights,) = surveyed(regression(), auto())
        scale = found.scale[0].ravel().astype(np.float64)
        root = np.sqrt(scale)
        x = X.astype(np.float64)
        hessian = root[:, None] * (x.T @ x + np.eye(D)) * root
        noise = root[:, None] * np.cov((x * (Y - x @ weights)).T) * root
        values, vectors = np.linalg.eigh(noise)
        np.testing.assert_allclose(found.noise, values[::-1], rtol=1e-3)
        np.testing.assert_allclose(np.abs(found.directions), np.abs(vectors.T[::-1]), atol=1e-3)
        np.testing.assert_allclose(found.mean_noise, np.trace(noise) / D, rtol=1e-4)
        np.testing.assert_allclose(
            found.noise_of_diagonal, found.directions**2 @ np.diag(noise), rtol=1e-3
        )
        along = np.einsum("ki,ij,kj->k", found.directions, hessian, found.directions)
        np.testing.assert_allclose(found.curvature, along, rtol=1e-4)
        assert np.isclose(found.largest_curvature, np.linalg.eigvalsh(hessian)[-1], rtol=1e-4)
        assert np.isclose(found.prior_curvature, np.median(scale), rtol=1e-5)
        assert found.has_hessian

    def test_directions_of_few_gradients_are_measured_by_others(self):
        """Pure noise in 200 dimensions has no direction that is hotter than others.

        The largest eigenvalue of a sample covariance of 40 rows is about (1 + sqrt(200/40))^2 = 10
        times too large. The mean of 20 chi-square ratios with 40 degrees of freedom exceeds 1.5
        with probability below 1e-10.
        """
        rows = np.random.default_rng(1).normal(size=[80, 200])
        shown, measured = (landscape._normalised(r) for r in np.array_split(rows, 2))
        directions = landscape._leading(shown)
        np.testing.assert_allclose(directions @ directions.T, np.eye(len(directions)), atol=1e-9)
        assert np.mean(np.sum((measured @ directions.T) ** 2, axis=0)) < 1.5
        assert np.sum((shown @ directions[0]) ** 2) > 5  # negative control

    def test_without_second_derivatives_the_noise_stands_for_the_curvature(self):
        @tf.custom_gradient
        def once(x):
            return tf.identity(x), lambda upstream: tf.raw_ops.PreventGradient(input=upstream)

        model = small_models.sequential(
            keras.layers.Dense(1), keras.layers.Lambda(once), loss=unit_normal, inputs=D
        )
        callback = auto()
        found, _ = surveyed(model, callback)
        assert not found.has_hessian and found.largest_curvature == N * found.noise.max()
        assert "no second derivatives" in str(callback.choices)


def place(noise, **changes):
    """Returns a landscape of two directions, whose noise in a batch is c V."""
    noise = np.array(noise, float)
    given = dict(
        scale=[np.ones(2, np.float32)],
        noise=noise,
        noise_of_diagonal=noise,
        mean_noise=float(noise.mean()),
        curvature=np.array([1e4, 1e2]),
        largest_curvature=1e4,
        mean_curvature=1e2,
        prior_curvature=1.0,
        has_hessian=True,
        directions=np.eye(2),
    )
    return Landscape(**given | changes)


def limits(**changes):
    given = dict(bound=None, num_examples=10_000, batch_size=100, num_steps=10**9, covariances=())
    return choices.Limits(**given | changes)


class TestChoice:
    # At n = 100 the noise along the stiffest direction is N / n = 100 times the curvature.
    FISHER = [1.0 * 100 * 1e4 / 990_000, 100 * 1e2 / 990_000]

    def test_the_bound_is_kept_to_the_letter(self):
        for bound in (0.01, 0.1, 1.0):
            found = choices.choose(place(self.FISHER), limits(bound=bound)).numbers
            assert found["keeps_bound"] and np.isclose(found["noise_over_curvature"], 100)
            assert 0.99 * bound < found["predicted_excess_worst"] <= bound

    def test_little_noise_leaves_the_step_to_stability(self):
        found = choices.choose(place([1e-9, 1e-9]), limits()).numbers
        assert found["kernel"] == "UnderdampedLangevin"
        assert np.isclose(found["step_size"], 2 / 1e4**0.5 / 3)

    def test_noise_that_is_known_is_corrected(self):
        found = choices.choose(place(self.FISHER), limits(covariances=("diag",))).numbers
        assert (found["kernel"], found["covariance"]) == ("NOGIN", "diag")
        assert found["predicted_excess_worst"] < 1e-6

    def test_noise_that_the_diagonal_does_not_show_is_not_corrected(self):
        hidden = place(self.FISHER, noise_of_diagonal=np.zeros(2), mean_noise=0.0)
        found = choices.choose(hidden, limits(covariances=("diag",))).numbers
        assert found["kernel"] != "NOGIN"

    def test_too_few_steps_are_told_with_the_numbers_that_would_do(self):
        kept = choices.choose(place(self.FISHER), limits(bound=0.1, num_steps=1000))
        free = choices.choose(place(self.FISHER), limits(num_steps=1000))
        assert kept.numbers["keeps_bound"] and not free.numbers["keeps_bound"]
        assert kept.numbers["steps_to_forget"] > 1e5
        assert free.numbers["predicted_excess_worst"] > 0.1
        assert free.numbers["share_of_flat"] > 10 * kept.numbers["share_of_flat"]
        for found in (kept, free):
            size, steps = found.numbers["better_batch_size"], found.numbers["better_steps"]
            assert f"With batch_size={size}" in found.advice and steps <= 1000
            again = choices.choose(place(self.FISHER), limits(bound=0.1, batch_size=size))
            assert np.isclose(again.numbers["steps_to_forget"], steps)
        assert "The bound is kept" in kept.advice
        assert "No step keeps both" in free.advice
        assert choices.choose(place(self.FISHER), limits()).advice is None

    def test_the_least_bias_is_the_least(self):
        """No step size of the same kernel is nearer to the right variances."""
        found = choices.choose(place(self.FISHER), limits(num_steps=1000)).numbers
        worst = {}
        for factor in (0.2, 0.5, 1.0, 2.0):
            scheme = Scheme(found["kernel"], factor * found["step_size"], found["friction"])
            curvature, noise = np.array([1e4, 1e2, 1.0]), 990_000 * np.array([*self.FISHER, 0.0])
            noise[-1] = noise[:-1].mean()
            along = law(scheme, curvature, noise)
            ratio = along.temperature * along.share_after(1000)
            worst[factor] = np.abs(np.log(ratio)).max()
        assert worst[1.0] < 1.2 * min(worst.values())  # step sizes on a grid
        assert worst[0.2] > 1.2 * worst[1.0]


class Start(keras.callbacks.Callback):
    """Remembers the weights where the pilot ends."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 3:
            self.weights = self.model.get_weights()


def batches():
    return sgmcmc.keras.IndependentBatches(X, Y, batch_size=12, seed=5)


class TestChain:
    def test_it_is_that_of_the_kernel_written_by_hand(self):
        callback, start, model = auto(), Start(), regression(jit_compile=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(batches(), epochs=6, verbose=0, callbacks=[start, callback])
        scale = callback.choices.scale
        kernels = {
            "by choices": callback.choices.make_kernel,
            "by hand": eval(callback.choices.code, {"sgmcmc": sgmcmc, "scale": scale}),
        }
        for make_kernel in kernels.values():
            again = regression(jit_compile=True)
            again.set_weights(start.weights)
            other = small_models.sampler(
                make_kernel, N, small_models.standard_normal(), num_burnin_steps=10
            )
            again.fit(batches(), epochs=3, verbose=0, callbacks=[other])
            assert_equal(callback.samples, other.samples)
            assert len(other.samples[0]) == 20

    @pytest.mark.parametrize("num_chains", [None, pytest.param(2, marks=pytest.mark.slow)])
    def test_a_run_in_a_directory_goes_on_without_a_pilot(self, tmp_path, monkeypatch, num_chains):
        def script(folder, *numbers):
            for epochs in numbers:
                # With a bound the choice does not depend on the number of epochs.
                given = {"num_chains": num_chains, "max_excess_temperature": 0.1}
                callback = auto(directory=tmp_path / folder, **given)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    regression().fit(batches(), epochs=epochs, verbose=0, callbacks=[callback])
            return [np.asarray(x) for x in callback.samples], callback.choices

        samples, chosen = script("once", 7)
        assert len(samples[0]) == 30
        script("twice", 2)  # killed within the pilot, which then begins anew
        script("twice", 5)
        monkeypatch.setattr(pilot, "survey", None)
        again, resumed = script("twice", 7)
        assert_equal(again, samples)
        assert resumed.code == chosen.code and resumed.numbers["num_steps"] == 20
        with pytest.raises(ValueError, match="max_excess_temperature"):
            other = auto(directory=tmp_path / "once", num_chains=num_chains)
            regression().fit(batches(), epochs=8, verbose=0, callbacks=[other])

    def test_a_kernel_by_hand_does_not_go_on_with_it(self, tmp_path):
        quietly(regression(), auto(directory=tmp_path), batch_size=12, shuffle=False)
        other = small_models.sampler(
            small_models.sgld(), N, small_models.standard_normal(), directory=tmp_path
        )
        with pytest.raises(ValueError, match="belongs to another run"):
            regression().fit(X, Y, batch_size=12, epochs=6, verbose=0, callbacks=[other])

    def test_auto_does_not_go_on_with_a_kernel_by_hand(self, tmp_path):
        other = small_models.sampler(
            small_models.sgld(), N, small_models.standard_normal(), directory=tmp_path
        )
        regression().fit(X, Y, batch_size=12, epochs=1, verbose=0, callbacks=[other])
        with pytest.raises(ValueError, match="belongs to another run"):
            quietly(regression(), auto(directory=tmp_path), batch_size=12)

    def test_logs_show_predicted_and_measured_temperatures(self, capsys, monkeypatch):
        monkeypatch.setattr(thermometer, "ENOUGH", 0.0)  # else 40 steps are too few to tell
        callback = auto()
        history = quietly(regression(), callback, batch_size=6, epochs=6, verbose=2)
        assert [len(history[f"predicted_temperature_{n}"]) for n in ("worst", "mean")] == [3, 3]
        measured = history["measured_temperature_worst"]
        assert len(measured) == 2 and np.isfinite(measured[-1])
        assert measured[-1] == callback.temperatures["measured"]["worst"]
        assert str(callback.choices) in capsys.readouterr().out

    def test_a_trial_that_fails_is_taken_back(self, monkeypatch):
        """Steps 100 times too large throw the first trial to infinity; the second is smaller."""
        make, chosen = pilot.choose, []

        def reckless(found, limits):
            chosen.append((found, limits, make(found, limits)))
            if len(chosen) == 1:
                chosen[0][2].numbers |= {"step_size": 100 * found.largest_curvature**-0.5}
            return chosen[-1][2]

        monkeypatch.setattr(pilot, "choose", reckless)
        model, callback = regression(jit_compile=True), auto(max_excess_temperature=0.1)
        quietly(model, callback, batch_size=12)
        assert [x[1].growth for x in chosen][:2] == [1.0, 16.0]
        assert chosen[0][0] is chosen[1][0]  # the same place
        assert len(callback.samples[0]) == 20

    def test_a_pilot_may_end_with_a_fit(self):
        model, callback = regression(), auto()
        quietly(model, callback, batch_size=12, epochs=3)
        assert callback.choices is None and callback.temperatures == {}
        quietly(model, callback, batch_size=12, epochs=2)
        assert callback.choices is not None and len(callback.samples[0]) == 10

    @pytest.mark.slow
    def test_several_steps_an_execution_and_resident_data(self):
        model, callback = regression(jit_compile=True, steps_per_execution=5), auto()
        quietly(model, callback, batch_size=12)
        assert len(callback.samples[0]) == 20
        model, callback = regression(jit_compile=True), auto()
        quietly(model, callback, callback.resident(X, Y, batch_size=12, steps_per_call=5), None)
        assert len(callback.samples[0]) == 20


@pytest.mark.slow
def test_the_variance_of_a_chain_is_the_predicted_one():
    """One weight, so that the prediction is the law, bias included.

    The sum of squares of K draws that are nearly a Gaussian AR(1) process of correlation r has the
    relative standard deviation sqrt(2/K (1 + r^2) / (1 - r^2)). Five of them are exceeded with
    probability 6e-7. The variance without gradient noise is more than ten away.
    """
    x, count = X[:, :1] / 3, 100_000
    model = small_models.linear(unit_normal, 1, inputs=1, jit_compile=True)
    callback = auto(max_excess_temperature=1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pilot, "_covariances", lambda *_: ())
        data = callback.resident(
            x, Y, batch_size=40, steps_per_call=count // 10, steps_per_epoch=count
        )
        quietly(model, callback, data, None)
    own = callback.choices.numbers
    scheme = Scheme(own["kernel"], own["step_size"], own["friction"])
    curvature = float((x**2).sum()) + 1.0
    scale = float(callback.choices.scale[0].item())
    r = np.exp(-1 / law(scheme, curvature * scale, 0.0).relaxation_steps)
    draws = np.asarray(callback.samples[0]).ravel().astype(np.float64)
    mean = float((x * Y).sum()) / curvature
    found = np.mean((draws - mean) ** 2) * curvature
    spread = np.sqrt(2 / len(draws) * (1 + r**2) / (1 - r**2))
    expected = 1 + own["predicted_excess_worst"]
    assert abs(found / expected - 1) < 5 * spread, (found, expected, spread)
    assert abs(found - 1) > 10 * spread * found


class TestMisuse:
    @pytest.mark.parametrize(
        "changes, words",
        [
            ({"num_burnin_epochs": 3}, "num_burnin_epochs must be at least 4"),
            ({"noise_every": 5}, "noise_every must be None"),
            ({"num_burnin_epochs": 0, "sampling_threshold": 0.1}, "sampling_threshold must be"),
            ({"max_excess_temperature": 0.0}, "max_excess_temperature must be a positive"),
            ({"max_excess_temperature": np.nan}, "max_excess_temperature must be a positive"),
        ],
    )
    def test_arguments_that_do_not_go_together(self, changes, words):
        with pytest.raises(ValueError, match=words):
            auto(**changes)

    def test_types(self):
        with pytest.raises(TypeError, match="max_excess_temperature"):
            auto(max_excess_temperature="x")
        with pytest.raises(ValueError, match='must be "auto" or a function.*"?automatic'):
            sgmcmc.keras.SamplerCallback("automatic", N, None)

    def test_data_that_cannot_be_seen(self):
        data = tf.data.Dataset.range(1).interleave(
            lambda _: tf.data.Dataset.from_tensors((X, Y))  # may read files
        )
        with pytest.raises(ValueError, match="must see some of the data"):
            regression().fit(data, verbose=0, shuffle=False, callbacks=[auto()])


def sequences():
    tokens = np.random.default_rng(2).integers(0, 7, size=[N, 6])
    return tokens, (tokens[:, 0] % 3).astype(np.int32)


def images():
    x = np.random.default_rng(2).normal(size=[N, 8, 8, 1]).astype(np.float32)
    return x, (x.mean(axis=(1, 2, 3)) > 0).astype(np.int32)


def numbers():
    return X, (Y[:, 0] > 0).astype(np.int32)


def classifier(shape, *layers, dtype="float32"):
    keras.utils.set_random_seed(1)
    x = inputs = keras.Input(shape, dtype=dtype)
    for layer in layers:
        x = layer(x)
    model = keras.Model(inputs, keras.layers.Dense(3)(x))
    model.compile(loss=small_models.CROSSENTROPY)
    return model


def residual(width):
    dense = keras.layers.Dense(width, "relu")
    return lambda x: x + keras.layers.Dense(width)(dense(keras.layers.LayerNormalization()(x)))


def attention(x):
    return keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(2, 4)(x, x))


def heteroscedastic():
    model = small_models.sequential(
        keras.layers.Dense(16, "tanh"),
        keras.layers.Dense(2),
        loss=sgmcmc.keras.NegativeLogLikelihood(small_models.heteroscedastic_normal),
        inputs=D,
        jit_compile=True,
    )
    return model


L = keras.layers
NETWORKS = {
    "relu": (lambda: classifier([D], L.Dense(32, "relu"), L.Dense(32, "relu")), numbers),
    "tanh": (lambda: classifier([D], L.Dense(32, "tanh")), numbers),
    "convolutions": (
        lambda: classifier([8, 8, 1], L.Conv2D(4, 3, activation="relu"), L.Flatten()),
        images,
    ),
    "recurrent": (
        lambda: classifier([6], L.Embedding(7, 8), L.LSTM(8, unroll=True), dtype="int32"),
        sequences,
    ),
    "attention": (
        lambda: classifier(
            [6], L.Embedding(7, 8), attention, L.GlobalAveragePooling1D(), dtype="int32"
        ),
        sequences,
    ),
    "embedding": (
        lambda: classifier([6], L.Embedding(7, 8), L.Flatten(), dtype="int32"),
        sequences,
    ),
    "residual": (lambda: classifier([D], L.Dense(16), residual(16), residual(16)), numbers),
    "regression": (heteroscedastic, lambda: (X, Y)),
    "wide": (lambda: classifier([D], L.Dense(1000, "relu")), numbers),
    "deep": (lambda: classifier([D], *(L.Dense(16, "relu") for _ in range(8))), numbers),
    "batch normalisation": (
        lambda: classifier([D], L.Dense(16), L.BatchNormalization(), L.ReLU()),
        numbers,
    ),
    "dropout": (lambda: classifier([D], L.Dense(32, "relu"), L.Dropout(0.2)), numbers),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("fresh", [False, True], ids=["independent batches", "epochs"])
def test_no_network_diverges(name, fresh):
    """After its burn-in the loss stays below that of a model that knows nothing but the prior."""
    make, data = NETWORKS[name]
    (x, y), model = data(), make()
    callback = auto(num_burnin_epochs=30)
    if fresh:
        history = quietly(model, callback, x, y, batch_size=20, epochs=60)
    else:
        given = sgmcmc.keras.IndependentBatches(x, y, batch_size=20, seed=5)
        history = quietly(model, callback, given, None, epochs=60)
    loss = np.array(history["loss"])
    assert np.isfinite(loss).all() and len(callback.samples[0])
    assert loss[-3:].mean() < 1.2 * loss[0], loss
