"""Choices and predictions of the pilot of `SamplerCallback("auto")` for given geometries."""

import numpy as np

from tfp_sgmcmc.keras.adaptation import network_settings
from tfp_sgmcmc.keras.adaptation.linear_predictions import KernelSettings, law
from tfp_sgmcmc.keras.checks.local_geometry import LocalGeometry


def place(noise, **changes):
    """Returns a landscape of two directions, whose noise in a batch is c V."""
    noise = np.array(noise, float)
    given = dict(
        scale=[np.ones(2, np.float32)],
        noise=noise,
        noise_of_diagonal=noise,
        mean_noise=float(noise.mean()),
        curvature=np.array([1e4, 1e2]),
        largest_curvature=1e4,
        mean_curvature=1e2,
        prior_curvature=1.0,
        has_hessian=True,
        directions=np.eye(2),
    )
    return LocalGeometry(**given | changes)


def constraints(**changes):
    given = dict(
        max_excess=None, num_examples=10_000, batch_size=100, num_steps=10**9, covariances=()
    )
    return given | changes


class TestChoice:
    # At n = 100 the noise along the stiffest direction is N / n = 100 times the curvature.
    FISHER = [1.0 * 100 * 1e4 / 990_000, 100 * 1e2 / 990_000]

    def test_the_bound_is_kept_to_the_letter(self):
        for bound in (0.01, 0.1, 1.0):
            found = network_settings.choose(
                place(self.FISHER), **constraints(max_excess=bound)
            ).numbers
            assert found["keeps_bound"] and np.isclose(found["noise_over_curvature"], 100)
            assert 0.99 * bound < found["predicted_excess_worst"] <= bound

    def test_little_noise_leaves_the_step_to_stability(self):
        found = network_settings.choose(place([1e-9, 1e-9]), **constraints()).numbers
        assert found["kernel"] == "UnderdampedLangevin"
        assert np.isclose(found["step_size"], 2 / 1e4**0.5 / 3)

    def test_noise_that_is_known_is_corrected(self):
        found = network_settings.choose(
            place(self.FISHER), **constraints(covariances=("diag",))
        ).numbers
        assert (found["kernel"], found["covariance"]) == ("NOGIN", "diag")
        assert found["predicted_excess_worst"] < 1e-6

    def test_noise_that_the_diagonal_does_not_show_is_not_corrected(self):
        hidden = place(self.FISHER, noise_of_diagonal=np.zeros(2), mean_noise=0.0)
        found = network_settings.choose(hidden, **constraints(covariances=("diag",))).numbers
        assert found["kernel"] != "NOGIN"

    def test_too_few_steps_are_told_with_the_numbers_that_would_do(self):
        kept = network_settings.choose(
            place(self.FISHER), **constraints(max_excess=0.1, num_steps=1000)
        )
        free = network_settings.choose(place(self.FISHER), **constraints(num_steps=1000))
        assert kept.numbers["keeps_bound"] and not free.numbers["keeps_bound"]
        assert kept.numbers["steps_to_forget"] > 1e5
        assert free.numbers["predicted_excess_worst"] > 0.1
        assert free.numbers["share_of_flat"] > 10 * kept.numbers["share_of_flat"]
        for found in (kept, free):
            size, steps = found.numbers["better_batch_size"], found.numbers["better_steps"]
            assert f"With batch_size={size}" in found.advice and steps <= 1000
            again = network_settings.choose(
                place(self.FISHER), **constraints(max_excess=0.1, batch_size=size)
            )
            assert np.isclose(again.numbers["steps_to_forget"], steps)
        assert "The bound is kept" in kept.advice
        assert "No step size satisfies both" in free.advice
        assert network_settings.choose(place(self.FISHER), **constraints()).advice is None

    def test_the_least_bias_is_the_least(self):
        """No step size of the same kernel is nearer to the right variances."""
        found = network_settings.choose(place(self.FISHER), **constraints(num_steps=1000)).numbers
        worst = {}
        for factor in (0.2, 0.5, 1.0, 2.0):
            settings = KernelSettings(
                found["kernel"], factor * found["step_size"], found["friction"]
            )
            curvature, noise = np.array([1e4, 1e2, 1.0]), 990_000 * np.array([*self.FISHER, 0.0])
            noise[-1] = noise[:-1].mean()
            along = law(settings, curvature, noise)
            ratio = along.temperature * along.share_after(1000)
            worst[factor] = np.abs(np.log(ratio)).max()
        assert worst[1.0] < 1.2 * min(worst.values())  # step sizes on a grid
        assert worst[0.2] > 1.2 * worst[1.0]
