"""The draws of a run, in memory or in a directory, and its result."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import tree

from tfp_sgmcmc import random
from tfp_sgmcmc.diagnostics.draw_summary import DrawSummary, plot_marginals, plot_traces
from tfp_sgmcmc.diagnostics.leave_one_out import LeaveOneOut, leave_one_out
from tfp_sgmcmc.internal import extras, memory
from tfp_sgmcmc.internal.checks import integer
from tfp_sgmcmc.internal.nest import dotted_names
from tfp_sgmcmc.internal.tables import Table, shown_by
from tfp_sgmcmc.sampling import draw_functions, result_table
from tfp_sgmcmc.sampling.loop import Position, as_tensors
from tfp_sgmcmc.storage.directory import RunDirectory
from tfp_sgmcmc.storage.npz import numpy_dtype
from tfp_sgmcmc.storage.stored_draws import Variable
from tfp_sgmcmc.storage.zarr_store import LIBRARY

Describe = Callable[[Any], dict[str, Any]]


class Timings(NamedTuple):
    """The times of a run.

    Attributes:
      compile_seconds: time for tracing and compiling.
      seconds: time for taking steps and keeping draws.
      steps_per_second: steps a second of this call; NaN without a step.
    """

    compile_seconds: float
    seconds: float
    steps_per_second: float


class Explanation(tuple[str, ...]):
    """Sentences, of which `print` shows one a line."""

    def __str__(self) -> str:
        return "\n".join(self)


class Flag(str):
    """A sentence about the draws of a run: a cause and a remedy, with a grade.

    Attributes:
      grade: "note" for what is unusual, was checked, and is fine; "doubt" for what could not be
        checked; "wrong" for a check that failed.
      cause: what was found.
      remedy: what to do, or nothing.
    """

    grade: Literal["note", "doubt", "wrong"]
    cause: str
    remedy: str

    def __new__(
        cls, grade: Literal["note", "doubt", "wrong"], cause: str, remedy: str = ""
    ) -> Flag:
        flag = super().__new__(cls, f"{cause} {remedy}".rstrip())
        flag.grade, flag.cause, flag.remedy = grade, cause, remedy
        return flag

    def __reduce__(self) -> tuple[type[Flag], tuple[str, str, str]]:
        return Flag, (self.grade, self.cause, self.remedy)


class Kept(NamedTuple):
    """The group, the name, and the form of one draw of an array of draws."""

    group: str
    name: str
    variable: Variable


def kept_arrays(kept: Any, chain_shape: tuple[int, ...]) -> list[Kept]:
    """Returns names and forms for the state, trace and step size that a `Loop` keeps.

    An array whose shape begins with the shape of the chains has a value for each chain.
    """
    states, trace, step_size = kept
    stats, sizes = variable_names(trace, "trace"), variable_names(step_size, "step_size")
    sizes = [f"{name}.used" if name in stats else name for name in sizes]
    groups = ["posterior"] * len(tree.flatten(states)) + ["sample_stats"] * len(stats + sizes)
    names = [*variable_names(states, "state"), *stats, *sizes]
    ndims = len(chain_shape)
    found = []
    for group, name, spec in zip(groups, names, tree.flatten(kept), strict=True):
        shape = tuple(spec.shape)
        chain_ndims = ndims if shape[:ndims] == chain_shape else None
        found.append(Kept(group, name, Variable(shape, spec.dtype.name, chain_ndims)))
    return found


def variable_names(nest: Any, root: str) -> list[str]:
    """Returns names that ArviZ and zarr allow for the leaves, in the order of `tf.nest.flatten`.

    >>> variable_names({"w": [1, 2], "b": {"x/y": 3}}, "state")
    ['b.x.y', 'w.0', 'w.1']
    >>> variable_names([1, 2], "state"), variable_names(1, "state")
    (['state.0', 'state.1'], ['state'])

    Raises:
      ValueError: two leaves have the same name.
    """
    names = dotted_names(nest, root)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Two arrays are named {twice[0]!r}. Give the parts other keys.")
    return names


@dataclasses.dataclass(frozen=True, repr=False)
class SampleResult:
    """The draws of a run, and its settings, times and flags.

    Attributes:
      states: the draws, in the structure of the state, `[num_results, chains..., event...]`: NumPy
        arrays, or with a directory arrays that read only what is indexed (`np.asarray` reads all).
      trace: what `trace_fn` returned, in arrays as in `states`; None without `trace_fn`.
      weights: step sizes, for averages weighted by them, `[num_results, ...]`; None if the kernel's
        results have no `step_size`.
      is_complete: False if Ctrl-C ended the run before all draws were taken.
      final_state: the chain's last state. If the run's directory holds more than `num_results`, it
        is the state after all of them, and not the last one of `states`.
      final_kernel_results: the kernel's last results.
      timings: the times that the call took.
      directory: the directory with the draws, or None.
      kernel: the kernel of the run; None in a pickled copy, as is `bijector`.
      seed: two integers, with which the run can be repeated.
      bijector: maps the kernel's states to the draws of `sample`, which are constrained if the
        target has a bijector. None for `sample_chain`, which keeps the states.
      choices: the settings that `sample` chose, which can be printed; None for `sample_chain`.
      explanation: what `sample` did and why, a sentence a line; empty for `sample_chain`.
      flags: sentences about the draws, each a `Flag` with a grade: "note", "doubt" or "wrong".
      certificate: how far the draws are from the posterior, by importance weights (see `certify`);
        None where that would take long, and for `sample_chain`.
    """

    states: Any
    trace: Any
    weights: Any
    is_complete: bool
    final_state: Any
    final_kernel_results: Any
    timings: Timings
    directory: Path | None
    kernel: Any
    seed: tuple[int, int]
    _kept: Sequence[Kept]
    _attributes: dict[str, Any]
    bijector: Any = None
    choices: Any = None
    explanation: Explanation = Explanation()
    flags: tuple[Flag, ...] = ()
    certificate: Any = None

    def __copy__(self) -> Self:
        return dataclasses.replace(self)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out what holds the data and functions, which pickle often cannot store."""
        return {**vars(self), "kernel": None, "bijector": None}

    @property
    def is_trusted(self) -> bool | None:
        """Whether no check of `sample` failed; None for `sample_chain`."""
        return None if self.choices is None else all(f.grade != "wrong" for f in self.flags)

    @property
    def has_parameters(self) -> bool:
        """Whether the draws are the model's parameters, as from `sample`, and not states.

        A copy may lack the bijector.
        """
        return self.bijector is not None or self.choices is not None

    @property
    def num_results(self) -> int:
        return len(tree.flatten(self.states)[0])

    __repr__, _repr_html_ = shown_by(lambda self: self._table())

    def _table(self) -> Table:
        """Returns what `print` and notebooks show."""
        chains = result_table.num_chains_of(self)
        of_chains = "one chain" if chains == 1 else f"each of {chains} chains"
        return result_table.table_of(self, result_table.title_of(self, "SampleResult", of_chains))

    def summary(self, most_entries: int = 1000) -> DrawSummary:
        """Returns mean, sd, quantiles, ESS, R-hat and MCSE of single entries of the state.

        `print(result)` shows the first 20 of them. Draws on disk are read in blocks.

        Examples:
          >>> import tensorflow as tf, tensorflow_probability as tfp, tfp_sgmcmc as sgmcmc
          >>> hmc = tfp.mcmc.HamiltonianMonteCarlo(lambda x: -0.5 * tf.reduce_sum(x**2, -1), 0.8, 2)
          >>> result = sgmcmc.sample_chain(hmc, tf.zeros([4, 3]), 500, seed=0, progress_bar=False)
          >>> found = result.summary()
          >>> found.names, bool(abs(found.mean).max() < 5 * found.mcse.max())
          (('state[0]', 'state[1]', 'state[2]'), True)

        Args:
          most_entries: the largest number of entries of each parameter, taken evenly from all.
        """
        return result_table.summary_of(self, integer("most_entries", most_entries, 1))

    def map(self, fn: Callable[..., Any]) -> SampleResult:
        """Returns generated quantities: the values of a function at all draws.

        The result prints their table, and has `summary`, `plot` and `to_inference_data`.

        Examples:
          >>> import tensorflow as tf, tensorflow_probability as tfp, tfp_sgmcmc as sgmcmc
          >>> hmc = tfp.mcmc.HamiltonianMonteCarlo(lambda x: -0.5 * tf.reduce_sum(x**2, -1), 0.8, 2)
          >>> result = sgmcmc.sample_chain(hmc, tf.zeros([4, 3]), 500, seed=0, progress_bar=False)
          >>> ratio = result.map(lambda x: {"radius": tf.norm(x, axis=-1)})
          >>> ratio.states["radius"].shape, ratio.summary().names
          ((500, 4), ('radius',))

        Args:
          fn: `fn(*state_parts)`, with parts `[draws, chains..., event...]` (a dict's parts by
            name), returns a nest of arrays with the same leading axes.

        Raises:
          ValueError: the values have other leading axes.
        """
        values = draw_functions.map_draws(self, fn)
        chain_shape = self._kept[0].variable.chain_shape
        named = zip(variable_names(values, "value"), tree.flatten(values), strict=True)
        ndims = None if chain_shape is None else len(chain_shape)
        kept = [
            Kept("posterior", name, Variable(x.shape[1:], x.dtype.name, ndims)) for name, x in named
        ]
        num_weights = 0 if self.weights is None else len(tree.flatten(self.weights))
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(SampleResult)}
        fields |= {"states": values, "trace": None, "final_state": None, "kernel": None}
        fields |= {"final_kernel_results": None, "directory": None, "bijector": None}
        fields["certificate"] = None
        fields["_kept"] = [*kept, *self._kept[len(self._kept) - num_weights :]]
        return SampleResult(**fields)

    def log_likelihood(self, rows: Any = None, *, target: Any = None) -> np.ndarray:
        """Returns the log likelihood of rows of the data at all draws, `[draws, chains..., rows]`.

        It is evaluated in blocks of rows and draws.

        Args:
          rows: numbers of the rows, or a slice; None takes all.
          target: a target with the rows, in place of the kernel's: for a run that was loaded, for
            other data, or for a result of `sample_chain` without one.

        Raises:
          ValueError: neither the kernel nor `target` has a log likelihood of rows.
          MemoryError: the result would not fit into memory; take some of the rows at a time.
        """
        return draw_functions.log_likelihoods(self, target, rows)

    def loo(self, num_rows: int = 1000, *, target: Any = None, seed: Any = 0) -> LeaveOneOut:
        r"""Estimates how well the model predicts a row that it has not seen.

        Leave-one-out cross-validation by Pareto-smoothed importance sampling. Of more than
        `num_rows` rows, that many are drawn at random, and the log likelihood at the posterior mean
        stands in for the others. The estimate has no bias for that, and its standard error says
        what it costs (the difference estimator of Magnusson et al. 2020). With a million rows it
        takes one pass over the data at a single state, and all draws at `num_rows` rows.

        Examples:
          >>> import numpy as np, tensorflow as tf, tensorflow_probability as tfp
          >>> import tfp_sgmcmc as sgmcmc
          >>> tfd = tfp.distributions
          >>> x = np.random.default_rng(0).normal(2., 1., size=[10_000]).astype(np.float32)
          >>> target = sgmcmc.MinibatchLogProb(
          ...     tfd.Normal(0., 10.).log_prob,
          ...     lambda t, batch: tfd.Normal(t[..., None], 1.).log_prob(batch),
          ...     data=x, batch_size=50)
          >>> hmc = tfp.mcmc.HamiltonianMonteCarlo(target, 0.005, 3)
          >>> result = sgmcmc.sample_chain(hmc, 2 * tf.ones([4]), 500, seed=0, progress_bar=False)
          >>> loo = result.loo(num_rows=500)
          >>> exact = tfd.Normal((x.sum() - x) / 9999., (1 + 1 / 9999.) ** 0.5).log_prob(x)
          >>> bool(abs(loo.elpd - np.sum(exact)) < 5 * loo.subsampling_error + 0.5)
          True

        Args:
          num_rows: the number of rows to leave out, in turn.
          target: see `log_likelihood`.
          seed: the seed of the rows. Models are compared on the same rows.

        Raises:
          ValueError: neither the kernel nor `target` has a log likelihood of rows.
          ModuleNotFoundError: ArviZ is not installed.
        """
        integer("num_rows", num_rows, 2)
        key = random.as_seed(seed).numpy().astype(np.uint32)
        extras.import_arviz("loo")
        likelihood = draw_functions.RowLikelihood(self, target)
        states = likelihood.unconstrained(draw_functions.flat_draws(self))
        total = likelihood.num_examples
        rows = np.arange(total)
        if num_rows < total:
            chosen = np.random.default_rng(key).choice(total, num_rows, False)
            rows = np.sort(chosen)
        center, surrogate = likelihood.mean_state(states), list[np.ndarray]()
        taken = likelihood.rows(
            rows, lambda batch, n: surrogate.append(likelihood.at(center, batch, n)[0])
        )
        found = likelihood.at(states, taken, len(rows))
        return leave_one_out(
            found,
            rows,
            np.concatenate(surrogate).astype(np.float64),
            result_table.efficiency_of(self),
        )

    def predict(
        self, fn: Callable[..., Any], data: Any, quantiles: Sequence[float] = (0.05, 0.95)
    ) -> draw_functions.DrawPredictions:
        """Returns mean, standard deviation and quantiles over draws of a function of rows.

        Examples:
          With a result for weights w, `[draws, chains, D]`, and features x, `[rows, D]`:

              result.predict(lambda w, x: tf.sigmoid(tf.linalg.matmul(w, x, transpose_b=True)), x)

        Args:
          fn: `fn(*state_parts, batch)` with parts `[draws, event...]` of all chains, and some rows,
            returns `[draws, rows, ...]`. A dict's parts go by name, and the rows as `batch`.
          data: a nest of arrays `[rows, ...]`.
          quantiles: levels in 0 .. 1.

        Raises:
          ValueError: the values have other leading axes.
        """
        return draw_functions.predict(self, fn, data, quantiles)

    def plot(self, num_entries: int = 4) -> Any:
        """Returns a `matplotlib.figure.Figure` of traces and ranks of the entries that mix worst.

        Ranks are among the draws of all chains. Where chains agree, each has them evenly.

        Args:
          num_entries: the number of entries to show, of at most 200 of each parameter.

        Raises:
          ModuleNotFoundError: matplotlib is not installed.
        """
        integer("num_entries", num_entries, 1)
        extras.import_figure()
        return plot_traces(*result_table.worst_entries_of(self, num_entries))

    def plot_marginals(self, reference: Any = None, num_entries: int = 6) -> Any:
        """Returns a `matplotlib.figure.Figure` of histograms of the first entries.

        Args:
          reference: another result, or arrays `[draws, chains, event...]` by parameter name, to
            show behind the draws; or None.
          num_entries: the number of entries to show.

        Raises:
          ModuleNotFoundError: matplotlib is not installed.
          TypeError: `reference` is neither a result nor a dict.
        """
        integer("num_entries", num_entries, 1)
        extras.import_figure("plot_marginals")
        return plot_marginals(*result_table.marginals_of(self, reference, num_entries))

    def _leaves(self) -> list[Any]:
        """Returns all arrays, in the order of `_kept`."""
        trace = () if self.trace is None else self.trace
        weights = () if self.weights is None else self.weights
        return tree.flatten((self.states, trace, weights))

    def named_draws(self) -> dict[str, np.ndarray]:
        """Returns the draws by the names of `to_inference_data`, `[draws, chains, event...]`."""
        found = {}
        for (_, name, variable), x in zip(self._kept, tree.flatten(self.states), strict=False):
            rows = variable.flatten_chains(np.asarray(x, variable.stored_dtype))
            found[name] = np.moveaxis(rows, 0, 1)
        return found

    def to_inference_data(self) -> Any:
        """Returns the groups `posterior` and `sample_stats`, for ArviZ.

        This is an `xarray.DataTree` for ArviZ 1, and an `arviz.InferenceData` before. Arrays are
        named by the keys of their nests, such as `w.kernel` or `state.0`. Draws in a directory are
        read on use. The posterior's attribute `draws_of` is "parameters" if the draws are those of
        the model's parameters, as from `sample`, and "state" if they are the kernel's states.

        Raises:
          ModuleNotFoundError: ArviZ and xarray are not installed.
        """
        groups = self._datasets()
        groups["posterior"].attrs["draws_of"] = "parameters" if self.has_parameters else "state"
        return extras.inference_data(groups)

    def _datasets(self) -> dict[str, Any]:
        extras.import_arviz()
        if self.directory is not None:
            import xarray

            for x in self._leaves():
                x.verify()  # xarray reads zeros for missing files
            read = xarray.open_datatree(self.directory / "samples.zarr", engine="zarr")
            return {
                name: extras.with_coordinates(group.to_dataset().isel(draw=slice(self.num_results)))
                for name, group in read.children.items()
            }
        variables: dict[str, dict[str, Any]] = {}
        for (group, name, variable), x in zip(self._kept, self._leaves(), strict=True):
            x = np.asarray(x, variable.stored_dtype)
            entry = variable.dimensions(name), variable.flatten_chains(x)
            variables.setdefault(group, {})[name] = entry
        attributes = {**LIBRARY, **self._attributes}
        return {group: extras.as_dataset(arrays, attributes) for group, arrays in variables.items()}


def check_memory(kept: Sequence[Kept], num_results: int, start: Position, on_disk: bool) -> None:
    """Raises MemoryError if a run does not fit into memory, and warns if it takes much of it.

    Counts draws in memory, and twice the state and kernel results, because a step copies them.
    """
    draws = sum(
        num_results * math.prod(k.variable.shape) * numpy_dtype(k.variable.dtype).itemsize
        for k in kept
    )
    leaves = [x for x in tree.flatten(tuple(start)) if x is not None and "GPU" not in x.device]
    carried = 2 * sum(x.dtype.size * x.shape.num_elements() for x in leaves)
    needs = {"the state and what the kernel remembers": carried}
    advice = "Run fewer chains, or choose a covariance that takes less than 'full'."
    if not on_disk:
        needs[f"{num_results} draws of all chains"] = draws
        advice = (
            "Write the draws to disk with directory=, keep fewer by num_steps_between_results, or "
            "run fewer chains."
        )
    memory.check_run(needs, advice, stacklevel=4)


class MemoryRecords:
    """Draws in memory, in arrays that are allocated once."""

    num_draws = 0

    def __init__(self, kept: Sequence[Kept], num_results: int):
        self._arrays = [
            np.empty([num_results, *k.variable.shape], numpy_dtype(k.variable.dtype)) for k in kept
        ]

    def append(self, rows: Sequence[np.ndarray]) -> None:
        stop = self.num_draws + len(rows[0])
        for array, new in zip(self._arrays, rows, strict=True):
            array[self.num_draws : stop] = new
        self.num_draws = stop

    def commit(self, nests: dict[str, Any], finish: bool = False) -> None:
        """Does nothing; draws in memory are not written."""

    def draws(self, count: int) -> list[Any]:
        """Returns the first `count` draws of each array."""
        return [array[:count] for array in self._arrays]


class CountedRecords(MemoryRecords):
    """A count of the draws that worker 0 keeps in its directory; holds no draws itself."""

    def __init__(self, kept: Sequence[Kept]):
        super().__init__(kept, 0)

    def append(self, rows: Sequence[np.ndarray]) -> None:
        self.num_draws += len(rows[0])


class DirectoryRecords:
    """Draws in a run's directory.

    Args:
      describe: kernel results -> entries of the fingerprint to write with each checkpoint, or None.
    """

    def __init__(self, kept: Sequence[Kept], run: RunDirectory, describe: Describe | None):
        self._kept, self._run, self._describe = kept, run, describe

    @property
    def num_draws(self) -> int:
        return self._run.num_draws

    def append(self, rows: Sequence[np.ndarray]) -> None:
        self._run.append(_grouped(self._kept, rows))

    def commit(self, nests: dict[str, Any], finish: bool = False) -> None:
        if self._describe is not None:
            self._run.add_to_fingerprint(self._describe(nests["results"]))
        self._run.commit(nests, finish)

    def draws(self, count: int) -> list[Any]:
        return [self._run.draws(k.group, k.name).first(count) for k in self._kept]


Records = MemoryRecords | DirectoryRecords


def open_records(
    run: RunDirectory,
    kept: Sequence[Kept],
    fingerprint: dict[str, Any],
    attributes: dict[str, Any],
    start: Position,
    describe: Describe | None = None,
) -> tuple[DirectoryRecords, Position]:
    """Opens the draws in a directory; returns them and the position, `start` for a new run.

    Raises:
      ValueError: the directory holds another run, or one whose chain became NaN or infinite.
    """
    variables = _grouped(kept, [k.variable for k in kept])
    if describe is not None and (before := run.saved()) is not None:
        # Results of another form belong to another kernel, which `run.start` refuses.
        with contextlib.suppress(ValueError):
            results = as_tensors(before.restore("results", start.results))
            fingerprint = fingerprint | describe(results)
    saved = run.start(variables, fingerprint, attributes)
    records = DirectoryRecords(kept, run, describe)
    if saved is None:
        return records, start
    if saved.restore("is_broken", np.bool_(False)):
        raise ValueError(
            f"The run in {run.path} cannot resume, because its chain became NaN or infinite after "
            f"{run.num_draws} results. Start another run with a smaller step_size."
        )
    restored = {name: saved.restore(name, nest) for name, nest in start._asdict().items()}
    return records, Position(**as_tensors(restored))


def _grouped(kept: Sequence[Kept], values: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Returns group -> name -> value."""
    groups: dict[str, dict[str, Any]] = {}
    for k, x in zip(kept, values, strict=True):
        groups.setdefault(k.group, {})[k.name] = x
    return groups
