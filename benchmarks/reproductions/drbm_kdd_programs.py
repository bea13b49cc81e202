"""Programs of the chains of `drbm_kdd`, for a machine with a GPU and JAX but no TensorFlow.

A call of a program takes the steps of one pass and returns its states.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import tfp_sgmcmc as sgmcmc


def write(folder: Path, kernels: dict[str, Any], start: Any, every: int, states: int) -> None:
    """Writes a program for each kernel, of `states` states a call, `every` steps apart."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, kernel in kernels.items():
        path = sgmcmc.export_program(
            kernel,
            start,
            states,
            folder / f"{file_name(name)}.npz",
            device_kind="GPU",
            num_burnin_steps=every - 1,
            num_steps_between_results=every - 1,
        )
        with np.load(path) as file:
            entries = dict(file)
        np.savez_compressed(path, allow_pickle=False, **entries)  # the data have few values


def read(folder: Path, name: str, num_states: int) -> tuple[list[np.ndarray], float, str]:
    """Returns the parts `[num_states, chains, ...]`, the seconds, and the device.

    The first call counts as the mean of the others, because a device's first call is slower.
    """
    path = folder / f"{file_name(name)}.draws.npz"
    if not path.exists():
        sys.exit(
            f"{path} does not exist. Run the programs in {folder} with python -m "
            "benchmarks.devices.run_program FILE --calls PASSES --output FILE.draws.npz "
            "--may-be-infinite, on a machine that has JAX and a GPU."
        )
    with np.load(path) as file:
        parts = [file[f"kept_{i}"] for i in range(4)]
        times, device = file["seconds"], str(file["device"])
    if len(parts[0]) < num_states:
        raise ValueError(f"{path} must hold {num_states} states. Received: {len(parts[0])}.")
    seconds = float(times[1:].mean() * len(times))
    return [part[:num_states] for part in parts], seconds, device


def file_name(name: str) -> str:
    """Returns a method's name in letters, digits and dashes."""
    return "".join(x if x.isalnum() or x == "-" else "_" for x in name)
