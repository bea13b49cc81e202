"""SGLD through `model.fit` against the exact posterior: MNIST 7 v 9 in a random projection.

The posterior of `mnist_7v9` as a Keras model: one `Dense` unit without bias on 50 random
projections and a constant, prior N(0, 1) on every weight. `SamplerCallback` runs as many chains,
with as many steps of the same kernel, as `tfp.mcmc.sample_chain` does there. Both are compared with
one long run of full-data HMC.

The minibatches differ. Here every example is taken once in an epoch (24 batches of 500 and one of
214). The target of `mnist_7v9` draws each minibatch independently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import datasets
import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.reference import Reference
from benchmarks.reproductions import mnist_7v9
from benchmarks.reproductions.experiment import Claim, Experiment, main
from benchmarks.reproductions.mnist_7v9 import Errors
from benchmarks.reproductions.page import BEYOND

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_RATIO = 1.5  # of two errors E2 that count as equal


class Result(NamedTuple):
    """The reference, and the errors of SGLD through `sample_chain` and through `fit`."""

    reference: Reference
    sample_chain: list[Errors]
    fit: list[Errors]


def run(
    *,
    batch_size: int = 500,
    step_size: float = 4e-5,
    num_chains: int = 64,
    num_epochs: int = 1_800,
    num_burnin_epochs: int = 200,
    thinning: int = 20,
    num_reference_results: int = 600,
    seed: int = 0,
) -> Result:
    """Samples by HMC, by `sample_chain` and by `fit`."""
    x, y, _, _ = datasets.mnist_7v9()
    steps = -(-len(x) // batch_size)  # of an epoch
    num_burnin_steps = num_burnin_epochs * steps
    reference, errors = mnist_7v9.run(
        batch_size=batch_size,
        step_size=step_size,
        num_chains=num_chains,
        num_steps=num_epochs * steps - num_burnin_steps,
        num_burnin_steps=num_burnin_steps,
        thinning=thinning,
        num_reference_results=num_reference_results,
        seed=seed,
    )

    unit = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input(x.shape[1:]), unit])
    model.compile(
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        steps_per_execution=steps,
        jit_compile=True,
    )
    sampler = sgmcmc.keras.SamplerCallback(
        lambda target: sgmcmc.SGLD(target, step_size),
        prior=tfp.distributions.Normal(0.0, 1.0),
        collect=sgmcmc.keras.Collect(num_burnin_steps, thinning - 1),
        chains=sgmcmc.keras.Chains(num_chains, "model"),
        num_examples=len(x),
        seed=seed,
    )
    batches = shuffled_batches(x, y[:, np.newaxis], batch_size, seed)
    model.fit(batches, epochs=num_epochs, shuffle=False, verbose=0, callbacks=[sampler])
    samples = np.squeeze(sampler.samples[0], axis=-1)  # [num_results, num_chains, D]
    by_fit = mnist_7v9.errors_on_the_way(samples, reference, num_burnin_steps, thinning, steps)
    return Result(reference, errors, by_fit)


def shuffled_batches(x: np.ndarray, y: np.ndarray, batch_size: int, seed: int) -> tf.data.Dataset:
    """Returns batches in another order in each epoch.

    If `fit` is given the arrays, it repeats one order in all epochs once
    `keras.utils.set_random_seed` was called. The short last batch counts as much as the others, so
    its examples would then have 2.3 times their weight in every epoch.
    """
    rows = tf.data.Dataset.range(len(x)).shuffle(len(x), seed=seed).batch(batch_size)
    return rows.map(lambda i: (tf.gather(x, i), tf.gather(y, i))).prefetch(2)


def show(result: Result) -> None:
    print(result.reference)
    command_line.print_table(
        {"sample_chain: passes": ".0f", "E1": ".4f", "E2": ".4f"}
        | {"fit: epochs": ".0f", "E1 ": ".4f", "E2 ": ".4f"},
        [(*a, *b) for a, b in zip(result.sample_chain, result.fit, strict=True)],
    )


def plot(result: Result) -> Figure:
    errors = {"sample_chain": result.sample_chain, "fit": result.fit}
    return mnist_7v9.plot_errors(errors, result.reference)


def claims(result: Result) -> list[Claim]:
    ratio = result.fit[-1].covariance_error / result.sample_chain[-1].covariance_error
    equal = 1 / MOST_RATIO < ratio < MOST_RATIO
    noise = "minibatches by epochs have less noise in slow directions than independent ones"
    return [
        mnist_7v9.claim("SGLD in `model.fit`", result.fit, result.reference),
        mnist_7v9.claim("SGLD in `sample_chain`", result.sample_chain, result.reference),
        Claim(
            f"with equal steps both have the same E2 within a factor of {MOST_RATIO}",
            f"E2 of `fit` is {ratio:.2f} times that of `sample_chain`",
            equal,
            "" if equal else noise,
        ),
    ]


EXPERIMENT = Experiment(
    paper=BEYOND,
    figure="posterior of Ahn et al. 2012, section 5.1, in Keras",
    title="MNIST 7 v 9, SGLD in `model.fit` and in `sample_chain`",
    run=run,
    quick={"num_epochs": 180, "num_burnin_epochs": 60, "num_reference_results": 100},
    show=show,
    claims=claims,
    plot=plot,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
