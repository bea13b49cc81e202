"""The tests that need two replicas, in a process of two logical CPUs.

TensorFlow makes no logical devices once it has run. A part of both folders' tests takes one process
of the fast suite.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OF_TARGETS = "tests/targets/on_two_replicas.py"
OF_KERAS = "tests/keras/on_two_replicas.py"


def run(*chosen: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *chosen]
    environment = os.environ | {"ON_TWO_REPLICAS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_two_replicas() -> None:
    """A chain is that of one device. The slow test has the controls."""
    run(
        f"{OF_TARGETS}::test_chain_is_that_of_one_replica[SGLD-quick]",
        f"{OF_TARGETS}::test_each_replica_loads_its_shards",
        f"{OF_TARGETS}::test_replicas_divide_the_passes_over_a_stream",
        f"{OF_KERAS}::test_chain_is_that_of_one_device[graph]",
    )


@pytest.mark.slow
@pytest.mark.parametrize("path", [OF_TARGETS, OF_KERAS])
def test_all_of_two_replicas(path: str) -> None:
    run(path)
