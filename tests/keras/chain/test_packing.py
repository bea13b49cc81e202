"""Small tensors are packed into a few variables, and are unpacked unchanged."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_sgmcmc.keras.chain.chain_state import PackedVariables, Packing


def nest(seed: int) -> dict:
    draw = np.random.default_rng(seed)
    return {
        "scalar": tf.constant(draw.normal(), tf.float32),
        "step": tf.constant(draw.integers(2**40), tf.int64),
        "flag": tf.constant(draw.random() < 0.5),
        "matrix": tf.constant(draw.normal(size=[3, 4]), tf.float32),
        "empty": tf.zeros([0, 2]),
        "large": tf.constant(draw.normal(size=[100, 100]), tf.float32),
        "double": (tf.constant(draw.normal(size=[2]), tf.float64), ()),
    }


def assert_same(got: dict, expected: dict) -> None:
    tf.nest.assert_same_structure(got, expected)
    for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(expected), strict=True):
        b = b.numpy()
        assert (np.asarray(a).shape, np.asarray(a).dtype) == (b.shape, b.dtype)
        np.testing.assert_array_equal(a, b)


@pytest.mark.thorough
def test_a_nest_comes_out_as_it_went_in():
    variables = PackedVariables(nest(0))
    assert_same(variables.numpy(), nest(0))
    assert_same(variables.read(), nest(0))

    @tf.function(jit_compile=True)
    def step():
        old = variables.read()
        variables.assign(nest(1))
        return old

    assert_same(step(), nest(0))
    assert_same(variables.numpy(), nest(1))


def test_small_leaves_share_a_variable_for_each_dtype():
    parts = Packing(tf.nest.flatten(nest(0))).pack(tf.nest.flatten(nest(0)))
    found = sorted((p.dtype.name, tuple(p.shape)) for p in parts)
    expected = [("bool", (1,)), ("float32", (13,)), ("float32", (100, 100))]
    assert found == sorted([*expected, ("float64", (2,)), ("int64", (1,))])


def test_rows_of_several_nests():
    nests = [tf.nest.flatten(nest(i)) for i in range(3)]
    packing = Packing(nests[0])
    rings = [np.stack(parts) for parts in zip(*map(packing.pack, nests), strict=True)]
    for found, *each in zip(packing.unpack(rings, lead=(3,)), *nests, strict=True):
        np.testing.assert_array_equal(found, np.stack(each))
