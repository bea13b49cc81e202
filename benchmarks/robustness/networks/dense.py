"""Networks of vectors: dense layers, several inputs and outputs, models of other styles."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from benchmarks.robustness.networks.network import (
    CLASSES,
    Network,
    classes,
    classifier,
    crossentropy,
    numbers,
)
from tfp_sgmcmc.keras import losses

D = 4


def dense() -> Network:
    stack = [layers.Dense(6, "relu"), layers.Dense(5, "tanh"), layers.Dense(CLASSES)]
    return Network(
        keras.Sequential([keras.Input([D]), *stack]), numbers(D), classes(), crossentropy()
    )


def dropout() -> Network:
    stack = [layers.Dense(8, "relu"), layers.Dropout(0.3), layers.Dense(CLASSES)]
    model = keras.Sequential([keras.Input([D]), *stack])
    return Network(model, numbers(D), classes(), crossentropy(), draws=True)


def residual_mlp() -> Network:
    inputs = keras.Input([D])
    x = layers.Dense(6)(inputs)
    for _ in range(2):
        h = layers.Dense(6, "gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, h])
    return classifier(inputs, x, numbers(D))


def gated() -> Network:
    """Highway layers with trainable activations and a penalty of activities."""
    inputs = keras.Input([D])
    x = layers.Dense(6, activity_regularizer=keras.regularizers.L2(1e-3))(inputs)
    gate = layers.Dense(6, "sigmoid")(x)
    candidate = layers.PReLU()(layers.Dense(6, kernel_regularizer="l2")(x))
    return classifier(inputs, gate * candidate + (1 - gate) * x, numbers(D))


def mixture_of_experts() -> Network:
    inputs = keras.Input([D])
    gates = layers.Dense(3, "softmax")(inputs)
    experts = ops.stack([layers.Dense(5, "relu")(inputs) for _ in range(3)], axis=1)
    mixed = ops.sum(ops.expand_dims(gates, -1) * experts, axis=1)
    return classifier(inputs, mixed, numbers(D))


def heteroscedastic() -> Network:
    stack = [layers.Dense(8, "tanh"), layers.Dense(2)]
    model = keras.Sequential([keras.Input([D]), *stack])
    return Network(model, numbers(D), numbers(1, seed=1), losses.GaussianNLL())


def multi_input() -> Network:
    inputs = {"a": keras.Input([D], name="a"), "b": keras.Input([2], name="b")}
    joined = layers.Concatenate()([layers.Dense(4, "relu")(inputs["a"]), inputs["b"]])
    return classifier(inputs, joined, {"a": numbers(D), "b": numbers(2, seed=2)})


def multi_output() -> Network:
    inputs = keras.Input([D])
    hidden = layers.Dense(6, "relu")(inputs)
    outputs = {
        "kind": layers.Dense(CLASSES, name="kind")(hidden),
        "value": layers.Dense(2, name="value")(hidden),
    }
    y = {"kind": classes(), "value": numbers(1, seed=1)}
    loss = {"kind": crossentropy(), "value": losses.GaussianNLL()}
    return Network(keras.Model(inputs, outputs), numbers(D), y, loss)


def siamese() -> Network:
    """Two inputs that pass through the same layers."""
    encoder = keras.Sequential([keras.Input([D]), layers.Dense(6, "tanh"), layers.Dense(3, "tanh")])
    left, right = keras.Input([D]), keras.Input([D])
    distance = ops.square(encoder(left) - encoder(right))
    same = layers.Dense(1, "sigmoid")(distance)
    y = (classes() == 0).astype("float32")[:, None]
    x = [numbers(D), numbers(D, seed=2)]
    return Network(keras.Model([left, right], same), x, y, keras.losses.BinaryCrossentropy())


@keras.saving.register_keras_serializable("benchmarks")
class Subclassed(keras.Model):
    """A model with a loop over layers, and layers that it makes when it is built."""

    def __init__(self, width: int = 5, **arguments: Any):
        super().__init__(**arguments)
        self.width = width
        self.hidden = [layers.Dense(width, "tanh") for _ in range(2)]
        self.drop = layers.Dropout(0.2)
        self.head = layers.Dense(CLASSES)

    def call(self, x: Any, training: bool = False) -> Any:
        for layer in self.hidden:
            x = self.drop(layer(x), training=training)
        return self.head(x)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "width": self.width}


def subclassed() -> Network:
    return Network(Subclassed(), numbers(D), classes(), crossentropy(), draws=True)


@keras.saving.register_keras_serializable("benchmarks")
class Autoencoder(keras.Model):
    """A variational autoencoder, whose Kullback-Leibler divergence is an `add_loss` term."""

    def __init__(self, **arguments: Any):
        super().__init__(**arguments)
        self.encoder = keras.Sequential([layers.Dense(6, "relu"), layers.Dense(4)])
        self.decoder = keras.Sequential([layers.Dense(6, "relu"), layers.Dense(D)])
        self.seeds = keras.random.SeedGenerator(0)

    def call(self, x: Any, training: bool = False) -> Any:
        mean, log_variance = ops.split(self.encoder(x), 2, axis=-1)
        divergence = ops.exp(log_variance) + ops.square(mean) - 1 - log_variance
        self.add_loss(0.5 * ops.mean(ops.sum(divergence, axis=-1)))
        z = mean
        if training:
            z += ops.exp(log_variance / 2) * keras.random.normal(ops.shape(mean), seed=self.seeds)
        return self.decoder(z)


def unit_normal(y: Any, f: Any) -> Any:
    return 0.5 * ops.sum(ops.square(y - f), axis=-1)


def variational_autoencoder() -> Network:
    x = numbers(D)
    return Network(Autoencoder(), x, x, unit_normal, draws=True)


def low_rank() -> Network:
    """Low-rank adaptations are trained; the layers that they adapt are frozen."""
    inputs = keras.Input([D])
    hidden = layers.Dense(6, "relu", name="adapted")
    network = classifier(inputs, hidden(inputs), numbers(D))
    for layer in (hidden, network.model.get_layer("logits")):
        layer.enable_lora(2)
        layer.lora_kernel_b.assign(0.1 * ops.ones_like(layer.lora_kernel_b))
    return network


def transfer() -> Network:
    """A frozen network with moving statistics within another network."""
    inner = keras.Sequential(
        [keras.Input([D]), layers.Dense(6, "relu"), layers.BatchNormalization()]
    )
    inner.trainable = False
    inputs = keras.Input([D])
    return classifier(inputs, inner(inputs, training=False), numbers(D))


def float64() -> Network:
    policy = keras.dtype_policies.DTypePolicy("float64")
    stack = [layers.Dense(6, "tanh", dtype=policy), layers.Dense(CLASSES, dtype=policy)]
    model = keras.Sequential([keras.Input([D], dtype="float64"), *stack])
    return Network(model, numbers(D).astype("float64"), classes(), crossentropy())


def mixed_precision(name: str = "mixed_bfloat16") -> Network:
    policy = keras.dtype_policies.DTypePolicy(name)
    stack = [layers.Dense(8, "relu", dtype=policy), layers.Dense(CLASSES, dtype="float32")]
    model = keras.Sequential([keras.Input([D]), *stack])
    return Network(model, numbers(D), classes(), crossentropy())


NETWORKS = {
    "dense": dense,
    "dropout": dropout,
    "residual MLP, LayerNormalization": residual_mlp,
    "highway, PReLU, regularisers": gated,
    "mixture of experts": mixture_of_experts,
    "mean and scale, GaussianNLL": heteroscedastic,
    "several inputs": multi_input,
    "several outputs": multi_output,
    "Siamese, shared layers": siamese,
    "subclassed": subclassed,
    "variational autoencoder, add_loss": variational_autoencoder,
    "low-rank adaptation": low_rank,
    "transfer, frozen inner model": transfer,
    "float64": float64,
    "mixed precision, bfloat16": mixed_precision,
    "mixed precision, float16": lambda: mixed_precision("mixed_float16"),
}
