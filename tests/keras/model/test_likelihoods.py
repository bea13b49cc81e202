"""Losses that are negative log likelihoods, and others, which are refused."""

import functools
import json

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tests.keras.small_models import affine, assert_close, linear, unit_normal
from tests.keras.small_models import heteroscedastic_normal as heteroscedastic
from tfp_sgmcmc.keras.model import compiled_loss, internals, likelihoods, log_prob
from tfp_sgmcmc.keras.model.compiled_loss import check_probabilities, negative_log_likelihoods

tfd = tfp.distributions
NegativeLogLikelihood = sgmcmc.keras.NegativeLogLikelihood

N, B, EPS = 23, 8, 0.01
RNG = np.random.default_rng(0)
X = RNG.normal(size=[B, 3]).astype(np.float32)
Y = RNG.normal(size=[B, 1]).astype(np.float32)
WEIGHTS = RNG.uniform(0.2, 3.0, size=[B]).astype(np.float32)
CLASSES = RNG.integers(0, 4, size=[B])
LOGITS = RNG.normal(size=[B, 4]).astype(np.float32)
OUTPUTS = RNG.normal(size=[B, 2]).astype(np.float32)


def softplus(x):
    return np.log1p(np.exp(x))


def by_hand(y=Y, out=OUTPUTS):
    """Returns -log N(y | m, s^2) by its formula."""
    mean, scale = out[:, 0], softplus(out[:, 1])
    return 0.5 * np.log(2 * np.pi) + np.log(scale) + 0.5 * ((y[:, 0] - mean) / scale) ** 2


@pytest.mark.parametrize("y", [Y, Y[:, 0], Y[..., None]], ids=["[n, 1]", "[n]", "[n, 1, 1]"])
def test_heteroscedastic_normal(y):
    loss = NegativeLogLikelihood(heteroscedastic, reduction="none")
    compiled = tf.function(loss, jit_compile=True)
    for values in (loss(y, OUTPUTS), compiled(tf.constant(y), tf.constant(OUTPUTS))):
        assert values.shape == [B]
        np.testing.assert_allclose(values, by_hand(), rtol=1e-5)


def test_reductions_and_weights_are_those_of_any_loss():
    nll = by_hand()
    for reduction, weights, expected in [
        ("sum", None, nll.sum()),
        ("sum_over_batch_size", None, nll.mean()),
        ("sum_over_batch_size", WEIGHTS, (nll * WEIGHTS).mean()),
        ("mean_with_sample_weight", WEIGHTS, (nll * WEIGHTS).sum() / WEIGHTS.sum()),
        (None, WEIGHTS[:, None], (nll * WEIGHTS)[:, None]),
    ]:
        loss = NegativeLogLikelihood(heteroscedastic, reduction=reduction)
        np.testing.assert_allclose(loss(Y, OUTPUTS, weights), expected, rtol=1e-5)


def entrywise(out):
    return tfd.Normal(out, 2.0)


@pytest.mark.parametrize(
    "fn, y, expected",
    [
        (entrywise, OUTPUTS @ np.ones([2, 4]), None),
        (lambda out: tfd.Independent(entrywise(out), 1), LOGITS + 1.0, None),
        (lambda out: tfd.Categorical(logits=out), CLASSES, "categorical"),
        (lambda out: tfd.Categorical(logits=out), CLASSES[:, None], "categorical"),
        (lambda out: tfd.OneHotCategorical(logits=out), np.eye(4)[CLASSES], "categorical"),
    ],
    ids=["entries", "an event", "classes", "column of classes", "one-hot classes"],
)
def test_an_example_s_entries_are_summed(fn, y, expected):
    if expected is None:
        expected = -scipy.stats.norm(LOGITS, 2.0).logpdf(y).sum(axis=1)
    else:
        expected = -np.log(scipy.special.softmax(LOGITS, axis=1)[range(B), CLASSES])
    values = NegativeLogLikelihood(fn, reduction="none")(y, LOGITS)
    np.testing.assert_allclose(values, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "fn, y, error, words",
    [
        (lambda out: out, Y, TypeError, "must return .* Received: an .*Tensor"),
        (heteroscedastic, OUTPUTS, ValueError, r"batch shape \(8, 1\).*Received: shape \(8, 2\)"),
        (heteroscedastic, Y[:1], ValueError, r"y must have shape \(8, 1\)"),
        (heteroscedastic, Y.T, ValueError, r"y must .* Received: shape \(1, 8\)"),
        (lambda out: tfd.Normal(out[:, 0], 1.0), OUTPUTS, ValueError, r"Received: shape \(8, 2\)"),
        (lambda out: tfd.Independent(tfd.Normal(out, 1.0), 2), OUTPUTS, ValueError, "each row"),
        (lambda out: tfd.Normal(tf.transpose(out), 1.0), OUTPUTS.T, ValueError, r"\[8, ...\]"),
        (lambda out: tfd.Normal(0.0, 1.0), Y, ValueError, r"batch shape \(\)"),
    ],
)
def test_shapes_that_do_not_fit(fn, y, error, words):
    with pytest.raises(error, match=words):
        NegativeLogLikelihood(fn)(y, OUTPUTS)


def test_lengths_that_are_known_late_do_not_broadcast():
    """y has three columns and the distribution has one, but tracing knows neither number."""
    loss = NegativeLogLikelihood(lambda out: tfd.Normal(out, 1.0))
    signature = [tf.TensorSpec([None, None])] * 2
    traced = tf.function(loss, input_signature=signature)
    np.testing.assert_allclose(traced(Y, Y + 1.0), 0.5 * np.log(2 * np.pi) + 0.5, rtol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError):
        traced(tf.tile(Y, [1, 3]), tf.constant(Y))


def test_a_callable_is_expected():
    with pytest.raises(TypeError, match="make_distribution_fn must be .* Received: a Normal"):
        NegativeLogLikelihood(tfd.Normal(0.0, 1.0))
    with pytest.raises(TypeError, match=r"1 argument.* Received: .*\(y, f\).* Compile a function"):
        NegativeLogLikelihood(lambda y, f: (y - f) ** 2)


@pytest.mark.parametrize("dtype", ["complex64", "int32", "x", [], {}, 3.5, np.ones(2)])
def test_a_dtype_of_floating_numbers_is_expected(dtype):
    with pytest.raises(TypeError, match="dtype must be a dtype of floating numbers"):
        NegativeLogLikelihood(lambda f: tfd.Normal(f, 1.0), dtype=dtype)


@pytest.mark.parametrize("dtype", [None, "float64", tf.float32, np.float16, "mixed_bfloat16"])
def test_dtypes_are_taken_as_by_keras(dtype):
    expected = keras.losses.MeanSquaredError(dtype=dtype).dtype
    assert NegativeLogLikelihood(lambda f: tfd.Normal(f, 1.0), dtype=dtype).dtype == expected


class TestSaving:
    def test_of_a_registered_function(self):
        """The configuration passes through JSON, which Keras writes beside the weights."""
        model = linear(NegativeLogLikelihood(heteroscedastic, name="own", reduction="sum"), 2)
        config = json.loads(json.dumps(model.get_compile_config()))
        model.compile(loss="mse")
        model.compile_from_config(config)
        loss = model.loss
        assert isinstance(loss, NegativeLogLikelihood)
        assert loss.make_distribution_fn is heteroscedastic
        assert (loss.name, loss.reduction) == ("own", "sum")
        np.testing.assert_allclose(loss(Y, OUTPUTS), by_hand().sum(), rtol=1e-5)

    def test_of_a_lambda(self):
        loss = NegativeLogLikelihood(lambda out: tfd.Normal(out, 1.0))
        with pytest.raises(ValueError, match="is a lambda.*register_keras_serializable"):
            keras.losses.serialize(loss)


# A single noiseless step shows the gradient, however large it is.
pytestmark = pytest.mark.filterwarnings("ignore:step_size must be below")


def step(model, y=Y, x=X, sample_weight=None, num_chains=None):
    """Returns the gradient of the negative log likelihood that one noiseless step followed."""
    initial = model.get_weights()
    arguments = {"initial_states": "model", "check_num_examples": False, "num_chains": num_chains}
    callback = small_models.sampler(small_models.sgld(EPS, temperature=0.0), N, **arguments)
    model.fit(x, y, B, verbose=0, sample_weight=sample_weight, callbacks=[callback])
    return [(w - s[0]) * 2 / EPS for w, s in zip(initial, callback.samples, strict=True)]


def gradient_by_hand(model, weights=1.0):
    """Returns the gradient for the heteroscedastic normal whose outputs are linear in x."""
    kernel, bias = model.get_weights()
    mean, rho = (X @ kernel + bias).T
    scale = softplus(rho)
    error = Y[:, 0] - mean
    slopes = [-error / scale**2, (1 / scale - error**2 / scale**3) / (1 + np.exp(-rho))]
    slopes = N / B * weights * np.stack(slopes)
    return [X.T @ slopes.T, slopes.sum(axis=1)]


@pytest.mark.parametrize(
    "mode, weights",
    [
        pytest.param({"run_eagerly": True}, None, marks=pytest.mark.slow),
        ({"run_eagerly": True}, WEIGHTS),
        pytest.param({"jit_compile": True}, WEIGHTS, marks=pytest.mark.thorough),
    ],
    ids=["unweighted", "weighted", "compiled"],
)
def test_one_step_of_a_linear_model(mode, weights):
    model = affine(NegativeLogLikelihood(heteroscedastic), 2, **mode)
    expected = gradient_by_hand(model, 1.0 if weights is None else weights)
    assert_close(step(model, Y[:, 0], sample_weight=weights), expected, rtol=1e-3, atol=1e-3)
    assert all(np.abs(want).max() > 1.0 for want in expected)


@pytest.mark.thorough
def test_one_step_of_several_chains():
    model = affine(NegativeLogLikelihood(heteroscedastic), 2)
    expected = [np.stack([want, want]) for want in gradient_by_hand(model)]
    assert_close(step(model, num_chains=2), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.thorough
def test_beside_a_crossentropy_in_several_outputs():
    keras.utils.set_random_seed(1)
    inputs = keras.Input([3])
    dense = functools.partial(keras.layers.Dense, use_bias=False)
    outputs = {"kind": dense(4, name="kind")(inputs), "value": dense(2, name="value")(inputs)}
    model = keras.Model(inputs, outputs)
    losses = {"kind": small_models.CROSSENTROPY, "value": NegativeLogLikelihood(heteroscedastic)}
    model.compile(loss=losses, loss_weights={"kind": 0.5, "value": 3.0}, run_eagerly=True)
    kind, value = map(tf.constant, model.get_weights())
    with tf.GradientTape() as tape:
        tape.watch([kind, value])
        mean, rho = tf.unstack(X @ value, axis=1)
        nll = tf.math.log(tf.nn.softplus(rho)) + 0.5 * ((Y[:, 0] - mean) / tf.nn.softplus(rho)) ** 2
        classes = tf.nn.sparse_softmax_cross_entropy_with_logits(CLASSES, X @ kind)
        total = N / B * tf.reduce_sum(0.5 * classes + 3.0 * WEIGHTS * nll)
    expected = tape.gradient(total, [kind, value])
    weights = {"kind": np.ones([B], np.float32), "value": WEIGHTS}
    gradients = step(model, {"kind": CLASSES, "value": Y}, X, weights)
    assert_close(gradients, expected, rtol=1e-3, atol=1e-3)


def masked_sequences(fn):
    keras.utils.set_random_seed(1)
    embedding = keras.layers.Embedding(4, 1, mask_zero=True)
    model = keras.Sequential([keras.Input([B], dtype="int32"), embedding])
    model.compile(loss=NegativeLogLikelihood(fn), run_eagerly=True)
    return model, RNG.integers(0, 4, size=[B, B]), RNG.normal(size=[B, B]).astype(np.float32)


@pytest.mark.thorough
def test_masked_steps_do_not_count():
    """There are as many rows as steps, so a mask along the wrong axis would raise no error."""
    model, tokens, y = masked_sequences(lambda out: tfd.Normal(out, 1.0))
    (table,) = model.get_weights()
    errors = np.where(tokens == 0, 0.0, table[tokens, 0] - y)
    want = [N / B * errors[tokens == token].sum() for token in range(4)]
    np.testing.assert_allclose(step(model, y, tokens)[0][:, 0], want, rtol=1e-3, atol=1e-3)
    assert want[0] == 0.0 and np.abs(want[1:]).min() > 0.1


def test_a_mask_of_entries_that_are_one_event():
    model, tokens, y = masked_sequences(lambda out: tfd.Independent(tfd.Normal(out, 1.0), 2))
    with pytest.raises(ValueError, match=r"mask of shape \(8, 8\).*batch shape \(8,\)"):
        step(model, y, tokens)


@pytest.mark.parametrize(
    "form",
    [
        pytest.param("object", marks=pytest.mark.thorough),
        pytest.param("function", marks=pytest.mark.thorough),
        "string",
    ],
)
def test_binary_crossentropy_of_several_labels_is_a_sum(form):
    """Keras takes the mean of the four labels, which is the fourth root of the likelihood."""
    labels = RNG.integers(0, 2, size=[B, 4]).astype(np.float32)
    loss = {
        "object": keras.losses.BinaryCrossentropy(),
        "function": keras.losses.binary_crossentropy,
        "string": "binary_crossentropy",
    }[form]
    model = affine(loss, 4, "sigmoid")
    kernel, bias = model.get_weights()
    slopes = N / B * (1 / (1 + np.exp(-X @ kernel - bias)) - labels)
    expected = [X.T @ slopes, slopes.sum(axis=0)]
    assert_close(step(model, labels), expected, rtol=1e-3, atol=1e-3)


class OwnError(keras.losses.MeanSquaredError):
    """A class of the user, which is taken for a likelihood."""

    def call(self, y_true, y_pred):
        return super().call(y_true, y_pred) / 0.02


class SameError(keras.losses.MeanSquaredError):
    """It evaluates the function of Keras."""


LOSSES = keras.losses
REFUSED = [
    "mse", "MeanSquaredError", "mae", "msle", "hinge",
    LOSSES.mean_squared_error, LOSSES.huber,
    LOSSES.MeanSquaredError(), LOSSES.MeanAbsoluteError(), LOSSES.MeanSquaredLogarithmicError(),
    LOSSES.MeanAbsolutePercentageError(), LOSSES.Huber(), LOSSES.LogCosh(),
    LOSSES.CosineSimilarity(), LOSSES.Hinge(), LOSSES.SquaredHinge(), LOSSES.CategoricalHinge(),
    LOSSES.BinaryFocalCrossentropy(), LOSSES.CategoricalFocalCrossentropy(), LOSSES.Dice(),
    LOSSES.CategoricalGeneralizedCrossEntropy(), SameError(),
    functools.partial(LOSSES.huber, delta=0.1),
]  # fmt: skip
ACCEPTED = [
    "crossentropy", "bce", "poisson",
    LOSSES.BinaryCrossentropy(), LOSSES.CategoricalCrossentropy(), LOSSES.Poisson(),
    LOSSES.SparseCategoricalCrossentropy(), LOSSES.KLDivergence(), LOSSES.CTC(),
    LOSSES.sparse_categorical_crossentropy, NegativeLogLikelihood(heteroscedastic),
    unit_normal, lambda y, f: LOSSES.mean_squared_error(y, f) / 0.02, OwnError(),
    functools.partial(LOSSES.binary_crossentropy, from_logits=False),
]  # fmt: skip


def attach(loss):
    small_models.sampler(small_models.sgld(), N).set_model(linear(loss, 1, "sigmoid"))


def name(loss):
    """Returns a name without an address, so that every process collects the same tests."""
    given = loss if isinstance(loss, str) else getattr(loss, "name", None)
    return given or getattr(loss, "__name__", type(loss).__name__)


@pytest.mark.parametrize("loss", REFUSED, ids=name)
def test_losses_without_a_likelihood_are_refused(loss):
    label = name(loss).lower()
    advice = "A mean squared error.*known variance"
    if any(part in label for part in ("focal", "hinge", "cross_entropy")):
        advice = "Compile with a crossentropy"
    elif "dice" in label or "cosine" in label:
        advice = "No likelihood of single examples"
    elif label in ("mae", "mean_absolute_error"):
        advice = "It is one only for a known scale.*Laplace"
    with pytest.raises(ValueError, match=f"not a negative log likelihood. {advice}"):
        attach(loss)


@pytest.mark.parametrize("loss", ACCEPTED, ids=name)
def test_likelihoods_and_the_user_s_own_losses_are_accepted(loss):
    attach(loss)


def two_outputs(first, second, losses):
    x = keras.Input([3])
    dense = keras.layers.Dense
    outputs = {"a": dense(2, first, name="a")(x), "b": dense(1, second, name="b")(x)}
    model = keras.Model(x, outputs)
    model.compile(loss=losses)
    return model


SPARSE, BINARY = LOSSES.SparseCategoricalCrossentropy, LOSSES.BinaryCrossentropy
INNER = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])


@pytest.mark.parametrize(
    "make, expected",
    [
        (lambda: linear("sparse_categorical_crossentropy"), "probabilities"),
        (lambda: linear("bce", 1), "probabilities"),
        (lambda: linear(LOSSES.KLDivergence()), "probabilities"),
        (lambda: linear(BINARY(from_logits=True), 1, "sigmoid"), "logits"),
        (lambda: two_outputs(None, None, {"a": SPARSE(from_logits=True), "b": "bce"}), "prob"),
        (lambda: two_outputs("softmax", "sigmoid", {"a": SPARSE(from_logits=True)}), "logits"),
        (lambda: small_models.sequential(INNER, loss=SPARSE()), "probabilities"),
        (lambda: linear("sparse_categorical_crossentropy", 4, "softmax"), None),
        (lambda: linear(BINARY(), 1, "sigmoid"), None),
        (lambda: linear("sparse_categorical_crossentropy", 4, "exponential"), None),
        (lambda: two_outputs("softmax", None, {"a": SPARSE(), "b": unit_normal}), None),
    ],
)
def test_outputs_that_are_not_what_the_loss_takes_them_for(make, expected):
    """The last activation tells before sampling, unless it is one that may fit."""
    attach = small_models.sampler(small_models.sgld(), N).set_model
    if expected is None:
        attach(make())
        return
    with pytest.raises(ValueError, match=f"outputs of the model must be {expected}"):
        attach(make())


@pytest.mark.parametrize(
    "outputs, received",
    [
        ([[0.5, 0.5], [0.1, 0.9]], None),
        ([[0.5, 0.5], [np.nan, 0.9]], None),
        ([[0.5, 0.5], [0.1, 0.8]], r"add up to 0.9 .. 1"),
        ([[0.5, 0.5], [1.2, -0.2]], r"from -0.2 to 1.2"),
    ],
)
def test_outputs_that_are_no_probabilities(outputs, received):
    model = linear("sparse_categorical_crossentropy", 2, "exponential")
    outputs = tf.constant(outputs, tf.float32)
    if received is None:
        check_probabilities(model, outputs)
        return
    with pytest.raises(ValueError, match=f"must be probabilities.*{received}"):
        check_probabilities(model, outputs)


def test_the_refused_loss_is_named_with_its_output():
    with pytest.raises(ValueError, match="loss 'mean_squared_error' of output 'b' is not"):
        attach({"a": "bce", "b": "mse"})


@pytest.mark.parametrize(
    "units, weights, words",
    [
        (8, WEIGHTS, r"loss 'unit_normal', \(8, 8\),.* Received: shape \(8,\)"),
        (1, np.ones([B, 1, 3], np.float32), r"shape \(8, 1, 3\)"),
    ],
)
def test_weights_that_keras_would_spread_over_the_wrong_axis(units, weights, words):
    with pytest.raises(ValueError, match=words):
        step(linear(unit_normal, units), np.zeros([B, units], np.float32), sample_weight=weights)


class Elementwise(keras.losses.Loss):
    """A loss of the user, whose y and outputs Keras does not align."""

    def call(self, y_true, y_pred):
        return 0.5 * tf.square(y_true - y_pred)


@functools.cache
def elementwise():
    model = linear(Elementwise(), 1)
    internals.build(model, X, Y, None)
    return model


@pytest.mark.parametrize(
    "y, outputs, is_right",
    [
        ([B], [B, 1], False),
        ([B, 1], [B], False),
        ([B, B], [B, B, 1], False),
        ([None], [None, 1], False),
        ([B, 1], [B, 1], True),
        ([B], [B], True),
        ([B, 5], [B, 1], True),
        ([B, 4, 1], [B, 4, 3], True),
        ([1], [1, 1], True),
        ([None, None, 2], [None, None, 2], True),
    ],
)
def test_losses_that_pair_labels_with_other_examples_are_refused(y, outputs, is_right):
    """y `[n]` and outputs `[n, 1]` broadcast to `[n, n]` values, of which n belong to examples."""
    model = elementwise()
    specs = [tf.TensorSpec(shape) for shape in (y, outputs)]
    summed = tf.function(
        lambda y, f: negative_log_likelihoods(model, y, f), input_signature=specs, autograph=False
    )
    if is_right:
        assert summed.get_concrete_function().output_shapes.rank == 1
        return
    with pytest.raises(ValueError, match=r"must return .* of each example.*pairs labels"):
        summed.get_concrete_function()


@pytest.mark.parametrize("loss", ["binary_crossentropy", "poisson"])
def test_entries_are_summed_where_keras_squeezes_the_outputs(loss):
    """y `[rows, T]` beside outputs `[rows, T, 1]`: Keras then takes the mean over T."""
    activation = {"binary_crossentropy": "sigmoid", "poisson": "exponential"}[loss]
    dense = keras.layers.Dense(1, activation)
    model = keras.Sequential([keras.Input([4, 3]), dense])
    model.compile(loss=loss)
    x = RNG.normal(size=[B, 4, 3]).astype(np.float32)
    y = RNG.integers(0, 2, size=[B, 4]).astype(np.float32)
    compiled_loss.build(model, x, y, None)
    p = model(x).numpy()[..., 0]
    log_p = {
        "binary_crossentropy": np.log(np.where(y == 1, p, np.abs(1 - p))),
        "poisson": y * np.log(p) - p,
    }
    for labels in (y, y[..., None]):
        found = compiled_loss.negative_log_likelihoods(model, labels, model(x))
        np.testing.assert_allclose(found, -log_p[loss].sum(axis=1), rtol=1e-4)


def test_outputs_of_half_precision_keep_their_mask():
    """Keras casts them for the loss, and its casts have no mask."""
    out = tf.constant(RNG.normal(size=[B, 3, 2]), tf.float16)
    y = tf.constant(RNG.normal(size=[B, 3, 1]), tf.float32)
    mask = tf.constant(RNG.integers(0, 2, size=[B, 3]) == 1)
    loss = NegativeLogLikelihood(heteroscedastic, reduction="none")
    each = -heteroscedastic(tf.cast(out, tf.float32)).log_prob(y)[..., 0]
    out._keras_mask = mask
    np.testing.assert_allclose(loss(y, out), tf.where(mask, each, 0.0), rtol=1e-5)


@pytest.mark.parametrize("dtype", [None, "float64"])
def test_a_configuration_has_the_dtype(dtype):
    loss = sgmcmc.keras.losses.GaussianNLL(dtype=dtype)
    expected = dtype or "float32"
    again = type(loss).from_config(loss.get_config())
    assert again.dtype == loss.dtype == expected
    registered = NegativeLogLikelihood(heteroscedastic, dtype=dtype)
    again = NegativeLogLikelihood.from_config(registered.get_config())
    assert again.dtype == registered.dtype == expected


class OwnName(keras.losses.BinaryCrossentropy):
    """A subclass with the function of Keras."""


@pytest.mark.parametrize(
    "loss",
    [OwnName(), functools.partial(keras.losses.binary_crossentropy, from_logits=True)],
    ids=["subclass", "partial"],
)
def test_a_function_of_keras_behind_another_name_is_summed(loss):
    from_logits = isinstance(loss, functools.partial)
    model = linear(loss, 4, None if from_logits else "sigmoid")
    labels = tf.constant(RNG.integers(0, 2, size=[B, 4]), tf.float32)
    compiled_loss.build(model, X, labels, None)
    found = compiled_loss.negative_log_likelihoods(model, labels, model(X))
    plain = keras.losses.binary_crossentropy(labels, model(X), from_logits=from_logits)
    np.testing.assert_allclose(found, 4 * plain, rtol=1e-5)
    (kind,) = compiled_loss.classes(model, model(X)).values()
    assert kind.axis is None and kind.from_logits is from_logits


def test_a_last_cast_has_the_activation_before_it():
    layers = [keras.layers.Dense(2, "softmax"), keras.layers.Activation("linear", dtype="float32")]
    model = keras.Sequential([keras.Input([3]), *layers])
    model.compile(loss="sparse_categorical_crossentropy")
    compiled_loss.check_likelihoods(model)
    cast = keras.layers.Activation("linear", dtype="float32")
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2), cast])
    model.compile(loss="sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match="without activation"):
        compiled_loss.check_likelihoods(model)


def test_none_among_weights_of_outputs_counts_all_rows():
    """As in Keras, unless that output has no targets either."""
    two = [np.ones(3), np.ones(3)]
    weights = np.array([1.0, 0.0, 2.0])
    for y, expected in ((two, None), ([None, two[1]], [1.0, 0.0, 1.0])):
        found = log_prob._weighs(y, [None, weights])
        assert (found is None) if expected is None else np.array_equal(found, expected)


def test_mixtures_of_counts_and_points_are_discrete() -> None:
    poisson, zero = tfd.Poisson(2.0), tfd.Deterministic(0.0)
    kind = tfd.Categorical(probs=[0.3, 0.7])
    counts = tfd.Mixture(kind, [zero, poisson]), tfd.Inflated(poisson, 0.3)
    assert all(map(likelihoods.is_discrete, counts))
    numbers = tfd.Mixture(kind, [zero, tfd.Normal(0.0, 1.0)]), tfd.Mixture(kind, [zero, zero])
    assert not any(map(likelihoods.is_discrete, numbers))
