"""Memory that the exact log posterior and its gradient take beyond the data.

Logistic regression on synthetic data, by default N = 1,000,000 and D = 100 in float32 (400 MB). In
a fresh process for each mode, the peak of resident memory during one evaluation is compared with
the memory before it, when data and target are in place. Compilation counts. Linux only.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

MODES = {"eager": None, "tf.function": False, "XLA": True}


def added_memory(num_examples: int, num_features: int, mode: str, seed: int) -> tuple[float, float]:
    """Megabytes (10^6 bytes) that value and gradient add to this process, and the data's own."""
    import numpy as np
    import tensorflow as tf

    import tfp_sgmcmc as sgmcmc
    from benchmarks.logistic import gaussian_log_prior, log_likelihood

    rng = np.random.default_rng(seed)
    x = rng.standard_normal((num_examples, num_features), np.float32)
    y = (rng.random(num_examples) < 0.5).astype(np.float32)
    data = tf.nest.map_structure(tf.convert_to_tensor, {"x": x, "y": y})
    del x, y
    target = sgmcmc.MinibatchLogProb(gaussian_log_prior, log_likelihood, data, batch_size=100)

    def value_and_gradient(theta: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(theta)
            value = target(theta)
        return value, tape.gradient(value, theta)

    compiled = MODES[mode]
    if compiled is not None:
        value_and_gradient = tf.function(value_and_gradient, jit_compile=compiled)
    theta = tf.zeros([num_features])
    before = start_peak()
    value, gradient = value_and_gradient(theta)
    np.testing.assert_allclose(value, -num_examples * np.log(2), rtol=1e-4)
    assert np.all(np.isfinite(gradient))
    return peak() - before, num_examples * (num_features + 1) * 4 / 1e6


def start_peak() -> float:
    """Lets the peak of resident memory start again from what is in use, which is returned: MB."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak() -> float:
    """The peak of resident memory, MB (10^6 bytes)."""
    return _status("VmHWM")


def _status(name: str) -> float:
    match = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-examples", type=int, default=1_000_000)
    parser.add_argument("--num-features", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mode", choices=MODES, help="measure in this process")
    arguments = parser.parse_args()
    if arguments.mode is None:
        from benchmarks.environment import describe

        print(describe(), flush=True)
        for mode in MODES:
            command = [sys.executable, "-m", "benchmarks.memory", *sys.argv[1:], "--mode", mode]
            subprocess.run(command, check=True)
        return
    added, data = added_memory(
        arguments.num_examples, arguments.num_features, arguments.mode, arguments.seed
    )
    print(f"{arguments.mode:>12}: {added:6.1f} MB added to {data:.0f} MB of data")


if __name__ == "__main__":
    main()
