"""`python -m benchmarks.peers`: the table of `steps.py`."""

from benchmarks.peers.steps import main

main()
