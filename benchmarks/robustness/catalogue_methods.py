"""Calls of `ShardedLogProb`, and of methods of targets and kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.robustness.calls import Entry
from benchmarks.robustness.catalogue_samplers import (
    ALSO,
    STATE,
    TARGET,
    log_likelihood,
    log_prior,
)
from benchmarks.robustness.catalogue_targets import (
    FUNCTIONS,
    ROOM,
    bijectors,
    dtypes,
    log_likelihoods,
    log_priors,
    use,
)
from benchmarks.robustness.values import (
    BATCH_SIZE,
    DATA,
    NAN,
    NUM_EXAMPLES,
    Named,
    Thing,
    array,
    boolean,
    function,
    integer,
    seed,
    state,
    target,
)

tfb = tfp.bijectors


def shards() -> list[Any]:
    """Functions that give wrong shards, of which the right ones have four rows each."""
    rows = DATA[:4]
    results = [None, "x", 1, [], {}, rows * NAN, rows.astype(str), rows[:0], rows[:3], object()]
    unequal = [
        Named("of other columns", lambda s: DATA[:4, : s + 1]),
        Named("of other dtypes", lambda s: DATA[:4].astype([np.float32, np.float64][s])),
        Named("of other structures", lambda s: [DATA[:4], (DATA[:4], DATA[:4])][s]),
    ]
    return [*function(1, *results), *unequal, DATA]


def sharded() -> list[Entry]:
    """Calls of `ShardedLogProb`, with both shards in this process."""
    return [
        Entry(
            ROOM,
            "ShardedLogProb",
            lambda **arguments: use(sgmcmc.ShardedLogProb(**arguments)),
            dict(
                log_prior_fn=log_prior,
                log_likelihood_fn=log_likelihood,
                load_shard=lambda shard: DATA[4 * shard : 4 * shard + 4],
                num_shards=2,
                num_examples=NUM_EXAMPLES,
                batch_size=BATCH_SIZE,
                replacement=False,
                shared_batch=False,
                bijector=None,
                dtype=None,
                chunk_size=None,
                score_fn=None,
                num_groups=None,
                jit_compile=False,
            ),
            dict(
                log_prior_fn=log_priors(),
                log_likelihood_fn=log_likelihoods(),
                load_shard=shards(),
                num_shards=[*integer(1), 3, 9],
                num_examples=[*integer(1), 7, 9],
                batch_size=[*integer(1, NUM_EXAMPLES), 3],
                replacement=boolean(),
                shared_batch=boolean(),
                bijector=bijectors(),
                dtype=dtypes(),
                chunk_size=integer(1, optional=True),
                num_groups=[*integer(2, 4, optional=True), 3, 5],
                jit_compile=boolean(),
            ),
            {
                **FUNCTIONS,
                "num_examples": "N|examples",
                "load_shard": "load_shard|shard|data",
                "num_shards": "num_shards|load_shard|shards",
            },
        )
    ]


def targets() -> list[Entry]:
    """Calls of the methods that make other targets, and of `largest_curvature`."""
    positive = sgmcmc.MinibatchLogProb(
        log_prior, log_likelihood, DATA, BATCH_SIZE, bijector=tfb.Exp()
    )
    control = sgmcmc.ControlVariate(TARGET, STATE)
    sizes = dict(batch_size=integer(1, NUM_EXAMPLES))
    return [
        Entry(
            ROOM,
            "MinibatchLogProb.with_bijector",
            lambda bijector: use(TARGET.with_bijector(bijector)),
            dict(bijector=tfb.Exp()),
            dict(bijector=bijectors()),
        ),
        Entry(
            ROOM,
            "MinibatchLogProb.with_minibatches",
            lambda batch_size: use(TARGET.with_minibatches(batch_size)),
            dict(batch_size=2),
            sizes,
        ),
        Entry(
            ROOM,
            "ControlVariate.with_batch_size",
            lambda batch_size: use(control.with_batch_size(batch_size)),
            dict(batch_size=2),
            sizes,
        ),
        *(
            Entry(
                ROOM,
                f"MinibatchLogProb.{name}",
                lambda state, name=name: getattr(positive, name)(state),
                dict(state=np.ones([2], np.float32)),
                dict(state=[None, "x", object(), Thing, np.array(["a"])]),
            )
            for name in ("constrain", "unconstrain")
        ),
        Entry(
            ROOM,
            "largest_curvature",
            lambda **arguments: sgmcmc.targets.largest_curvature(**arguments),
            dict(target=TARGET, state=STATE, seed=0, metric=None, num_iterations=2, max_examples=8),
            dict(
                target=target(),
                state=state(),
                seed=seed(),
                metric=function(1, None, "x", [], {}, object(), np.zeros([3]), optional=True),
                num_iterations=integer(1),
                max_examples=integer(1),
            ),
            {"target": ALSO["target_log_prob_fn"]},
        ),
    ]


def kernels() -> list[Entry]:
    """Calls of what kernels say of a step."""
    curvature = [v for v in array() if not isinstance(v, int | float) and "inf" not in repr(v)]
    nogin = sgmcmc.NOGIN(TARGET, 0.1)
    made = [  # each with whether its limit depends on the step
        *((kind(TARGET, 0.1), False) for kind in (sgmcmc.SGLD, sgmcmc.ModifiedSGLD)),
        *((kind(TARGET, 0.1), True) for kind in (sgmcmc.SGHMC, sgmcmc.CCAdL, sgmcmc.SGFS)),
        (sgmcmc.SGNHT(TARGET, 0.1, scheme="euler"), True),
        (sgmcmc.UnderdampedLangevin(TARGET, 0.1), False),
        (sgmcmc.ReplicaExchangeSGLD(TARGET, 0.1, [1.0, 2.0]), False),
        (nogin, False),
    ]
    found = [
        Entry(
            "kernels",
            f"{type(kernel).__name__}.largest_stable_step",
            lambda kernel=kernel, **arguments: kernel.largest_stable_step(**arguments),
            dict(largest_curvature=2.0, step=0),
            dict(largest_curvature=[*curvature, NAN], step=integer(0) if by_step else []),
        )
        for kernel, by_step in made
    ]
    found.append(
        Entry(
            "kernels",
            "NOGIN.relaxation_steps",
            lambda **arguments: nogin.relaxation_steps(**arguments),
            dict(curvature=2.0, noise=1.0, step=0),
            dict(
                curvature=[*curvature, NAN],
                noise=[*curvature, NAN, -1.0],
                step=integer(0),
            ),
        )
    )
    return found


def entries() -> list[Entry]:
    return [*sharded(), *targets(), *kernels()]
