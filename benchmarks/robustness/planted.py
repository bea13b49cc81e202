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


TESTS: dict[str, tuple[str, ...]] = {
    "random": ("tests/random/test_random.py",),
    "covariance": ("tests/covariance/test_averages.py", "tests/covariance/test_estimators.py"),
    "ccadl": ("tests/kernels/test_ccadl.py", "tests/kernels/test_ccadl_stationary.py"),
    "nogin": ("tests/kernels/test_nogin.py", "tests/kernels/test_nogin_stationary.py"),
    "noise": ("tests/kernels/test_estimation_steps.py",),
    "replicas": ("tests/kernels/test_replica_exchange_law.py",),
    "theory": ("tests/kernels/test_linear_laws.py", "tests/kernels/test_stable_steps.py"),
}

MUTANTS = (
    Mutant("random", "random/indices.py", "num_rounds = 5 if", "num_rounds = 1 if"),
    Mutant("random", "random/indices.py", "num_rounds = 5 if", "num_rounds = 3 if"),
    Mutant("random", "random/indices.py", ">= 16 else 12", ">= 16 else 3"),
    Mutant("random", "random/indices.py", "word(num_examples - 1) - position", "position"),
    Mutant("random", "random/indices.py", "is_next = position >=", "is_next = position >"),
    Mutant("random", "random/indices.py", "keeps = coin <", "keeps = coin >"),
    Mutant("random", "random/indices.py", "p // 2 if is_symmetric", "p if is_symmetric"),
    Mutant(
        "covariance",
        "covariance/averages.py",
        "tf.where(append_dims(own.count == 0, value), value, own.value)",
        "value",
    ),
    Mutant(
        "covariance",
        "covariance/averages.py",
        "kappa = (1 + self.power)",
        "kappa = (2 + self.power)",
    ),
    Mutant(
        "covariance",
        "covariance/averages.py",
        "tf.cast(own.count + 1, statistic.dtype)",
        "tf.cast(own.count + 2, statistic.dtype)",
    ),
    Mutant("covariance", "covariance/averages.py", "1 - self.decay", "self.decay"),
    Mutant(
        "covariance",
        "covariance/averages.py",
        "own.count + tf.cast(accept, tf.int32)",
        "own.count + 1",
    ),
    Mutant(
        "covariance", "covariance/base.py", "tf.shape(centred)[-2] - 1", "tf.shape(centred)[-2]"
    ),
    Mutant("covariance", "covariance/base.py", "(own.step - 1) % self", "own.step % self"),
    Mutant(
        "covariance",
        "covariance/estimators.py",
        "centred / degrees_of_freedom(centred) ** 0.5",
        "centred / degrees_of_freedom(centred)",
    ),
    Mutant(
        "ccadl",
        "kernels/ccadl.py",
        "scale = h**2 / (4 * temperature)",
        "scale = h**2 / (2 * temperature)",
    ),
    Mutant(
        "ccadl", "kernels/ccadl.py", "lambda2 = tf.tanh(xi * h / 2)", "lambda2 = tf.tanh(xi * h)"
    ),
    Mutant(
        "ccadl",
        "kernels/ccadl.py",
        "xi = results.thermostat + h / mu * (heat",
        "xi = results.thermostat - h / mu * (heat",
    ),
    Mutant(
        "ccadl",
        "kernels/ccadl.py",
        "lambda p, g, m: p * (p + scaled(h / 2, g)) / m",
        "lambda p, g, m: p * (p + scaled(h, g)) / m",
    ),
    Mutant("ccadl", "kernels/ccadl.py", "2 * m * v - p", "2 * v - p"),
    Mutant("ccadl", "kernels/ccadl.py", "tf.where(xi == 0, h / 2, lambda2 / xi)", "h / 2"),
    Mutant(
        "ccadl",
        "kernels/ccadl.py",
        "p = dissipated(p, h**2 / 2)\n            p = kick",
        "p = dissipated(p, h**2)\n            p = kick",
    ),
    Mutant(
        "ccadl",
        "kernels/ccadl.py",
        "dissipated(p, h**2), noise",
        "dissipated(p, 1.02 * h**2), noise",
    ),
    Mutant(
        "nogin",
        "kernels/nogin.py",
        "scale = h**2 / (4 * temperature)",
        "scale = h**2 / (3.9 * temperature)",
    ),
    Mutant(
        "nogin",
        "kernels/nogin.py",
        "lambda2 = tf.tanh(friction * h / 2)",
        "lambda2 = friction * h / 2",
    ),
    Mutant("nogin", "kernels/nogin.py", "2 * m * x - p + k", "2 * m * x - p + 0.9 * k"),
    Mutant("nogin", "kernels/nogin.py", "moves = results.step >=", "moves = results.step >"),
    Mutant(
        "nogin",
        "kernels/nogin.py",
        "lambda p, k: scaled((1 - lambda2) / (1 + lambda2), p) + k",
        "lambda p, k: scaled(1 - 2 * lambda2, p) + k",
    ),
    Mutant("noise", "kernels/noisy_gradients.py", "math.ceil(10 * self", "math.ceil(5 * self"),
    Mutant("noise", "kernels/noisy_gradients.py", "max(rule, 10)", "max(rule, 1)"),
    Mutant("noise", "kernels/noisy_gradients.py", "1 / (500 * self", "1 / (50 * self"),
    Mutant(
        "noise", "kernels/noisy_gradients.py", "RunningMean(decay, power=2.0)", "RunningMean(decay)"
    ),
    Mutant("noise", "kernels/noisy_gradients.py", "num_scores or 32", "num_scores or 1"),
    Mutant(
        "replicas",
        "kernels/replica_exchange_sgld.py",
        "- variance / (2 * self",
        "- variance / (1 * self",
    ),
    Mutant(
        "replicas",
        "kernels/replica_exchange_sgld.py",
        "variance = delta**2 * variance",
        "variance = delta * variance",
    ),
    Mutant(
        "replicas",
        "kernels/replica_exchange_sgld.py",
        "(inner.step // every - 1) % 2",
        "(inner.step // every) % 2",
        "the pairs alternate in the other order; the law at a stationary chain is the same",
    ),
    Mutant(
        "theory",
        "kernels/linear_theory.py",
        '2 / np.sqrt(at_least_zero("largest_curvature", largest_curvature))',
        '2.1 / np.sqrt(at_least_zero("largest_curvature", largest_curvature))',
    ),
    Mutant(
        "theory",
        "kernels/linear_theory.py",
        "heated = room + h**2 * s / (4 *",
        "heated = room + h**2 * s / (2 *",
    ),
    Mutant(
        "theory", "kernels/linear_theory.py", "f = friction + h * k / 2", "f = friction + h * k"
    ),
    Mutant(
        "theory",
        "kernels/linear_theory.py",
        "gamma1 = h**2 / 4 * u**2 * drawn",
        "gamma1 = 0 * drawn",
    ),
    Mutant(
        "theory",
        "kernels/linear_theory.py",
        "1 + h * s / 4, 1 - h * a / 4",
        "1 + h * s / 4, 1 - h * a / 2",
    ),
    Mutant(
        "theory",
        "kernels/linear_theory.py",
        "temperature = 1 + h**2 * (s - k) / (4 * damping)",
        "temperature = 1 + h**2 * (s - k) / 4",
    ),
)
