# %% [markdown]
# # Streaming, and kill -9
#
# The data lie in files, and do not have to fit into memory. `sample` finds the mode and the
# curvature by three passes over the files, and keeps a pool of rows in memory. Its steps do not
# touch the disk. The run writes its draws and checkpoints to a directory. We kill it, hard, in the
# middle; run the same script again; and compare with a run that was never killed. Then we check the
# draws against all rows, and damage a file.
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
# that they do not fit; its default is 256 MB. With `files`, errors of reading name the file.

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


def draws(name):
    store = folder / name / "samples.zarr"
    return xarray.open_zarr(store, group="posterior", consolidated=False)["state"]


# %% [markdown]
# ## A run that is never killed, and one that is killed soon after its first checkpoint
#
# Settings depend on measured times, so two runs may differ in them. The directory holds the pool
# and the settings. The run that we kill begins with a copy of these, to have the same ones.

# %%
whole = start("whole")
print(whole.communicate()[0].strip())

(folder / "killed").mkdir()
for name in ("run.lock", "pool.npz", "choices.npz"):
    shutil.copy(folder / "whole" / name, folder / "killed" / name)
killed = start("killed")
checkpoint = folder / "killed" / "checkpoint.npz"
while killed.poll() is None and not checkpoint.exists():
    time.sleep(0.01)
killed.send_signal(signal.SIGKILL)
killed.communicate()
print("killed with code", killed.returncode)
print(sorted(path.name for path in (folder / "killed").iterdir()))

# %% [markdown]
# ## The same script again
#
# It goes on without a pass over the files. (A run that is killed before it has a pool begins anew.
# A pool depends only on the rows, their order and the seed.)

# %%
again = start("killed")
print(again.communicate()[0].strip().splitlines()[-1])
a, b = draws("whole").values, draws("killed").values
print("same draws, bit for bit:", np.array_equal(a, b), a.shape)
assert np.array_equal(a, b)

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
report = sgmcmc.report({"w": np.swapaxes(a, 0, 1)}, lambda w: target(w))
print(report)
assert not report.problems

# %% [markdown]
# ## A damaged file
#
# A new run would read all files. One of them is cut off:

# %%
damaged = folder / "x-5.npy"
damaged.write_bytes(damaged.read_bytes()[:100_000])
refused = start("new")
lines = [x for x in refused.communicate()[1].splitlines() if "StreamReadError: " in x]
print(refused.returncode, lines[-1].replace(str(folder), "folder"))
assert refused.returncode != 0
