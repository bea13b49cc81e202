"""Tests that the examples of the README run and do what the README says."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]


def example(heading: str, shortened: dict | None = None, names: dict | None = None) -> dict:
    """Runs the Python example under a heading of the README and returns its variables.

    `shortened` maps pieces of the code to their replacements. `names` holds the variables that
    exist before.
    """
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    for piece, instead in (shortened or {}).items():
        assert code.count(piece) == 1
        code = code.replace(piece, instead)
    names = {} if names is None else names
    exec(compile(code, f"README.md, {heading}", "exec"), names)
    return names


def test_sample_chain_and_long_run(tmp_path, monkeypatch, capsys):
    names = example("With `tfp.mcmc.sample_chain`")
    samples, target = names["samples"].numpy(), names["target"]
    assert samples.shape == (5_000, 4, 30)
    names["sgmcmc"].preflight(target, samples[-1])
    names["sgmcmc"].check_finite(samples)
    mean = samples.mean(axis=(0, 1))
    accuracy = np.mean((names["data"]["x"] @ mean > 0) == names["data"]["y"])
    assert accuracy > 0.97  # the constant answer "benign" reaches 0.63
    r_hat = names["tfp"].mcmc.potential_scale_reduction(samples).numpy()
    assert r_hat.max() < 1.1

    monkeypatch.chdir(tmp_path)
    example("Long runs", {"num_results=5_000": "num_results=2_000"}, names)
    long_run = np.asarray(names["result"].states)
    assert long_run.shape == (2_000, 4, 30)
    deviations = np.abs(long_run.mean(axis=(0, 1)) - mean) / samples.std(axis=(0, 1))
    assert deviations.max() < 0.5  # within the Monte Carlo errors of both means
    assert "R-hat" in capsys.readouterr().out
    assert names["result"].to_inference_data().posterior.sizes["draw"] == 2_000

    shortened = {"num_results=5_000": "num_results=500", "[64, 30]": "[4, 30]"}
    example("On many cores and machines", shortened | {"shard=32": "shard=2"}, names)
    assert names["result"].shards == (0, 1) and names["result"].states.shape == (500, 4, 30)


def test_fit_example():
    """Takes 1,800 steps instead of 6,000, which gives ten samples after the burn-in.

    The example does not seed its first weights and its batches. Accuracies of 24 unseeded runs were
    0.838 to 0.892, so the test seeds them.
    """
    keras.utils.set_random_seed(1)
    shortened = {"epochs=200": "epochs=60", "num_burnin_steps=3000": "num_burnin_steps=1200"}
    names = example("With `model.fit`", shortened)
    probabilities, spread = names["mean"], names["standard_deviation"]
    np.testing.assert_allclose(np.sum(probabilities, axis=-1), 1.0, atol=1e-4)
    accuracy = np.mean(np.argmax(probabilities, axis=-1) == names["y"][1500:])
    assert accuracy > 0.85  # chance is 0.1
    assert 0.001 < np.mean(spread) < 0.3


@pytest.mark.parametrize("name", ["CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"])
def test_linked_files_are_there(name):
    assert (ROOT / name).stat().st_size > 500
