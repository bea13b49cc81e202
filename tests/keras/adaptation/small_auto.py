"""A linear regression, and fits of it with `SamplerCallback("auto")`, that tests share."""

import warnings

import numpy as np

from tests.keras import small_models
from tests.keras.small_models import unit_normal

N, D = 120, 3
RNG = np.random.default_rng(0)
X = (RNG.normal(size=[N, D]) * [3.0, 1.0, 0.1]).astype(np.float32)
Y = (X @ np.float32([1.0, -1.0, 0.5]) + RNG.normal(size=N)).astype(np.float32)[:, None]


def regression(**arguments):
    return small_models.linear(unit_normal, 1, inputs=D, **arguments)


def auto(num_examples=N, **arguments):
    arguments = {"num_burnin_epochs": 4, "seed": 0, **arguments}
    prior = small_models.standard_normal()
    return small_models.sampler("auto", num_examples, prior, **arguments)


def quietly(model, callback, x=X, y=Y, **arguments):
    """Fits without warnings of bounds that cannot be kept."""
    arguments = {"epochs": 6, "verbose": 0, **arguments}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(x, y, callbacks=[callback], **arguments).history
