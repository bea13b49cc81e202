"""Time of a step whose minibatch two replicas share, as threads and as processes.

SGLD on logistic regression with synthetic data (`ShardedLogProb`, two shards). A replica has one
core. One replica takes t(1), with the whole step compiled by XLA. For R replicas the model is

    t(R) = t(1) / R + a(D, R)

where a is the time to sum D numbers over the replicas, measured alone in a loop like that of the
steps. What a step takes beyond the model are the parts that XLA does not compile there: the noise,
the update and what the strategy does. Two replicas are worth it where t(1) is above
2 (a + these parts). Other work on the machine slows all of it, so compare times within one run. The
last two columns are processor times of a replica, its waiting left out, which bear other work best.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.logistic import gaussian_log_prior, log_likelihood
from benchmarks.scaling_out import workers
from tfp_sgmcmc.internal.replicas import total as sum_over_replicas
from tfp_sgmcmc.sampling.loop import Loop, start_of

MODULE = "benchmarks.scaling_out.replicas"
KINDS = ("one", "threads", "processes")
SECONDS = 150  # for a child


class Row(NamedTuple):
    """Times of a step, in milliseconds; the last two are processor times of a replica."""

    replicas: str
    batch_size: int
    one: float
    two: float
    sum: float
    model: float
    beyond: float
    gain: float
    cpu_one: float
    cpu_two: float


def rows(
    *,
    batch_sizes: tuple[int, ...] = (500, 5_000, 50_000),
    num_examples: int = 100_000,
    num_features: int = 200,
    repeats: int = 5,
) -> list[Row]:
    """Returns a row for each kind of replicas and batch size.

    Args:
      batch_sizes: n.
      num_examples: N.
      num_features: D.
      repeats: how often each is timed; the shortest time counts.
    """
    options = dict(n=batch_sizes, total=num_examples, dim=num_features, repeats=repeats)
    found = {kind: _in_processes(kind, options) for kind in KINDS}
    made = []
    for kind in KINDS[1:]:
        added = found[kind]["sum"][0]
        for n in batch_sizes:
            (one, cpu_one), (two, cpu_two) = (found[k][str(n)] for k in ("one", kind))
            cpu_two /= 2 if kind == "threads" else 1  # of the process
            model = one / 2 + added
            times = (one, two, added, model, two - model, one / two, cpu_one, cpu_two)
            made.append(Row(kind, n, *times))
    return made


def show(found: list[Row]) -> None:
    columns = {"replicas": "s", "n": ",d", "t(1), ms": ".3f", "t(2), ms": ".3f"}
    columns |= {"a, ms": ".3f", "model, ms": ".3f", "beyond, ms": ".3f", "t(1)/t(2)": ".2f"}
    columns |= {"cpu(1), ms": ".3f", "cpu(2), ms": ".3f"}
    command_line.print_table(columns, found)


def _in_processes(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """Returns times by batch size, and of the sum, measured in new processes."""
    # More threads than cores take the operations, as some of them wait for other replicas.
    threads = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "4"}
    arguments = (MODULE, "--child", kind, json.dumps(options))
    return workers.measured(arguments, 2 if kind == "processes" else 1, SECONDS, threads)


def child(kind: str, n: list[int], total: int, dim: int, repeats: int) -> None:
    """Measures in this process, and prints the result."""
    strategy = tf.distribute.get_strategy()
    if kind == "threads":
        cpu = tf.config.list_physical_devices("CPU")[0]
        parts = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, parts)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    elif kind == "processes":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def load_shard(s: int) -> Any:
        generator = np.random.default_rng(s)
        x = generator.standard_normal([total // 2, dim]).astype(np.float32)
        return {"x": x, "y": (generator.uniform(size=len(x)) < 0.5).astype(np.float32)}

    with strategy.scope():
        found = {}
        target = sgmcmc.ShardedLogProb(
            gaussian_log_prior, log_likelihood, load_shard, 2, total, n[0]
        )
        for size in n:
            found[str(size)] = _step_ms(target.with_minibatches(size), dim, repeats)
        if target.replicas is not None:
            found["sum"] = _sum_ms(target.replicas, dim, repeats)
    print(json.dumps(found), flush=True)


def _step_ms(target: sgmcmc.ShardedLogProb, dim: int, repeats: int) -> tuple[float, float]:
    kernel = sgmcmc.SGLD(target, 1e-6)
    position = start_of(kernel, tf.zeros([dim]))
    loop = Loop(lambda _: kernel, None, position, jit_compile=True, replicas=target.replicas)
    steps = max(5, 1_000_000 // (target.batch_size * 4 + 20_000))
    seed = tf.constant([0, 1])
    return _shortest_ms(lambda: loop(position, 1, steps, 1, seed)[0].state.numpy(), steps, repeats)


def _sum_ms(replicas: Any, dim: int, repeats: int) -> tuple[float, float]:
    """Returns the time of a sum of D numbers over replicas, and of the loop around it."""
    count = 200

    @tf.function(autograph=False)
    def sums(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(
            lambda i, _: i < count,
            lambda i, x: (i + 1, replicas.run(lambda: sum_over_replicas(x / replicas.count))),
            (tf.constant(0), x),
            parallel_iterations=1,
        )[1]

    return _shortest_ms(lambda: sums(tf.ones([dim])).numpy(), count, repeats)


def _shortest_ms(run: Callable[[], Any], count: int, repeats: int) -> tuple[float, float]:
    """Returns the shortest time and the least processor time of a step, of `count` in a call."""
    run()
    times = []
    for _ in range(repeats):
        began = np.array([time.perf_counter(), time.process_time()])
        run()
        times.append(np.array([time.perf_counter(), time.process_time()]) - began)
    wall, processor = 1e3 * np.min(times, axis=0) / count
    return float(wall), float(processor)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], **json.loads(sys.argv[3]))
    else:
        command_line.main(__doc__, rows, show)
