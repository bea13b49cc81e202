"""Point cloud classification with PointNet.

The clouds come from a generator: points on a sphere, a cube or a cylinder, turned and noisy.

python -m examples.point_net
"""

import keras
import numpy as np
from keras import layers, ops

import tfp_sgmcmc as sgmcmc
from examples.scores import at_the_weights, compared, show, train

POINTS = 32


def clouds(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns points `[count, POINTS, 3]` and classes."""
    rng = np.random.default_rng(seed)
    z, labels = rng.normal(size=[count, POINTS, 3]), rng.integers(0, 3, size=count)
    flat = np.hypot(z[..., :1], z[..., 1:2])
    sphere = 1.3 * z / np.linalg.norm(z, axis=-1, keepdims=True)
    cube = z / np.abs(z).max(axis=-1, keepdims=True)
    cylinder = np.concatenate([z[..., :2] / flat, np.clip(z[..., 2:], -1, 1)], axis=-1)
    points = np.stack([sphere, cube, cylinder])[labels, np.arange(count)]
    turns, _ = np.linalg.qr(rng.normal(size=[count, 3, 3]))
    return (points @ turns + 0.1 * rng.normal(size=z.shape)).astype(np.float32), labels


def identity(shape: tuple[int, ...], dtype: str) -> object:
    """Returns the bias of a layer whose outputs start as the identity matrix."""
    return ops.reshape(ops.eye(3, dtype=dtype), shape)


def main() -> dict[str, float]:
    keras.utils.set_random_seed(0)
    (x, y), (x_test, y_test) = clouds(300, 0), clouds(1000, 10)
    points = keras.Input([POINTS, 3])
    features = layers.GlobalMaxPooling1D()(layers.Conv1D(8, 1, activation="relu")(points))
    matrix = layers.Dense(9, kernel_initializer="zeros", bias_initializer=identity)(features)
    turned = layers.Dot(axes=(2, 1))([points, layers.Reshape([3, 3])(matrix)])
    hidden = layers.Conv1D(24, 1, activation="relu")(
        layers.Conv1D(12, 1, activation="relu")(turned)
    )
    hidden = layers.Dense(12, "relu")(layers.GlobalMaxPooling1D()(hidden))
    model = keras.Model(points, layers.Dense(3, "softmax")(hidden))
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", jit_compile=False)
    epochs = train(model, x, y, patience=100)  # the loss falls late
    trained = at_the_weights(model).evaluate(x_test, y_test)

    sampler = sgmcmc.keras.SamplerCallback()  # starts anew, and uses all rows
    model.fit(x, y, epochs=epochs, callbacks=[sampler], verbose=0)
    return compared(trained, sampler.posterior.evaluate(x_test, y_test))


if __name__ == "__main__":
    show(main)
