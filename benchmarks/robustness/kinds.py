"""Values that the library's kinds of arguments must refuse, by the name of the argument."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.robustness.values import (
    BATCH_SIZE,
    DATA,
    INF,
    NAN,
    NUM_EXAMPLES,
    Named,
    Thing,
    array,
    function,
    instance,
    integer,
    kernel,
    label,
    number,
    path,
    returning,
    seed,
    setting,
    signatures,
    state,
    target,
)

cov, pre = sgmcmc.covariance, sgmcmc.preconditioners
tfb, tfd = tfp.bijectors, tfp.distributions
SEED, STATE = tf.constant([0, 1]), np.zeros([2], np.float32)


def log_prior(w: tf.Tensor) -> tf.Tensor:
    return -0.5 * tf.reduce_sum(tf.square(w), axis=-1)


def log_likelihood(w: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
    return -0.5 * tf.reduce_sum(tf.square(batch - w[..., tf.newaxis, :]), axis=-1)


TARGET = sgmcmc.MinibatchLogProb(log_prior, log_likelihood, DATA, BATCH_SIZE)
KERNEL = sgmcmc.SGLD(TARGET, 0.01)


def steps(kernel: Any, start: Any = STATE, num_steps: int = 2) -> Any:
    """Returns the state after some steps."""
    at, results = start, kernel.bootstrap_results(start)
    for step in range(num_steps):
        at, results = kernel.one_step(at, results, seed=[0, step])
    return at


def use(made: Any) -> Any:
    """Returns what a target gives: a preflight, and the state after two steps."""
    sgmcmc.preflight(made, STATE)
    return steps(sgmcmc.SGLD(made, 0.01))


def finite(wrong: Sequence[Any]) -> list[Any]:
    """Leaves out NaN and infinity, which come out as NaN; `check_finite` is there for them."""
    return [v for v in wrong if "nan" not in repr(v) and "inf" not in repr(v)]


def covariances() -> list[Any]:
    strings = ["x", "", "FULL", b"full", ["full"], ("full",), Thing, cov.Full, cov.RunningMean()]
    return [*strings, None, True, 0, 1.5, NAN, np.eye(2), {}, [], set(), lambda: 0]


def numbers_only(*outside: float, optional: bool = False) -> list[Any]:
    """Wrong values of what is a number or an array, but no schedule."""
    return [v for v in setting(*outside, optional=optional) if not callable(v)]


def matrices() -> list[Any]:
    dense = [np.eye(2), np.zeros([2, 2]), pre.Diagonal, pre.RMSprop, cov.Diag()]
    wrong = ["x", b"x", True, 0, -1.0, NAN, INF, [], {}, set(), lambda: 1.0, Thing]
    return [*wrong, *dense, np.ones([3]), tf.constant([1.0, -1.0]), *setting(0.0, optional=True)]


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
    made = ["exp", tfb.Exp, tfd.Normal(0.0, 1.0), [tfb.Exp(), tfb.Exp()], {"w": tfb.Exp()}]
    return instance(*made, tfb.Reshape([3]), optional=True)


def data() -> list[Any]:
    unequal = {"x": np.zeros([8, 2], np.float32), "y": np.zeros([7], np.float32)}
    wrong = [DATA[0, 0], DATA * NAN, unequal, [DATA, None], DATA.astype(str), iter([1.0])]
    dates = np.full([8, 2], np.datetime64("2026-01-01"))
    return array(*wrong, DATA.astype(object), DATA * 1j, dates, tf.data.Dataset)


def datasets() -> list[Any]:
    rows = tf.data.Dataset.from_tensor_slices(DATA)
    empty = rows.take(0).batch(4, drop_remainder=True)
    wrong = [None, "x", b"x", True, 1, 0.5, NAN, [], {}, set(), DATA, tf.constant(DATA), Thing]
    batches = [
        tf.data.Dataset.from_tensor_slices(DATA * NAN).batch(4, drop_remainder=True),
        tf.data.Dataset.from_tensor_slices(DATA.astype(str)).batch(4, drop_remainder=True),
        tf.data.Dataset.range(8).map(tf.strings.as_string).batch(4, drop_remainder=True),
        rows.batch(3),
        tf.data.Dataset,
    ]
    results = [None, "x", 1, [], {}, DATA, rows, empty, object()]
    functions = [*signatures(1), *returning(*results)]
    return [*wrong, rows, empty, *batches, *functions, object(), ...]


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


def dtypes() -> list[Any]:
    wrong = ["x", int, "int32", tf.int32, bool, "complex64", tf.string, str, object(), 3.5, [], {}]
    return [*wrong, Thing, lambda: 0, NAN, np.ones(2), 1j, ..., True]


def minibatch_targets() -> list[Any]:
    """Wrong values of what must be a `MinibatchLogProb`."""
    others = [sgmcmc.FullDataLogProb(log_prior), sgmcmc.MinibatchLogProb, log_prior]
    return instance(*others, sgmcmc.SVRG(TARGET))


def centers() -> list[Any]:
    return [*state(), np.zeros([3, 2], np.float32)]


def draws(*others: Any) -> list[Any]:
    """Wrong values of draws `[results, event...]`."""
    return finite(array({}, np.zeros([0, 2]), [[1.0, 2.0], [3.0]], *others))


def step_size_functions() -> list[Any]:
    return function(1, None, "x", NAN, [], {}, object(), -1.0, 1j, np.ones([3]))


def traces() -> list[Any]:
    results = [None, "x", object(), {"a": "x"}, {"a": None}, np.array(["a"]), [1.0, "a"]]
    return function(2, *results, optional=True)


def models() -> list[Any]:
    return instance(keras.Model, keras.layers.Dense(1), keras.Sequential())


def priors() -> list[Any]:
    names = [{}, {"other": tfd.Normal(0.0, 1.0)}, {"*": 1.0}, {"*": "x"}, {1: None}]
    shapes = [tfd.Normal(0.0, [1.0, 2.0, 3.0]), tfd.Normal, "normal", tfd.Categorical([0.0, 1.0])]
    results = [None, "x", [], {}, 1j, NAN, np.ones([3], np.float32), object()]
    return [*names, *shapes, *function(1, *results, optional=True)]


def rows() -> list[Any]:
    """Wrong values of the inputs of a model of two features."""
    return array(DATA[:, :1], np.zeros([0, 2], np.float32), DATA.astype(str))


def labels() -> list[Any]:
    right = (DATA[:, :1] > 0).astype(np.float32)
    return array(right[:7], np.full([8, 1], 7.0), right * NAN)


def example_weights() -> list[Any]:
    """Wrong values of weights of the eight examples."""
    return array(np.ones([7]), -np.ones([8]), np.full([8], NAN), np.zeros([8]), optional=True)


def verbosities() -> list[Any]:
    """Wrong values of `verbose`, which is "auto", 0, 1 or 2."""
    return ["x", "", None, 0.5, NAN, [], {}, set(), str, Thing, 3, -1, object(), 1j, ...]


def executors() -> list[Any]:
    return [v for v in instance(optional=True) if not hasattr(v, "submit")]


def paths() -> list[Any]:
    return [v for v in path(optional=True) if v is not True]


def candidates() -> list[Any]:
    grids = [{"step_size": []}, {"step_size": 0.1}, {"step_size": ["x"]}, {"other": [0.1]}]
    lists = [{1: [0.1]}, [{"step_size": 0.1}, {"other": 1}], [0.1, 0.2], {"step_size": [-1.0]}]
    return [*instance(), *grids, *lists]


def temperatures() -> list[Any]:
    """Wrong values of increasing temperatures from 1."""
    lists = [[1.0], [2.0, 1.0], [1.0, 1.0], [0.0, 1.0], [-1.0, 1.0], [1.0, NAN], [1.0, INF]]
    return [*setting(), *lists, np.ones([2, 2])]


# The wrong values of an argument, by its name; None is left out where it is the default.
BY_NAME: dict[str, Callable[[], Sequence[Any]]] = {
    "target_log_prob_fn": target,
    "target": minibatch_targets,
    "kernel": kernel,
    "state": state,
    "init_state": state,
    "initial_state": state,
    "new_state": state,
    "current_state": lambda: finite(state()),
    "previous_kernel_results": instance,
    "center": centers,
    "seed": seed,
    "step_size": lambda: setting(0.0, -0.1),
    "learning_rate": lambda: setting(0.0, -1.0),
    "temperature": lambda: setting(-1.0),
    "temperatures": temperatures,
    "friction": lambda: setting(-1.0),
    "thermal_mass": lambda: setting(0.0, -1.0),
    "mass": lambda: numbers_only(0.0, -1.0),
    "initial_momentum": lambda: numbers_only(optional=True),
    "correction_factor": lambda: [v for v in number(0.5, 0.0, -1.0) if label(v) != "inf"],
    "B": lambda: [*numbers_only(0.0, -1.0), "x", "Fisher", pre.Diagonal(1.0), pre.FullMatrix],
    "covariance": covariances,
    "average": lambda: instance("full", cov.RunningMean, cov.Full(), optional=True),
    "preconditioner": matrices,
    "num_estimation_steps": lambda: integer(0),
    "log_prior_fn": log_priors,
    "log_likelihood_fn": log_likelihoods,
    "score_fn": scores,
    "bijector": bijectors,
    "data": data,
    "dataset": datasets,
    "load_shard": shards,
    "dtype": dtypes,
    "batch_size": lambda: integer(1, NUM_EXAMPLES),
    "num_examples": lambda: [*integer(1), 7, 9],
    "num_shards": lambda: [*integer(1), 3, 9],
    "num_groups": lambda: [*integer(2, 4), 3, 5],
    "tolerance": lambda: number(0.0, -1.0),
    "rtol": lambda: number(-1.0),
    "growth": lambda: number(0.0, 0.5),
    "initial_size": lambda: number(0.0, -1.0, 9.0),
    "distance": lambda: number(0.0, -1.0, 0.01),
    "scale": lambda: number(0.0, -1.0),
    "exponent": lambda: number(0.0, -1.0, 0.5, -2.0),
    "threshold": lambda: number(0.0, -1.0),
    "window": lambda: number(0.0, -1.0),
    "seconds_per_result": lambda: number(0.0, -1.0),
    "max_excess_temperature": lambda: number(0.0, -1.0),
    "sampling_threshold": lambda: number(0.0, -1.0),
    "mixing_distance": lambda: number(0.0, -1.0),
    "chain_ndims": lambda: [*integer(0), 7],
    "samples": draws,
    "gradients": draws,
    "step_size_fn": step_size_functions,
    "metric": lambda: function(1, None, "x", [], {}, object(), np.zeros([3]), optional=True),
    "trace_fn": traces,
    "directory": paths,
    "executor": executors,
    "resume": lambda: [v for v in ("x", "", "Must", b"must", 0, 1.5, [], {}, object())],
    "candidates": candidates,
    "model": models,
    "prior": priors,
    "x": rows,
    "y": labels,
    "sample_weight": example_weights,
    "verbose": verbosities,
}
