"""SGLD on a9a with a Laplace prior: learning in sweeps, and the exact posterior.

After Welling & Teh, Bayesian learning via stochastic gradient Langevin dynamics, ICML 2011, section
5.2 and figure 3: logistic regression on UCI Adult as a9a with a constant column (124 dimensions),
prior Laplace(0, 1), minibatches of 10, 80 % for training, step sizes a (b + t)^-gamma, 50 random
splits. There are two questions:

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

The paper has no figure of the second question. The full form takes about ten minutes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import tensorflow as tf

import datasets
import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.chains import draws
from benchmarks.common.logistic import accuracy, as_batch, laplace_log_prior, log_likelihood
from benchmarks.common.reference import Reference, exact_posterior, logistic_laplace
from benchmarks.reproductions.experiment import Claim, Experiment, main, subplots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The Gaussian with the variance of Laplace(0, 1), 2, makes Laplace's approximation smooth.
PRIOR_PRECISION = 0.5


class Learning(NamedTuple):
    """Chains on their way to their plateaus, one for each split."""

    sweeps: np.ndarray  # sweeps through the training data so far, [records]
    accuracy: np.ndarray  # test accuracy of the averaged predictions, [splits, records]
    log_joint: np.ndarray  # log p(theta, data) / N at the state of the record, [splits, records]
    accuracy_at: np.ndarray  # sweeps until the accuracy reaches its plateau, [splits]
    log_joint_at: np.ndarray  # sweeps until the log joint reaches its plateau, [splits]


class Posterior(NamedTuple):
    """The exact posterior, the errors of SGLD, and its passes over the data."""

    reference: Reference
    mean_error: float
    covariance_error: float
    passes: float


class Result(NamedTuple):
    """Both parts; the second is None if it was left out."""

    learning: Learning
    posterior: Posterior | None


def run(
    *,
    num_splits: int = 50,
    batch_size: int = 10,
    first_step_size: float = 3e-5,
    last_step_size: float = 3e-6,
    num_sweeps: int = 20,
    learning_only: bool = False,
    seed: int = 0,
) -> Result:
    """Runs a chain for each split, and compares a long chain with the exact posterior.

    Args:
      learning_only: leaves out the comparison.
      seed: seed of the first split; the next ones follow.
    """
    step_sizes = first_step_size, last_step_size
    found = [learning(batch_size, step_sizes, num_sweeps, seed + i) for i in range(num_splits)]
    together = Learning(found[0].sweeps, *(np.stack(x) for x in list(zip(*found, strict=True))[1:]))
    return Result(together, None if learning_only else posterior(seed=seed))


def split_of(seed: int) -> datasets.Dataset:
    """Returns a random split with a constant column."""
    data = datasets.a9a(split="random", seed=seed)
    x_train, x_test = (
        np.pad(x, [(0, 0), (1, 0)], constant_values=1) for x in (data.x_train, data.x_test)
    )
    return data._replace(x_train=x_train, x_test=x_test)


def learning(
    batch_size: int, step_sizes: tuple[float, float], num_sweeps: int, seed: int
) -> Learning:
    """Runs one chain from zero, recorded every fiftieth of a sweep; see `run`."""
    x, y, x_test, y_test = split_of(seed)
    target = sgmcmc.MinibatchLogProb(
        laplace_log_prior, log_likelihood, as_batch(x, y), batch_size, reshuffle="epoch"
    )
    every = max(1, len(x) // batch_size // 50)
    num_records = num_sweeps * len(x) // batch_size // every
    schedule = sgmcmc.schedules.PolynomialDecay.from_endpoints(
        *step_sizes, num_steps=num_records * every
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
    at_ten = min(np.searchsorted(sweeps, 10.0), num_records) - 1
    return Learning(
        sweeps,
        accuracies,
        np.array(log_joint),
        _first(sweeps, accuracies >= accuracies[at_ten] - 0.005),
        _first(sweeps, np.array(log_joint) >= first + 0.99 * (plateau - first)),
    )


def _first(sweeps: np.ndarray, reached: np.ndarray) -> np.ndarray:
    return np.array(sweeps[np.argmax(reached)] if reached.any() else np.inf)


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
    x, y, _, _ = split_of(seed)
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


def claims(result: Result) -> list[Claim]:
    learned, compared = result
    accuracy_at, log_joint_at = (
        f"after {np.median(at):.2f} sweeps (median of {len(at)} splits, {at.min():.2f} to "
        f"{at.max():.2f})"
        for at in (learned.accuracy_at, learned.log_joint_at)
    )
    last = learned.accuracy[:, -1]
    found = [
        Claim(
            "the accuracy is at its plateau in less than one sweep",
            f"{accuracy_at}; accuracy at the end {last.mean():.4f}, sd {last.std():.4f}",
            bool(np.median(learned.accuracy_at) < 1),
        ),
        Claim(
            "the log joint probability is at its plateau in less than ten sweeps",
            log_joint_at,
            bool(np.median(learned.log_joint_at) < 10),
        ),
    ]
    if compared is not None:
        found.append(
            Claim(
                "SGLD against the exact posterior",
                f"preconditioned, {compared.passes:.0f} passes: E1 {compared.mean_error:.4f}, "
                f"E2 {compared.covariance_error:.4f}",
                None,
                f"the reference's own error of the mean is {compared.reference.mean_floor:.4f}",
            )
        )
    return found


def show(result: Result) -> None:
    learned, compared = result
    curves = learned.accuracy, learned.log_joint
    records = sorted({int(np.searchsorted(learned.sweeps, t)) for t in (0.1, 0.3, 1, 3, 10)})
    shown = [i for i in records if i < len(learned.sweeps)] + [len(learned.sweeps) - 1]
    command_line.print_table(
        {"sweeps": ".2f", "accuracy": ".4f", "sd": ".4f", "log joint / N": ".4f", "sd ": ".4f"},
        [
            (
                learned.sweeps[i],
                *(f(x[:, i]) for x in curves for f in (np.mean, np.std)),
            )
            for i in shown
        ],
    )
    if compared is not None:
        print(compared.reference)


def plot(result: Result) -> Figure:
    """Draws log joint and accuracy against sweeps, as in figure 3 of the paper."""
    learned = result.learning
    figure, ((left, right),) = subplots(1, 2)
    for axis, values, name in (
        (left, learned.log_joint, "log joint probability / N"),
        (right, learned.accuracy, "test accuracy, averaged predictions"),
    ):
        middle, spread = values.mean(axis=0), values.std(axis=0)
        axis.semilogx(learned.sweeps, middle)
        axis.fill_between(learned.sweeps, middle - spread, middle + spread, alpha=0.3)
        axis.set(xlabel="sweeps (mean and sd over splits)", ylabel=name)
    return figure


EXPERIMENT = Experiment(
    paper="Welling & Teh 2011",
    figure="figure 3",
    title="a9a with a Laplace prior",
    run=run,
    quick={"num_splits": 4, "num_sweeps": 12, "learning_only": True},
    show=show,
    claims=claims,
    plot=plot,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
