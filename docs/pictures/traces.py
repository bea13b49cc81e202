"""Traces of one weight of a logistic regression, for three samplers at the same number of steps."""

from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from matplotlib.figure import Figure

import datasets
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions
WEIGHT, NUM_STEPS = 0, 3_000


def draw(folder: Path) -> Path:
    """Writes traces.png."""
    x, y = (a.astype(np.float32) for a in datasets.german()[:2])
    target = sgmcmc.MinibatchLogProb(
        lambda w: tfd.Sample(tfd.Normal(0.0, 1.0), x.shape[1]).log_prob(w),
        lambda w, batch: tfd.Bernoulli(tf.linalg.matvec(batch["x"], w)).log_prob(batch["y"]),
        data={"x": x, "y": y},
        batch_size=100,
    )
    center, report = sgmcmc.find_center(target, tf.zeros([x.shape[1]]))
    whitened, bijector = sgmcmc.whiten(target, center)
    run = tf.function(tfp.mcmc.sample_chain, jit_compile=True)
    covariance = np.linalg.inv(-np.asarray(report.hessian))
    mode, sd = center.numpy()[WEIGHT], covariance[WEIGHT, WEIGHT] ** 0.5
    step = 4 / float(sgmcmc.largest_curvature(target, center))
    samplers = {
        f"SGLD, ε = {step / 100:.1e}: hardly biased, and slow": (
            sgmcmc.SGLD(target, step / 100),
            False,
        ),
        f"SGLD, ε = {step / 4:.1e}: fast, and too wide": (sgmcmc.SGLD(target, step / 4), False),
        "NOGIN, whitened, h = 0.5": (sgmcmc.NOGIN(whitened, 0.5, friction=1.0), True),
    }
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    panels = figure.subplots(3, 1, sharex=True, sharey=True)
    for axes, (name, (kernel, is_whitened)) in zip(panels, samplers.items(), strict=True):
        start = tf.zeros_like(center) if is_whitened else center
        draws = run(NUM_STEPS, start, kernel=kernel, trace_fn=None, seed=tf.constant([0, 1]))
        draws = (bijector.forward(draws) if is_whitened else draws).numpy()[:, WEIGHT]
        axes.axhspan(mode - 2 * sd, mode + 2 * sd, color="0.9")
        axes.plot(draws, linewidth=0.6)
        axes.set_title(name, fontsize=9)
    panels[-1].set_xlabel(
        "step; the band is Laplace's approximation, plus and minus two deviations"
    )
    figure.savefig(folder / "traces.png", dpi=100)
    return folder / "traces.png"
