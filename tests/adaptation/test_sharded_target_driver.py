"""`sample` in shards: one choice of settings, and the draws and checks of every worker."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.sampling.runs import Walk
from tests.sampling.shards.test_shards import Inline

tfd = tfp.distributions
X = np.random.default_rng(0).normal(2.0, 1.0, [1000]).astype(np.float32)
MEAN, SD = X.sum() / (1000 + 0.01), (1000 + 0.01) ** -0.5
IN_SHARDS: dict[str, Any] = dict(num_chains=6, seed=3, progress_bar=False)


def make_target() -> Any:
    return sgmcmc.MinibatchLogProb(
        tfd.Normal(0.0, 10.0).log_prob,
        lambda mean, x: tfd.Normal(mean[..., tf.newaxis], 1.0).log_prob(x),
        X,
        batch_size=50,
    )


def draw(target: Any, num_results: int = 400, **options: Any) -> Any:
    options = {"chains_per_shard": 2} | IN_SHARDS | options
    return sgmcmc.sample(target, tf.zeros([]), num_results, **options)


@pytest.fixture(scope="module")
def in_memory() -> Any:
    return draw(make_target())


def test_draws_are_of_the_posterior(in_memory: Any) -> None:
    """False alarm 1e-6: 2,400 draws, each worth 0.6 independent ones at least."""
    assert in_memory.is_trusted and in_memory.shards == (0, 1, 2) and in_memory.is_complete
    states = np.asarray(in_memory.states)
    assert states.shape == (400, 6) and in_memory.effective_sample_size() > 1440
    deviations = 4.9 / 1440**0.5
    assert abs(states.mean() - MEAN) < deviations * SD
    assert abs(states.std() / SD - 1) < deviations / 2**0.5
    # Shards have random numbers of their own.
    assert len(np.unique(states[-1])) == 6


def test_each_shard_is_checked(in_memory: Any) -> None:
    assert [x.certificate.is_reliable for x in in_memory.checked] == [True] * 3
    assert [x.startswith(f"Shard {i}: ") for i, x in enumerate(in_memory.explanation[-3:])]
    assert in_memory.choices.sampler == "IndependentMetropolis"


def test_an_executor_makes_the_target_on_its_workers(in_memory: Any, tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    executor, folder = Inline(), tmp_path / "run"
    found = draw(make_target, executor=executor, directory=folder)
    assert executor.count == 4  # one choice, three shards
    np.testing.assert_array_equal(np.asarray(found.states), np.asarray(in_memory.states))
    assert found.is_trusted and found.choices.seed == (0, 3)
    # It goes on with the settings in the directory, by threads here.
    more = draw(make_target(), 450, seed=None, directory=folder)
    assert more.states.shape == (450, 6)
    np.testing.assert_array_equal(np.asarray(more.states[:400]), np.asarray(in_memory.states))
    with pytest.raises(ValueError, match="num_chains: 6, but here 4"):
        draw(make_target(), num_chains=4, directory=folder)


@pytest.mark.thorough
def test_a_failed_choice_and_a_failed_shard() -> None:
    with pytest.raises(OSError, match="the worker is gone"):
        draw(make_target, executor=Inline(fail=0))
    with pytest.warns(UserWarning, match="Shard 1 failed, and its chains are left out"):
        found = draw(make_target, executor=Inline(fail=2))
    assert found.shards == (0, 2) and found.states.shape == (400, 4)


def test_a_stream_is_sampled_by_its_pool() -> None:
    def make() -> Any:
        batches = tf.data.Dataset.from_tensor_slices(X).shuffle(1000, seed=0).batch(100)
        return sgmcmc.StreamedLogProb(
            tfd.Normal(0.0, 10.0).log_prob,
            lambda mean, x: tfd.Normal(mean[..., tf.newaxis], 1.0).log_prob(x),
            batches,
            num_examples=1000,
        )

    with pytest.raises(ValueError, match="directory must be given for a StreamedLogProb"):
        draw(make, executor=Inline())
    dataset = tf.data.Dataset.range(3)
    with pytest.raises(TypeError, match="target must be a function that can be sent"):
        draw(lambda: dataset, executor=Inline())
    states = np.asarray(draw(make(), 100).states)
    assert abs(states.std() / SD - 1) < 4.9 / (2 * 360) ** 0.5


def test_chains_that_disagree_are_told() -> None:
    """Twenty-one far modes, too many for a mixture of all: no chain leaves its own."""
    places = 50.0 * tf.range(-10.0, 11.0)

    def log_prob(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_logsumexp(-0.5 * (x[..., tf.newaxis] - places) ** 2, axis=-1)

    with pytest.warns(UserWarning, match="several modes"):
        found = sgmcmc.sample(log_prob, tf.constant(1.0), 60, chains_per_shard=2, **IN_SHARDS)
    assert not found.is_trusted


@pytest.mark.parametrize(
    ("target", "options", "error", "message"),
    [
        (make_target(), {"executor": Inline()}, TypeError, "target must be a function without arg"),
        (make_target(), {"executor": 3}, TypeError, "executor must have a method submit"),
        (make_target(), {"chains_per_shard": 0}, ValueError, "chains_per_shard"),
        (lambda: 3, {"executor": Inline()}, TypeError, "target must be a Mini.*Received: an int"),
    ],
)  # fmt: skip
def test_wrong_arguments(target: Any, options: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        draw(target, 3, **options)


def test_a_function_that_makes_a_kernel_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="use sample_shards"):
        found = sgmcmc.sample(
            Walk, {"x": tf.zeros([2]), "y": tf.zeros([])}, 3, executor=Inline(), num_chains=2,
            seed=0, progress_bar=False, jit_compile=False,
        )  # fmt: skip
    assert found.states["y"].shape == (3, 2)


@pytest.mark.thorough
def test_a_directory_needs_no_likelihood_of_own_minibatches(tmp_path: Path) -> None:
    """`tf.gather` without batch_dims takes one minibatch for all chains, as all data are."""
    pytest.importorskip("zarr")
    target = sgmcmc.MinibatchLogProb(
        lambda effects: -0.5 * tf.reduce_sum(effects**2, axis=-1),
        lambda effects, row: -0.5 * (row["y"] - tf.gather(effects, row["group"], axis=-1)) ** 2,
        {"y": np.arange(6.0, dtype=np.float32), "group": np.arange(6) % 3},
        batch_size=6,
    )
    options: dict[str, Any] = dict(num_chains=2, seed=0, directory=tmp_path, progress_bar=False)
    first = sgmcmc.sample(target, tf.zeros([3]), 60, **options)
    more = sgmcmc.sample(target, tf.zeros([3]), 70, **options)
    np.testing.assert_array_equal(more.states[:60], first.states)


def test_draws_on_few_numbers_are_flagged() -> None:
    """Near 300,000 numbers of float32 are 0.03 apart, a standard deviation of the mean."""

    def far() -> Any:
        return sgmcmc.MinibatchLogProb(
            tfd.Normal(0.0, 1e7).log_prob,
            lambda mean, x: tfd.Normal(mean[..., tf.newaxis], 1.0).log_prob(x),
            X + np.float32(3e5),
            batch_size=50,
        )

    with pytest.warns(UserWarning, match=r"too large for float32: near 3000\d\d"):
        found = draw(far(), 50)
    assert not found.is_trusted
    assert any("rounded to that" in flag and flag.startswith("Shard") for flag in found.flags)
