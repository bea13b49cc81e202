# %% [markdown]
# # A sampler of your own
#
# A sampler is a file of about a hundred lines, and most of them are its docstring. Here we write
# one that the library does not have, and prove it right. It is the overdamped limit of BAOAB
# (Leimkuhler & Matthews 2013): SGLD, whose noise is the mean of this step's normals and those of
# the step before,
#
# $$\theta \leftarrow \theta + \tfrac\epsilon2 g(\theta) + \sqrt\epsilon\, \frac{z_t + z_{t-1}}2 .$$
#
# That small change removes the whole bias of the step on a Gaussian posterior with exact
# gradients.

# %%
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import random
from tfp_sgmcmc.internal.nest import map_parts
from tfp_sgmcmc.kernels import OverdampedKernel
from tfp_sgmcmc.kernels.linear_theory import overdamped_law

# %% [markdown]
# All that a sampler remembers is in its results. The first six fields are those of every sampler;
# ours also keeps the normals.


# %%
class AveragedResults(NamedTuple):
    target_log_prob: tf.Tensor
    gradient_norm: tf.Tensor
    step_size: Any
    temperature: Any
    step: tf.Tensor
    target_state: Any
    normals: Any


class AveragedNoise(OverdampedKernel):
    """SGLD with the mean of two successive normals."""

    def __init__(self, target_log_prob_fn, step_size, temperature=1.0):
        super().__init__(locals(), positive=("step_size", "temperature"))

    def _init_results(self, state):
        zeros = tf.nest.map_structure(tf.zeros_like, state)
        return AveragedResults(**self._start(state), normals=zeros)

    def _update(self, state, results, seed):
        batch_seed, noise_seed = random.split(seed, 2)
        estimate = self._target.estimate(state, batch_seed, results.target_state)
        epsilon, temperature = self._settings(results.step, state)
        normals = random.normal_like(state, noise_seed)
        state = map_parts(
            lambda x, eps, t, g, z, old: x + eps / 2 * g + tf.sqrt(eps * t) * (z + old) / 2,
            state, epsilon, temperature, estimate.gradient, normals, results.normals,
        )  # fmt: skip
        figures = self._figures(estimate, epsilon, temperature, results)
        return state, AveragedResults(**figures, normals=normals)


# %% [markdown]
# That is all. It runs in `tfp.mcmc.sample_chain`, in `sgmcmc.sample_chain` with checkpoints, and in
# `fit`.
#
# ## Is it right?
#
# On a Gaussian with curvature a the step is linear, so the distribution of its draws is known in
# closed form. With $\rho = 1 - \epsilon a / 2$, the pair $(\theta_t, z_t)$ is a linear scheme,
# and its covariance S solves $S = F S F^T + L L^T$.

# %%
from scipy.linalg import solve_discrete_lyapunov  # noqa: E402


def exact_variance(epsilon, gradient_noise=0.0):
    """Theta's variance at curvature 1: theta' = rho theta + e/2 noise + sqrt(e)/2 (z' + z)."""
    rho, root = 1 - epsilon / 2, epsilon**0.5 / 2
    step = np.array([[rho, root], [0.0, 0.0]])
    drawn = np.array([[root, epsilon / 2 * gradient_noise**0.5], [1.0, 0.0]])
    return solve_discrete_lyapunov(step, drawn @ drawn.T)[0, 0]


target = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1))
run = tf.function(tfp.mcmc.sample_chain, jit_compile=True)


def measured_variance(kernel, chains=40_000):
    """From independent chains, after 100 steps."""
    last = run(1, tf.zeros([chains, 1]), kernel=kernel, num_burnin_steps=100, trace_fn=None,
               seed=tf.constant([0, 1]))  # fmt: skip
    return float(tf.reduce_mean(last**2))


error = 4.9 * (2 / 40_000) ** 0.5  # of a variance of 1 with false-alarm rate 1e-6
print(f"{'step':>5}{'SGLD':>8}{'exact':>8}{'averaged':>10}{'exact':>8}   (+- {error:.3f})")
steps = (0.25, 0.5, 1.0, 2.0)
for epsilon in steps:
    plain = measured_variance(sgmcmc.SGLD(target, epsilon))
    averaged = measured_variance(AveragedNoise(target, epsilon))
    exact = overdamped_law(epsilon, 1.0).temperature, exact_variance(epsilon)
    print(f"{epsilon:5}{plain:8.3f}{exact[0]:8.3f}{averaged:10.3f}{exact[1]:8.3f}")
    assert abs(plain / exact[0] - 1) < error and abs(averaged / exact[1] - 1) < error

# %% [markdown]
# The draws have the variances that the equation says, and the new scheme's variance is 1 at every
# step.
#
# A test that cannot fail proves nothing. So break the sampler, and see that the test rejects it.
# A usual mistake is to forget to carry something to the next step:


# %%
class Broken(AveragedNoise):
    def _update(self, state, results, seed):
        state, new = super()._update(state, results, seed)
        return state, new._replace(normals=results.normals)  # forgets to keep the normals


wrong = measured_variance(Broken(target, 0.5))
print(f"broken: {wrong:.3f}, exact {exact_variance(0.5):.3f}")
assert abs(wrong / exact_variance(0.5) - 1) > error

# %% [markdown]
# ## What it does not do
#
# The trick is for exact gradients. The noise of minibatches is not averaged over two steps, and
# widens the draws as it widens those of SGLD:

# %%
noises = np.linspace(0, 8, 50)
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.plot(noises, overdamped_law(0.5, 1.0, noises).temperature, label="SGLD")
axis.plot(noises, [exact_variance(0.5, s) for s in noises], label="averaged noise")
axis.axhline(1, color="0.6", lw=1)
axis.set(
    xlabel="variance of the gradient noise, over the curvature", ylabel="variance", ylim=(0, None)
)
axis.set_title("step 0.5; the exact variance is 1", fontsize=10)
axis.legend()
plt.show()

# %% [markdown]
# So it goes well with control variates, which leave little noise, and not with plain minibatches.
# The [developers' page](../guides/developers.md) has what a sampler needs besides to become part
# of the library.
