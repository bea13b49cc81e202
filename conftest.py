"""The whole suite, `python -m pytest`, runs a file on each core where pytest-xdist is installed."""

import os
import sys

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Chosen files, `-n` and `--pdb` mean what they always do."""
    options = config.option
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if not whole or hasattr(config, "workerinput") or options.usepdb or options.collectonly:
        return
    if config.pluginmanager.hasplugin("xdist") and options.numprocesses is None:
        affinity = getattr(os, "sched_getaffinity", None)
        options.numprocesses = len(affinity(0)) if affinity else os.cpu_count()
        options.dist = "loadfile"
        # A thread a worker: those of several wait for each other, in small products most of all.
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
            os.environ.setdefault(name, "1")


def pytest_collection_finish() -> None:
    """Graphs of tests are traced to run once: optimising them costs more than it saves.

    XLA's compilation is left as it is, and processes that tests start have graphs optimised.
    """
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
