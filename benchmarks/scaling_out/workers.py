"""Processes on this machine that are the workers of one run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def measured(
    arguments: Sequence[str],
    count: int,
    seconds: float,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Returns the JSON value that worker 0 printed last.

    Each worker is `python -m *arguments`. Several find each other by TF_CONFIG.

    Raises:
      RuntimeError: a worker failed; its message is on the standard error.
      subprocess.TimeoutExpired: a worker took longer than `seconds`.
    """
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    addresses = [f"localhost:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    workers = []
    for index in range(count):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        own = {"TF_CONFIG": json.dumps(config)} if count > 1 else {}
        own |= {"TF_CPP_MIN_LOG_LEVEL": "3"} | dict(environment or {})
        command = [sys.executable, "-m", *arguments]
        workers.append(
            subprocess.Popen(command, env=os.environ | own, stdout=subprocess.PIPE, text=True)
        )
    try:
        outputs = [worker.communicate(timeout=seconds)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    if any(worker.returncode for worker in workers):
        raise RuntimeError(f"A worker failed: {' '.join(arguments)}. Its message is above.")
    return json.loads(outputs[0].splitlines()[-1])
