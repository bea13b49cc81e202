"""`fit` on two processes under `MultiWorkerMirroredStrategy`, on this machine."""

import time

import numpy as np
import pytest

from tests.keras import worker_groups

# The replicas' sums of a gradient are added in another order: a few roundings of float32 (6e-8 of a
# number) a step. Over these 8 to 16 steps of size 1e-3 to 3e-3 on a smooth posterior they do not
# grow. Shares that are not summed move the samples by 1e-2 (the control).
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def arrays(path):
    with np.load(path) as file:
        return dict(file)


def assert_alike(some, others, **how):
    names = [n for n in some if n.split()[0] in ("sample", "weight", "moving", "log", "prediction")]
    assert names
    for name in names:
        np.testing.assert_allclose(some[name], others[name], **how, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"kernel": "SGHMC", "plain": True},
        {"kernel": "NOGIN", "num_chains": 2, "batch_size": 8},
        {"kernel": "SGNHT", "data": "in order", "batch_size": 9, "validate": True},
    ],
    ids=["independent batches", "full covariance, two chains", "a short batch and validation"],
)
def test_samples_are_those_of_one_process(tmp_path, options):
    """The last batch of 64 rows in batches of 9 has one row, and none on replica 0."""
    outputs = [str(tmp_path / f"{name}.npz") for name in ("alone", "first", "second")]
    worker_groups.run(0, output=outputs[0], **options | {"plain": False})
    worker_groups.run(2, output=outputs[1:], **options)
    alone, first, second = map(arrays, outputs)
    assert len(alone["steps"]) == 2 * -(-64 // options.get("batch_size", 16))
    assert_alike(first, alone, **CLOSE)
    assert_alike(second, first, rtol=0, atol=0)
    if options["kernel"] == "SGNHT":
        assert "log val_accuracy" in first
        assert first["collective operations"] == 1
    if "plain" in options:
        # Keras has mended its fault if there is none; WorkerBatches are not needed for that then.
        assert "PerReplica" in str(first["error of Keras"])
        worker_groups.run(0, output=outputs[0], kernel="SGHMC", num_rows=32)  # control
        other = arrays(outputs[0])
        assert np.abs(other["weight 0"] - first["weight 0"]).max() > 1e-3


@pytest.mark.slow
def test_a_killed_worker_and_a_gang_that_goes_on(tmp_path):
    """Worker 0 alone has a directory; the others get the chain from it, and need no such disk."""
    options = {"kernel": "SGNHT", "epochs": 8}
    worker_groups.run(
        2, output=[str(tmp_path / "whole.npz"), str(tmp_path / "other.npz")],
        directory=[str(tmp_path / "whole"), str(tmp_path / "nothing")], **options,
    )  # fmt: skip
    assert not (tmp_path / "nothing").exists()

    options["directory"] = [str(tmp_path / "killed"), str(tmp_path / "nothing")]
    seen = tmp_path / "epochs"
    processes = worker_groups.start(2, epochs_file=[str(seen), None], seconds=1.0, **options)
    while not (seen.exists() and len(seen.read_text().split()) >= 3):
        assert all(p.poll() is None for p in processes), worker_groups.finished(processes)
        time.sleep(0.05)
    processes[1].kill()
    began = time.monotonic()
    (text, code), _ = worker_groups.finished(processes, 300)
    print(f"worker 0 ended {time.monotonic() - began:.0f} s after worker 1 was killed")
    assert code != 0 and "ended by the test" not in text
    ended_at = len(seen.read_text().split())
    assert ended_at < 8

    outputs = [str(tmp_path / f"{name}.npz") for name in ("again", "again of worker 1")]
    worker_groups.run(2, output=outputs, epochs_file=[str(seen), None], **options)
    assert 8 <= len(seen.read_text().split()) < ended_at + 8  # it did not begin anew
    whole, again = arrays(tmp_path / "whole.npz"), arrays(outputs[0])
    assert len(again["steps"]) == 8 * 4
    for name in (n for n in whole if not n.startswith("log ")):
        np.testing.assert_array_equal(again[name], whole[name], err_msg=name)
    for name, weight in arrays(outputs[1]).items():
        np.testing.assert_array_equal(weight, whole[name])
    assert not (tmp_path / "nothing").exists()

    # Another kernel in the directory of worker 0 is refused on both.
    processes = worker_groups.start(2, **options | {"kernel": "SGLD"})
    for text, code in worker_groups.finished(processes):
        assert code != 0 and "belongs to another run" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": [0, 1]}, ["other ones on worker 1", "seed: [0, 0], but worker 1 has [0, 1]"]),
        ({"shift": [0.0, 0.5]}, ["other ones on worker 1", "x: "]),
        ({"arrays_in_validation": True}, ["validation_data must be WorkerBatches"]),
    ],
    ids=["seed", "data", "validation"],
)
def test_workers_that_differ_are_refused_by_name(options, words):
    for text, code in worker_groups.finished(worker_groups.start(2, **options)):
        assert code != 0
        for word in words:
            assert word in text
