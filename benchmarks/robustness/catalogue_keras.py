"""Calls of `SamplerCallback`, data, losses and the other names in `keras` but `Posterior`."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.robustness.calls import Entry
from benchmarks.robustness.catalogue_samplers import TARGET
from benchmarks.robustness.values import (
    DATA,
    NAN,
    NUM_EXAMPLES,
    Named,
    array,
    boolean,
    choice,
    function,
    instance,
    integer,
    kernel,
    number,
    path,
    seed,
)

tfd = tfp.distributions
LABELS = (DATA[:, :1] > 0).astype(np.float32)


def network() -> keras.Model:
    """Returns a logistic regression of two weights, which runs without being compiled."""
    dense = keras.layers.Dense(1, use_bias=False, name="dense")
    model = keras.Sequential([keras.Input([2]), dense], name="net")
    model.compile(loss=keras.losses.BinaryCrossentropy(from_logits=True), run_eagerly=True)
    return model


def sgld(target: Any) -> Any:
    return sgmcmc.SGLD(target, 0.01)


def fitted(
    *,
    kernel: Any,
    num_chains: Any = None,
    initial_states: Any = "initializers",
    directory: Any = None,
    seconds_between_commits: Any = 10.0,
    **arguments: Any,
) -> Any:
    """Returns the samples of an epoch of two steps."""
    names = [f.name for f in dataclasses.fields(sgmcmc.keras.Collect) if f.name in arguments]
    sampler = sgmcmc.keras.SamplerCallback(
        kernel,
        collect=sgmcmc.keras.Collect(**{name: arguments.pop(name) for name in names}),
        chains=None if num_chains is None else sgmcmc.keras.Chains(num_chains, initial_states),
        output=sgmcmc.Directory(
            "." if directory is None else directory,
            seconds_between_commits=seconds_between_commits,
        )
        if directory is not None or seconds_between_commits != 10.0
        else None,
        **arguments,
    )
    network().fit(DATA, LABELS, batch_size=4, shuffle=False, verbose=0, callbacks=[sampler])
    return [np.asarray(x) for x in sampler.samples]


def resident(**arguments: Any) -> Any:
    sampler = sgmcmc.keras.SamplerCallback(
        sgld,
        prior=None,
        collect=sgmcmc.keras.Collect(0, 0),
        seed=0,
        num_examples=NUM_EXAMPLES,
    )
    data = sampler.resident(**arguments)
    network().fit(data, epochs=1, verbose=0, callbacks=[sampler])
    return [np.asarray(x) for x in sampler.samples]


def priors() -> list[Any]:
    names = [{}, {"other": tfd.Normal(0.0, 1.0)}, {"*": 1.0}, {"*": "x"}, {1: None}]
    shapes = [tfd.Normal(0.0, [1.0, 2.0, 3.0]), tfd.Normal, "normal", tfd.Categorical([0.0, 1.0])]
    results = [None, "x", [], {}, 1j, NAN, np.ones([3], np.float32), object()]
    return [*names, *shapes, *function(1, *results, optional=True)]


def starts() -> list[Any]:
    shapes = [[np.zeros([3, 1])], [np.zeros([2, 3, 1])], [np.full([2, 2, 1], NAN)], [], ["x"]]
    return [*choice("model"), *shapes, [np.zeros([2, 2, 1]), np.zeros([1])]]


def callbacks() -> list[Entry]:
    made = [None, "x", 1, [], {}, object(), sgmcmc.SGLD, TARGET, tfd.Normal(0.0, 1.0)]
    valid = dict(
        kernel=sgld,
        num_examples=NUM_EXAMPLES,
        prior=None,
        num_burnin_steps=0,
        num_steps_between_results=0,
        seed=0,
        num_chains=None,
        initial_states="initializers",
        num_groups=None,
        num_burnin_epochs=0,
        sampling_threshold=None,
        noise_every=None,
        keep=None,
        mixing_distance=None,
        directory=None,
        seconds_between_commits=10.0,
        check_num_examples=True,
        max_excess_temperature=None,
    )
    kept = [None, "x", [], {}, 1j, np.ones([3]), object(), tf.constant("x")]
    data = dict(x=DATA, y=LABELS, sample_weight=None, batch_size=4)
    rows = [DATA[:7], np.zeros([0, 2], np.float32), DATA * NAN, DATA.astype(str)]
    return [
        Entry(
            "fit",
            "SamplerCallback",
            fitted,
            valid,
            dict(
                kernel=[*function(1, *made), sgmcmc.SGLD, *kernel()],
                num_examples=[*integer(1, optional=True), 7, 9],
                prior=priors(),
                num_burnin_steps=integer(0, optional=True),
                num_steps_between_results=integer(0, optional=True),
                seed=seed(optional=True),
                num_chains=integer(1, optional=True),
                num_groups=integer(2, optional=True),
                num_burnin_epochs=integer(0, optional=True),
                sampling_threshold=number(0.0, -1.0, optional=True),
                noise_every=integer(1, optional=True),
                keep=function(1, *kept, optional=True),
                mixing_distance=number(0.0, -1.0, optional=True),
                directory=path(optional=True),
                seconds_between_commits=number(-1.0),
                check_num_examples=boolean(),
                max_excess_temperature=number(0.0, -1.0, optional=True),
            ),
            {"num_examples": "N|examples", "kernel": "make_kernel_fn|kernel"},
        ),
        Entry(
            "fit",
            "SamplerCallback of two chains",
            fitted,
            {**valid, "num_chains": 2},
            dict(initial_states=starts()),
            {"initial_states": "initial_states|initial states"},
        ),
        Entry(
            "fit",
            "SamplerCallback.resident",
            resident,
            {**data, "reshuffle": "step", "steps_per_call": 1, "steps_per_epoch": 2, "growth": 1.0},
            dict(
                x=[*array(), *rows],
                y=[*array(optional=True), LABELS[:7], LABELS * NAN],
                sample_weight=[*array(optional=True), np.ones([7]), np.full([8], NAN)],
                batch_size=integer(1, NUM_EXAMPLES),
                reshuffle=choice("epoch"),
                steps_per_call=integer(1),
                steps_per_epoch=integer(1, optional=True),
                growth=number(0.0, 0.9),
            ),
            {"x": "x|data", "y": "y|data", "sample_weight": "sample_weight|data"},
        ),
    ]


def others() -> list[Entry]:
    model = network()
    model.evaluate(DATA, LABELS, verbose=0)  # builds the compiled loss
    room, models = "model", instance(keras.Model, keras.layers.Dense(1))

    def nll(make_distribution_fn: Any, reduction: Any, name: Any) -> Any:
        loss = sgmcmc.keras.NegativeLogLikelihood(make_distribution_fn, reduction, name)
        return loss(LABELS, tf.constant(LABELS))

    def estimated(**arguments: Any) -> Any:
        target = sgmcmc.keras.ModelLogProb(batch=(DATA, LABELS, None), **arguments)
        state = [tf.convert_to_tensor(v) for v in model.trainable_variables]
        return target.estimate(state, tf.constant([0, 1]))[:2]

    results = [None, "x", 1.0, [], {}, tfd.Normal, tfd.Normal(0.0, 1.0), object()]
    rows = tfd.Normal(np.zeros([7, 1], np.float32), 1.0)
    confidence, hits = np.full([8], 0.7), np.ones([8], bool)
    return [
        Entry(
            room,
            "by_variable",
            sgmcmc.keras.by_variable,
            dict(model=model, values={"dense": 1.0}, default=None),
            dict(
                model=models,
                values=instance({}, {"other": 1.0}, {1: 1.0}, {None: 1.0}, ["dense"]),
            ),
        ),
        Entry(
            room,
            "NegativeLogLikelihood",
            nll,
            dict(
                make_distribution_fn=lambda out: tfd.Normal(out, 1.0),
                reduction="sum_over_batch_size",
                name="nll",
            ),
            dict(
                make_distribution_fn=[
                    *function(1, *results),
                    Named("of 7 rows", lambda out: rows),
                    tfd.Normal(0.0, 1.0),
                ],
                reduction=choice("sum", optional=True),
            ),
        ),
        Entry(
            room,
            "ModelLogProb",
            estimated,
            dict(model=model, num_examples=8, log_prior_fn=lambda s: 0.0, num_chains=None),
            dict(
                model=models,
                num_examples=integer(1),
                log_prior_fn=function(1, None, "x", [], {}, object()),
                num_chains=integer(1, optional=True),
            ),
            {"log_prior_fn": "log_prior_fn|prior"},
        ),
        Entry(
            room,
            "expected_calibration_error",
            sgmcmc.keras.expected_calibration_error,
            dict(confidence=confidence, is_correct=hits, weights=None, num_bins=15),
            dict(
                confidence=array(confidence[:7], confidence + 1, -confidence, confidence * NAN),
                is_correct=array(hits[:7], np.full([8], NAN), np.full([8], 7.0)),
                weights=array(np.ones([7]), -np.ones([8]), np.zeros([8]), optional=True),
                num_bins=integer(1),
            ),
        ),
    ]


def batches() -> list[Entry]:
    """Calls of the data sets of `fit`."""
    rows = [DATA[:7], np.zeros([0, 2], np.float32), DATA * NAN, DATA.astype(str)]
    data = sgmcmc.keras.IndependentBatches(DATA, LABELS, batch_size=4, seed=0)

    def independent(**arguments: Any) -> Any:
        made = sgmcmc.keras.IndependentBatches(**arguments)
        sampler = sgmcmc.keras.SamplerCallback(
            sgld,
            prior=None,
            collect=sgmcmc.keras.Collect(0, 0),
            seed=0,
            num_examples=NUM_EXAMPLES,
        )
        network().fit(made, epochs=1, verbose=0, callbacks=[sampler])
        return [np.asarray(x) for x in sampler.samples]

    return [
        Entry(
            "fit",
            "IndependentBatches",
            independent,
            dict(
                x=DATA,
                y=LABELS,
                sample_weight=None,
                batch_size=4,
                seed=0,
                steps_per_epoch=2,
                growth=1.0,
            ),
            dict(
                x=[*array(), *rows],
                y=[*array(optional=True), LABELS[:7], LABELS * NAN],
                sample_weight=[*array(optional=True), np.ones([7]), np.full([8], NAN)],
                batch_size=integer(1, NUM_EXAMPLES),
                seed=seed(optional=True),
                steps_per_epoch=integer(1, optional=True),
                growth=number(0.0, 0.9),
            ),
            {"x": "x|data", "y": "y|data|labels", "sample_weight": "sample_weight|data"},
        ),
        Entry(
            "fit",
            "WorkerBatches",
            lambda data: sgmcmc.keras.WorkerBatches(data).num_batches,
            dict(data=data),
            dict(data=instance(DATA, (DATA, LABELS), sgmcmc.keras.IndependentBatches)),
        ),
    ]


def losses() -> list[Entry]:
    """Calls of the losses that save with the model, and of `find_step_size`."""
    found, y = [], tf.ones([4, 1])
    numbers = {
        "GaussianNLL": ["scale"],
        "StudentTNLL": ["df", "scale"],
        "PoissonNLL": [],
        "NegativeBinomialNLL": ["concentration"],
    }
    for name, known in numbers.items():
        kind = getattr(sgmcmc.keras.losses, name)
        found.append(
            Entry(
                "model",
                f"losses.{name}",
                lambda kind=kind, **arguments: kind(**arguments)(y, y),
                {**dict.fromkeys(known, 1.0), "reduction": "sum_over_batch_size"},
                {
                    **{k: number(0.0, -1.0, optional=k != "df") for k in known},
                    "reduction": choice("sum", optional=True),
                },
            )
        )
        found.append(
            Entry(
                "model",
                f"losses.{name} on y",
                lambda labels, kind=kind, known=known: kind(**dict.fromkeys(known, 1.0))(
                    labels, tf.ones([4, 1])
                ),
                dict(labels=np.ones([4, 1], np.float32)),
                dict(labels=[np.ones([3, 1]), np.ones([4, 2]), np.ones([1, 4]), np.ones([8, 1])]),
                {"labels": "y|y_true|observations|labels"},
            )
        )

    def suggested(**arguments: Any) -> Any:
        return sgmcmc.keras.find_step_size(verbose=0, **arguments).step_size

    found.append(
        Entry(
            "fit",
            "find_step_size",
            suggested,
            dict(
                model=network(),
                x=DATA,
                y=LABELS,
                sample_weight=None,
                prior=tfd.Normal(0.0, 1.0),
                batch_size=4,
                kernel="SGLD",
                max_excess_temperature=0.1,
            ),
            dict(
                model=instance(keras.Model, keras.layers.Dense(1), keras.Sequential()),
                x=array(DATA[:7], np.zeros([0, 2], np.float32), DATA.astype(str)),
                y=array(LABELS[:7], LABELS * NAN),
                sample_weight=array(np.ones([7]), np.full([8], NAN), optional=True),
                prior=[v for v in priors() if v is not None],
                batch_size=integer(1, NUM_EXAMPLES),
                kernel=choice("SGLD"),
                max_excess_temperature=number(0.0, -1.0),
            ),
            {"x": "x|data", "y": "y|data|labels", "sample_weight": "sample_weight|data"},
        )
    )
    return found


def entries() -> list[Entry]:
    return [*callbacks(), *batches(), *others(), *losses()]
