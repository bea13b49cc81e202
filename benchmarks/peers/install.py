"""Makes the virtual environments of the libraries that are compared with.

Each needs other packages than this library and than the others, so it gets an environment of its
own, in `.venvs/` at the repository's root: `python -m benchmarks.peers.install [name ...]`.
"""

from __future__ import annotations

import argparse
import subprocess
import venv
from pathlib import Path

REQUIREMENTS = {
    "blackjax": ("blackjax==1.7.1", "jax==0.10.2"),
    "sgmcmcjax": ("sgmcmcjax==0.2.13", "jax==0.4.35", "jaxlib==0.4.35"),  # later ones break it
    "posteriors": ("posteriors==0.1.3", "torch==2.15.0"),
}
FOLDER = Path(__file__).resolve().parents[2] / ".venvs"


def python(name: str = "blackjax", folder: Path = FOLDER) -> Path:
    """The interpreter of an environment, whether or not it has been made."""
    scripts, posix = folder / name / "Scripts/python.exe", folder / name / "bin/python"
    return scripts if scripts.exists() else posix


def install(name: str, folder: Path = FOLDER) -> None:
    """Makes one environment.

    Raises:
      subprocess.CalledProcessError: pip failed.
    """
    venv.create(folder / name, with_pip=True)
    subprocess.run([python(name, folder), "-m", "pip", "install", *REQUIREMENTS[name]], check=True)
    print(f"{', '.join(REQUIREMENTS[name])} are installed for {python(name, folder)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(REQUIREMENTS)}")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="default: %(default)s")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(REQUIREMENTS)
    if unknown:
        parser.error(f"{', '.join(unknown)}: names of {', '.join(REQUIREMENTS)} are expected")
    for name in arguments.names or REQUIREMENTS:
        install(name, arguments.folder)


if __name__ == "__main__":
    main()
