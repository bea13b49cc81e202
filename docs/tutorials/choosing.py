# %% [markdown]
# # Choosing a sampler and a step
#
# One posterior, and the way from a guess to settings that hold: measure the curvature, see what a
# step does, whiten, compare step sizes, and let the library choose.
#
# The data are the Pima diabetes set: 532 women, 7 measurements and a constant.

# %%
import time

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import datasets
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions
parts = datasets.pima()
x = np.concatenate([parts.x_train, parts.x_test]).astype(np.float32)
y = np.concatenate([parts.y_train, parts.y_test]).astype(np.float32)
N, D = x.shape
target = sgmcmc.MinibatchLogProb(
    lambda w: tfd.Sample(tfd.Normal(0.0, 3.0), D).log_prob(w),
    lambda w, batch: tfd.Bernoulli(tf.linalg.matvec(batch["x"], w)).log_prob(batch["y"]),
    data={"x": x, "y": y},
    batch_size=50,
)
center, found = sgmcmc.find_center(target, tf.zeros([D]))
print(N, D, "converged:", found.converged)

# %% [markdown]
# ## 1. Measure
#
# The curvature bounds the step. Its range says how hard the posterior is without whitening: a
# chain whose step fits the direction of largest curvature crawls along that of the smallest.

# %%
curvatures = np.linalg.eigvalsh(-np.asarray(found.hessian))
for kernel in (
    sgmcmc.SGLD(target, 1.0),
    sgmcmc.UnderdampedLangevin(target, 1.0),
    sgmcmc.NOGIN(target, 1.0),
):
    print(
        type(kernel).__name__,
        "is stable below",
        f"{float(kernel.largest_stable_step(curvatures[-1])):.3g}",
    )
print(f"curvatures from {curvatures[0]:.1f} to {curvatures[-1]:.1f}")

# %% [markdown]
# ## 2. Whiten
#
# Now all curvatures are about 1, and steps mean the same as for every other posterior.

# %%
whitened, bijector = sgmcmc.whiten(target, center)
print(f"largest curvature: {float(sgmcmc.largest_curvature(whitened, tf.zeros([D]))):.2f}")
hmc = sgmcmc.sample_chain(tfp.mcmc.HamiltonianMonteCarlo(whitened, 0.5, 3), tf.zeros([4, D]), 5_000,
                    num_burnin_steps=100, seed=1, progress_bar=False)  # fmt: skip
exact = hmc.states.var((0, 1)).mean()
print(f"mean variance in these coordinates, by HMC: {exact:.3f}")

# %% [markdown]
# ## 3. Compare step sizes
#
# Bias and speed of three samplers, in the same coordinates. An excess of 0.1 means that variances
# are 10 % too large.

# %%
makers = {
    "SGLD": lambda h: sgmcmc.SGLD(whitened, h**2),
    "SGHMC": lambda h: sgmcmc.SGHMC(whitened, h, friction=1.0 + 6.0 * h),
    "NOGIN": lambda h: sgmcmc.NOGIN(whitened, h, friction=1.0),
}
steps = (0.05, 0.1, 0.2, 0.4)
excess = {}
print(f"{'':6}" + "".join(f"{f'h = {h}':>20}" for h in steps))
for name, make in makers.items():

    @tf.function(jit_compile=True)  # compiled once for all steps
    def run(h, make=make):
        return tfp.mcmc.sample_chain(20_000, tf.zeros([8, D]), kernel=make(h), trace_fn=None,
                                     num_burnin_steps=2_000, seed=tf.constant([0, 1]))  # fmt: skip

    cells = []
    for h in steps:
        z = run(tf.constant(h)).numpy()
        size = np.median(tfp.mcmc.effective_sample_size(z, cross_chain_dims=1)) / (8 * 20_000)
        excess[name, h] = z.var((0, 1)).mean() / exact - 1
        cells.append(f"{excess[name, h]:+.3f}, {size:.4f}")
    print(f"{name:6}" + "".join(f"{cell:>20}" for cell in cells))
print("(excess of the variance, effective samples a step)")

# %%
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
for name in makers:
    axis.plot(steps, [excess[name, h] for h in steps], "o-", label=name)
axis.axhline(0, color="0.7", lw=1)
axis.set(xlabel="h (SGLD: epsilon = h²)", ylabel="excess of the variance")
axis.legend()
plt.show()

# %% [markdown]
# SGLD's variances grow with the step, as its bias is of first order. SGHMC is far less biased,
# and was lost at the largest step (NaN): its friction must exceed h λmax(Σ)/2, and stability
# bounds h times the friction, so that noise limits its step. NOGIN has no bias that could be seen
# at any of these steps, and its draws forget their start sooner with each.
#
# ## 4. Without looking at a reference
#
# `tune` compares settings by the kernel Stein discrepancy of short runs. It needs no reference.

# %%
start = time.perf_counter()
tuned = sgmcmc.tune(
    lambda step_size: sgmcmc.NOGIN(whitened, step_size, friction=1.0),
    {"step_size": [0.02, 0.05, 0.1, 0.2, 0.4, 0.8]},
    whitened,
    tf.zeros([8, D]),
    num_steps=24_000,
    seed=0,
)
print(tuned.best, f"{time.perf_counter() - start:.0f} s")

# %% [markdown]
# ## 5. Or let the library choose

# %%
result = sgmcmc.sample(target, tf.zeros([D]), 1_000, seed=0, progress_bar=False)
print(result)
print("flags:", result.flags)
