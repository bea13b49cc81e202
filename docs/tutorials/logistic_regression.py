# %% [markdown]
# # Logistic regression against HMC
#
# We sample the posterior of a logistic regression four times: by `sample`, which chooses
# everything, by HMC on all data, which is exact, by SGLD with a step that somebody might guess,
# and by NOGIN in whitened coordinates. Then we look at what differs.
#
# The data come with scikit-learn: 569 tumours, ten measurements of each and a constant, and whether
# it is benign. Nothing is downloaded.

# %%
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from sklearn.datasets import load_breast_cancer

import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions
x, y = load_breast_cancer(return_X_y=True)
x, y = x[:, :10].astype(np.float32), y.astype(np.float32)
x = np.insert((x - x.mean(0)) / x.std(0), 0, 1, axis=1)
N, D = x.shape
print(N, D, y.mean())

# %% [markdown]
# The target is the log prior and the log likelihood of each example. Nothing is summed, divided
# or scaled by hand.

# %%
target = sgmcmc.MinibatchLogProb(
    lambda w: tfd.Sample(tfd.Normal(0.0, 1.0), D).log_prob(w),
    lambda w, batch: tfd.Bernoulli(tf.linalg.matvec(batch["x"], w)).log_prob(batch["y"]),
    data={"x": x, "y": y},
    batch_size=100,
)

# %% [markdown]
# ## Nothing to choose
#
# `sample` needs the target, a start and the number of draws. It checks the draws, and says below
# the table whether they can be trusted.

# %%
result = sgmcmc.sample(target, tf.zeros([D]), 1_000, seed=0, progress_bar=False)
print(result)

# %% [markdown]
# The rest of this page chooses by hand, to show what can go wrong and what finds it.
#
# ## The reference
#
# `find_center` finds the mode, and `whiten` gives coordinates z in which the posterior is about
# N(0, I). There HMC needs no tuning.

# %%
center, report = sgmcmc.find_center(target, tf.zeros([D]))
whitened, bijector = sgmcmc.whiten(target, center)
hmc = sgmcmc.sample_chain(
    tfp.mcmc.HamiltonianMonteCarlo(whitened, step_size=0.5, num_leapfrog_steps=3),
    tf.zeros([4, D]),
    2_500,
    num_burnin_steps=100,
    seed=0,
    progress_bar=False,
)
exact = bijector.forward(hmc.states).numpy()
print(sgmcmc.report(hmc, whitened))

# %% [markdown]
# ## SGLD, with a guessed step
#
# The largest curvature of this posterior tells which steps are stable. We take a fifth of the
# largest.

# %%
curvature = sgmcmc.largest_curvature(target, center)
limit = sgmcmc.SGLD(target, 1.0).largest_stable_step(curvature)
print(f"curvature {float(curvature):.0f}, steps are stable below {float(limit):.4f}")
sgld = sgmcmc.sample_chain(
    sgmcmc.SGLD(target, step_size=float(limit) / 5),
    tf.tile(center[None], [4, 1]),
    2_500,
    num_burnin_steps=1_000,
    num_steps_between_results=19,
    seed=0,
    progress_bar=False,
)
print(sgmcmc.report(sgld, target))

# %% [markdown]
# ## NOGIN, in whitened coordinates

# %%
nogin = sgmcmc.sample_chain(
    sgmcmc.NOGIN(whitened, step_size=0.5, friction=1.0),
    tf.zeros([4, D]),
    2_500,
    num_burnin_steps=500,
    num_steps_between_results=4,
    seed=0,
    progress_bar=False,
)
print(sgmcmc.report(nogin, whitened))

# %% [markdown]
# ## What differs
#
# E1 and E2 are the relative errors of the posterior mean and covariance against HMC's. Draws are
# finite in number, so the last row compares two halves of HMC's chains: less than that cannot be
# seen.

# %%
draws = {
    "sample": np.asarray(result.states),
    "SGLD": np.asarray(sgld.states),
    "NOGIN": bijector.forward(nogin.states).numpy(),
}
flat = exact.reshape(-1, D)
print(f"{'':8}{'E1':>7}{'E2':>7}   standard deviations, ratio to HMC's")
halves = {"HMC": exact[:, :2]}  # two of its chains, against the other two
for name, w in (draws | halves).items():
    reference = exact[:, 2:].reshape(-1, D) if name == "HMC" else flat
    w = w.reshape(-1, D)
    mean_error = sgmcmc.diagnostics.relative_mean_error(w.mean(0), reference.mean(0))
    covariance_error = sgmcmc.diagnostics.relative_covariance_error(
        np.cov(w.T), np.cov(reference.T)
    )
    ratio = w.std(0) / reference.std(0)
    print(
        f"{name:8}{mean_error:7.3f}{covariance_error:7.3f}   {ratio.min():.2f} to {ratio.max():.2f}"
    )

# %%
widest = np.argsort(-(np.asarray(sgld.states).std((0, 1)) / exact.std((0, 1))))[:4]
figure, axes = plt.subplots(1, 4, figsize=(10, 2.4), layout="constrained")
for axis, i in zip(axes, widest, strict=True):
    bins = np.linspace(*np.quantile(exact[..., i], [0.0005, 0.9995]), 40)
    axis.hist(exact[..., i].ravel(), bins, density=True, color="0.8", label="HMC")
    for name, w in draws.items():
        axis.hist(np.asarray(w)[..., i].ravel(), bins, density=True, histtype="step", label=name)
    axis.set(title=f"weight {i}", yticks=[])
axes[0].legend(fontsize=7)
plt.show()

# %% [markdown]
# `sample` and the report judged each run without the reference, and the reference agrees with them.
