"""The device of the suite, which an environment variable names."""

from __future__ import annotations

import os

VARIABLE = "TFP_SGMCMC_DEVICE"
DEVICES = ("CPU", "GPU")


def chosen() -> str:
    """Returns the device that the environment variable names.

    Raises:
      ValueError: an unknown device.
    """
    name = os.environ.get(VARIABLE, "CPU")
    if name not in DEVICES:
        raise ValueError(f"{VARIABLE} must be one of {', '.join(DEVICES)}. Received: {name!r}.")
    return name


def environment(device: str) -> dict[str, str]:
    """Returns the variables to set before TensorFlow is imported; it uses each GPU that it sees."""
    return {"CUDA_VISIBLE_DEVICES": "-1"} if device == "CPU" else {}


def check(device: str) -> None:
    """Raises RuntimeError if TensorFlow does not see the device."""
    import tensorflow as tf  # imported here, so that it starts in the environment above

    if not tf.config.list_physical_devices(device):
        seen = ", ".join(sorted({found.device_type for found in tf.config.list_physical_devices()}))
        raise RuntimeError(f"The suite needs a {device}. TensorFlow sees only: {seen}.")
