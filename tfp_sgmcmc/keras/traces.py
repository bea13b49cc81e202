"""A Keras callback that writes traces, R-hat and predictive entropy for TensorBoard."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfp_sgmcmc.diagnostics.convergence import RunningMoments
from tfp_sgmcmc.internal import checks, replicas
from tfp_sgmcmc.internal.extras import advised
from tfp_sgmcmc.keras.callback import SamplerCallback
from tfp_sgmcmc.keras.chain.chain import Chain
from tfp_sgmcmc.keras.posterior.posterior import Posterior

_PROBE_SAMPLES = 20  # of each chain and epoch, that predict the probe

Weights = Sequence[tuple[str, tuple[int, ...]]]  # paths of variables, with the index of an entry
Entry = tuple[int, tuple[int, ...]]  # number of a variable, and the index


class Traces(keras.callbacks.Callback):
    r"""Writes what a `SamplerCallback` samples for TensorBoard, at the end of each epoch.

    It goes beside `keras.callbacks.TensorBoard` with the same `log_dir`, or alone, and comes after
    the sampler in `callbacks`. Each chain is a run, `chain_0`, `chain_1` and so on, so that
    TensorBoard draws the traces of a weight in all chains in one chart. The run `sampler` has what
    belongs to all chains. The horizontal axis counts the steps of the chain.

    | run | tag | scalar |
    | --- | --- | --- |
    | `chain_c` | `weights/PATH[INDEX]` | a weight's samples, thinned to `most_points` an epoch |
    | `sampler` | `rhat/PATH` | the largest R-hat of the variable's entries so far |
    | `sampler` | `rhat/all` | the largest R-hat of all weights so far |
    | `sampler` | `predictive/entropy` | entropy of the mean probabilities, in nats |
    | `sampler` | `predictive/mutual_information` | the part that is uncertainty about the weights |
    | `sampler` | `predictive/aleatoric`, `predictive/epistemic` | standard deviations of a number |

    R-hat needs `chains` of 2 or more, and a kernel: the chains of an annealed ensemble have no
    law to converge to. The largest is also in the logs, and so in the progress
    bar, as `rhat`. It compares means and variances of whole chains, which
    are updated as samples come and take 16 bytes for each weight of each chain;
    `posterior.summary()` has the stricter R-hat of ranks and half chains. Predictive figures are
    means over the rows of the `probe`, predicted by at most 20 samples of each chain from the epoch
    (see `Posterior.predict`). Nothing is read from the device between the ends of epochs.

    Examples:
      >>> import keras, numpy as np, os, tempfile, tensorflow_probability as tfp
      >>> import tfp_sgmcmc as sgmcmc
      >>> x = np.random.default_rng(0).normal(size=[100, 2]).astype(np.float32)
      >>> model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
      >>> model.compile(loss=keras.losses.BinaryCrossentropy(from_logits=True))
      >>> sampler = sgmcmc.keras.SamplerCallback(
      ...     "SGLD", prior=tfp.distributions.Normal(0., 1.), step_size=1e-3, chains=2, seed=0)
      >>> log_dir = tempfile.mkdtemp()
      >>> traces = sgmcmc.keras.Traces(sampler, log_dir, probe=x[:10])
      >>> _ = model.fit(x, x[:, :1] > 0, epochs=2, batch_size=50, verbose=0,
      ...               callbacks=[sampler, traces])
      >>> sorted(os.listdir(log_dir))
      ['chain_0', 'chain_1', 'sampler']

    Args:
      sampler: the `SamplerCallback` of the same `fit`.
      log_dir: the directory that TensorBoard shows.
      weights: how many weights are traced, taken from all trainable variables in turn; or pairs
        of a variable's path and the index of an entry, such as `[("dense/kernel", (0, 3))]`. The
        beginning of a path may be left out.
      probe: inputs of a few rows, as `Posterior.predict` takes them. None predicts nothing.
      most_points: the largest number of points of a trace in an epoch.

    Raises:
      ModuleNotFoundError: tensorboard is not installed.
      TypeError: `sampler` is no SamplerCallback, or `log_dir` is no path.
      ValueError: numbers out of range. In `fit`: the sampler does not come before in `callbacks`;
        a variable or an entry of it does not exist.
    """

    def __init__(
        self,
        sampler: SamplerCallback,
        log_dir: str | os.PathLike[str],
        *,
        weights: int | Weights = 4,
        probe: Any = None,
        most_points: int = 50,
    ):
        super().__init__()
        _import_writer()  # tell before the fit that it is missing
        if not isinstance(sampler, SamplerCallback):
            raise TypeError(
                "sampler must be the SamplerCallback of the same fit. Received: "
                f"{checks.a_type(sampler)}."
            )
        _check_weights(weights)
        self._sampler, self._log_dir = sampler, checks.path("log_dir", log_dir)
        self._weights, self._probe = weights, probe
        self._most_points = checks.integer("most_points", most_points, 1)
        self._writers: dict[str, Any] = {}
        self._posterior: Posterior | None = None
        self._forget()

    def _forget(self) -> None:
        """Begins with a new chain."""
        self._chain: Chain | None = None
        self._chosen: list[tuple[str, int, tuple[int, ...]]] = []
        self._moments: list[RunningMoments] = []
        self._num_seen = 0

    def on_train_begin(self, logs: Any = None) -> None:
        if not self._sampler.is_in_fit or self._sampler.model is not self.model:
            raise ValueError(
                "The sampler of Traces must come before Traces in the callbacks of fit. Received: "
                "it comes after, or is missing."
            )
        if self.model.built:
            self._choose()
        # Earlier samples were drawn by the process that took them; R-hat counts them.
        self._first_drawn = len(self._sampler.recorder.samples)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        chain = self._sampler.recorder.chain
        if chain is None or not replicas.is_first(self.model.distribute_strategy):
            return
        if chain is not self._chain:  # a pilot has chosen another kernel, or the first epoch
            self._forget()
            self._chain = chain
            self._moments = [RunningMoments() for _ in chain.state.variables]
            self._choose()
        before, num_variables = self._num_seen, len(chain.state.variables)
        drawn: list[tuple[np.ndarray, np.ndarray]] = []  # steps, and [n, chains, weights]
        recent: list[list[np.ndarray]] = []
        step = 0
        for values, steps in self._sampler.recorder.samples.since(before):
            self._num_seen += len(steps)
            skipped = max(0, self._first_drawn - (self._num_seen - len(steps)))
            trained = values[:num_variables]
            by_chain = [x if chain.state.num_chains else x[:, np.newaxis] for x in trained]
            if (chain.state.num_chains or 1) > 1 and not self._sampler.is_annealed:
                for moments, x in zip(self._moments, by_chain, strict=True):
                    moments.add(x)
            picked = [by_chain[i][(slice(None), slice(None), *at)] for _, i, at in self._chosen]
            if picked and skipped < len(steps):
                drawn.append((steps[skipped:], np.stack(picked, axis=-1)[skipped:]))
            if self._probe is not None:
                recent.append([x[-_PROBE_SAMPLES:] for x in values])
            step = int(steps[-1])
        if self._num_seen == before:
            return
        self._write_traces(drawn)
        figures = self._rhat([v.path for v in chain.state.variables])
        if logs is not None and figures:
            logs["rhat"] = figures["rhat/all"]
        if recent:
            figures |= self._predicted(chain, recent)
        for name, value in figures.items():
            self._run("sampler").add_scalar(name, value, step)
        for writer in self._writers.values():
            writer.flush()

    def on_train_end(self, logs: Any = None) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def _run(self, name: str) -> Any:
        if name not in self._writers:
            self._writers[name] = _import_writer()(str(self._log_dir / name))
        return self._writers[name]

    def _write_traces(self, drawn: list[tuple[np.ndarray, np.ndarray]]) -> None:
        if not drawn:
            return
        steps = np.concatenate([s for s, _ in drawn])
        values = np.concatenate([x for _, x in drawn])
        points = np.unique(np.linspace(0, len(steps) - 1, self._most_points).round().astype(int))
        for c in range(values.shape[1]):
            run = self._run(f"chain_{c}")
            for (name, *_), trace in zip(self._chosen, values[points, c].T, strict=True):
                for step, value in zip(steps[points].tolist(), trace.tolist(), strict=True):
                    run.add_scalar(name, value, step)

    def _rhat(self, paths: list[str]) -> dict[str, float]:
        """Returns the largest R-hat of each variable, and of all."""
        worst = {}
        for path, moments in zip(paths, self._moments, strict=True):
            if moments.count > 1 and np.isfinite(found := moments.rhat()).any():
                worst[f"rhat/{path}"] = float(np.nanmax(found))
        return worst and {**worst, "rhat/all": max(worst.values())}

    def _predicted(self, chain: Chain, recent: list[list[np.ndarray]]) -> dict[str, float]:
        """Returns means over the rows of the probe, as the last samples predict it."""
        last = [np.concatenate(parts) for parts in zip(*recent, strict=True)]
        every = -(-len(last[0]) // _PROBE_SAMPLES)
        samples = [x[::every] for x in last]
        if self._posterior is None or self._posterior.model is not self.model:
            recorded, num_chains = chain.rings.recorded, chain.state.num_chains
            self._posterior = Posterior(self.model, recorded, samples, num_chains)
        found = self._posterior.with_samples(samples).predict(self._probe, verbose=0)
        laws = [x for x in _leaves(found.predictive) if x is not None]
        arrays = {
            "entropy": [x for x in _leaves(found.entropy) if x is not None],
            "mutual_information": [x for x in _leaves(found.mutual_information) if x is not None],
            "aleatoric": [x.aleatoric for x in laws],
            "epistemic": [x.epistemic for x in laws],
        }
        return {
            f"predictive/{name}{f'_{i}' if len(several) > 1 else ''}": float(np.mean(array))
            for name, several in arrays.items()
            for i, array in enumerate(several)
        }

    def _choose(self) -> None:
        variables, pairs = list(self.model.trainable_variables), list[Entry]()
        if isinstance(self._weights, int):
            pairs += dict.fromkeys(_spread(variables, self._weights))  # small ones have few entries
        else:
            pairs += [_found(variables, path, tuple(at)) for path, at in self._weights]
        self._chosen = [
            (f"weights/{variables[i].path}{list(at) if at else ''}", i, at) for i, at in pairs
        ]


def _leaves(nest: Any) -> list[Any]:
    """Returns the figures of the outputs, each an array, a tuple of arrays, or None."""
    if isinstance(nest, Mapping):
        return [leaf for part in nest.values() for leaf in _leaves(part)]
    is_nested = isinstance(nest, list) or (isinstance(nest, tuple) and not hasattr(nest, "_fields"))
    return [leaf for part in nest for leaf in _leaves(part)] if is_nested else [nest]


def _import_writer() -> Any:
    """Returns the class that writes files of events.

    Raises:
      ModuleNotFoundError: tensorboard is not installed.
    """
    install = "python -m pip install tensorboard"
    with advised(f"Traces needs tensorboard, which writes the files. Install it by {install}"):
        from tensorboard.summary import Writer
    return Writer


def _check_weights(weights: Any) -> None:
    """Raises TypeError or ValueError unless it is a number or pairs of a path and an index."""
    if isinstance(weights, int | np.integer):
        checks.integer("weights", weights, 0)
        return
    try:
        pairs = [(path, [*map(operator.index, at)]) for path, at in weights]
    except (TypeError, ValueError):
        pairs = [(None, [])]
    if not all(isinstance(path, str) for path, _ in pairs):
        raise TypeError(
            "weights must be an integer, or pairs of a variable's path and the index of an entry, "
            f'such as [("dense/kernel", (0, 3))]. Received: {weights!r}.'
        )


def _spread(variables: list[keras.Variable], count: int) -> Iterator[Entry]:
    """Yields numbers of variables in turn, with indices of entries spread over each."""
    rounds = -(-count // len(variables))
    for k in range(count):
        turn, i = divmod(k, len(variables))
        shape = tuple(variables[i].shape)
        at = int((turn + 0.5) / rounds * math.prod(shape))
        yield i, tuple(int(n) for n in np.unravel_index(at, shape)) if shape else ()


def _found(variables: list[keras.Variable], path: str, at: tuple[int, ...]) -> Entry:
    """Returns the number of the variable with a path, and the index.

    Raises:
      ValueError: no variable or several have the path, or the index is out of range.
    """
    found = [i for i, v in enumerate(variables) if f"/{v.path}".endswith(f"/{path}")]
    if len(found) != 1:
        raise ValueError(
            f"weights must name trainable variables of the model. Received: {path!r}, which "
            f"fits {len(found)} of {', '.join(v.path for v in variables)}."
        )
    shape = tuple(variables[found[0]].shape)
    if len(at) != len(shape) or any(not 0 <= n < size for n, size in zip(at, shape, strict=True)):
        raise ValueError(
            f"weights must have indices of entries. Received: {at} for {path!r} of shape {shape}."
        )
    return found[0], at
