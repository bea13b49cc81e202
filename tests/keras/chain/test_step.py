"""One step of `SamplerCallback` equals its formula, computed here with plain TensorFlow.

At temperature 0 SGLD is deterministic: theta + eps/2 (grad log p - N grad R - N/B sum_i w_i grad
nll_i). The reference uses no Keras loss.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tests.keras.small_models import CROSSENTROPY, affine, assert_close, sequential

tfd = tfp.distributions

N, B, EPS = 23, 8, 0.01
RNG = np.random.default_rng(0)
X = RNG.normal(size=[B, 3]).astype(np.float32)
CLASSES = RNG.integers(0, 4, size=[B])
TARGETS = RNG.normal(size=[B, 4]).astype(np.float32)
WEIGHTS = RNG.uniform(0.2, 3.0, size=[B]).astype(np.float32)
REDUCTIONS = ["sum_over_batch_size", "sum", "mean", "mean_with_sample_weight", "none", None]


def sampler(prior=None, temperature=0.0, noise="normal"):
    kernel = small_models.sgld(EPS, temperature, noise=noise)
    return small_models.sampler(kernel, N, prior, check_num_examples=False)


def expected(initial, log_posterior):
    """Returns theta + eps/2 times the gradient of `log_posterior(*theta)`."""
    state = [tf.constant(w) for w in initial]
    with tf.GradientTape() as tape:
        tape.watch(state)
        value = log_posterior(*state)
    gradient = [tf.convert_to_tensor(g).numpy() for g in tape.gradient(value, state)]
    return [w + EPS / 2 * g for w, g in zip(initial, gradient, strict=True)]


def sparse_nll(kernel, bias, x=X, classes=CLASSES):
    logits = tf.matmul(x, kernel) + bias
    return tf.nn.sparse_softmax_cross_entropy_with_logits(classes, logits)


def check_step(model, fit_arguments, log_posterior, **arguments):
    initial = model.get_weights()
    callback = sampler(**arguments)
    model.fit(*fit_arguments[:2], **fit_arguments[2], callbacks=[callback], verbose=0)
    want = expected(initial, log_posterior)
    assert all(np.abs(w - i).max() > 1e-4 for w, i in zip(want, initial, strict=True))
    assert_close(model.get_weights(), want)
    small_models.assert_equal([s[-1] for s in callback.samples], model.get_weights())


@pytest.mark.parametrize(
    "reduction, weighted",
    [
        ("mean_with_sample_weight", True),
        *(
            pytest.param(reduction, True, marks=pytest.mark.thorough)
            for reduction in REDUCTIONS
            if reduction != "mean_with_sample_weight"
        ),
        pytest.param("sum_over_batch_size", False, marks=pytest.mark.thorough),
        *(pytest.param(reduction, False, marks=pytest.mark.slow) for reduction in REDUCTIONS[1:]),
    ],
)
def test_reduction_has_no_influence(reduction, weighted):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    weights = WEIGHTS if weighted else np.ones([B], np.float32)
    check_step(
        affine(loss),
        (X, CLASSES, {"batch_size": B, "sample_weight": WEIGHTS if weighted else None}),
        lambda *theta: -N / B * tf.reduce_sum(weights * sparse_nll(*theta)),
    )
    assert loss.reduction == reduction


def test_class_weight():
    class_weight = {0: 0.5, 1: 2.0, 2: 1.0, 3: 4.0}
    weights = np.array([class_weight[c] for c in CLASSES], np.float32)
    check_step(
        affine(),
        (X, CLASSES, {"batch_size": B, "class_weight": class_weight}),
        lambda *theta: -N / B * tf.reduce_sum(weights * sparse_nll(*theta)),
    )


def test_rows_of_weight_zero_have_no_share_of_the_regularisers():
    weights = np.where(np.arange(B) % 4, WEIGHTS, 0.0).astype(np.float32)
    regularizer = keras.regularizers.L2(0.1)
    check_step(
        sequential(keras.layers.Dense(4, use_bias=False, kernel_regularizer=regularizer)),
        (X, CLASSES, {"batch_size": B, "sample_weight": weights}),
        lambda kernel: -N / B * (
            tf.reduce_sum(weights * sparse_nll(kernel, 0.0))
            + (B - 2) * 0.1 * tf.reduce_sum(kernel**2)
        ),
    )  # fmt: skip


def test_scale_of_a_short_last_batch_is_its_own():
    model = affine()
    initial = model.get_weights()
    callback = sampler()
    small_models.fit(model, callback, X, CLASSES, batch_size=5)
    first = expected(initial, lambda *t: -N / 5 * tf.reduce_sum(sparse_nll(*t)[:5]))
    second = expected(first, lambda *t: -N / 3 * tf.reduce_sum(sparse_nll(*t)[5:]))
    assert_close(callback.samples, list(zip(first, second, strict=True)))


@pytest.mark.parametrize(
    "loss",
    [
        pytest.param("poisson", marks=pytest.mark.thorough),
        keras.losses.Poisson(),
        pytest.param(lambda y, f: f - y * tf.math.log(f + 1e-7), marks=pytest.mark.thorough),
    ],
    ids=["string", "object", "lambda per entry"],
)
def test_outputs_of_an_example_are_summed(loss):
    """Outputs are summed even where the Poisson loss of Keras takes their mean."""
    counts = RNG.poisson(2.0, size=[B, 4]).astype(np.float32)

    def log_posterior(kernel, bias):
        rate = tf.nn.softplus(X @ kernel + bias)
        return N / B * tf.reduce_sum(counts * tf.math.log(rate + 1e-7) - rate)

    model = affine(loss, activation="softplus")
    check_step(model, (X, counts, {"batch_size": B}), log_posterior)


def test_priors():

    def likelihood(*theta):
        return -N / B * tf.reduce_sum(sparse_nll(*theta))

    def narrow(*theta):
        return likelihood(*theta) - sum(tf.reduce_sum((w - 1.0) ** 2) / 0.5 for w in theta)

    def of_bias(bias):
        return -3 * tf.reduce_sum(tf.abs(bias - 7.0))

    data = (X, CLASSES, {"batch_size": B})
    check_step(affine(), data, narrow, prior=tfd.Normal(1.0, 0.5))
    check_step(
        affine(),
        data,
        lambda kernel, bias: likelihood(kernel, bias) + of_bias(bias),
        prior=lambda state: of_bias(state[1]),
    )


def test_regularizers_and_add_loss_count_n_fold():
    class Penalised(keras.layers.Dense):
        def call(self, inputs):
            self.add_loss(tf.reduce_sum(self.kernel**4))
            return super().call(inputs)

    keras.utils.set_random_seed(1)
    model = sequential(Penalised(4, bias_regularizer=keras.regularizers.L2(0.1)))
    model.layers[0].bias.assign([1.0, -1.0, 2.0, 0.5])

    def log_posterior(kernel, bias):
        penalty = 0.1 * tf.reduce_sum(bias**2) + tf.reduce_sum(kernel**4)
        return -N * penalty - N / B * tf.reduce_sum(sparse_nll(kernel, bias))

    check_step(model, (X, CLASSES, {"batch_size": B}), log_posterior)


@pytest.mark.parametrize(
    "reduction",
    [pytest.param("sum_over_batch_size", marks=pytest.mark.thorough), "mean_with_sample_weight"],
)
def test_masked_sequences_sum_over_their_steps(reduction):
    tokens = np.array([[1, 2, 0, 0], [3, 0, 0, 0], [2, 2, 1, 3]])
    classes = RNG.integers(0, 2, size=tokens.shape)
    keras.utils.set_random_seed(1)
    layers = keras.layers.Embedding(4, 3, mask_zero=True), keras.layers.Dense(2)
    model = keras.Sequential([keras.Input([4], dtype="int32"), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    model.compile(loss=loss, run_eagerly=True)

    def log_posterior(embedding, kernel, bias):
        logits = tf.gather(embedding, tokens) @ kernel + bias
        nll = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, logits)
        return -N / 3 * tf.reduce_sum(nll * (tokens != 0))

    check_step(model, (tokens, classes, {"batch_size": 3}), log_posterior)


def test_several_outputs_with_loss_weights_and_sample_weights():
    keras.utils.set_random_seed(1)
    inputs = keras.Input([3])
    outputs = {n: keras.layers.Dense(4, name=n)(inputs) for n in ("kind", "value")}
    model = keras.Model(inputs, outputs)
    model.compile(
        loss={
            "kind": CROSSENTROPY,
            "value": lambda y, f: tf.reduce_mean(tf.square(y - f), axis=-1),
        },
        loss_weights={"kind": 0.5, "value": 3.0},
        run_eagerly=True,
    )

    def log_posterior(kernel, bias, value_kernel, value_bias):
        squares = tf.reduce_mean((TARGETS - X @ value_kernel - value_bias) ** 2, axis=-1)
        nll = 0.5 * sparse_nll(kernel, bias) + 3.0 * squares * WEIGHTS
        return -N / B * tf.reduce_sum(nll)

    weights = {"kind": np.ones([B], np.float32), "value": WEIGHTS}
    y = {"kind": CLASSES, "value": TARGETS}
    check_step(model, (X, y, {"batch_size": B, "sample_weight": weights}), log_posterior)


@pytest.mark.parametrize(
    "mode, kind",
    [
        pytest.param({"jit_compile": True}, "normal", marks=pytest.mark.thorough),
        pytest.param({"jit_compile": True}, "three_point", marks=pytest.mark.thorough),
        ({"jit_compile": False}, "normal"),
    ],
)
def test_noise_is_drawn_from_the_seed_and_the_step(mode, kind):
    """Steps at temperature 1 minus those at 0 from the same states are sqrt(eps) z."""
    model = affine(**mode)
    initial = model.get_weights()
    callback = sampler(temperature=1.0, noise=kind)
    small_models.fit(model, callback, X, CLASSES, batch_size=B, epochs=2)

    @tf.function(autograph=False, **mode)
    def noise(step):
        seed = sgmcmc.random.fold_in(sgmcmc.random.as_seed(0), step)
        draw = getattr(sgmcmc.random, f"{kind}_like")
        return draw(initial_tensors, sgmcmc.random.split(seed, 3)[1])

    initial_tensors = [tf.constant(w) for w in initial]
    states = [initial, [s[0] for s in callback.samples], [s[1] for s in callback.samples]]
    for t in range(2):
        drift = expected(states[t], lambda *th: -N / B * tf.reduce_sum(sparse_nll(*th)))
        for new, d, z in zip(states[t + 1], drift, noise(tf.constant(t)), strict=True):
            np.testing.assert_allclose(new, d + np.sqrt(EPS) * z, rtol=1e-5, atol=1e-6)
