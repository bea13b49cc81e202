"""The methods of the comparison: each makes predictions for one split of one data set."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.predictions.ensembles import BATCH, MEMBERS, PATIENCE
from benchmarks.predictions.scores import Predicted
from benchmarks.predictions.side_by_side import Trainer
from benchmarks.predictions.study import Posterior, Study, train

KEPT, DROPOUT = 30, 0.2
HALVINGS = 8  # of the step size of a chain that does not stay finite
ROWS = 1000  # evaluated at once
PER_CALL, EPOCHS = 200, 16  # steps of a call, parts of an automatic fit
_KERNELS: dict[str, Callable[[Any, Any], Any]] = {
    "SGLD": lambda target, step: sgmcmc.SGLD(target, step.step_size),
    "UnderdampedLangevin": lambda target, step: sgmcmc.UnderdampedLangevin(
        target, step.step_size, step.friction
    ),
}


class Result(NamedTuple):
    """The outputs by a method's sets of weights.

    Attributes:
      predicted: outputs for the test inputs.
      passes: passes over the rows that are not test data.
      num_sets: the number of sets of weights that predictions need.
    """

    predicted: Predicted
    passes: float
    num_sets: int


def members(study: Study, count: int) -> Result:
    """Returns the mean prediction of so many of the early-stopped networks."""
    weights = [w[:count] for w in (study.members(1.0)[0] if count > 1 else study.first())]
    return result(study, study.posterior(weights), count * training_passes(study, study.used))


def refitted(study: Study) -> Result:
    """Returns that of five networks trained anew with all rows, for as long as was best before."""
    weights, epochs = study.refitted()
    passes = MEMBERS * (training_passes(study, study.used) + epochs)
    return result(study, study.posterior(weights), passes)


def dropout(study: Study) -> Result:
    """Returns that of a network trained with dropout, which stays on for predictions."""
    model = study.model(0, DROPOUT)
    pair = [model.get_weights()] * 2  # side by side, of which one is taken
    weights, taken = train(
        Trainer(model, BATCH), pair, study.data, study.seed, round(MEMBERS * study.used),
        patience=MEMBERS * PATIENCE,
    )  # fmt: skip
    model.set_weights([w[0] for w in weights])

    def outputs(x: np.ndarray) -> np.ndarray:
        return np.stack([np.asarray(model(x, training=True)) for _ in range(KEPT)])

    found = Predicted(
        outputs(study.data.x_test), outputs(study.data.x_out), np.full(KEPT, 1 / KEPT)
    )
    return Result(found, training_passes(study, float(taken[0])), 1)


def laplace(study: Study) -> Result:
    """Returns that of draws of the last layer by Laplace's approximation at a trained network."""
    model, data = study.model(0), study.data
    model.set_weights([w[0] for w in study.first()])
    draws = sgmcmc.keras.last_layer_laplace(
        model, data.x, data.y, prior(model), num_samples=KEPT, seed=study.seed
    )
    return result(study, draws, training_passes(study, study.used) + 1)


def annealed(study: Study) -> Result:
    """Returns that of `SamplerCallback()`."""
    return result(study, study.sample(study.used), MEMBERS * study.passes(study.used))


def automatic(study: Study) -> Result:
    """Returns that of `SamplerCallback("posterior")` with a prior, from a network's first weights.

    Half of the steps are burn-in.
    """
    model, passes = study.model(0), study.passes(MEMBERS * study.used)
    steps = passes * (len(study.data.x) // BATCH)
    found = sample(study, model, "posterior", steps, EPOCHS, prior=prior(model))
    return result(study, found, passes)


def at_temperature_1(study: Study, name: str) -> Result:
    """Returns that of a kernel from a trained network, with the step that `find_step_size` gives.

    A quarter of the other passes is burn-in. The step is halved until the chain stays finite.
    """
    model, data = study.model(0), study.data
    start, law = [w[0] for w in study.first()], prior(model)
    model.set_weights(start)
    found = sgmcmc.keras.find_step_size(
        model, data.x, data.y, prior=law, batch_size=BATCH, kernel=name, verbose=0
    )
    passes = study.passes((MEMBERS - 1) * study.used)
    steps = passes * (len(data.x) // BATCH)
    collect = sgmcmc.keras.Collect(steps // 4, max(0, 3 * steps // (4 * KEPT) - 1))
    for halvings in range(HALVINGS + 1):
        model.set_weights(start)  # a chain that fails leaves its last sample
        step = found._replace(step_size=found.step_size * 2.0**-halvings)
        try:
            posterior = sample(
                study, model, lambda target, step=step: _KERNELS[name](target, step), steps,
                prior=law, collect=collect,
            )  # fmt: skip
            break
        except sgmcmc.diagnostics.NonFiniteChainError:
            if halvings == HALVINGS:
                raise
            print(f"A chain is not finite at {2.0**-halvings:g} of its step size.", flush=True)
    return result(study, posterior, training_passes(study, study.used) + passes)


METHODS: dict[str, Callable[[Study], Result]] = {
    "Adam": lambda study: members(study, 1),
    "DE5": lambda study: members(study, MEMBERS),
    "DE5, all rows": refitted,
    "dropout": dropout,
    "SWAG": lambda study: result(
        study, study.tails("SWAG"), MEMBERS * training_passes(study, study.used)
    ),
    "last-layer Laplace": laplace,
    "annealed": annealed,
    "SGLD": lambda study: at_temperature_1(study, "SGLD"),
    "underdamped Langevin": lambda study: at_temperature_1(study, "UnderdampedLangevin"),
    "posterior": automatic,
}


def training_passes(study: Study, epochs: float) -> float:
    """Returns epochs of the rows without validation rows, as passes over all that are no test."""
    return epochs * (1 - study.data.num_validation / len(study.data.x))


def prior(model: keras.Model) -> dict[str, Any]:
    """Returns N(0, 10 / inputs) for kernels, and N(0, 1) for biases."""
    return {
        v.path: tfp.distributions.Normal(
            0.0, (10 / math.prod(v.shape[:-1])) ** 0.5 if len(v.shape) > 1 else 1.0
        )
        for v in model.trainable_variables
    }


def sample(
    study: Study, model: keras.Model, kernel: Any, steps: int, epochs: int = 1, **options: Any
) -> Posterior:
    """Returns the posterior of a `fit` whose data stay on the device, in epochs of equal length."""
    data, count = study.data, max(1, steps // epochs)
    sampler = sgmcmc.keras.SamplerCallback(kernel, seed=study.seed, **options)
    resident = sampler.resident(
        data.x, data.y, batch_size=BATCH, reshuffle="epoch",
        steps_per_call=min(PER_CALL, count), steps_per_epoch=count,
    )  # fmt: skip
    model.fit(resident, epochs=epochs, verbose=0, callbacks=[sampler])
    return sampler.posterior


def result(study: Study, posterior: Posterior, passes: float) -> Result:
    """Returns the outputs of a posterior."""
    data = study.data

    def outputs(x: np.ndarray) -> np.ndarray:
        found = posterior.outputs(x, ROWS, activation=None, verbose=0)
        return np.reshape(found, (-1, len(x), found.shape[-1]))

    weights = np.ones(len(posterior)) if posterior.weights is None else posterior.weights
    weights = np.repeat(weights, posterior.num_chains or 1)
    found = Predicted(outputs(data.x_test), outputs(data.x_out), weights / weights.sum())
    return Result(found, passes, len(weights))
