"""Calls of kernels, covariances, preconditioners, schedules, random numbers and targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.robustness.calls import Entry
from benchmarks.robustness.derive import entry
from benchmarks.robustness.kinds import (
    SEED,
    STATE,
    TARGET,
    covariances,
    finite,
    log_likelihood,
    log_likelihoods,
    log_prior,
    matrices,
    steps,
    use,
)
from benchmarks.robustness.values import (
    BATCH_SIZE,
    DATA,
    INF,
    NAN,
    NUM_EXAMPLES,
    Named,
    array,
    choice,
    function,
    integer,
    label,
    number,
    setting,
    state,
    target,
)

cov, pre, sch = sgmcmc.covariance, sgmcmc.preconditioners, sgmcmc.schedules
tfb = tfp.bijectors
GIVE: dict[str, dict[str, Any]] = {
    "SGFS": {"B": 1.0},
    "SGHMC": {"covariance": "full"},
    "CCAdL": {"covariance": "full", "scheme": "euler"},
    "NOGIN": {"covariance": "full", "num_estimation_steps": 0},
    "SGNHT": {"scheme": "euler"},
    "ReplicaExchangeSGLD": {"temperatures": [1.0, 2.0]},
    "IndependentMetropolis": {"center": STATE, "hessian": -20.0 * np.eye(len(STATE))},
}
# Their limit is infinite, whatever the arguments, or they have none.
WITHOUT_LIMIT = ("CorrectedLangevin", "IndependentMetropolis")


def kernels() -> list[Entry]:
    """Calls of the constructors, the first results, a step, and the largest stable step."""
    found = []
    curvatures = [v for v in array() if not isinstance(v, int | float) and "inf" not in repr(v)]
    for name in sgmcmc.kernels.__all__:
        kind = getattr(sgmcmc, name)
        step_size = {"step_size": 0.01} if name != "IndependentMetropolis" else {}
        give = {**step_size, **GIVE.get(name, {})}
        made = kind(TARGET, **give)
        results = made.bootstrap_results(STATE)
        found += [
            entry("kernels", kind, {"target_log_prob_fn": TARGET, **give}, use=steps),
            entry(
                "kernels",
                made.bootstrap_results,
                {"init_state": STATE},
                call=lambda init_state, made=made: steps(made, init_state, 1),
                name=f"{name}.bootstrap_results",
            ),
            entry(
                "kernels",
                made.one_step,
                {"current_state": STATE, "previous_kernel_results": results, "seed": 0},
                use=lambda found: found[0],
                name=f"{name}.one_step",
            ),
        ]
        if name not in WITHOUT_LIMIT:
            by_step = name in ("SGHMC", "CCAdL", "SGFS", "SGNHT")
            found.append(
                entry(
                    "kernels",
                    made.largest_stable_step,
                    dict(largest_curvature=2.0, step=0),
                    dict(largest_curvature=[*curvatures, NAN], step=integer(0) if by_step else []),
                    name=f"{name}.largest_stable_step",
                    without={"results"},
                )
            )
    nogin = sgmcmc.NOGIN(TARGET, 0.1)
    relaxation = dict(curvature=[*curvatures, NAN], noise=[*curvatures, NAN, -1.0], step=integer(0))
    give = dict(curvature=2.0, noise=1.0, step=0)
    return [*found, entry("kernels", nogin.relaxation_steps, give, relaxation)]


def covariance() -> list[Entry]:
    def full(**arguments: Any) -> Any:
        return steps(sgmcmc.NOGIN(TARGET, 0.01, covariance=cov.Full(**arguments)))

    in_parts = sgmcmc.MinibatchLogProb(
        lambda a, b: log_prior(tf.concat([a, b], -1)),
        lambda a, b, batch: log_likelihood(tf.concat([a, b], -1), batch),
        DATA,
        BATCH_SIZE,
    )

    def stepped(made: Any) -> Any:
        is_block = isinstance(made, cov.Block)
        model, start = (in_parts, [STATE[:1], STATE[:1]]) if is_block else (TARGET, STATE)
        return steps(sgmcmc.NOGIN(model, 0.01, covariance=made), start)

    weights = [*integer(1), [], [NAN], [INF], [-1.0], [0.0, 1.0], ["a"], np.ones([2, 2]), "full"]
    weights = [v for v in weights if not _is_weights(v)]
    return [
        *(
            entry("covariance", getattr(cov, name), {}, {"solver": choice("cholesky")}, use=stepped,
                  also={"solver": "method"})
            for name in ("Full", "Block", "Diag", "LowRank")
        ),
        entry("covariance", cov.RunningMean, {"decay": 0.9},
              {"decay": number(0.0, 1.0, -0.5, 2.0, optional=True)},
              use=lambda average: full(average=average)),
        entry("covariance", cov.History, {"weights": 2, "lag": 1}, {"weights": weights},
              use=lambda average: full(average=average)),
        entry("covariance", cov.Solver, {"method": "cg"}, use=lambda solver: full(solver=solver)),
        entry("covariance", cov.as_covariance, {"value": "full"}, {"value": covariances()}, use=str,
              also={"value": "covariance"}),
    ]  # fmt: skip


def _is_weights(value: Any) -> bool:
    """Sequences of positive numbers are weights."""
    text = label(value)
    return text in ("[2]", "array([2, 2])") or text.startswith("<tf.Tensor: shape=(2,)")


def preconditioners() -> list[Entry]:
    def step(made: Any) -> Any:
        return steps(sgmcmc.SGLD(TARGET, 0.01, preconditioner=made))

    def steps_of_both(made: Any) -> Any:
        return [step(made), steps(sgmcmc.CorrectedLangevin(TARGET, 0.01, made))]

    def vectors(num_arguments: int) -> list[Any]:
        wrong = [None, "x", 1, [], {}, NAN, np.full([2], NAN, np.float32), np.ones([3], np.float32)]
        return function(num_arguments, *wrong, np.ones([2]), np.ones([1, 2], np.float32), object())

    scalars = [None, "x", [], {}, NAN, np.ones([3], np.float32), object()]
    identity = dict(
        multiply_fn=lambda state, v: v,
        sqrt_multiply_fn=lambda state, z: z,
        divergence_fn=lambda state: tf.zeros_like(state),
        inverse_quadratic_fn=lambda state, v: tf.reduce_sum(v * v, -1),
        log_det_fn=lambda state: tf.zeros(tf.shape(state)[:-1]),
    )
    wrong_functions = dict(
        multiply_fn=vectors(2),
        sqrt_multiply_fn=vectors(2),
        divergence_fn=vectors(1),
        inverse_quadratic_fn=function(2, *scalars),
        log_det_fn=function(1, *scalars),
    )
    square = [1.0, [1.0, 1.0], np.ones([2, 3]), -np.eye(2), np.zeros([2, 2]), np.eye(3)]
    more = [[[1.0, 2.0], [0.0, 1.0]], [[1.0, 3.0], [3.0, 1.0]], np.full([2, 2], NAN)]
    words = {"scale": "M|preconditioner", "matrix": "M|preconditioner"}
    words["value"] = "preconditioner|M|scale"
    decays = dict(decay=number(1.0, -0.1, 2.0), epsilon=number(0.0, -1.0))
    room = "preconditioners"
    return [
        entry(room, pre.Diagonal, {"scale": 1.0}, {"scale": setting(0.0, -1.0)}, use=step,
              also=words),
        entry(room, pre.FullMatrix, {"matrix": np.eye(2)}, {"matrix": [*setting(), *square, *more]},
              use=step, also=words),
        entry(room, pre.RMSprop, {"gamma": True}, decays, use=step),
        entry(room, pre.PositionDependent, identity, wrong_functions, use=steps_of_both),
        entry(room, pre.as_preconditioner, {"value": 1.0}, {"value": matrices()}, use=step,
              also=words),
    ]  # fmt: skip


def schedules() -> list[Entry]:
    at = tf.constant([0, 1, 2, 7], tf.int64)
    positive, results = number(0.0, -1.0), [None, "x", [], {}, object(), 1j, NAN, INF, np.ones([3])]

    ends = dict(initial_value=1.0, final_value=0.1, num_steps=8)

    def values(made: Any) -> Any:
        return made(at)

    return [
        entry("schedules", sch.PolynomialDecay, dict(a=1.0, b=1.0, gamma=0.55),
              dict(a=positive, b=positive), use=values),
        entry("schedules", sch.PolynomialDecay.from_endpoints,
              dict(first=1.0, last=0.1, num_steps=8, gamma=0.55),
              dict(first=number(0.0, -1.0, 0.1), last=number(0.0, -1.0, 1.0), num_steps=integer(2),
                   gamma=positive), use=values),
        entry("schedules", sch.ConstantBelow,
              dict(schedule=sch.PolynomialDecay(1.0), critical_value=0.1),
              dict(schedule=function(1, *results), critical_value=positive),
              use=lambda made: made(tf.constant(3, tf.int64))),
        entry("schedules", sch.Cyclical, dict(initial_value=1.0, num_steps=8, num_cycles=2),
              dict(initial_value=positive, num_cycles=[*integer(1), 9],
                   exploration_ratio=number(-0.1, 1.0, 2.0)), use=values),
        entry("schedules", sch.GeometricDecay, ends, dict(initial_value=positive,
              final_value=positive), use=values),
        entry("schedules", sch.CosineTail, ends, dict(initial_value=positive, final_value=positive,
              start=number(-0.1, 1.1), peak_value=number(0.0, -1.0, optional=True)), use=values),
    ]  # fmt: skip


def random_numbers() -> list[Entry]:
    rng, chosen = sgmcmc.random, {"seed", "num", "num_examples", "batch_size"}
    give = dict(
        seed=SEED, num=2, data=1, shape=[2], dtype=tf.float32, state=tf.zeros([2]),
        positions=tf.range(4), num_examples=8, chain_shape=(), batch_size=4,
        step=tf.constant(3, tf.int64),
    )  # fmt: skip
    names = [
        "as_seed", "split", "fold_in", "normal", "three_point", "permuted_indices",
        "uniform_indices", "normal_like", "rademacher_like", "three_point_like", "epoch_indices",
    ]  # fmt: skip
    found = []
    for name in names:
        fn = getattr(rng, name)
        taken = {k: v for k, v in give.items() if k in fn.__code__.co_varnames}
        sizes = integer(4) if name == "epoch_indices" else integer(1)
        words = {"num_examples": "batch_size must be in"} if name == "epoch_indices" else {}
        wrong = {"num_examples": sizes}
        found.append(entry("random", fn, taken, wrong, name=name, only=chosen, also=words))
    return found


def squared_error(eta: Any, y: Any) -> Any:
    return -0.5 * (y - eta) ** 2


def targets() -> list[Entry]:
    room = "targets"
    functions: dict[str, Any] = dict(log_prior_fn=log_prior, log_likelihood_fn=log_likelihood)
    batches = tf.data.Dataset.from_tensor_slices(DATA).batch(4, drop_remainder=True)
    sharded: dict[str, Any] = dict(
        load_shard=lambda s: DATA[4 * s : 4 * s + 4], num_shards=2, num_examples=NUM_EXAMPLES,
        batch_size=BATCH_SIZE, jit_compile=False,
    )  # fmt: skip
    in_shards = sgmcmc.ShardedLogProb(**functions, **sharded)
    nan = Named("of NaN", lambda eta, y: squared_error(eta, y) * NAN)
    linear = [*function(2, None, "x", 1, 1j, [], {}, object(), (1.0, 2.0)), nan]
    weights = [-1.0, "x", [1.0], np.zeros(NUM_EXAMPLES), np.full(NUM_EXAMPLES, NAN)]
    order2 = dict(order=integer(1, 2), importance=weights, hessian=[*choice("full"), "diag"])
    positive = sgmcmc.MinibatchLogProb(*functions.values(), DATA, BATCH_SIZE, bijector=tfb.Exp())
    control = sgmcmc.ControlVariate(TARGET, STATE)
    made = [TARGET, control, sgmcmc.SVRG(TARGET), sgmcmc.GrowingBatch(TARGET),
            sgmcmc.FullDataLogProb(log_prior)]  # fmt: skip
    words = {"target": "target|log_prob|log posterior|log_prob_fn"}
    at = dict(target=TARGET, state=STATE)

    def with_scores(made: Any) -> Any:
        return [use(made), steps(sgmcmc.NOGIN(made, 0.01))]

    def linear_model(made: Any) -> Any:
        return use(sgmcmc.MinibatchLogProb(log_prior, made, (DATA, DATA[:, 0]), BATCH_SIZE))

    return [
        entry(room, sgmcmc.MinibatchLogProb, {**functions, "data": DATA, "batch_size": BATCH_SIZE},
              use=with_scores),
        entry(room, sgmcmc.ShardedLogProb, {**functions, **sharded}, use=use, without={"score_fn"}),
        # A stream is read once, so nothing tells of a likelihood of the batch's mean.
        entry(room, sgmcmc.StreamedLogProb,
              {**functions, "dataset": batches, "num_examples": NUM_EXAMPLES},
              dict(log_likelihood_fn=log_likelihoods()[:-3]), use=use, without={"score_fn"}),
        entry(room, sgmcmc.FullDataLogProb, {"target_log_prob_fn": log_prior}, use=use),
        entry(room, sgmcmc.LinearModel, {"log_prob_fn": squared_error},
              dict(log_prob_fn=linear, num_outputs=[*integer(1, optional=True), 1, 3]),
              use=linear_model, also={"log_prob_fn": "log_likelihood_fn|log likelihood"}),
        entry(room, sgmcmc.ControlVariate, dict(target=TARGET, center=STATE), use=use,
              only={"target", "center"}),
        entry(room, sgmcmc.ControlVariate,
              dict(target=TARGET, center=STATE, order=2, hessian="full"), order2, use=use,
              only={*order2}),
        entry(room, sgmcmc.ControlVariate,
              dict(target=in_shards, center=STATE, order=2, importance="pilot", hessian="full"),
              order2, use=use, only={*order2}),
        entry(room, sgmcmc.SVRG, dict(target=TARGET, update_every=2), use=use),
        entry(room, sgmcmc.GrowingBatch, dict(target=TARGET), use=use),
        entry(room, sgmcmc.preflight, at, {"target": target()}, also=words),
        entry(room, sgmcmc.find_center,
              dict(target=TARGET, initial_state=STATE, method="adam", max_iterations=2,
                   hessian="diag"),
              dict(method=choice("lbfgs"), hessian=choice("full")), use=lambda found: found[0]),
        entry(room, sgmcmc.whiten, dict(target=TARGET, center=STATE, hessian="diag"),
              dict(hessian=choice("full")), use=lambda found: found[1].forward(STATE)),
        entry(room, sgmcmc.largest_curvature, {**at, "num_iterations": 2, "max_examples": 8},
              {"target": target()}, also=words),
        entry(room, TARGET.with_bijector, {"bijector": tfb.Exp()}, use=use, only={"bijector"}),
        entry(room, TARGET.with_minibatches, {"batch_size": 2}, use=use),
        entry(room, control.with_batch_size, {"batch_size": 2}, use=use),
        *(
            entry(room, getattr(positive, name), {"state": np.ones([2], np.float32)},
                  {"state": [None, "x", object(), np.array(["a"])]},
                  name=f"MinibatchLogProb.{name}")
            for name in ("constrain", "unconstrain")
        ),
        *(
            entry(room, kind.estimate, dict(state=tf.zeros([2]), seed=SEED),
                  dict(state=finite(state())), name=f"{type(kind).__name__}.estimate",
                  only={"state"},
                  call=lambda kind=kind, **given: kind.estimate(
                      given["state"], given["seed"], kind.bootstrap(tf.zeros([2])))[:2])
            for kind in made
        ),
    ]  # fmt: skip


def entries() -> list[Entry]:
    return [
        *kernels(), *covariance(), *preconditioners(), *schedules(), *random_numbers(), *targets(),
    ]  # fmt: skip
