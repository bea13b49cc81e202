"""Networks of sequences: recurrent layers, convolutions in time, attention."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from benchmarks.robustness.networks.network import (
    Network,
    classes,
    classifier,
    crossentropy,
    numbers,
    tokens,
)
from tfp_sgmcmc.keras import losses

LENGTH, WORDS = 5, 7


def _series(layer: Any, **arguments: Any) -> Network:
    inputs = keras.Input([LENGTH, 2])
    return classifier(inputs, layer(inputs), numbers(LENGTH, 2), **arguments)


def masked_gru() -> Network:
    inputs = keras.Input([LENGTH], dtype="int32")
    x = layers.GRU(4)(layers.Embedding(WORDS, 3, mask_zero=True)(inputs))
    return classifier(inputs, x, tokens(LENGTH, most=WORDS))


@keras.saving.register_keras_serializable("benchmarks")
class LeakyCell(layers.Layer):
    """A cell of one's own."""

    def __init__(self, units: int, **arguments: Any):
        super().__init__(**arguments)
        self.units = self.state_size = units
        self.inner, self.outer = layers.Dense(units), layers.Dense(units, use_bias=False)

    def build(self, shape: Any) -> None:
        self.inner.build(shape)
        self.outer.build((None, self.units))

    def call(self, x: Any, states: Any) -> Any:
        h = 0.5 * states[0] + 0.5 * ops.tanh(self.inner(x) + self.outer(states[0]))
        return h, [h]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


def encoder_decoder() -> Network:
    """An LSTM that starts another in its last state, for the rest of a sequence."""
    source, target = keras.Input([LENGTH, 2]), keras.Input([3, 2])
    _, *states = layers.LSTM(4, return_state=True)(source)
    x = layers.LSTM(4, return_sequences=True)(target, initial_state=states)
    model = keras.Model([source, target], layers.TimeDistributed(layers.Dense(2))(x))
    given = [numbers(LENGTH, 2), numbers(3, 2, seed=2)]
    return Network(model, given, numbers(3, 1, seed=1), losses.GaussianNLL())


def conv_lstm() -> Network:
    inputs = keras.Input([3, 4, 4, 1])
    x = layers.Flatten()(layers.ConvLSTM2D(2, 2)(inputs))
    return classifier(inputs, x, numbers(3, 4, 4, 1))


def temporal_convolutions() -> Network:
    inputs = keras.Input([8, 2])
    x = layers.Conv1D(4, 2, padding="causal", activation="relu")(inputs)
    x = layers.Conv1D(4, 2, padding="causal", dilation_rate=2, activation="relu")(x)
    return classifier(inputs, layers.GlobalMaxPooling1D()(x), numbers(8, 2))


def attention(kind: Any = layers.Attention) -> Network:
    inputs = keras.Input([LENGTH], dtype="int32")
    x = layers.Embedding(WORDS, 4)(inputs)
    query = layers.Dense(4)(x)
    x = layers.GlobalAveragePooling1D()(kind(use_scale=True)([query, x]))
    return classifier(inputs, x, tokens(LENGTH, most=WORDS))


def _embedded(inputs: Any, dim: int = 6) -> Any:
    places = ops.cumsum(ops.ones_like(inputs), axis=1) - 1
    return layers.Embedding(WORDS, dim)(inputs) + layers.Embedding(LENGTH, dim)(places)


def _block(x: Any, dropout: float = 0.0, **arguments: Any) -> Any:
    x += layers.MultiHeadAttention(2, 3, dropout=dropout)(x, x, **arguments)
    x = layers.LayerNormalization()(x)
    x += layers.Dense(6)(layers.Dense(8, "relu")(x))
    return layers.LayerNormalization()(x)


def encoder(dropout: float = 0.0) -> Network:
    inputs = keras.Input([LENGTH], dtype="int32")
    x = layers.GlobalAveragePooling1D()(_block(_embedded(inputs), dropout))
    return classifier(inputs, x, tokens(LENGTH, most=WORDS), draws=dropout > 0)


def decoder() -> Network:
    """A causal language model."""
    inputs = keras.Input([LENGTH], dtype="int32")
    x = _block(_embedded(inputs), use_causal_mask=True)
    model = keras.Model(inputs, layers.Dense(WORDS)(x))
    x, y = tokens(LENGTH, most=WORDS), tokens(LENGTH, most=WORDS, seed=1)
    return Network(model, x, y, crossentropy(), entries=LENGTH)


def tied() -> Network:
    """The table of embeddings gives the logits, too."""
    inputs = keras.Input([LENGTH], dtype="int32")
    table = layers.ReversibleEmbedding(WORDS, 6)
    x = layers.LayerNormalization()(layers.Dense(6, "tanh")(table(inputs)))
    model = keras.Model(inputs, table(x, reverse=True))
    x, y = tokens(LENGTH, most=WORDS), tokens(LENGTH, most=WORDS, seed=1)
    return Network(model, x, y, crossentropy(), entries=LENGTH)


def bag_of_words() -> Network:
    inputs = keras.Input([LENGTH], dtype="int32")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(WORDS, 4, mask_zero=True)(inputs))
    return classifier(inputs, x, tokens(LENGTH, most=WORDS))


def tagger() -> Network:
    """A label for each word that is not masked."""
    inputs = keras.Input([LENGTH], dtype="int32")
    x = layers.Embedding(WORDS, 4, mask_zero=True)(inputs)
    x = layers.Bidirectional(layers.LSTM(3, return_sequences=True))(x)
    model = keras.Model(inputs, layers.Dense(3)(x))
    words = tokens(LENGTH, most=WORDS)
    return Network(model, words, classes(LENGTH), crossentropy(), entries=0)


NETWORKS = {
    "LSTM": lambda: _series(layers.LSTM(4)),
    "GRU, masked": masked_gru,
    "bidirectional LSTM": lambda: _series(layers.Bidirectional(layers.LSTM(3))),
    "stacked SimpleRNN, unrolled": lambda: _series(
        keras.Sequential(
            [layers.SimpleRNN(3, return_sequences=True, unroll=True), layers.SimpleRNN(3)]
        )
    ),
    "RNN of a custom cell": lambda: _series(layers.RNN(LeakyCell(4))),
    "LSTM encoder and decoder": encoder_decoder,
    "tagger, masked labels": tagger,
    "ConvLSTM2D": conv_lstm,
    "Conv1D, dilated": temporal_convolutions,
    "Attention": attention,
    "AdditiveAttention": lambda: attention(layers.AdditiveAttention),
    "transformer encoder": encoder,
    "transformer encoder, dropout": lambda: encoder(0.1),
    "transformer decoder, causal": decoder,
    "tied embeddings": tied,
    "bag of words": bag_of_words,
}
