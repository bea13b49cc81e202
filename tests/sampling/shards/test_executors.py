"""The recipes for engines in the guide: shards run there, and a worker that is killed costs no bit.

Each test runs the code of the page. SLURM is stood in for by two scripts named `sbatch` and
`scancel`, which start and end the job scripts that dask-jobqueue writes. Kubernetes' recipe is only
checked against a schema.
"""

import contextlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.storage.lock import SIGNATURE

pytestmark = pytest.mark.slow
pytest.importorskip("zarr")
PAGE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "many-machines.md"
SECONDS = 300  # until a shard has begun, on a machine that others use
OPTIONS: dict[str, Any] = dict(
    num_results=10_000, num_chains=4, chains_per_shard=2, seed=0, progress_bar=False,
    jit_compile=False, preflight_check=False,
)  # fmt: skip
SBATCH = """#!/bin/bash
exec 9> "$JOBS/lock"; flock 9
number=$(( $(cat "$JOBS/last" 2> /dev/null || echo 0) + 1 ))
echo $number > "$JOBS/last"
cp "$1" "$JOBS/$number.sh"
setsid bash "$JOBS/$number.sh" > "$JOBS/$number.log" 2>&1 < /dev/null 9>&- &
echo $! > "$JOBS/$number.pid"
echo "Submitted batch job $number"
"""
SCANCEL = """#!/bin/bash
for number in "$@"; do kill -TERM -- -$(cat "$JOBS/$number.pid"); done
"""


def recipe(word: str) -> str:
    """Returns the code of the page that has `word`."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    (found,) = (block for block in blocks if word in block)
    return found


def maker() -> Callable[[], Any]:
    """Returns a function that goes to workers by value, because they cannot import this file."""

    def make_kernel() -> Any:
        import numpy as np
        import tensorflow as tf

        import tfp_sgmcmc as sgmcmc

        x = np.random.default_rng(0).normal(size=[60, 3]).astype(np.float32)
        target = sgmcmc.MinibatchLogProb(
            lambda t: -0.5 * tf.reduce_sum(t**2, -1),
            lambda t, batch: -0.5 * tf.reduce_sum((batch - t[..., tf.newaxis, :]) ** 2, -1),
            x,
            10,
            reshuffle="epoch",
        )
        return sgmcmc.SGNHT(target, 0.02)

    return make_kernel


@pytest.fixture(scope="module")
def whole() -> np.ndarray:
    """Returns the draws of a run in this process, with graphs optimised as on the workers."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    try:
        return np.asarray(sgmcmc.sample_shards(maker()(), tf.zeros([3]), **OPTIONS).states)
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def process_under_way(folder: Path) -> int:
    """Returns a process that has a shard's lease and has written a checkpoint."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        for path in folder.glob("shard-*/run.lease"):
            with contextlib.suppress(OSError, ValueError):  # just released, or being written
                lease = json.loads(path.read_text().removeprefix(SIGNATURE))
                if path.with_name("checkpoint.npz").exists():
                    return int(lease["process"])
        time.sleep(0.02)
    raise TimeoutError(f"No shard in {folder} has begun.")


def run_and_kill(executor: Any, folder: Path, kill: Callable[[int], None]) -> Any:
    """Runs all shards, and gives the first process that is under way to `kill`."""
    killed: list[int] = []

    def lose() -> None:
        killed.append(process_under_way(folder))
        kill(killed[0])

    thread = threading.Thread(target=lose)
    thread.start()
    try:
        result = sgmcmc.sample_shards(
            maker(), tf.zeros([3]), executor=executor,
            directory=sgmcmc.Directory(folder, seconds_between_commits=0.2), **OPTIONS,
        )  # fmt: skip
    finally:
        thread.join()
    # The run did not end before its worker was killed: the shard ended in another process.
    assert killed and killed[0] not in result.processes
    return result


@pytest.mark.filterwarnings("ignore")  # Ray's
def test_ray(tmp_path: Path, whole: np.ndarray) -> None:
    ray = pytest.importorskip("ray", reason="needs Ray: python -m pip install ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        names: dict[str, Any] = {}
        exec(recipe("import ray"), names)
        executor = names["RayExecutor"]()
        result = run_and_kill(executor, tmp_path / "run", lambda x: os.kill(x, signal.SIGKILL))
    finally:
        ray.shutdown()
    assert result.is_complete
    np.testing.assert_array_equal(result.states, whole)


@contextlib.contextmanager
def slurm(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    """Yields client and cluster of the recipe, with two jobs."""
    dask = pytest.importorskip("dask", reason='python -m pip install ".[distributed]"')
    reason = "needs dask-jobqueue: python -m pip install dask-jobqueue"
    pytest.importorskip("dask_jobqueue", reason=reason)
    for name, text in {"sbatch": SBATCH, "scancel": SCANCEL}.items():
        (jobs / name).write_text(text)
        (jobs / name).chmod(0o755)
    monkeypatch.setenv("JOBS", str(jobs))
    monkeypatch.setenv("PATH", f"{jobs}{os.pathsep}{os.environ['PATH']}")
    names: dict[str, Any] = {}
    with dask.config.set({
        "jobqueue.slurm.scheduler-options": {"dashboard_address": ":0"},
        "distributed.deploy.lost-worker-timeout": "1s",
    }):  # fmt: skip
        exec(recipe("SLURMCluster").replace("_jobs=100", "_jobs=2"), names)
        try:
            yield names["client"], names["cluster"]
        finally:
            names["client"].close()
            names["cluster"].close()


@pytest.mark.filterwarnings("ignore")  # dask's
def test_slurm(tmp_path: Path, whole: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is ended as SLURM ends one whose time is over, and another one takes its place."""
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    with slurm(jobs, monkeypatch) as (client, cluster):
        script = cluster.job_script()
        assert "#SBATCH --cpus-per-task=1" in script and "--nthreads 1" in script

        def cancel(process: int) -> None:
            groups = {int(path.read_text()): path.stem for path in jobs.glob("*.pid")}
            os.system(f"scancel {groups[os.getpgid(process)]}")

        result = run_and_kill(client, tmp_path / "run", cancel)
    assert result.is_complete
    np.testing.assert_array_equal(result.states, whole)
    assert len([*jobs.glob("*.pid")]) == 3


def test_kubernetes() -> None:
    """The recipe's specification fits the schema of dask's operator. Nothing is run."""
    found = pytest.importorskip("dask_kubernetes", reason="needs dask-kubernetes")
    jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema")
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    names: dict[str, Any] = {}
    exec(recipe("make_cluster_spec").partition("cluster = KubeCluster")[0], names)
    folder = Path(found.__file__).parent / "operator" / "deployment" / "helm"
    path = folder / "dask-kubernetes-operator" / "crds" / "daskcluster.yaml"
    definition = yaml.safe_load(path.read_text(encoding="utf-8"))
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    jsonschema.validate(names["spec"], schema)
    names["pod"]["containers"][0]["volumeMounts"][0].pop("mountPath")
    with pytest.raises(jsonschema.ValidationError, match="mountPath"):  # control
        jsonschema.validate(names["spec"], schema)
