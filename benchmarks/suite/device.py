"""The device of the suite; an environment variable names it, as one names the profile."""

from __future__ import annotations

import os

VARIABLE = "TFP_SGMCMC_DEVICE"
DEVICES = ("CPU", "GPU")


def chosen() -> str:
    """The device that the environment variable names."""
    name = os.environ.get(VARIABLE, "CPU")
    if name not in DEVICES:
        raise ValueError(f"{VARIABLE} is {name!r}; one of {', '.join(DEVICES)} is expected.")
    return name


def environment(device: str) -> dict[str, str]:
    """What TensorFlow must find before it is imported: it takes a GPU where it sees one."""
    return {"CUDA_VISIBLE_DEVICES": "-1"} if device == "CPU" else {}


def check(device: str) -> None:
    """Raises RuntimeError where TensorFlow does not see the device."""
    import tensorflow as tf  # here, so that it starts in the environment above

    if not tf.config.list_physical_devices(device):
        seen = ", ".join(sorted({found.device_type for found in tf.config.list_physical_devices()}))
        raise RuntimeError(f"The suite is to run on a {device}; TensorFlow sees {seen} only.")
