# %% [markdown]
# # An image classifier and its calibration
#
# A network on 6,000 images of MNIST: first as an ensemble, by a callback with nothing to set,
# then trained by Adam and sampled from the same weights. We compare accuracy, log density and
# calibration on the 10,000 test images.

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow_probability as tfp

import datasets
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions
x, y, x_test, y_test = datasets.mnist()
x, x_test = (a.reshape(len(a), -1).astype(np.float32) for a in (x, x_test))
if x.max() > 1:
    x, x_test = x / 255, x_test / 255
chosen = np.random.default_rng(0).permutation(len(x))[:6_000]
x, y, y_test = x[chosen], y[chosen].astype(np.int32), y_test.astype(np.int32)


def make_model():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input([784]), keras.layers.Dense(50, "relu"), keras.layers.Dense(10)]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                  metrics=["accuracy"], jit_compile=True)  # fmt: skip
    return model


# %% [markdown]
# ## Nothing to choose
#
# `SamplerCallback()` makes of `fit` an ensemble of five chains. It is made for predictions: its
# states are not draws from the posterior.

# %%


def scores(name, posterior):
    found = posterior.evaluate(x_test, y_test, batch_size=1_000)
    print(f"{name:28} accuracy {found.accuracy:.4f}  log density {found.log_predictive_density:.4f}"
          f"  calibration error {found.expected_calibration_error:.4f}")  # fmt: skip
    return np.asarray(posterior.predict(x_test, batch_size=1_000).mean)


ensemble = sgmcmc.keras.SamplerCallback(seed=0)
make_model().fit(x, y, epochs=15, batch_size=100, callbacks=[ensemble], verbose=0)
probabilities = {"ensemble": scores("ensemble", ensemble.posterior)}

# %% [markdown]
# ## Adam alone
#
# Plain training, to compare with. A `Posterior` of one sample scores it by the same functions.

# %%
model = make_model()
model.fit(x, y, epochs=15, batch_size=100, verbose=0)
start = model.get_weights()
one = sgmcmc.keras.Posterior(model, model.trainable_variables, [w[None] for w in start])
probabilities["Adam"] = scores("Adam", one)

# %% [markdown]
# ## The posterior
#
# SGHMC, on data that stay on the device. With n = 300 the noise along the directions of largest
# curvature is about N/n = 20 times that curvature, so the friction is large. `covariance="diag"`
# makes up for a part of it.

# %%
for temperature in (1.0, 0.1):
    model.set_weights(start)
    sampler = sgmcmc.keras.SamplerCallback(
        lambda target, temperature=temperature: sgmcmc.SGHMC(
            target, step_size=2e-3, friction=20.0, covariance="diag", temperature=temperature
        ),
        prior=tfd.Normal(0.0, 0.3),
        collect=sgmcmc.keras.Collect(2_000, 99),
        num_examples=len(x),
        seed=0,
    )
    data = sampler.resident(x, y, batch_size=300, steps_per_call=500, steps_per_epoch=1_000)
    history = model.fit(data, epochs=5, callbacks=[sampler], verbose=0)
    name = f"posterior, temperature {temperature}"
    print(f"kinetic temperature {np.round(history.history['kinetic_temperature'], 2)}, "
          f"{len(sampler.samples[0])} samples")  # fmt: skip
    probabilities[name] = scores(name, sampler.posterior)

# %% [markdown]
# ## Calibration
#
# All three averages are more accurate than Adam's network and have the better log density, the
# ensemble most of all. The ensemble is calibrated as well as Adam's network. The posterior averages
# are not: at temperature 1 the average is not sure enough, as the picture shows, and at 0.1 the
# error is smaller.
#
# Of the images to which the classifier gives 80 %, 80 % should be right.

# %%
figure, axes = plt.subplots(1, 4, figsize=(12, 3.2), layout="constrained", sharey=True)
edges = np.linspace(0, 1, 11)
for axis, (name, p) in zip(axes, probabilities.items(), strict=True):
    confidence, right = p.max(-1), p.argmax(-1) == y_test
    cell = np.digitize(confidence, edges[1:-1])
    used = [k for k in range(10) if np.sum(cell == k) >= 20]
    axis.plot([0, 1], [0, 1], color="0.7", lw=1)
    axis.plot(
        [confidence[cell == k].mean() for k in used], [right[cell == k].mean() for k in used], "o-"
    )
    axis.set_title(name, fontsize=9)
    axis.set(xlabel="confidence")
axes[0].set_ylabel("share right")
plt.show()

# %% [markdown]
# ## What the samples know that one network does not
#
# The mutual information of prediction and weights is large where samples disagree. Images of
# which the posterior is unsure in that way are wrong more often:

# %%
prediction = sampler.posterior.predict(x_test, batch_size=1_000)
information = np.asarray(prediction.mutual_information)
wrong = np.asarray(prediction.mean).argmax(-1) != y_test
order = np.argsort(information)
print(f"error among the 5,000 images with the least: {wrong[order[:5_000]].mean():.4f}")
print(f"error among the 1,000 images with the most:  {wrong[order[-1_000:]].mean():.4f}")
