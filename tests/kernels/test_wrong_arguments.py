"""Wrong arguments of every kernel are refused by name before the first step."""

import inspect
import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness.by_hand import MODEL

TARGET = MODEL.target(6)
NEEDED = {"ReplicaExchangeSGLD": {"temperatures": [1.0, 2.0, 3.0]}}
NUMBERS = [
    "step_size", "temperature", "friction", "mass", "thermal_mass", "alpha", "B",
    "initial_momentum", "preconditioner", "correction_factor",
]  # fmt: skip
NEVER = {
    "a string": "x",
    "bool": True,
    "inf": np.inf,
    "nan": float("nan"),
    "complex": 1j,
    "a complex tensor": tf.constant(1j),
    "a boolean tensor": tf.constant(True),
    "ragged lists": [[1.0], [1.0, 2.0]],
    "a ragged tensor": tf.ragged.constant([[1.0], [1.0, 2.0]]),
    "a dict that does not fit": {"q": 1.0},
    "an object": object(),
    "a data set": tf.data.Dataset.range(3),
    "another shape": np.ones([5, 7]),
    "beyond float32": 1e39,
    "a schedule of strings": lambda t: "x",
    "a schedule of None": lambda t: None,
    "a schedule of NaN": lambda t: np.nan,
    "a schedule of lists": lambda t: [1.0, 2.0],
    "a schedule without argument": lambda: 1.0,
    "a schedule that raises": lambda t: 1 / 0,
    "a class": dict,
}


def arguments() -> list[Any]:
    return [
        (name, argument)
        for name in sgmcmc.kernels.__all__
        for argument in inspect.signature(getattr(sgmcmc, name)).parameters
        if argument in NUMBERS
    ]


# An infinite factor turns the correction off, and a large one is only nearly infinite.
ALLOWED = {("correction_factor", "inf"), ("correction_factor", "beyond float32")}


def make(name: str, argument: str, value: Any) -> Any:
    step = {} if argument == "alpha" else {"step_size": 0.1}
    options = {**step, **NEEDED.get(name, {}), argument: value}
    return getattr(sgmcmc, name)(TARGET, **options).bootstrap_results(tf.zeros([2, 3]))


@pytest.mark.parametrize(("name", "argument"), arguments())
def test_what_is_no_number_is_refused(name: str, argument: str) -> None:
    refused = [x for x in NEVER.items() if (argument, x[0]) not in ALLOWED]
    for what, value in refused:
        with pytest.raises((TypeError, ValueError), match=argument) as error:
            make(name, argument, value)
        assert "must" in str(error.value) and "Received" in str(error.value), what


@pytest.mark.parametrize(("name", "argument"), arguments())
def test_what_must_be_positive(name: str, argument: str) -> None:
    if argument == "initial_momentum":
        return
    for value in (-1.0, tf.Variable(-1.0), np.array([1.0, -1.0, 1.0]), lambda t: -1.0):
        with pytest.raises((TypeError, ValueError), match=f"{argument}.* must .*Received"):
            make(name, argument, value)


@pytest.mark.parametrize("name", sgmcmc.kernels.__all__)
@pytest.mark.parametrize(
    "target", [np.ones([3]), [1.0], "x", None, 1.0, tf.ones([3]), tf.data.Dataset.range(3)], ids=str
)
def test_what_is_no_target_is_refused(name: str, target: Any) -> None:
    with pytest.raises(TypeError, match="target_log_prob_fn must be a callable.* Received: a"):
        if name == "IndependentMetropolis":
            sgmcmc.IndependentMetropolis(target, tf.zeros([1]), [[-1.0]])
        else:
            getattr(sgmcmc, name)(target, 0.1, **NEEDED.get(name, {}))


@pytest.mark.parametrize("value", ["x", None, 1.0, [1.0, 2.0], True, np.ones([2]), tf.constant(1)])
@pytest.mark.parametrize("kernel", [sgmcmc.SGLD, sgmcmc.NOGIN, sgmcmc.CorrectedLangevin])
def test_what_is_no_log_probability_is_refused(kernel: Any, value: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        made = kernel(lambda theta: value, 0.1)
    with pytest.raises((TypeError, ValueError), match="must (return|depend).* Received: "):
        made.bootstrap_results(tf.zeros([2, 3]))
