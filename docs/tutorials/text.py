# %% [markdown]
# # Text, and a subject never seen
#
# A network with word embeddings tells what a piece of documentation is about. We sample its
# weights, and look at texts of a subject that was not among the classes.
#
# The texts are the docstrings of Python's standard library, which every reader has. The class is
# the family of the module. Here they are those of Python 3.11; other versions have a few others.

# %%
import ast
import os
import re
from collections import Counter
from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions
FAMILIES = {
    "network": "asyncio email ftplib http imaplib smtplib socket socketserver ssl urllib xmlrpc",
    "text": "codecs configparser csv difflib gettext html json locale re string textwrap xml",
    "numbers": "_pydecimal bisect calendar colorsys datetime fractions heapq random statistics",
    "files": "_pyio gzip mailbox os pathlib pickle posixpath shutil tarfile tempfile zipfile",
}
UNSEEN = "doctest inspect pdb timeit trace unittest"  # testing code: none of the four


def words(text):
    return re.findall(r"[a-z]{2,}", text.lower())


def docstrings(modules):
    """Returns the docstrings of all functions and classes, each once."""
    library, found = Path(os.__file__).parent, {}
    for module in modules.split():
        files = [library / f"{module}.py", *sorted((library / module).rglob("*.py"))]
        for file in files:
            for node in ast.walk(ast.parse(file.read_text("utf-8"))) if file.exists() else []:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    found.setdefault(ast.get_docstring(node) or "")
    return [text for text in found if len(words(text)) >= 5]


texts, labels = [], []
for label, modules in enumerate(FAMILIES.values()):
    texts += docstrings(modules)
    labels += [label] * (len(texts) - len(labels))
labels = np.array(labels, np.int32)
unseen = docstrings(UNSEEN)
print(
    dict(zip(FAMILIES, np.bincount(labels).tolist(), strict=True)), "unseen subject:", len(unseen)
)
print(repr(texts[0].splitlines()[0]))

# %% [markdown]
# ## Words as numbers
#
# The 1,000 most frequent words of the training part have numbers from 2 on. 1 is any other word,
# and 0 fills up short texts.


# %%
order = np.random.default_rng(0).permutation(len(texts))
train, test = order[: int(0.75 * len(order))], order[int(0.75 * len(order)) :]
counts = Counter(word for i in train for word in words(texts[i]))
ranked = sorted(counts, key=lambda word: (-counts[word], word))[:1_000]
number = {word: i + 2 for i, word in enumerate(ranked)}


def encode(texts, length=60):
    rows = np.zeros([len(texts), length], np.int32)
    for row, text in zip(rows, texts, strict=True):
        found = [number.get(word, 1) for word in words(text)[:length]]
        row[: len(found)] = found
    return rows


x, x_test = encode([texts[i] for i in train]), encode([texts[i] for i in test])
y, y_test = labels[train], labels[test]

# %% [markdown]
# ## Adam, and the posterior
#
# The posterior is sampled by SGLD from Adam's weights on, with data that stay on the device, at two
# temperatures.

# %%
keras.utils.set_random_seed(0)
layers = keras.layers
model = keras.Sequential([
    keras.Input([60], dtype="int32"),
    layers.Embedding(1_002, 16, mask_zero=True),
    layers.GlobalAveragePooling1D(),
    layers.Dense(4),
])  # fmt: skip
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.01), loss, jit_compile=True)
model.fit(x, y, epochs=15, batch_size=50, verbose=0)
adam = model.get_weights()


def scores(name, posterior):
    found = posterior.evaluate(x_test, y_test, batch_size=len(x_test))
    print(f"{name:18} accuracy {found.accuracy:.3f}, log density "
          f"{found.log_predictive_density:.3f}, calibration error "
          f"{found.expected_calibration_error:.3f}")  # fmt: skip


one = sgmcmc.keras.Posterior(model, model.trainable_variables, [w[None] for w in adam])
scores("Adam", one)
for temperature in (1.0, 0.1):
    model.set_weights(adam)
    sampler = sgmcmc.keras.SamplerCallback(
        lambda target, temperature=temperature: sgmcmc.SGLD(
            target, step_size=5e-4, temperature=temperature
        ),
        prior=tfd.Normal(0.0, 1.0),
        collect=sgmcmc.keras.Collect(10_000, 499),
        num_examples=len(x),
        seed=0,
    )  # fmt: skip
    data = sampler.resident(x, y, batch_size=100, steps_per_call=1_000, steps_per_epoch=5_000)
    history = model.fit(data, epochs=8, callbacks=[sampler], verbose=0)
    scores(f"posterior, T = {temperature}", sampler.posterior)

# %% [markdown]
# Neither average is better than Adam's network, which was stopped early: there are 16,000 weights
# and 1,800 texts. At temperature 1 the average is worse by every score. At 0.1 it is as good as
# Adam's network, but not better calibrated.
#
# ## A subject never seen
#
# Docstrings of testing tools belong to none of the four classes. The entropy of the prediction is
# what a point estimate has, too. The mutual information of prediction and weights is what samples
# add: it is large where they disagree.

# %%
x_unseen = encode(unseen)


def uncertainty(posterior, inputs):
    found = posterior.predict(inputs, batch_size=len(inputs))
    return {"entropy": np.asarray(found.entropy),
            "mutual information": np.asarray(found.mutual_information)}  # fmt: skip


def area(known, other):
    """Returns the probability that a text of the unseen subject has the larger value."""
    return np.mean(other[:, None] > known) + 0.5 * np.mean(other[:, None] == known)


known, other = (uncertainty(sampler.posterior, part) for part in (x_test, x_unseen))
by_adam = area(uncertainty(one, x_test)["entropy"], uncertainty(one, x_unseen)["entropy"])
print(f"the unseen subject is the less certain one: Adam, by entropy {by_adam:.3f}; posterior, "
      + ", ".join(f"by {name} {area(known[name], other[name]):.3f}" for name in known))  # fmt: skip

figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
for axis, name in zip(axes, known, strict=True):
    edges = np.linspace(0, max(known[name].max(), other[name].max()), 30)
    for values, label in ((known[name], "test texts"), (other[name], "unseen subject")):
        axis.hist(values, edges, density=True, histtype="step", label=label)
    axis.set(xlabel=f"{name} (nats)", ylabel="density")
axes[0].legend(fontsize=8)
plt.show()

# %% [markdown]
# In about seven of ten pairs of texts the one of the unseen subject is the less certain, by every
# measure. Here the samples add nothing to the entropy of one network.
