"""The examples of the README do what the README says.

These are their short forms; `test_pages.py` runs them as they stand.
"""

import re
from pathlib import Path

import keras
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]


def example(heading: str, shortened: dict | None = None) -> dict:
    """Runs the Python example under a heading of the README and returns its variables.

    `shortened` maps pieces of the code to their replacements.
    """
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    for piece, instead in (shortened or {}).items():
        assert code.count(piece) == 1
        code = code.replace(piece, instead)
    names: dict = {}
    exec(compile(code, f"README.md, {heading}", "exec"), names)
    return names


@pytest.mark.slow
def test_sample_without_settings():
    names = example("A posterior")
    result, x, y = names["result"], names["data"]["x"], names["data"]["y"]
    w = result.states["w"]
    assert w.shape == (1_000, 4, 10)
    assert result.is_trusted and not result.flags and "Trusted." in repr(result)
    accuracy = np.mean((x @ w.mean(axis=(0, 1)) > 0) == y)
    assert accuracy > 0.9  # the constant answer "benign" reaches 0.63


@pytest.mark.thorough
def test_fit_example():
    """Takes 8 epochs instead of 20. Adam's accuracy after 20 is 0.90."""
    keras.utils.set_random_seed(1)
    names = example("A Keras model", {"epochs=20": "epochs=8"})
    probabilities, spread = names["mean"], names["standard_deviation"]
    np.testing.assert_allclose(np.sum(probabilities, axis=-1), 1.0, atol=1e-4)
    accuracy = np.mean(np.argmax(probabilities, axis=-1) == names["y"][1500:])
    assert accuracy > 0.85  # chance is 0.1
    assert 0.001 < np.mean(spread) < 0.3


@pytest.mark.parametrize("name", ["CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"])
def test_linked_files_are_there(name):
    assert (ROOT / name).stat().st_size > 500
