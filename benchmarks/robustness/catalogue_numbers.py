"""Calls of the schedules and the functions of `random`."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.robustness.calls import Entry
from benchmarks.robustness.catalogue_samplers import SEED
from benchmarks.robustness.values import (
    INF,
    NAN,
    function,
    integer,
    number,
    seed,
)


def schedules() -> list[Entry]:
    room, sch = "schedules", sgmcmc.schedules
    at = tf.constant([0, 1, 2, 7], tf.int64)
    cyclical = dict(initial_value=1.0, num_steps=8, num_cycles=2, exploration_ratio=0.5)
    results = [None, "x", [], {}, object(), 1j, NAN, INF, np.ones([3])]
    return [
        Entry(
            room,
            "PolynomialDecay",
            lambda **arguments: sch.PolynomialDecay(**arguments)(at),
            dict(a=1.0, b=1.0, gamma=0.55),
            dict(a=number(0.0, -1.0), b=number(0.0, -1.0), gamma=number(-1.0)),
        ),
        Entry(
            room,
            "PolynomialDecay.from_endpoints",
            lambda **arguments: sch.PolynomialDecay.from_endpoints(**arguments)(at),
            dict(first=1.0, last=0.1, num_steps=8, gamma=0.55),
            dict(
                first=number(0.0, -1.0, 0.1),
                last=number(0.0, -1.0, 1.0),
                num_steps=integer(2),
                gamma=number(0.0, -1.0),
            ),
        ),
        Entry(
            room,
            "ConstantBelow",
            lambda **arguments: sch.ConstantBelow(**arguments)(tf.constant(3, tf.int64)),
            dict(schedule=sch.PolynomialDecay(1.0), critical_value=0.1),
            dict(schedule=function(1, *results), critical_value=number(0.0, -1.0)),
        ),
        Entry(
            room,
            "Cyclical",
            lambda **arguments: sch.Cyclical(**arguments)(at),
            cyclical,
            dict(
                initial_value=number(0.0, -1.0),
                num_steps=integer(1),
                num_cycles=[*integer(1), 9],
                exploration_ratio=number(-0.1, 1.0, 2.0),
            ),
        ),
    ]


def random_numbers() -> list[Entry]:
    room, rng = "random", sgmcmc.random
    indices = dict(seed=SEED, positions=tf.range(4), num_examples=8, chain_shape=())
    sizes = integer(1)
    return [
        Entry(room, "as_seed", rng.as_seed, dict(seed=0), dict(seed=seed())),
        Entry(room, "split", rng.split, dict(seed=SEED, num=2), dict(seed=seed(), num=sizes)),
        Entry(room, "fold_in", rng.fold_in, dict(seed=SEED, data=1), dict(seed=seed())),
        *(
            Entry(
                room,
                name,
                getattr(rng, name),
                dict(shape=[2], dtype=tf.float32, seed=SEED),
                dict(seed=seed()),
            )
            for name in ("normal", "three_point")
        ),
        *(
            Entry(room, name, getattr(rng, name), indices, dict(seed=seed(), num_examples=sizes))
            for name in ("permuted_indices", "uniform_indices")
        ),
        *(
            Entry(
                room,
                name,
                getattr(rng, name),
                dict(state=tf.zeros([2]), seed=SEED),
                dict(seed=seed()),
            )
            for name in ("normal_like", "rademacher_like", "three_point_like")
        ),
        Entry(
            room,
            "epoch_indices",
            rng.epoch_indices,
            dict(seed=SEED, step=tf.constant(3, tf.int64), batch_size=4, num_examples=8),
            dict(seed=seed(), batch_size=integer(1, 8), num_examples=integer(4)),
            {"num_examples": "batch_size must be in"},
        ),
    ]


def entries() -> list[Entry]:
    return [*schedules(), *random_numbers()]
