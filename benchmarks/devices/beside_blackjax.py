"""Steps of SGLD beside BlackJAX's, both run by JAX on its default device.

    python -m benchmarks.devices.beside_blackjax programs --write     # here, for a GPU
    python -m benchmarks.devices.beside_blackjax programs             # there

The first line writes programs of `sgmcmc.export_program` and their data into a folder. The second
one needs JAX, BlackJAX and this folder, and no TensorFlow. Models, step sizes and BlackJAX's loop
are those of `benchmarks.peers`, with 5,000 rows of the data. Each side compiles a case once and is
then timed in turn with the other. The last states of both must classify the data.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.steps_settings import STEP_SIZES, accuracy, first_state
from benchmarks.peers.worker import Case

NUM_ROWS = 5000
# model, n, chains, whether they share a minibatch, steps of a call
ROWS = (
    ("logistic", 100, 1, False, 20_000),
    ("logistic", 500, 1, False, 20_000),
    ("logistic", 100, 64, False, 10_000),
    ("logistic", 500, 64, False, 5000),
    ("logistic", 500, 64, True, 10_000),
    ("logistic", 100, 4096, False, 500),
    ("network", 128, 1, False, 10_000),
    ("network", 128, 64, False, 10_000),
)


def name_of(row: tuple[Any, ...]) -> str:
    model, n, chains, shared, _ = row
    return f"{model}_{n}_{chains}{'_shared' * shared}"


def write(folder: Path) -> None:
    """Writes the programs for a GPU, and the data of each model."""
    import tensorflow as tf

    import tfp_sgmcmc as sgmcmc
    from benchmarks.peers import steps_ours
    from benchmarks.peers.steps import DATA

    folder.mkdir(parents=True, exist_ok=True)
    data = {model: [a[:NUM_ROWS] for a in load()] for model, load in DATA.items()}
    for model, (x, y) in data.items():
        np.savez(folder / f"data-{model}.npz", x=x, y=y)
    for row in ROWS:
        model, n, chains, shared, steps = row
        x, y = data[model]
        target = sgmcmc.MinibatchLogProb(
            steps_ours.log_prior, steps_ours.log_likelihood, {"x": x, "y": y}, n,
            replacement=True, shared_batch=shared,
        )  # fmt: skip
        start = [tf.constant(part) for part in first_state(x, chains)]
        kernel, path = (
            sgmcmc.SGLD(target, STEP_SIZES[model]["SGLD"]),
            folder / f"{name_of(row)}.npz",
        )
        sgmcmc.export_program(
            kernel, start, 1, path, seed=0, device_kind="GPU", num_burnin_steps=steps - 1
        )


def seconds_of(run: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    found = run()
    return time.perf_counter() - began, found


def measure(folder: Path, row: tuple[Any, ...], repeats: int) -> tuple[float, float]:
    """Returns median microseconds a step of all chains, here and in BlackJAX."""
    import jax

    from benchmarks.devices.run_program import Program
    from benchmarks.peers.steps_blackjax import make_runner

    model, n, chains, shared, steps = row
    with np.load(folder / f"data-{model}.npz") as file:
        x, y = file["x"], file["y"]
    ours = Program(folder / f"{name_of(row)}.npz")  # which counts steps in 64 bits
    with jax.enable_x64(False):
        theirs = make_runner(Case(n, chains, shared, True, False, steps), x, y)
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    for call in range(repeats + 1):  # the first call compiles
        seconds, (outputs, taken) = seconds_of(lambda: ours(steps))
        times["ours"].append(1e6 * seconds / taken)
        kept = [np.asarray(outputs[k])[-1] for k in sorted(outputs) if k.startswith("kept_")]
        with jax.enable_x64(False):
            seconds, last = seconds_of(lambda call=call: theirs(call))
        times["theirs"].append(1e6 * seconds / steps)
    for side, state in (("ours", kept[: len(last)]), ("BlackJAX", last)):
        found = accuracy(state, x, y)
        if not found >= 0.9:  # also true for NaN
            raise SystemExit(f"{name_of(row)}: {side} classifies {found:.3f} of the data.")
    ours_us, theirs_us = (statistics.median(found[1:]) for found in times.values())
    return ours_us, theirs_us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="folder of the programs")
    parser.add_argument("--write", action="store_true", help="writes them, with TensorFlow")
    parser.add_argument("--repeats", type=int, default=5, help="timed calls of each side")
    arguments = parser.parse_args()
    if arguments.write:
        write(arguments.folder)
        return
    import blackjax
    import jax

    device = jax.devices()[0]
    versions = f"jax {jax.__version__}, blackjax {blackjax.__version__}"
    print(f"{time.strftime('%d %B %Y')}, {device.device_kind} ({device.platform}), {versions}")
    print("| model | n | chains | batch | ours us | BlackJAX us | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in ROWS:
        ours, theirs = measure(arguments.folder, row, arguments.repeats)
        model, n, chains, shared, _ = row
        batch = "shared" if shared else "own"
        print(f"| {model} | {n} | {chains} | {batch} | {ours:.1f} | {theirs:.1f} | "
              f"{ours / theirs:.2f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
