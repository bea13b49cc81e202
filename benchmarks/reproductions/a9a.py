"""SGLD on a9a with a Laplace prior: learning in sweeps, and the exact posterior.

After Welling & Teh, Bayesian learning via stochastic gradient Langevin dynamics, ICML 2011, section
5.2: logistic regression on UCI Adult as a9a, prior Laplace(0, 1), minibatches of 10, 80 % for
training, step sizes a (b + t)^-gamma. There are two questions:

1. `learning`: after how many sweeps through the training data do the test accuracy (of predictive
   probabilities averaged over all states so far) and the log joint probability reach their
   plateaus? The plateau of the accuracy is its value after ten sweeps less 0.5 points, which is one
   standard error of an accuracy of 85 % on the 6513 test examples. The plateau of the log joint is
   99 % of its rise from the initial state to the mean of the second half of the run, which takes
   twenty sweeps.
2. `posterior`: how far is the posterior mean from the exact one? The binary features come in groups
   in which exactly one feature is 1. So the likelihood is flat in several directions, and only the
   prior, with scale 1, bounds the posterior there. Its narrowest direction has a scale of 0.007. A
   step that is stable without preconditioner mixes over more than 10^4 steps. With the covariance
   of Laplace's approximation as preconditioner, and minibatches of 500, the chain mixes quickly.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import tensorflow as tf

import datasets
import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.chains import draws
from benchmarks.common.environment import describe
from benchmarks.common.logistic import accuracy, as_batch, laplace_log_prior, log_likelihood
from benchmarks.common.reference import Reference, exact_posterior, logistic_laplace

# The Gaussian with the variance of Laplace(0, 1), 2, makes Laplace's approximation smooth.
PRIOR_PRECISION = 0.5


class Learning(NamedTuple):
    """A chain on its way to its plateau; arrays have one entry for each record."""

    sweeps: np.ndarray  # sweeps through the training data so far
    accuracy: np.ndarray  # test accuracy of the averaged predictions
    log_joint: np.ndarray  # log p(theta, data) / N at the state of the record
    accuracy_at: float  # sweeps until the accuracy reaches its plateau
    log_joint_at: float  # sweeps until the log joint reaches its plateau


class Posterior(NamedTuple):
    """The exact posterior, the errors of SGLD, and its passes over the data."""

    reference: Reference
    mean_error: float
    covariance_error: float
    passes: float


def learning(
    *,
    batch_size: int = 10,
    first_step_size: float = 3e-5,
    last_step_size: float = 3e-6,
    num_sweeps: int = 20,
    seed: int = 0,
) -> Learning:
    """Runs one chain from zero, recorded every fiftieth of a sweep."""
    x, y, x_test, y_test = datasets.a9a(split="random", seed=seed)
    target = sgmcmc.MinibatchLogProb(
        laplace_log_prior, log_likelihood, as_batch(x, y), batch_size, reshuffle="epoch"
    )
    every = max(1, len(x) // batch_size // 50)
    num_records = num_sweeps * len(x) // batch_size // every
    schedule = sgmcmc.schedules.PolynomialDecay.from_endpoints(
        first_step_size, last_step_size, num_steps=num_records * every
    )
    initial = tf.zeros(x.shape[1:])

    states = draws(sgmcmc.SGLD(target, schedule), initial, [seed, 0], num_records, every)
    log_joints = tf.function(target, jit_compile=True)(tf.concat([initial[None], states], axis=0))
    first, *log_joint = log_joints.numpy() / len(x)
    probabilities = 1 / (1 + np.exp(-states @ x_test.T))
    averaged = np.cumsum(probabilities, axis=0) / np.arange(1, num_records + 1)[:, None]
    accuracies = accuracy(averaged - 0.5, y_test)
    sweeps = np.arange(1, num_records + 1) * every * batch_size / len(x)
    plateau = np.mean(log_joint[num_records // 2 :])
    return Learning(
        sweeps,
        accuracies,
        np.array(log_joint),
        _first(sweeps, accuracies >= accuracies[np.searchsorted(sweeps, 10.0) - 1] - 0.005),
        _first(sweeps, np.array(log_joint) >= first + 0.99 * (plateau - first)),
    )


def _first(sweeps: np.ndarray, reached: np.ndarray) -> float:
    return float(sweeps[np.argmax(reached)]) if reached.any() else float("inf")


def posterior(
    *,
    batch_size: int = 500,
    step_size: float = 0.02,
    num_chains: int = 64,
    num_steps: int = 10_000,
    num_reference_results: int = 400,
    seed: int = 0,
) -> Posterior:
    """Runs preconditioned SGLD from the mode, with a tenth more steps as burn-in, and HMC."""
    x, y, _, _ = datasets.a9a(split="random", seed=seed)
    target = sgmcmc.MinibatchLogProb(
        laplace_log_prior, log_likelihood, as_batch(x, y), batch_size, shared_batch=True
    )
    mean, covariance = logistic_laplace(x, y, PRIOR_PRECISION)
    reference = exact_posterior(
        target,
        (mean, covariance),
        num_results=num_reference_results,
        step_size=0.2,
        num_leapfrog_steps=8,
        seed=seed,
    )
    preconditioner = sgmcmc.preconditioners.FullMatrix(covariance)
    initial = tf.constant(np.tile(mean, [num_chains, 1]), tf.float32)

    kernel = sgmcmc.SGLD(target, step_size, preconditioner=preconditioner)
    samples = draws(kernel, initial, [seed, 3], num_steps // 10, 10, num_steps // 10)
    return Posterior(reference, *reference.errors(samples), 1.1 * num_steps * batch_size / len(x))


def plot(result: Learning, path: str) -> None:
    """Draws log joint and accuracy against sweeps, as in figure 3 of the paper."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(result.sweeps, result.log_joint)
    left.set(xlabel="sweeps", ylabel="log joint probability / N")
    right.plot(result.sweeps, result.accuracy)
    right.set(xlabel="sweeps", ylabel="test accuracy, averaged predictions")
    figure.savefig(path)


def main() -> None:
    parser = command_line.parser(__doc__, learning)
    parser.add_argument("--learning-only", action="store_true")
    arguments = vars(parser.parse_args())
    output, learning_only = arguments.pop("output"), arguments.pop("learning_only")
    print(describe())
    start = time.perf_counter()
    learned = learning(**arguments)
    shown = [np.argmin(np.abs(learned.sweeps - s)) for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20)]
    command_line.print_table(
        {"sweeps": ".2f", "accuracy": ".4f", "log joint / N": ".4f"},
        [(learned.sweeps[i], learned.accuracy[i], learned.log_joint[i]) for i in shown],
    )
    print(f"plateau of the accuracy after {learned.accuracy_at:.2f} sweeps")
    print(f"plateau of the log joint after {learned.log_joint_at:.2f} sweeps")
    print(f"{time.perf_counter() - start:.0f} s", flush=True)
    if not learning_only:
        result = posterior(seed=arguments["seed"])
        print(result.reference)
        print(
            f"preconditioned SGLD, {result.passes:.0f} passes: E1 {result.mean_error:.4f}, "
            f"E2 {result.covariance_error:.4f}"
        )
        print(f"{time.perf_counter() - start:.0f} s")
    if output:
        plot(learned, output)


if __name__ == "__main__":
    main()
