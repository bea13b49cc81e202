"""The differences of any sampler's draws from the posterior, by importance weights of others.

The other draws come from a normal distribution near the posterior, found from gradients at its own
draws or by rounds of weighted draws.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.diagnostics.base import refuse_trace
from tfp_sgmcmc.diagnostics.convergence import batch_means_standard_error, chain_dependence
from tfp_sgmcmc.diagnostics.draw_summary import entry_names
from tfp_sgmcmc.diagnostics.vector_functions import (
    ValuesAndGradients,
    log_prob_of_vectors,
    value_and_gradient_of_vectors,
)
from tfp_sgmcmc.diagnostics.weighted_sample import (
    FIRST_SHARE,
    Proposal,
    WeightedSample,
    fit_proposal,
    num_draws_for,
    weigh,
)
from tfp_sgmcmc.internal.checks import integer
from tfp_sgmcmc.internal.nest import (
    State,
    convert_state,
    flatten_events,
    named_parts,
    unflatten_events,
)
from tfp_sgmcmc.targets.base import Target, as_target
from tfp_sgmcmc.targets.streamed import StreamedLogProb

_PAIRS_PER_ENTRY, _LEAST_PAIRS = 2, 200  # the slope has D^2 entries, a pair gives D numbers
_MOST_ROUNDS = 8
_CLOSE = 0.1  # nats that a round moves the normal, within which it is not moved again
_CURVATURES = 0.25, 4.0  # between which a round lets a precision change

MOST_K = 0.7  # up to which averages of weighted draws are accurate (Vehtari et al. 2024)
_MOST_DIMENSIONS = 1000
MOST_FOR_MOMENTS = 16  # dimensions in which D x D moments of draws cost less than gradients
_TAIL_SHARE = 0.1
_ENOUGH = 0.5  # efficiency of a normal fitted by gradients
_MOST_ENTRIES = 10**9  # N D times the draws of a round, for moments after gradients
_MOST_ROWS = 20  # of the text


class KLNormal(NamedTuple):
    """A normal distribution near a posterior.

    Attributes:
      mean: m, `[D]`.
      factor: a Cholesky factor L of the covariance, `[D, D]`.
      num_rounds: number of rounds that were made.
      converged: whether the last round hardly moved it.
    """

    mean: np.ndarray
    factor: np.ndarray
    num_rounds: int
    converged: bool


def num_gradients(dim: int) -> int:
    """Returns the number of gradients of a round.

    >>> num_gradients(20), num_gradients(129)
    (400, 516)
    """
    return 2 * max(_LEAST_PAIRS, _PAIRS_PER_ENTRY * dim)


def fit_kl_normal(
    value_and_gradient_fn: ValuesAndGradients,
    mean: np.ndarray,
    factor: np.ndarray,
    rng: np.random.Generator,
) -> KLNormal:
    r"""Returns the normal distribution q that minimises KL(q, p), about.

    Where the divergence is least, \( \operatorname{E}_q[\nabla \log p] = 0 \) and
    \( -\operatorname{E}_q[\nabla^2 \log p] = C^{-1} \) for \( q = N(m, C) \). With
    \( \theta = m \pm L z \), \( L L^T = C \), g the gradient with respect to z, and
    \( d = (g(z) - g(-z)) / 2 \), a round makes Newton's step for these equations,

    \[
    A = -\Big( \sum z z^T \Big)^{-1} \sum z d^T, \qquad
    C \leftarrow L A^{-1} L^T, \qquad m \leftarrow m + L A^{-1} \bar g.
    \]

    A is the mean Hessian by Stein's identity. As a regression of d on z it is exact for a normal
    posterior, and pairs leave out all even terms, so that a few D pairs are enough where a sample
    covariance would need many times D^2 draws.

    Args:
      value_and_gradient_fn: theta, `[S, D]` -> log posteriors, `[S]`, and gradients, `[S, D]`.
      mean: m to begin with, `[D]`.
      factor: L to begin with, `[D, D]`.
      rng: a generator of random numbers.

    Returns:
      The distribution, of the last round whose gradients were finite.

    References:
      M. Opper and C. Archambeau. The variational Gaussian approximation revisited. Neural
      Computation, 2009. Equations 7 and 8.
    """
    before = mean, factor
    for number in range(1, _MOST_ROUNDS + 1):
        z = rng.standard_normal([num_gradients(len(mean)) // 2, len(mean)])
        _, gradients = value_and_gradient_fn(mean + np.concatenate([z, -z]) @ factor.T)
        with np.errstate(over="ignore", invalid="ignore"):  # told by the next line
            gradients = gradients @ factor
        if not np.isfinite(gradients).all():
            return KLNormal(*before, number, False)
        before = mean, factor
        plus, minus = np.split(gradients, 2)
        slope = -np.linalg.solve(z.T @ z, z.T @ ((plus - minus) / 2))
        values, vectors = np.linalg.eigh((slope + slope.T) / 2)
        values = np.clip(values, *_CURVATURES)
        step = vectors @ ((vectors.T @ gradients.mean(axis=0)) / values)
        mean = mean + factor @ step
        scale = np.sqrt((factor**2).sum(axis=1, keepdims=True))  # no unit of a parameter matters
        root = factor / scale @ (vectors / np.sqrt(values))
        factor = scale * np.linalg.cholesky(root @ root.T)
        # KL(new, old) of normal distributions.
        if (step @ step + np.sum(1 / values - 1 + np.log(values))) / 2 < _CLOSE:
            return KLNormal(mean, factor, number, True)
    return KLNormal(mean, factor, _MOST_ROUNDS, False)


@dataclasses.dataclass(frozen=True)
class Certificate:
    r"""The differences of draws from the posterior: the result of `certify`, and of `sample`.

    Nests have the structure of the model's parameters, and shapes without draws and chains.

    Attributes:
      pareto_k: shape of the largest weights (`pareto_shape`): the smaller, the better the weighted
        draws represent the posterior.
      efficiency: effective number of weighted draws divided by their number.
      num_draws: number of weighted draws, S.
      num_starts: number of starts from which other modes were searched.
      mean: posterior means, from the weighted draws alone.
      mean_error: their standard errors.
      sd: posterior standard deviations, from the weighted draws alone.
      sd_error: their standard errors.
      mean_offset: the mean of the draws minus `mean`, divided by `sd`; NaN for a constant.
      mean_offset_error: its standard error, which counts the errors of both means.
      sd_ratio: the standard deviation of the draws divided by `sd`; NaN for a constant.
      sd_ratio_error: its standard error, which counts the errors of both.
    """

    pareto_k: float
    efficiency: float
    num_draws: int
    num_starts: int
    mean: Any
    mean_error: Any
    sd: Any
    sd_error: Any
    mean_offset: Any
    mean_offset_error: Any
    sd_ratio: Any
    sd_ratio_error: Any

    @property
    def is_reliable(self) -> bool:
        """Whether the figures can be believed: whether `pareto_k` is at most 0.7."""
        return self.pareto_k <= MOST_K

    @property
    def largest_offset(self) -> tuple[float, float]:
        """The largest of |`mean_offset`| and its standard error."""
        return _largest(self.mean_offset, 0.0, self.mean_offset_error)

    @property
    def largest_ratio(self) -> tuple[float, float]:
        """The largest of |`sd_ratio` - 1| and its standard error."""
        return _largest(self.sd_ratio, 1.0, self.sd_ratio_error)

    @property
    def tail(self) -> str:
        """The Pareto k of the weights in words; below 0 weights are bounded, however far."""
        return f"Pareto k {self.pareto_k:.2f}" if self.pareto_k >= 0 else "Pareto k below 0"

    def __str__(self) -> str:
        verdict = "The figures can be believed."
        if not self.is_reliable:
            verdict = (
                f"The figures cannot be believed, because k is above {MOST_K}: the posterior is "
                "too far from a normal distribution, or the draws are too few or too far off."
            )
        lines = [
            f"{self.num_draws} weighted draws, efficiency {self.efficiency:.3g}, {self.tail}. "
            f"{verdict}",
            f"{'parameter':<20} {'mean':>12} {'sd':>12} {'offset (sd)':>18} {'sd ratio':>18}",
        ]
        columns = [
            np.concatenate([np.ravel(x) for x in tf.nest.flatten(nest)])
            for nest in (
                *(self.mean, self.sd, self.mean_offset, self.mean_offset_error),
                *(self.sd_ratio, self.sd_ratio_error),
            )
        ]
        labels = [
            label
            for name, x in named_parts(self.mean, "")
            for label in entry_names(name or "state", np.shape(x), range(np.size(x)))
        ]
        rows = list(zip(labels, *columns, strict=True))
        for label, mean, sd, offset, offset_error, ratio, ratio_error in rows[:_MOST_ROWS]:
            lines.append(
                f"{label:<20} {mean:>12.5g} {sd:>12.5g} {offset:>9.3f} +- {offset_error:.3f} "
                f"{ratio:>9.3f} +- {ratio_error:.3f}"
            )
        if len(rows) > _MOST_ROWS:
            lines.append(f"... and {len(rows) - _MOST_ROWS} more")
        return "\n".join(lines)


def certify(result: Any, target: Any, *, num_draws: int = 2000, seed: Any = 0) -> Certificate:
    r"""Tells how far the means and standard deviations of draws are from those of the posterior.

    A normal distribution with a share of Student's t is fitted to the draws of a run, and S new
    draws \( \theta_i \sim q \) of it are weighed by the exact posterior,

    \[
    w_i = \frac{p(\theta_i \mid x_{1:N})}{q(\theta_i)}, \qquad
    \operatorname{E}[f \mid x_{1:N}] \approx \frac{\sum_i w_i f(\theta_i)}{\sum_i w_i}.
    \]

    These means do not depend on how the run was made, so they show the bias of a
    stochastic-gradient chain, with standard errors. The Pareto shape k of the weights tells whether
    they can be believed: up to 0.7. If the weights are poor, they give the moments of a better
    proposal, in up to eight rounds of \( \max(S, 4 D^2) \) draws, each with one pass over the data.
    Fits are made in the unconstrained coordinates of the target.

    A stream is read once, for all S draws of a proposal with the mean and covariance of the run.
    Their log posteriors are those of all rows on disk, so a pool's error is seen as well.

    No check of this kind sees modes that neither the draws nor the proposals visit.

    Examples:
      A step that is far too large makes the draws of SGLD too wide. With `x` and `target` as in
      `MinibatchLogProb`:

      >>> run = sgmcmc.sample_chain(
      ...     sgmcmc.SGLD(target, step_size=5e-4), tf.fill([4], x.mean()), 4000, seed=0,
      ...     progress_bar=False)
      >>> certificate = sgmcmc.certify(run, target)
      >>> certificate.is_reliable, bool(certificate.sd_ratio > 1.2)
      (True, True)
      >>> bool(abs(certificate.mean - x.mean()) < 4 * certificate.mean_error + 1e-3)
      True

    Args:
      result: the result of `sample` or `sample_chain`, or draws of the model's parameters by any
        library: an array or a nest of arrays `[draws, chains, event...]`.
      target: a `MinibatchLogProb`, a `StreamedLogProb`, another target, or a plain callable: the
        exact log posterior of the parameters.
      num_draws: S, even.
      seed: an integer or two.

    Returns:
      A `Certificate`.

    Raises:
      ValueError: there are fewer than 50 draws, or more than 1000 parameters; draws are not finite.
      TypeError: an argument has the wrong type.

    References:
      A. Vehtari, D. Simpson, A. Gelman, Y. Yao and J. Gabry. Pareto smoothed importance sampling.
      Journal of Machine Learning Research, 2024.
    """
    integer("num_draws", num_draws, 100)
    if num_draws % 2:
        raise ValueError(f"num_draws must be even. Received: {num_draws}.")
    is_stream = isinstance(target, StreamedLogProb)
    model = target.of_one_batch if is_stream else target
    log_posterior = as_target(model, full_data_expected=True, called="target")
    unconstrained, parameters = _draws(result, log_posterior)
    like = tf.nest.map_structure(lambda x: x[0, 0], unconstrained)
    flat = flatten_events(unconstrained, 2).numpy().astype(np.float64)
    num_results, num_chains, dim = flat.shape
    if num_results * num_chains < 50 or dim > _MOST_DIMENSIONS:
        raise ValueError(
            f"result must have at least 50 draws of at most {_MOST_DIMENSIONS} parameters. "
            f"Received: {num_results * num_chains} draws of {dim} parameters."
        )
    rows = flat.reshape(-1, dim)
    mean, scale = rows.mean(axis=0), rows.std(axis=0)
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        raise ValueError("result must have finite draws that differ. Received: others.")
    correlation = np.corrcoef(rows, rowvar=False).reshape(dim, dim) + dim / len(rows) * np.eye(dim)
    factor = scale[:, np.newaxis] * np.linalg.cholesky(correlation)
    rng = np.random.default_rng(random.as_seed(seed).numpy().astype(np.uint32))
    if is_stream:

        def log_prob(x: np.ndarray) -> np.ndarray:
            return target.log_prob_of_many(unflatten_events(x, like, 0)).numpy()

        sample, _ = weigh(log_prob, Proposal(mean, factor, _TAIL_SHARE), num_draws, rng)
    else:
        sample, _, _ = weighted_sample_of(log_posterior, like, mean, factor, num_draws, rng)
    return compare(parameters, sample, like, _constrain(log_posterior), num_starts=0)


def weighted_sample_of(
    target: Target,
    like: State,
    mean: np.ndarray,
    factor: np.ndarray,
    num_draws: int,
    rng: np.random.Generator,
    jit_compile: bool = True,
) -> tuple[WeightedSample, str, KLNormal | None]:
    """Returns weighted draws from a proposal fitted to a posterior, and a clause on how.

    Up to 16 dimensions the proposal is fitted to the moments of weighted draws, and above by
    gradients, as the normal distribution nearest in KL(q, p), which is then the third result. If
    its weights are poor, but not as poor as to give no covariance, and the target is small, rounds
    of draws follow.

    Args:
      target: the posterior.
      like: one unconstrained state.
      mean: of the first proposal, `[D]`.
      factor: a Cholesky factor of the first proposal's covariance.
      num_draws: least number of draws, even.
      rng: a generator of random numbers.
      jit_compile: whether XLA may compile log posteriors and gradients.
    """
    log_prob_fn, dim = log_prob_of_vectors(target, like, jit_compile), len(mean)
    if dim <= MOST_FOR_MOMENTS:
        size = max(num_draws, num_draws_for(dim))
        sample, rounds = fit_proposal(log_prob_fn, Proposal(mean, factor, FIRST_SHARE), size, rng)
        return sample, f"in {_rounds(rounds)} of {size} draws", None
    gradient_fn = value_and_gradient_of_vectors(target, like, jit_compile)
    normal = fit_kl_normal(gradient_fn, mean, factor, rng)
    proposal = Proposal(normal.mean, normal.factor, _TAIL_SHARE)
    sample, _ = weigh(log_prob_fn, proposal, num_draws, rng)
    how = f"in {_rounds(normal.num_rounds)} of {num_gradients(dim)} gradients"
    size = max(num_draws, num_draws_for(dim))
    is_good = sample.is_reliable and sample.efficiency >= _ENOUGH
    is_small = target.num_examples * dim * size <= _MOST_ENTRIES
    if not is_good and is_small and sample.efficiency * size >= dim:  # fewer give no covariance
        # Of a skewed posterior, moments of draws give a wider normal, whose weights are better.
        proposal = Proposal(normal.mean, normal.factor, FIRST_SHARE)
        fitted, rounds = fit_proposal(log_prob_fn, proposal, size, rng)
        both = [(x.is_reliable, x.efficiency) for x in (sample, fitted)]
        if both[1] > both[0]:
            sample, how = fitted, f"{how} and {_rounds(rounds)} of {size} draws"
    return sample, how, normal


def num_evaluations(dim: int, num_draws: int) -> int:
    """Returns the log posteriors that a typical fit takes; a gradient counts as three."""
    if dim <= MOST_FOR_MOMENTS:
        return 2 * max(num_draws, num_draws_for(dim))
    return 3 * 3 * num_gradients(dim) + num_draws


def _rounds(number: int) -> str:
    return "one round" if number == 1 else f"{number} rounds"


def compare(
    parameters: Any,
    sample: WeightedSample,
    like: State,
    constrain: Callable[[State], Any],
    num_starts: int,
) -> Certificate:
    """Compares draws with weighted draws.

    Args:
      parameters: draws of the model's parameters, parts `[draws, chains, event...]`.
      sample: weighted draws of the flat unconstrained state.
      like: one unconstrained state.
      constrain: maps unconstrained states to the parameters.
      num_starts: number of starts from which other modes were searched.
    """
    weighted = constrain(unflatten_events(sample.draws, like, 0))
    rows = []
    for part, others in zip(tf.nest.flatten(parameters), tf.nest.flatten(weighted), strict=True):
        x = np.asarray(part, np.float64)
        values = np.asarray(others, np.float64)
        mean, mean_error, sd, sd_error = sample.moments(values)
        # Rounding must not give a constant, such as an entry of a Cholesky factor, a deviation.
        sd = np.where((values == values[0]).all(axis=0), np.nan, sd)
        own = x.mean(axis=(0, 1))
        own_variance = x.var(axis=(0, 1))
        own_sd = np.sqrt(own_variance)
        alike = np.sqrt(chain_dependence(x)) if len(x) >= 4 else 1.0
        with np.errstate(all="ignore"):  # of a constant
            own_sd_error = alike * batch_means_standard_error((x - own) ** 2) / (2 * own_sd)
        offset_error = np.hypot(mean_error, alike * batch_means_standard_error(x)) / sd
        ratio = own_sd / sd
        ratio_error = ratio * np.hypot(sd_error / sd, own_sd_error / own_sd)
        of_posterior = mean, mean_error, np.nan_to_num(sd), sd_error
        rows.append((*of_posterior, (own - mean) / sd, offset_error, ratio, ratio_error))
    columns = zip(*rows, strict=True)
    nests = (tf.nest.pack_sequence_as(parameters, [*column]) for column in columns)
    size = len(sample.log_weights)
    return Certificate(sample.pareto_k, sample.efficiency, size, num_starts, *nests)


def _draws(result: Any, target: Target) -> tuple[State, Any]:
    """Returns draws of the unconstrained state and of the parameters, `[draws, chains, ...]`."""
    if hasattr(result, "states"):
        found = tf.nest.map_structure(np.asarray, result.states)
        is_constrained = getattr(result, "has_parameters", False)
    else:
        refuse_trace(result)
        found, is_constrained = result, True
    found = convert_state(found, called="result")
    if not all(x.shape.rank for x in tf.nest.flatten(found)):
        raise ValueError(f"result must hold draws [draws, chains, event...]. Received: {result!r}.")
    constrain, unconstrain = _constrain(target), getattr(target, "unconstrain", None)
    unconstrained = unconstrain(found) if is_constrained and unconstrain else found
    first = tf.nest.map_structure(lambda x: x[0], unconstrained)
    chain_ndims = len(target.chain_shape(first))
    unconstrained = tf.nest.map_structure(  # with one axis of chains
        lambda x: tf.reshape(x, [x.shape[0], -1, *x.shape[1 + chain_ndims :]]), unconstrained
    )
    return unconstrained, constrain(unconstrained)


def _constrain(target: Target) -> Callable[[State], Any]:
    return getattr(target, "constrain", lambda state: state)


def _largest(nest: Any, center: float, errors: Any) -> tuple[float, float]:
    """Returns the largest distance from `center` and its error. NaN is that of a constant."""
    values, of_values = (
        np.concatenate([np.ravel(x) for x in tf.nest.flatten(part)]) for part in (nest, errors)
    )
    distances = np.nan_to_num(np.abs(values - center), nan=0.0)
    largest = int(np.argmax(distances))
    return float(distances[largest]), float(of_values[largest])
