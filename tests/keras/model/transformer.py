"""Samples small transformers by NOGIN; a test runs this in a process of its own.

Some weights of the second transformer are in a layer of the user, so that their scores come from
passes of the model for single examples.
"""

import itertools
import sys
import warnings

import keras
import numpy as np
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

L = keras.layers
LENGTH, TOKENS = 6, 7


class Positions(L.Layer):
    """Adds weights to the positions of a sequence."""

    def build(self, shape):
        self.shift = self.add_weight(shape=shape[1:])

    def call(self, x):
        return x + self.shift


def transformer(*below, **compiled):
    keras.utils.set_random_seed(1)
    tokens = keras.Input([LENGTH], dtype="int32")
    x = L.Embedding(TOKENS, 8)(tokens)
    for layer in below:
        x = layer(x)
    x = L.LayerNormalization()(x + L.MultiHeadAttention(2, 4)(x, x))
    x = L.LayerNormalization()(x + L.Dense(8)(L.Dense(16, "relu")(x)))
    model = keras.Model(tokens, L.Dense(3)(L.GlobalAveragePooling1D()(x)))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), **compiled)
    return model


def samples(model, num_chains):
    x = np.random.default_rng(0).integers(0, TOKENS, size=[12, LENGTH])
    sampler = sgmcmc.keras.SamplerCallback(
        lambda target: sgmcmc.NOGIN(target, 0.01, friction=1.0, covariance="diag"),
        num_examples=12,
        prior=tfp.distributions.Normal(0.0, 1.0),
        collect=sgmcmc.keras.Collect(0, 0),
        chains=num_chains and sgmcmc.keras.Chains(num_chains, "model"),
        seed=0,
        independent_batches=False,
    )
    model.fit(x, x[:, 0] % 3, batch_size=6, verbose=0, callbacks=[sampler])
    return sampler.samples


def main(which):
    warnings.simplefilter("ignore")  # the batches of an epoch are not independent
    modes = ({"run_eagerly": True}, {"jit_compile": False}, {"jit_compile": True})
    settings = [((), mode, chains) for mode, chains in itertools.product(modes, (None, 2))]
    settings += [((Positions(),), modes[1], chains) for chains in (None, 2)]
    for below, mode, num_chains in settings[-2:-1] if which == "first" else settings:
        found = samples(transformer(*below, **mode), num_chains)
        print("finite" if all(np.isfinite(x).all() for x in found) else "not finite", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
