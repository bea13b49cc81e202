# %% [markdown]
# # A million examples
#
# A logistic regression with N = 1,000,000 examples and 20 weights. HMC passes over all of them
# several times for one draw. With control variates, a step takes 100 of them, and is nearly as
# good as a step with exact gradients.
#
# The data are drawn at random, as no public set at hand has a million rows.

# %%
import time

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions
N, D = 1_000_000, 20
rng = np.random.default_rng(0)
x = rng.normal(size=[N, D]).astype(np.float32) / np.sqrt(D).astype(np.float32)
y = (rng.uniform(size=N) < 1 / (1 + np.exp(-x @ rng.normal(size=D)))).astype(np.float32)

target = sgmcmc.MinibatchLogProb(
    lambda w: tfd.Sample(tfd.Normal(0.0, 1.0), D).log_prob(w),
    sgmcmc.LinearModel(lambda eta, y: tfd.Bernoulli(eta).log_prob(y)),
    data=(x, y),
    batch_size=100,
)

# %% [markdown]
# ## Once: the mode, the curvature, and what the examples leave
#
# `importance="pilot"` draws the examples whose remainders are large more often.

# %%
start = time.perf_counter()
center, report = sgmcmc.find_center(target, tf.zeros([D]))
whitened, bijector = sgmcmc.whiten(target, center)
control = sgmcmc.ControlVariate(whitened, tf.zeros([D]), order=2, importance="pilot")
print(f"mode, whitening and control variates: {time.perf_counter() - start:.1f} s")

# %% [markdown]
# How noisy are the gradients, one posterior standard deviation from the mode? In whitened
# coordinates the curvature is 1, and so is the scale on which noise counts.

# %%
z = tf.random.stateless_normal([500, D], seed=[0, 1])
for name, estimates in (("plain", whitened), ("control variates", control)):
    first = estimates.estimate(z, tf.constant([0, 1])).gradient
    second = estimates.estimate(z, tf.constant([0, 2])).gradient
    print(
        f"variance of the gradient, {name}: {float(tf.reduce_mean((first - second) ** 2)) / 2:.2e}"
    )

# %% [markdown]
# ## Sampling

# %%


def effective(draws):
    """Independent draws, all chains together, of the median coordinate."""
    return float(np.median(tfp.mcmc.effective_sample_size(draws, cross_chain_dims=1)))


costs, variances = {}, {}
for name, kernel, num_results in (
    ("control variates", sgmcmc.UnderdampedLangevin(control, 1.0, friction=1.5), 10_000),
    ("NOGIN, plain", sgmcmc.NOGIN(whitened, 0.5, friction=1.0), 10_000),
    ("HMC", tfp.mcmc.HamiltonianMonteCarlo(whitened, 0.5, num_leapfrog_steps=3), 40),
):
    result = sgmcmc.sample_chain(
        kernel, tf.zeros([4, D]), num_results, num_burnin_steps=num_results // 10, seed=0,
        progress_bar=False,
    )  # fmt: skip
    draws = np.asarray(result.states)
    costs[name] = result.timings.seconds / effective(draws)
    variances[name] = draws.var((0, 1)).mean()
    print(f"{name:17} {result.timings.seconds:6.1f} s, {effective(draws):8.0f} independent draws, "
          f"{1e3 * costs[name]:8.2f} ms each, variance {variances[name]:.3f}")  # fmt: skip

# %% [markdown]
# HMC has only 160 draws here, so its variance is uncertain by some percent. NOGIN's 10,000 steps
# are worth about ten independent draws, so its variance and its cost are rough figures. Laplace's
# approximation says 1 in these coordinates, and with a million examples it is very good.

# %%
print(f"HMC / control variates: {costs['HMC'] / costs['control variates']:.0f}")
print(f"HMC / NOGIN with plain minibatches: {costs['HMC'] / costs['NOGIN, plain']:.2f}")
assert abs(variances["control variates"] - 1) < 0.05

# %% [markdown]
# [The table of equal errors](../measured/tables.md#the-cost-of-an-equal-error) has another ratio
# for a posterior of this size, 959. It counts the processor time of one chain on one core. Here
# four chains run in one program on two cores, and the clock counts. Both leave out the set-up
# above.
#
# Plain minibatches cannot win here: an effective sample costs them about a pass over the data,
# whatever the sampler. `sgmcmc.sample(target, ...)` finds these settings by itself, and tests the
# draws.
