"""The skeleton of a sampler in the developers' guide runs and samples its stationary law.

On the Gaussian-mean model the covariance S of the samples solves S = F S F^T + eps^2 / 4 Sigma +
eps^2 T I with F = I - eps / 2 A. False-alarm rate: 1e-6 a test. An error of 4% in the variance of
any whitened direction is found with probability 0.999.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from scipy.linalg import solve_discrete_lyapunov

from tests.harness.chains import by_chain
from tests.harness.gaussian_mean import GaussianMean
from tests.harness.statistics import Rejected, check_covariance

MODEL, BATCH, STEP, TEMPERATURE = GaussianMean(num_examples=12), 4, 0.08, 2.0
GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/developers.md"


def skeleton(old: str = "", new: str = "") -> Any:
    """Returns the sampler, with `old` replaced by `new` in its source."""
    section = GUIDE.read_text(encoding="utf-8").split("## Add a sampler\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    assert not old or code.count(old) == 1
    names: dict[str, Any] = {"__name__": "skeleton"}
    exec(compile(code.replace(old, new), "developers.md", "exec"), names)
    return names["NoisySGD"]


def check(kernel_class: Any, jit: bool) -> None:
    target = MODEL.target(BATCH, replacement=True)
    kernel = kernel_class(target, STEP, TEMPERATURE)

    def run(state: tf.Tensor) -> Any:
        return tfp.mcmc.sample_chain(
            40, state, kernel=kernel, num_burnin_steps=60, trace_fn=None, seed=[0, 1]
        )

    run = tf.function(run, jit_compile=True, autograph=False) if jit else run
    samples = by_chain(run(tf.ones([8_000, 3])))
    contraction = np.eye(3) - STEP / 2 * MODEL.hessian
    noise = STEP**2 * (MODEL.noise(BATCH, replacement=True) / 4 + TEMPERATURE * np.eye(3))
    check_covariance(samples, MODEL.mean, solve_discrete_lyapunov(contraction, noise), 0.04)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "jit", [pytest.param(False, marks=pytest.mark.thorough), True], ids=["eager", "xla"]
)
def test_skeleton_samples_its_stationary_law(jit: bool) -> None:
    check(skeleton(), jit)


@pytest.mark.thorough
def test_skeleton_without_the_root_of_the_temperature_is_rejected() -> None:
    with pytest.raises(Rejected):
        check(skeleton("eps * tf.sqrt(t) * z", "eps * t * z"), jit=True)
