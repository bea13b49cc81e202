"""Calls of the kernels, of the noise's covariance and of the preconditioners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.robustness.calls import Entry
from benchmarks.robustness.values import (
    BATCH_SIZE,
    DATA,
    INF,
    NAN,
    Thing,
    boolean,
    choice,
    function,
    instance,
    integer,
    label,
    number,
    seed,
    setting,
    state,
    target,
)

cov, pre = sgmcmc.covariance, sgmcmc.preconditioners
SEED, STATE = tf.constant([0, 1]), np.zeros([2], np.float32)


def log_prior(w: tf.Tensor) -> tf.Tensor:
    return -0.5 * tf.reduce_sum(tf.square(w), axis=-1)


def log_likelihood(w: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
    return -0.5 * tf.reduce_sum(tf.square(batch - w[..., tf.newaxis, :]), axis=-1)


TARGET = sgmcmc.MinibatchLogProb(log_prior, log_likelihood, DATA, BATCH_SIZE)

ALSO = {
    "target_log_prob_fn": "target|log_prob|log posterior|log_prob_fn",
    "init_state": "state|initial state",
    "initial_state": "state|initial state",
    "current_state": "state",
    "previous_kernel_results": "results",
}


def steps(kernel: Any, start: Any = STATE, num_steps: int = 2) -> Any:
    """Returns the state after some steps."""
    at, results = start, kernel.bootstrap_results(start)
    for step in range(num_steps):
        at, results = kernel.one_step(at, results, seed=[0, step])
    return at


def covariances() -> list[Any]:
    strings = ["x", "", "FULL", b"full", ["full"], ("full",), Thing, cov.Full, cov.RunningMean()]
    return [*strings, None, True, 0, 1.5, NAN, np.eye(2), {}, [], set(), lambda: 0]


def masses() -> list[Any]:
    return [v for v in setting(0.0, -1.0) if not callable(v)]


def momenta() -> list[Any]:
    return [v for v in setting(optional=True) if not callable(v)]


def matrices() -> list[Any]:
    """Wrong values of a preconditioner."""
    dense = [np.eye(2), np.zeros([2, 2]), pre.Diagonal, pre.RMSprop, cov.Diag()]
    wrong = ["x", b"x", True, 0, -1.0, NAN, INF, [], {}, set(), lambda: 1.0, Thing]
    return [*wrong, *dense, np.ones([3]), tf.constant([1.0, -1.0]), *setting(0.0, optional=True)]


COMMON: dict[str, Callable[[], Sequence[Any]]] = {
    "target_log_prob_fn": target,
    "step_size": lambda: setting(0.0, -0.1),
    "temperature": lambda: setting(-1.0),
    "friction": lambda: setting(-1.0),
    "covariance": covariances,
    "mass": masses,
    "initial_momentum": momenta,
    "preconditioner": matrices,
    "thermal_mass": lambda: setting(0.0, -1.0),
    "num_estimation_steps": lambda: integer(0),
}
KERNELS: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "SGLD": (
        dict(temperature=1.0, preconditioner=None, noise="normal"),
        dict(noise=choice("normal")),
    ),
    "ModifiedSGLD": (dict(covariance="full", temperature=1.0), {}),
    "SGFS": (
        dict(
            B=1.0,
            covariance="full",
            temperature=1.0,
            num_estimation_steps=0,
            num_fisher_steps=None,
        ),
        dict(
            B=[*masses(), "x", "Fisher", pre.Diagonal(1.0), pre.FullMatrix],
            num_fisher_steps=integer(1, optional=True),
        ),
    ),
    "SGHMC": (
        dict(
            friction=1.0,
            covariance="full",
            mass=1.0,
            temperature=1.0,
            initial_momentum=None,
            small_friction="increase",
        ),
        dict(small_friction=choice("refuse")),
    ),
    "SGNHT": (
        dict(
            friction=1.0,
            scheme="euler",
            thermostat="scalar",
            thermal_mass=1.0,
            mass=1.0,
            temperature=1.0,
            initial_momentum=None,
        ),
        dict(scheme=choice("adodab"), thermostat=choice("scalar")),
    ),
    "CCAdL": (
        dict(
            friction=1.0,
            covariance="full",
            thermal_mass=1.0,
            mass=1.0,
            temperature=1.0,
            initial_momentum=None,
        ),
        {},
    ),
    "NOGIN": (
        dict(
            friction=1.0,
            covariance="full",
            mass=1.0,
            temperature=1.0,
            initial_momentum=None,
            num_estimation_steps=0,
            matrix_lambda=False,
        ),
        dict(matrix_lambda=boolean()),
    ),
    "UnderdampedLangevin": (
        dict(
            friction=1.0,
            scheme="baoab",
            mass=1.0,
            temperature=1.0,
            initial_momentum=None,
            noise="normal",
        ),
        dict(scheme=choice("baoab"), noise=choice("normal")),
    ),
    "CorrectedLangevin": (dict(preconditioner=None), {}),
    "ReplicaExchangeSGLD": (
        dict(temperatures=[1.0, 2.0], swap_every=1, correction_factor=1.0, preconditioner=None),
        dict(
            temperatures=[
                *setting(),
                [1.0],
                [2.0, 1.0],
                [1.0, 1.0],
                [0.0, 1.0],
                [-1.0, 1.0],
                [1.0, NAN],
                [1.0, INF],
                np.ones([2, 2]),
            ],
            swap_every=integer(1),
            correction_factor=[v for v in number(0.5, 0.0, -1.0) if label(v) != "inf"],
        ),
    ),
}


def kernels() -> list[Entry]:
    found = []
    for name, (options, special) in KERNELS.items():
        kind, valid = getattr(sgmcmc, name), {"step_size": 0.01, **options}
        wrong = {
            "target_log_prob_fn": target(),
            **{a: special[a] if a in special else COMMON[a]() for a in valid},
        }
        found.append(
            Entry(
                "kernels",
                name,
                lambda kind=kind, **arguments: steps(kind(**arguments)),
                {"target_log_prob_fn": TARGET, **valid},
                wrong,
                ALSO,
            )
        )
        made = kind(TARGET, **valid)
        found.append(
            Entry(
                "kernels",
                f"{name}.bootstrap_results",
                lambda init_state, made=made: steps(made, init_state, 1),
                {"init_state": STATE},
                {"init_state": state()},
                ALSO,
            )
        )
        results = made.bootstrap_results(STATE)
        found.append(
            Entry(
                "kernels",
                f"{name}.one_step",
                lambda made=made, **arguments: made.one_step(**arguments)[0],
                {"current_state": STATE, "previous_kernel_results": results, "seed": 0},
                {
                    "current_state": [v for v in state() if not _has_nan(v)],
                    "previous_kernel_results": instance(),
                    "seed": seed(),
                },
                ALSO,
            )
        )
    return found


def _has_nan(value: Any) -> bool:
    """A chain that became NaN goes on, and the drivers say so; see `NonFiniteChainError`."""
    return label(value) in ("nan", "[nan, 0.0]", "[inf, 0.0]")


def with_covariance(**arguments: Any) -> Any:
    return steps(sgmcmc.NOGIN(TARGET, 0.01, covariance=cov.Full(**arguments)))


def covariance() -> list[Entry]:
    found = []
    averages = instance("full", cov.RunningMean, cov.Full(), optional=True)
    for name in ("Full", "Block", "Diag", "LowRank"):
        kind = getattr(cov, name)
        model, at = TARGET, STATE
        if name == "Block":
            model = sgmcmc.MinibatchLogProb(
                lambda a, b: log_prior(tf.concat([a, b], -1)),
                lambda a, b, batch: log_likelihood(tf.concat([a, b], -1), batch),
                DATA,
                BATCH_SIZE,
            )
            at = [STATE[:1], STATE[:1]]
        found.append(
            Entry(
                "covariance",
                name,
                lambda kind=kind, model=model, at=at, **arguments: steps(
                    sgmcmc.NOGIN(model, 0.01, covariance=kind(**arguments)), at
                ),
                dict(average=None, include_current=False, solver="auto"),
                dict(average=averages, include_current=boolean(), solver=choice("cholesky")),
                dict(solver="method"),
            )
        )
    weights = [*integer(1), [], [NAN], [INF], [-1.0], [0.0, 1.0], ["a"], np.ones([2, 2]), "full"]
    found += [
        Entry(
            "covariance",
            "RunningMean",
            lambda decay: with_covariance(average=cov.RunningMean(decay)),
            dict(decay=0.9),
            dict(decay=number(0.0, 1.0, -0.5, 2.0, optional=True)),
        ),
        Entry(
            "covariance",
            "History",
            lambda weights, lag: with_covariance(average=cov.History(weights, lag)),
            dict(weights=2, lag=1),
            dict(weights=[v for v in weights if not _is_weights(v)], lag=integer(0)),
        ),
        Entry(
            "covariance",
            "Solver",
            lambda **arguments: with_covariance(solver=cov.Solver(**arguments)),
            dict(method="cg", tolerance=None, max_iterations=500, refactor_every=100),
            dict(
                method=choice("cg"),
                tolerance=number(0.0, -1.0, optional=True),
                max_iterations=integer(1),
                refactor_every=integer(1),
            ),
        ),
        Entry(
            "covariance",
            "as_covariance",
            lambda value, average, exact: str(cov.as_covariance(value, average, exact)),
            dict(value="full", average=None, exact=False),
            dict(value=covariances(), average=averages, exact=boolean()),
            dict(value="covariance"),
        ),
    ]
    return found


def _is_weights(value: Any) -> bool:
    """Sequences of positive numbers are weights."""
    text = label(value)
    return text in ("[2]", "array([2, 2])") or text.startswith("<tf.Tensor: shape=(2,)")


def preconditioners() -> list[Entry]:
    def step(made: Any) -> Any:
        return steps(sgmcmc.SGLD(TARGET, 0.01, preconditioner=made))

    def vectors(num_arguments: int) -> list[Any]:
        wrong = [None, "x", 1, [], {}, NAN, np.full([2], NAN, np.float32), np.ones([3], np.float32)]
        return function(num_arguments, *wrong, np.ones([2]), np.ones([1, 2], np.float32), object())

    identity = dict(
        multiply_fn=lambda state, v: v,
        sqrt_multiply_fn=lambda state, z: z,
        divergence_fn=lambda state: tf.zeros_like(state),
        inverse_quadratic_fn=lambda state, v: tf.reduce_sum(v * v, -1),
        log_det_fn=lambda state: tf.zeros(tf.shape(state)[:-1]),
    )
    scalars = [None, "x", [], {}, NAN, np.ones([3], np.float32), object()]
    square = [1.0, [1.0, 1.0], np.ones([2, 3]), -np.eye(2), np.zeros([2, 2]), np.eye(3)]
    more = [[[1.0, 2.0], [0.0, 1.0]], [[1.0, 3.0], [3.0, 1.0]], np.full([2, 2], NAN)]
    return [
        Entry(
            "preconditioners",
            "Diagonal",
            lambda scale: step(pre.Diagonal(scale)),
            dict(scale=1.0),
            dict(scale=setting(0.0, -1.0)),
            dict(scale="M|preconditioner"),
        ),
        Entry(
            "preconditioners",
            "FullMatrix",
            lambda matrix: step(pre.FullMatrix(matrix)),
            dict(matrix=np.eye(2)),
            dict(matrix=[*setting(), *square, *more]),
            dict(matrix="M|preconditioner"),
        ),
        Entry(
            "preconditioners",
            "RMSprop",
            lambda **arguments: step(pre.RMSprop(**arguments)),
            dict(decay=0.99, epsilon=1e-5, gamma=True),
            dict(decay=number(1.0, -0.1, 2.0), epsilon=number(0.0, -1.0), gamma=boolean()),
        ),
        Entry(
            "preconditioners",
            "PositionDependent",
            lambda **arguments: [
                step(pre.PositionDependent(**arguments)),
                steps(sgmcmc.CorrectedLangevin(TARGET, 0.01, pre.PositionDependent(**arguments))),
            ],
            identity,
            dict(
                multiply_fn=vectors(2),
                sqrt_multiply_fn=vectors(2),
                divergence_fn=vectors(1),
                inverse_quadratic_fn=function(2, *scalars),
                log_det_fn=function(1, *scalars),
            ),
        ),
        Entry(
            "preconditioners",
            "as_preconditioner",
            lambda value: step(pre.as_preconditioner(value)),
            dict(value=1.0),
            dict(value=matrices()),
            dict(value="preconditioner|M|scale"),
        ),
    ]


def entries() -> list[Entry]:
    return [*kernels(), *covariance(), *preconditioners()]
