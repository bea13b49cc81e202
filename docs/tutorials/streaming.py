# %% [markdown]
# # Streaming, and kill -9
#
# The data lie in files, and do not have to fit into memory. The run writes its draws and
# checkpoints to a directory. We kill it, hard, in the middle; run the same script again; and
# compare with a run that was never killed.
#
# The data are a9a (UCI Adult): 32,561 people, 123 binary features, and who earns more than 50,000
# dollars.

# %%
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import xarray

import datasets

folder = Path(tempfile.mkdtemp())
x, y = datasets.a9a()[:2]
order = np.random.default_rng(0).permutation(len(x))  # files in random order
for i, part in enumerate(np.array_split(order, 8)):
    np.savez(folder / f"part-{i}.npz", x=x[part].astype(np.float32), y=y[part].astype(np.float32))
print(len(x), sorted(f.name for f in folder.glob("*.npz"))[:3], "...")

# %% [markdown]
# ## The script
#
# A function of the epoch gives a dataset: it shuffles the files and the examples of each file, by
# the number of the epoch. So epoch 7 is the same whenever it is read, and the run can go on in
# its middle.

# %%
script = folder / "sample.py"
script.write_text("""
import sys
from pathlib import Path
import numpy as np, tensorflow as tf, tensorflow_probability as tfp, tfp_sgmcmc as sgmcmc
tfd = tfp.distributions

folder = Path(__file__).parent
files = sorted(folder.glob("*.npz"))

def batches(epoch):
    def read():
        rng = np.random.default_rng(epoch)
        for i in rng.permutation(len(files)):
            with np.load(files[i]) as part:
                x, y = part["x"], part["y"]
            rows = rng.permutation(len(x))
            yield {"x": x[rows], "y": y[rows]}
    file = {"x": tf.TensorSpec([None, 123], tf.float32), "y": tf.TensorSpec([None], tf.float32)}
    examples = tf.data.Dataset.from_generator(read, output_signature=file).unbatch()
    return examples.batch(250, drop_remainder=True)

target = sgmcmc.StreamedLogProb(
    lambda w: tfd.Sample(tfd.Normal(0.0, 1.0), 123).log_prob(w),
    lambda w, batch: tfd.Bernoulli(tf.linalg.matvec(batch["x"], w)).log_prob(batch["y"]),
    batches, num_examples=32_561)
result = sgmcmc.sample_chain(
    sgmcmc.SGLD(target, step_size=2e-5), tf.zeros([4, 123]), 400, num_burnin_steps=200,
    num_steps_between_results=9, seed=0, progress_bar=False,
    directory=sgmcmc.Directory(folder / sys.argv[1], seconds_between_commits=0.5))
print("complete:", result.is_complete, result.num_results)
""")


def start(name):
    return subprocess.Popen([sys.executable, script, name], stderr=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, text=True, env=os.environ)  # fmt: skip


def draws(name):
    store = folder / name / "samples.zarr"
    return xarray.open_zarr(store, group="posterior", consolidated=False)["state"]


# %% [markdown]
# ## A run that is never killed, and one that is killed soon after its first checkpoint

# %%
whole = start("whole")
print(whole.communicate()[0].strip())

killed = start("killed")
checkpoint = folder / "killed" / "checkpoint.npz"
while killed.poll() is None and not checkpoint.exists():
    time.sleep(0.05)
time.sleep(0.5)  # some more steps, and perhaps a checkpoint half written
killed.send_signal(signal.SIGKILL)
killed.communicate()
print("killed with code", killed.returncode)
print(sorted(path.name for path in (folder / "killed").iterdir()))

# %% [markdown]
# ## The same script again

# %%
again = start("killed")
print(again.communicate()[0].strip())
a, b = draws("whole").values, draws("killed").values
print("same draws, bit for bit:", np.array_equal(a, b), a.shape)
assert np.array_equal(a, b)

# %% [markdown]
# Step t draws its random numbers from (seed, t), and the checkpoint holds the minibatches that
# were read but not used. A script that changes the step size, the prior or the data is refused,
# and told what changed:

# %%
changed = script.read_text().replace("step_size=2e-5", "step_size=1e-5")
script.write_text(changed)
refused = subprocess.run([sys.executable, script, "killed"], capture_output=True, text=True)
print(refused.returncode, refused.stderr.strip().splitlines()[-1].replace(str(folder), "folder"))
assert refused.returncode != 0
