# %% [markdown]
# # A regression network with intervals
#
# A network that predicts a mean and a scale for each patient. Trained by Adam it gives one
# answer; sampled, it also says how sure it is. We look at how often the intervals hold the truth.
#
# The data are the diabetes set of scikit-learn: 442 patients, ten measurements, and the
# progression of the disease a year later. We train on 330.

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from sklearn.datasets import load_diabetes

import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions
x, y = load_diabetes(return_X_y=True)
order = np.random.default_rng(0).permutation(len(x))
x, y = x[order], y[order, None]
x = ((x - x[:330].mean(0)) / x[:330].std(0)).astype(np.float32)
y = ((y - y[:330].mean()) / y[:330].std()).astype(np.float32)
x_train, y_train, x_test, y_test = x[:330], y[:330], x[330:], y[330:]

# %% [markdown]
# The loss is the negative log likelihood of a distribution that the outputs parametrise.


# %%
def normal(outputs):
    return tfd.Normal(outputs[..., :1], tf.nn.softplus(outputs[..., 1:]) + 1e-3)


def network():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input([10]), keras.layers.Dense(20, "tanh"), keras.layers.Dense(2)]
    )
    model.compile(
        keras.optimizers.Adam(0.01),
        loss=sgmcmc.keras.NegativeLogLikelihood(normal),
        jit_compile=True,
    )
    return model


trained = network()
history = trained.fit(x_train, y_train, epochs=300, batch_size=33, verbose=0,
                      validation_data=(x_test, y_test))  # fmt: skip
losses = history.history["val_loss"]
print(
    f"held-out loss: {losses[-1]:.3f} after 300 epochs, "
    f"{min(losses):.3f} at best, after {np.argmin(losses) + 1}"
)

# %% [markdown]
# Training to the end overfits. So we also keep a network that was stopped at its best epoch. That
# epoch was chosen on the test data, which flatters it.

# %%
stopped = network()
_ = stopped.fit(x_train, y_train, epochs=int(np.argmin(losses)) + 1, batch_size=33, verbose=0)

# %% [markdown]
# ## The posterior
#
# With 330 examples there is no need for small minibatches. A batch of all of them has no gradient
# noise, so `UnderdampedLangevin` fits. `find_step_size` measures the curvature where training has
# led. A chain meets more curvature than that, most of all where the scale is small, so we take less
# than half of the suggestion. At 0.004 one of two runs met NaN, and stopped with an error that says
# so.

# %%
model = network()
model.fit(x_train, y_train, epochs=30, batch_size=33, verbose=0)
prior = tfd.Normal(0.0, 1.0)
found = sgmcmc.keras.find_step_size(model, x_train, y_train, prior=prior, batch_size=330,
                                    kernel="UnderdampedLangevin", verbose=0)  # fmt: skip
print(f"suggested step {found.step_size:.4f}, friction {found.friction:.1f}, "
      f"stable below {found.largest_stable_step:.4f}")  # fmt: skip

sampler = sgmcmc.keras.SamplerCallback(
    lambda target: sgmcmc.UnderdampedLangevin(target, step_size=0.0025, friction=5.0),
    prior=prior,
    collect=sgmcmc.keras.Collect(5_000, 99),
    chains=4,
    num_examples=330,
    seed=0,
)
data = sampler.resident(
    x_train, y_train, batch_size=330, steps_per_call=1_000, steps_per_epoch=5_000
)
history = model.fit(data, epochs=16, callbacks=[sampler], verbose=0)
print("kinetic temperature, by epoch:", np.round(history.history["kinetic_temperature"], 3))
posterior = sampler.posterior

# %% [markdown]
# Do the chains agree? Weights have symmetries, so look at outputs. The posterior of a network
# mixes slowly, and these chains are short: R-hat is near 1 for most
# patients, and not below 1.01 for all.

# %%
outputs = np.asarray(posterior.outputs(x_test))  # [draws, chains, 112, 2]
r_hat = tfp.mcmc.potential_scale_reduction(outputs, independent_chain_ndims=1).numpy()
print(
    "R-hat of the predicted means: median",
    np.median(r_hat[:, 0]).round(3),
    "largest",
    r_hat[:, 0].max().round(3),
)

# %% [markdown]
# ## Intervals
#
# An interval of the posterior predictive holds both parts of the uncertainty: draw an output for
# each sample of the weights, and take quantiles.

# %%
flat = outputs.reshape(-1, *outputs.shape[2:])
predictive = normal(tf.constant(flat)).sample(20, seed=1).numpy().reshape(-1, len(x_test))
networks = {"stopped": normal(stopped(x_test)), "to the end": normal(trained(x_test))}
print(f"{'level':>6}{'posterior':>11}" + "".join(f"{name:>12}" for name in networks))
for level in (0.5, 0.8, 0.9, 0.95):
    tails = (1 - level) / 2, (1 + level) / 2
    low, high = np.quantile(predictive, tails, axis=0)
    shares = [np.mean((low < y_test[:, 0]) & (y_test[:, 0] < high))]
    for law in networks.values():
        low, high = (law.quantile(tail).numpy() for tail in tails)
        shares.append(np.mean((low < y_test) & (y_test < high)))
    print(f"{level:6}{shares[0]:11.2f}" + "".join(f"{share:12.2f}" for share in shares[1:]))
density = posterior.evaluate(x_test, y_test).log_predictive_density
print(f"log predictive density: {density:.3f}", end="")
for law in networks.values():
    print(f"{float(tf.reduce_mean(law.log_prob(y_test))):12.3f}", end="")

# %% [markdown]
# The share of patients in an interval should be its level. With 112 patients a share is uncertain
# by 0.02 to 0.05. The intervals of the posterior and those of the stopped network hold about what
# they should. Those of the network that was trained to the end are far too narrow: an interval of
# 90 % holds half of the patients.
#
# The stopped network has the better log density by a little, as the test data told it when to
# stop. The posterior needed no such data, and the prior and the averaging kept it from
# overfitting.

# %%
order = np.argsort(predictive.mean(0))
figure, axis = plt.subplots(figsize=(8, 3), layout="constrained")
low, high = np.quantile(predictive[:, order], [0.05, 0.95], axis=0)
mean_low, mean_high = np.quantile(flat[:, order, 0], [0.05, 0.95], axis=0)
axis.fill_between(range(len(order)), low, high, color="0.88", label="90 % of observations")
axis.fill_between(
    range(len(order)), mean_low, mean_high, color="C0", alpha=0.5, label="90 % for the mean"
)
axis.plot(y_test[order, 0], "k.", ms=3, label="observed")
axis.set(xlabel="patients, by predicted mean", ylabel="progression, in sds")
axis.legend(fontsize=7)
plt.show()
