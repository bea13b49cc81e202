"""Point cloud classification with PointNet.

The clouds come from a generator: points on a sphere, a cube or a cylinder, turned and noisy.

python -m examples.point_net
"""

import keras
import numpy as np
import tensorflow_probability as tfp
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
    train(model, x, y)
    trained = at_the_weights(model).evaluate(x_test, y_test)

    sampler = sgmcmc.keras.SamplerCallback(
        lambda target: sgmcmc.SGHMC(target, step_size=2e-3, friction=30.0, covariance="diag"),
        prior=tfp.distributions.Normal(0.0, 0.5),
        collect=sgmcmc.keras.Collect(1000, 39),
        num_examples=300,
        seed=0,
    )
    data = sampler.resident(x, y, batch_size=50, steps_per_call=250, steps_per_epoch=3000)
    model.fit(data, callbacks=[sampler], verbose=0)
    return compared(trained, sampler.posterior.evaluate(x_test, y_test), "posterior")


if __name__ == "__main__":
    show(main)
