"""`sample` takes the calls of version 0.2 for one more release, with a warning."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.sampling.runs import Walk, assert_equal
from tfp_sgmcmc.adaptation import drivers

OPTIONS: dict[str, Any] = dict(seed=7, jit_compile=False, progress_bar=False)
START = tf.reshape(tf.range(8.0), [4, 2])


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    return sgmcmc.sample_chain(Walk(), START, 9, **OPTIONS).states


def test_a_kernel_goes_to_sample_chain(expected: np.ndarray, tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match=r"use sample_chain\(kernel"):
        found = sgmcmc.sample(Walk(), START, 9, min_ess=None, executor=None, **OPTIONS)
    np.testing.assert_array_equal(found.states, expected)
    pytest.importorskip("zarr")
    for count, resume in ((5, "never"), (9, True)):
        with pytest.warns(DeprecationWarning) as caught:
            found = sgmcmc.sample(
                kernel=Walk(), initial_state=START, num_results=count, directory=tmp_path,
                resume=resume, checkpoint_seconds=0.5, **OPTIONS,
            )  # fmt: skip
        messages = [str(w.message) for w in caught]
        assert "use directory=Directory(path, resume=..., seconds" in messages[0]
        assert "use sample_chain(kernel, ...)" in messages[1] and len(messages) == 2
        assert all(w.filename == __file__ for w in caught)
    np.testing.assert_array_equal(found.states, expected)


@pytest.mark.thorough
def test_shards_go_to_sample_shards() -> None:
    with pytest.warns(DeprecationWarning, match=r"use sample_shards"):
        found = sgmcmc.sample(Walk, START, 9, chains_per_shard=2, **OPTIONS)
    expected = sgmcmc.sample_shards(Walk, START, 9, chains_per_shard=2, **OPTIONS)
    assert_equal(np.asarray(found.states), np.asarray(expected.states))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (dict(target=Walk(), min_ess=4), TypeError, "keyword argument 'min_ess'"),
        (dict(target=Walk(), num_chain=4), TypeError, "keyword argument 'num_chain'"),
        (dict(target=tf.square, num_chain=4), TypeError, "keyword argument 'num_chain'"),
        (dict(), TypeError, "missing .* argument.* 'target'"),
        (dict(kernel="SGLD"), TypeError, "target must be a Minibatch.* Received: a str"),
        (dict(kernel=Walk(), resume="again"), ValueError, "resume must be .* Received: 'again'"),
        (dict(kernel=Walk(), resume="must"), ValueError, "directory is None. Received: 'must'"),
        (
            dict(kernel=Walk(), checkpoint_seconds=-1.0),
            ValueError,
            "seconds_between_commits must be",
        ),
        (dict(target=lambda x: None), TypeError, "target must return log prob.* Received: None"),
        (dict(target=tf.square, trace_fn=Walk), ValueError, "trace_fn must be None .*sample_chain"),
        (dict(target=tf.square, num_burnin_steps=5), ValueError, "steps must be 0 .* Received: 5"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        sgmcmc.sample(**options, initial_state=START, num_results=3)


def test_arguments_in_the_order_of_tfp_are_told() -> None:
    with pytest.raises(TypeError, match="target must be a MinibatchLogProb, .* Received: an int"):
        sgmcmc.sample(1000, START, tf.square)
    with pytest.raises(TypeError, match="The arguments are kernel, initial_state, num_results"):
        sgmcmc.sample_chain(1000, START, Walk())


def test_a_model_without_an_axis_for_examples_is_refused_before_the_run() -> None:
    """It works for one chain, where a scalar broadcasts to all examples."""
    target = sgmcmc.MinibatchLogProb(
        lambda t: -0.5 * t**2, lambda t, x: -0.5 * (x - t) ** 2, np.zeros(50, np.float32), 5
    )
    with pytest.raises(Exception, match="Incompatible shapes|must return") as caught:
        sgmcmc.sample(target, tf.zeros([]), 10, progress_bar=False)
    assert any("sigma[..., tf.newaxis]" in note for note in caught.value.__notes__)


def test_an_error_of_a_model_for_one_chain_has_the_shapes_it_was_called_with() -> None:
    """`tf.stack` does not broadcast a scalar to the examples."""
    target = sgmcmc.MinibatchLogProb(
        lambda t: -0.5 * t**2, lambda t, x: tf.stack([x, t])[0], np.zeros(50, np.float32), 5
    )
    with pytest.raises(Exception, match="[Ss]hapes") as caught:
        sgmcmc.sample(target, tf.zeros([]), 10, progress_bar=False)
    (note,) = caught.value.__notes__
    assert "a state of the shape of the start" in note and "sigma[..., tf.newaxis]" in note


def test_a_model_that_mixes_chains_is_refused_before_the_run() -> None:
    """The mean over all entries includes the other chain."""
    target = sgmcmc.MinibatchLogProb(
        lambda t: -0.5 * tf.reduce_sum(t**2, axis=-1),
        lambda t, x: -0.5 * (x - tf.reduce_sum(t) * tf.ones_like(t[..., :1])) ** 2,
        np.zeros(50, np.float32),
        5,
    )
    with pytest.raises(ValueError, match="log_likelihood_fn must return for each of two equal"):
        sgmcmc.sample(target, tf.ones([2]), 10, progress_bar=False)


def test_a_model_that_xla_cannot_compile_is_sampled_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt raises what XLA raises for a determinant; other errors are passed on.

    A run without draws goes on without the settings of the first attempt.
    """
    calls, message = [], "Detected unsupported operations when trying to compile graph f[] on XLA: "
    settings = tmp_path / "choices.npz"

    def attempt(call: Any, run: Any, seconds: float) -> str:
        calls.append(call.jit_compile)
        if run is not None:
            assert not settings.exists()
            settings.touch()
        if call.jit_compile is not False:
            raise tf.errors.InvalidArgumentError(None, None, message + "LogMatrixDeterminant (No")
        return "a result"

    monkeypatch.setattr(drivers, "sample_target", attempt)
    with pytest.warns(UserWarning, match="XLA cannot compile LogMatrixDeterminant, which"):
        assert sgmcmc.sample(tf.square, START, 3) == "a result"
        pytest.importorskip("zarr")
        assert calls == [None, False]
        assert sgmcmc.sample(tf.square, START, 3, directory=tmp_path) == "a result"
    assert calls == [None, False] * 2
    message = "Incompatible shapes: "
    with pytest.raises(tf.errors.InvalidArgumentError, match="Incompatible"):
        sgmcmc.sample(tf.square, START, 3)
