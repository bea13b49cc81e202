"""Samples two posteriors of handwritten digits (1797 images that come with scikit-learn).

1. Bayesian logistic regression: is the digit odd? Three stochastic-gradient samplers run in
   whitened coordinates. Hamiltonian Monte Carlo (HMC) with all data is the reference. The table
   gives the relative errors of posterior means and covariances; the largest R-hat; seconds without
   compilation; and the number of independent draws of the weight with the fewest.
2. A neural network, trained by Adam, and sampled by tfp_sgmcmc.keras.SamplerCallback from the same
   start for as many epochs. The table gives accuracy, negative log likelihood (NLL) and expected
   calibration error (ECE) on a fifth of the images, which is left out of the training.

The output folder receives report.html (both tables and the picture, for a browser), results.json
(the tables) and marginals.png (six weights, SGLD against HMC).
The run takes about two minutes on two cores, and a minute with --quick. It requires the extra
`demo`: python -m pip install "tfp_sgmcmc[demo]"
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Generator
from pathlib import Path

from tfp_sgmcmc import __version__


@contextlib.contextmanager
def _hidden_start_up_lines() -> Generator[None]:
    """Hides what TensorFlow's libraries write to stderr when they load, whatever the log level."""
    if sys.stderr is None:  # a process without a console
        yield
        return
    sys.stderr.flush()
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


def _seed(text: str) -> int:
    """Returns a number that NumPy, TensorFlow and Keras all take for a seed."""
    if not 0 <= (seed := int(text)) < 2**32:
        raise ValueError(text)
    return seed


def main(arguments: list[str] | None = None) -> int:
    """Runs the demonstration and returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tfp_sgmcmc",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--output", type=Path, default=Path("output"), metavar="DIR",
        help="folder for figures and results, created if missing (default: output)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=_seed, default=0, metavar="NUMBER",
        help="seed of all random numbers, 0 to 2^32 - 1 (default: 0)",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps and epochs")
    parser.add_argument("--version", action="version", version=__version__)
    options = parser.parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides notes of later calls
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        with _hidden_start_up_lines():
            from tfp_sgmcmc import demo

        demo.run(options.output, options.seed, shortening=10 if options.quick else 1)
        return 0
    except KeyboardInterrupt:
        code, message = 130, "interrupted"
    except ModuleNotFoundError as error:
        code, message = 1, f'{error}. Run: python -m pip install "tfp_sgmcmc[demo]"'
    except OSError as error:
        code, message = 1, f"--output {options.output}: the folder must be writable ({error})"
    print(f"{parser.prog}: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
