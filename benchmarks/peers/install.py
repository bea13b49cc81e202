"""Makes the virtual environments of the other libraries.

The libraries need packages that fit neither this library nor each other. So each has an environment
in `.venvs/` at the root of the repository: `python -m benchmarks.peers.install [name ...]`.
"""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path

from benchmarks.common import command_line

REQUIREMENTS = {
    "blackjax": ("blackjax==1.7.1", "jax==0.10.2"),
    # SGMCMCJax does not work with a later JAX.
    "sgmcmcjax": ("sgmcmcjax==0.2.13", "jax==0.4.35", "jaxlib==0.4.35"),
    "posteriors": ("posteriors==0.1.3", "torch>=2.14"),
    "numpyro": ("numpyro==0.22.0", "jax==0.10.2"),
}
FOLDER = Path(__file__).resolve().parents[2] / ".venvs"


def python(name: str = "blackjax", folder: Path = FOLDER) -> Path:
    """Returns the path of an environment's interpreter, which need not exist yet."""
    scripts, posix = folder / name / "Scripts/python.exe", folder / name / "bin/python"
    return scripts if scripts.exists() else posix


def install(*, folder: Path = FOLDER, names: tuple[str, ...] = tuple(REQUIREMENTS)) -> None:
    """Makes environments in a folder.

    Raises:
      subprocess.CalledProcessError: pip failed.
    """
    for name in names:
        venv.create(folder / name, with_pip=True)
        path, packages = python(name, folder), REQUIREMENTS[name]
        subprocess.run([path, "-m", "pip", "install", *packages], check=True)
        print(f"{', '.join(packages)} are installed for {path}", flush=True)


def main() -> None:
    def options(*, folder: Path = FOLDER) -> None: ...

    parser = command_line.parser(__doc__, options, with_output=False)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(REQUIREMENTS)}")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(REQUIREMENTS)
    if unknown:
        parser.error(
            f"names must be some of {', '.join(REQUIREMENTS)}. Received: {', '.join(unknown)}."
        )
    install(folder=arguments.folder, names=tuple(arguments.names or REQUIREMENTS))


if __name__ == "__main__":
    main()
