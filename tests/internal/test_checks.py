"""Checks of arguments: every kind of wrong value is told in the same words."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfp_sgmcmc.internal import checks


@pytest.mark.parametrize(
    "value",
    [
        None,
        "0.1",
        True,
        1j,
        [],
        {},
        [0.1, None],
        np.array([1j]),
        np.timedelta64(1, "s"),
        tf.constant("x"),
        tf.ragged.constant([[1.0], [1.0, 2.0]]),
        tf.sparse.from_dense([0.0, 1.0]),
    ],
    ids=str,
)
def test_numbers_names_the_argument_for_what_is_not_a_number(value) -> None:
    with pytest.raises(TypeError, match="^step_size must be a number. Received: "):
        checks.numbers("step_size", value)


@pytest.mark.parametrize("value", [0.1, 1, np.float32(1), {"a": [0.1], "b": tf.Variable(0.2)}])
def test_numbers_accepts_nests_of_numbers_and_what_only_the_program_knows(value) -> None:
    checks.numbers("step_size", value, "a positive finite number")
    program = tf.function(lambda x: checks.numbers("step_size", x) or x)
    assert program(tf.constant(-0.5)) == -0.5


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (lambda: 0.0, r"signature \(\) \(too many positional arguments\)"),
        (lambda a: 0.0, "unexpected keyword argument 'batch'"),
        (lambda a, b, batch: 0.0, "missing a required argument: 'b'"),
    ],
)
def test_accepts_tells_a_wrong_signature(value, told: str) -> None:
    with pytest.raises(TypeError, match="^fn must be callable with 1 argument and batch=.*" + told):
        checks.accepts("fn", value, 1.0, batch=2.0)


def test_accepts_tells_the_names_of_arguments() -> None:
    with pytest.raises(TypeError, match=r"^fn must be callable with a=\.\.\., b=\.\.\.\. Received"):
        checks.accepts("fn", lambda state: 0.0, a=1.0, b=2.0)


def test_accepts_lets_through_what_fits_or_cannot_be_known() -> None:
    for value in (lambda a, batch: a, lambda *args, **kwargs: 0, lambda a, batch=1, c=2: c, dict):
        assert checks.accepts("fn", value, 1.0, batch=2.0) is value
    with pytest.raises(TypeError, match="^fn must be a callable. Received: an int.$"):
        checks.accepts("fn", 3)


@pytest.mark.parametrize("value", [None, 3, b"x", [], True])
def test_what_is_no_path_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="directory must be a string or a path. Received: "):
        checks.path("directory", value)


def test_paths_that_no_file_can_have_are_refused() -> None:
    for value in ("", "a\0b"):
        with pytest.raises(ValueError, match="must be a path without null bytes that is not empty"):
            checks.path("directory", value)
    assert checks.path("directory", "a") == checks.path("directory", Path("a")) == Path("a")


def test_what_must_be_called_eagerly_says_so() -> None:
    checks.eager("sample")
    message = "^sample must be called eagerly, .* Received: a call inside a tf.function"
    with pytest.raises(RuntimeError, match=message):
        tf.function(lambda: checks.eager("sample"), autograph=False)()
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match=message):
        checks.eager("sample")


@pytest.mark.parametrize("value", [2**63, 10**30, np.uint64(2**63)])
def test_integers_that_no_program_can_hold_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=f"num_results must be .* Received: {value}"):
        checks.integer("num_results", value, 1)
    assert checks.integer("num_results", 2**63 - 1, 1) == 2**63 - 1


def test_numbers_of_bfloat16_are_numbers() -> None:
    checks.numbers("x", tf.constant(0.5, tf.bfloat16))
    with pytest.raises(ValueError, match="x must be a positive finite number"):
        checks.numbers("x", tf.constant(-0.5, tf.bfloat16), "a positive finite number")


def test_masked_entries_are_refused_and_arrays_without_are_taken() -> None:
    masked = np.ma.masked_greater([1.0, 2.0, 3.0], 2.0)
    for check in (checks.array, checks.numbers):
        with pytest.raises(TypeError, match="x must have no masked entries, .* Received: 1 of 3"):
            check("x", masked)
        check("x", np.ma.masked_greater([1.0, 2.0], 5.0))


def test_a_span_of_time_is_no_integer() -> None:
    with pytest.raises(TypeError, match="n must be an integer"):
        checks.integer("n", np.timedelta64(3, "ns"), 1)
