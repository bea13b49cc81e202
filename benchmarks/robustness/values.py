"""Values that an argument must refuse, by the kind of the argument."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

NAN, INF = float("nan"), float("inf")
NUM_EXAMPLES, BATCH_SIZE = 8, 4
DATA = np.random.default_rng(0).normal(size=[NUM_EXAMPLES, 2]).astype(np.float32)


class Thing:
    """An object that nothing can use."""


class Frame:
    """A table with named columns, one of them of words, as pandas makes it."""

    columns, shape = ["age", "name"], (NUM_EXAMPLES, 2)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.array([[1.0, "Ann"]] * NUM_EXAMPLES, object)


class Named:
    """A function with a name for the lists of calls."""

    def __init__(self, name: str, fn: Callable[..., Any]):
        self.name, self.__wrapped__, self._fn = name, fn, fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._fn(*args, **kwargs)


def label(value: Any) -> str:
    """Returns a short name for a value."""
    if isinstance(value, Named):
        return f"a function, {value.name}"
    if isinstance(value, np.ndarray) and value.size > 4:
        return f"{value.dtype} {list(value.shape)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = " ".join(repr(value).split()).partition(" at 0x")[0]
    return text if len(text) <= 60 else text[:57] + "..."


def drawn(strategy: st.SearchStrategy[Any], count: int = 4) -> list[Any]:
    """Returns examples of a strategy, the same in each run."""
    found: list[Any] = []
    quiet = hypothesis.settings(
        max_examples=count,
        derandomize=True,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=[*hypothesis.HealthCheck],
    )

    @quiet
    @hypothesis.given(strategy)
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return found


# Values that no number, switch or function is.
NESTS = st.recursive(
    st.text(max_size=4) | st.binary(max_size=4) | st.complex_numbers(max_magnitude=9) | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)


@functools.cache
def _nests() -> list[Any]:
    return drawn(NESTS.filter(bool))


def junk() -> list[Any]:
    """Values that are wrong for every argument."""
    return [
        1j,
        object(),
        Thing(),
        [1.0, "a"],
        [[1.0], [1.0, 2.0]],
        np.array(["a", "b"]),
        np.array([None, {}], object),
        np.array([1j, 2j]),
        np.datetime64("2026-01-01"),
        tf.constant("x"),
        tf.ragged.constant([[1.0], [1.0, 2.0]]),
        tf.sparse.from_dense([0.0, 1.0]),
        tf.data.Dataset.range(3),
        keras.Input([2]),
        (i for i in range(3)),
        slice(3),
        Frame(),
        ...,
        *_nests(),
    ]


def _without_none(values: Iterable[Any], optional: bool) -> list[Any]:
    return [v for v in values if not (optional and v is None)]


def number(*outside: float, optional: bool = False) -> list[Any]:
    """Wrong values of a finite real number, with some that are `outside` of its range."""
    wrong = [None, "x", "0.1", b"x", True, NAN, INF, -INF, np.float32("nan"), [], {}, set(), ()]
    arrays = [[0.1, 0.2], {"a": 0.1}, np.ones([2, 2]), tf.constant([0.1, 0.2]), tf.constant(NAN)]
    return _without_none([*wrong, *arrays, lambda: 0.1, Thing, *junk(), *outside], optional)


def setting(*outside: float, optional: bool = False) -> list[Any]:
    """Wrong values of what is a number, an array or a schedule, such as a step size."""
    wrong = [None, "x", "0.1", b"x", True, NAN, INF, -INF, [], {}, set(), (), Thing, *junk()]
    shapes = [np.full([7], 0.1), np.ones([2, 2, 2]), [0.1, 0.1, 0.1], {"other": 0.1}]
    tensors = [tf.constant(NAN), tf.constant([0.1, NAN]), tf.constant(True), np.array([True])]
    returned = [None, "x", NAN, INF, 1j, [], {}, object(), np.full([7], 0.1), *outside]
    schedules = [*signatures(1), *returning(*returned)]
    return _without_none([*wrong, *shapes, *tensors, *schedules, *outside], optional)


def integer(least: int, most: int | None = None, optional: bool = False) -> list[Any]:
    """Wrong values of an integer."""
    wrong = [None, "2", b"2", True, 0.5, 2.0, NAN, INF, [], {}, set(), [2], np.array([2, 2])]
    others = [np.float32(2), tf.constant(2.0), tf.constant([2, 2]), lambda: 2, int, Thing]
    outside = [least - 1, *drawn(st.integers(max_value=least - 1))]
    if most is not None:
        outside += [most + 1, 2**31, *drawn(st.integers(min_value=most + 1))]
    return _without_none([*wrong, *others, *junk(), *outside], optional)


def boolean(optional: bool = False) -> list[Any]:
    """Wrong values of True or False."""
    wrong = [None, "x", "False", b"", 0, 1, 2.0, NAN, [], {}, set(), [True], lambda: True, bool]
    arrays = [np.array([True, False]), tf.constant([True, False]), Thing]
    return _without_none([*wrong, *arrays, *junk()], optional)


def choice(valid: str, optional: bool = False) -> list[Any]:
    """Wrong values of one of some strings."""
    near = [
        "x",
        "",
        f" {valid}",
        valid.swapcase(),
        [valid],
        (valid,),
        valid.encode(),
        lambda: valid,
    ]
    others = [None, True, 0, 1.5, NAN, [], {}, set(), str, Thing]
    return _without_none([*near, *others, *junk()], optional)


def signatures(num_arguments: int) -> list[Any]:
    """Functions that cannot be called with `num_arguments` arguments."""
    too_many = Named("of six arguments", lambda a, b, c, d, e, f: 0.0)
    return [too_many, *([Named("of no argument", lambda: 0.0)] if num_arguments else [])]


def returning(*values: Any) -> list[Any]:
    """Functions of any arguments that return `values`."""
    return [Named(f"returns {label(v)}", lambda *_, v=v, **__: v) for v in values]


def function(num_arguments: int, *wrong_results: Any, optional: bool = False) -> list[Any]:
    """Wrong values of a function."""
    wrong = [None, "x", b"x", True, 0, 1.5, NAN, [], {}, set(), np.ones(3), tf.ones([3])]
    functions = [*signatures(num_arguments), *returning(*wrong_results), Thing]
    return _without_none([*wrong, *functions, *junk()], optional)


def state() -> list[Any]:
    """Wrong values of the state of chains, two floating numbers."""
    wrong = [None, "x", b"x", [], {}, set(), (), True, 1, NAN, np.array([1, 2]), Thing]
    numbers = [[NAN, 0.0], [INF, 0.0], np.array([True, False]), tf.constant([1, 2])]
    nests = [{"w": "x"}, {"w": None}, [np.zeros(2, np.float32), np.zeros(2)], lambda: 0.0]
    return [*wrong, *numbers, *nests, *junk()]


def seed(optional: bool = False) -> list[Any]:
    """Wrong values of a seed, an integer or two."""
    wrong = [None, "x", b"x", True, 0.5, 1.0, NAN, INF, [], {}, set(), [1], [1, 2, 3], Thing]
    pairs = [[0.5, 1.0], ["a", "b"], [True, False], [None, 1], [[1, 2], [3, 4]], {"a": 1}]
    arrays = [np.zeros([2]), tf.zeros([2]), tf.constant([1, 2, 3]), tf.zeros([2, 2], tf.int32)]
    return _without_none([*wrong, *pairs, *arrays, lambda: 0, *junk()], optional)


def array(*others: Any, optional: bool = False) -> list[Any]:
    """Wrong values of an array of finite numbers that has at least one axis."""
    wrong = [None, "x", b"x", [], {}, set(), True, 1, 0.5, NAN, [NAN, 0.0], [[INF, 0.0]], Thing]
    arrays = [np.zeros([0, 2], np.float32), {"x": "a"}, {"x": None}, [None], lambda: DATA]
    return _without_none([*wrong, *arrays, *junk(), *others], optional)


def path(optional: bool = False) -> list[Any]:
    """Wrong values of a path. Small integers would name the open files of this process."""
    wrong = [None, 987654, 0.5, NAN, [], {}, set(), "", "a\0b", lambda: "x", Thing]
    return _without_none([*wrong, *junk()], optional)


def target() -> list[Any]:
    """Wrong values of a target or a function that gives a log posterior."""
    results = [None, "x", 1, 0.0, 1j, [], {}, np.zeros([2]), np.zeros([3]), object()]
    kinds = [sgmcmc.MinibatchLogProb, tfp.distributions.Normal(0.0, 1.0), DATA]
    return [*function(1, *results), *kinds]


def kernel() -> list[Any]:
    """Wrong values of a kernel."""
    wrong = [None, "x", b"x", True, 3, 0.5, [], {}, set(), np.ones(3), lambda: None, Thing]
    kinds = [sgmcmc.SGLD, tfp.distributions.Normal(0.0, 1.0), keras.optimizers.SGD()]
    return [*wrong, *kinds, *junk()]


def instance(*others: Any, optional: bool = False) -> list[Any]:
    """Wrong values of an object of a class of this library."""
    wrong = [None, "x", b"x", True, 0, 1.5, NAN, [], {}, set(), np.ones(3), tf.ones([3]), Thing]
    return _without_none([*wrong, lambda: 0, *junk(), *others], optional)
