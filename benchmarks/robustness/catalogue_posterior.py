"""Calls of `Posterior` and of what it returns."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.robustness.calls import Entry
from benchmarks.robustness.catalogue_keras import LABELS, network
from benchmarks.robustness.values import (
    DATA,
    NAN,
    array,
    choice,
    function,
    instance,
    integer,
    number,
    path,
    seed,
)

SAMPLES = np.random.default_rng(2).normal(size=[3, 2, 1]).astype(np.float32)


def verbosities() -> list[Any]:
    """Wrong values of `verbose`, which is "auto", 0, 1 or 2."""
    numbers = [v for v in choice("auto") if not isinstance(v, int)]
    return [*numbers, 3, -1]


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
    shares = ["x", {}, [1.0], [NAN] * len(SAMPLES), [-1.0] * len(SAMPLES), np.zeros([3, 3])]
    activations = function(1, None, "x", [], {}, object(), optional=True)
    arguments = dict(x=DATA, y=LABELS, sample_weight=None, batch_size=4)

    def made(**arguments: Any) -> Any:
        return sgmcmc.keras.Posterior(**arguments).predict(DATA).mean

    def saved(path: Any) -> Any:
        if isinstance(path, str) and path in ("", "a\0b"):
            return posterior.save(path)
        with tempfile.TemporaryDirectory() as folder:
            is_folder = isinstance(path, str) and path == "a directory"
            return posterior.save(folder if is_folder else path)

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
                dict(x=DATA, batch_size=4, activation="auto", steps=None, verbose=0),
                dict(
                    x=rows,
                    steps=integer(1, optional=True),
                    verbose=verbosities(),
                    batch_size=integer(1, optional=True),
                    activation=[*choice("auto", optional=True), *activations],
                ),
            )
            for name in ("predict", "outputs")
        ),
        Entry(
            room,
            "Posterior.evaluate",
            lambda **given: posterior.evaluate(**given),
            {**arguments, "steps": None, "verbose": 0},
            dict(
                x=rows,
                y=labels,
                sample_weight=weights,
                batch_size=integer(1, optional=True),
                steps=integer(1, optional=True),
                verbose=verbosities(),
            ),
            {"y": "y|labels"},
        ),
        Entry(
            room,
            "Posterior.log_likelihood",
            lambda **given: posterior.log_likelihood(**given),
            {k: arguments[k] for k in ("x", "y", "batch_size")},
            dict(x=rows, y=labels, batch_size=integer(1, optional=True)),
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


def regression() -> sgmcmc.keras.Posterior:
    """Returns the samples of a linear regression with known noise, two chains of 4 samples."""
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1, use_bias=False)])
    model.compile(loss=sgmcmc.keras.losses.GaussianNLL(scale=1.0), run_eagerly=True)
    kernels = np.random.default_rng(3).normal(size=[4, 2, 2, 1]).astype(np.float32)
    return sgmcmc.keras.Posterior(model, model.trainable_variables, [kernels], num_chains=2)


def forms() -> list[Entry]:
    """Calls that make other forms of a posterior, and its tables and pictures."""
    posterior = regression()
    classifier = network()
    other = sgmcmc.keras.Posterior(classifier, classifier.trainable_variables, [SAMPLES])
    room, kinds = "model", [sgmcmc.keras.Posterior, posterior.samples, posterior.model]

    def called(name: str) -> Any:
        return lambda **arguments: getattr(posterior, name)(**arguments)

    return [
        Entry(
            room,
            "Posterior.thin",
            lambda k: posterior.thin(k).samples,
            dict(k=2),
            dict(k=integer(1)),
        ),
        Entry(
            room,
            "Posterior.to_dtype",
            lambda dtype: posterior.to_dtype(dtype).samples,
            dict(dtype="float16"),
            dict(dtype=[*choice("float16"), "float32", "int8", int, tf.int32]),
        ),
        Entry(
            room,
            "Posterior.concatenate",
            lambda posteriors: sgmcmc.keras.Posterior.concatenate(posteriors).samples,
            dict(posteriors=[posterior, posterior]),
            dict(
                posteriors=[
                    *instance(*kinds),
                    *([posterior, kind] for kind in [*kinds, None, other, posterior.thin(2)]),
                ]
            ),
            {"posteriors": "posteriors|posterior|samples|variables"},
        ),
        Entry(
            room,
            "Posterior.summary",
            called("summary"),
            dict(most_entries=10),
            dict(most_entries=integer(1)),
        ),
        Entry(
            room,
            "Posterior.plot",
            called("plot"),
            dict(num_entries=1, most_entries=10),
            dict(num_entries=integer(1), most_entries=integer(1)),
        ),
        Entry(
            room,
            "Posterior.to_keras_model",
            lambda name: posterior.to_keras_model(name)(DATA)["mean"],
            dict(name=None),
            dict(name=[v for v in choice("x", optional=True) if not isinstance(v, str)]),
        ),
        Entry(
            room,
            "Posterior.sample_predictive",
            called("sample_predictive"),
            dict(x=DATA, num_draws=4, seed=0, batch_size=4, steps=None, verbose=0),
            dict(
                x=array(DATA[:, :1], np.zeros([0, 2], np.float32), DATA.astype(str)),
                num_draws=integer(1, optional=True),
                seed=seed(optional=True),
                batch_size=integer(1, optional=True),
                steps=integer(1, optional=True),
                verbose=verbosities(),
            ),
        ),
        Entry(
            room,
            "Posterior.predict of a regression",
            lambda quantiles: posterior.predict(DATA, quantiles=quantiles).predictive.quantiles,
            dict(quantiles=[0.1, 0.9]),
            dict(quantiles=array([0.0, 0.5], [0.5, 1.0], [[0.1, 0.9]], [-1.0], optional=True)),
        ),
        Entry(
            room,
            "Posterior.calibrate",
            lambda **given: other.calibrate(**given)(np.array([0.5])),
            dict(x=DATA, y=LABELS, sample_weight=None, batch_size=4, steps=None, verbose=0),
            dict(
                x=array(DATA[:, :1], np.zeros([0, 2], np.float32), DATA.astype(str)),
                y=array(LABELS[:7], np.full([8, 1], 7.0), LABELS * NAN),
                sample_weight=array(np.ones([7]), -np.ones([8]), np.zeros([8]), optional=True),
                batch_size=integer(1, optional=True),
                steps=integer(1, optional=True),
                verbose=verbosities(),
            ),
            {"y": "y|labels"},
        ),
        Entry(
            room,
            "TemperatureScaling",
            lambda temperature, axis, probabilities: sgmcmc.keras.TemperatureScaling(
                temperature, axis
            )(probabilities),
            dict(temperature=2.0, axis=-1, probabilities=np.array([[0.8, 0.2]])),
            dict(
                temperature=number(0.0, -1.0),
                axis=[*integer(-8, optional=True), 2],
                probabilities=array(np.array([[1.2, -0.2]])),
            ),
        ),
    ]


def entries() -> list[Entry]:
    return [*posteriors(), *forms()]
