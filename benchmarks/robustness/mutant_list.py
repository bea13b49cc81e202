"""The changes that `benchmarks.robustness.mutants` plants, by room, and the tests of each room."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One replacement in one file of the package; `equivalent` says why no test can tell it."""

    room: str
    path: str
    old: str
    new: str
    equivalent: str = ""


# Quick tests of each room, which tell most of its changes. `TESTS` run where these tell nothing.
FIRST: dict[str, tuple[str, ...]] = {
    "random": (
        "tests/random/test_random.py::test_the_number_of_rounds",
        "tests/random/test_random.py::test_permuted_indices_are_a_permutation",
        "tests/random/test_random.py::test_minibatches_of_epochs_are_one_permutation_after_the_other",
        "tests/random/test_random.py::test_alias_tables_draw_with_their_probabilities",
    ),
    "covariance": (
        "tests/covariance/test_averages.py",
        "tests/covariance/test_estimators.py::"
        "test_sigma_is_c_times_the_average_of_past_sample_covariances",
    ),
    "sgld": ("tests/kernels/test_sgld.py::test_constant_preconditioners",),
    "msgld": ("tests/kernels/test_modified_sgld.py::test_sigma_is_that_of_past_minibatches",),
    "sgfs": (
        "tests/kernels/test_sgfs.py::test_diagonal_b",
        "tests/kernels/test_sgfs.py::test_temperature",
    ),
    "underdamped": ("tests/kernels/test_underdamped_langevin.py::test_two_steps",),
    "sghmc": (
        "tests/kernels/test_sghmc.py::test_options",
        "tests/kernels/test_sghmc.py::test_smallest_friction_falls_with_temperature",
    ),
    "sgnht": ("tests/kernels/test_sgnht.py::test_three_steps",),
    "ccadl": ("tests/kernels/test_ccadl.py::test_three_steps",),
    "nogin": (
        "tests/kernels/test_nogin.py::test_six_steps",
        "tests/kernels/test_nogin.py::test_a_matrix_lambda_draws_what_is_left_of_the_noise",
        "tests/kernels/test_nogin.py::test_steps_of_estimation_move_nothing_and_teach_sigma",
    ),
    "momenta": (
        "tests/kernels/test_momentum.py::test_kinetic_temperature_counts_entries_and_squares_momenta",
        "tests/kernels/test_sgnht.py::test_three_steps",
    ),
    "exact": (
        "tests/kernels/test_corrected_langevin.py::test_acceptance_ratio_by_hand",
        "tests/kernels/test_independent_metropolis.py::test_one_step_by_hand",
    ),
    "noise": (
        "tests/kernels/test_estimation_steps.py::test_the_rule",
        "tests/kernels/test_estimation_steps.py::test_a_sigma_to_solve_with_remembers_enough",
    ),
    "replicas": ("tests/kernels/test_replica_exchange_sgld.py::test_steps_by_hand",),
    "theory": (
        "tests/kernels/test_linear_laws.py",
        "tests/kernels/test_stable_steps.py::test_the_limit_is_exact",
    ),
    "targets": (
        "tests/targets/test_minibatch.py::test_estimate_from_all_examples_is_exact",
        "tests/targets/test_growing_batch.py::test_sizes_and_cost",
        "tests/targets/control_variates/test_svrg.py::test_by_default_anchors_move_once_a_pass",
        "tests/targets/control_variates/test_control_variate.py::test_no_noise_at_the_center",
    ),
    "preconditioners": (
        "tests/preconditioners/test_rmsprop.py::test_average_and_matrix",
        "tests/preconditioners/test_rmsprop.py::test_divergence_is_left_out_of_the_first_steps",
    ),
}

TESTS: dict[str, tuple[str, ...]] = {
    "random": ("tests/random/test_random.py",),
    "covariance": ("tests/covariance/test_averages.py", "tests/covariance/test_estimators.py"),
    "sgld": ("tests/kernels/test_sgld.py",),
    "msgld": ("tests/kernels/test_modified_sgld.py",),
    "sgfs": ("tests/kernels/test_sgfs.py",),
    "underdamped": ("tests/kernels/test_underdamped_langevin.py",),
    "sghmc": ("tests/kernels/test_sghmc.py",),
    "sgnht": ("tests/kernels/test_sgnht.py",),
    "ccadl": ("tests/kernels/test_ccadl.py", "tests/kernels/test_ccadl_stationary.py"),
    "nogin": ("tests/kernels/test_nogin.py", "tests/kernels/test_nogin_stationary.py"),
    "momenta": ("tests/kernels/test_momentum.py", "tests/kernels/test_linear_laws.py"),
    "exact": (
        "tests/kernels/test_corrected_langevin.py",
        "tests/kernels/test_independent_metropolis.py",
    ),
    "noise": ("tests/kernels/test_estimation_steps.py",),
    "replicas": ("tests/kernels/test_replica_exchange_law.py",),
    "theory": ("tests/kernels/test_linear_laws.py", "tests/kernels/test_stable_steps.py"),
    "targets": (
        "tests/targets/test_minibatch.py",
        "tests/targets/test_growing_batch.py",
        "tests/targets/control_variates/test_svrg.py",
        "tests/targets/control_variates/test_control_variate.py",
    ),
    "preconditioners": (
        "tests/preconditioners/test_rmsprop.py",
        "tests/preconditioners/test_constant.py",
    ),
    "thinning": ("tests/diagnostics/test_weighted.py",),
    "averages": ("tests/keras/posterior/test_summary.py",),
    "storage": ("tests/storage/test_checkpoint.py",),
}

# (room, file) -> changes: what is replaced, by what, and for an equivalent one why.
CHANGES: dict[tuple[str, str], tuple[tuple[str, ...], ...]] = {
    ("random", "random.py"): (
        ("num_rounds = 5 if", "num_rounds = 1 if"),
        ("num_rounds = 5 if", "num_rounds = 3 if"),
        (">= 16 else 12", ">= 16 else 3"),
        ("word(num_examples - 1) - position", "position"),
        ("is_next = position >=", "is_next = position >"),
        ("keeps = coin <", "keeps = coin >"),
        ("p // 2 if is_symmetric", "p if is_symmetric"),
    ),
    ("covariance", "covariance/base.py"): (
        ("tf.where(append_dims(own.count == 0, value), value, own.value)", "value"),
        ("kappa = (1 + self.power)", "kappa = (2 + self.power)"),
        ("tf.cast(own.count + 1, statistic.dtype)", "tf.cast(own.count + 2, statistic.dtype)"),
        ("1 - self.decay", "self.decay"),
        ("own.count + tf.cast(accept, tf.int32)", "own.count + 1"),
        ("tf.shape(centred)[-2] - 1", "tf.shape(centred)[-2]"),
        ("(own.step - 1) % self", "own.step % self"),
    ),
    ("covariance", "covariance/estimators.py"): (
        ("centred / degrees_of_freedom(centred) ** 0.5", "centred / degrees_of_freedom(centred)"),
    ),
    ("sgld", "kernels/sgld.py"): (
        ("tf.sqrt(eps * t) * z", "tf.sqrt(eps) * t * z"),
        ("theta + eps / 2 * d + tf", "theta + eps / 1.98 * d + tf"),
        ("lambda d, t, c: d + t * c", "lambda d, t, c: d + c"),
    ),
    ("msgld", "kernels/modified_sgld.py"): (
        ("t * x - eps / 8 * s", "t * x - eps / 4 * s"),
        ("tf.sqrt(eps / t) * z", "tf.sqrt(eps) * z"),
    ),
    ("sgfs", "kernels/sgfs.py"): (
        ("theta + 2 * x, theta", "theta + 1.98 * x, theta"),
        ("scaled(tf.sqrt(temperature), x)", "scaled(temperature, x)"),
        (
            "gamma_n = self._target.num_examples + estimate.noise_scale",
            "gamma_n = estimate.noise_scale",
        ),
    ),
    ("underdamped", "kernels/underdamped_langevin.py"): (
        ("expm1(-2 * friction * h)", "expm1(-1.9 * friction * h)"),
        ("theta = drift(theta, p, mass, 0.5 * h)", "theta = drift(theta, p, mass, 0.0 * h)"),
    ),
    ("sghmc", "kernels/sghmc.py"): (
        ("-(h**2), largest", "-(h**2) / 2, largest"),
        ("scaled(h * friction, p / m)", "scaled(h * friction, p)"),
        (
            "smallest_friction = h * largest / (2 * temperature)",
            "smallest_friction = h * largest / temperature",
        ),
    ),
    ("sgnht", "kernels/sgnht.py"): (
        ("scaled(h * temperature / mu", "scaled(h / mu"),
        ("scaled(tf.exp(-y), p)", "scaled(1 - y, p)"),
    ),
    ("ccadl", "kernels/ccadl.py"): (
        ("scale = h**2 / (4 * temperature)", "scale = h**2 / (2 * temperature)"),
        ("lambda2 = tf.tanh(xi * h / 2)", "lambda2 = tf.tanh(xi * h)"),
        ("xi = results.thermostat + h / mu * (heat", "xi = results.thermostat - h / mu * (heat"),
        ("2 * m * v - p", "2 * v - p"),
        ("tf.where(xi == 0, h / 2, lambda2 / xi)", "h / 2"),
        (
            "p = dissipated(p, h**2 / 2)\n            p = kick",
            "p = dissipated(p, h**2)\n            p = kick",
        ),
        ("dissipated(p, h**2), noise", "dissipated(p, 1.02 * h**2), noise"),
    ),
    ("nogin", "kernels/nogin.py"): (
        ("scale = h**2 / (4 * temperature)", "scale = h**2 / (3.9 * temperature)"),
        ("lambda2 = tf.tanh(friction * h / 2)", "lambda2 = friction * h / 2"),
        ("2 * m * x - p + k", "2 * m * x - p + 0.9 * k"),
        ("moves = results.step >=", "moves = results.step >"),
        (
            "lambda p, k: scaled((1 - lambda2) / (1 + lambda2), p) + k",
            "lambda p, k: scaled(1 - 2 * lambda2, p) + k",
        ),
    ),
    ("ccadl", "kernels/momentum.py"): (
        (
            "lambda p, g, m: p * (p + scaled(h / 2, g)) / m",
            "lambda p, g, m: p * (p + scaled(h, g)) / m",
        ),
    ),
    ("momenta", "kernels/momentum.py"): (
        ("scaled(spread, z * m**0.5)", "scaled(spread, z * m)"),
        ("lambda p, m: p**2 / m, momentum", "lambda p, m: p**2 * m, momentum"),
        ("x + scaled(h, p / m)", "x + scaled(h, p)"),
    ),
    ("exact", "kernels/corrected_langevin.py"): (
        ("0.5 * (log_backward - log_forward)", "log_backward - log_forward"),
        ("log_forward = -forward.log_det -", "log_forward = -"),
    ),
    ("exact", "kernels/independent_metropolis.py"): (
        ("-0.5 * tf.reduce_sum(pair**2", "-tf.reduce_sum(pair**2"),
    ),
    ("noise", "kernels/noisy_gradients.py"): (
        ("math.ceil(10 * self", "math.ceil(5 * self"),
        ("max(rule, 10)", "max(rule, 1)"),
        ("1 / (500 * self", "1 / (50 * self"),
        ("RunningMean(decay, power=2.0)", "RunningMean(decay)"),
        ("num_scores or 32", "num_scores or 1"),
    ),
    ("replicas", "kernels/replica_exchange_sgld.py"): (
        ("- variance / (2 * self", "- variance / (1 * self"),
        ("variance = delta**2 * variance", "variance = delta * variance"),
        (
            "(inner.step // every - 1) % 2",
            "(inner.step // every) % 2",
            "the pairs alternate in the other order; the law at a stationary chain is the same",
        ),
    ),
    ("theory", "kernels/linear_theory.py"): (
        (
            '2 / np.sqrt(at_least_zero("largest_curvature", largest_curvature))',
            '2.1 / np.sqrt(at_least_zero("largest_curvature", largest_curvature))',
        ),
        ("heated = room + h**2 * s / (4 *", "heated = room + h**2 * s / (2 *"),
        ("f = friction + h * k / 2", "f = friction + h * k"),
        ("gamma1 = h**2 / 4 * u**2 * drawn", "gamma1 = 0 * drawn"),
        ("1 + h * s / 4, 1 - h * a / 4", "1 + h * s / 4, 1 - h * a / 2"),
        (
            "temperature = 1 + h**2 * (s - k) / (4 * damping)",
            "temperature = 1 + h**2 * (s - k) / 4",
        ),
    ),
    ("targets", "targets/minibatch.py"): (
        ("return total / self.batch_size * tf", "return (total - 1) / self.batch_size * tf"),
    ),
    ("targets", "targets/growing_batch.py"): (
        ("tf.math.ceil(target_state.size * (", "tf.math.floor(target_state.size * ("),
        ("rest = total if self.target.replacement else total - size", "rest = total - size"),
    ),
    ("targets", "targets/control_variates/control_variate.py"): (
        ("step % self.update_every == 0", "step % self.update_every == 1"),
    ),
    ("targets", "targets/anchored.py"): (("g + (a - b)", "g + (a - 0.98 * b)"),),
    ("preconditioners", "preconditioners.py"): (
        ("((g / total) ** 2 - v) / tf.cast(size, v.dtype)", "(tf.abs(g / total) - v) / size"),
        ("tf.sqrt(m) * x", "m * x"),
        ("size * (1 - self.decay) >= 1", "size * (1 - self.decay) >= 0"),
    ),
    ("thinning", "diagnostics/weighted.py"): (
        (
            "np.floor(np.cumsum(weights) / distance * _ROUNDING)",
            "np.floor(np.cumsum(weights) / distance / _ROUNDING)",
        ),
        ("return after, now > before", "return after, now >= before"),
    ),
    ("averages", "keras/posterior/summary.py"): (
        ("np.sqrt(sd.mean(axis=1) + mean.var(axis=1))", "np.sqrt(sd.mean(axis=1))"),
        ("nan=np.inf), kind", "nan=0.0), kind"),
    ),
    ("storage", "storage/npz.py"): (
        ("num_bytes != size - entry.tell()", "num_bytes > size - entry.tell()"),
        (
            "any(entry.readinto(piece) != piece.size for piece in pieces) or entry.read(1)",
            "any(entry.readinto(piece) != piece.size for piece in pieces)",
            "a file with more bytes has failed before, and zipfile compares the checksum with the "
            "last byte of a stored entry",
        ),
        ("if len(set(names)) < len(names):", "if False:"),
    ),
}

MUTANTS = tuple(
    Mutant(room, path, *change) for (room, path), changes in CHANGES.items() for change in changes
)
