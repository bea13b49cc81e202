"""The machine and the package versions of a measurement."""

from __future__ import annotations

import os
import platform
from importlib import metadata

PACKAGES = ("tensorflow", "keras", "tensorflow-probability", "numpy")


def num_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def one_core() -> set[int] | None:
    """Returns the last core that this process may use, or None where cores have no numbers."""
    return {max(os.sched_getaffinity(0))} if hasattr(os, "sched_getaffinity") else None


def use_one_core() -> None:
    """Keeps this process on one core, on Linux; for a start, before TensorFlow makes its threads.

    Threads of XLA that wait for small operations keep their cores busy. On two cores the processor
    seconds of a small step are twice its wall-clock seconds.
    """
    core = one_core()
    if core is not None:
        os.sched_setaffinity(0, core)


def versions(*packages: str) -> str:
    """Returns the versions of Python and of installed packages in one line."""
    found = (f"{name} {metadata.version(name)}" for name in packages)
    return ", ".join([f"Python {platform.python_version()}", *found])


def describe() -> str:
    """Returns devices, core count and versions, for the head of a report."""
    import tensorflow as tf  # imported here, so that `--help` does not wait for it

    gpus = [
        str(tf.config.experimental.get_device_details(gpu).get("device_name", "GPU"))
        for gpu in tf.config.list_physical_devices("GPU")
    ]
    device = ", ".join(gpus) or f"CPU ({platform.machine()})"
    return f"device: {device}; cores: {num_cores()}; {versions(*PACKAGES)}"
