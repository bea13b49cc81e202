"""The demonstration behind `python -m tfp_sgmcmc`; all sampling is by the public API alone."""

from __future__ import annotations

import base64
import html
import io
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.internal import tables

Scores = dict[str, dict[str, float]]
NORMAL, REFERENCE = "normal approximation", "HMC, all data"
TITLES = {  # of the columns, in plain terms
    "E1": "error of means",
    "E2": "error of covariances",
    "ESS": "independent draws",
    "s / ESS": "s a draw",
    "NLL": "negative log likelihood",
    "ECE": "calibration error",
}
POSTERIOR = (
    "Bayesian logistic regression with 62 weights on 1,437 images: is the digit odd? Each "
    "stochastic-gradient step looks at a tenth of the images. The errors are relative to "
    "Hamiltonian Monte Carlo (HMC) with all images. The normal approximation shows what sampling "
    "adds. R-hat near 1 means that chains agree, and the time of an independent draw is what an "
    "answer costs: on data as small as these, HMC is the best choice."
)
CLASSIFIER = (
    "A neural network, trained by Adam, and then sampled for as many epochs from the same start. "
    "The posterior average says how sure it is: its calibration error is the difference between "
    "the probability of its decisions and the share of them that is right, on 360 new images."
)


def run(folder: Path, seed: int, shortening: int) -> None:
    """Runs both parts and writes their tables and figures to a folder."""
    images, digits = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(images, digits, test_size=0.2, random_state=0)
    varies = np.ptp(x, axis=0) > 0
    x, x_test = x[:, varies], x_test[:, varies]
    scale = np.maximum(x.std(axis=0), np.ptp(x, axis=0) / 10)
    x, x_test = (((part - x.mean(axis=0)) / scale).astype(np.float32) for part in (x, x_test))
    print("1. Logistic regression: is the digit odd?", flush=True)
    posterior, draws = sample_logistic_regression(x, y % 2, seed, shortening)
    print(tables.as_text(table_of(posterior)), flush=True)
    print("2. Neural network: which digit is it?", flush=True)
    classifier = sample_network((x, y), (x_test, y_test), seed, shortening)
    print(tables.as_text(table_of(classifier)))
    results = {"posterior": posterior, "classifier": classifier, "seed": seed}
    (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    figure, shown = plot_marginals(draws), io.BytesIO()
    picture, page = folder / "marginals.png", folder / "report.html"
    figure.savefig(picture, dpi=120)
    figure.savefig(shown, dpi=120, transparent=True)  # for pages that are light or dark
    page.write_text(report_page(posterior, classifier, shown.getvalue()), encoding="utf-8")
    print("Written:", folder / "results.json", picture)
    print(f"Open the report, {page}, in a browser: {page.resolve().as_uri()}")


def sample_logistic_regression(
    x: np.ndarray, y: np.ndarray, seed: int, shortening: int
) -> tuple[Scores, dict[str, np.ndarray]]:
    """Samples the posterior of the weights; returns a table, and draws by sampler."""
    x = np.insert(x, 0, 1, axis=1)  # the constant
    size = x.shape[1]

    def log_likelihood(weights: Any, batch: Any) -> Any:
        x, sign = batch
        return tf.math.log_sigmoid(sign * tf.einsum("...i,ni->...n", weights, x))

    target = sgmcmc.MinibatchLogProb(
        tfp.distributions.Sample(tfp.distributions.Normal(0.0, 1.0), size).log_prob,
        log_likelihood,
        data=(x, np.float32(2 * y - 1)),
        batch_size=len(x) // 10,
        shared_batch=True,  # so that all chains need one matrix product
    )
    mode, _ = sgmcmc.find_center(target, tf.zeros([size]))
    target, bijector = sgmcmc.whiten(target, mode)
    kernels = {  # the kernel, its number of steps, and how many it takes from draw to draw
        "SGLD": (sgmcmc.SGLD(target, step_size=0.02), 100_000, 20),
        "SGLD, five times the step": (sgmcmc.SGLD(target, step_size=0.1), 100_000, 20),
        "UnderdampedLangevin": (
            sgmcmc.UnderdampedLangevin(target, step_size=0.07, friction=14.0), 100_000, 20
        ),
        REFERENCE: (tfp.mcmc.HamiltonianMonteCarlo(target, 0.4, num_leapfrog_steps=3), 10_000, 1),
    }  # fmt: skip
    rng = np.random.default_rng(seed)
    state = tf.constant(2 * rng.normal(size=[8, size]), tf.float32)  # wider than the posterior
    draws = {NORMAL: bijector.forward(np.float32(rng.normal(size=[5000, 1, size]))).numpy()}
    table: Scores = {NORMAL: {}}
    for name, (kernel, num_steps, thinning) in kernels.items():
        num_draws = max(num_steps // thinning // shortening, 500)
        result = sgmcmc.sample_chain(
            kernel,
            state,
            num_draws,
            seed=seed,
            num_burnin_steps=num_draws * thinning // 10,
            num_steps_between_results=thinning - 1,
        )
        if not result.is_complete:
            raise KeyboardInterrupt
        draws[name] = bijector.forward(tf.constant(result.states)).numpy().astype(np.float64)
        row, seconds = sgmcmc.report({"weights": draws[name]}).rows[0], result.timings.seconds
        table[name] = {"R-hat": row.rhat, "seconds": seconds, "ESS": row.num_draws}
        table[name]["s / ESS"] = seconds / row.num_draws
    mean, covariance = moments(draws[REFERENCE])
    for name, x in draws.items():
        e1 = sgmcmc.diagnostics.relative_mean_error(moments(x)[0], mean)
        e2 = sgmcmc.diagnostics.relative_covariance_error(moments(x)[1], covariance)
        table[name] = {"E1": e1, "E2": e2, **table[name]}
    return table, draws


def moments(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and covariance of draws `[draws, chains, D]`."""
    return draws.mean(axis=(0, 1)), np.cov(draws.reshape(-1, draws.shape[-1]), rowvar=False)


def sample_network(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    seed: int,
    shortening: int,
) -> Scores:
    """Goes on from Adam's weights by Adam and by SGLD; returns their scores on test data."""
    keras.utils.set_random_seed(seed)
    (x, y), (x_test, y_test) = train, test
    num_steps = -(-len(x) // 32)  # of an epoch
    epochs = {"before": 40 // shortening, "after": 120 // shortening}

    def make_model() -> keras.Model:
        layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
        model = keras.Sequential([keras.Input(x.shape[1:]), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, steps_per_execution=num_steps, jit_compile=True)
        return model

    adam, sampled = make_model(), make_model()
    adam.fit(x, y, batch_size=32, epochs=epochs["before"], verbose=0)
    sampled.set_weights(adam.get_weights())
    adam.fit(x, y, batch_size=32, epochs=epochs["after"], verbose=0)
    sampler = sgmcmc.keras.SamplerCallback(
        lambda target: sgmcmc.SGLD(target, step_size=0.8 / len(x), temperature=0.03),
        prior=tfp.distributions.Normal(0.0, 1.0),
        collect=sgmcmc.keras.Collect(
            num_steps * epochs["after"] // 3, max(num_steps * epochs["after"] // 450, 1) - 1
        ),
        seed=seed,
    )
    sampled.fit(x, y, batch_size=32, epochs=epochs["after"], verbose=0, callbacks=[sampler])
    predictions = {
        "Adam": keras.ops.softmax(adam.predict(x_test, verbose=0)).numpy(),
        "posterior average": sampler.predict(x_test).mean,
    }
    table: Scores = {}
    for name, p in predictions.items():
        correct = p.argmax(axis=1) == y_test
        loss = -np.log(p[np.arange(len(p)), y_test]).mean()
        ece = sgmcmc.keras.expected_calibration_error(p.max(axis=1), correct, num_bins=10)
        table[name] = {"accuracy": float(correct.mean()), "NLL": float(loss), "ECE": ece}
    return table


def table_of(scores: Scores) -> tables.Table:
    """Returns a row for each name, with blanks for scores that a row lacks."""
    columns = max(scores.values(), key=len)
    rows = [
        (name, *(plain(row[c]) if c in row else "" for c in columns))
        for name, row in scores.items()
    ]
    return tables.Table("", ("", *(TITLES.get(c, c) for c in columns)), rows)


def plain(x: float) -> str:
    """Returns three digits, and large numbers without an exponent."""
    return f"{x:,.0f}" if x >= 100 else f"{x:#.3g}"


def report_page(posterior: Scores, classifier: Scores, picture: bytes) -> str:
    """Returns an HTML page with both tables and the picture, which needs no other file."""
    image = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    return f"""<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>tfp_sgmcmc: two posteriors of handwritten digits</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font-family: sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
img {{ max-width: 100%; }}
@media (prefers-color-scheme: dark) {{
  img {{ filter: invert(0.93) hue-rotate(180deg); }} /* turns light and dark, not the hue */
}}
</style>
<h1>Two posteriors of handwritten digits</h1>
<h2>A posterior, and how right each sampler is</h2>
<p>{html.escape(POSTERIOR)}</p>
{tables.as_html(table_of(posterior))}
<p><img src="{image}" alt="Marginals of six weights by SGLD and by HMC"></p>
<h2>A network that says how sure it is</h2>
<p>{html.escape(CLASSIFIER)}</p>
{tables.as_html(table_of(classifier))}
<p>Next: <a href="https://tfp-sgmcmc.github.io/tfp-sgmcmc/">your own model</a>.</p>
</html>
"""


def plot_marginals(draws: dict[str, np.ndarray]) -> Figure:
    """Draws histograms of the six weights with the largest posterior means."""
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    figure.suptitle("Marginal posteriors of six weights, 1437 digits")
    panels = figure.subplots(2, 3)
    largest = np.argsort(-np.abs(moments(draws[REFERENCE])[0]))[:6]
    for axes, i in zip(panels.flat, largest, strict=True):
        bins = np.linspace(*np.quantile(draws[REFERENCE][..., i], [0.0005, 0.9995]), 50)
        for name in (REFERENCE, "SGLD", NORMAL):
            kind = "stepfilled" if name == REFERENCE else "step"
            values = draws[name][..., i].ravel()
            axes.hist(values, bins, density=True, histtype=kind, linewidth=1.5, label=name)
        axes.set(xlabel=f"weight {i}", ylabel="density")
        axes.locator_params(axis="x", nbins=5)
    handles = panels[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, frameon=False)
    return figure
