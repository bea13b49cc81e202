"""Calls of the targets, the schedules and the functions of `random`."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.robustness.calls import Entry
from benchmarks.robustness.catalogue_samplers import (
    ALSO,
    SEED,
    STATE,
    TARGET,
    log_likelihood,
    log_prior,
    steps,
)
from benchmarks.robustness.values import (
    BATCH_SIZE,
    DATA,
    INF,
    NAN,
    NUM_EXAMPLES,
    Named,
    Thing,
    array,
    boolean,
    choice,
    function,
    instance,
    integer,
    number,
    seed,
    setting,
    state,
    target,
)

tfb, tfd = tfp.bijectors, tfp.distributions
FUNCTIONS = {
    "log_prior_fn": "log_prior_fn|log prior",
    "log_likelihood_fn": "log_likelihood_fn|log likelihood",
    "score_fn": "score_fn|scores",
}
ROOM, START = "targets", tf.zeros([2])


def use(made: Any) -> Any:
    """Returns what a target gives: a preflight, two steps, and its value if it has one."""
    sgmcmc.preflight(made, STATE)
    return steps(sgmcmc.SGLD(made, 0.01))


def log_priors() -> list[Any]:
    wrong = [None, "x", 1, 0.0, 1j, [], {}, object(), np.zeros([2], np.float32), (1.0, 2.0)]
    shapes = [
        Named("of shape [2]", lambda w: -0.5 * w**2),
        Named("of shape [1, 1]", lambda w: tf.reshape(log_prior(w), [1, 1])),
        Named("of NaN", lambda w: log_prior(w) * NAN),
        Named("of infinity", lambda w: log_prior(w) - INF),
        Named("of integers", lambda w: tf.cast(log_prior(w), tf.int32)),
        Named("of a dict", lambda w: {"log_prob": log_prior(w)}),
    ]
    return [*function(1, *wrong), *shapes, tfd.Normal(0.0, 1.0), tfd.Normal]


def log_likelihoods() -> list[Any]:
    wrong = [None, "x", 1, 0.0, 1j, [], {}, object(), np.zeros([3], np.float32), (1.0, 2.0)]
    shapes = [
        Named("summed", lambda w, b: tf.reduce_sum(log_likelihood(w, b))),
        Named("a mean", lambda w, b: tf.reduce_mean(log_likelihood(w, b))),
        Named("of shape [n, 2]", lambda w, b: -0.5 * (b - w) ** 2),
        Named("of shape [n, 1]", lambda w, b: log_likelihood(w, b)[..., tf.newaxis]),
        Named("one too few", lambda w, b: log_likelihood(w, b)[..., 1:]),
        Named("of NaN", lambda w, b: log_likelihood(w, b) * NAN),
        Named("of infinity", lambda w, b: log_likelihood(w, b) - INF),
        Named("of integers", lambda w, b: tf.cast(log_likelihood(w, b), tf.int32)),
        Named("of a dict", lambda w, b: {"log_prob": log_likelihood(w, b)}),
        Named("of the batch's mean", lambda w, b: log_likelihood(w, b - tf.reduce_mean(b))),
    ]
    return [*function(2, *wrong), *shapes, tfd.Normal(0.0, 1.0), tfd.Normal]


def scores() -> list[Any]:
    wrong = [None, "x", 1, NAN, 1j, [], {}, object(), np.zeros([3], np.float32)]
    shapes = [Named("without examples", lambda w, b: w), Named("of a row", lambda w, b: b[:1] - w)]
    return [v for v in function(2, *wrong) if v is not None] + shapes


def bijectors() -> list[Any]:
    kinds = ["exp", tfb.Exp, tfd.Normal(0.0, 1.0), [tfb.Exp(), tfb.Exp()], {"w": tfb.Exp()}]
    return instance(*kinds, tfb.Reshape([3]), optional=True)


def datas() -> list[Any]:
    unequal = {"x": np.zeros([8, 2], np.float32), "y": np.zeros([7], np.float32)}
    wrong = [DATA[0, 0], DATA * NAN, unequal, [DATA, None], DATA.astype(str), iter([1.0])]
    dates = np.full([8, 2], np.datetime64("2026-01-01"))
    return array(*wrong, DATA.astype(object), DATA * 1j, dates, tf.data.Dataset)


def dtypes() -> list[Any]:
    wrong = ["x", int, "int32", tf.int32, bool, "complex64", tf.string, str, object(), 3.5, [], {}]
    return [*wrong, Thing, lambda: 0, NAN, np.ones(2), 1j, ..., True]


def squared_error(eta: Any, y: Any) -> Any:
    return -0.5 * (y - eta) ** 2


def linear_model(log_prob_fn: Any, num_outputs: Any) -> Any:
    model = sgmcmc.LinearModel(log_prob_fn, num_outputs)
    return use(sgmcmc.MinibatchLogProb(log_prior, model, (DATA, DATA[:, 0]), BATCH_SIZE))


def linear_log_probs() -> list[Any]:
    nan = Named("of NaN", lambda eta, y: squared_error(eta, y) * NAN)
    return [*function(2, None, "x", 1, 1j, [], {}, object(), (1.0, 2.0)), nan]


def streamed(**arguments: Any) -> Any:
    return use(sgmcmc.StreamedLogProb(**arguments))


def datasets() -> list[Any]:
    rows = tf.data.Dataset.from_tensor_slices(DATA)
    wrong = [None, "x", b"x", True, 1, 0.5, NAN, [], {}, set(), DATA, tf.constant(DATA), Thing]
    batches = [
        rows,
        rows.take(0).batch(4, drop_remainder=True),
        tf.data.Dataset.from_tensor_slices(DATA * NAN).batch(4, drop_remainder=True),
        tf.data.Dataset.from_tensor_slices(DATA.astype(str)).batch(4, drop_remainder=True),
        tf.data.Dataset.range(8).map(tf.strings.as_string).batch(4, drop_remainder=True),
        rows.batch(3),
        tf.data.Dataset,
    ]
    results = [
        None,
        "x",
        1,
        [],
        {},
        DATA,
        rows,
        rows.take(0).batch(4, drop_remainder=True),
        object(),
    ]
    return [*wrong, *batches, *[v for v in function(1, *results) if callable(v)], object(), ...]


def entries() -> list[Entry]:
    functions = dict(log_prior_fn=log_priors(), log_likelihood_fn=log_likelihoods())
    minibatch = dict(
        log_prior_fn=log_prior,
        log_likelihood_fn=log_likelihood,
        data=DATA,
        batch_size=BATCH_SIZE,
        replacement=False,
        shared_batch=False,
        reshuffle="step",
        bijector=None,
        dtype=None,
        chunk_size=None,
        num_examples=None,
        score_fn=None,
        num_groups=None,
    )
    no_limit = integer(1, optional=True)
    kinds = [None, sgmcmc.MinibatchLogProb, sgmcmc.SVRG(TARGET), log_prior]
    weights = [-1.0, "x", [1.0], np.zeros(NUM_EXAMPLES), np.full(NUM_EXAMPLES, NAN)]
    in_shards = sgmcmc.ShardedLogProb(
        log_prior, log_likelihood, lambda s: np.split(DATA, 2)[s], 2, NUM_EXAMPLES, BATCH_SIZE
    )
    plain = [*instance(sgmcmc.FullDataLogProb(log_prior), *kinds[1:]), kinds[2]]
    stepper = lambda made: [made, steps(sgmcmc.NOGIN(made, 0.01))][1]  # noqa: E731
    found = [
        Entry(
            ROOM,
            "MinibatchLogProb",
            lambda **arguments: [
                use(sgmcmc.MinibatchLogProb(**arguments)),
                stepper(sgmcmc.MinibatchLogProb(**arguments)),
            ],
            minibatch,
            dict(
                **functions,
                data=datas(),
                batch_size=integer(1, NUM_EXAMPLES),
                replacement=boolean(),
                shared_batch=boolean(),
                reshuffle=choice("epoch"),
                bijector=bijectors(),
                dtype=dtypes(),
                chunk_size=no_limit,
                num_examples=[*no_limit, 7, 9, 2**31],
                score_fn=scores(),
                num_groups=[*integer(2, 4, optional=True), 3, 5],
            ),
            {**FUNCTIONS, "num_examples": "N|examples", "bijector": "bijector"},
        ),
        Entry(
            ROOM,
            "StreamedLogProb",
            streamed,
            dict(
                log_prior_fn=log_prior,
                log_likelihood_fn=log_likelihood,
                dataset=tf.data.Dataset.from_tensor_slices(DATA).batch(4, drop_remainder=True),
                num_examples=NUM_EXAMPLES,
                batches_per_read=2,
                bijector=None,
                score_fn=None,
                num_groups=None,
            ),
            dict(
                log_prior_fn=log_priors(),
                # A stream is read once, so that nothing tells a likelihood of the batch's mean.
                log_likelihood_fn=log_likelihoods()[:-3],
                dataset=datasets(),
                num_examples=[*integer(1), 7, 9],
                batches_per_read=integer(1),
                bijector=bijectors(),
                num_groups=[*integer(2, 4, optional=True), 3, 5],
            ),
            {**FUNCTIONS, "num_examples": "N|examples", "dataset": "dataset|batches|batch"},
        ),
        Entry(
            ROOM,
            "FullDataLogProb",
            lambda target_log_prob_fn: use(sgmcmc.FullDataLogProb(target_log_prob_fn)),
            dict(target_log_prob_fn=log_prior),
            dict(target_log_prob_fn=target()),
            ALSO,
        ),
        Entry(
            ROOM,
            "LinearModel",
            linear_model,
            dict(log_prob_fn=squared_error, num_outputs=None),
            dict(log_prob_fn=linear_log_probs(), num_outputs=[*integer(1, optional=True), 1, 3]),
            {"log_prob_fn": FUNCTIONS["log_likelihood_fn"]},
        ),
        Entry(
            ROOM,
            "ControlVariate",
            lambda target, center: use(sgmcmc.ControlVariate(target, center)),
            dict(target=TARGET, center=STATE),
            dict(target=plain, center=[*state(), np.zeros([3, 2], np.float32)]),
        ),
        Entry(
            ROOM,
            "SVRG",
            lambda target, update_every: use(sgmcmc.SVRG(target, update_every)),
            dict(target=TARGET, update_every=2),
            dict(target=plain, update_every=integer(1, optional=True)),
        ),
        Entry(
            ROOM,
            "GrowingBatch",
            lambda **arguments: use(sgmcmc.GrowingBatch(**arguments)),
            dict(target=TARGET, growth=1.1, initial_size=1.0),
            dict(target=plain, growth=number(0.5, -1.0, 0.0), initial_size=number(0.0, -1.0, 9.0)),
        ),
        Entry(
            ROOM,
            "preflight",
            lambda **arguments: sgmcmc.preflight(**arguments),
            dict(target=TARGET, state=STATE, rtol=None),
            dict(target=target(), state=state(), rtol=number(-1.0, optional=True)),
            {"target": ALSO["target_log_prob_fn"]},
        ),
        Entry(
            ROOM,
            "find_center",
            lambda **arguments: sgmcmc.find_center(**arguments)[0],
            dict(
                target=TARGET,
                initial_state=STATE,
                method="adam",
                max_iterations=2,
                tolerance=0.001,
                learning_rate=0.01,
                seed=0,
                hessian="diag",
            ),
            dict(
                target=plain,
                initial_state=[*state(), np.zeros([3, 2], np.float32)],
                method=choice("lbfgs"),
                max_iterations=integer(1, optional=True),
                tolerance=number(0.0, -1.0),
                learning_rate=setting(0.0, -1.0),
                seed=seed(),
                hessian=choice("full"),
            ),
            ALSO,
        ),
        Entry(
            ROOM,
            "whiten",
            lambda **arguments: sgmcmc.whiten(**arguments)[1].forward(STATE),
            dict(target=TARGET, center=STATE, hessian="diag"),
            dict(
                target=plain,
                center=[*state(), np.zeros([3, 2], np.float32)],
                hessian=choice("full"),
            ),
        ),
        Entry(
            ROOM,
            "ControlVariate",
            lambda **arguments: use(sgmcmc.ControlVariate(**arguments)),
            dict(target=TARGET, center=STATE, order=2, importance=None, hessian="full"),
            dict(
                order=integer(1, 2),
                importance=weights,
                hessian=[*choice("full"), "diag"],
            ),
        ),
        Entry(
            ROOM,
            "ControlVariate",
            lambda **arguments: use(sgmcmc.ControlVariate(**arguments)),
            dict(target=in_shards, center=STATE, order=2, importance="pilot", hessian="full"),
            dict(order=integer(1, 2), importance=weights, hessian=[*choice("full"), "diag"]),
        ),
    ]
    made = {
        "MinibatchLogProb": TARGET,
        "ControlVariate": sgmcmc.ControlVariate(TARGET, STATE),
        "SVRG": sgmcmc.SVRG(TARGET),
        "GrowingBatch": sgmcmc.GrowingBatch(TARGET),
        "FullDataLogProb": sgmcmc.FullDataLogProb(log_prior),
    }
    for name, kind in made.items():
        found.append(
            Entry(
                ROOM,
                f"{name}.estimate",
                lambda state, seed, kind=kind: kind.estimate(state, seed, kind.bootstrap(START))[
                    :2
                ],
                dict(state=START, seed=SEED),
                dict(state=[v for v in state() if "nan" not in repr(v) and "inf" not in repr(v)]),
            )
        )
    return found
