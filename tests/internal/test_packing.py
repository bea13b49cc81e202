"""Small tensors are packed into fewer, and are unpacked unchanged."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_sgmcmc.internal.nest import Packing
from tfp_sgmcmc.keras.chain.chain_state import PackedVariables


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


def test_no_variable_is_of_int32():
    """TensorFlow keeps those in the memory of the host, where XLA's programs on a GPU fail."""
    given = {
        "count": tf.constant([3, -(2**31)]),
        "step": tf.constant(5, tf.int64),
        "x": tf.ones([2]),
    }
    variables = PackedVariables(given)
    assert {v.dtype for v in variables._variables} == {tf.int64, tf.float32}
    assert_same(variables.read(), given)
    assert_same(variables.numpy(), given)
    variables.assign(tf.nest.map_structure(lambda x: 2 + x, given))
    assert_same(variables.numpy(), tf.nest.map_structure(lambda x: 2 + x, given))


def test_small_leaves_share_a_variable_for_each_dtype():
    parts = Packing(tf.nest.flatten(nest(0))).pack(tf.nest.flatten(nest(0)))
    found = sorted((p.dtype.name, tuple(p.shape)) for p in parts)
    expected = [("bool", (1,)), ("float32", (13,)), ("float32", (100, 100))]
    assert found == sorted([*expected, ("float64", (2,)), ("int64", (1,))])


def test_rows_of_several_nests():
    nests = [tf.nest.flatten(nest(i)) for i in range(3)]
    packing = Packing(nests[0])
    rings = [np.stack(parts) for parts in zip(*map(packing.pack, nests), strict=True)]
    for found, *each in zip(packing.unpack(rings), *nests, strict=True):
        np.testing.assert_array_equal(found, np.stack(each))


CHAINS = [tf.random.stateless_normal(shape, [0, 1]) for shape in ([2, 3], [2], [2, 50], [2, 2, 2])]


def test_leading_axes_stay_in_front() -> None:
    packing = Packing(CHAINS, lead_ndims=1, small=10)
    packed = packing.pack(CHAINS)
    assert packing.joins
    assert [x.shape for x in packed] == [[2, 50], [2, 8]]
    for found, x in zip(packing.unpack(packed), CHAINS, strict=True):
        np.testing.assert_array_equal(found, x)


def test_the_number_of_chains_may_be_unknown() -> None:
    @tf.function(input_signature=[[tf.TensorSpec([None, *x.shape[1:]]) for x in CHAINS]])
    def there_and_back(chains: list[tf.Tensor]) -> list[tf.Tensor]:
        packing = Packing(chains, lead_ndims=1)
        return packing.unpack(packing.pack(chains))

    for found, x in zip(there_and_back(CHAINS), CHAINS, strict=True):
        np.testing.assert_array_equal(found, x)


def test_few_tensors_stay_as_they_are() -> None:
    packing = Packing(CHAINS, lead_ndims=1, small=10, fewest=4)
    assert not packing.joins
    assert all(x is y for x, y in zip(packing.pack(CHAINS), CHAINS, strict=True))


@pytest.mark.parametrize("of_chains", [False, True])
def test_settings_broadcast_as_before(of_chains: bool) -> None:
    packing = Packing(CHAINS, lead_ndims=1)
    first = tf.constant([[2.0], [3.0]]) if of_chains else tf.constant(2.0)
    settings = [first, tf.constant(5.0), tf.range(50.0), tf.ones([1, 2, 1])]
    packed = packing.pack_settings(settings)
    assert packed[0].shape == ([2, 58] if of_chains else [1, 58])
    products = [x * y for x, y in zip(packing.pack(CHAINS), packed, strict=True)]
    for found, x, y in zip(packing.unpack(products), CHAINS, settings, strict=True):
        np.testing.assert_array_equal(found, x * y)


def test_means_are_those_of_each_tensor() -> None:
    packing = Packing(CHAINS, lead_ndims=1, small=10)
    for found, x in zip(packing.unpack(packing.means(packing.pack(CHAINS))), CHAINS, strict=True):
        mean = np.mean(np.reshape(x, [2, -1]), axis=1)
        np.testing.assert_allclose(
            np.reshape(found, [2, -1]).T, [mean] * (x.shape[1:].num_elements() or 1), rtol=1e-5
        )


def test_means_of_packed_tensors_are_those_of_each_chain():
    draw = np.random.default_rng(0)
    parts = [draw.normal(size=[2, 3, *shape]) for shape in ([], [4], [2, 2])]
    tensors = [tf.constant(x) for x in parts]
    packing = Packing(tensors, lead_ndims=2)
    found = packing.unpack(packing.means(packing.pack(tensors)))
    for x, mean in zip(parts, found, strict=True):
        axes = (*range(2, x.ndim),)
        np.testing.assert_allclose(mean, np.broadcast_to(x.mean(axes, keepdims=True), x.shape))
