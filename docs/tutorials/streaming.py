# %% [markdown]
# # Streaming, and kill -9
#
# The data lie in files, and do not have to fit into memory. `sample` finds the mode and the
# curvature by three passes over the files, and keeps a pool of rows in memory. Its steps do not
# touch the disk. The run writes its draws and checkpoints to a directory. We kill it, hard, in the
# middle, and run the same script again. Then we check the draws against all rows, and damage a
# file.
#
# The data are a9a (UCI Adult): 32,561 people, 123 binary features, and who earns more than 50,000
# dollars. The files are sorted by that, which is the worst case for minibatches from a stream.

# %%
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import tensorflow_probability as tfp
import xarray

import datasets
import tfp_sgmcmc as sgmcmc

folder = Path(tempfile.mkdtemp())
x, y = datasets.a9a()[:2]
x, y = x.astype(np.float32), y.astype(np.float32)
for i, part in enumerate(np.array_split(np.argsort(y, kind="stable"), 8)):
    np.save(folder / f"x-{i}.npy", x[part])
    np.save(folder / f"y-{i}.npy", y[part])
print(len(x), sorted(f.name for f in folder.glob("*.npy"))[:3], "...")

# %% [markdown]
# ## The script
#
# A generator gives blocks of rows, here a file at a time. Blocks are much faster than single rows.
# They may have any size, and rows may come in any order. `memory` is set to half of the data, so
# that they do not fit; its default is 256 MB. With `files`, a file that changes during a run is
# named.

# %%
script = folder / "sample.py"
script.write_text("""
import sys
from pathlib import Path
import numpy as np, tensorflow as tf, tensorflow_probability as tfp, tfp_sgmcmc as sgmcmc
tfd = tfp.distributions

folder = Path(__file__).parent
files = sorted(folder.glob("x-*.npy"))

def read():
    for file in files:
        x = np.load(file, mmap_mode="r")
        y = np.load(file.with_name(file.name.replace("x-", "y-")))
        for i in range(0, len(x), 2000):
            yield x[i : i + 2000], y[i : i + 2000]

block = tf.TensorSpec([None, 123], tf.float32), tf.TensorSpec([None], tf.float32)
target = sgmcmc.StreamedLogProb(
    lambda w: tfd.Sample(tfd.Normal(0.0, 1.0), 123).log_prob(w),
    sgmcmc.LinearModel(lambda eta, y: tfd.Bernoulli(eta).log_prob(y)),
    tf.data.Dataset.from_generator(read, output_signature=block),
    num_examples=32_561, batch_size=250, memory=8_000_000, files=files)
result = sgmcmc.sample(
    target, tf.zeros([123]), 1000, seed=0, progress_bar=False,
    directory=sgmcmc.Directory(folder / sys.argv[1], seconds_between_commits=0.1))
print(result.explanation[0])
print("complete:", result.is_complete, result.num_results)
""")


def start(name):
    command = [sys.executable, "-W", "ignore", script, name]
    return subprocess.Popen(command, env=os.environ, stderr=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)  # fmt: skip


# %% [markdown]
# ## A run that is killed at its first checkpoint
#
# Its directory holds the pool of rows, the settings and the state of the chains.

# %%


def kill_at_a_checkpoint(name):
    checkpoint = folder / name / "checkpoint.npz"
    before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else None
    process = start(name)
    while process.poll() is None:
        if checkpoint.exists() and checkpoint.stat().st_mtime_ns != before:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.01)
    process.communicate()
    print(name, "ended with code", process.returncode)
    assert process.returncode == -signal.SIGKILL


kill_at_a_checkpoint("once")
print(sorted(path.name for path in (folder / "once").iterdir()))

# %% [markdown]
# ## The same script again
#
# It goes on without a pass over the files. Step t draws its random numbers from the seed and t, so
# it does not matter how often a run is killed. A copy of the directory that is killed once more
# ends with the same draws. (A run that is killed before it has a pool begins anew. A pool depends
# only on the rows, their order and the seed.)

# %%
shutil.copytree(folder / "once", folder / "twice")
kill_at_a_checkpoint("twice")


def draws(name):
    print(start(name).communicate()[0].strip())
    store = folder / name / "samples.zarr"
    return xarray.open_zarr(store, group="posterior", consolidated=False)["state"].values


once, twice = draws("once"), draws("twice")
print("same draws, bit for bit:", np.array_equal(once, twice), once.shape)
assert np.array_equal(once, twice)

# %% [markdown]
# ## Are they right?
#
# Here the data fit into memory after all, so the draws can be checked by their gradients at all
# rows.

# %%
tfd = tfp.distributions
target = sgmcmc.MinibatchLogProb(
    lambda w: tfd.Sample(tfd.Normal(0.0, 1.0), 123).log_prob(w),
    sgmcmc.LinearModel(lambda eta, y: tfd.Bernoulli(eta).log_prob(y)),
    (x, y), batch_size=250)  # fmt: skip
report = sgmcmc.report({"w": np.swapaxes(once, 0, 1)}, lambda w: target(w))
print(report)
assert not report.problems

# %% [markdown]
# ## A damaged file
#
# A new run would read all files. One of them is cut off. The message names it, what it lacks, and
# the examples that were being read:

# %%
damaged = folder / "x-5.npy"
damaged.write_bytes(damaged.read_bytes()[:100_000])
refused = start("new")
lines = [x for x in refused.communicate()[1].splitlines() if "StreamReadError: " in x]
print(refused.returncode, lines[-1].replace(str(folder), "folder"))
assert refused.returncode != 0
