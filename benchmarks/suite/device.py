"""The device of the suite, which an environment variable names."""

from __future__ import annotations

import os
from collections.abc import Sequence

VARIABLE = "TFP_SGMCMC_DEVICE"
DEVICES = ("CPU", "GPU")


def chosen() -> str:
    """Returns the device that the environment variable names."""
    return named_choice(VARIABLE, DEVICES)


def named_choice(variable: str, choices: Sequence[str]) -> str:
    """Returns what an environment variable names, or the first choice if it is not set.

    Raises:
      ValueError: the variable names none of the choices.
    """
    name = os.environ.get(variable, choices[0])
    if name not in choices:
        raise ValueError(f"{variable} must be one of {', '.join(choices)}. Received: {name!r}.")
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
