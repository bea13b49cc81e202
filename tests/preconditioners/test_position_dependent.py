"""The natural gradient of ICA agrees with explicit matrices and finite differences."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness.matrices import check_against_explicit, divergence_by_differences, local
from tfp_sgmcmc.preconditioners import NaturalGradientICA, PositionDependent

GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_natural_gradient_ica(size: int) -> None:
    """Compares M(W) with a d^2 x d^2 matrix, and div M = (d + 1) W with finite differences."""
    w = GENERATOR.standard_normal([size, size])
    preconditioner = NaturalGradientICA()

    def multiply_at(w: np.ndarray) -> Any:
        return local(preconditioner, tf.constant(w)).multiply

    matrix = local(preconditioner, tf.constant(w))
    check_against_explicit(matrix, np.kron(np.eye(size), w.T @ w), w)
    np.testing.assert_allclose(
        matrix.divergence, divergence_by_differences(multiply_at, w), rtol=1e-7, atol=1e-8
    )


def test_natural_gradient_ica_by_chain() -> None:
    w = GENERATOR.standard_normal([4, 2, 2])
    v = GENERATOR.standard_normal([4, 2, 2])
    together = local(NaturalGradientICA(), tf.constant(w), 1)
    for i in range(4):
        alone = local(NaturalGradientICA(), tf.constant(w[i]))
        np.testing.assert_allclose(together.multiply(v)[i], alone.multiply(v[i]))
        np.testing.assert_allclose(together.sqrt_multiply(v)[i], alone.sqrt_multiply(v[i]))
        np.testing.assert_allclose(together.divergence[i], alone.divergence)
        np.testing.assert_allclose(together.log_det[i], alone.log_det)
        np.testing.assert_allclose(together.inverse_quadratic(v)[i], alone.inverse_quadratic(v[i]))


def test_natural_gradient_ica_compiles() -> None:
    """Every operation compiles under XLA, with the same results."""
    w, v = (tf.constant(GENERATOR.standard_normal([4, 3, 3])) for _ in range(2))

    def operations(w: tf.Tensor, v: tf.Tensor) -> Any:
        m = local(NaturalGradientICA(), w, 1)
        return m.multiply(v), m.sqrt_multiply(v), m.divergence, m.inverse_quadratic(v), m.log_det

    compiled = tf.function(operations, jit_compile=True, autograph=False)
    for got, expected in zip(compiled(w, v), operations(w, v), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9)


FUNCTIONS = dict(
    multiply_fn=lambda x, v: v,
    sqrt_multiply_fn=lambda x, z: z,
    divergence_fn=tf.zeros_like,
    inverse_quadratic_fn=lambda x, v: tf.reduce_sum(v**2, axis=-1),
    log_det_fn=lambda x: tf.zeros_like(x[..., 0]),
)
VECTORS = ["multiply_fn", "sqrt_multiply_fn", "divergence_fn"]
TARGET = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1))


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (None, ValueError, "must return a vector in the structure of the state. Received: None"),
        ([], ValueError, r"must return a vector in the structure of the state. Received: \[\]"),
        (np.zeros(3), ValueError, r"must broadcast to the shape .* \(4, 2\). Received: .*\(3,\)"),
        (np.zeros([1, 1, 2]), ValueError, r"must broadcast to .* Received: shape \(1, 1, 2\)"),
        ({"x": 1.0}, TypeError, "must return numbers. Received: {'x'"),
        ("x", TypeError, "must return numbers. Received: dtype string"),
        (object(), TypeError, "must return numbers. Received: <object"),
        (np.nan, ValueError, "must return finite numbers. Received: NaN or infinite"),
    ],
)
def test_what_functions_return_is_checked_before_the_first_step(
    name: str, returned: Any, error: type, message: str
) -> None:
    """Without a divergence a chain would sample another distribution."""
    functions = FUNCTIONS | {name: (lambda x, v=None: returned)}
    kernel = sgmcmc.SGLD(TARGET, 0.1, preconditioner=PositionDependent(**functions))
    with pytest.raises(error, match=f"{name} {message}"):
        kernel.bootstrap_results(tf.ones([4, 2]))


@pytest.mark.parametrize("name", ["inverse_quadratic_fn", "log_det_fn"])
@pytest.mark.parametrize("returned", [None, np.zeros(3), np.nan, "x"])
def test_what_only_corrected_kernels_use_is_checked(name: str, returned: Any) -> None:
    functions = FUNCTIONS | {name: (lambda x, v=None: returned)}
    kernel = sgmcmc.CorrectedLangevin(TARGET, 0.1, PositionDependent(**functions))
    state = tf.ones([4, 2])
    with pytest.raises((TypeError, ValueError), match=name):
        kernel.one_step(state, kernel.bootstrap_results(state), seed=0)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    ("given", "message"),
    [("x", "must be a callable. Received: a str"), (lambda: 0.0, "must be callable with")],
)
def test_functions_are_checked_when_given(name: str, given: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"{name} {message}"):
        PositionDependent(**FUNCTIONS | {name: given})


def test_numbers_that_stand_for_a_vector_are_taken() -> None:
    """A divergence of 0 is that of a constant M, in any structure of the state."""
    functions = FUNCTIONS | {"divergence_fn": lambda x: 0.0}
    matrix = local(PositionDependent(**functions), tf.ones([4, 2]), 1)
    np.testing.assert_array_equal(matrix.divergence, np.zeros([4, 2]))


@pytest.mark.parametrize("name", ["multiply_fn", "sqrt_multiply_fn"])
def test_products_that_are_not_linear(name: str) -> None:
    """A constant, or M itself in place of M v."""
    functions = FUNCTIONS | {name: lambda x, v: tf.ones_like(x)}
    kernel = sgmcmc.SGLD(TARGET, 0.1, preconditioner=PositionDependent(**functions))
    with pytest.raises(ValueError, match=f"{name} must be linear .* zero of up to 1"):
        kernel.bootstrap_results(tf.ones([4, 2]))
