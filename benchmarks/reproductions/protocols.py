"""The place of each experiment in its paper, and every known difference of protocol."""

from __future__ import annotations

from typing import NamedTuple


class Difference(NamedTuple):
    """One setting in which an experiment here differs from the paper's."""

    what: str
    paper: str
    here: str


class Protocol(NamedTuple):
    """The places where a paper describes an experiment, and the departures of the one here.

    Attributes:
      place: section, figure or table.
      differences: what was not run as in the paper; empty if all that the paper gives was.
      absent: parts of the figure, or claims, that have no row here.
      chosen: what the paper does not give, and was chosen here.
    """

    place: str
    differences: tuple[Difference, ...] = ()
    absent: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()


PROTOCOLS: dict[str, Protocol] = {
    "tied_means": Protocol(
        "section 5.1, figures 1 and 2; section 4.1 for alpha",
        chosen=("the seed of the data", "the number of chains", "the threshold of alpha"),
    ),
    "a9a": Protocol(
        "section 5.2, figure 3: batches of 10, Laplace prior of scale 1, 50 splits in 80 % and "
        "20 %, curves up to ten sweeps",
        chosen=(
            "step sizes, here from 3e-5 to 3e-6",
            "which states predict, here all so far",
            "what counts as a plateau",
        ),
    ),
    "ica_artificial": Protocol(
        "section 5.3.1, figures 4 and 5",
        (
            Difference("steps of corrected Langevin", "500,000", "100,000 of each of 8 chains"),
            Difference("chains", "one of each sampler", "8 of each"),
            Difference("steps of SGLD", "4/N t^-0.55", "4/N (10 + t)^-0.55"),
            Difference(
                "scores of the threshold",
                "those of the minibatch",
                "all, at the start",
            ),
        ),
        (
            "that the index also varies across different runs",
            "a joint density over W11 and W21 beside that over W11 and W12 as a picture alone",
        ),
        (
            "the laws of the channels, here Laplace and normal",
            "the prior's lambda",
            "from which state FastICA or another method starts",
        ),
    ),
    "ica": Protocol(
        "section 5.3.2, figure 6",
        (
            Difference(
                "data",
                "the first 10 of 122 channels of a recording of 17,730 times",
                "ten whitened channels of a file of the same length, not known to be the same",
            ),
            Difference("steps of SGLD", "0.1/N t^-0.55, 500,000", "0.008/N to 0.0015/N, 200,000"),
            Difference("steps of corrected Langevin", "1/N, 100,000", "0.4/N, 4,000"),
            Difference("chains", "one of each sampler", "32 and 16"),
            Difference("the term div M of the preconditioner", "left out", "included"),
        ),
        chosen=("the prior's lambda, here 1", "what counts as very similar, here a factor of 1.25"),
    ),
    "growing_batch": Protocol(
        "section 4.1, figures 1 and 2: a9a, 80 % for training, prior N(0, I), growth 1.1 from one "
        "example, constant size 4, mean of 50 runs",
        chosen=(
            "step sizes, here 2e-4 to 2e-5",
            "the number of steps, here 200",
            "whether each run has another split, here one split",
        ),
    ),
    "growing_batch_mnist": Protocol(
        "section 4.2, figure 3: 60,000 and 10,000 images, prior N(0, I), growth 1.1, constant size "
        "10, mean of 20 runs",
        chosen=("step sizes, here 8e-6 to 4e-6", "the number of steps, here 300"),
    ),
    "sgfs_ellipses": Protocol(
        "section 5.1, figure 1",
        (
            Difference("examples", "10,000", "all 12,214"),
            Difference("draws", "100,000 of one chain", "2,000, ten steps apart, of 16 chains"),
            Difference("burn-in", "3,000 steps", "2,000 steps"),
            Difference("V", "averaged with weights 1/t throughout", "that of the burn-in, kept"),
        ),
        chosen=("which of 300 and 500 is n, here 500", "what counts as almost perfect"),
    ),
    "sgfs_bias": Protocol(
        "section 5.1, figure 2",
        (
            Difference("time", "T = 100 and 3,000 seconds of its machine", "500 and 2,000 passes"),
            Difference("examples", "10,000", "all 12,214"),
            Difference(
                "steps of SGLD",
                "1e-3, 5e-4, 1e-4, 5e-5, 1e-5, 5e-6, 1e-6",
                "1e-6 to 64e-6, as steps above 9e-5 are unstable here",
            ),
            Difference("step of HMC", "tuned to an acceptance of 0.8", "0.6 of the largest stable"),
            Difference("blocks (SGFS-b)", "absent", "added here"),
        ),
        chosen=("the machine", "the projection"),
    ),
    "sgfs_mnist": Protocol(
        "section 5.2.2, figure 3, right",
        (
            Difference("lambda", "0.001", "1, the prior N(0, I)"),
            Difference("alpha of SGFS", "2", "by the validation error: rates of 10 and 30"),
            Difference(
                "steps of SGD and SGLD",
                "(1000 + t)^-1, from 1e-3 to 1e-7",
                "constant, one of three by the validation error",
            ),
            Difference("training rows", "60,000", "50,000, and 10,000 for validation"),
            Difference("V of SGFS-f", "of single examples", "of means of ten examples"),
        ),
        ("Heritage Health Prize, whose data can no longer be had",),
        ("the number of passes", "the starts"),
    ),
    "drbm_kdd": Protocol(
        "section 5.3, table 1: 0.00080 (SGD), 0.00066 (SGLD), 0.00042 (SGFS-d), 0.000441 (SGFS-f)",
        (
            Difference("rows", "4,898,430", "494,021, the 10 % file"),
            Difference("B", "gamma I_N", "I; for SGFS-d gamma I_N in a row of its own"),
            Difference(
                "step sizes",
                "6 pairs of alpha and epsilon (alpha = 8.95 the best), 18 annealing schedules (0.1 "
                "(100,000 + t)^-0.9 the best)",
                "three each; the paper's best and two more schedules of its form",
            ),
        ),
        (),
        ("starts", "which states predict", "whether SGFS-f factors its matrix at each step"),
    ),
    "drbm_kdd_posterior": Protocol(
        "section 5.3, figures 4 and 5",
        (
            Difference("rows", "those of six classes in a 10 % subset", "1,000 of them"),
            Difference(
                "HMC",
                "30 runs of 4,000 draws, one leapfrog step, preconditioned by the Fisher matrix",
                "4 runs of 4,000 draws, 50 leapfrog steps",
            ),
            Difference("alpha of SGFS-f", "2, 3, 4, 5, 10", "20, 7, 3, with B = I"),
            Difference("steps of SGLD", "5e-4, 1e-4, 5e-5, 1e-5, 5e-6", "1e-3, 3e-3, 1e-2"),
            Difference("steps", "1,000,000", "200,000"),
            Difference("n", "300 or 500", "100"),
        ),
        (
            "figure 4: that SGFS-f agrees with HMC as far as HMC agrees with parts of its own "
            "runs, and that SGLD fails on some pairs",
            "figure 5: that SGLD has the larger error at the same rate of mixing",
        ),
    ),
    "gaussian_table1": Protocol(
        "section 4.1, table 1 and figure 1",
        chosen=(
            "the cells of the error, here 50 of equal probability, so that its numbers cannot be "
            "compared",
            "the number of chains, here 64 for h = 0.001 and 640 for h = 0.01 with 3.8 million "
            "states in all, where the paper has one million",
            "what counts as a difference, here 4 standard errors",
        ),
    ),
    "blr_shang": Protocol(
        "section 4.2, figure 2, top row: h = 2e-5, 5e-5, 1e-4, A = 1, 10, n = 500, 600 passes at "
        "the smallest h and 300 at the others",
        chosen=(
            "over which states the mean is taken, here the second half so far",
            "the start",
            "the scale of the projection, with which the noise at a given h grows "
            "(`blr_shang_marginals`)",
        ),
    ),
    "blr_shang_marginals": Protocol(
        "section 4.2, figure 2, bottom row: A = 10",
        (
            Difference(
                "standard deviations of the two weights",
                "up to about 0.005, by the axes",
                "0.008 and 0.006, by the scale of the projection",
            ),
        ),
        chosen=("the projection, so that the weights are others", "the start, here the mode"),
    ),
    "drbm_shang": Protocol(
        "section 4.3, figure 3, top and middle rows: h and A of the captions, 200 passes over "
        "connect-4 and 400 over letter, diagonal Sigma, the first fifth of the passes as burn-in",
        (
            Difference(
                "what the paper does not say",
                "errors on connect-4 from 0.27 to 0.33",
                "errors from 0.17 to 0.25, so that a setting that the paper does not give differs",
            ),
        ),
        ("acoustic, the bottom row, whose data were not at hand",),
        (
            "which n of 500 to 1000, here 1000 on connect-4 and 500 on letter",
            "the prior, here N(0, I)",
            "whether the posterior mean is that of the weights or of the predictions, here of the "
            "weights",
            "the start",
        ),
    ),
    "mixture": Protocol(
        "section 5.1, figure 2: a step for each sampler at which all are equally good at n = N",
        (Difference("prior", "uniform", "N(0, 100)"),),
        ("that SGHMC's larger friction costs its efficiency",),
        (
            "the step sizes, here of 0.005 to 0.08",
            "the friction",
            "the length of the average of Sigma",
        ),
    ),
    "nogin_logistic": Protocol(
        "section 5.2, figure 3: n of 30 to 3000, 200 passes; the other five samplers are in "
        "`nogin_others`",
        chosen=(
            "h and friction, here 0.7 of the limit and the authors' rule",
            "whether the error is relative, and whether it is a square",
            "the length of the average of Sigma, here the library's default",
        ),
    ),
    "nogin_others": Protocol(
        "section 5.2, figure 3: six samplers, 200 passes",
        chosen=(
            "h and friction, here 0.7 of NOGIN's limit, a half and a quarter of that, and the "
            "authors' rule",
            "what counts as stable, here variances wrong by a factor of less than two",
            "the length of the average of Sigma, alike for all",
        ),
    ),
}
