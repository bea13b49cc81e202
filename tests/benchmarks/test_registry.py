"""The registry of samplers has every kernel, makes it, and is the README's table."""

import inspect
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import registry
from tfp_sgmcmc.keras.options import NAMED_KERNELS

ROOT = Path(__file__).resolve().parents[2]


def test_every_public_kernel_has_one_row() -> None:
    """All but the one without a step size, whose proposals come from a fitted distribution."""
    expected = {*sgmcmc.kernels.__all__} - {"IndependentMetropolis"}
    assert sorted(row.name for row in registry.SAMPLERS) == sorted(expected)
    labels = [row.label for row in registry.SAMPLERS]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("row", registry.SAMPLERS, ids=lambda row: row.name)
def test_makers_make_the_named_kernel_and_pass_on_what_it_takes(
    row: registry.RegisteredSampler,
) -> None:
    target = sgmcmc.MinibatchLogProb(
        lambda theta: -0.5 * tf.reduce_sum(theta**2, axis=-1),
        lambda theta, batch: -0.5 * tf.reduce_sum((batch - theta[..., None, :]) ** 2, axis=-1),
        np.random.default_rng(0).standard_normal([40, 2]).astype(np.float32),
        batch_size=10,
    )
    kernel = row.make(target, 0.25, 3.0, 8.0, "diag")
    assert type(kernel) is getattr(sgmcmc.kernels, row.name)
    parameters = kernel.parameters
    assert parameters["target_log_prob_fn"] is target
    assert row.uses_covariance == ("covariance" in parameters)
    assert parameters.get("covariance", "diag") == "diag"
    steps = {"SGFS": 8.0, "SGLD": 0.0625, "SGNHT": 0.25}
    found = parameters.get("alpha") or parameters["step_size"]
    assert found == steps.get(row.name, found)
    frictions = {"SGHMC": 3.0 + 0.25 * 8.0}
    assert parameters.get("friction", 3.0) == frictions.get(row.name, 3.0)


def test_keras_names_the_kernels_that_need_only_a_step_size() -> None:
    """Those on minibatches whose second parameter it is, and whose others have defaults."""

    def takes_step(name: str) -> bool:
        _, second, *others = inspect.signature(getattr(sgmcmc, name)).parameters.values()
        return second.name == "step_size" and all(p.default is not p.empty for p in others)

    rows = [row for row in registry.SAMPLERS if not row.all_data and takes_step(row.name)]
    assert tuple(row.name for row in rows) == NAMED_KERNELS


def test_the_readme_has_the_table_of_the_registry() -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Samplers\n")[1]
    assert section.strip().split("\n\n")[0] == registry.table()
