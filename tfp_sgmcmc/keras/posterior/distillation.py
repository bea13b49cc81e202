"""Distils an ensemble into one network of the same architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.keras.posterior import model_copy
from tfp_sgmcmc.keras.posterior.batches import check_arrays, checked_inputs
from tfp_sgmcmc.keras.posterior.evaluate import Evaluation

if TYPE_CHECKING:
    from tfp_sgmcmc.keras.posterior.posterior import Posterior


class Distilled(NamedTuple):
    """One network that predicts much as an ensemble does, and what it loses.

    Attributes:
      model: the network, compiled as the ensemble's model with Adam.
      ensemble: the ensemble's scores on the validation data.
      network: the network's scores there.
    """

    model: keras.Model
    ensemble: Evaluation
    network: Evaluation

    @property
    def nats_lost(self) -> float:
        """By how much the network's log predictive density is below the ensemble's, in nats."""
        return self.ensemble.log_predictive_density - self.network.log_predictive_density

    def __repr__(self) -> str:
        return f"Distilled({self.model.name!r}, nats_lost={self.nats_lost:.4f})"


def distil(
    posterior: Posterior,
    x: Any,
    validation_data: tuple[Any, Any],
    epochs: int,
    batch_size: int,
    seed: Any,
) -> Distilled:
    """Returns the network that `Posterior.distil` trains."""
    model = posterior.model
    checks.integer("epochs", epochs, 1)
    checks.integer("batch_size", batch_size, 1)
    checked_inputs(model, x)
    check_arrays("x", x)
    seed = random.as_seed(random.fresh_seed() if seed is None else seed)
    student = _student(posterior)
    # Draws of the predictive in each epoch, whose mean loss is the crossentropy with it.
    draws = posterior.sample_predictive(x, epochs, seed=seed, batch_size=batch_size, verbose=0)
    order = np.random.default_rng(seed.numpy().view(np.uint32).tolist())
    for epoch in range(epochs):
        rows = order.permutation(len(keras.tree.flatten(x)[0]))
        inputs, labels = keras.tree.map_structure(
            lambda a, rows=rows: np.asarray(a)[rows],
            (x, keras.tree.map_structure(lambda d, e=epoch: d[e], draws)),
        )
        falls = 0.5 * (1 + np.cos(np.pi * epoch / epochs))
        student.optimizer.learning_rate = 1e-3 * falls
        student.fit(inputs, labels, batch_size=batch_size, shuffle=False, verbose=0)
    alone = type(posterior)(
        student, student.trainable_variables, [v.numpy()[None] for v in student.trainable_variables]
    )
    found = [p.evaluate(*validation_data, verbose=0) for p in (posterior, alone)]
    return Distilled(student, *found)


def _student(posterior: Posterior) -> keras.Model:
    """Returns a compiled copy of the model, with the weights of the last sample."""
    model = posterior.model
    _, student, _ = model_copy.copy_of(model, None)
    places = {id(v): i for i, v in enumerate(model.variables)}
    values = [np.asarray(v) for v in model.variables]
    for variable, samples in zip(posterior.variables, posterior.samples, strict=True):
        last = samples[-1]
        values[places[id(variable)]] = last if posterior.num_chains is None else last[0]
    for variable, value in zip(student.variables, values, strict=True):
        variable.assign(value)
    for layer in model_copy.normalizations(student):
        layer.finalize_state()
    student.compile(
        "adam", model.loss, jit_compile=model.jit_compile, run_eagerly=model.run_eagerly
    )
    return student
