"""`SamplerCallback("auto")`: the chain that it leaves, its directory, its logs, and misuse."""

import types
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tests.keras.adaptation.small_auto import N, X, Y, auto, quietly, regression
from tests.keras.small_models import assert_equal, unit_normal
from tfp_sgmcmc.keras.adaptation import automatic_fit, network_pilot
from tfp_sgmcmc.keras.adaptation.linear_predictions import KernelSettings, law


class FakeChoices:
    """Predicts a temperature of 1."""

    predicted, scale = {"worst": 1.0, "mean": 1.0}, None
    numbers = dict(kernel="SGLD", step_size=1e-3, friction=None, covariance=None)
    numbers |= dict(predicted_excess_worst=0.0, bound=0.1)


class Start(keras.callbacks.Callback):
    """Remembers the weights where the pilot ends."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 3:
            self.weights = self.model.get_weights()


def batches(size=12):
    return sgmcmc.keras.IndependentBatches(X, Y, batch_size=size, seed=5)


class TestChain:
    def test_it_is_that_of_the_kernel_written_by_hand(self):
        """The burn-in, which is left out, is half of the fit."""
        callback, start, model = auto(num_burnin_epochs=None), Start(), regression()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(batches(24), epochs=8, verbose=0, callbacks=[start, callback])
        scale = callback.result.choices.scale
        kernels = {
            "by choices": callback.result.choices.make_kernel,
            "by hand": eval(callback.result.choices.code, {"sgmcmc": sgmcmc, "scale": scale}),
        }
        for make_kernel in kernels.values():
            again = regression()
            again.set_weights(start.weights)
            other = small_models.sampler(
                make_kernel, N, small_models.standard_normal(), num_burnin_steps=5
            )
            again.fit(batches(24), epochs=2, verbose=0, callbacks=[other])
            assert len(other.samples[0]) == 5 and len(callback.samples[0]) == 20
            assert_equal([x[:5] for x in callback.samples], other.samples)

    @pytest.mark.slow
    @pytest.mark.parametrize("num_chains", [None, 2])
    def test_a_run_in_a_directory_goes_on_without_a_pilot(self, tmp_path, monkeypatch, num_chains):
        def script(folder, *numbers):
            for epochs in numbers:
                # With a bound the choice does not depend on the number of epochs.
                given = {"num_chains": num_chains, "max_excess_temperature": 0.1}
                callback = auto(directory=tmp_path / folder, **given)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    regression().fit(batches(), epochs=epochs, verbose=0, callbacks=[callback])
            return [np.asarray(x) for x in callback.samples], callback.result.choices

        samples, chosen = script("once", 7)
        assert len(samples[0]) == 30
        script("twice", 2)  # killed within the pilot, which then begins anew
        script("twice", 5)
        monkeypatch.setattr(network_pilot, "measure_geometry", None)
        again, resumed = script("twice", 7)
        assert_equal(again, samples)
        assert resumed.code == chosen.code and resumed.numbers["num_steps"] == 20
        with pytest.raises(ValueError, match="max_excess_temperature"):
            other = auto(directory=tmp_path / "once", num_chains=num_chains)
            regression().fit(batches(), epochs=8, verbose=0, callbacks=[other])

    @pytest.mark.slow
    def test_a_kernel_by_hand_does_not_go_on_with_it(self, tmp_path):
        quietly(regression(), auto(directory=tmp_path), batch_size=24, shuffle=False)
        other = small_models.sampler(
            small_models.sgld(), N, small_models.standard_normal(), directory=tmp_path
        )
        with pytest.raises(ValueError, match="belongs to another run"):
            regression().fit(X, Y, batch_size=24, epochs=6, verbose=0, callbacks=[other])

    def test_auto_does_not_go_on_with_a_kernel_by_hand(self, tmp_path):
        other = small_models.sampler(
            small_models.sgld(), N, small_models.standard_normal(), directory=tmp_path
        )
        regression().fit(X, Y, batch_size=12, epochs=1, verbose=0, callbacks=[other])
        with pytest.raises(ValueError, match="belongs to another run"):
            quietly(regression(), auto(directory=tmp_path), batch_size=12)

    @pytest.mark.thorough
    def test_logs_show_the_measured_temperature(self, capsys, monkeypatch):
        monkeypatch.setattr(automatic_fit, "ENOUGH", 0.0)  # else 40 steps are too few to tell
        callback = auto()
        history = quietly(regression(), callback, batch_size=24, epochs=6, verbose=2)
        measured = history["measured_temperature_worst"]  # not before there is one
        assert measured and np.isfinite(measured).all()
        assert set(callback.result.temperatures) == {"predicted", "local", "measured"}
        assert measured[-1] == callback.result.temperatures["measured"]["worst"]
        assert history["measured_temperature_worst_error"][-1] > 0
        shown = capsys.readouterr().out
        assert str(callback.result.choices) in shown
        lines = [line for line in shown.splitlines() if "/step - " in line]
        assert lines and all(len(line) < 250 and "nan" not in line for line in lines)

    @pytest.mark.slow
    def test_a_trial_that_fails_is_taken_back(self, monkeypatch):
        """Steps 100 times too large throw the first trial to infinity; the second is smaller."""
        make, chosen = network_pilot.choose, []

        def reckless(found, constraints):
            chosen.append((found, constraints, make(found, constraints)))
            if len(chosen) == 1:
                chosen[0][2].numbers |= {"step_size": 100 * found.largest_curvature**-0.5}
            return chosen[-1][2]

        monkeypatch.setattr(network_pilot, "choose", reckless)
        model, callback = regression(), auto(max_excess_temperature=0.1)
        quietly(model, callback, batch_size=24)
        assert [x[1].growth for x in chosen][:2] == [1.0, 16.0]
        assert chosen[0][0] is chosen[1][0]  # the same place
        assert len(callback.samples[0]) == 10

    def test_burn_in_that_is_left_out_is_half_of_the_fit(self):
        """A plan knows it, too, and a fit whose half is too short for the pilot is refused."""
        model, callback = regression(), auto(num_burnin_epochs=None)
        assert callback.plan(model, X, Y, epochs=8, batch_size=24).num_samples == 20
        with pytest.raises(ValueError, match="at least 4 .* half of the first fit.*Received: 3"):
            quietly(model, callback, batch_size=24, epochs=7)

    def test_batches_that_are_not_independent_have_no_covariance(self):
        epochs = types.SimpleNamespace(are_independent=False, num_examples=N)
        assert network_pilot._covariances(None, epochs) == ()

    @pytest.mark.thorough
    def test_half_of_the_fit_is_the_burn_in_where_that_is_left_out(self):
        callback = auto(num_burnin_epochs=None)
        quietly(regression(), callback, batch_size=24, epochs=8)
        assert callback.result.choices is not None and len(callback.samples[0]) == 20

    @pytest.mark.slow
    def test_a_pilot_may_end_with_a_fit(self):
        model, callback = regression(), auto()
        quietly(model, callback, batch_size=24, epochs=3)
        assert callback.result.choices is None and callback.result.temperatures == {}
        quietly(model, callback, batch_size=24, epochs=2)
        assert callback.result.choices is not None and len(callback.samples[0]) == 5

    @pytest.mark.slow
    def test_more_noise_than_the_pilot_saw_is_told_once(self, monkeypatch):
        measure = automatic_fit.measure_geometry

        def noisier(*arguments):
            found = measure(*arguments)
            return found._replace(noise=1e6 * found.noise, mean_noise=1e6 * found.mean_noise)

        monkeypatch.setattr(automatic_fit, "measure_geometry", noisier)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            callback = auto(max_excess_temperature=0.1)
            regression().fit(X, Y, batch_size=40, epochs=5, verbose=0, callbacks=[callback])
        told = [str(w.message) for w in caught if "has grown since the pilot" in str(w.message)]
        local, predicted = (
            callback.result.temperatures[k]["worst"] for k in ("local", "predicted")
        )
        assert len(told) == 1 and local > 1e3 * predicted
        assert callback.model.history.history["failed_checks"][-1] >= 1
        assert f"{predicted:.3g} was predicted" in told[0]

    @pytest.mark.parametrize("measured", [-0.4, 3.0, 1.1])
    def test_a_temperature_that_was_not_predicted_is_told(self, monkeypatch, measured):
        guide = automatic_fit.AutomaticFit(types.SimpleNamespace(choices=FakeChoices()))
        guide._monitor = types.SimpleNamespace(sure_worst=measured)
        seen = types.SimpleNamespace(excess=lambda settings: np.array([0.0, 0.0]))
        for name in ("measure_geometry", "CompiledGradients", "batch_size"):
            monkeypatch.setattr(automatic_fit, name, lambda *_: None)
        monkeypatch.setattr(automatic_fit, "predictions_for", lambda *_: seen)
        chain = types.SimpleNamespace(
            is_pilot=False,
            num_examples=N,
            state=types.SimpleNamespace(status=lambda: types.SimpleNamespace(first_bad=-1)),
        )
        source = types.SimpleNamespace(batch=lambda _: X)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            for _ in range(2):
                guide.check_prediction(chain, source)
        expected = [] if measured == 1.1 else [f"{measured:.3g}, where 1 was predicted"]
        assert guide.has_failed is bool(expected)
        assert len(caught) == len(expected)
        assert all(e in str(w.message) for e, w in zip(expected, caught, strict=True))

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
        patch.setattr(network_pilot, "_covariances", lambda *_: ())
        data = callback.resident(
            x, Y, batch_size=40, steps_per_call=count // 10, steps_per_epoch=count
        )
        quietly(model, callback, data, None)
    own = callback.result.choices.numbers
    settings = KernelSettings(own["kernel"], own["step_size"], own["friction"])
    curvature = float((x**2).sum()) + 1.0
    scale = float(callback.result.choices.scale[0].item())
    r = np.exp(-1 / law(settings, curvature * scale, 0.0).relaxation_steps)
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
        with pytest.raises(ValueError, match='must be "auto", the name of a kernel.*automatic'):
            sgmcmc.keras.SamplerCallback(
                "automatic",
                prior=None,
                collect=sgmcmc.keras.Collect(0, 0),
                num_examples=N,
            )

    def test_several_replicas(self):
        two = types.SimpleNamespace(num_replicas_in_sync=2)
        with pytest.raises(ValueError, match="on 2 replicas.*choices.make_kernel"):
            automatic_fit.check_single_replica(types.SimpleNamespace(distribute_strategy=two))

    def test_data_that_cannot_be_seen(self):
        data = tf.data.Dataset.range(1).interleave(
            lambda _: tf.data.Dataset.from_tensors((X, Y))  # may read files
        )
        with pytest.raises(ValueError, match="needs data that can be read before the fit"):
            regression().fit(data, verbose=0, shuffle=False, callbacks=[auto()])
