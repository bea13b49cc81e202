"""The asv suite: how fast, how small and how right each sampler is, for every commit.

    python -m pip install --editable ".[bench]" && asv machine --yes
    asv run --quick --python=same --launch-method forkserver    # each once, of this working tree
    asv continuous --factor 1.3 main HEAD                       # two commits, each as installed
    asv run main~5..main && asv publish                         # a history, as .asv/html

All is run on the CPU; `python -m benchmarks.suite --device GPU run` runs on a GPU, see
`__main__.py`. `TFP_SGMCMC_PROFILE` is `fast` (the default), `regular` or `large`: which parameters
are run; see `profiles.py`. A profile never changes what one parameter means, so that their results
add up to one history. Classes have a `version` for the same reason: raise it when a benchmark
changes its meaning, and results from before are left out.

An increase is worse for every benchmark. `time_*` are seconds of a compiled call of many steps on
one thread, `peakmem_*` bytes of a process, `track_*` errors against the exact posterior and seconds
for an effective sample, averages over seeds that are fixed. `regressions_thresholds` of
`asv.conf.json` are relative changes above what other seeds make, which
`python -m benchmarks.suite.spread` measures; `python -m benchmarks.suite.catches` shows that
samplers which are slowed or biased on purpose go beyond them.

Times that are kept come from processes of their own (`spawn`). `forkserver` loads TensorFlow once
and forks before it has started a thread, which is quick, and enough to see that all runs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "suite":  # asv imports this folder by itself, before TensorFlow
    # Behind the environment's packages: a commit of the past is measured as it is installed.
    sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks.suite import device  # noqa: E402

ENVIRONMENT = {
    "KERAS_BACKEND": "tensorflow",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    **device.environment(device.chosen()),
}

if __name__ == "suite":
    os.environ.update(ENVIRONMENT)
    if device.chosen() == "GPU":  # an environment that asv made may lack what a GPU needs
        device.check("GPU")
