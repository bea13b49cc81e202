"""SGHMC, SGNHT and CCAdL on logistic regression: MNIST 7 v 9 in 100 random projections.

After Shang, Zhu, Leimkuhler & Storkey, Covariance-controlled adaptive Langevin thermostat for
large-scale Bayesian sampling, NIPS 2015, section 4.2 and figure 2: N = 12214 sevens and nines in a
random projection to D = 100 dimensions, prior N(0, I), minibatches of n = 500, and the log
likelihood of the 2037 test images against passes over the data. CCAdL has the diagonal of Sigma
and all of it.

The step sizes and frictions are those of the caption: h = 2e-5, 5e-5 and 1e-4, and A = 1 and 10.
As in the caption, the log likelihood is that of the posterior mean, here the mean of the second
half of the states so far; the paper does not say over which states it averages. One state is kept
after each pass. All chains start at zero, and chains of a sampler share their minibatches. The
bottom row of the figure is in `blr_shang_marginals`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from scipy.special import log_expit

import datasets
import tfp_sgmcmc as sgmcmc
from benchmarks.common.logistic import as_batch, gaussian_log_prior, log_likelihood, score
from benchmarks.common.second_half import second_half_means
from benchmarks.reproductions import against_passes
from benchmarks.reproductions.against_passes import WITH_FULL, Curve, curves, paired, pairs
from benchmarks.reproductions.experiment import Claim, Experiment, main

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run(
    *,
    step_sizes: tuple[float, ...] = (2e-5, 5e-5, 1e-4),
    frictions: tuple[float, ...] = (1.0, 10.0),
    num_passes: int = 300,
    batch_size: int = 500,
    seed: int = 0,
) -> list[Curve]:
    """Samples with each sampler at each step size and friction.

    Args:
      num_passes: passes over the data; the smallest step makes twice as many, as in the paper.
    """
    data, target = problem(batch_size)

    def measure(states: np.ndarray) -> np.ndarray:
        return log_likelihood_so_far(states @ data.x_test.T, data.y_test)

    start = tf.zeros([data.x_train.shape[1]])
    parts = ((step_sizes[:1], 2 * num_passes), (step_sizes[1:], num_passes))
    return [
        curve
        for sizes, passes in parts
        if sizes
        for curve in curves(target, start, measure, WITH_FULL, sizes, frictions, passes, seed)
    ]


def problem(batch_size: int, scale: float = 1.0) -> tuple[Any, sgmcmc.MinibatchLogProb]:
    """Returns MNIST 7 v 9 in 100 random projections times `scale`, and its log posterior."""
    data = datasets.mnist_7v9(num_features=100, intercept=False)
    data = data._replace(x_train=scale * data.x_train, x_test=scale * data.x_test)
    target = sgmcmc.MinibatchLogProb(
        gaussian_log_prior,
        log_likelihood,
        as_batch(data.x_train, data.y_train),
        batch_size,
        score_fn=score,
        shared_batch=True,
    )
    return data, target


def log_likelihood_so_far(logits: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns the log probability of each of `y` at the mean of the second half so far.

    `logits` are those of each state, `[states, rows]`, as is what is returned. Labels are 0 and 1.
    Logits are linear, so their mean is the logit at the mean of the states.
    """
    signed = np.where(y > 0.5, logits, -logits).astype(np.float64)
    return np.array([log_expit(mean) for mean in second_half_means(signed)])


def show(found: list[Curve]) -> None:
    against_passes.show(found, "log likelihood")


def claims(found: list[Curve]) -> list[Claim]:
    groups = pairs(found)

    def ahead(ours: str, other: str, by: str) -> list[str]:
        return [
            f"h = {h:g}, A = {a:g}"
            for (h, a), c in groups.items()
            if not getattr(c[ours], by) >= getattr(c[other], by)
        ]

    result = []
    for ours, kind in (("CCAdL full", "all of Sigma"), ("CCAdL", "the diagonal of Sigma")):
        for other in ("SGNHT", "SGHMC"):
            behind = ahead(ours, other, "overall")
            gaps = [c[ours].overall - c[other].overall for c in groups.values()]
            result.append(
                Claim(
                    f"CCAdL with {kind} has a higher test log likelihood over the passes than"
                    f" {other}, at every h and A",
                    f"higher at {len(groups) - len(behind)} of {len(groups)}; mean differences over"
                    f" all passes from {min(gaps):.4f} to {max(gaps):.4f}",
                    not behind if ours == "CCAdL full" else None,
                    f"behind at {'; '.join(behind)}" if behind else "",
                )
            )
    ends = [
        c["CCAdL full"].final - max(c[other].final for other in ("SGNHT", "SGHMC"))
        for c in groups.values()
    ]
    scores = [
        paired(c["CCAdL full"], c[other]) for c in groups.values() for other in ("SGNHT", "SGHMC")
    ]
    result.append(
        Claim(
            "CCAdL with all of Sigma is also ahead of both at the end",
            f"ahead at {sum(gap > 0 for gap in ends)} of {len(ends)}; differences over the last"
            f" quarter of the passes from {min(ends):.4f} to {max(ends):.4f}; the last ones, row by"
            f" row of the test data, are {min(scores):.1f} to {max(scores):.1f} standard errors",
            min(ends) > 0,
            "" if min(ends) > 0 else "not known; predictions do not tell how right the samples are",
        )
    )
    full = [c["CCAdL full"].overall - c["CCAdL"].overall for c in groups.values()]
    result.append(
        Claim(
            "all of Sigma and its diagonal give similar curves",
            f"full minus diagonal from {min(full):.4f} to {max(full):.4f}",
            None,
        )
    )
    return result


def plot(found: list[Curve]) -> Figure:
    figure = against_passes.draw({"": found}, "test log likelihood")
    low = np.nanmin([c.values[len(c.values) // 4 :].min() for c in found])
    for axis in figure.axes:
        axis.set_ylim(bottom=low - 0.05)
    return figure


EXPERIMENT = Experiment(
    paper="Shang, Zhu, Leimkuhler & Storkey 2015",
    figure="figure 2",
    title="logistic regression on MNIST 7 v 9, three samplers at six settings",
    run=run,
    quick={"num_passes": 60},
    show=show,
    claims=claims,
    plot=plot,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
