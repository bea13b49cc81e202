# %% [markdown]
# # Many chains on a cluster
#
# Chains that run on the workers of dask, one of which we kill. We read the draws while the run is
# under way, and compare the end with the same chains on threads of this process.
#
# The cluster here is two processes of one machine. On SLURM or Kubernetes only the line that makes
# it is another one: see [Many machines](../guides/many-machines.md). In a script, the code that
# makes the cluster belongs under `if __name__ == "__main__":`, because workers import the script.

# %%
import concurrent.futures
import os
import signal
import tempfile
import time

import dask
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from dask.distributed import Client, LocalCluster

import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions

# %% [markdown]
# ## The kernel, made on the worker
#
# A kernel with its data does not travel. What travels is a function that makes it, and loads the
# data where it runs. The data are German credit: 1,000 loans with 24 features and a constant.


# %%
def make_target():
    import datasets

    x, y = datasets.german(test_fraction=0.0)[:2]
    return sgmcmc.MinibatchLogProb(
        lambda w: tfd.Sample(tfd.Normal(0.0, 1.0), x.shape[1]).log_prob(w),
        lambda w, batch: tfd.Bernoulli(tf.linalg.matvec(batch["x"], w)).log_prob(batch["y"]),
        data={"x": x.astype(np.float32), "y": y.astype(np.float32)},
        batch_size=100,
    )


def make_kernel():
    whitened, _ = sgmcmc.whiten(make_target(), center)
    return sgmcmc.SGLD(whitened, step_size=0.05)


target = make_target()
center = sgmcmc.find_center(target, tf.zeros([25]))[0].numpy()
print(target.num_examples, center.shape)

# %% [markdown]
# ## A cluster, and a run
#
# `allowed-failures` is how many workers may die with a task before dask gives the task up. Eight
# chains in shards of two make four shards, for two workers. `sample_shards` waits for its end,
# so it runs in a thread here.

# %%
dask.config.set({"distributed.scheduler.allowed-failures": 100})
cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
client = Client(cluster)
folder = tempfile.mkdtemp()
settings = dict(num_results=10_000, num_burnin_steps=1_000, num_steps_between_results=29,
                num_chains=8, chains_per_shard=2, seed=0, progress_bar=False)  # fmt: skip
run = concurrent.futures.ThreadPoolExecutor().submit(
    sgmcmc.sample_shards,
    make_kernel,
    tf.zeros([25]),
    executor=client,
    directory=sgmcmc.Directory(folder, seconds_between_commits=0.5),
    **settings,
)

# %% [markdown]
# ## Reading while it runs, and a worker that dies

# %%


def draws_so_far():
    try:
        return sgmcmc.open_shards(folder)["state"]
    except ValueError:  # no shard has written draws yet
        return None


processes = [*client.run(os.getpid).values()]
while (so_far := draws_so_far()) is None or so_far.sizes["draw"] == 0:
    assert not run.done(), run.result()
    time.sleep(0.1)
os.kill(processes[0], signal.SIGKILL)
print("under way:", dict(so_far.sizes))
print("killed one of", len(processes), "workers")

result = run.result()
print("complete:", result.is_complete, "draws:", result.states.shape)

# %% [markdown]
# ## The same chains without a cluster
#
# Each shard draws from the seed of the run and its number, so neither the place nor the kill can be
# seen in the draws.

# %%
alone = sgmcmc.sample_shards(make_kernel(), tf.zeros([25]), **settings)
same = np.array_equal(np.asarray(result.states), np.asarray(alone.states))
print("same draws, bit for bit:", same)
assert same
print(f"largest R-hat {result.rhat().max():.4f}, "
      f"smallest effective sample size {result.effective_sample_size().min():.0f}")  # fmt: skip
client.close()
cluster.close()
