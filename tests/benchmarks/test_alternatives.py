"""Other ways to an ensemble: dynamics against known laws, and the command on a few rows."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.predictions import alternatives, tabular
from benchmarks.predictions.alternative_dynamics import (
    ExactFriction,
    Microcanonical,
    Symmetric,
)
from tests.keras.small_models import assert_close
from tfp_sgmcmc.kernels.annealed_sghmc import AnnealedSGHMC

RNG = np.random.default_rng(0)
START = tf.fill([100, 20], 2.0)  # chains and weights
TINY = tabular.Table(RNG.normal(size=[60, 3]), RNG.integers(0, 2, size=[60]), 2)


def normal() -> sgmcmc.FullDataLogProb:
    """Returns the law N(0, 4) of each weight."""
    return sgmcmc.FullDataLogProb(lambda x: -tf.reduce_sum(x**2, axis=-1) / 8)


def test_microcanonical_dynamics_draw_from_the_posterior() -> None:
    kernel = Microcanonical(normal(), 0.1, is_scaled=False, decoherence=50.0)
    result = sgmcmc.sample_chain(
        kernel, START, num_results=200, num_burnin_steps=200, seed=0,
        progress_bar=False, jit_compile=False,
    )  # fmt: skip
    assert np.mean(np.square(result.states)) == pytest.approx(4.0, rel=0.03)


def test_a_microcanonical_step_is_the_formula() -> None:
    """Without noise, the second step turns the direction that the first one took."""
    kernel = Microcanonical(normal(), 0.1, is_scaled=False, decoherence=1e9)
    x = np.array([[1.0, 0.0, 2.0]])
    state, results = tf.constant(x), kernel.bootstrap_results(tf.constant(x))
    u = -x / np.linalg.norm(x)
    for _ in range(2):
        g = -x / 4
        size = np.linalg.norm(g)
        e, delta = g / size, 0.1 * 3**0.5 * size / 2
        cosine = np.sum(e * u)
        u = (u + e * (np.sinh(delta) + cosine * (np.cosh(delta) - 1))) / (
            np.cosh(delta) + cosine * np.sinh(delta)
        )
        x = x + 0.1 * 3**0.5 * u
        state, results = kernel.one_step(state, results, seed=1)
        assert_close([state.numpy()], [x], atol=1e-4)


@pytest.mark.thorough
def test_the_symmetric_scheme_has_the_right_variance_at_large_steps() -> None:
    """For a normal law its states are exact, where the kernel's own are 9 % too wide."""
    options = {"step_size": 1.0, "momentum_loss": 0.5, "prior_variance": 1e12, "noise_limit": 1e9}
    spreads = []
    for kind in (Symmetric, AnnealedSGHMC):
        result = sgmcmc.sample_chain(
            kind(normal(), **options), START, num_results=400,
            num_burnin_steps=100, seed=0, progress_bar=False, jit_compile=False,
        )  # fmt: skip
        spreads.append(np.mean(np.square(result.states)))
    assert spreads[0] == pytest.approx(4.0, rel=0.02)
    assert spreads[1] == pytest.approx(4.0 * 3 / 2.75, rel=0.02)


@pytest.mark.thorough
def test_exact_friction_has_its_law() -> None:
    """The stationary variance of the linear recursion of kicks and flows, from its equations."""
    a, curvature, rate = 0.5, 0.25, 1.0
    eta = -np.log1p(-a)
    flow = np.array([[1.0, -np.expm1(-eta) / eta], [0.0, 1 - a]])
    both = np.expm1(-eta) ** 2 / eta
    drift = (2 * eta - 3 + 4 * np.exp(-eta) - np.exp(-2 * eta)) / eta**2
    noise = rate * np.array([[drift, both], [both, 2 * a - a**2]])
    step = flow @ np.array([[1.0, 0.0], [-rate * curvature, 1.0]])
    law = np.linalg.solve(np.eye(4) - np.kron(step, step), noise.ravel())[0]
    result = sgmcmc.sample_chain(
        ExactFriction(normal(), rate, momentum_loss=a, prior_variance=1e12, noise_limit=1e9),
        START, num_results=400, num_burnin_steps=100, seed=0, progress_bar=False, jit_compile=False,
    )  # fmt: skip
    assert np.mean(np.square(result.states)) == pytest.approx(law, rel=0.02)
    assert law == pytest.approx(4.0, rel=0.1)


@pytest.mark.thorough
def test_the_command_compares_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tabular.TABLES, "tiny", lambda: TINY)
    found = alternatives.run(problems=("tiny",), refits=(), units=(4,), quick=True)
    ((_, table),) = alternatives.show(found).items()
    assert [line[1] for line in table.lines] == [*alternatives.METHODS]
    assert all(np.isfinite(float(line[2])) for line in table.lines)


@pytest.mark.thorough
def test_the_command_compares_refits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tabular.TABLES, "tiny", lambda: TINY)
    found = alternatives.run(problems=(), refits=("tiny",), units=(4,), quick=True)
    lines = alternatives.show(found)["Refits"].lines
    assert len(lines) == len(alternatives.PARTS) * len(alternatives.REFITS)
    same = [line[2] for line in lines if line[1].endswith("no refit")]
    assert same == same[:1] * len(alternatives.PARTS)  # LoRA begins with no change
