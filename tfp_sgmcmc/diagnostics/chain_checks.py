"""Checks of a run: finite draws, convergence of its chains, its step size, and its last results."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tree

from tfp_sgmcmc.covariance.base import covariance_states
from tfp_sgmcmc.diagnostics.base import real_array
from tfp_sgmcmc.diagnostics.convergence import (
    LEAST_DRAWS,
    MOST_RHAT,
    chain_dependence,
    effective_sample_size,
    rank_normalized_rhat,
    rhat_limit,
    rhat_text,
)
from tfp_sgmcmc.internal.checks import a_type
from tfp_sgmcmc.internal.nest import path_name
from tfp_sgmcmc.targets.laplace.curvature import wrapped_target
from tfp_sgmcmc.targets.validation.step_size_check import Stability, epochs_of, judge_step

_FAR = {1: 6.0, 2: 4.0}  # number of chains: sds; 3 sds for more chains
_NEAR_LIMIT = 0.8  # of the largest stable step: beyond it, the step explains wrong draws
_GROWTH = 1.5
_MOST_SWAP_BIAS = 0.15  # of the log swap ratios of `ReplicaExchangeSGLD`


class NonFiniteChainError(FloatingPointError):
    """A chain became NaN or infinite.

    Attributes:
      step: index of the first result that is not finite.
      part: path of the part in the state, a tuple of keys (`()` for a single tensor).
      samples: all results before it, in the structure that was checked.
    """

    def __init__(self, message: str, step: int, part: tuple[Any, ...], samples: Any):
        super().__init__(message)
        self.step, self.part, self.samples = step, part, samples

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.step, self.part, self.samples)


def check_finite(samples: Any) -> None:
    """Raises `NonFiniteChainError` with the results before if a chain became NaN or infinite.

    Examples:
      >>> import numpy as np
      >>> chain = np.array([[0., 1.], [2., 3.], [np.nan, 4.]])
      >>> try:
      ...     check_finite({"w": chain})
      ... except NonFiniteChainError as error:
      ...     print(error.step, error.part, error.samples["w"].shape)
      2 ('w',) (2, 2)

    Args:
      samples: a nest of arrays `[num_results, ...]`, as `tfp.mcmc.sample_chain` returns.

    Raises:
      NonFiniteChainError: an entry is NaN or infinite.
      TypeError: a part is not an array of numbers.
      ValueError: a part has no dimension of results.
    """
    found = []
    for path, leaf in tree.flatten_with_path(samples):
        if np.ndim(leaf) == 0:
            raise ValueError(
                f"samples must have parts [num_results, ...]. Received: {a_type(leaf)}."
            )
        bad = ~np.isfinite(real_array("samples", leaf))
        if bad.any():
            step, *entry = np.argwhere(bad)[0].tolist()
            found.append((step, path, entry))
    if not found:
        return
    step, path, entry = min(found, key=lambda x: x[0])
    name = path_name("the state", path)
    raise NonFiniteChainError(
        f"{name} became NaN or infinite at result {step} (entry {entry}). The {step} results "
        "before it are in the error's `samples`. A smaller step_size is the usual cure.",
        step,
        path,
        tf.nest.map_structure(lambda x: x[:step], samples),
    )


class Row(NamedTuple):
    """The worst convergence diagnostics of a variable's entries.

    Attributes:
      name: name of the variable.
      num_entries: number of its entries.
      rhat: largest R-hat, rank-normalised and split.
      num_draws: smallest effective sample size of bulk and tails, all chains together.
      time: number of results that are worth an independent draw.
      trace: trace of the entry with the largest R-hat, `[draws, chains]`.
      dependence: largest `chain_dependence`; 1 where chains are independent.
    """

    name: str
    num_entries: int
    rhat: float
    num_draws: float
    time: float
    trace: np.ndarray
    dependence: float = 1.0


def worst_entries(name: str, num_entries: int, x: np.ndarray) -> Row:
    """Returns the worst diagnostics of a variable, x of shape `[draws, chains, entries]`."""
    rhat = rank_normalized_rhat(x)
    draws = np.fmin(effective_sample_size(x, "bulk"), effective_sample_size(x, "tail"))
    if np.isnan(draws).all():
        return Row(name, num_entries, np.nan, 1.0, np.nan, x[..., 0])
    worst, least = int(np.argmax(np.nan_to_num(rhat, nan=-np.inf))), float(np.nanmin(draws))
    dependence = chain_dependence(x)
    time = x.shape[0] * x.shape[1] / float(np.nanmin(draws * dependence))
    most = float(np.nanmax(dependence))
    return Row(name, num_entries, float(rhat[worst]), least, time, x[..., worst], most)


def chain_problems(found: Row, x: np.ndarray) -> list[str]:
    """Returns the problems of a variable's chains, x of shape `[draws, chains, entries]`.

    R-hat may be up to 1.01. From 400 independent draws on, it may also be as large as sound chains
    make it by chance in all but one of 1000 variables.
    """
    name, problems = found.name, []
    ranges = np.ptp(x, axis=0)
    still = int(np.sum(ranges.max(axis=0) == 0))
    if still:
        problems.append(f"{name}: {still} entries never move.")
    stuck = np.flatnonzero((ranges == 0).all(axis=1))
    if not still and len(stuck):
        chains = ", ".join(str(c) for c in stuck[:5])
        problems.append(f"{name}: {len(stuck)} of {x.shape[1]} chains never move ({chains}).")
    if still == x.shape[-1]:
        return problems
    few = not found.num_draws >= LEAST_DRAWS
    limit = MOST_RHAT if few else rhat_limit(x.shape[1], x.shape[2], found.num_draws)
    if found.rhat > limit:
        problems.append(
            f"{name}: the chains or their halves disagree. R-hat is {rhat_text(found.rhat)}; it "
            f"should be at most {MOST_RHAT}. Run longer, or from better starts."
        )
    if few:
        problems.append(
            f"{name}: the draws are worth {found.num_draws:.0f} independent draws; there should "
            f"be at least {LEAST_DRAWS}. Run longer."
        )
    return [*problems, *_start_problem(name, x)]


def dependence_note(found: Row) -> list[str]:
    """Says that chains depend on each other, and what they are worth."""
    if found.dependence == 1:
        return []
    chains = found.trace.shape[1]
    return [
        f"{found.name}: the chains depend on each other, with a correlation of "
        f"{(found.dependence - 1) / (chains - 1):.2g}, as chains do that share minibatches "
        f"(shared_batch=True) or random numbers. {chains} of them are worth "
        f"{chains / found.dependence:.2g}. Numbers of draws and standard errors make up for it."
    ]


def _start_problem(name: str, x: np.ndarray) -> list[str]:
    """Finds first results that lie far from the rest, too few for R-hat to notice.

    The first tenth of at least three chains in four must lie 3 sds of the last half away, in the
    root mean square. Chains with heavy tails go far, but not all of them, at the start.
    """
    num_results, num_chains, _ = x.shape
    if num_results < 20:
        return []
    centre = np.median(x[num_results // 2 :], axis=(0, 1))
    scale = np.sqrt(np.mean((x[num_results // 2 :] - centre) ** 2, axis=(0, 1)))
    scale = np.where(scale > 0, scale, np.inf)
    away = np.abs(x - centre) / scale
    first = np.sqrt(np.mean(away[: num_results // 10] ** 2, axis=0))
    far = np.sort(first, axis=0)[num_chains // 4]
    worst = int(np.argmax(far))
    if not far[worst] > _FAR.get(num_chains, 3.0):
        return []
    gone = np.flatnonzero((away[..., worst] > 5).mean(axis=1) > 0.25)
    drop = int(gone[gone < num_results // 2].max(initial=0)) + 1
    return [
        f"{name}: the first results are far from the rest, up to "
        f"{away[: num_results // 10, :, worst].max():.2g} standard deviations. Burn-in was too "
        f"short: drop at least {drop} of {num_results} results."
    ]


def step_faults(
    kernel: Any, states: Any, results: Any, is_hot: bool, is_off: bool
) -> tuple[list[str], list[str]]:
    """Compares the step with the largest stable one at the first, middle and last draws.

    Args:
      kernel: the kernel of the run.
      states: its draws, `[draws, chains..., event...]`.
      results: its last results.
      is_hot: whether the draws are too wide.
      is_off: whether they are wrong in any way that gradients show.

    Returns:
      Problems and notes.
    """
    num_draws = len(tf.nest.flatten(states)[0])
    found: list[Stability] = []
    for i in (0, num_draws // 2, num_draws - 1):
        state = tf.nest.map_structure(lambda x, i=i: tf.convert_to_tensor(np.asarray(x[i])), states)
        target = getattr(kernel, "target_log_prob_fn", None)
        judged = judge_step(kernel, target, state, results)
        if judged is None:
            return [], []
        found.append(judged)
    curvatures, step = [x.largest_curvature for x in found], found[-1].step_size
    limits = [float(np.min(x.largest_stable_step)) for x in found]
    share = step / min(limits)
    problems, notes = [], []
    stated = (
        f"step_size is {step:.3g}, and the largest stable one at the draws is {min(limits):.3g}."
    )
    if share > 1 or (is_off and share > _NEAR_LIMIT):
        thrown = " A chain that an unstable step throws off the mode stays where it is just stable."
        problems.append(f"The step is too large: {stated}{'' if share > 1 else thrown}")
    elif is_hot and share > _NEAR_LIMIT / 4:
        notes.append(f"A smaller step makes the draws less wide: {stated}")
    if curvatures[-1] > _GROWTH * curvatures[0] and step > 0.5 * limits[-1]:
        (problems if share > 1 else notes).append(
            f"The curvature grew along the run, from {curvatures[0]:.3g} at the first draws to "
            f"{curvatures[-1]:.3g} at the last, so that steps must become smaller."
        )
    return problems, notes


def results_faults(results: Any, trace: Any, target: Any) -> list[str]:
    """Returns faults in a run's results: skipped minibatches, NaN log posteriors, epochs."""
    faults = []
    covariances = covariance_states(results)
    skipped = sum(int(np.sum(np.asarray(c.num_skipped))) for c in covariances)
    if skipped:
        steps = sum(int(np.asarray(c.step)) * np.size(c.num_skipped) for c in covariances)
        faults.append(
            f"{skipped} of {steps} minibatches had scores that are NaN or infinite. They were left "
            "out of the gradient noise. Find the examples or states where the log likelihood is "
            "not finite."
        )
    log_probs = [getattr(results, "target_log_prob", None), _traced(trace)]
    bad = [x for x in log_probs if x is not None and np.isnan(np.asarray(x)).any()]
    if bad:
        percent = 100 * np.isnan(np.asarray(bad[-1])).mean()
        faults.append(f"The log posterior was NaN in {percent:.0f} % of the results that hold it.")
    epochs = epochs_of(target)
    if covariances and epochs is not None:
        faults.append(
            f"The minibatches were drawn by epochs (reshuffle={epochs.reshuffle!r}). Their noise "
            "cancels over an epoch, but the kernel corrects for noise that does not. Make the "
            "target with reshuffle='step'."
        )
    return faults


def swap_faults(results: Any, target: Any) -> list[str]:
    r"""Says that swaps of `ReplicaExchangeSGLD` are biased, as their noise is estimated.

    A variance \( s^2 \) that n examples estimate biases log S by about \( s^4 / 4 n \).
    """
    variances = getattr(results, "log_swap_variance", None)
    n = getattr(wrapped_target(target), "batch_size", None)
    if variances is None or n is None:
        return []
    variances = np.asarray(variances, np.float64)
    worst = float(np.median(variances.reshape(len(variances), -1), axis=1).max())
    most = (4 * n * _MOST_SWAP_BIAS) ** 0.5
    if not worst > most:
        return []
    return [
        f"The noise of the log swap ratios had a variance of {worst:.3g} at the last step. Above "
        f"{most:.2g}, {n} examples estimate it too badly, so that swaps are biased. Take larger "
        "minibatches, or temperatures that are closer to each other."
    ]


def _traced(trace: Any) -> Any:
    if isinstance(trace, dict):
        return trace.get("target_log_prob")
    return getattr(trace, "target_log_prob", None)
