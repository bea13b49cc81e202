"""An animation of three samplers on a banana-shaped posterior."""

from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.figure import Figure

import tfp_sgmcmc as sgmcmc

NUM_FRAMES, STEPS_A_FRAME = 50, 8


def log_prob(state: tf.Tensor) -> tf.Tensor:
    """A normal of deviation 1.5, bent along a parabola of width 0.25."""
    x, y = state[..., 0], state[..., 1]
    return -(x**2) / 4.5 - 8 * (y - 0.4 * x**2) ** 2


def draw(folder: Path) -> Path:
    """Writes banana.gif."""
    target = sgmcmc.FullDataLogProb(log_prob)
    samplers = {
        "SGLD": sgmcmc.SGLD(target, step_size=0.03),
        "UnderdampedLangevin": sgmcmc.UnderdampedLangevin(target, step_size=0.2, friction=0.5),
        "CorrectedLangevin": sgmcmc.CorrectedLangevin(target, step_size=0.08),
    }
    run = tf.function(tfp.mcmc.sample_chain, jit_compile=True)
    start = tf.constant([[0.0, 0.0]] * 3)
    paths = {
        name: run(NUM_FRAMES * STEPS_A_FRAME, start, kernel=kernel, trace_fn=None,
                  seed=tf.constant([0, 2])).numpy()
        for name, kernel in samplers.items()
    }  # fmt: skip
    x, y = np.meshgrid(np.linspace(-4, 4, 120), np.linspace(-1.2, 5, 100))
    height = np.exp(log_prob(tf.constant(np.stack([x, y], axis=-1), tf.float32)))
    figure = Figure(figsize=(7.8, 2.5), layout="constrained")
    lines = []
    for axes, name in zip(figure.subplots(1, 3), paths, strict=True):
        axes.contour(x, y, height, levels=[0.05, 0.3, 0.7], colors="0.7", linewidths=0.7)
        axes.set_title(name, fontsize=9)
        axes.set(xticks=[], yticks=[])
        lines.append([axes.plot([], [], "-", linewidth=0.8)[0] for _ in range(3)])
        lines[-1] += [axes.plot([], [], ".", markersize=2, color="0.3")[0]]

    def frame(i: int) -> list:
        end = (i + 1) * STEPS_A_FRAME
        for parts, path in zip(lines, paths.values(), strict=True):
            for chain, line in enumerate(parts[:3]):
                line.set_data(*path[max(0, end - 12) : end, chain].T)
            parts[3].set_data(*path[:end:2].reshape(-1, 2).T)
        return []

    file = folder / "banana.gif"
    FuncAnimation(figure, frame, NUM_FRAMES).save(file, PillowWriter(fps=8), dpi=72)
    return file
