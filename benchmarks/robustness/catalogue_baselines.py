"""Calls of `SWAG`, of Laplace's approximation, of `Traces` and of the plan of a `fit`."""

from __future__ import annotations

import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.robustness.calls import Entry
from benchmarks.robustness.catalogue_keras import LABELS, network, priors, sgld
from benchmarks.robustness.values import (
    DATA,
    NAN,
    NUM_EXAMPLES,
    array,
    choice,
    instance,
    integer,
    number,
    path,
    seed,
)

tfd = tfp.distributions
ROWS = [DATA[:, :1], np.zeros([0, 2], np.float32), DATA.astype(str)]


def swag(**arguments: Any) -> sgmcmc.keras.SWAG:
    """Returns the callback of four epochs of two steps."""
    callback = sgmcmc.keras.SWAG(**arguments)
    network().fit(DATA, LABELS, batch_size=4, epochs=4, verbose=0, callbacks=[callback])
    return callback


def traced(**arguments: Any) -> Any:
    sampler = sgmcmc.keras.SamplerCallback(
        sgld,
        prior=None,
        collect=sgmcmc.keras.Collect(0, 0),
        seed=0,
        num_examples=NUM_EXAMPLES,
    )
    given: dict[str, Any] = {"sampler": sampler, "log_dir": tempfile.mkdtemp(), **arguments}
    network().fit(DATA, LABELS, verbose=0, callbacks=[sampler, sgmcmc.keras.Traces(**given)])
    return [np.asarray(x) for x in sampler.samples]


def entries() -> list[Entry]:
    collected = swag(burn_in=1)
    model, sampler = (
        network(),
        sgmcmc.keras.SamplerCallback(
            sgld,
            prior=None,
            collect=sgmcmc.keras.Collect(0, 0),
            seed=0,
            num_examples=NUM_EXAMPLES,
        ),
    )
    kinds = instance(keras.Model, keras.layers.Dense(1), keras.Sequential())
    return [
        Entry(
            "model",
            "SWAG",
            lambda **arguments: swag(**arguments).mean,
            dict(burn_in=1, collect_every=1, unit="epochs", rank=2),
            dict(
                burn_in=integer(0),
                collect_every=integer(1),
                unit=choice("steps"),
                rank=[*integer(0), 1],
            ),
        ),
        Entry(
            "model",
            "SWAG.posterior",
            lambda **arguments: collected.posterior(**arguments).samples,
            dict(num_samples=2, seed=0, scale=0.5, x=None, batch_size=None),
            dict(num_samples=integer(1), seed=seed(optional=True), scale=number(-1.0)),
        ),
        Entry(
            "model",
            "last_layer_laplace",
            lambda **arguments: sgmcmc.keras.last_layer_laplace(**arguments).samples,
            dict(
                model=model,
                x=DATA,
                y=LABELS,
                prior=tfd.Normal(0.0, 1.0),
                num_samples=2,
                seed=0,
                batch_size=4,
            ),
            dict(
                model=kinds,
                x=array(*ROWS),
                y=array(LABELS[:7], LABELS * NAN),
                prior=[v for v in priors() if v is not None],
                num_samples=integer(1),
                seed=seed(optional=True),
                batch_size=integer(1),
            ),
            {"x": "x|data", "y": "y|data|labels"},
        ),
        Entry(
            "fit",
            "Traces",
            traced,
            dict(weights=1, probe=None, most_points=5),
            dict(
                sampler=instance(sgmcmc.keras.SamplerCallback, sampler),
                log_dir=path(),
                weights=[*integer(1), [("other", (0, 0))], [("dense/kernel", (7, 0))]],
                most_points=integer(1),
            ),
            {"log_dir": "log_dir|path"},
        ),
        Entry(
            "fit",
            "SamplerCallback.plan",
            lambda **arguments: sampler.plan(**arguments).num_samples,
            dict(model=model, x=DATA, y=LABELS, epochs=2, batch_size=4, steps_per_epoch=None),
            dict(
                model=kinds,
                epochs=integer(1),
                batch_size=integer(1),
                steps_per_epoch=integer(1, optional=True),
            ),
        ),
    ]
