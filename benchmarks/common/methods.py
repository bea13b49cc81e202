"""Every sampler on a logistic regression, with its step size in units of the posterior.

A step h is a multiple of a unit, which one formula gives for each sampler,

  unit = 1 / sqrt(largest eigenvalue of the posterior's precision + largest eigenvalue of Sigma).

Sigma is the covariance, at the mode, of the gradient estimate that the sampler is given; it is 0 on
all data. Overdamped samplers take epsilon = h^2, and SGFS takes alpha = 2 / h. The friction is the
square root of the smallest eigenvalue of the precision, at which momenta cross the widest direction
fastest. SGHMC adds h times the largest eigenvalue of Sigma to it, which is twice what its noise
needs. All masses are 1, except those of "HMC whitened".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.common.posteriors import Posterior, whitened_hmc
from benchmarks.common.registry import SAMPLERS, RegisteredSampler
from benchmarks.common.samplers import covariances

LEAPFROG_STEPS = 10
WHITENED_LEAPFROG_STEPS = 3
MAX_TREE_DEPTH = 7
THINNING = 2  # of samplers on minibatches


class Cost(NamedTuple):
    """Passes (examples whose gradient was evaluated, divided by N), and seconds."""

    passes: float
    seconds: float


class Method(NamedTuple):
    """A sampler, its start and its costs."""

    make_kernel: Callable[[Any], Any]  # step h -> kernel
    unit: float  # the unit of h
    count: Callable[[Any], Any]  # results of a step -> examples whose gradient the step evaluated
    examples: int  # the largest value of `count`
    thinning: int  # steps from one draw to the next
    start: np.ndarray  # first state, [D]
    once: Cost = Cost(0.0, 0.0)  # cost of the work before the first step
    to_parameters: Callable[[Any], np.ndarray] = np.asarray  # draws -> parameters, [S, D]


def methods(p: Posterior, batch_size: int) -> dict[str, Method]:
    """Returns all samplers and baselines by name.

    All start from the origin, except methods that need the mode. Those find it by L-BFGS and pay
    for that. "+ CV" and "+ SVRG" in a name stand for control variates at the mode, and for SVRG.
    """
    plain = p.target(batch_size)
    n, total = batch_size, plain.num_examples
    curvatures = p.curvatures()
    friction = curvatures[0] ** 0.5
    mode, search = find_mode(plain, len(p.mode))
    to_mode = Cost(search.passes + 1, search.seconds * (1 + 1 / search.passes))
    origin, nothing, svrg = np.zeros_like(mode), Cost(0.0, 0.0), sgmcmc.SVRG(plain)
    control = sgmcmc.ControlVariate(plain, tf.constant(mode))
    targets: dict[str, tuple[Any, int, np.ndarray, Cost]] = {
        "": (plain, n, origin, nothing),
        " + CV": (control, 2 * n, mode, to_mode),
        " + SVRG": (svrg, 2 * n + total // svrg.update_every, origin, nothing),
    }
    found = {}
    for suffix, (target, examples, start, once) in targets.items():
        noise = p.noise(target.noise_scale, centered=target is not plain)
        unit = (curvatures[-1] + noise) ** -0.5
        found["SGD" + suffix] = Method(
            lambda h, target=target: sgmcmc.SGLD(target, h**2, temperature=0.0),
            unit, constant(examples), examples, THINNING, start, once,
        )  # fmt: skip
        for row in SAMPLERS:
            if row.all_data or (row.is_fisher_scoring and target is not plain):
                continue
            count = examples * row.num_gradients
            for name, make in samplers(row, target, friction, noise).items():
                found[name + suffix] = Method(
                    make, unit, constant(count), count, THINNING, start, once
                )
    return found | on_all_data(p, plain, search)


def samplers(
    row: RegisteredSampler, target: Any, friction: float, noise: float
) -> dict[str, Callable[[Any], Any]]:
    """Returns functions from a step to a kernel, one for each kind of covariance."""
    if not row.uses_covariance:
        return {row.label: lambda h: row.make(target, h, friction, noise, None)}
    kinds = covariances(target)
    if row.is_fisher_scoring:  # the plain running mean, as in the paper
        kinds |= {"full": "full", "diag": "diag"}
    return {
        f"{row.label} {kind}": lambda h, c=c: row.make(target, h, friction, noise, c)
        for kind, c in kinds.items()
    }


def on_all_data(p: Posterior, target: sgmcmc.MinibatchLogProb, search: Cost) -> dict[str, Method]:
    """Returns the exact baselines. "HMC whitened" has Laplace's covariance as inverse mass matrix.

    It starts from a draw of Laplace's approximation. In many dimensions the mode is so far from
    the posterior's mass that HMC would reject its first proposals there.
    """
    total, dimension = target.num_examples, len(p.mode)
    unit, origin = p.curvatures()[-1] ** -0.5, np.zeros_like(p.mode)
    once = with_hessian(search, dimension)
    friction = p.curvatures()[0] ** 0.5
    exact = {
        row.label: Method(
            lambda h, row=row: row.make(target, h, friction, 0.0, None),
            unit, constant(total), total, 1, origin,
        )
        for row in SAMPLERS if row.all_data
    }  # fmt: skip
    return exact | {
        "HMC": Method(
            lambda h: tfp.mcmc.HamiltonianMonteCarlo(target, h, LEAPFROG_STEPS),
            unit, constant(LEAPFROG_STEPS * total), LEAPFROG_STEPS * total, 1, origin,
        ),
        "NUTS": Method(
            lambda h: tfp.mcmc.NoUTurnSampler(target, h, max_tree_depth=MAX_TREE_DEPTH),
            unit, lambda results: results.leapfrogs_taken * total, 2**MAX_TREE_DEPTH * total, 1,
            origin,
        ),
        "HMC whitened": Method(
            lambda h: whitened_hmc(p, target, h, WHITENED_LEAPFROG_STEPS),
            1.0, constant(WHITENED_LEAPFROG_STEPS * total), WHITENED_LEAPFROG_STEPS * total, 1,
            np.random.default_rng(0).multivariate_normal(p.mode, p.covariance), once,
        ),
    }  # fmt: skip


def select(found: dict[str, Method], names: Sequence[str]) -> dict[str, Method]:
    """Returns methods by their names; "all" stands for those without control variates.

    Raises:
      ValueError: an unknown name.
    """
    unknown = set(names) - {"all", *found}
    if unknown:
        raise ValueError(
            f"samplers must be 'all' or some of {', '.join(found)}. Received: {', '.join(unknown)}."
        )
    return {
        name: method
        for name, method in found.items()
        if name in names or ("all" in names and " + " not in name)
    }


def with_hessian(search: Cost, dimension: int) -> Cost:
    """Returns the cost of the mode and the Hessian there.

    The Hessian takes N D^2 multiplications, and a gradient takes 2 N D.
    """
    hessian = dimension / 2
    return Cost(search.passes + hessian, search.seconds * (1 + hessian / search.passes))


def constant(examples: int) -> Callable[[Any], Any]:
    """Returns a count that does not depend on the results."""
    return lambda _: tf.constant(examples)


def find_mode(target: sgmcmc.MinibatchLogProb, dimension: int) -> tuple[np.ndarray, Cost]:
    """Finds the mode by L-BFGS from the origin; the seconds are those of its compiled gradients."""
    mode, report = sgmcmc.find_center(target, tf.zeros([dimension]))

    @tf.function(jit_compile=True, autograph=False)
    def gradient(theta: tf.Tensor) -> Any:
        return tfp.math.value_and_gradient(target, theta)

    gradient(mode)
    begin = time.process_time()
    for _ in range(5):
        gradient(mode)[1].numpy()
    seconds = (time.process_time() - begin) / 5
    return mode.numpy(), Cost(report.num_passes, report.num_passes * seconds)
