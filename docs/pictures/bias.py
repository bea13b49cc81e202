"""Bias against the step of each sampler, measured and by its exact law, with noisy gradients."""

from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from matplotlib.figure import Figure
from scipy.linalg import solve_discrete_lyapunov

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.kernels.linear_theory import nogin_law, overdamped_law, splitting_law

NOISE = 5.0  # variance of the gradient, in units of the curvature: N / n
NUM_EXAMPLES, DIMENSION, NUM_CHAINS, FRICTION = 500, 10, 40, 1.5
STEPS = np.array([0.1, 0.15, 0.22, 0.33, 0.5])  # times: epsilon = h^2


def target() -> sgmcmc.MinibatchLogProb:
    """Means of numbers, one in each dimension: curvature 1, gradient noise of variance NOISE."""
    x = np.random.default_rng(0).standard_normal([NUM_EXAMPLES, DIMENSION])
    x *= np.sqrt(NUM_EXAMPLES) / x.std(axis=0)

    def log_likelihood(theta: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        return -0.5 * tf.reduce_sum((batch - theta[..., None, :]) ** 2, axis=-1) / NUM_EXAMPLES

    return sgmcmc.MinibatchLogProb(
        lambda theta: tf.zeros_like(theta[..., 0]),
        log_likelihood,
        x.astype(np.float32),
        int(NUM_EXAMPLES / NOISE),
        replacement=True,
        score_fn=lambda theta, batch: (batch - theta[..., None, :]) / NUM_EXAMPLES,
    )


def modified_sgld_variance(h: np.ndarray) -> np.ndarray:
    epsilon = h**2
    drawn = epsilon * (1 - epsilon * NOISE / 8) ** 2
    return (drawn + epsilon**2 * NOISE / 4) / (1 - (1 - epsilon / 2) ** 2)


def sghmc_variance(h: np.ndarray) -> np.ndarray:
    """The variance of exact gradients: noise that is drawn makes room for the gradient's."""
    return np.array([sghmc_covariance(step)[0, 0] for step in h])


def sghmc_covariance(h: float) -> np.ndarray:
    """Returns the covariance of (theta, p)."""
    friction = FRICTION + h * NOISE / 2
    step = np.array([[1.0, h], [-h, 1.0 - h * friction - h**2]])
    return solve_discrete_lyapunov(step, np.diag([0.0, 2 * h * friction]))


SAMPLERS = {
    "SGLD": (
        lambda t, h: sgmcmc.SGLD(t, h**2),
        lambda h: overdamped_law(h**2, 1, NOISE).temperature,
    ),
    "ModifiedSGLD": (lambda t, h: sgmcmc.ModifiedSGLD(t, h**2), modified_sgld_variance),
    "UnderdampedLangevin": (
        lambda t, h: sgmcmc.UnderdampedLangevin(t, h, FRICTION),
        lambda h: splitting_law(h, FRICTION, 1.0, NOISE).temperature,
    ),
    "SGHMC": (lambda t, h: sgmcmc.SGHMC(t, h, FRICTION + h * NOISE / 2), sghmc_variance),
    "SGNHT, splitting": (lambda t, h: sgmcmc.SGNHT(t, h, FRICTION, scheme="adodab"), None),
    "CCAdL, splitting": (lambda t, h: sgmcmc.CCAdL(t, h, FRICTION, scheme="adodacbc"), None),
    "NOGIN": (
        lambda t, h: sgmcmc.NOGIN(t, h, FRICTION),
        lambda h: nogin_law(h, FRICTION, 1.0, NOISE, known=NOISE).temperature,
    ),
    "SGFS": (lambda t, h: sgmcmc.SGFS(t, h**2), np.ones_like),
}


def measured(make, posterior: sgmcmc.MinibatchLogProb) -> np.ndarray:  # noqa: ANN001
    """Returns the mean variance of the draws for each step."""

    @tf.function(jit_compile=True)
    def run(h: tf.Tensor) -> tf.Tensor:
        return tfp.mcmc.sample_chain(
            30, tf.zeros([NUM_CHAINS, DIMENSION]), kernel=make(posterior, h), trace_fn=None,
            num_burnin_steps=1_000, num_steps_between_results=49, seed=[0, 1],
        )  # fmt: skip

    steps = tf.constant(STEPS, tf.float32)
    return np.array([run(h).numpy().var(axis=(0, 1)).mean() for h in steps])


def draw(folder: Path) -> Path:
    """Writes bias.png."""
    posterior = target()
    exact = float(1)
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    panels = figure.subplots(2, 4, sharex=True, sharey=True)
    fine = np.geomspace(STEPS[0], STEPS[-1], 100)
    for axes, (name, (make, law)) in zip(panels.flat, SAMPLERS.items(), strict=True):
        axes.axhline(exact, color="0.75", linewidth=1)
        if law is not None:
            axes.plot(fine, law(fine), color="C0", label="exact law")
        axes.plot(STEPS, measured(make, posterior), "ko", markersize=4, label="chains")
        axes.set_title(name, fontsize=10)
        axes.set(xscale="log", ylim=(0.7, 2.2), xticks=STEPS[::2], xticklabels=STEPS[::2])
        axes.minorticks_off()
    panels[0, 0].legend(fontsize=8)
    for axes in panels[:, 0]:
        axes.set_ylabel("variance (exact: 1)")
    for axes in panels[1]:
        axes.set_xlabel("step h (ε = h²)")
    figure.savefig(folder / "bias.png", dpi=100)
    return folder / "bias.png"
