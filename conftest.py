"""Runs the whole suite, `python -m pytest`, on all cores if pytest-xdist is installed."""

import doctest
import functools
import gc
import os
import re
import sys
from typing import Any

import pytest

from tests.harness.thorough_examples import THOROUGH_EXAMPLES

# `tests/test_two_replicas.py` runs them in a process with two logical CPUs.
collect_ignore = (
    []
    if "ON_TWO_REPLICAS" in os.environ
    else [
        "tests/harness/two_replicas.py",
        "tests/keras/on_two_replicas.py",
        "tests/targets/on_two_replicas.py",
    ]
)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Starts a worker on each core, unless files, `-n` or `--pdb` are given."""
    options = config.option
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if not whole or hasattr(config, "workerinput") or options.usepdb or options.collectonly:
        return
    if config.pluginmanager.hasplugin("xdist") and options.numprocesses is None:
        affinity = getattr(os, "sched_getaffinity", None)
        options.numprocesses = len(affinity(0)) if affinity else os.cpu_count()
        options.dist, options.loadscopereorder = "loadfile", False
        # With more threads than cores, the threads wait for each other.
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
            os.environ.setdefault(name, "1")


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.DoctestItem) and item.name in THOROUGH_EXAMPLES:
            item.add_marker(pytest.mark.thorough)
    # At the end, one worker would wait for it.
    items.sort(key=lambda item: not item.nodeid.startswith("tests/test_two_replicas.py"))


def pytest_collection_finish() -> None:
    """Turns off TensorFlow's tuning, because tests run most graphs only once.

    Optimising a graph costs more than it saves. The end of an iterator sometimes waits up to a
    minute for the thread that tunes its input pipeline. XLA's compilation does not change, and
    neither do processes that tests start. Garbage is collected less often.
    """
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        untuned = tf.data.Options()
        untuned.autotune.enabled = False
        iterate = tf.data.Dataset.__iter__
        tf.data.Dataset.__iter__ = lambda dataset: iterate(dataset.with_options(untuned))
    # The collector need not look at 400,000 objects of modules again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@functools.cache
def _gaussian_mean_example() -> dict[str, Any]:
    """Runs the docstring of `StochasticGradientKernel` up to its first call of `sample`."""
    from tfp_sgmcmc.kernels.base import StochasticGradientKernel

    names: dict[str, Any] = {}
    for example in doctest.DocTestParser().get_examples(StochasticGradientKernel.__doc__ or ""):
        if re.search(r"= (sgmcmc\.)?sample(_chain)?\(", example.source):
            break
        exec(example.source, names)
    return names


@pytest.fixture(autouse=True)
def gaussian_mean_in_doctests(request: pytest.FixtureRequest) -> None:
    """Gives the examples of samplers and targets the names of the example in the samplers' base."""
    item = request.node
    rooms = ("tfp_sgmcmc.kernels.", "tfp_sgmcmc.targets.", "tfp_sgmcmc.diagnostics.certificate")
    if isinstance(item, pytest.DoctestItem) and item.name.startswith(rooms):
        item.dtest.globs.update(_gaussian_mean_example())
