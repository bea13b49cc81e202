"""Collaborative filtering for movie recommendations: embeddings of users and films.

The ratings come from a generator: tastes of four dimensions, and few ratings of each user.

python -m examples.movie_recommendations
"""

import keras
import numpy as np
import tensorflow_probability as tfp
from keras import layers

import tfp_sgmcmc as sgmcmc
from examples.scores import at_the_weights, compared, show, train

USERS, FILMS, TASTES = 60, 40, 4


def ratings() -> tuple[list[np.ndarray], np.ndarray]:
    """Returns the numbers of user and film of all ratings in a random order, and the ratings."""
    rng = np.random.default_rng(0)
    user, film = rng.normal(size=[USERS, TASTES]), rng.normal(size=[FILMS, TASTES])
    chosen = rng.permutation(USERS * FILMS)
    u, f = (chosen // FILMS).astype(np.int32), (chosen % FILMS).astype(np.int32)
    score = (user[u] * film[f]).sum(axis=1) / 2 + 0.5 * rng.normal(size=len(u))
    return [u[:, None], f[:, None]], score.astype(np.float32)[:, None]


def main() -> dict[str, float]:
    keras.utils.set_random_seed(0)
    x, y = ratings()
    x_test, y_test, x, y = [a[800:] for a in x], y[800:], [a[:800] for a in x], y[:800]
    user, film = keras.Input([1], dtype="int32"), keras.Input([1], dtype="int32")
    product = layers.Dot(axes=2)(
        [layers.Embedding(USERS, TASTES)(user), layers.Embedding(FILMS, TASTES)(film)]
    )
    biases = layers.Embedding(USERS, 1)(user) + layers.Embedding(FILMS, 1)(film)
    model = keras.Model([user, film], layers.Flatten()(product + biases))
    loss = sgmcmc.keras.losses.GaussianNLL(scale=0.5)
    model.compile(keras.optimizers.Adam(0.01), loss, jit_compile=False)
    train(model, x, y)
    trained = at_the_weights(model).evaluate(x_test, y_test)

    sampler = sgmcmc.keras.SamplerCallback(
        lambda target: sgmcmc.NOGIN(target, step_size=0.03, friction=3.0, covariance="diag"),
        prior=tfp.distributions.Normal(0.0, 1.0),
        collect=sgmcmc.keras.Collect(1000, 49),
        num_examples=800,
        seed=0,
    )
    data = sampler.resident(x, y, batch_size=200, steps_per_call=500, steps_per_epoch=5000)
    model.fit(data, callbacks=[sampler], verbose=0)
    return compared(trained, sampler.posterior.evaluate(x_test, y_test), "posterior")


if __name__ == "__main__":
    show(main)
