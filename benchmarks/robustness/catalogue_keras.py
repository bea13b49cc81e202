"""Calls of `SamplerCallback` in `fit`, of `Posterior` and of the other names in `keras`."""

from __future__ import annotations

import tempfile
from pathlib import Path
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
SAMPLES = np.random.default_rng(2).normal(size=[3, 2, 1]).astype(np.float32)


def network() -> keras.Model:
    """Returns a logistic regression of two weights, which runs without being compiled."""
    dense = keras.layers.Dense(1, use_bias=False, name="dense")
    model = keras.Sequential([keras.Input([2]), dense], name="net")
    model.compile(loss=keras.losses.BinaryCrossentropy(from_logits=True), run_eagerly=True)
    return model


def sgld(target: Any) -> Any:
    return sgmcmc.SGLD(target, 0.01)


def fitted(*, directory: Any = None, **arguments: Any) -> Any:
    """Returns the samples of an epoch of two steps."""
    sampler = sgmcmc.keras.SamplerCallback(directory=directory, **arguments)
    network().fit(DATA, LABELS, batch_size=4, shuffle=False, verbose=0, callbacks=[sampler])
    return [np.asarray(x) for x in sampler.samples]


def resident(**arguments: Any) -> Any:
    sampler = sgmcmc.keras.SamplerCallback(sgld, NUM_EXAMPLES, None, 0, seed=0)
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
        make_kernel_fn=sgld,
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
                make_kernel_fn=[*function(1, *made), sgmcmc.SGLD, *kernel()],
                num_examples=[*integer(1), 7, 9],
                prior=priors(),
                num_burnin_steps=integer(0),
                num_steps_between_results=integer(0),
                seed=seed(optional=True),
                num_chains=integer(1, optional=True),
                num_groups=integer(2, optional=True),
                num_burnin_epochs=integer(0),
                sampling_threshold=number(0.0, -1.0, optional=True),
                noise_every=integer(1, optional=True),
                keep=function(1, *kept, optional=True),
                mixing_distance=number(0.0, -1.0, optional=True),
                directory=path(optional=True),
                seconds_between_commits=number(-1.0),
                check_num_examples=boolean(),
                max_excess_temperature=number(0.0, -1.0, optional=True),
            ),
            {"num_examples": "N|examples", "make_kernel_fn": "make_kernel_fn|kernel"},
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


def posteriors() -> list[Entry]:
    model = network()
    variables = model.trainable_variables
    posterior = sgmcmc.keras.Posterior(model, variables, [SAMPLES])
    with tempfile.TemporaryDirectory() as folder:
        posterior.save(f"{folder}/p.npz")
        stored = Path(f"{folder}/p.npz").read_bytes()
    room, models = "model", instance(keras.Model, keras.layers.Dense(1), keras.Sequential())
    samples = array([SAMPLES[0]], [SAMPLES, SAMPLES], [SAMPLES[:0]], [SAMPLES * NAN], [["a"]])
    rows = array(DATA[:, :1], np.zeros([0, 2], np.float32), DATA.astype(str))
    labels = array(LABELS[:7], np.full([8, 1], 7.0), LABELS * NAN)
    weights = array(np.ones([7]), -np.ones([8]), np.full([8], NAN), np.zeros([8]), optional=True)
    shares = [None, "x", {}, [1.0], [NAN] * len(SAMPLES), [-1.0] * len(SAMPLES), np.zeros([3, 3])]
    activations = function(1, None, "x", [], {}, object(), optional=True)
    arguments = dict(x=DATA, y=LABELS, sample_weight=None, batch_size=4)

    def made(**arguments: Any) -> Any:
        return sgmcmc.keras.Posterior(**arguments).predict(DATA).mean

    def saved(path: Any) -> Any:
        if isinstance(path, str) and path in ("", "a\0b"):
            return posterior.save(path)
        with tempfile.TemporaryDirectory() as folder:
            return posterior.save(folder if path == "a directory" else path)

    def loaded(path: Any, model: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "p.npz"
            file.write_bytes(stored)
            places = {"good": file, "a directory": folder, "no file": f"{folder}/other"}
            place = places.get(path, path) if isinstance(path, str) else path
            return sgmcmc.keras.Posterior.load(place, model).samples

    return [
        Entry(
            room,
            "Posterior",
            made,
            dict(
                model=model, variables=variables, samples=[SAMPLES], num_chains=None, weights=None
            ),
            dict(
                model=models,
                variables=instance([], [SAMPLES], [None]),
                samples=samples,
                num_chains=integer(1, optional=True),
                weights=shares,
            ),
        ),
        Entry(
            room,
            "Posterior.with_samples",
            lambda **given: posterior.with_samples(**given).samples,
            dict(samples=[SAMPLES], weights=None),
            dict(samples=samples, weights=shares),
        ),
        *(
            Entry(
                room,
                f"Posterior.{name}",
                lambda name=name, **given: getattr(posterior, name)(**given),
                dict(x=DATA, batch_size=4, activation="auto"),
                dict(
                    x=rows,
                    batch_size=integer(1),
                    activation=[*choice("auto", optional=True), *activations],
                ),
            )
            for name in ("predict", "outputs")
        ),
        Entry(
            room,
            "Posterior.evaluate",
            lambda **given: posterior.evaluate(**given),
            arguments,
            dict(x=rows, y=labels, sample_weight=weights, batch_size=integer(1)),
            {"y": "y|labels"},
        ),
        Entry(
            room,
            "Posterior.log_likelihood",
            lambda **given: posterior.log_likelihood(**given),
            {k: arguments[k] for k in ("x", "y", "batch_size")},
            dict(x=rows, y=labels, batch_size=integer(1)),
            {"y": "y|labels"},
        ),
        Entry(
            room,
            "Posterior.to_inference_data",
            lambda log_likelihood: str(posterior.to_inference_data(log_likelihood)),
            dict(log_likelihood=np.zeros([3, 8])),
            dict(log_likelihood=array(np.zeros([2, 8]), optional=True)),
        ),
        Entry(
            room,
            "Posterior.load",
            loaded,
            dict(path="good", model=model),
            dict(path=[*path(), "a directory", "no file"], model=models),
            {"path": "path|file|directory|p.npz|other"},
        ),
        Entry(
            room,
            "Posterior.save",
            saved,
            dict(path=f"{tempfile.gettempdir()}/robustness.npz"),
            dict(path=[*[v for v in path() if not isinstance(v, int)], "a directory"]),
            {"path": "path|file|directory"},
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


def entries() -> list[Entry]:
    return [*callbacks(), *posteriors(), *others()]
