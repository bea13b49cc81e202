"""Calls of results, certificates, leave-one-out, pools of streams and joint priors."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.robustness.calls import Entry
from benchmarks.robustness.derive import entry
from benchmarks.robustness.kinds import (
    DATA,
    KERNEL,
    TARGET,
    finite,
    log_likelihood,
    log_likelihoods,
    log_prior,
)
from benchmarks.robustness.values import (
    NAN,
    Named,
    array,
    function,
    instance,
    integer,
    seed,
    target,
)

diag, tfd = sgmcmc.diagnostics, tfp.distributions
ROOM = "results"
RNG = np.random.default_rng(2)
QUIET: dict[str, Any] = dict(
    seed=0,
    progress_bar=False,
    jit_compile=False,
    preflight_check=False,
    num_steps_between_results=1,
)


def results() -> list[Entry]:
    """Calls of the methods of a result."""
    result = sgmcmc.sample_chain(KERNEL, {"w": np.zeros([2, 2], np.float32)}, 40, **QUIET)
    other_axes = Named("of other axes", lambda w: tf.reduce_sum(w))
    no_rows = Named("without rows", lambda w, batch: w)
    others = target()
    rows = [["x"], [0.5], [8], [-9], 8, "x", 1.5, {}, [NAN], [[0], [0, 1]]]
    levels = [None, "x", [-0.1], [1.1], [NAN], ["a"], 0.5, {}, object(), [[0.1, 0.9]]]
    references = instance({"w": "x"}, {"other": np.ones([4, 2, 2])}, optional=True)

    def method(name: str, give: dict[str, Any], wrong: dict[str, Any], **options: Any) -> Entry:
        fn = getattr(result, name)
        return entry(ROOM, fn, give, wrong, name=f"SampleResult.{name}", **options)

    def squares(w: Any) -> Any:
        return w**2

    def means(w: Any, batch: Any) -> Any:
        return tf.linalg.matmul(w, batch, transpose_b=True)

    return [
        method("summary", {}, {}),
        method("plot", {}, {}),
        method("plot_marginals", {}, dict(reference=references)),
        method("map", dict(fn=squares),
               dict(fn=[*function(1, None, "x", {}, [], object(), 1.0), other_axes]),
               use=lambda made: made.states),
        method("predict", dict(fn=means, data=DATA),
               dict(fn=[*function(2, None, "x", {}, [], object(), 1.0), no_rows],
                    data=array({}, [DATA, DATA[:3]]), quantiles=levels),
               use=lambda made: made.mean),
        method("log_likelihood", dict(target=TARGET), dict(rows=rows, target=others[1:])),
        method("loo", dict(target=TARGET), dict(target=others[1:], seed=seed()),
               use=lambda made: made.elpd),
    ]  # fmt: skip


def certificates() -> list[Entry]:
    draws = (0.3 * RNG.normal(size=[60, 2, 2])).astype(np.float32)
    result = sgmcmc.sample_chain(KERNEL, np.zeros([2, 2], np.float32), 40, **QUIET)
    loo = result.loo(target=TARGET)
    fewer = result.loo(4, target=TARGET)
    models = [{}, {"a": loo}, {"a": loo, "b": 1}, {"a": loo, "b": fewer}, [loo, loo]]
    report = diag.report({"w": draws}, TARGET, seed=0)
    wrong = [draws[:3], draws * NAN, 0 * draws, {"w": "x"}, [draws, draws]]
    return [
        entry(ROOM, sgmcmc.certify, dict(result=draws, target=TARGET, num_draws=100),
              dict(result=instance(*wrong), target=target(), num_draws=[*integer(100), 101]),
              use=lambda made: made.sd_ratio, also={"result": "draws|samples"}),
        entry(ROOM, sgmcmc.compare, {"models": {"a": loo, "b": loo}},
              {"models": instance(*models)}, use=lambda made: len(made.differences),
              also={"models": "model|rows"}),
        entry(ROOM, diag.pareto_shape, {"log_weights": RNG.normal(size=[100])},
              {"log_weights": finite(array())}),
        entry(ROOM, report.plot, {}, name="Report.plot"),
    ]  # fmt: skip


def streams() -> list[Entry]:
    """Calls of pools, blocks and joint priors."""
    rows = RNG.normal(size=[200, 2]).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices(rows).batch(50)
    stream = sgmcmc.StreamedLogProb(log_prior, log_likelihood, dataset, 200, memory=400)
    of_one = sgmcmc.MinibatchLogProb(log_prior, log_likelihood, rows, 10)
    start = np.zeros([2], np.float32)
    parts = dict(target=lambda i: stream, initial_state=start, num_parts=1, jit_compile=False)
    results = [None, "x", 1, {}, [], object(), of_one]
    joint = tfd.JointDistributionNamed(dict(w=tfd.Sample(tfd.Normal(0.0, 1.0), 2)))
    batched = tfd.JointDistributionNamed(dict(w=tfd.Normal([0.0, 1.0], 1.0)))

    def at_start(pool: Any) -> Any:
        return pool[0](tf.constant(start))

    def sampled(made: Any) -> Any:
        sgmcmc.preflight(made, made.initial_state)
        return made(**made.initial_state)

    return [
        entry(ROOM, sgmcmc.draw_pool, dict(target=stream, initial_state=start, jit_compile=False),
              dict(target=instance(of_one, sgmcmc.StreamedLogProb, log_prior)), use=at_start,
              without={"show", "num_parts", "executor"}),
        entry(ROOM, sgmcmc.draw_pool, parts, dict(target=function(1, *results)), use=at_start,
              only={"target", "num_parts", "executor"}, name="draw_pool by parts",
              also={"num_parts": "target", "target": "stream"}),
        entry(ROOM, stream.blocks, dict(size=50), use=lambda made: len([*made]),
              name="StreamedLogProb.blocks", only={"size"}),
        entry(ROOM, sgmcmc.MinibatchLogProb.from_joint,
              dict(joint=joint, log_likelihood_fn=log_likelihood, data=DATA, batch_size=4),
              dict(joint=instance(batched, tfd.Normal, tfd.Normal([0.0, 1.0], 1.0), log_prior),
                   log_likelihood_fn=log_likelihoods()[:-1]),
              use=sampled, name="MinibatchLogProb.from_joint",
              also={"joint": "prior|distribution"}),
    ]  # fmt: skip


def entries() -> list[Entry]:
    return [*results(), *certificates(), *streams()]
