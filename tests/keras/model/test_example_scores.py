"""Scores of a model's examples against the gradients of single examples."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.keras.small_models import CROSSENTROPY, assert_close, unit_normal
from tfp_sgmcmc.covariance.factored_scores import FactoredScores
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.model.example_scores import ExampleScores

L = keras.layers
N, B, CLASSES = 23, 6, 3
RNG = np.random.default_rng(0)
Y = RNG.integers(0, CLASSES, size=[B])
WEIGHTS = RNG.uniform(0.2, 3.0, size=[B]).astype(np.float32)
SEED = tf.constant([0, 0])


def floats(*shape):
    return RNG.normal(size=[B, *shape]).astype(np.float32)


def stack(shape, *layers, dtype=None):
    return keras.Sequential([keras.Input(shape, dtype=dtype), *layers, L.Dense(CLASSES)])


def two_branches():
    x = keras.Input([4])
    left, right = L.Dense(3, "tanh")(x), L.Dense(3, "relu", use_bias=False)(x)
    return keras.Model(x, L.Dense(CLASSES)(L.Concatenate()([left, L.Multiply()([left, right])])))


def shared():
    x = keras.Input([4])
    twice = L.Dense(4, "tanh")
    return keras.Model(x, L.Dense(CLASSES)(twice(twice(x))))


def tokens():
    """A table of 5 tokens, some of which a row of a batch looks up more than once."""
    return stack([4], L.Embedding(5, 3), L.Dense(2, "tanh"), L.Flatten(), dtype="int32")


class Mapped(L.Wrapper):
    """Calls its layer within `tf.map_fn`, whose tensors are not available outside."""

    def call(self, x):
        return tf.transpose(tf.map_fn(self.layer, tf.transpose(x, [1, 0, 2])), [1, 0, 2])


class Tied(keras.Model):
    """A model whose table also makes the logits, whose scores no recorded call gives."""

    def __init__(self):
        super().__init__()
        self.embedding, self.dense = L.Embedding(CLASSES, 4), L.Dense(4)

    def call(self, x):
        x = self.dense(keras.ops.mean(self.embedding(x), axis=1))
        return keras.ops.matmul(x, keras.ops.transpose(self.embedding.embeddings))


class Positions(keras.Model):
    """A table whose inputs have positions as first axis, as many as the batch has rows."""

    def __init__(self):
        super().__init__()
        self.embedding, self.dense = L.Embedding(B, 4), L.Dense(CLASSES)

    def call(self, x):
        return self.dense(keras.ops.mean(x + self.embedding(keras.ops.arange(B)), axis=1))


ARRAY = "array"  # the name of layers whose kernel's scores are arrays


def einsum(equation, shape, bias_axes=None, name=None, **arguments):
    return L.EinsumDense(equation, shape, bias_axes=bias_axes, name=name, **arguments)


def shared_einsum():
    x = keras.Input([3, 4])
    twice = einsum("abc,cd->abd", (3, 4), "d", activation="tanh")
    return keras.Model(x, L.Dense(CLASSES)(L.Flatten()(twice(twice(x)))))


def attention():
    """Attention of tokens to each other, of which some are padding."""
    tokens = keras.Input([4], dtype="int32")
    x = L.Embedding(5, 4, mask_zero=True)(tokens)
    x = L.LayerNormalization()(x + L.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True))
    return keras.Model(tokens, L.Dense(CLASSES)(L.GlobalAveragePooling1D()(x)))


def grouped_attention():
    x = keras.Input([3, 4])
    attended = L.GroupQueryAttention(head_dim=2, num_query_heads=4, num_key_value_heads=2)(x, x)
    return keras.Model(x, L.Dense(CLASSES)(L.Flatten()(attended)))


class Shift(L.Layer):
    """Adds weights to the positions of a sequence; no recorded call gives its scores."""

    def build(self, shape):
        self.shift = self.add_weight(shape=shape[1:], name="kernel")

    def call(self, x):
        return x + self.shift


def positional_attention():
    """Attention, whose scores come from recorded calls, below weights that have other scores."""
    x = keras.Input([3, 4])
    shifted = Shift(name="positions")(x)
    attended = L.MultiHeadAttention(2, 3)(shifted, shifted)
    return keras.Model(x, L.Dense(CLASSES)(L.Flatten()(attended)))


def case(shape, layers, mapped=()):
    """Returns a function that makes a model, its inputs, and names of mapped layers."""
    return lambda: stack(shape, *layers(), L.Flatten()), floats(*shape), mapped


# Models, their inputs, and the layers whose scores come from `vectorized_map`.
MODELS = {
    "dense": case([4], lambda: [L.Dense(5, "tanh"), L.Dense(5, "relu")]),
    "dense on sequences": case([3, 4], lambda: [L.Dense(5, "tanh")]),
    "conv same": case([5, 6, 2], lambda: [L.Conv2D(3, (3, 2), 2, "same", activation="tanh")]),
    "conv valid": case([5, 6, 2], lambda: [L.Conv2D(3, 3, (2, 1), activation="tanh")]),
    "conv dilated": case([5, 6, 2], lambda: [L.Conv2D(3, 2, dilation_rate=2, padding="same")]),
    "conv causal": case([7, 2], lambda: [L.Conv1D(3, 3, 2, "causal", activation="tanh")]),
    "conv 3d": case([3, 3, 2, 1], lambda: [L.Conv3D(2, 2)]),
    "embedding": (tokens, RNG.integers(0, 5, size=[B, 4]), ()),
    "two branches": (two_branches, floats(4), ()),
    "shared layer": (shared, floats(4), ()),
    "time distributed": case([3, 2], lambda: [L.TimeDistributed(L.Dense(2))]),
    "dropout off": case([4], lambda: [L.Dropout(0.0), L.Dense(5, "tanh")]),
    "frozen normalisation": case([4], lambda: [L.BatchNormalization(trainable=False)]),
    "layer normalisation": case(
        [3, 4], lambda: [L.Dense(5), L.LayerNormalization(), L.RMSNormalization()]
    ),
    "normalisation of two axes": case([3, 4], lambda: [L.LayerNormalization(axis=[1, 2])]),
    "normalisation of an early axis": case(
        [4, 4], lambda: [L.LayerNormalization(axis=1)], ["layer_normalization"]
    ),
    "group normalisation": case(
        [3, 4], lambda: [L.GroupNormalization(2), L.Reshape([12])], ["group_normalization"]
    ),
    "activation with weights": case([4], lambda: [L.Dense(5), L.PReLU()], ["p_re_lu"]),
    "einsum": case([3, 4], lambda: [einsum("abc,cd->abd", (3, 5), "d", activation="tanh")]),
    "einsum of heads": case(
        [3, 4],
        lambda: [einsum("abc,cde->abde", (3, 2, 3), "de"), einsum("abcd,cde->abe", (3, 4))],
    ),
    "einsum by a transpose": case([4], lambda: [einsum("ab,cb->ac", 5, "c")]),
    "einsum of crossed axes": case([3, 4], lambda: [einsum("abc,dbec->aed", (3, 2), "ed", ARRAY)]),
    "einsum of blocks": case([3, 4], lambda: [einsum("abc,bcd->abd", (3, 5), "b", ARRAY)]),
    "einsum with a sum": case([3, 4], lambda: [einsum("abc,cd->ad", 5, name=ARRAY)]),
    "einsum with an ellipsis": case(
        [3, 4], lambda: [einsum("...x,xy->...y", 5, "y"), einsum("ab...,bc->ac...", 2)]
    ),
    "shared einsum": (shared_einsum, floats(3, 4), ()),
    "attention": (attention, RNG.integers(0, 5, size=[B, 4]), ()),
    "grouped attention": (grouped_attention, floats(3, 4), ()),
    "attention to positions": (positional_attention, floats(3, 4), ["positions"]),
    "in a loop": case([3, 2], lambda: [Mapped(L.Dense(2, name="own"))], ["own"]),
    "tied weights": (Tied, RNG.integers(0, CLASSES, size=[B, 2]), ["embedding"]),
    "positions": (Positions, floats(B, 4), ["embedding"]),
    "grouped convolution": case([5, 4], lambda: [L.Conv1D(4, 2, groups=2)], ["conv1d"]),
    "recurrent, may drop out": case(
        [3, 2], lambda: [L.SimpleRNN(4, unroll=True)], ["simple_rnn_cell", "dense"]
    ),
    "own weights, may drop out": case(
        [4], lambda: [L.PReLU(), L.Dropout(1e-9)], ["p_re_lu", "dense"]
    ),
}


def build(make, x):
    keras.utils.set_random_seed(1)
    model = make()
    model(x)
    model.compile(loss=CROSSENTROPY)
    for v in model.trainable_variables:  # biases start at zero
        v.assign_add(tf.random.stateless_normal(v.shape, [1, len(v.path)]) * 0.1)
    return model


def target_of(model, x, weights=None, **arguments):
    batch = (tf.constant(x), tf.constant(Y), None if weights is None else tf.constant(weights))
    internals.build(model, *batch)
    return sgmcmc.keras.ModelLogProb(
        model, N, lambda state: -tf.reduce_sum(state[0] ** 2), batch, **arguments
    )


def state_of(model):
    return [tf.convert_to_tensor(v.value) for v in model.trainable_variables]


def single_gradients(model, x, weights=None):
    """Returns gradients of w_i log p(y_i | x_i), `[B, ...]` for each variable."""
    weights = np.ones([B], np.float32) if weights is None else weights
    rows = []
    for i in range(B):
        with tf.GradientTape() as tape:
            logits = model(x[i : i + 1], training=True)
            nll = tf.nn.sparse_softmax_cross_entropy_with_logits(Y[i : i + 1], logits)
            value = -weights[i] * nll[0]
        variables = [v.value for v in model.trainable_variables]
        rows.append([tf.convert_to_tensor(g).numpy() for g in tape.gradient(value, variables)])
    return [np.stack(x) for x in zip(*rows, strict=True)]


def as_rows(scores):
    return [x.rows().numpy() if isinstance(x, FactoredScores) else x.numpy() for x in scores]


def assert_rows(scores, expected):
    # Scores of a key's bias are zero: the softmax of attention ignores a constant.
    assert all(not 1e-6 < np.abs(want).max() < 1e-3 for want in expected)
    assert any(np.abs(want).max() > 1e-3 for want in expected)
    assert_close(as_rows(scores), expected, rtol=1e-4, atol=1e-5)


def assert_variances(scores, expected):
    for got, want in zip(scores, expected, strict=True):
        if isinstance(got, FactoredScores):
            variances = want.var(axis=0, ddof=1).ravel()
            np.testing.assert_allclose(got.variances(), variances, rtol=1e-3, atol=1e-5)


# Models whose passes for single examples cannot be vectorized.
LOOPED = ("grouped convolution", "attention to positions")
FURTHER = (
    *("conv valid", "two branches", "own weights, may drop out", "normalisation of two axes"),
    *("einsum", "einsum by a transpose", "einsum with a sum"),
    *("grouped convolution", "in a loop"),  # other tests cover their maps
)


# These only widen what other models and `test_vectorize` cover, and take longest.
WIDER = (
    *("attention", "attention to positions", "grouped attention"),
    *("conv causal", "conv dilated", "conv 3d", "time distributed", "dense on sequences"),
    *("shared einsum", "einsum with an ellipsis", "einsum of blocks", "einsum of crossed axes"),
    *("frozen normalisation", "group normalisation", "normalisation of an early axis"),
    *("dropout off", "recurrent, may drop out", "tied weights"),
    *("dense", "activation with weights"),
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.slow] * (name in FURTHER) + [pytest.mark.thorough] * (name in WIDER),
        )
        for name in MODELS
    ],
)
def test_scores_are_the_gradients_of_single_examples(name):
    make, x, mapped = MODELS[name]
    model = build(make, x)
    used = ExampleScores(model)
    target, state = target_of(model, x, WEIGHTS, scores=used), state_of(model)
    one_by_one = pytest.warns(UserWarning, match="one pass of the model after another")
    with one_by_one if name in LOOPED else contextlib.nullcontext():
        estimate = target.estimate(state, SEED)
    expected = single_gradients(model, x, WEIGHTS)
    assert_rows(estimate.scores, expected)
    assert_variances(estimate.scores, expected)
    for i, variable in enumerate(model.trainable_variables):
        *_, layer, own_name = variable.path.split("/")
        assert (i in used._mapped_variables) == (layer.rstrip("_0123456789") in mapped)
        is_matrix = own_name in ("kernel", "embeddings") and layer != ARRAY
        is_factored = is_matrix and i not in used._mapped_variables
        assert isinstance(estimate.scores[i], FactoredScores) == is_factored
    assert "call" not in vars(model.layers[-1])

    plain = target.estimate(state, SEED, with_scores=False)
    assert plain.scores == ()
    np.testing.assert_allclose(estimate.log_prob, plain.log_prob, rtol=1e-5)
    assert_close(estimate.gradient, plain.gradient, rtol=1e-4, atol=1e-4)
    assert target.num_scores == B
    np.testing.assert_allclose(estimate.noise_scale, N * (N - B) / B, rtol=1e-6)


@pytest.mark.parametrize(
    "name, num_groups",
    [
        *(
            pytest.param("dense", num_groups, marks=pytest.mark.thorough)
            for num_groups in (3, 4, 8)
        ),
        pytest.param("embedding", 3, marks=pytest.mark.thorough),
        pytest.param("activation with weights", 3, marks=pytest.mark.thorough),
        pytest.param("activation with weights", 4, marks=pytest.mark.slow),
        ("einsum of blocks", 3),
        pytest.param("einsum of heads", 3, marks=pytest.mark.slow),
    ],
)
def test_groups(name, num_groups):
    """3 groups are sums of 2 examples; 4 and 8 groups are the first 4 and all 6 examples."""
    make, x, _ = MODELS[name]
    model = build(make, x)
    target = target_of(model, x, scores=ExampleScores(model, num_groups))
    rows, width = min(num_groups, B), max(B // num_groups, 1)
    assert target.num_scores == rows
    expected = [
        s[: rows * width].reshape(rows, width, *s.shape[1:]).sum(axis=1) / width**0.5
        for s in single_gradients(model, x)
    ]
    scores = target.estimate(state_of(model), SEED).scores
    assert_rows(scores, expected)
    assert_variances(scores, expected)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("dense", marks=pytest.mark.slow),  # "conv same" has such layers, too
        "conv same",
        pytest.param("embedding", marks=pytest.mark.thorough),
        pytest.param("activation with weights", marks=pytest.mark.slow),
        pytest.param("attention", marks=pytest.mark.thorough),
    ],
)
def test_chains_have_scores_of_their_own(name):
    make, x, _ = MODELS[name]
    model = build(make, x)
    state = state_of(model)
    states = [state, [v + 0.3 for v in state]]
    stacked = target_of(model, x, num_chains=2).estimate(
        [tf.stack(v) for v in zip(*states, strict=True)], SEED
    )
    for chain, own in enumerate(states):
        alone = target_of(model, x).estimate(own, SEED)
        own_gradient = [g[chain] for g in stacked.gradient]
        assert_close(own_gradient, alone.gradient, rtol=1e-4, atol=1e-4)
        assert_rows(alone.scores, [x[chain] for x in as_rows(stacked.scores)])
        for both, one in zip(stacked.scores, alone.scores, strict=True):
            if isinstance(both, FactoredScores):
                np.testing.assert_allclose(
                    both.variances()[chain], one.variances(), rtol=1e-3, atol=1e-5
                )


@pytest.mark.skipif(
    tuple(map(int, keras.__version__.split(".")[:2])) < (3, 14),
    reason="Keras before 3.14 does not divide them by the rows",
)
def test_activity_regularisers_are_part_of_the_examples():
    """Keras divides them by the rows of the batch, so N R is a sum over examples."""
    x = floats(4)
    dense = L.Dense(CLASSES, activity_regularizer=keras.regularizers.L2(0.5))
    model = build(lambda: keras.Sequential([keras.Input([4]), dense]), x)
    (kernel, bias), expected = state_of(model), single_gradients(model, x)
    outputs = x @ kernel.numpy() + bias.numpy()  # the gradient of 0.5 |f|^2 by f
    expected[0] -= np.einsum("ni,no->nio", x, outputs)
    expected[1] -= outputs
    assert_rows(target_of(model, x).estimate([kernel, bias], SEED).scores, expected)


def test_several_inputs_and_outputs():
    first, second = keras.Input([4]), keras.Input([2])
    hidden = L.Dense(3, "tanh")(L.Concatenate()([first, second]))
    model = keras.Model([first, second], [L.Dense(CLASSES)(hidden), L.Dense(1)(second)])
    model.compile(loss=[CROSSENTROPY, unit_normal])
    xs, y = [tf.constant(floats(4)), tf.constant(floats(2))], floats(1)
    batch = (xs, [tf.constant(Y), tf.constant(y)], None)
    internals.build(model, *batch)
    target = sgmcmc.keras.ModelLogProb(model, N, lambda state: -tf.reduce_sum(state[0] ** 2), batch)
    scores = target.estimate(state_of(model), SEED).scores
    residual = y - model(xs)[1].numpy()
    assert_rows(scores[-2:], [np.einsum("ni,no->nio", xs[1], residual), residual])


def test_models_whose_examples_interact_are_refused():
    x = floats(4)
    model = build(lambda: stack([4], L.BatchNormalization()), x)
    target = target_of(model, x)
    with pytest.raises(ValueError, match="BatchNormalization layer, which lets the examples"):
        target.estimate(state_of(model), SEED)
    assert target.estimate(state_of(model), SEED, with_scores=False).scores == ()


@pytest.mark.thorough
def test_memory_for_scores_of_other_layers(monkeypatch):
    """6 examples of 8 weights take 192 bytes; two groups take 64."""
    x = floats(8)
    model = build(lambda: stack([8], L.PReLU()), x)
    monkeypatch.setattr("tfp_sgmcmc.internal.memory.available", lambda: 191)
    with pytest.raises(MemoryError, match="6 scores of .*/alpha 192 bytes.*num_groups=G"):
        target_of(model, x).estimate(state_of(model), SEED)
    grouped = target_of(model, x, scores=ExampleScores(model, 2))
    assert as_rows(grouped.estimate(state_of(model), SEED).scores)[0].shape == (2, 8)
    monkeypatch.setattr("tfp_sgmcmc.internal.memory.available", lambda: 192)
    assert as_rows(target_of(model, x).estimate(state_of(model), SEED).scores)[0].shape == (6, 8)


def test_layers_are_left_as_they_were_when_a_forward_pass_fails():
    class Failing(L.Layer):
        on = False

        def call(self, inputs):
            if self.on:
                raise RuntimeError("no")
            return inputs

    x, failing = floats(4), Failing()
    model = build(lambda: stack([4], L.Dense(4, "relu"), failing), x)
    target = target_of(model, x)
    target.estimate(state_of(model), SEED)
    failing.on = True
    with pytest.raises(RuntimeError, match="no"):
        target.estimate(state_of(model), SEED)
    assert model.layers[0].activation is keras.activations.relu
    assert all("call" not in vars(layer) for layer in model.layers)


@pytest.mark.parametrize(("units", "kind"), [(250, "full"), (251, "diag")])
def test_the_default_covariance_of_large_models_is_diagonal(units: int, kind: str) -> None:
    """A full covariance of a network's gradient noise takes its weights squared of memory."""
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(units)])  # 4 weights a unit
    model.compile(loss="sparse_categorical_crossentropy")
    target = sgmcmc.keras.ModelLogProb(model, 9, lambda state: tf.zeros([]))
    state = [tf.convert_to_tensor(v) for v in model.trainable_variables]
    for chosen, expected in (("auto", kind), ("full", "full")):
        results = sgmcmc.NOGIN(target, 0.1, covariance=chosen).bootstrap_results(state)
        value = results.covariance_state.averages[0].value
        assert value.shape.rank == {"diag": 1, "full": 2}[expected]
