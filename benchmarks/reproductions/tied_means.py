"""SGLD on a mixture with tied means: its posterior, its noise, and what to make of its draws.

After Welling & Teh, Bayesian learning via stochastic gradient Langevin dynamics, ICML 2011, section
5.1, figures 1 and 2: theta1 ~ N(0, 10), theta2 ~ N(0, 1), and x ~ 1/2 N(theta1, 2) + 1/2 N(theta1 +
theta2, 2), where the second numbers are variances. The data are 100 draws at theta = (0, 1). The
posterior can have a second mode at (1, -1). The paper's data are not published; ours are the first
of eight draws whose posterior has both modes as clearly as its figure. Minibatches are single
examples, and each sweep takes every example once. The step size falls from 0.01 to 0.0001 as
a (b + t)^-0.55 over 10,000 sweeps.

The paper runs one chain, and here eight independent chains give the errors. The exact posterior is
a sum over a grid. For the rejection probability the chains run again, with step sizes that fall
exponentially from 1e-2 to 1e-8, as in the paper. Three parts follow the paper's sections 4 and
5.3.1, for which it has no figure: the sampling threshold alpha by iteration, which takes the scores
of all examples at the chain's state; weights by the step size; and draws past the threshold at
equal distances in time. The rejection probability is that of steps of SGLD from states that the
chain passed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.chains import draws
from benchmarks.reproductions.experiment import Claim, Experiment, main, subplots
from tfp_sgmcmc.diagnostics import (
    indices_by_distance,
    rejection_probability,
    sampling_threshold,
    weighted_expectation,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N = 100  # examples
DATA_SEED = 3  # the first whose posterior has two modes, near (0, 1) and (1, -1) as the paper's
VARIANCES, NOISE = np.array([10.0, 1.0]), 2.0  # of the prior and of an example
EDGES = np.linspace(-2.0, 3.0, 201), np.linspace(-4.0, 4.0, 321)  # of the grid
CELL = 10  # grid cells, in each direction, that a comparison of masses joins
CENTRES = tuple((e[1:] + e[:-1]) / 2 for e in EDGES)
LOOKS = 40  # iterations at which noise and rejections are measured
REPEATS = 20  # steps of SGLD from each of these states
LEAST_STEP_SIZE = 1e-8  # of the chains that measure rejections
THRESHOLD = 0.3  # alpha below which the chain counts as sampling
DISTANCE = 0.1  # mixing distance: twice the relaxation time within a mode


class Look(NamedTuple):
    """Measurements at states along the chains, with one entry for each iteration."""

    steps: NDArray[np.int64]
    step_sizes: NDArray[np.float64]
    gradient_variances: NDArray[np.float64]  # of the gradient noise in a step, [looks, 2]
    alpha: NDArray[np.float64]  # sampling threshold, the mean over chains
    rejection: NDArray[np.float64]  # mean probability that the test would reject a step


class Result(NamedTuple):
    """Everything that was measured."""

    exact: NDArray[np.float64]  # masses of the grid's cells
    sampled: NDArray[np.float64]  # the same of the chains' draws, weighted by their step sizes
    look: Look
    falling: Look  # of the chains whose step sizes fall exponentially
    # By kind of average, P(theta2 < 0) and E(theta1) of each chain, [2, chains].
    estimates: dict[str, NDArray[np.float64]]
    num_used: dict[str, int]  # draws of a chain that the average uses


def log_prior(theta: tf.Tensor) -> tf.Tensor:
    return -0.5 * tf.reduce_sum(theta**2 / tf.constant(VARIANCES, theta.dtype), axis=-1)


def _joint(theta: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Returns the log joint probability of each example and its component, `[..., n, 2]`."""
    means = tf.stack([theta[..., 0], theta[..., 0] + theta[..., 1]], axis=-1)
    residual = x[..., tf.newaxis] - means[..., tf.newaxis, :]
    return -(residual**2) / (2 * NOISE)


def log_likelihood(theta: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_logsumexp(_joint(theta, x), axis=-1)


def scores(theta: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Returns the gradients of `log_likelihood`, `[..., n, 2]`."""
    shares = tf.nn.softmax(_joint(theta, x), axis=-1)
    means = tf.stack([theta[..., 0], theta[..., 0] + theta[..., 1]], axis=-1)
    pulls = shares * (x[..., tf.newaxis] - means[..., tf.newaxis, :]) / NOISE
    return tf.stack([tf.reduce_sum(pulls, axis=-1), pulls[..., 1]], axis=-1)


def examples(seed: int) -> NDArray[np.float64]:
    """Draws the data at theta = (0, 1)."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, 2, N) + generator.normal(size=N) * NOISE**0.5


def exact_masses(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the posterior masses of the grid's cells."""
    theta = np.stack(np.meshgrid(*CENTRES, indexing="ij"), axis=-1)
    log_p = -0.5 * np.sum(theta**2 / VARIANCES, axis=-1)
    for value in x:
        first, second = value - theta[..., 0], value - theta[..., 0] - theta[..., 1]
        log_p += np.logaddexp(-(first**2) / (2 * NOISE), -(second**2) / (2 * NOISE))
    mass = np.exp(log_p - log_p.max())
    return mass / mass.sum()


def distance_of_masses(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Returns the total variation distance of masses on joined cells."""
    rows, columns = (n // CELL for n in first.shape)

    def joined(masses: NDArray[np.float64]) -> NDArray[np.float64]:
        return masses.reshape(rows, CELL, columns, CELL).sum(axis=(1, 3))

    return float(np.abs(joined(first) - joined(second)).sum() / 2)


def run(
    *,
    num_sweeps: int = 10_000,
    num_chains: int = 8,
    first_step_size: float = 1e-2,
    last_step_size: float = 1e-4,
    data_seed: int = DATA_SEED,
    seed: int = 0,
) -> Result:
    """Runs all chains from the origin, with one draw after each sweep."""
    x = examples(data_seed)
    schedule = sgmcmc.schedules.PolynomialDecay.from_endpoints(
        first_step_size, last_step_size, num_sweeps * N
    )
    target = sgmcmc.MinibatchLogProb(
        log_prior, log_likelihood, x.astype(np.float32), batch_size=1, reshuffle="epoch"
    )
    start = np.zeros([num_chains, 2], np.float32)

    def states_of(schedule: Any, stream: int) -> NDArray[np.float32]:
        kernel = sgmcmc.SGLD(target, schedule)
        return draws(kernel, tf.constant(start), [seed, stream], num_sweeps, N)

    states = states_of(schedule, 0)
    steps = np.arange(1, num_sweeps + 1) * N - 1
    step_sizes = schedule(tf.constant(steps)).numpy().astype(np.float64)
    chosen = np.unique(np.geomspace(1, num_sweeps + 1, LOOKS).astype(int) - 1)
    look = _look(x, np.concatenate([start[np.newaxis], states]), chosen, schedule, seed)
    decay = LEAST_STEP_SIZE / first_step_size
    falls = keras.optimizers.schedules.ExponentialDecay(first_step_size, num_sweeps * N, decay)
    chosen = np.linspace(0, num_sweeps, LOOKS).astype(int)
    again = np.concatenate([start[np.newaxis], states_of(falls, 1)])
    falling = _look(x, again, chosen, falls, seed)
    is_below = look.alpha < THRESHOLD
    past = look.steps[np.argmax(is_below)] // N if is_below.any() else num_sweeps
    estimates, num_used = _estimates(states, step_sizes, past)
    weights = np.repeat(step_sizes, num_chains)
    sampled, _, _ = np.histogram2d(*states.reshape(-1, 2).T, bins=EDGES, weights=weights)
    return Result(exact_masses(x), sampled / weights.sum(), look, falling, estimates, num_used)


def _look(
    x: NDArray[np.float64],
    states: NDArray[np.float32],
    chosen: NDArray[np.int64],
    schedule: Callable[..., Any],
    seed: int,
) -> Look:
    """Measures noise and rejections at the `chosen` states along the chains, one for each sweep."""
    steps, theta = chosen * N, tf.constant(states[chosen], tf.float64)
    epsilon = schedule(tf.constant(steps)).numpy().astype(np.float64)
    single = sgmcmc.MinibatchLogProb(log_prior, log_likelihood, x, batch_size=1)
    of_all = scores(theta, tf.constant(x))
    c = N * (N - 1.0)  # N (N - n) / n with n = 1
    estimate = sgmcmc.GradientEstimate(theta, single(theta), of_all, noise_scale=c)
    column = epsilon[:, np.newaxis, np.newaxis]
    alpha = sampling_threshold(estimate, column, seed=seed)
    variances = column**2 / 4 * c * np.var(of_all.numpy(), axis=-2, ddof=1)
    kernel = sgmcmc.SGLD(single, column)
    results = kernel.bootstrap_results(theta)
    rejections = []
    for i in range(REPEATS):
        proposal, _ = kernel.one_step(theta, results, seed=[seed, i + 1])
        found = rejection_probability(single, theta, proposal, column)
        rejections.append(found.numpy().mean(axis=-1))
    return Look(
        steps,
        epsilon,
        variances.mean(axis=1),
        alpha.numpy().mean(axis=-1),
        np.mean(rejections, axis=0),
    )


def _estimates(
    states: NDArray[np.float32], step_sizes: NDArray[np.float64], past: int
) -> tuple[dict[str, NDArray[np.float64]], dict[str, int]]:
    """Returns averages over all draws and over those from number `past` on."""
    values = np.stack([states[..., 1] < 0, states[..., 0]], axis=1).astype(np.float64)
    late, late_sizes = values[past:], step_sizes[past:]
    found = {
        "plain mean": values.mean(axis=0),
        "weighted by the step size": weighted_expectation(values, step_sizes),
    }
    used = {"plain mean": len(values), "weighted by the step size": len(values)}
    if len(late):
        kept = indices_by_distance(late_sizes * N, DISTANCE)
        found["past the threshold, weighted"] = weighted_expectation(late, late_sizes)
        found["past the threshold, each mixing distance"] = late[kept].mean(axis=0)
        used["past the threshold, weighted"] = len(late)
        used["past the threshold, each mixing distance"] = len(kept)
    return found, used


def exact_values(masses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns P(theta2 < 0) and E(theta1)."""
    return np.array([masses[:, CENTRES[1] < 0].sum(), masses.sum(axis=1) @ CENTRES[0]])


def _with_error(values: NDArray[np.float64]) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5)


def claims(result: Result) -> list[Claim]:
    look, exact = result.look, exact_values(result.exact)
    mean, error = _with_error(result.estimates["weighted by the step size"][0])
    apart = distance_of_masses(result.sampled, result.exact)
    noise = look.gradient_variances.max(axis=1) / look.step_sizes
    crossed = int(look.steps[np.argmax(noise < 1)])
    below = look.alpha < THRESHOLD
    sizes, rejection = result.falling.step_sizes, result.falling.rejection
    at = [int(np.argmin(np.abs(np.log(sizes / e)))) for e in (1e-2, 1e-4, 1e-6, LEAST_STEP_SIZE)]
    found = [
        Claim(
            "figure 1: the draws of SGLD have both modes, as the true posterior",
            f"P(theta2 < 0) {mean:.3f} +- {error:.3f}, exact {exact[0]:.3f}; total variation on "
            f"cells of 0.25 {apart:.3f}",
            bool(abs(mean - exact[0]) < 3 * error and apart < 0.1),
        ),
        Claim(
            "figure 2, left: gradient noise dominates at first, injected noise later",
            f"largest variance ratio {noise[0]:.1f} at step {look.steps[0]}, below 1 from "
            f"step {crossed}, {noise[-1]:.3f} at the end",
            bool(noise[0] > 1 > noise[-1]),
        ),
        Claim(
            "figure 2, right: the rejection probability falls to zero with the step size, from "
            "1e-2 to 1e-8",
            ", ".join(f"{rejection[i]:.2g} at step size {sizes[i]:.1e}" for i in at),
            bool(np.all(np.diff(rejection[at]) < 0) and rejection[at[-1]] < 1e-6),
        ),
        Claim(
            "section 4.1: alpha falls below 1, where sampling begins",
            f"alpha {look.alpha[0]:.1f} at first, {look.alpha[-1]:.3f} at the end; below "
            + (
                f"{THRESHOLD} from step {look.steps[np.argmax(below)]}"
                if below.any()
                else f"{THRESHOLD} never"
            ),
            bool(look.alpha[0] > 1 > look.alpha[-1]),
        ),
    ]
    for name, values in result.estimates.items():
        ours = [f"{m:.3f} +- {e:.3f}" for m, e in map(_with_error, values)]
        text = f"P(theta2 < 0) {ours[0]}, E(theta1) {ours[1]}; exact {exact[0]:.3f}, {exact[1]:.3f}"
        found.append(Claim(name, f"{text}; {result.num_used[name]} draws of a chain", None))
    return found


def show(result: Result) -> None:
    look = result.look
    rows = zip(
        look.steps,
        look.step_sizes,
        *look.gradient_variances.T,
        look.alpha,
        look.rejection,
        strict=True,
    )
    columns = {"step": "d", "step size": ".2e", "noise 1": ".2e", "noise 2": ".2e"}
    command_line.print_table({**columns, "alpha": ".3f", "rejection": ".2e"}, list(rows)[::4])


def plot(result: Result) -> Figure:
    """Draws both posteriors (top), noise by iteration, and rejections by step size (bottom)."""
    figure, axes = subplots(2, 2)
    for axis, masses, name in zip(
        axes[0], (result.exact, result.sampled), ("exact", "SGLD"), strict=True
    ):
        axis.grid(False)
        axis.pcolormesh(*EDGES, masses.T, cmap="Blues", rasterized=True)
        axis.set(xlabel="theta1", ylabel="theta2", title=name, xlim=(-1.5, 2.5), ylim=(-3, 3))
    look, (left, right) = result.look, axes[1]
    left.loglog(look.steps + 1, look.gradient_variances[:, 0], label="gradient noise, theta1")
    left.loglog(look.steps + 1, look.gradient_variances[:, 1], label="gradient noise, theta2")
    left.loglog(look.steps + 1, look.step_sizes, label="injected noise")
    left.loglog(look.steps + 1, look.alpha, ":", label="alpha")
    left.set(xlabel="iteration", ylabel="variance in a step")
    right.loglog(result.falling.step_sizes, result.falling.rejection)
    right.set(xlabel="step size", ylabel="rejection probability")
    left.legend()
    return figure


EXPERIMENT = Experiment(
    paper="Welling & Teh 2011",
    figure="figures 1 and 2",
    title="a mixture with tied means",
    run=run,
    quick={"num_sweeps": 2_000},
    show=show,
    claims=claims,
    plot=plot,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
