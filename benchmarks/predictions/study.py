"""One split of one data set: trained networks, and the posteriors of `fit`s of the same length."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import tfp_sgmcmc as sgmcmc
from benchmarks.predictions import ensembles
from benchmarks.predictions.ensembles import BATCH, EPOCHS, MEMBERS, PATIENCE
from benchmarks.predictions.side_by_side import Trainer
from benchmarks.predictions.tabular import Split, Table, split

DRAWS = 16  # from the normal distribution of each member's tail
Posterior = sgmcmc.keras.Posterior


class Study:
    """One split of one problem; it makes the posteriors of the methods.

    Attributes:
      data: the split.
      seed: the number of the split.
      seconds: of the processor, for what `once` made before and gave again.
      used: mean epochs of a member of DE5.
    """

    def __init__(self, table: Table, seed: int, units: tuple[int, ...], quick: bool):
        self.data, self.seed, self.seconds = split(table, seed), seed, 0.0
        self._make = functools.partial(ensembles.make_model, self.data, table, units)
        self._epochs, self._made = 2 if quick else EPOCHS, dict[Any, tuple[Any, float]]()
        self._trainer = Trainer(self.model(0), BATCH)
        self._taken = np.zeros(MEMBERS, int)  # epochs of the members of DE5
        self.used = self.members(1.0)[1]

    def model(self, i: int, dropout: float = 0.0) -> keras.Model:
        return self._make([self.seed, i], dropout=dropout)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Returns `make()`, which is called once for each key."""
        if key in self._made:
            found, seconds = self._made[key]
            self.seconds += seconds
            return found
        start = time.process_time() + self.seconds
        found = make()
        self._made[key] = found, time.process_time() + self.seconds - start
        return found

    def members(self, share: float) -> tuple[list[np.ndarray], float]:
        """Returns weights and mean epochs of members that have a share of the epochs."""

        def make() -> tuple[list[np.ndarray], float]:
            limit = self._epochs if share == 1.0 else max(1, round(share * self.used))
            weights, taken = train(self._trainer, self._starts(), self.data, self.seed, limit)
            if share == 1.0:
                self._taken = taken
            return weights, float(taken.mean())

        return self.once(share, make)

    def first(self) -> list[np.ndarray]:
        """Returns the weights of one member, `[1, ...]`, for a fifth of the seconds of all."""
        before = self.seconds
        weights = self.members(1.0)[0]
        self.seconds = before + (self.seconds - before) / MEMBERS
        return [w[:1] for w in weights]

    def refitted(self) -> tuple[list[np.ndarray], float]:
        """Returns weights and mean epochs of members that are trained anew with all rows.

        Each takes as many epochs as its weights in DE5 had.
        """

        def make() -> tuple[list[np.ndarray], float]:
            self.members(1.0)
            best = np.where(self._taken < self._epochs, self._taken - PATIENCE, self._taken)
            kept = self.model(0).get_weights()
            kept = [np.stack([w] * MEMBERS) for w in kept]
            epoch = 0

            def visit(now: list[Any]) -> None:
                nonlocal epoch
                epoch += 1
                for old, new in zip(kept, now, strict=True):
                    old[best == epoch] = new.numpy()[best == epoch]

            rows = self.data.x, self.data.y
            checked = self.data.x[:1], self.data.y[:1]  # whose loss decides on nothing
            self._trainer(
                self._starts(), rows, checked, int(best.max()), int(best.max()) + 1,
                [self.seed, MEMBERS], visit,
            )  # fmt: skip
            return kept, float(best.mean())

        return self.once("refitted", make)

    def visited(self, share: float, rate: float) -> list[np.ndarray]:
        """Returns the weights of members after each epoch of a tail, `[epochs, members, ...]`."""

        def make() -> list[np.ndarray]:
            weights, used = self.members(share)
            found: list[list[np.ndarray]] = []
            train(
                Trainer(self.model(0), BATCH, rate),
                [[w[i] for w in weights] for i in range(MEMBERS)],
                self.data, self.seed, max(1, round(self.used - used)),
                lambda now: found.append([w.numpy() for w in now]),
            )  # fmt: skip
            return [np.stack(values) for values in zip(*found, strict=True)]

        return self.once((share, rate), make)

    def tails(self, kind: str, share: float = 0.75, rate: float = 1e-3) -> Posterior:
        """Returns the weights that members visit in their tails, their means, or draws."""
        found = self.visited(share, rate)
        if kind == "SWA":
            found = [x.mean(axis=0, keepdims=True) for x in found]
        elif kind == "SWAG":
            rng = np.random.default_rng(self.seed)
            draws = [rng.normal(size=[DRAWS, *x.shape[1:]]).astype(np.float32) for x in found]
            found = [x.mean(0) + x.std(0) * z for x, z in zip(found, draws, strict=True)]
        return self.posterior([x.reshape(-1, *x.shape[2:]) for x in found])

    def posterior(self, weights: list[np.ndarray]) -> Posterior:
        model = self.model(0)
        return Posterior(model, model.weights, weights)

    def passes(self, used: float) -> int:
        """Returns the epochs of all rows that take as long as so many without validation rows."""
        return max(1, round(used * (1 - self.data.num_validation / len(self.data.x))))

    def sample(self, used: float, kernel: Any = None, **options: Any) -> Posterior:
        """Returns the posterior of a `fit` in as many steps as `used` epochs of a member."""
        return fitted(self.model(MEMBERS), self.data, self.passes(used), kernel,
                      seed=self.seed, **options)  # fmt: skip

    def _starts(self) -> list[list[np.ndarray]]:
        return [self.model(i).get_weights() for i in range(MEMBERS)]


def fitted(model: keras.Model, data: Split, epochs: int, kernel: Any = None, **options: Any) -> Any:
    """Returns the posterior of a `fit` with all rows."""
    sampler = sgmcmc.keras.SamplerCallback(kernel, **options)
    model.fit(data.x, data.y, epochs=epochs, batch_size=BATCH, callbacks=[sampler], verbose=0)
    return sampler.posterior


def train(
    trainer: Trainer, starts: Any, data: Split, seed: int, epochs: int, visit: Any = None,
    patience: int = PATIENCE,
) -> tuple[list[np.ndarray], np.ndarray]:  # fmt: skip
    """Returns weights and epochs after early stopping, or after all epochs if these are visited."""
    n, patience = data.num_validation, patience if visit is None else epochs + 1
    rows = (data.x[n:], data.y[n:]), (data.x[:n], data.y[:n])
    return trainer(starts, *rows, epochs, patience, [seed, MEMBERS], visit)
