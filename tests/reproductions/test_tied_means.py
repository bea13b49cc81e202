"""The mixture with tied means: its mathematics, and what SGLD finds on it."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from benchmarks.reproductions import tied_means


def test_scores_are_the_gradients_of_the_log_likelihood() -> None:
    x = tf.constant(tied_means.examples(0)[:5])
    theta = tf.constant([[0.3, -0.7], [-1.0, 2.0]], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(theta)
        values = tied_means.log_likelihood(theta, x)
    # Each row of values depends on its row of theta alone.
    jacobian = tape.jacobian(values, theta)
    expected = np.einsum("cncd->cnd", jacobian.numpy())
    np.testing.assert_allclose(tied_means.scores(theta, x), expected, rtol=1e-12)


def test_masses_are_those_of_the_densities() -> None:
    """At two cells the ratio of masses is that of SciPy's densities, second numbers variances."""
    x = tied_means.examples(0)

    def log_density(first: float, second: float) -> float:
        prior = stats.norm.logpdf([first, second], 0, [10**0.5, 1]).sum()
        parts = [stats.norm.pdf(x, m, 2**0.5) for m in (first, first + second)]
        return float(prior + np.log(0.5 * parts[0] + 0.5 * parts[1]).sum())

    masses, (first, second) = tied_means.exact_masses(x), tied_means.CENTRES
    ratio = np.log(masses[80, 200] / masses[120, 120])
    expected = log_density(first[80], second[200]) - log_density(first[120], second[120])
    np.testing.assert_allclose(ratio, expected, rtol=1e-9)
    assert masses[[0, -1]].sum() + masses[:, [0, -1]].sum() < 1e-6  # nothing is outside the grid
    assert tied_means.distance_of_masses(masses, masses) == 0
    assert tied_means.distance_of_masses(masses, np.roll(masses, 40, axis=0)) > 0.3


@pytest.mark.slow
def test_the_quick_form_finds_the_posterior() -> None:
    result = tied_means.run(**tied_means.EXPERIMENT.quick)
    exact = tied_means.exact_values(result.exact)
    values = result.estimates["weighted by the step size"]
    # Chains spend about half of their time at each mode; the sd of a chain's share is 0.13.
    assert abs(values[0].mean() - exact[0]) < 0.2
    assert np.all((values[0] > 0.02) & (values[0] < 0.98))
    assert tied_means.distance_of_masses(result.sampled, result.exact) < 0.15
    look = result.look
    assert look.alpha[0] > 5 and look.alpha[-1] < 0.3
    assert look.rejection[0] > 0.05 and look.rejection[-1] < 1e-3
    assert result.falling.step_sizes[-1] < 1.01e-8 and result.falling.rejection[-1] < 1e-6
    assert look.gradient_variances[0].max() > look.step_sizes[0]
    assert look.gradient_variances[-1].max() < look.step_sizes[-1]
    kinds = "each mixing distance", "weighted"
    few, many = (result.num_used[f"past the threshold, {kind}"] for kind in kinds)
    assert 10 < few < many < 2_000
