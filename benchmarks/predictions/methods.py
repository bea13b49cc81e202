"""The methods: each takes a network and passes over the data, and leaves sets of weights."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

import tfp_sgmcmc as sgmcmc
from benchmarks.predictions.problems import Data, Problem, make_model
from benchmarks.predictions.scores import Predicted

MEMBERS, KEPT, DROPOUT, CYCLES = 5, 30, 0.2, 4
HALVINGS = 8  # of the step size of a chain that does not stay finite
ROWS = 1000  # evaluated at once
PER_CALL = 200  # steps
MOMENTUM_STEPS = 10  # in which friction forgets a momentum


class Result(NamedTuple):
    """The outputs by a method's sets of weights, with what they cost.

    Attributes:
      method: its name.
      predicted: outputs for the test inputs.
      passes: passes over the data.
      seconds: of the processor.
      megabytes: of the weights that predictions need.
    """

    method: str
    predicted: Predicted
    passes: float
    seconds: float
    megabytes: float


class Trainer:
    """Trains and samples a network from the weights that a seed gives.

    One model serves all methods, so that it is compiled once.
    """

    def __init__(self, problem: Problem, data: Data, epochs: int):
        self.problem, self.data, self.epochs = problem, data, epochs
        self.model = make_model(problem, data)
        self.num_steps = len(data.x) // problem.batch_size  # of a pass

    def train(self, seed: int, epochs: int, callbacks: Any = (), dropout: bool = False) -> Any:
        """Trains a network anew by Adam; returns its model."""
        keras.utils.set_random_seed(seed)
        fresh = make_model(self.problem, self.data, DROPOUT if dropout else 0.0)
        model = fresh if dropout else self.model
        model.set_weights(fresh.get_weights())
        for variable in model.optimizer.variables:
            if "learning_rate" not in variable.path:
                variable.assign(keras.ops.zeros_like(variable))
        model.fit(
            self.data.x, self.data.y, batch_size=self.problem.batch_size, epochs=epochs, verbose=0,
            callbacks=[*callbacks],
        )  # fmt: skip
        return model

    def posterior(self, sets: list[list[np.ndarray]]) -> sgmcmc.keras.Posterior:
        """Returns sets of weights as a posterior."""
        stacked = [np.stack(values) for values in zip(*sets, strict=True)]
        return sgmcmc.keras.Posterior(self.model, self.model.trainable_variables, stacked)

    def sample(
        self,
        make_kernel: Callable[[float, Any], Any],
        passes: int,
        seed: int,
        num_chains: int | None = None,
        initial_states: Any = "model",
        keep: Any = None,
    ) -> sgmcmc.keras.Posterior:
        """Samples from where the model is; the first quarter of the steps is burn-in.

        `make_kernel` takes a factor of the step size, which is halved from 1 until the chain
        stays finite, and a target.

        Raises:
          NonFiniteChainError: no chain stays finite.
        """
        num_steps = passes * self.num_steps
        burnin = 0 if keep else num_steps // 4
        num_kept = KEPT // (num_chains or 1) * (2 if keep else 1)
        between = max((num_steps - burnin) // num_kept, 1) - 1
        start = self.model.get_weights()
        for halvings in range(HALVINGS + 1):
            self.model.set_weights(start)  # a chain that fails leaves its last sample
            sampler = sgmcmc.keras.SamplerCallback(
                functools.partial(make_kernel, 2.0**-halvings),
                prior=None,
                collect=sgmcmc.keras.Collect(burnin, between, keep=keep),
                chains=num_chains and sgmcmc.keras.Chains(num_chains, initial_states),
                seed=seed,
                num_examples=len(self.data.x),
            )  # fmt: skip
            data = sampler.resident(
                self.data.x, self.data.y, batch_size=self.problem.batch_size,
                steps_per_call=min(PER_CALL, num_steps), steps_per_epoch=num_steps,
            )  # fmt: skip
            try:
                self.model.fit(data, epochs=1, verbose=0, callbacks=[sampler])
                break
            except sgmcmc.diagnostics.NonFiniteChainError:
                if halvings == HALVINGS:
                    raise
                print(f"A chain is not finite at {2.0**-halvings:g} of its step size.", flush=True)
        return sampler.posterior

    def anneal(self, seed: int, epochs: int) -> sgmcmc.keras.Posterior:
        """Returns the annealed ensemble of a network without penalties, which has its own prior."""
        keras.utils.set_random_seed(seed)
        model = make_model(self.problem, self.data, is_penalized=False)
        sampler = sgmcmc.keras.SamplerCallback(seed=seed)
        model.fit(
            self.data.x, self.data.y, batch_size=self.problem.batch_size, epochs=epochs, verbose=0,
            callbacks=[sampler],
        )  # fmt: skip
        return sampler.posterior

    def predicted(self, posterior: sgmcmc.keras.Posterior) -> Predicted:
        """Returns the outputs of a posterior."""
        shape = (-1, self.problem.num_outputs)

        def outputs(x: np.ndarray | None) -> np.ndarray | None:
            if x is None:
                return None
            found = posterior.outputs(x, ROWS, activation=None, verbose=0)
            return np.reshape(found, (-1, len(x), shape[1]))

        test = outputs(self.data.x_test)
        assert test is not None
        weights = np.ones(len(posterior)) if posterior.weights is None else posterior.weights
        weights = np.repeat(weights, posterior.num_chains or 1)
        return Predicted(test, outputs(self.data.x_out), weights / weights.sum())

    def with_dropout(self, model: keras.Model) -> Predicted:
        """Returns the outputs of a model whose dropout is on."""

        def outputs(x: np.ndarray | None) -> np.ndarray | None:
            if x is None:
                return None
            return np.stack([np.asarray(model(x, training=True)) for _ in range(KEPT)])

        test = outputs(self.data.x_test)
        assert test is not None
        return Predicted(test, outputs(self.data.x_out), np.full(KEPT, 1 / KEPT))


def run(trainer: Trainer, seed: int) -> list[Result]:
    """Runs all methods; the members of an ensemble have the seeds `MEMBERS * seed + 0, 1, ...`."""
    results: list[Result] = []
    epochs, all_epochs = trainer.epochs, MEMBERS * trainer.epochs
    step, h = trainer.problem.step, trainer.problem.momentum_step
    friction = 1 / (MOMENTUM_STEPS * h)
    seeds = [MEMBERS * seed + i for i in range(MEMBERS)]
    clock = time.process_time
    bytes_of_set = sum(4 * w.size for w in trainer.model.get_weights())

    def record(
        method: str, predicted: Predicted, passes: float, start: float, sets: int | None = None
    ) -> None:
        size = bytes_of_set * (sets or len(predicted.shares)) / 1e6
        results.append(Result(method, predicted, passes, clock() - start, size))

    def trained(seed: int, epochs: int) -> list[np.ndarray]:
        return trainer.train(seed, epochs).get_weights()

    start = clock()
    first = trained(seeds[0], epochs)
    by_one = trainer.posterior([first])
    record("Adam", trainer.predicted(by_one), epochs, start)
    adam = results[-1].seconds

    start = clock() - adam
    members = [first, *(trained(s, epochs) for s in seeds[1:])]
    record("deep ensemble", trainer.predicted(trainer.posterior(members)), all_epochs, start)

    start = clock()
    longer = trained(seeds[0], all_epochs)
    record("Adam, longer", trainer.predicted(trainer.posterior([longer])), all_epochs, start)

    start = clock()
    swag = sgmcmc.keras.SWAG(burn_in=epochs)
    trainer.train(seeds[0], all_epochs, [swag])
    record("SWAG", trainer.predicted(swag.posterior(KEPT, seed=seed)), all_epochs, start)

    start = clock()
    dropped = trainer.train(seeds[0], all_epochs, dropout=True)
    record("dropout", trainer.with_dropout(dropped), all_epochs, start, sets=1)

    start = clock() - adam
    trainer.model.set_weights(first)
    laplace = sgmcmc.keras.last_layer_laplace(
        trainer.model, trainer.data.x, trainer.data.y, None, num_samples=KEPT, seed=seed
    )
    record("last-layer Laplace", trainer.predicted(laplace), epochs + 1, start)

    start = clock()
    annealed = trainer.anneal(seed, epochs)
    record("annealed", trainer.predicted(annealed), all_epochs, start)

    passes = all_epochs - epochs
    num_steps = passes * trainer.num_steps

    def schedule(scale: float) -> sgmcmc.schedules.Cyclical:
        return sgmcmc.schedules.Cyclical(2 * h * scale, num_steps, CYCLES, exploration_ratio=0.5)

    def sgld(scale: float, target: Any) -> Any:
        return sgmcmc.SGLD(target, scale * step)

    def sghmc(scale: float, target: Any) -> Any:
        return sgmcmc.SGHMC(target, scale * h, friction / scale)

    def cyclical(scale: float, target: Any) -> Any:
        return sgmcmc.SGHMC(target, schedule(scale), friction / scale)

    kernels = {"SGLD": sgld, "SGHMC": sghmc, "cyclical SGHMC": cyclical}
    for method, make_kernel in kernels.items():
        start = clock() - adam
        trainer.model.set_weights(first)
        keep = schedule(1.0).is_sampling if make_kernel is cyclical else None
        posterior = trainer.sample(make_kernel, passes, seed, keep=keep)
        record(method, trainer.predicted(posterior), all_epochs, start)

    start = clock()
    half = epochs // 2
    starts = trainer.posterior([trained(s, half) for s in seeds])
    posterior = trainer.sample(sghmc, epochs - half, seed, MEMBERS, starts)
    record("warm-started SGHMC", trainer.predicted(posterior), all_epochs, start)
    return results
