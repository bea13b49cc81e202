"""Streams say what is wrong with them before a run: order, noise, steps and kernels."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.fast_settings import fast_settings
from tfp_sgmcmc.targets.validation.stream_check import measure_order

tfd = tfp.distributions

N, SIZE = 4_000, 40
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, 2]).astype(np.float32)
Y = (RNG.random(N) < 0.3).astype(np.float32)
SORTED = np.argsort(Y, kind="stable")
STATE = tf.zeros([2, 2])
OPTIONS: dict[str, Any] = dict(seed=0, jit_compile=False, progress_bar=False)


def stream(order: np.ndarray, buffer: int = 0) -> sgmcmc.StreamedLogProb:
    rows = tf.data.Dataset.from_tensor_slices({"x": X[order], "y": Y[order]})
    shuffled = rows.shuffle(buffer, seed=0) if buffer else rows
    return sgmcmc.StreamedLogProb(
        lambda w: tfd.Sample(tfd.Normal(0.0, 1.0), 2).log_prob(w),
        lambda w, b: tfd.Bernoulli(tf.linalg.matvec(b["x"], w)).log_prob(b["y"]),
        shuffled.batch(SIZE, drop_remainder=True),
        N,
    )


RANDOM = stream(np.arange(N))


@pytest.mark.parametrize("buffer", fast_settings([0, 400], 400))
def test_files_sorted_by_label_are_named(buffer: int) -> None:
    with pytest.warns(UserWarning, match=r"sorted by batch\['y'\]. Draws are then far too wide"):
        sgmcmc.preflight(stream(SORTED, buffer), STATE)


def test_rows_in_random_order_are_not_warned_of() -> None:
    """The ratio of a hundred batches is chi-squared / 99: above 4 with probability 1e-30."""
    sgmcmc.preflight(RANDOM, STATE)
    order = measure_order(RANDOM.blocks(SIZE))
    assert order is not None and 0.5 < order.ratio < 2


# The noise of a batch has the variance N^2 / n E[x^2 / 4] = 1e5 in each direction.
@pytest.mark.parametrize(
    ("make", "excess"),
    [
        pytest.param(lambda target: sgmcmc.SGLD(target, 1e-4), 2.5, marks=pytest.mark.thorough),
        (lambda target: sgmcmc.UnderdampedLangevin(target, 1e-3, 50.0), 1.0),
    ],
)
def test_hot_draws_are_predicted(make: Any, excess: float) -> None:
    with pytest.warns(UserWarning) as warned:
        sgmcmc.preflight(RANDOM, STATE, kernel=make(RANDOM))
    (line,) = [str(w.message) for w in warned if "times too large" in str(w.message)]
    # 32 batches and 2 entries estimate the noise up to a factor of 1 +- 0.18.
    found = float(line.split("variances ")[1].split(" times")[0])
    assert 0.5 * excess < found - 1 < 1.6 * excess


def test_cool_draws_are_not_warned_of() -> None:
    sgmcmc.preflight(RANDOM, STATE, kernel=sgmcmc.SGLD(RANDOM, 1e-6))


def test_an_unstable_step_is_named_by_the_curvature_of_all_examples() -> None:
    """The largest stable step is 4 / (N / 4); of the first batch alone it would be 100 times it."""
    with pytest.warns(UserWarning, match=r"step_size must be below 0.00[34]"):
        found = sgmcmc.preflight(RANDOM, STATE, kernel=sgmcmc.SGLD(RANDOM, 0.01))
    assert found is not None and abs(found.largest_curvature / (N / 4) - 1) < 0.1


CORRECTING = {
    "NOGIN": lambda target: sgmcmc.NOGIN(target, 0.01, 1.0),
    "SGHMC": lambda target: sgmcmc.SGHMC(target, 1e-4, 100.0, "full"),
    "SGFS": lambda target: sgmcmc.SGFS(target, alpha=1.0),
    "CCAdL": lambda target: sgmcmc.CCAdL(target, 1e-3, 1.0),
    "ModifiedSGLD": lambda target: sgmcmc.ModifiedSGLD(target, 1e-5),
}


@pytest.mark.parametrize("name", CORRECTING)
def test_kernels_that_correct_for_noise_refuse_epochs(name: str) -> None:
    with pytest.raises(ValueError, match=f"independent for {name}.*sgmcmc.sample"):
        sgmcmc.sample_chain(CORRECTING[name](RANDOM), STATE, 1, **OPTIONS)


def test_they_refuse_epochs_in_memory_as_well() -> None:
    def target(**options: Any) -> Any:
        return sgmcmc.MinibatchLogProb(
            lambda w: -0.5 * tf.reduce_sum(w**2, axis=-1),
            lambda w, x: tfd.Normal(tf.reduce_sum(w, -1)[..., None], 1.0).log_prob(x[..., 0]),
            X,
            SIZE,
            **options,
        )

    make, options = CORRECTING["NOGIN"], OPTIONS | dict(preflight_check=False)
    by_epochs = make(target(reshuffle="epoch"))
    with pytest.raises(ValueError, match="reshuffle='step'"):
        sgmcmc.sample_chain(by_epochs, STATE, 1, **OPTIONS)
    assert sgmcmc.sample_chain(by_epochs, STATE, 1, **options).is_complete
    assert sgmcmc.sample_chain(make(target()), STATE, 1, **options).is_complete


def test_a_report_takes_a_stream() -> None:
    """The gradients at all draws come from one pass, and show draws that are too wide."""
    kernel = sgmcmc.SGLD(RANDOM, 1e-4)
    result = sgmcmc.sample_chain(
        kernel, STATE, 200, num_burnin_steps=50, preflight_check=False, **OPTIONS
    )
    report = sgmcmc.report(result, RANDOM)
    assert report.temperature is not None and report.temperature[0] > 1.5
    assert report.problems
