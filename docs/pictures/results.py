"""Plots of results by themselves: draws, marginals, gradients, predictions, calibration."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from sklearn.datasets import load_breast_cancer, load_digits

import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions


def draw(folder: Path) -> list[Path]:
    """Writes six pictures."""
    figures = of_draws() | {"predictions": bands(), "calibration": calibration()}
    files = []
    for name, figure in figures.items():
        files.append(folder / f"result_{name}.png")
        figure.savefig(files[-1], dpi=100)
    return files


def of_draws() -> dict[str, Any]:
    """Returns figures of a logistic regression with ten weights."""
    x, y = load_breast_cancer(return_X_y=True)
    x = ((x - x.mean(0)) / x.std(0))[:, :10].astype("float32")
    target = sgmcmc.MinibatchLogProb(
        lambda w: tfd.Sample(tfd.Normal(0.0, 1.0), 10).log_prob(w),
        lambda w, batch: tfd.Bernoulli(tf.linalg.matvec(batch["x"], w)).log_prob(batch["y"]),
        data={"x": x, "y": y.astype("float32")},
        batch_size=100,
    )
    good = sgmcmc.sample(target, {"w": tf.zeros([10])}, 1_000, seed=0)
    hot = sgmcmc.sample_chain(
        sgmcmc.SGLD(target, step_size=0.03),
        {"w": tf.zeros([4, 10])},
        1_000,
        num_burnin_steps=500,
        num_steps_between_results=19,
        seed=0,
    )
    return {
        "posterior": good.plot_marginals(),
        "draws": good.plot(num_entries=2),
        "marginals": hot.plot_marginals(reference=good),
        "gradients": sgmcmc.report(hot, target).plot(),
    }


def trained(outputs: int, loss: Any, x: Any, y: Any, activation: str, rate: float) -> Any:
    """Returns a network with one hidden layer, trained by Adam."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(50, activation), keras.layers.Dense(outputs)]
    model = keras.Sequential([keras.Input(x.shape[1:]), *layers])
    model.compile(keras.optimizers.Adam(rate), loss, steps_per_execution=30, jit_compile=True)
    model.fit(x, y, batch_size=50, epochs=100, verbose=0)
    return model


def bands() -> Any:
    """Returns the figure of a curve that was observed on both sides of a gap.

    Batches of all rows have no gradient noise, so that long paths with momenta stay exact.
    """
    rng = np.random.default_rng(0)
    x = rng.uniform([[-2.0]] * 75 + [[0.5]] * 75, [[-0.5]] * 75 + [[2.0]] * 75)
    y = np.sin(2 * x) + 0.2 * rng.normal(size=x.shape)
    x, y = x.astype("float32"), y.astype("float32")
    model = trained(1, sgmcmc.keras.losses.GaussianNLL(0.2), x, y, "tanh", 0.01)
    sampler = sgmcmc.keras.SamplerCallback(
        lambda target: sgmcmc.UnderdampedLangevin(target, step_size=0.002, friction=2.0),
        prior=tfd.Normal(0.0, 1.0),
        collect=sgmcmc.keras.Collect(num_burnin_steps=10_000, num_steps_between_results=99),
        chains=4,
        seed=0,
    )
    data = sampler.resident(x, y, batch_size=150, steps_per_call=1_000, steps_per_epoch=10_000)
    model.fit(data, epochs=6, callbacks=[sampler], verbose=0)
    grid = np.linspace(-2.5, 2.5, 200, dtype="float32")[:, None]
    figure = sampler.posterior.plot_predictions(grid)
    figure.axes[0].plot(x, y, ".", color="0.3", markersize=3)
    return figure


def calibration() -> Any:
    """Returns the figure of a classifier of digits."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = trained(10, loss, x[:500], y[:500], "relu", 0.001)
    sampler = sgmcmc.keras.SamplerCallback(
        lambda target: sgmcmc.SGLD(target, step_size=2e-5),
        prior=tfd.Normal(0.0, 1.0),
        collect=sgmcmc.keras.Collect(num_burnin_steps=600, num_steps_between_results=11),
        seed=0,
    )
    model.fit(x[:500], y[:500], batch_size=50, epochs=180, callbacks=[sampler], verbose=0)
    return sampler.posterior.plot_calibration(x[500:], y[500:])
