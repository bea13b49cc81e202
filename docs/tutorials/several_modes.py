# %% [markdown]
# # Several modes
#
# A chain that sits in one of two modes looks perfect. No diagnostic of its draws can tell. Here
# we build such a posterior, watch SGLD fail on it, and sample it by replica exchange.
#
# The data are 60 draws of a mixture of two Gaussians, N(-1.2, 1) and N(1.2, 1). The two centres
# are unknown. Exchange the centres and the posterior is the same, so it has two modes of equal
# weight.

# %%
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions
rng = np.random.default_rng(0)
x = rng.normal(1.2 * rng.choice([-1, 1], 60), 1.0).astype(np.float32)


def log_likelihood(centres, batch):
    components = tfd.Normal(centres[..., None, :], 1.0).log_prob(batch[..., None])
    return tf.reduce_logsumexp(components, axis=-1) - np.log(2)


target = sgmcmc.MinibatchLogProb(
    lambda centres: tfd.Sample(tfd.Normal(0.0, 3.0), 2).log_prob(centres),
    log_likelihood,
    data=x,
    batch_size=20,
)

# %% [markdown]
# With two parameters the exact posterior is a sum over a grid.

# %%
grid = np.linspace(-4, 4, 161, dtype=np.float32)
points = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1).reshape(-1, 2)
log_p = target(tf.constant(points)).numpy().reshape(161, 161)
p = np.exp(log_p - log_p.max())
p /= p.sum()
above = np.where(np.subtract.outer(grid, grid) > 0, p, 0).sum() + 0.5 * np.trace(p)
print(f"P(first centre > second) = {above:.3f}")

# %% [markdown]
# ## SGLD
#
# Four chains, from one start.

# %%
start = tf.constant([[1.5, -1.5]] * 4)
run = tf.function(tfp.mcmc.sample_chain, jit_compile=True)


def chains(kernel, trace_fn=None):
    return run(4_000, start, kernel=kernel, num_burnin_steps=2_000, num_steps_between_results=9,
               trace_fn=trace_fn, seed=tf.constant([0, 1]))  # fmt: skip


plain = chains(sgmcmc.SGLD(target, step_size=0.01)).numpy()
print("P(first > second), each chain:", (plain[..., 0] > plain[..., 1]).mean(0).round(3))
print(sgmcmc.report({"centres": plain}, target))

# %% [markdown]
# ## Replica exchange
#
# Replicas at higher temperatures cross between the modes, and neighbours exchange their states.
# The energies that decide an exchange are estimated from a minibatch; the kernel corrects for
# their noise. `log_swap_variance` should stay below about 4, and a fair share of the swaps should
# be accepted.

# %%
temperatures = np.geomspace(1.0, 20.0, 8)
kernel = sgmcmc.ReplicaExchangeSGLD(target, step_size=0.01, temperatures=temperatures)
exchanged, (variance, proposed, accepted) = chains(
    kernel,
    lambda _, r: (r.log_swap_variance, r.num_swaps_proposed, r.num_swaps_accepted),
)
exchanged = exchanged.numpy()
rates = accepted[-1].numpy().mean(-1) / proposed[-1].numpy()
print("accepted swaps:", rates.round(2))
print("variance of the log ratio:", variance.numpy().mean((0, 2)).round(2))
is_above = exchanged[..., 0] > exchanged[..., 1]
print("P(first > second), each chain:", is_above.mean(0).round(3))
print("changes of mode, each chain:", (is_above[1:] != is_above[:-1]).sum(0))

# %%
figure, axes = plt.subplots(1, 3, figsize=(10, 3.3), layout="constrained", sharex=True, sharey=True)
axes[0].contour(grid, grid, p.T, levels=p.max() * np.array([0.02, 0.1, 0.3, 0.6, 0.9]))
axes[0].set_title("exact", fontsize=10)
for axis, draws, name in ((axes[1], plain, "SGLD"), (axes[2], exchanged, "replica exchange")):
    points = draws[::5].reshape(-1, 2)
    axis.plot(points[:, 0], points[:, 1], ".", ms=2, alpha=0.4)
    axis.set_title(name, fontsize=10)
for axis in axes:
    axis.set(xlabel="first centre", aspect="equal")
axes[0].set_ylabel("second centre")
plt.show()

# %% [markdown]
# ## `sample`
#
# `sample` looks for other modes before it draws: it climbs from dispersed starts, and from the
# modes with entries exchanged, until at least three climbs have come to each mode and 80 in a row
# to no new one. If a mixture of normal distributions with heavy tails, one for each mode, fits the
# posterior, its draws are the proposals of `IndependentMetropolis`. Up to twelve modes are mixed.
# Where the mixture does not fit, the modes are flagged.

# %%
result = sgmcmc.sample(target, tf.constant([1.5, -1.5]), 1_000, seed=0, progress_bar=False)
print(result.explanation[0])
is_above_here = result.states[..., 0] > result.states[..., 1]
print("trusted:", result.is_trusted, " P(first > second):", is_above_here.mean().round(3))
assert result.is_trusted and abs(is_above_here.mean() - above) < 0.05

# %% [markdown]
# ## Against the exact posterior

# %%
sorted_exact = (p * np.minimum.outer(grid, grid)).sum(), (p * np.maximum.outer(grid, grid)).sum()
both = np.sort(exchanged, axis=-1).mean((0, 1))
print("smaller and larger centre, exact:", np.round(sorted_exact, 3), " here:", both.round(3))
assert abs(is_above.mean() - above) < 0.1
