"""Networks of many architectures are sampled, or refused in words; a part of the table."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.robustness import architectures
from benchmarks.robustness.architectures import KERNELS, NETWORKS, REFUSED, Setting
from tests.keras import small_models
from tests.keras.small_models import assert_close
from tfp_sgmcmc.keras.checks.curvature_check import _PARTS, _Parts
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.model.log_prob import ModelLogProb

# Keras makes an array of a tf.Variable when it saves, which NumPy 2 warns about.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy")


@pytest.mark.parametrize(
    "name, setting",
    [
        pytest.param("several inputs", Setting("SGLD", None, False), marks=pytest.mark.thorough),
        pytest.param("subclassed", Setting("SGHMC", 2, False), marks=pytest.mark.slow),
    ],
)
def test_a_part_of_the_table(name, setting):
    row = architectures.row(name, setting)
    assert row.outcome == "works", row


@pytest.mark.parametrize(
    "name", [pytest.param("Siamese, shared layers", marks=pytest.mark.thorough), "StringLookup"]
)
def test_gradients_and_scores_are_those_of_keras(name):
    assert architectures.compared(name, 2, False) == ""


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    row = architectures.row(name, Setting("SGLD", None, False))
    assert row.outcome == "refused", row


@pytest.mark.thorough
def test_a_refusal_by_one_kernel():
    row = architectures.row("ResNet, BatchNormalization", Setting("NOGIN", None, False))
    assert row.outcome == "refused", row


def test_wrong_gradients_and_errors_from_inside_are_caught(monkeypatch):
    """The negative controls."""
    right = architectures.reference
    monkeypatch.setattr(architectures, "reference", lambda *given: [1.1 * g for g in right(*given)])
    assert "gradient of" in architectures.compared("dense", None, False)

    def raises() -> str:
        raise TypeError("the words")

    rows = [
        architectures.judged("net", "", raises, "the words"),  # not of the library
        architectures.judged("net", "", lambda: "", "the words"),
        architectures.judged("net", "", lambda: "a weight stays"),
    ]
    assert [r.outcome for r in rows] == ["TypeError: the words", "accepted", "a weight stays"]
    with pytest.raises(SystemExit, match="3 of 3 rows are wrong"):
        architectures.show(rows)


def test_settings_pair_everything():
    names = [name for name in NETWORKS if name not in architectures.THOROUGH]
    for name in names:
        chosen = architectures.settings(name)
        assert {s[1:] for s in chosen} == {*itertools.product((None, 2), (True, False))}
        assert {s.kernel for s in chosen} == {*KERNELS}
    found = {s for name in names for s in architectures.settings(name)}
    assert found == {*architectures.settings("dense")} and len(found) == 12
    assert len(NETWORKS) >= 25 and {*architectures.THOROUGH} <= {*NETWORKS}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # rows hold them
@pytest.mark.parametrize("name", NETWORKS)
def test_the_table(name):
    wrong = [row for row in architectures.rows((name,)) if not architectures.is_right(row)]
    assert wrong == []


def test_one_graph_estimates_by_all_parts_of_a_batch():
    """The check of the noise at the start takes rows i, i + 32, i + 64, ... as part i."""
    model = small_models.affine()
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=[70, 3]), tf.float32)
    y = tf.constant(rng.integers(0, 4, size=[70]))

    class Chain:
        def target_of_one(self, batch):
            return ModelLogProb(model, 70, lambda state: tf.zeros([]), batch)

    parts = _Parts(Chain(), (x, y, None), 2)
    internals.build(model, x, y, None)
    state = [tf.identity(v.value) for v in model.trainable_variables]
    for i in (0, 31):
        batch = x[i::_PARTS][:2], y[i::_PARTS][:2], None
        expected = Chain().target_of_one(batch).estimate(state, tf.zeros([2], tf.int32))
        found = parts.estimate(state, tf.constant([0, i]), with_scores=False)
        assert_close(found.gradient, expected.gradient)


@pytest.fixture(scope="module")
def subclassed():
    """Returns a subclassed network, and samples of it."""
    network = architectures.made("subclassed", False)
    network.model(network.x)
    rng = np.random.default_rng(0)
    variables = network.model.trainable_variables
    samples = [rng.normal(size=[3, *v.shape]).astype(np.float32) for v in variables]
    return network, sgmcmc.keras.Posterior(network.model, variables, samples)


def test_a_subclassed_model_is_shipped(subclassed, tmp_path):
    """With inputs, a subclassed model becomes a Keras model, before and after saving."""
    network, posterior = subclassed
    expected = posterior.predict(network.x)
    with pytest.raises(ValueError, match="inputs must be given unless the model is Functional"):
        posterior.to_keras_model()
    shipped = posterior.to_keras_model(inputs=keras.Input([4]))
    assert_close([*shipped(network.x).values()], expected[:2])
    shipped.save(tmp_path / "shipped.keras")
    loaded = keras.models.load_model(tmp_path / "shipped.keras")
    assert_close([*loaded(network.x).values()], expected[:2])


@pytest.mark.thorough
def test_a_subclassed_model_is_distilled(subclassed):
    network, posterior = subclassed
    distilled = posterior.distil(network.x, (network.x, network.y), epochs=1)
    assert distilled.model.count_params() == network.model.count_params()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["subclassed", "StringLookup"])
def test_exports(name, tmp_path):
    """A SavedModel has the tables of lookups, and gives the numbers of `predict`."""
    network = architectures.made(name, False)
    x = architectures.batch(network.x)
    network.model(x)
    variables = network.model.trainable_variables
    rng = np.random.default_rng(0)
    samples = [rng.normal(size=[3, *v.shape]).astype(np.float32) for v in variables]
    posterior = sgmcmc.keras.Posterior(network.model, variables, samples)
    inputs = keras.Input([4]) if name == "subclassed" else None
    shipped = posterior.to_keras_model(inputs=inputs)
    shipped.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(tmp_path / "exported")
    expected = posterior.predict(x)
    found = exported.serve(x)
    assert_close([found["mean"], found["standard_deviation"]], expected[:2])
    shipped.quantize("int8", filters="posterior_average")
    assert "int8" in {v.dtype for v in shipped.variables}
