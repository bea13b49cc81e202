"""`SamplerCallback()` in the fits that Keras users write: layers, callbacks and kinds of data."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tests.keras.small_models import assert_close, assert_equal

L = keras.layers
N, B = 24, 8
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, 4, 4, 1]).astype(np.float32)
Y = RNG.integers(0, 3, size=[N])
COMPILED = {"loss": small_models.CROSSENTROPY, "jit_compile": False}


def images():
    """Returns a network with the layers that behave in their ways, and data for it."""
    layers = [L.Conv2D(3, 2, use_bias=False), L.BatchNormalization(), L.ReLU(), L.Dropout(0.2),
              L.Reshape([9, 3]), L.LayerNormalization(), L.LSTM(3), L.Dense(3)]  # fmt: skip
    return keras.Sequential([keras.Input([4, 4, 1]), *layers]), X, Y


def two_inputs_and_outputs():
    a, b = keras.Input([4, 4, 1], name="a"), keras.Input([2], name="b")
    shared = L.Concatenate()([L.Flatten()(a), b])
    model = keras.Model({"a": a, "b": b}, [L.Dense(3)(shared), L.Dense(3)(shared)])
    return model, {"a": X, "b": X[:, 0, :2, 0]}, [Y, Y]


def mixed_precision():
    class Own(keras.Model):
        def __init__(self):
            super().__init__(dtype="mixed_float16")
            self.flatten = L.Flatten(dtype="mixed_float16")
            self.dense = L.Dense(3, dtype="mixed_float16")

        def call(self, x):
            return self.dense(self.flatten(x))

    return Own(), X, Y


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy")
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, marks=pytest.mark.thorough)
        for make in (two_inputs_and_outputs, images, mixed_precision)
    ],
)
def test_any_model(make, tmp_path):
    """Saved, loaded and served states predict as the callback does."""
    keras.utils.set_random_seed(0)
    model, x, y = make()
    model.compile("adam", **COMPILED)
    sampler = sgmcmc.keras.SamplerCallback(seed=0)
    given = {"validation_data": (x, y), "class_weight": {0: 1.0, 1: 2.0, 2: 1.0}}
    if make is two_inputs_and_outputs:
        given = {"sample_weight": [np.linspace(0, 2, N)] * 2}
    model.fit(
        x, y, B, epochs=2, verbose=0, **given,
        callbacks=[sampler, keras.callbacks.ModelCheckpoint(tmp_path / "last.weights.h5",
                                                            save_weights_only=True)],
    )  # fmt: skip
    assert (tmp_path / "last.weights.h5").exists()
    means = np.array(sampler.posterior.predict(x, verbose=0).mean)
    assert means.shape[-2:] == (N, 3) and np.isfinite(means).all()
    sampler.posterior.save(tmp_path / "states.npz")
    found = sgmcmc.keras.Posterior.load(tmp_path / "states.npz", model)
    assert found.is_tempered
    assert_close([np.array(found.predict(x, verbose=0).mean)], [means])


def run(x, y=None, model=None, sampler=None, **arguments):
    sampler = sampler or sgmcmc.keras.SamplerCallback(seed=0)
    model = model or small_models.affine(units=3, inputs=16, jit_compile=False)
    model.fit(x, y, epochs=2, shuffle=False, verbose=0, callbacks=[sampler], **arguments)
    return sampler


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras says so of such data
@pytest.mark.thorough
def test_data_of_unknown_length_are_counted():
    """As after a filter. All but the length is as if it were known."""
    data = tf.data.Dataset.from_tensor_slices((X.reshape(N, 16), Y))
    known = run(data.batch(B))
    unknown = run(data.filter(lambda x, y: True).batch(B))
    assert_equal(unknown.samples, known.samples)
    assert unknown.result.windows.windows == known.result.windows.windows


@pytest.mark.thorough
def test_an_epoch_of_arrays_may_end_before_their_rows():
    sampler = run(X.reshape(N, 16), Y, batch_size=B, steps_per_epoch=1)
    assert len(sampler.samples[0]) == 2


@pytest.mark.thorough
def test_a_further_fit_goes_on():
    model, x = small_models.affine(units=3, inputs=16, jit_compile=False), X.reshape(N, 16)
    sampler = run(x, Y, model, batch_size=B)
    first = [np.array(s) for s in sampler.samples]
    run(x, Y, model, sampler, batch_size=B)
    assert_equal([s[: len(f)] for s, f in zip(sampler.samples, first, strict=True)], first)
    assert len(sampler.samples[0]) > len(first[0])


def test_a_model_that_reads_text():
    """States are chosen by strings of NumPy, which Keras takes only in a tf.data.Dataset."""
    texts = np.array(["good film", "bad film", "no film"] * (N // 3), object)
    text = keras.Input([], dtype="string")
    read = L.TextVectorization(10, output_mode="multi_hot", vocabulary=["good", "bad", "film"])
    model = keras.Model(text, L.Dense(3)(read(text)))
    model.compile("adam", **COMPILED)
    sampler = run(tf.data.Dataset.from_tensor_slices((texts, Y)).batch(B), model=model)
    means = [sampler.predict(x).mean for x in (texts, tf.constant(texts))]
    assert_equal(means[:1], means[1:])
    found = sampler.posterior.evaluate(texts, Y, verbose=0)
    assert np.isfinite(found.log_predictive_density)
