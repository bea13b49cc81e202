"""Masses of layers: fan-in times the mean squared centred input of the first layers."""

import keras
import numpy as np
import pytest

from tfp_sgmcmc.keras.adaptation.layer_masses import layer_masses

RNG = np.random.default_rng(0)
L = keras.layers


def test_the_first_layer_is_measured_behind_layers_without_weights():
    x = (2 + 3 * RNG.normal(size=[50, 4, 2])).astype(np.float32)
    model = keras.Sequential(
        [keras.Input([4, 2]), L.Rescaling(0.5), L.Flatten(), L.Dense(6, "relu"), L.Dense(3)]
    )
    first, first_bias, second, second_bias = layer_masses(model, x)
    inputs = x.reshape(50, 8) / 2
    assert first.mass == pytest.approx(8 * np.mean(inputs.var(axis=0)), rel=1e-5)
    np.testing.assert_allclose(first.center[:, 0], inputs.mean(axis=0), rtol=1e-5)
    assert first.variance == pytest.approx(2 / first.mass) and first.bias == 1
    assert second == (6.0, 2 / 6, None, None, 1.0)
    assert first_bias == second_bias == (1.0, 1.0, None, None, 1.0)
    assert layer_masses(model, None)[0].mass == 8
    assert all("call" not in vars(layer) for layer in model.layers)


def test_rows_are_evaluated_in_blocks():
    """A network of images would need gigabytes for all rows at once."""
    sizes = []

    class Recording(L.Layer):
        def call(self, x):
            sizes.append(x.shape[0])
            return x

    x = RNG.normal(size=[70, 3]).astype(np.float32)
    model = keras.Sequential([keras.Input([3]), L.Dense(4), Recording(), L.Dense(2)])
    sizes.clear()
    assert layer_masses(model, x)[0].mass == pytest.approx(3 * np.mean(x.var(axis=0)), rel=1e-5)
    assert max(sizes) <= 32 and sum(sizes[2:]) == 70 - 32


def test_columns_in_different_units_have_their_masses():
    x = RNG.normal(size=[50, 3]).astype(np.float32) * np.array([1.0, 1000.0, 0.0], np.float32)
    model = keras.Sequential([keras.Input([3]), L.Dense(4)])
    kernel, _ = layer_masses(model, x + 3)
    square = x.var(axis=0)
    assert kernel.mass.shape == (3, 1)
    np.testing.assert_allclose(kernel.mass[:2, 0], 3 * square[:2], rtol=1e-5)
    np.testing.assert_allclose(kernel.mass[2, 0], 3 * square.mean(), rtol=1e-5)
    assert isinstance(layer_masses(model, x / [1, 20, 1])[0].mass, float)


def test_initial_weights_of_large_inputs_have_a_divisor():
    """Only those that meet the inputs, and if that is known."""

    class Two(L.Layer):
        def build(self, shape):
            self.v = self.add_weight(shape=(shape[-1], 4), name="v")
            self.w = self.add_weight(shape=(4, 2), name="w")

        def call(self, x):
            return keras.ops.relu(x @ self.v) @ self.w

    def divisors(layer, x):
        model = keras.Sequential([keras.Input(x.shape[1:]), layer, L.Flatten(), L.Dense(2)])
        found = [m.divisor for m in layer_masses(model, x)]
        names = [v.path.split("/")[-1] for v in model.trainable_variables]
        return dict([*zip(names, found, strict=True)][:-2])

    images = (100 * RNG.normal(size=[50, 5, 5, 3])).astype(np.float32)
    found = divisors(L.SeparableConv2D(4, 3, use_bias=False), images)
    assert found["depthwise_kernel"] == pytest.approx(100, rel=0.1)
    assert found["pointwise_kernel"] == 1
    found = divisors(L.GRU(4), images[:, 0])
    assert found["kernel"] == pytest.approx(100, rel=0.2) and found["recurrent_kernel"] == 1
    assert divisors(Two(), images[:, 0, 0]) == {"v": 1, "w": 1}
    separable = L.SeparableConv2D(4, 3, use_bias=False)
    separable.build([None, 5, 5, 3])
    separable.depthwise_kernel.trainable = False  # none that is left meets the inputs
    assert divisors(separable, images) == {"pointwise_kernel": 1}
    assert divisors(L.Dense(4), 0.09 * images[:, 0, 0])["kernel"] == 1


@pytest.mark.parametrize("first", [False, True])
def test_convolutions_are_centred_by_channels(first):
    x = (RNG.normal(size=[20, 3, 5, 5]) + [[[[1.0]], [[2.0]], [[4.0]]]]).astype(np.float32)
    form = "channels_first" if first else "channels_last"
    x = x if first else np.moveaxis(x, 1, -1)
    model = keras.Sequential([keras.Input(x.shape[1:]), L.Conv2D(4, 3, data_format=form)])
    axes = (0, 2, 3) if first else (0, 1, 2)
    kernel, _ = layer_masses(model, x)
    assert kernel.center.shape == (3, 1) and kernel.bias == 1
    np.testing.assert_allclose(kernel.center[:, 0], x.mean(axis=axes), rtol=1e-5)
    assert kernel.mass == pytest.approx(27 * np.mean(x.var(axis=axes)), rel=1e-5)


def test_kernels_of_other_layers():
    inputs = keras.Input([8, 8, 3])
    y = L.Conv2D(4, 3, use_bias=False)(inputs)
    y = L.BatchNormalization()(y)
    y = L.DepthwiseConv2D(3)(y)
    y = L.Reshape([16, 4])(y)
    y = L.MultiHeadAttention(2, 5)(y, y)
    y = L.LayerNormalization()(y)
    y = L.LSTM(7)(y)
    model = keras.Model(inputs, y)
    x = RNG.normal(size=[20, 8, 8, 3]).astype(np.float32)
    found = [m.mass for m in layer_masses(model, x)]
    shapes = [(v.name, tuple(v.shape)) for v in model.trainable_variables]
    by_name = dict(zip(shapes, found, strict=True))
    assert by_name["kernel", (3, 3, 3, 4)] == pytest.approx(27 * np.mean(x**2), rel=1e-5)
    assert by_name["gamma", (4,)] == by_name["beta", (4,)] == 1
    assert by_name["kernel", (3, 3, 4, 1)] == 9
    assert by_name["kernel", (4, 2, 5)] == 4  # a query's
    assert by_name["kernel", (2, 5, 4)] == 10  # the output's
    assert by_name["bias", (2, 5)] == 1
    assert by_name["kernel", (4, 28)] == 4 and by_name["recurrent_kernel", (7, 28)] == 7


def test_embeddings_are_weights_of_one_hot_inputs():
    model = keras.Sequential([keras.Input([5], dtype="int32"), L.Embedding(9, 4), L.Flatten(),
                              L.Dense(2)])  # fmt: skip
    table, kernel, _ = layer_masses(model, RNG.integers(0, 9, size=[10, 5]))
    assert table[:2] == (1.0, 2.0) and kernel.mass == 20
    by_floats = keras.Sequential([keras.Input([5]), L.Embedding(9, 4)])  # Keras' default dtype
    assert layer_masses(by_floats, np.full([10, 5], 8.0, np.float32))[0].mass == 1


def test_adaptations_of_low_rank():
    """Both factors are weights of their own inputs, also those of layers with equations."""
    inputs = keras.Input([6])
    y = L.Embedding(9, 4)(inputs)
    y = L.EinsumDense("npx,xde->npde", (6, 2, 3))(y)
    model = keras.Model(inputs, L.Dense(5)(L.Flatten()(y)))
    for layer in (model.layers[1], model.layers[2], model.layers[4]):
        layer.enable_lora(2)
    x = RNG.integers(0, 9, size=[20, 6]).astype(np.float32)
    names = [v.name for v in model.trainable_variables]
    found = [m.mass for m in layer_masses(model, x)]
    factors = ["lora_kernel_a", "lora_kernel_b"]
    assert names == ["lora_embeddings_a", "lora_embeddings_b", *factors, "bias", *factors]
    assert found == [1.0, 2.0, 4.0, 2.0, 1.0, 36.0, 2.0]
