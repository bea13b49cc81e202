"""Processes that sample together: several workers on this machine, or one."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("fit_on_workers.py")


def start(num_workers, **options):
    """Starts workers with the options of `fit_on_workers.run`; a list has one for each worker.

    One process without TF_CONFIG is started for `num_workers=0`.
    """
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(num_workers)]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    processes = []
    for i in range(num_workers or 1):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": i}}
        own = {name: x[i] if isinstance(x, list) else x for name, x in options.items()}
        environment = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
        environment |= {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment |= {"TF_CONFIG": json.dumps(task)} if num_workers else {}
        processes.append(
            subprocess.Popen(
                [sys.executable, str(SCRIPT), json.dumps(own)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return processes


def finished(processes, seconds=600):
    """Returns what each process printed, and its return code; ends those that take too long."""
    found = []
    for process in processes:
        try:
            text, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            for other in processes:
                other.kill()
            text, _ = process.communicate()
            text += "\nended by the test, after too long a time"
        found.append((text, process.returncode))
    return found


def run(num_workers, **options):
    """Runs workers to their end; fails with what they printed if one of them failed."""
    for text, code in finished(start(num_workers, **options)):
        assert code == 0, text[-3000:]
