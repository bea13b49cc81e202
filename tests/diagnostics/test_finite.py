"""check_finite says where a chain broke down, and keeps the results before."""

import pickle

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc


def broken(value: float) -> dict[str, np.ndarray]:
    samples = {"a": np.zeros([10, 3]), "b": [np.zeros([10, 2, 2])]}
    samples["b"][0][6, 1, 0] = value
    samples["a"][8] = value
    return samples


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_break_is_reported(value: float) -> None:
    with pytest.raises(sgmcmc.NonFiniteChainError) as caught:
        sgmcmc.check_finite(broken(value))
    error = caught.value
    assert (error.step, error.part) == (6, ("b", 0))
    assert error.samples["a"].shape == (6, 3) and error.samples["b"][0].shape == (6, 2, 2)
    assert np.all(np.isfinite(error.samples["b"][0]))
    assert "the state['b'][0] became NaN or infinite at result 6 (entry [1, 0])" in str(error)


def test_finite_samples_pass() -> None:
    sgmcmc.check_finite(broken(0.0))
    sgmcmc.check_finite(tf.zeros([4]))
    sgmcmc.check_finite([tf.zeros([0, 2])])


def test_a_break_at_the_start_leaves_no_samples() -> None:
    with pytest.raises(sgmcmc.NonFiniteChainError) as caught:
        sgmcmc.check_finite(np.array([np.nan, 1.0]))
    assert (caught.value.step, caught.value.part) == (0, ())
    assert len(caught.value.samples) == 0


def test_a_step_size_that_is_too_large() -> None:
    """Full-gradient SGLD on N(0, 1/100) with epsilon/2 * 100 = 5: theta grows fourfold a step.

    float32 overflows after about log(3e38) / log(4) = 64 steps.
    """
    kernel = sgmcmc.SGLD(sgmcmc.FullDataLogProb(lambda a, b: -50 * a**2 - b**2), 0.1)

    @tf.function(autograph=False)
    def run(seed: tf.Tensor) -> list[tf.Tensor]:
        return tfp.mcmc.sample_chain(
            200, [tf.ones([]), tf.ones([])], kernel=kernel, trace_fn=None, seed=seed
        )

    samples = run(tf.constant([0, 1]))
    with pytest.raises(sgmcmc.NonFiniteChainError, match="A smaller step_size") as caught:
        sgmcmc.check_finite(samples)
    assert caught.value.part == (0,)
    assert 50 < caught.value.step < 70
    kept = caught.value.samples
    assert all(len(x) == caught.value.step and np.all(np.isfinite(x)) for x in kept)
    np.testing.assert_array_equal(kept[1], samples[1][: caught.value.step])


def test_the_error_of_a_worker_comes_back() -> None:
    """A pool of processes that cannot read it back breaks, and the other shards are lost."""
    with pytest.raises(sgmcmc.NonFiniteChainError) as caught:
        sgmcmc.check_finite(broken(np.nan))
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(error) == str(caught.value) and (error.step, error.part) == (6, ("b", 0))
    np.testing.assert_array_equal(error.samples["a"], caught.value.samples["a"])
