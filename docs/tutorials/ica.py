# %% [markdown]
# # Independent components of a recording
#
# Independent component analysis (ICA) finds the sources whose mixture was recorded: it estimates a
# matrix W such that the rows of W x are independent. FastICA gives one W. Here we sample W, and
# ask which sources the data determine.
#
# The data are five channels of the magnetic field of a brain (MEG) at 17,730 times, published with
# the code of Matthews & Weare (2018). The model and the sampler are those of Welling & Teh (2011),
# section 5.3.

# %%
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from scipy.stats import kurtosis
from sklearn.decomposition import FastICA

import datasets
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions
x = datasets.ica5(np.float64).x
x -= x.mean(axis=0)
size, vectors = np.linalg.eigh(np.cov(x.T))
x = (x @ vectors / np.sqrt(size) @ vectors.T).astype(np.float32)  # covariance I
N, D = x.shape

# %% [markdown]
# ## The model
#
# Each source has the density 1 / (4 cosh²(y / 2)), so an example has the log likelihood
# log |det W| - Σ 2 log(2 cosh(w_i · x / 2)). The prior is N(0, 1) on each entry of W.
#
# XLA has no kernel for `slogdet`. Gram-Schmidt on the rows of a small matrix is fast.


# %%
def log_abs_det(w):
    total, basis = 0.0, []
    for row in tf.unstack(w, axis=-2):
        for direction in basis:
            row -= tf.reduce_sum(row * direction, axis=-1, keepdims=True) * direction
        length = tf.norm(row, axis=-1, keepdims=True)
        basis.append(row / length)
        total += tf.math.log(length[..., 0])
    return total


def log_likelihood(w, batch):  # w: [chains..., D, D], batch: [chains..., n, D]
    y = tf.abs(tf.linalg.matmul(w, batch, transpose_b=True))  # [chains..., D, n]
    log_cosh = tf.reduce_sum(y + 2 * tf.math.log1p(tf.exp(-y)), axis=-2)
    return log_abs_det(w)[..., None] - log_cosh


target = sgmcmc.MinibatchLogProb(
    lambda w: tf.reduce_sum(tfd.Normal(0.0, 1.0).log_prob(w), axis=[-2, -1]),
    log_likelihood,
    data=x,
    batch_size=100,
)
ica = FastICA(whiten=False, fun="logcosh", random_state=0, max_iter=1_000).fit(x)
start = (ica.components_ * np.pi / np.sqrt(3)).astype(np.float32)  # the scale of the density
sgmcmc.preflight(target, tf.constant(start))
print("excess kurtosis of FastICA's sources:", kurtosis(x @ start.T).round(1))

# %% [markdown]
# ## Sampling
#
# The natural gradient G WᵀW makes the step the same for every mixture. As M depends on W, the
# drift has a term div M = (D + 1) W, which the kernel adds. Steps decrease from 0.03 / N to
# 0.005 / N, and draws are weighted by their step.
#
# `CorrectedLangevin` uses the same M on all data, with a Metropolis-Hastings test. It is exact, and
# takes 17,730 examples for a step where SGLD takes 100.

# %%
natural = sgmcmc.preconditioners.NaturalGradientICA()
run = tf.function(tfp.mcmc.sample_chain, jit_compile=True)


def sample(kernel, chains, num_results, burn_in, thinning, trace):
    begin = tf.tile(tf.constant(start)[None], [chains, 1, 1])
    draws, traced = run(num_results, begin, kernel=kernel, num_burnin_steps=burn_in,
                        num_steps_between_results=thinning - 1, trace_fn=trace,
                        seed=tf.constant([0, 1]))  # fmt: skip
    return draws.numpy(), traced.numpy()


num_steps = 150_000
schedule = sgmcmc.schedules.PolynomialDecay.from_endpoints(0.03 / N, 0.005 / N, num_steps)
sgld, weights = sample(sgmcmc.SGLD(target, schedule, preconditioner=natural), 8, 1_200, 30_000, 100,
                       lambda _, results: results.step_size)  # fmt: skip
exact, accepted = sample(sgmcmc.CorrectedLangevin(target, 0.6 / N, natural), 8, 2_500, 500, 1,
                         lambda _, results: results.is_accepted)  # fmt: skip
print(f"passes over the data of a chain: SGLD {num_steps * 100 / N:.0f}, exact 3000")
print(f"accepted steps of the exact chains: {accepted.mean():.2f}")

# %% [markdown]
# ## Which sources do the data determine?
#
# The instability of source i is Σ_j var(W_ij) var(x_j): the variance of source i at a typical time,
# over the posterior. Sources change sign and order without changing the likelihood, but these
# chains stay near their start.


# %%
def instability(draws, weights=None):
    """Returns the index of each source, and its standard error over the chains."""
    mean = np.average(draws, axis=0, weights=weights).mean(axis=0)
    variances = np.average((draws - mean) ** 2, axis=0, weights=weights)  # of W, in each chain
    found = variances @ x.var(axis=0)
    return found.mean(axis=0), found.std(axis=0, ddof=1) / np.sqrt(len(found))


indices = {"SGLD": instability(sgld, weights), "corrected Langevin": instability(exact)}
order = np.argsort(indices["corrected Langevin"][0])
for name, (value, error) in indices.items():
    print(f"{name:18}", *(f"{value[i]:.1e} ± {error[i]:.0e}" for i in order))
ratio = indices["SGLD"][0] / indices["corrected Langevin"][0]
print("ratio:", ratio[order].round(2))
mean = exact.mean(axis=(0, 1))
shift = np.average(sgld, axis=0, weights=weights).mean(axis=0) - mean
shift /= exact.std(axis=(0, 1))
print(f"largest difference of the means: {np.abs(shift).max():.2f} standard deviations")
print("excess kurtosis, in this order:", kurtosis(x @ mean.T)[order].round(1))
assert np.all((ratio > 0.8) & (ratio < 1.3))

# %% [markdown]
# SGLD's draws spread a few percent more, which is what its step and the noise of its minibatches
# add. Kurtosis, by which FastICA's sources are often ranked, does not tell which source is
# determined well: the one with the largest is only the fourth of five.

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained", width_ratios=[2, 1])
shown = np.arange(4_300, 5_000)
for row, i in enumerate(order):
    axes[0].plot(shown, x[shown] @ mean[i] / 4 - row * 2, lw=0.6, color="C0")
axes[0].set(xlabel="time (samples)", yticks=-2 * np.arange(D), yticklabels=np.arange(1, D + 1),
            ylabel="source, by stability")  # fmt: skip
for place, (name, (value, error)) in enumerate(indices.items()):
    axes[1].errorbar(np.arange(1, D + 1) + 0.15 * place, value[order], error[order], fmt="o",
                     capsize=3, label=name)  # fmt: skip
axes[1].set(xlabel="source, by stability", ylabel="instability", ylim=(0, None))
axes[1].legend(fontsize=8)
plt.show()
