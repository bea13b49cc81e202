"""Makes the virtual environment of the libraries that are compared with.

They need other packages than this library, so they get an environment of their own, in `.venvs/`
at the repository's root: `python -m benchmarks.peers.install`.
"""

from __future__ import annotations

import argparse
import subprocess
import venv
from pathlib import Path

REQUIREMENTS = ("blackjax==1.7.1", "jax==0.10.2")
FOLDER = Path(__file__).resolve().parents[2] / ".venvs" / "peers"


def python(folder: Path = FOLDER) -> Path:
    """The interpreter of an environment, whether or not it has been made."""
    scripts, posix = folder / "Scripts" / "python.exe", folder / "bin" / "python"
    return scripts if scripts.exists() else posix


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="default: %(default)s")
    folder = parser.parse_args().folder
    venv.create(folder, with_pip=True)
    subprocess.run([python(folder), "-m", "pip", "install", *REQUIREMENTS], check=True)
    print(f"{', '.join(REQUIREMENTS)} are installed for {python(folder)}")


if __name__ == "__main__":
    main()
