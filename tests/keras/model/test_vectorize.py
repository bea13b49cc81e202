"""Models that TensorFlow vectorizes wrongly, or not at all, run one chain or example at a time."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras.small_models import assert_close, unit_normal
from tfp_sgmcmc.covariance.factored_scores import FactoredScores
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.model.example_scores import Mapper
from tfp_sgmcmc.keras.model.log_prob import ModelLogProb
from tfp_sgmcmc.targets.scores import unsafe_operation

B, C, SEED = 3, 2, tf.constant([0, 0])
RNG = np.random.default_rng(0)
TOKENS = np.array([[1, 2], [2, 0], [3, 1]])
IMAGES = RNG.normal(size=[B, 2, 2, 4]).astype(np.float32)
Y = RNG.normal(size=[B, 1]).astype(np.float32)


def compiled(*layers):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile(loss=unit_normal, jit_compile=False)
    return model


def in_groups():
    return compiled(keras.Input([2, 2, 4]), keras.layers.Conv2D(4, 2, groups=2))


def recurrent():
    return compiled(
        keras.Input([2], dtype="int32"),
        keras.layers.Embedding(4, 2, mask_zero=True),
        keras.layers.SimpleRNN(2),
    )


def transposed():
    return compiled(keras.Input([2, 2, 4]), keras.layers.Conv2DTranspose(2, 2))


def depthwise():
    return compiled(keras.Input([2, 2, 4]), keras.layers.DepthwiseConv2D(2))


def estimates(
    model, x, rows=slice(None), num_chains=None, with_scores=False, states=None, jit_compile=False
):
    """Returns gradients and scores of each variable."""
    batch = (tf.constant(x[rows]), tf.constant(Y[rows]), None)
    target = ModelLogProb(model, len(batch[0]), lambda _: tf.zeros([]), batch, num_chains)

    @tf.function(autograph=False, jit_compile=jit_compile)
    def estimate(state):
        found = target.estimate(state, SEED, with_scores=with_scores)
        scores = [s.rows() if isinstance(s, FactoredScores) else s for s in found.scores]
        return found.gradient, scores

    return tf.nest.map_structure(np.asarray, estimate(states))


def states_of(model, x):
    internals.build(model, tf.constant(x), tf.constant(Y), None)
    shapes = [v.shape for v in model.trainable_variables]
    return [RNG.normal(size=[C, *s]).astype(np.float32) for s in shapes]


def errors(model, x, with_scores, jit_compile=False):
    """Returns the largest relative difference between chains side by side and chains alone."""
    states = states_of(model, x)
    together = estimates(
        model, x, num_chains=C, with_scores=with_scores, states=states, jit_compile=jit_compile
    )
    found = []
    for c in range(C):
        alone = estimates(model, x, with_scores=with_scores, states=[s[c] for s in states])
        pairs = zip(tf.nest.flatten(together), tf.nest.flatten(alone), strict=True)
        found += [np.abs(a[c] - b).max() / np.abs(b).max() for a, b in pairs]
    return max(found)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "make, x, with_scores",
    [
        (in_groups, IMAGES, False),
        pytest.param(in_groups, IMAGES, True, marks=pytest.mark.slow),
        pytest.param(recurrent, TOKENS, False, marks=pytest.mark.slow),
    ],
    ids=["in groups", "in groups, scores", "masked steps"],
)
@pytest.mark.filterwarnings("ignore:The scores of single examples, which:UserWarning")
def test_chains_are_each_by_itself(make, x, with_scores):
    assert errors(make(), x, with_scores) < 1e-5


@pytest.mark.thorough
def test_convolutions_in_groups_are_vectorized_wrongly(monkeypatch):
    """Control. If this fails, TensorFlow has fixed the error and `not_vectorizable` can go.

    The gradients are wrong where TensorFlow uses oneDNN, which depends on the processor. Its other
    operations on CPUs refuse gradients of the vectorized form.
    """
    example_scores = "tfp_sgmcmc.keras.model.example_scores"
    monkeypatch.setattr(f"{example_scores}.not_vectorizable", lambda *_: None)
    monkeypatch.setattr(f"{example_scores}._unrolled_is_faster", lambda _: False)
    try:
        assert errors(in_groups(), IMAGES, with_scores=False) > 0.1
    except tf.errors.InvalidArgumentError as error:
        assert "Gradients for grouped convolutions are not supported" in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("make", [transposed, depthwise])
def test_convolutions_in_chains_with_scores_are_compiled_by_xla(make, monkeypatch):
    assert errors(make(), IMAGES, with_scores=True, jit_compile=True) < 1e-5
    # Control. If this fails, XLA compiles them, and `twice_in_xla` can go.
    example_scores = "tfp_sgmcmc.keras.model.example_scores"
    monkeypatch.setattr(f"{example_scores}.not_vectorizable", lambda *_: None)
    monkeypatch.setattr(f"{example_scores}._unrolled_is_faster", lambda _: False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="tf2xla conversion failed"):
        errors(make(), IMAGES, with_scores=True, jit_compile=True)


@pytest.mark.thorough
def test_scores_over_masked_steps_are_gradients_of_single_examples():
    model = recurrent()
    state = [s[0] for s in states_of(model, TOKENS)]
    with pytest.warns(UserWarning, match="does not vectorize the layer 'simple_rnn"):
        _, scores = estimates(model, TOKENS, with_scores=True, states=state)
    gradient, _ = estimates(model, TOKENS, slice(1, 2), states=state)  # of a masked example
    assert_close([score[1] for score in scores], gradient, rtol=1e-4, atol=1e-6)


def test_an_error_of_the_function_is_its_own():
    def fails(x):
        raise ValueError("of its own")

    with pytest.raises(ValueError, match="of its own"):
        Mapper(in_groups())(fails, tf.zeros([2]))
    with pytest.raises(ValueError, match="of its own"):
        Mapper(compiled(keras.Input([2])))(fails, tf.zeros([2]))


@pytest.mark.parametrize(
    ("num_chains", "jit_compile", "is_unrolled"),
    [(C, True, True), (C, False, True), (20, False, False), (20, True, True)],
)
def test_a_cpu_calls_convolutions_once_for_each_chain(
    num_chains: int, jit_compile: bool, is_unrolled: bool
) -> None:
    """Convolutions with kernels of their own would be mapped to ones that a CPU computes slowly."""
    model, calls = compiled(keras.Input([4, 4, 4]), keras.layers.Conv2D(4, 2)), []
    mapper = Mapper(model, unrolls=True)
    images = tf.random.stateless_normal([2, 4, 4, 4], SEED)
    kernels = tf.random.stateless_normal([num_chains, 2, 2, 4, 4], SEED)

    def convolved(kernel: tf.Tensor) -> dict[str, tf.Tensor]:
        calls.append(kernel)
        return {"images": tf.nn.conv2d(images, kernel, 1, "VALID")}

    fn = tf.function(lambda x: mapper(convolved, x), autograph=False, jit_compile=jit_compile)
    found = fn(kernels)["images"]
    assert all(k.shape == kernels.shape[1:] for k in calls)
    assert found.shape == [num_chains, 2, 3, 3, 4]
    operations = [o.type for o in fn.get_concrete_function(kernels).graph.get_operations()]
    assert (operations.count("Conv2D") == num_chains) == is_unrolled
    for kernel, image in zip(kernels, found, strict=True):
        np.testing.assert_allclose(image, convolved(kernel)["images"], rtol=1e-4, atol=1e-5)


MATRIX = tf.zeros([4, 5])


def test_a_loop_is_told_once_with_its_reason():
    mapper = Mapper(compiled(keras.Input([2])), "A loop: {reason}")
    elements = tf.random.stateless_normal([3, 1, 2, 4], SEED)
    fn = tf.function(lambda x: mapper(lambda y: tf.matmul(y, MATRIX + 1.0), x), autograph=False)
    with pytest.warns(UserWarning, match="A loop: oneDNN fails in .*MatMul"):
        found = fn(elements)
    np.testing.assert_allclose(found, tf.matmul(elements, MATRIX + 1.0), rtol=1e-5)
    fn.get_concrete_function(elements[:2])  # warnings would be errors


@pytest.mark.parametrize(
    "fn, shape, is_unsafe",
    [
        (lambda x: tf.matmul(x, MATRIX), [1, 3, 4], True),
        (lambda x: tf.matmul(tf.tanh(x), MATRIX[tf.newaxis]), [1, 3, 4], True),
        (lambda x: tf.map_fn(lambda y: tf.matmul(y, MATRIX), x), [2, 1, 3, 4], True),
        (lambda x: tf.nn.softmax(x), [1, 2, 3, 4, 5], True),
        (lambda x: tf.matmul(x, MATRIX), [2, 3, 4], False),
        (lambda x: tf.matmul(x, MATRIX), [3, 4], False),
        (lambda x: tf.matmul(MATRIX[tf.newaxis], x), [1, 5, 4], False),
        (lambda x: tf.matmul(x, tf.tanh(x), transpose_b=True), [1, 3, 4], False),
        (
            lambda x: tf.matmul(tf.cast(x, tf.float64), tf.cast(MATRIX, tf.float64)),
            [1, 3, 4],
            False,
        ),
        (lambda x: tf.nn.softmax(x), [1, 2, 3, 4], False),
    ],
)
def test_operations_that_must_not_be_vectorized_are_found(fn, shape, is_unsafe):
    elements = tf.zeros([3, *shape])
    found = [unsafe_operation(fn, elements) is not None]
    compiled = tf.function(
        lambda x: found.append(unsafe_operation(fn, x) is not None), jit_compile=True
    )
    compiled.get_concrete_function(elements)
    assert found == [is_unsafe, False]  # XLA does not use oneDNN


@pytest.mark.slow
@pytest.mark.parametrize("which, count", [("first", 1), ("all", 8)])
def test_attention_and_scores_leave_the_process_alive(which, count):
    """A crash would take the test process along, so a transformer samples in another one."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.keras.model.transformer", which],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["finite"] * count


def test_gradients_have_the_shapes_of_the_state():
    """In a function of a batch of any size, too; the map over chains loses some of them."""
    model = compiled(
        keras.Input([2], dtype="int32"),
        keras.layers.Embedding(4, 2, mask_zero=True),
        keras.layers.Dense(3),
        keras.layers.GlobalAveragePooling1D(),
    )
    internals.build(model, TOKENS, Y, None)
    state = [tf.stack([v.value] * C) for v in model.trainable_variables]

    @tf.function(autograph=False)
    def shapes(x, y):
        target = ModelLogProb(model, 9, lambda _: tf.zeros([]), (x, y, None), C)
        found.extend(g.shape for g in target.estimate(state, SEED, with_scores=False).gradient)

    found = []
    shapes.get_concrete_function(
        tf.TensorSpec([None, 2], tf.int32), tf.TensorSpec([None, 1], tf.float32)
    )
    assert found == [x.shape for x in state]
