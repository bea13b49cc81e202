"""Traces, R-hat and predictive entropy, read back from TensorBoard's files."""

import functools
import sys

import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tests.keras.small_models import CROSSENTROPY, linear, sgld
from tfp_sgmcmc.diagnostics.convergence import RunningMoments

N, D = 12, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, D]).astype(np.float32)
Y = RNG.integers(0, 4, N)

sampler = functools.partial(small_models.sampler, sgld(0.05), N)


def fit(callbacks, model=None, epochs=3, y=Y, **arguments):
    model = model or linear(jit_compile=False)
    model.fit(X, y, batch_size=2, shuffle=False, epochs=epochs, verbose=0, callbacks=callbacks,
              **arguments)  # fmt: skip
    return model


def read(folder):
    """Returns tag -> (steps, values) of all files of a run, in the order they were written."""
    found = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    found.Reload()
    return {
        tag: (
            [e.step for e in found.Tensors(tag)],
            np.array([tensor_util.make_ndarray(e.tensor_proto) for e in found.Tensors(tag)]),
        )
        for tag in found.Tags()["tensors"]
    }


def classic_rhat(x):
    """Returns R-hat of whole chains, `[draws, chains, ...]`."""
    within = x.var(axis=0, ddof=1).mean(axis=0)
    between = x.mean(axis=0).var(axis=0, ddof=1)
    return np.sqrt((len(x) - 1) / len(x) + between / within)


@pytest.mark.parametrize("blocks", [[7], [1, 1, 5], [3, 4]])
def test_running_moments_do_not_depend_on_the_blocks(blocks):
    x = 1e3 + RNG.normal(size=[sum(blocks), 3, 2])
    moments = RunningMoments()
    for start, size in zip(np.cumsum([0, *blocks]), blocks, strict=False):
        moments.add(x[start : start + size])
    np.testing.assert_allclose(moments.rhat(), classic_rhat(x), rtol=1e-9)
    assert np.all(np.abs(moments.rhat() - classic_rhat(x[::-2])) > 1e-3)


def test_rhat_is_unknown_before_the_second_sample():
    moments = RunningMoments()
    moments.add(RNG.normal(size=[1, 3, 2]))
    assert np.isnan(moments.rhat()).all()


# The callback of Keras makes an array of a tf.Variable, which does not take `copy`.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_files_have_the_samples_their_rhat_and_the_entropy(tmp_path):
    callback = sampler(num_chains=2, num_burnin_steps=4)
    chosen = [("kernel", (2, 1))]
    traces = sgmcmc.keras.Traces(callback, tmp_path, weights=chosen, probe=X[:5])
    model = linear(jit_compile=False)
    board = keras.callbacks.TensorBoard(tmp_path, write_graph=False)
    fit([callback, traces, board], model)
    samples, ends = callback.samples[0], [2, 8, 14]  # epochs of six steps, after four of burn-in
    tag = f"weights/{model.trainable_variables[0].path}[2, 1]"
    for c in range(2):
        run = read(tmp_path / f"chain_{c}")
        assert list(run) == [tag]
        assert run[tag][0] == callback.result.trace["step"].tolist() == list(range(4, 18))
        np.testing.assert_array_equal(run[tag][1], samples[:, c, 2, 1])
    run = read(tmp_path / "sampler")
    for name in ("all", model.trainable_variables[0].path):
        steps, values = run[f"rhat/{name}"]
        assert steps == [5, 11, 17]
        expected = [classic_rhat(samples[:n].astype(np.float64)).max() for n in ends]
        np.testing.assert_allclose(values, expected, rtol=1e-6)
    np.testing.assert_allclose(model.history.history["rhat"], run["rhat/all"][1], rtol=1e-6)
    for name in ("entropy", "mutual_information"):
        expected = []
        for first, last in zip([0, *ends], ends, strict=False):
            posterior = callback.posterior.with_samples([samples[first:last]])
            found = posterior.predict(X[:5], verbose=0)
            expected.append(np.mean(getattr(found, name)))
        np.testing.assert_allclose(run[f"predictive/{name}"][1], expected, rtol=1e-6)
    assert set(run) == {"rhat/all", f"rhat/{model.trainable_variables[0].path}",
                        "predictive/entropy", "predictive/mutual_information"}  # fmt: skip
    np.testing.assert_array_equal(read(tmp_path / "train")["epoch_samples"][1], ends)


@pytest.mark.thorough
def test_traces_of_many_samples_are_thinned(tmp_path):
    callback = sampler()
    fit([callback, sgmcmc.keras.Traces(callback, tmp_path, weights=3, most_points=4)], epochs=2)
    run = read(tmp_path / "chain_0")
    assert len(run) == 3
    for steps, _ in run.values():
        assert steps == [0, 2, 3, 5, 6, 8, 9, 11]
    assert not (tmp_path / "sampler").exists()  # one chain and no probe


def test_a_run_that_goes_on_draws_no_sample_twice_but_counts_all(tmp_path):
    for epochs in (2, 3):
        callback = sampler(num_chains=2, directory=tmp_path / "run")
        traces = sgmcmc.keras.Traces(callback, tmp_path / "logs", weights=1)
        fit([callback, traces], epochs=epochs)
    samples = callback.samples[0][:]
    files = sorted((tmp_path / "logs" / "chain_0").iterdir())
    (_, old), (_, new) = (next(iter(read(file).values())) for file in files)
    assert (len(old), len(new)) == (12, 6)
    _, rhat = read(sorted((tmp_path / "logs" / "sampler").iterdir())[-1])["rhat/all"]
    assert rhat[-1] == pytest.approx(classic_rhat(samples.astype(np.float64)).max(), rel=1e-6)


@pytest.mark.thorough
def test_a_regression_has_standard_deviations(tmp_path):
    callback = sampler()
    model = linear(sgmcmc.keras.losses.GaussianNLL(scale=2.0), 1, jit_compile=False)
    fit([callback, sgmcmc.keras.Traces(callback, tmp_path, probe=X)], model, epochs=1, y=X[:, :1])
    run = read(tmp_path / "sampler")
    law = callback.posterior.predict(X, verbose=0).predictive
    assert run["predictive/aleatoric"][1] == [2.0]
    np.testing.assert_allclose(run["predictive/epistemic"][1], law.epistemic.mean(), rtol=1e-6)


def test_a_burn_in_writes_nothing(tmp_path):
    callback = sampler(num_burnin_steps=100)
    fit([callback, sgmcmc.keras.Traces(callback, tmp_path)], epochs=1)
    assert not [*tmp_path.iterdir()]


class TestBadInput:
    def test_the_sampler_must_come_before(self, tmp_path):
        callback = sampler()
        traces = sgmcmc.keras.Traces(callback, tmp_path)
        for callbacks in ([traces, callback], [traces], [sampler(), traces]):
            with pytest.raises(
                ValueError, match="must come before Traces.*Received: it comes after"
            ):
                fit(callbacks)

    @pytest.mark.parametrize(
        "weights, words",
        [
            ([("dense/bias", (0,))], "trainable variables.*fits 0 of"),
            ([("kernel", (0, 4))], r"indices of entries. Received: \(0, 4\) for 'kernel'"),
            ([("kernel", (0,))], "indices of entries"),
        ],
    )
    def test_entries_that_do_not_exist(self, weights, words, tmp_path):
        callback = sampler()
        traces = sgmcmc.keras.Traces(callback, tmp_path, weights=weights)
        with pytest.raises(ValueError, match=words):
            fit([callback, traces])

    @pytest.mark.parametrize(
        "error, words, arguments",
        [
            (ValueError, "weights must be", {"weights": -1}),
            (TypeError, "weights must be an integer, or pairs", {"weights": "kernel"}),
            (TypeError, "weights must be an integer, or pairs", {"weights": [("kernel", 0)]}),
            (ValueError, "most_points must be", {"most_points": 0}),
            (TypeError, "log_dir must be a string or a path", {"log_dir": 1}),
            (TypeError, "sampler must be the SamplerCallback", {"sampler": None}),
        ],
    )
    def test_arguments(self, error, words, arguments, tmp_path):
        given = {"sampler": sampler(), "log_dir": tmp_path, **arguments}
        with pytest.raises(error, match=words):
            sgmcmc.keras.Traces(given.pop("sampler"), given.pop("log_dir"), **given)

    def test_without_tensorboard(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
        with pytest.raises(ModuleNotFoundError, match="python -m pip install tensorboard"):
            sgmcmc.keras.Traces(sampler(), tmp_path)


def test_a_model_with_two_outputs_has_figures_of_each(tmp_path):
    inputs = keras.Input([D])
    heads = [keras.layers.Dense(4)(inputs) for _ in range(2)]
    model = keras.Model(inputs, heads)
    model.compile(loss=[CROSSENTROPY, CROSSENTROPY], jit_compile=False)
    callback = sampler()
    fit([callback, sgmcmc.keras.Traces(callback, tmp_path, weights=0, probe=X)], model, 1, [Y, Y])
    found = callback.posterior.predict(X, verbose=0).entropy
    run = read(tmp_path / "sampler")
    for i, entropy in enumerate(found):
        np.testing.assert_allclose(run[f"predictive/entropy_{i}"][1], entropy.mean(), rtol=1e-6)
