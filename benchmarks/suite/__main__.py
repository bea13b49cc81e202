"""Runs asv on a device, its results kept apart from those of this machine's other devices.

    python -m benchmarks.suite --device GPU run --quick --python=same
    python -m benchmarks.suite --device GPU continuous --factor 1.3 main HEAD

What follows the device is asv's. To asv each device is a machine, named after this one. A GPU
wants asv's own `--launch-method spawn`, the default here: CUDA does not outlive a fork.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys

from benchmarks.environment import describe
from benchmarks.suite import device


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.suite",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--device", choices=device.DEVICES, default=device.chosen())
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
