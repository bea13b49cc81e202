"""Runs files of `sgmcmc.export_program` by JAX's PJRT client, without TensorFlow.

    python -m benchmarks.devices.run_program FILE [--calls 5] [--output DRAWS.npz]
    python -m benchmarks.devices.run_program FILE... --seconds 0.5

It needs NumPy and JAX alone, and takes JAX's default device. The first call begins where the file
does. Each further call goes on from the one before, so that the draws of all calls are one chain.
It prints the seconds that compiling took, and microseconds a step of each call but the first. The
output has what the calls kept as `kept_i`, `[num_results * calls, ...]`: first the parts of the
state, then step sizes. It also has the `seconds` of the calls, and the name of the `device`. An
interrupt ends the chain after the calls that are done. With `--seconds` it prints for each file the
median of three calls, each of as many steps to its first draw as take so long.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


class Program:
    """A compiled program with its inputs, which stay on the device.

    Args:
      path: the file.
    """

    def __init__(self, path: Path):
        import jax

        # Or JAX would cut the number of a step to 32 bits.
        jax.config.update("jax_enable_x64", True)
        with np.load(path, allow_pickle=False) as file:
            self.header = json.loads(str(file["header"]))
            stablehlo = file["program"].tobytes()
            arrays = {name: file[name] for name in self.header["inputs"]}
        device = jax.devices()[0]
        self.device = f"{device.device_kind} ({device.platform})"
        began = time.perf_counter()
        self._run = _compiled(stablehlo, device)
        self.seconds_to_compile = time.perf_counter() - began
        self._put = functools.partial(jax.device_put, device=device)
        self._inputs = {name: self._put(x) for name, x in arrays.items()}
        self._next = self._put(np.int64(self.header["steps_between"]))

    @property
    def num_draws(self) -> int:
        return self.header["num_results"]

    def __call__(self, first: int | None = None) -> tuple[dict[str, Any], int]:
        """Takes the steps of a call, of which `first` come before the first draw if it is given.

        Returns all outputs and the number of steps.
        """
        if first is not None:
            self._inputs["first"] = self._put(np.int64(first))
        before = int(np.asarray(self._inputs["position_0"]))
        outputs = dict(
            zip(self.header["outputs"], self._run([*self._inputs.values()]), strict=True)
        )
        self._inputs |= {name: x for name, x in outputs.items() if name in self._inputs}
        self._inputs["first"] = self._next
        return outputs, int(np.asarray(outputs["position_0"])) - before


def _compiled(stablehlo: bytes, device: Any) -> Callable[[list[Any]], list[Any]]:
    """Returns the program as a function of device arrays.

    JAX has no public function for a program that it did not trace itself, so this uses the compiler
    under it, as of jaxlib 0.10.
    """
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jaxlib.mlir import ir

    with mlir.make_ir_context():
        module = ir.Module.parse(stablehlo)
        executable = device.client.compile_and_load(
            module, xla_client.DeviceList((device,)), xla_client.CompileOptions()
        )

    def run(inputs: list[Any]) -> list[Any]:
        found = executable.execute_sharded(inputs).disassemble_into_single_device_arrays()
        outputs = [x[0] for x in found]
        for x in outputs:
            x.block_until_ready()
        return outputs

    return run


def run(path: Path, calls: int, may_be_infinite: bool = False) -> dict[str, np.ndarray]:
    """Runs a file, prints how long that took, and returns the draws and seconds of all calls."""
    program = Program(path)
    print(f"{program.device}: compiled in {program.seconds_to_compile:.1f} s")
    kept: list[list[np.ndarray]] = []
    times: list[float] = []
    with contextlib.suppress(KeyboardInterrupt):
        for call in range(calls):
            began = time.perf_counter()
            outputs, steps = program()
            seconds = time.perf_counter() - began
            if not may_be_infinite and not bool(outputs["is_finite"]):
                raise ValueError(f"{path}: the draws of call {call} are not finite.")
            kept.append([np.asarray(outputs[n]) for n in outputs if n.startswith("kept_")])
            times.append(seconds)
            note = " (first call)" if call == 0 else ""
            print(f"call {call}: {steps} steps, {1e6 * seconds / steps:.2f} us a step{note}")
    draws = {f"kept_{i}": np.concatenate(x) for i, x in enumerate(zip(*kept, strict=True))}
    return {**draws, "seconds": np.array(times), "device": np.array(program.device)}


def time_step(path: Path, seconds: float) -> None:
    """Prints the microseconds of a step in calls of about so many seconds."""
    program = Program(path)
    program()  # the first call of a program is slower
    steps, times = 50, []
    for call in range(4):
        began = time.perf_counter()
        _, taken = program(steps)
        times.append((time.perf_counter() - began) / taken)
        if call == 0:
            steps = max(20, int(seconds / times.pop()))
    us = 1e6 * sorted(times)[1]
    print(f"{path.stem}: {us:.1f} us a step, compiled in {program.seconds_to_compile:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("paths", nargs="+", type=Path, help="files of sgmcmc.export_program")
    parser.add_argument("--calls", type=int, default=5, help="how often the program is run")
    parser.add_argument("--output", type=Path, help="where the draws go")
    parser.add_argument("--seconds", type=float, help="times the files in calls of so long")
    parser.add_argument(
        "--may-be-infinite", action="store_true", help="goes on where a chain is infinite"
    )
    arguments = parser.parse_args()
    if arguments.seconds is not None:
        for path in arguments.paths:
            time_step(path, arguments.seconds)
        return
    if len(arguments.paths) > 1:
        parser.error("several files need --seconds")
    draws = run(arguments.paths[0], arguments.calls, arguments.may_be_infinite)
    if arguments.output is not None:
        np.savez(arguments.output, allow_pickle=False, **draws)


if __name__ == "__main__":
    main()
