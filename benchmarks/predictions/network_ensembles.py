"""`SamplerCallback()` against a deep ensemble, with networks of convolutions, words and attention.

The methods, scores and options are those of `python -m benchmarks.predictions.ensembles`.
"""

from __future__ import annotations

import functools

from benchmarks.common import command_line
from benchmarks.predictions import ensembles
from benchmarks.predictions.tabular import NETWORKS, TABLES

if __name__ == "__main__":
    run = functools.partial(ensembles.run, problems=NETWORKS)
    run.__doc__ = ensembles.run.__doc__
    choices = {"problems": TABLES}
    command_line.main(__doc__, run, ensembles.show, choices=choices, table="network_ensembles")
