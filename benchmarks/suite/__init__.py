"""The asv suite: how fast, how small and how right each sampler is, for every commit.

    python -m pip install --editable ".[bench]" && asv machine --yes
    asv run --quick --python=same --launch-method forkserver    # each once, in this working tree
    asv continuous --factor 1.3 main HEAD                       # two commits, each as installed
    asv run main~5..main && asv publish                         # a history, as .asv/html

The suite runs on the CPU; `python -m benchmarks.suite --device GPU run` runs it on a GPU, see
`__main__.py`. `TFP_SGMCMC_PROFILE` is `fast` (the default), `regular` or `large` and chooses the
parameters, see `profiles.py`; `smoke`, for `.ci/run`, runs each benchmark on little. A parameter
means the same in every other profile, so that the results of all of them add up to one history. For
the same reason classes have a `version`. Raise it when the meaning of a benchmark changes; asv then
leaves out earlier results.

An increase is worse for every benchmark. `time_*` are seconds of a compiled call of many steps on
one thread, and `peakmem_*` bytes of a process. `track_*` are errors against the exact posterior and
seconds for an effective sample, averaged over fixed seeds. `regressions_thresholds` of
`asv.conf.json` are relative changes above those that other seeds make, which
`python -m benchmarks.suite.spread` measures. `python -m benchmarks.suite.catches` shows that
samplers which were slowed or biased on purpose exceed them.

`--python=same` is refused where `tfp_sgmcmc` is installed as a copy, which would be measured in
place of the working tree.

Times that are kept come from separate processes (`spawn`). `forkserver` loads TensorFlow once and
forks before it has started a thread. That is quick, and enough to see that everything runs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "suite":  # asv imports this folder by itself, before TensorFlow
    # Behind the environment's packages, so that a past commit is measured as it is installed.
    sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks.suite import device, installed  # noqa: E402

ENVIRONMENT = {
    "KERAS_BACKEND": "tensorflow",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    **device.environment(device.chosen()),
}

if __name__ == "suite":
    os.environ.update(ENVIRONMENT)
    installed.refuse_copy(os.environ.get("ASV_ENV_TYPE", ""))
    if os.environ.get("TFP_SGMCMC_PROFILE") == "smoke":  # imported once, for all forks
        from benchmarks.suite import digits, exact_entry_points, scores  # noqa: F401
    if device.chosen() == "GPU":  # an environment that asv made may lack libraries for GPUs
        device.check("GPU")
