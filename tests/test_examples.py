"""The examples run, are listed with what they gave, and the posterior is of use."""

import importlib
import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

ROOT = Path(__file__).resolve().parents[1]
NAMES = sorted(
    path.stem
    for path in (ROOT / "examples").glob("*.py")
    if path.stem not in ("__init__", "scores")
)
TABLE = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
# The share by which the average over the posterior may predict worse than Adam's weights.
MOST_WORSE = 0.1

# Keras makes an array of a tf.Variable when it saves, which NumPy 2 warns about.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy")


def test_all_examples_are_listed():
    listed = re.findall(r"^\| \[[^]]*\]\(https:\S*examples/(\w+)\.py\)", TABLE, re.M)
    assert sorted(listed) == NAMES and len(NAMES) >= 12


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_short(name):
    assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) <= 120


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "low_rank_transformer"])
def test_examples_run(name):
    found = importlib.import_module(f"examples.{name}").main()
    assert np.isfinite([*found.values()]).all()
    key = "log predictive density"
    adam = found[f"Adam: {key}"]
    sampled = next(x for name, x in found.items() if key in name and "Adam" not in name)
    assert sampled > adam - MOST_WORSE * abs(adam), found


@pytest.mark.slow
def test_low_rank_weights_are_predicted_with_saved_and_exported(tmp_path):
    """The samples are those of the adaptations alone, and the exported model has their numbers."""
    from examples import low_rank_transformer as example
    from tfp_sgmcmc.keras import Posterior

    model, posterior, _ = example.sampled()
    assert all("lora" in v.path for v in posterior.variables) and len(posterior.variables) > 10
    x, _ = example.reviews(20, 3)
    expected = posterior.predict(x)
    assert expected.mean.shape == (20, 1) and expected.standard_deviation.max() > 0
    posterior.save(tmp_path / "samples.npz")
    loaded = Posterior.load(tmp_path / "samples.npz", model).predict(x)
    np.testing.assert_array_equal(loaded.mean, expected.mean)
    np.testing.assert_array_equal(loaded.standard_deviation, expected.standard_deviation)
    shipped = posterior.to_keras_model()
    shipped.save(tmp_path / "shipped.keras")
    again = keras.models.load_model(tmp_path / "shipped.keras")
    np.testing.assert_allclose(again(x)["mean"], expected.mean, rtol=1e-5)
    shipped.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(tmp_path / "exported")
    found = exported.serve(x)
    np.testing.assert_allclose(found["mean"], expected.mean, rtol=1e-5)
    np.testing.assert_allclose(
        found["standard_deviation"], expected.standard_deviation, rtol=1e-3, atol=1e-6
    )
