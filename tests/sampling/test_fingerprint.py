"""Facts that the driver reads from a kernel: the shape of its chains, and its fingerprint."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.sampling.loop import chain_shape_of, start_of
from tfp_sgmcmc.sampling.run_fingerprint import describe_kernel

X = np.random.default_rng(0).normal(size=[30, 2]).astype(np.float32)
B, C, P = tfp.bijectors, sgmcmc.covariance, sgmcmc.preconditioners


def normal(x: tf.Tensor) -> tf.Tensor:
    return -0.5 * tf.reduce_sum(x**2, axis=-1)


def target(data: Any = X, **options: Any) -> sgmcmc.MinibatchLogProb:
    return sgmcmc.MinibatchLogProb(
        normal, lambda x, batch: normal(batch - x[..., tf.newaxis, :]), data, 5, **options
    )


def langevin(*arguments: Any, **options: Any) -> sgmcmc.SGLD:
    return sgmcmc.SGLD(*(arguments or (target(),)), step_size=0.01, **options)


def preconditioned(preconditioner: Any) -> sgmcmc.SGLD:
    return langevin(preconditioner=preconditioner)


def centred(center: tf.Tensor) -> sgmcmc.ControlVariate:
    return sgmcmc.ControlVariate(target(), center)


def nogin(covariance: Any) -> sgmcmc.NOGIN:
    return sgmcmc.NOGIN(target(), 0.1, covariance=covariance)


@pytest.mark.filterwarnings("ignore:target_log_prob_fn is a plain callable")
@pytest.mark.parametrize("given", [normal, sgmcmc.FullDataLogProb(normal), target()])
@pytest.mark.parametrize("chains", [(), (4,), (2, 3)])
def test_replicas_are_no_chains(given: Any, chains: tuple[int, ...]) -> None:
    """Replicas come before the chains in the kernel's results."""
    kernel = sgmcmc.ReplicaExchangeSGLD(given, 0.1, [1.0, 2.0, 4.0])
    start = start_of(kernel, tf.zeros([*chains, 2]))
    assert start.results.target_log_prob.shape == (3, *chains)
    assert chain_shape_of(kernel, start) == chains


def test_chains_of_kernels_of_tensorflow_probability() -> None:
    kernel = tfp.mcmc.HamiltonianMonteCarlo(normal, 0.1, 2)
    start = start_of(tfp.mcmc.SimpleStepSizeAdaptation(kernel, 3), tf.zeros([4, 2]))
    assert chain_shape_of(kernel, start) == (4,)


SAME: dict[str, Callable[[], Any]] = {
    "target": langevin,
    "a copy of the data": lambda: langevin(target(X.copy())),
    "wrapped": lambda: langevin(sgmcmc.SVRG(target(), 5)),
    "matrix": lambda: langevin(preconditioner=P.FullMatrix(np.eye(2))),
    "estimator": lambda: nogin(C.LowRank(C.History([2.0, 1.0], lag=1))),
    "schedule": lambda: langevin(
        temperature=sgmcmc.schedules.ConstantBelow(lambda t: tf.ones([]), 0.5)
    ),
    "large array": lambda: langevin(preconditioner=np.ones([30, 4])),
}


@pytest.mark.parametrize("name", SAME)
def test_a_kernel_that_is_made_again_is_the_same(name: str) -> None:
    assert describe_kernel(SAME[name]()) == describe_kernel(SAME[name]())


def changed(row: int) -> np.ndarray:
    data = X.copy()
    data[row] += 1.0
    return data


@pytest.mark.parametrize(
    ("make", "one", "other", "key"),
    [
        (langevin, target(), target(changed(17)), ".data"),
        (langevin, target(), target(shared_batch=True), ".shared_batch"),
        (langevin, target(bijector=B.Exp()), target(bijector=B.Softplus()), ".bijector"),
        (langevin, sgmcmc.SVRG(target(), 5), sgmcmc.SVRG(target(), 6), ".update_every"),
        (langevin, sgmcmc.SVRG(target(), 5), sgmcmc.SVRG(target(changed(0)), 5), ".target.data"),
        (langevin, sgmcmc.GrowingBatch(target()), sgmcmc.GrowingBatch(target(), 1.2), ".growth"),
        (langevin, centred(tf.zeros([2])), centred(tf.ones([2])), ".center"),
        (preconditioned, P.Diagonal(1.0), P.Diagonal(2.0), "kernel.preconditioner"),
        (
            preconditioned,
            P.FullMatrix(np.eye(2)),
            P.FullMatrix(2 * np.eye(2)),
            "kernel.preconditioner",
        ),
        (preconditioned, P.RMSprop(0.9), P.RMSprop(0.99), "kernel.preconditioner"),
        (preconditioned, np.ones([30, 4]), np.full([30, 4], 2.0), "kernel.preconditioner"),
        (nogin, "full", "diag", "kernel.covariance"),
        (nogin, C.Full(C.RunningMean(0.9)), C.Full(C.RunningMean(0.99)), "kernel.covariance"),
        (nogin, C.Full(), C.Full(include_current=True), "kernel.covariance"),
        (
            nogin,
            C.LowRank(C.History([2.0, 1.0])),
            C.LowRank(C.History([1.0, 1.0])),
            "kernel.covariance",
        ),
        (nogin, C.Full(solver="cg"), C.Full(solver="cholesky"), "kernel.covariance"),
    ],
)
def test_what_a_kernel_holds_makes_it_another(
    make: Callable[[Any], Any], one: Any, other: Any, key: str
) -> None:
    a, b = describe_kernel(make(one)), describe_kernel(make(other))
    differing = [name for name in a if a[name] != b[name]]
    assert a.keys() == b.keys() and len(differing) == 1
    assert differing[0].endswith(key)
