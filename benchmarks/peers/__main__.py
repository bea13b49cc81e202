"""`python -m benchmarks.peers` prints the table of `steps.py`."""

from benchmarks.peers.steps import main

main()
