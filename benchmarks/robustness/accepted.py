"""Values of the catalogue that are accepted, each with the reason why that does no harm."""

from __future__ import annotations

import re

# Patterns of "callable(argument=value)", and the reason.
REASONS = {
    r"SGHMC\(covariance=None\)": "None leaves the gradient noise uncorrected, as documented",
    r"(SGFS|NOGIN)\(num_estimation_steps=None\)": "None chooses the number by a rule",
    r"RunningMean\(decay=0.0\)": "the average of the last minibatch alone",
    r"(Minibatch|Streamed)LogProb\(log_prior_fn=a function, returns 0.0\)": "a flat prior",
    r"StreamedLogProb\(num_examples=9\)": "a dataset may drop its remainder of one example",
    r"preflight\(rtol=inf\)": "allows every difference, as was asked",
    r"(check_finite|integrated_autocorrelation_time|autocorrelation_time_unit_cost)"
    r"\(samples=(\[\]|\{\}|array\(\[\].*)\)": "no draws, of which nothing is said",
    r"weighted_expectation\(values=\{\}\)": "an empty nest, as given",
    r"PositionDependent\(divergence_fn=a function, returns (1|array\(\[1., 1.\]\))\)": "a constant "
    "that broadcasts to the state",
    r"ConstantBelow\(schedule=a function, returns array\(.*\)": "one value for each chain",
    r"find_center\(learning_rate=a function, returns 0.0\)": "warns that it has not converged",
    r"kinetic_temperature\(momentum=\[\[1.0\], \[1.0, 2.0\]\]\)": "a nest of three scalar parts",
    r"GrowingBatch\(growth=inf\)": "all examples from the second estimate on",
}


def reason(name: str, argument: str, value: str) -> str:
    """Returns why a value does no harm, or an empty string if no reason is known."""
    text = f"{name}({argument}={value})"
    return next((why for pattern, why in REASONS.items() if re.fullmatch(pattern, text)), "")
