"""Runs asv on a device, and keeps the results apart from those of other devices of the machine.

    python -m benchmarks.suite --device GPU run --quick --python=same
    python -m benchmarks.suite --device GPU continuous --factor 1.3 main HEAD

All further options are passed to asv. To asv each device is a machine, named after this machine. A
GPU needs asv's `--launch-method spawn`, which is the default here, because CUDA does not work after
a fork.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys

from benchmarks.common import command_line
from benchmarks.common.environment import describe
from benchmarks.suite import device


def run(*, device: str = device.chosen()) -> None:
    """The options; `main` also takes those of asv."""


def main() -> None:
    parser = command_line.parser(__doc__, run, False, choices={"device": device.DEVICES})
    parser.prog, parser.allow_abbrev = "python -m benchmarks.suite", False
    parser.add_argument("command", choices=("run", "continuous"))
    arguments, rest = parser.parse_known_args()
    os.environ.update(device.environment(arguments.device))
    os.environ[device.VARIABLE] = arguments.device
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        device.check(arguments.device)
    except RuntimeError as error:
        parser.error(str(error))
    machine = f"{platform.node()}-{arguments.device.lower()}"
    print(f"{machine}: {describe()}", flush=True)
    asv = [sys.executable, "-m", "asv"]
    subprocess.run([*asv, "machine", "--yes", "--machine", machine], check=True)
    command = [*asv, arguments.command, "--machine", machine, *rest]
    sys.exit(subprocess.run(command).returncode)


if __name__ == "__main__":
    main()
