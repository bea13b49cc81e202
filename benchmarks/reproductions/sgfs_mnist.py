"""Stochastic gradient Fisher scoring of a small network, through `model.fit`, against SGLD and SGD.

After Ahn, Korattikara & Welling, Bayesian posterior sampling via stochastic gradient Fisher
scoring, ICML 2012, section 5.2.2: the ten digits of MNIST in a random projection to 20 dimensions,
a network with 30 logistic hidden units (940 parameters), minibatches of n = 2000, and the test
error after equal epochs of SGFS with the full (SGFS-f) and the diagonal (SGFS-d) covariance of the
scores, of SGLD and of SGD.

The paper's other network, on the data set HHP, is not here, because its data cannot be had.

The prior is N(0, 1) on every parameter, as a regulariser, so that all four have the same log
posterior. A sampler predicts by the mean of the class probabilities over the second half of its
states so far, of which five an epoch are kept. SGD predicts by its current state. 10,000 of the
training examples form the validation part. Each method chooses its step size from a grid by its
validation error after the last epoch, for one start. Table and figure have the test errors at that
step size, from this start and from another one. V of SGFS-f comes from groups of ten examples,
which does not change its mean and saves nine tenths of its cost. With a seed, `fit` takes arrays in
one order in all epochs, for all methods.

Step sizes are given as learning rates for the mean of the log posterior over examples. The rate of
a sampler is epsilon N / 2, so that SGFS with B = I has alpha^2 = 2 N / rate.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np
from sklearn.random_projection import GaussianRandomProjection

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.digits import Digits, digits
from benchmarks.common.second_half import wrong_so_far
from benchmarks.reproductions.experiment import Claim, Experiment, main, subplots
from tfp_sgmcmc.covariance import Full, Solver

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROJECTIONS, HIDDEN, CLASSES = 20, 30, 10
STATES_AN_EPOCH = 5


class Errors(NamedTuple):
    """Errors of one run after each epoch, `[epochs]`."""

    validation: np.ndarray
    test: np.ndarray


class Curve(NamedTuple):
    """A method at its chosen learning rate."""

    learning_rate: float  # the chosen learning rate
    # Validation error after the last epoch, by learning rate; infinite if a chain became infinite.
    validation: dict[float, float]
    test: np.ndarray  # test errors, [seeds, epochs]


def projected_digits() -> Digits:
    """Returns all parts in one random projection, `[rows, 20]`."""
    data = digits()
    project = GaussianRandomProjection(PROJECTIONS, random_state=0).fit(data.x).transform
    parts = {name: getattr(data, name) for name in ("x", "x_valid", "x_test")}
    return data._replace(**{name: project(x).astype(np.float32) for name, x in parts.items()})


def network(num_examples: int, learning_rate: float, steps: int, seed: int) -> keras.Model:
    """Returns a model compiled for SGD. The regularisers are the prior N(0, 1), divided by N."""
    keras.utils.set_random_seed(seed)
    regularizer = keras.regularizers.L2(0.5 / num_examples)
    prior = {"kernel_regularizer": regularizer, "bias_regularizer": regularizer}
    model = keras.Sequential(
        [
            keras.Input([PROJECTIONS]),
            keras.layers.Dense(HIDDEN, activation="sigmoid", **prior),
            keras.layers.Dense(CLASSES, **prior),
        ]
    )
    model.compile(
        keras.optimizers.SGD(learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=steps,
        jit_compile=True,
    )
    return model


class Method(NamedTuple):
    """A way to train or sample."""

    grid: tuple[float, ...]  # learning rates to choose from
    single: float  # the rate with `single_rates`
    # (target, epsilon) -> kernel; None stands for SGD
    kernel: Callable[[Any, float], Any] | None = None
    # Groups of a minibatch whose scores replace those of its examples.
    num_groups: int | None = None


# Under XLA on a CPU, this is much faster than conjugate gradients or a factorisation at each step.
FULL = Full(solver=Solver("lagged_cholesky", tolerance=1e-3, refactor_every=50))
SGFS = functools.partial(sgmcmc.SGFS, num_estimation_steps=0)  # as in the paper
METHODS = {
    "SGD": Method((1.0, 3.0, 10.0), 3.0),
    "SGLD": Method((1.0, 3.0, 10.0), 3.0, sgmcmc.SGLD),
    "SGFS-d": Method((10.0, 30.0), 10.0, functools.partial(SGFS, covariance="diag")),
    "SGFS-f": Method((10.0, 30.0), 10.0, functools.partial(SGFS, covariance=FULL), 200),
}


def errors(
    data: Digits, method: Method, learning_rate: float, num_epochs: int, batch_size: int, seed: int
) -> Errors:
    """Returns the errors of one run, which are infinite if the chain became infinite."""
    num_examples = len(data.x)
    steps = -(-num_examples // batch_size)
    model = network(num_examples, learning_rate, steps, seed)
    parts = (data.x_valid, data.y_valid), (data.x_test, data.y_test)
    if method.kernel is None:
        found: list[list[float]] = []

        def evaluate(epoch: int, logs: Any) -> None:
            found.append([_error(model.predict_on_batch(x), y) for x, y in parts])

        callback = keras.callbacks.LambdaCallback(on_epoch_end=evaluate)
        model.fit(data.x, data.y, batch_size, num_epochs, verbose=0, callbacks=[callback])
        return Errors(*np.array(found).T)
    kernel, epsilon = method.kernel, 2 * learning_rate / num_examples
    sampler = sgmcmc.keras.SamplerCallback(
        lambda target: kernel(target, epsilon),
        prior=None,  # the regularisers are the prior
        collect=sgmcmc.keras.Collect(0, steps // STATES_AN_EPOCH - 1),
        seed=seed,
        num_groups=method.num_groups,
        independent_batches=False,  # by epochs
        num_examples=num_examples,
    )
    try:
        model.fit(data.x, data.y, batch_size, num_epochs, verbose=0, callbacks=[sampler])
    except sgmcmc.NonFiniteChainError:
        return Errors(*np.full([len(parts), num_epochs], np.inf))
    return Errors(
        *(averaged_errors(sampler.posterior.outputs(x, len(x)), y, num_epochs) for x, y in parts)
    )


def averaged_errors(outputs: np.ndarray, y: np.ndarray, num_epochs: int) -> np.ndarray:
    """Returns the errors of the mean over the second half of the states so far, after each epoch.

    `outputs` are the class probabilities by each state, `[states, rows, classes]`.
    """
    ends = len(outputs) * np.arange(1, num_epochs + 1) // num_epochs
    return wrong_so_far(outputs, y).mean(axis=1)[ends - 1]


def _error(scores: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean(scores.argmax(axis=-1) != y))


def run(
    *,
    num_epochs: int = 30,
    batch_size: int = 2_000,
    num_seeds: int = 2,
    single_rates: bool = False,
) -> dict[str, Curve]:
    """Chooses each method's learning rate with seed 0, and repeats that with the other seeds.

    Args:
      num_epochs: epochs of each run.
      batch_size: n.
      num_seeds: number of starts.
      single_rates: gives each method one rate of its grid, in place of a choice.
    """
    data = projected_digits()
    curves = {}
    for name, method in METHODS.items():
        if single_rates:
            method = method._replace(grid=(method.single,))
        runs = {
            rate: errors(data, method, rate, num_epochs, batch_size, seed=0) for rate in method.grid
        }
        validation = {rate: float(e.validation[-1]) for rate, e in runs.items()}
        chosen = min(validation, key=lambda rate: validation[rate])
        test = [runs[chosen].test]
        for seed in range(1, num_seeds):
            test.append(errors(data, method, chosen, num_epochs, batch_size, seed).test)
        curves[name] = Curve(chosen, validation, np.array(test))
    return curves


def show(curves: dict[str, Curve]) -> None:
    for name, curve in curves.items():
        cells = (f"{rate:g}: {error:.4f}" for rate, error in curve.validation.items())
        print(f"{name}, validation error by learning rate: {', '.join(cells)}")
    num_epochs = next(iter(curves.values())).test.shape[1]
    epochs = sorted({max(1, num_epochs * part // 8) for part in (1, 2, 4, 8)})
    command_line.print_table(
        {"test error": "", "rate": "g", "seeds": "d"} | {f"epoch {e}": "" for e in epochs},
        [
            (name, c.learning_rate, len(c.test), *(_cell(c.test[:, e - 1]) for e in epochs))
            for name, c in curves.items()
        ],
    )


def _cell(values: np.ndarray) -> str:
    """Returns mean and range over seeds."""
    return f"{values.mean():.4f} ({values.min():.4f}-{values.max():.4f})"


def claims(curves: dict[str, Curve]) -> list[Claim]:
    final = {name: curve.test[:, -1] for name, curve in curves.items()}
    cells = ", ".join(f"{name} {_cell(values)}" for name, values in final.items())
    result = [
        Claim(
            f"after equal epochs {ours} has a smaller test error than SGLD and SGD",
            f"{cells}; mean and range over starts",
            bool(all(np.all(final[ours] < final[other]) for other in ("SGLD", "SGD"))),
        )
        for ours in ("SGFS-d", "SGFS-f")
    ]
    result.append(
        Claim(
            "SGFS-f has the smallest test error of all",
            cells,
            bool(min(final, key=lambda name: final[name].mean()) == "SGFS-f"),
        )
    )
    return result


def plot(curves: dict[str, Curve]) -> Figure:
    """Draws means and ranges of test errors over seeds against epochs."""
    figure, axes = subplots()
    axis = axes[0, 0]
    for name, curve in curves.items():
        epochs = np.arange(1, curve.test.shape[1] + 1)
        axis.plot(epochs, curve.test.mean(axis=0), label=f"{name}, rate {curve.learning_rate:g}")
        axis.fill_between(epochs, curve.test.min(axis=0), curve.test.max(axis=0), alpha=0.2)
    axis.set(xlabel="epochs", ylabel="test error")
    axis.legend(fontsize=6)
    return figure


EXPERIMENT = Experiment(
    paper="Ahn, Korattikara & Welling 2012",
    figure="figure 3, MNIST",
    title="a small network on MNIST, SGFS against SGLD and SGD",
    run=run,
    quick={"num_epochs": 4, "num_seeds": 1, "single_rates": True},
    show=show,
    claims=claims,
    plot=plot,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
