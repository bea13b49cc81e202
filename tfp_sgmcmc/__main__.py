"""The demonstration, `python -m tfp_sgmcmc`: a sampler against HMC, a network against Adam."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

from tfp_sgmcmc import __version__
from tfp_sgmcmc.demo.problems import QUESTIONS, Problem, load
from tfp_sgmcmc.demo.samplers import SAMPLERS

_say = functools.partial(print, flush=True)

_EXTRAS = ("matplotlib", "tqdm", "sklearn", "scipy", "pooch")

_DESCRIPTION = """\
Samples two posteriors and measures the errors of the samples.

1. Bayesian logistic regression (standardised features and a constant, prior N(0, 1) on every
   weight) on a yes-or-no question, by a stochastic-gradient sampler and by full-data Hamiltonian
   Monte Carlo (HMC), the reference. The table gives E1 and E2, the relative errors of posterior
   mean and covariance; seconds without compilation; effective samples of all chains together for
   the coordinate with the fewest (ESS); and passes of one chain over the data.
2. A neural network with one hidden layer, trained by Adam, and sampled by
   tfp_sgmcmc.keras.SamplerCallback from the same start for as many epochs. The table gives
   accuracy, negative log likelihood (NLL) and expected calibration error (ECE) on the test part.
"""

_EPILOG = """\
samplers (M is the preconditioner; in whitened coordinates the covariance is about I):
{samplers}

data, and the question of part 1:
{questions}
  digits are the 8 x 8 images that come with scikit-learn; a fifth of them is the test part. The
  folder `datasets` of the repository loads the others, so run from the root of a checkout. It looks
  for files in the folder that the environment variable TFP_SGMCMC_DATASETS names and in the cache,
  and downloads missing ones; datasets/README.md names sources and licences. If the data have more
  than 200 features, part 1 takes the first 50 principal components.

written to the output folder (existing files of these names are replaced):
  results.json      the printed tables with all digits
  marginals.png     marginal posteriors of six weights, sampler against HMC
  trace.png         the sampler's chains, with HMC's interval
  reliability.png   accuracy against confidence, Adam against the posterior average

run time on two cores: about a minute for digits (half of it with --quick), some minutes for larger
data (more than ten for kddcup99) and for samplers with a covariance.
exit codes: 0 done; 1 something is missing or failed; 2 a bad option; 130 interrupted.
requires the extra `demo`: python -m pip install "tfp_sgmcmc[demo]"
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")  # one line, without the usage


def main(arguments: list[str] | None = None) -> int:
    """Runs the demonstration and returns its exit code."""
    parser = _make_parser()
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except KeyboardInterrupt:
        code, message = 130, "interrupted"
    except (_CannotRunError, OSError, FloatingPointError) as error:
        code, message = 1, " ".join(str(error).split())
    print(f"{parser.prog}: {message}", file=sys.stderr)
    return code


class _CannotRunError(Exception):
    """A problem that the user must solve."""


def _make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m tfp_sgmcmc",
        description=_DESCRIPTION,
        epilog=_EPILOG.format(
            samplers=_listed({name: s.label for name, s in SAMPLERS.items()}),
            questions=_listed({name: q.text for name, q in QUESTIONS.items()}),
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--data", choices=tuple(QUESTIONS), default="digits", metavar="NAME",
        help="data set, see below (default: digits)",
    )  # fmt: skip
    parser.add_argument(
        "--sampler", choices=tuple(SAMPLERS), default="sgld", metavar="NAME",
        help="sampler of part 1, see below (default: sgld)",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=Path, default=Path("output"), metavar="DIR",
        help="folder for figures and results, created if missing (default: output)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=_seed, default=0, metavar="INT",
        help="seed of all random numbers, 0 .. 4294967295 (default: 0)",
    )  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the steps and epochs, larger errors"
    )
    parser.add_argument("--version", action="version", version=__version__)
    return parser


def _listed(texts: dict[str, str]) -> str:
    return "\n".join(f"  {name:<21} {text}" for name, text in texts.items())


def _seed(text: str) -> int:
    if text.isdecimal() and int(text) < 2**32:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be an integer in 0 .. 4294967295. Received: {text!r}.")


def _run(options: argparse.Namespace) -> int:
    _check_extras()
    _check_output(options.output)
    problem = _load(options.data)
    start = time.perf_counter()
    _say(
        f"{options.data}: {len(problem.x_train)} training and {len(problem.x_test)} test rows, "
        f"{problem.x_train.shape[1]} features, {len(problem.is_yes)} classes. "
        "Loading TensorFlow ..."
    )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides notes on CPU features and drivers
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    from tfp_sgmcmc.demo import classifier, figures, logistic, report

    shortening = 10 if options.quick else 1
    _say(f"1. Logistic regression: {problem.question}")
    comparison = logistic.compare(problem, options.sampler, options.seed, shortening)
    _say(f"\n{report.table(report.POSTERIOR, comparison.rows)}\n")
    _say(f"{report.quality(comparison.reference)}\n")
    _say("2. Neural network")
    classifiers = classifier.compare(problem, options.seed, shortening)
    _say(f"\n{report.table(report.CLASSIFIER, classifiers.rows)}\n")

    title = f"{options.data}, {len(problem.x_train)} examples"
    paths = figures.save(options.output, comparison, classifiers, title)
    results = {
        "version": __version__,
        "data": options.data,
        "question": problem.question,
        "sampler": options.sampler,
        "seed": options.seed,
        "quick": options.quick,
        "posterior": comparison.rows,
        "reference": comparison.reference,
        "classifier": classifiers.rows,
        "seconds": time.perf_counter() - start,
    }
    report.save(options.output / "results.json", results)
    _say("Written: " + ", ".join(map(str, [options.output / "results.json", *paths])))
    _say(f"{results['seconds']:.0f} s in all")
    return 0


def _check_extras() -> None:
    missing = [name for name in _EXTRAS if importlib.util.find_spec(name) is None]
    if missing:
        raise _CannotRunError(
            f"{', '.join(missing)} must be installed. "
            'Run: python -m pip install "tfp_sgmcmc[demo]".'
        )


def _check_output(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _CannotRunError(
            f"--output {folder}: the folder must be writable ({error.strerror})."
        ) from error


def _load(name: str) -> Problem:
    try:
        return load(name)
    except (ImportError, OSError, ValueError) as error:
        raise _CannotRunError(f"--data {name}: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
