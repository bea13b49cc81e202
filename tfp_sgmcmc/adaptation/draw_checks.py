"""Checks of the draws of an automatic run."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.adaptation.coordinates import FINER_NUMBERS, widest_spacing
from tfp_sgmcmc.adaptation.funnel_check import NUM_MOVES, funnel_check
from tfp_sgmcmc.adaptation.langevin import (
    MOST_WORST,
    ExcessVariance,
    excess_of,
    guarded_share,
    noise_covariance,
)
from tfp_sgmcmc.adaptation.pilot import Convergence, GradientFit, convergence, gradient_fit
from tfp_sgmcmc.adaptation.settings import PreparedKernel
from tfp_sgmcmc.diagnostics.certificate import Certificate
from tfp_sgmcmc.diagnostics.convergence import rhat_text
from tfp_sgmcmc.diagnostics.vector_functions import (
    LogProbs,
    log_prob_of_vectors,
    rounded_share,
    zero_density_beyond,
)
from tfp_sgmcmc.internal.nest import State, entry_names, flatten_events, unflatten_events
from tfp_sgmcmc.sampling.result import Flag, SampleResult
from tfp_sgmcmc.targets import MinibatchLogProb
from tfp_sgmcmc.targets.data import evenly_spread

_MOST_TESTED = 500  # results at which gradients are taken
_LEAST_RESULTS = 50
# Errors that sound draws may show: of the relative variance, and in standard deviations.
_NOTED_EXCESS, _NOTED_SHIFT = 0.04, 0.05
_MOST_DIVERGENCES = 0.01  # share of draws
_MOST_ROUNDED = 0.05  # share of draws
_FUNNEL = 0.03  # of means and standard deviations, by moves along a funnel
_MOST_AT_BOUNDS = 0.1  # of the results, which checks by gradients may leave out
_MORE_MOVES = 4  # times as many, where a change is not clear
_MOST_SPACING = 0.75  # standard deviations between two numbers; they are then 2.3 % too large
_CERTAIN = 0.05  # by importance weights, of means in standard deviations and of standard deviations


class DrawCheck(NamedTuple):
    """The results of the checks of draws.

    Attributes:
      flags: what is wrong or could not be checked.
      line: how good the draws are.
      lacking: the goal divided by the effective sample size.
      measured: figures of the run for `Choices`.
      certificate: how far the draws are from the posterior; None where it would take long.
      only_diverges: whether nothing but divergences is wrong.
    """

    flags: list[Flag]
    line: str
    lacking: float
    measured: dict[str, Any]
    certificate: Certificate | None = None
    only_diverges: bool = False

    @property
    def is_wrong(self) -> bool:
        return any(flag.grade == "wrong" for flag in self.flags)


def check_draws(
    result: SampleResult,
    prepared: PreparedKernel,
    seed: tf.Tensor,
    goal: float,
    problem: MinibatchLogProb,
) -> DrawCheck:
    """Checks convergence, gradients and noise; the effective sample size should reach `goal`."""
    states = tf.nest.map_structure(np.asarray, result.states)
    with np.errstate(all="ignore"):  # constants have no standard deviation
        certificate = None if prepared.certify is None else prepared.certify(states)
    if result.num_results < _LEAST_RESULTS:
        flag = Flag(
            "doubt",
            f"Fewer than {_LEAST_RESULTS} draws of a chain cannot be checked.",
            "Ask for more results.",
        )
        line = f"{result.num_results} draws of each chain were taken."
        return DrawCheck([flag], line, 0.0, {}, certificate)
    varies = _varying(states)
    flat = flatten_events(tf.nest.map_structure(tf.convert_to_tensor, states), 2).numpy()
    found = convergence(flat[..., np.concatenate([x.ravel() for x in varies])])
    trace, measured = result.trace, dict[str, Any]()
    diverging = None if trace is None else _flag_of_divergences(trace["diverging"])
    flags = [*flags_of_convergence(found, goal, prepared.remedy), *_told(diverging)]
    line = (
        f"The draws of all chains are worth {found.ess:.0f} independent ones for the worst "
        f"parameter, and R-hat is {rhat_text(found.rhat)}."
    )
    if certificate is not None and certificate.is_reliable:
        flags += _told(_flag_of_certificate(certificate, varies))
        c = certificate
        (offset, offset_error), (ratio, ratio_error) = c.largest_offset, c.largest_ratio
        line += (
            f" Beside {c.num_draws:,} importance-weighted draws of the posterior ({c.tail}), "
            f"their means differ by up to {offset:.3f} +- {offset_error:.3f} standard deviations, "
            f"and their standard deviations by up to {100 * ratio:.1f} +- "
            f"{100 * ratio_error:.1f} %."
        )
    if prepared.gradients is None:
        return DrawCheck(flags, line, goal / found.ess, measured, certificate)
    most = _MOST_TESTED if prepared.is_noisy else max(50, len(flat) // 10)
    picked = evenly_spread(len(flat), most)
    z = whitened(tf.nest.map_structure(lambda x: x[picked], states), prepared.bijector)
    z, gradients = _without_rounded(z, prepared.gradients(z, seed))
    fit = gradient_fit(z, gradients)
    line += (
        f" Their variance is {fit.temperature:.3f} +- {fit.error:.3f} of the posterior's by their "
        "gradients."
    )
    flags += _flags_of_gradients(fit)
    if prepared.choices.sampler == "NoUTurnSampler":
        is_wrong = any(flag.grade == "wrong" for flag in flags)
        causes = (_flag_of_zero_density, _flag_of_rounding) if is_wrong else ()
        for flag_of in causes:
            if known := flag_of(states, problem):
                return DrawCheck([known], line, goal / found.ess, measured, certificate)
        flags += _told(_flag_of_funnel(states, problem, seed, prepared.remedy))
    if prepared.noise is not None:
        c = prepared.choices
        share, covariance = guarded_share(z), noise_covariance(prepared.noise, z, blocks=4)
        excess = excess_of(covariance, c.arguments["step_size"], c.batch_size or 1)
        measured = {"guarded_share": share, "run_excess": excess}
        line += (
            f" The noise at these draws makes variances {100 * excess.mean:.2g} % too large on "
            "average before the temperature corrects them, and the guard of the control variates "
            f"was at work at {100 * share:.2g} % of them."
        )
        of_pilot = ExcessVariance(*(c.measured_excess or excess))
        flags += _told(_flag_of_noise(excess, of_pilot))
    wrong = [flag for flag in flags if flag.grade == "wrong"]
    only_diverges = bool(wrong) and wrong == [diverging]
    return DrawCheck(flags, line, goal / found.ess, measured, certificate, only_diverges)


def _told(flag: Flag | None) -> list[Flag]:
    return [] if flag is None else [flag]


def whitened(states: Any, bijector: Any) -> np.ndarray:
    """Returns z of draws."""
    return bijector.inverse(tf.nest.map_structure(tf.convert_to_tensor, states)).numpy()


def _without_rounded(z: np.ndarray, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Leaves out results where few draws were rounded to a bound of their parameters."""
    is_bad = ~(np.isfinite(z) & np.isfinite(gradients)).all(axis=(1, 2))
    kept = slice(None) if is_bad.mean() > _MOST_AT_BOUNDS else ~is_bad
    return z[kept], gradients[kept]


def _flag_of_noise(excess: ExcessVariance, of_pilot: ExcessVariance) -> Flag | None:
    """Returns a flag if the noise is larger than the temperature corrects."""
    if excess.mean - of_pilot.mean < _NOTED_EXCESS and excess.worst < 2 * MOST_WORST:
        return None
    return Flag(
        "wrong",
        "The noise of minibatches grew along the run: it makes variances "
        f"{100 * excess.mean:.2g} % too large on average and {100 * excess.worst:.2g} % in the "
        f"worst direction, at the pilot's draws {100 * of_pilot.mean:.2g} % and "
        f"{100 * of_pilot.worst:.2g} %.",
        "Sample in a new directory, or without one, so that the run is repeated with all examples.",
    )


def flags_of_convergence(found: Convergence, goal: float, remedy: str | None = None) -> list[Flag]:
    """Returns what convergence diagnostics say against the draws, with a known `remedy`."""
    flags = []
    if not found.rhat <= found.limit:
        cause = f"The chains disagree: R-hat is {rhat_text(found.rhat)}."
        if remedy is None:
            cause += " The posterior may have several modes or a funnel."
            remedy = "Reparameterise a funnel; ReplicaExchangeSGLD moves between modes."
        flags.append(Flag("wrong", cause, remedy))
    if not found.ess >= goal:
        flags.append(
            Flag(
                "wrong",
                f"The draws are worth {found.ess:.0f} independent ones for the worst parameter, "
                f"fewer than {goal:.0f}.",
                "Ask for more results.",
            )
        )
    return flags


def _flag_of_divergences(diverging: Any) -> Flag | None:
    """Returns a flag if trajectories of NUTS diverged, as they do where a posterior narrows."""
    diverging = np.asarray(diverging)
    share = float(diverging.mean())
    if share == 0:
        return None
    return Flag(
        "wrong" if share > _MOST_DIVERGENCES else "note",
        f"{int(diverging.sum())} of {diverging.size} trajectories diverged: the posterior is "
        "narrower in places than the step can follow.",
        "Reparameterise the model, or give scales a prior that keeps them from zero.",
    )


def _flat_draws(states: Any, problem: MinibatchLogProb) -> tuple[State, np.ndarray, LogProbs]:
    """Returns an unconstrained draw, all as `[results, chains, D]`, and log posteriors of rows."""
    at = problem.unconstrain(tf.nest.map_structure(tf.convert_to_tensor, states))
    like = tf.nest.map_structure(lambda x: x[0, 0], at)
    return like, flatten_events(at, 2).numpy(), log_prob_of_vectors(problem, like)


def _flag_of_zero_density(states: Any, problem: MinibatchLogProb) -> Flag | None:
    """Returns a flag if the density falls to zero at once near the draws."""
    like, draws, log_prob_fn = _flat_draws(states, problem)
    with np.errstate(all="ignore"):
        found = zero_density_beyond(log_prob_fn, draws.reshape(-1, draws.shape[-1]))
    if found is None:
        return None
    entry, end, side = found
    name = entry_names(like)[entry]
    constrained = problem.constrain(unflatten_events(end, like, 0))
    value = flatten_events(constrained, 0).numpy()
    where = f" ({value[entry]:.6g} here)" if len(value) == len(end) else ""
    way = "above" if side > 0 else "below"
    return Flag(
        "wrong",
        f"The posterior density is zero where {name} is {way} a limit{where}, and falls to "
        "zero there at once. Gradients do not tell this, so trajectories run into the limit "
        "and are rejected.",
        f"Give {name} a bijector whose values all have a positive density. For the end of a "
        "uniform distribution that is tfb.Chain([tfb.Shift(largest), tfb.Exp()]), with the "
        "largest value of the data.",
    )


def _flag_of_rounding(states: Any, problem: MinibatchLogProb) -> Flag | None:
    """Returns a flag if rounding in float32 decides on the log posterior."""
    _, draws, log_prob_fn = _flat_draws(states, problem)
    if draws.dtype != np.float32:
        return None
    flat = draws.reshape(-1, draws.shape[-1])
    share = rounded_share(log_prob_fn, flat, np.random.default_rng(0))
    if share <= _MOST_ROUNDED:
        return None
    return Flag(
        "wrong",
        f"Rounding in float32 decides on the log posterior: at {100 * share:.0f} % of the "
        "draws it is not finite, or changes by more than 0.5 where all parameters move by a "
        "ten-thousandth of their standard deviations, or to the next number. A Cholesky "
        "factorisation, a difference of large numbers or a sum of large ones does that.",
        "Give the target dtype='float64' and a float64 start.",
    )


def flags_of_spacing(states: Any, problem: MinibatchLogProb) -> list[Flag]:
    """Returns a flag if a parameter is so large that its draws lie on few numbers of its dtype.

    Unconstrained, because parameters such as the diagonal of a correlation matrix are constant up
    to rounding.
    """
    if not len(tf.nest.flatten(states)[0]):
        return []
    like, draws, _ = _flat_draws(states, problem)
    flat = draws.reshape(-1, draws.shape[-1])
    with np.errstate(all="ignore"):  # some parameters overflow
        mean, deviation = flat.mean(axis=0, dtype=np.float64), flat.std(axis=0, dtype=np.float64)
        widest, cause = widest_spacing(problem, like, mean.astype(flat.dtype), deviation)
    if not widest > _MOST_SPACING:
        return []
    cause += " Draws and log posteriors are rounded to that."
    return [Flag("wrong", cause, FINER_NUMBERS)]


def _flag_of_funnel(
    states: Any, problem: MinibatchLogProb, seed: tf.Tensor, remedy: str | None
) -> Flag | None:
    """Returns a flag if draws spread along a funnel, or shrink, by moves that are exact."""
    like, draws, log_prob_fn = _flat_draws(states, problem)
    rng = np.random.default_rng(seed.numpy().astype(np.uint32))
    with np.errstate(all="ignore"):
        wide = draws.astype(np.float64)
        try:
            found = funnel_check(log_prob_fn, wide, problem.num_examples, rng)
            if found and found.is_wrong(_FUNNEL, 0.5) and not found.is_wrong(_FUNNEL, 3.0):
                moves = _MORE_MOVES * NUM_MOVES  # which come farther into a neck
                found = funnel_check(log_prob_fn, wide, problem.num_examples, rng, moves)
        except np.linalg.LinAlgError:  # draws that overflow or stick, which other checks tell
            return None
    if found is None or not found.is_wrong(_FUNNEL, 3.0):
        return None
    name = entry_names(like)[found.entry]
    return Flag(
        "wrong",
        f"The draws miss a part of the posterior: moves along {name} that rescale what narrows "
        f"with it, and leave the posterior as it is, change its mean by {found.shift:.2f} and "
        f"its standard deviation by {found.widening:.2f} standard deviations, and bring "
        f"{100 * (0.01 + found.tail):.1f} % of the draws to where the outermost 1 % were.",
        remedy
        or f"Write what narrows with {name} as location + width * z, with z in its place "
        "(non-centred).",
    )


def _flags_of_gradients(fit: GradientFit) -> list[Flag]:
    """Returns what the gradients at the draws say against them."""
    flags, remedy = [], "Compare with HMC on all examples, or ask for more results."
    if not abs(fit.excess) <= _NOTED_EXCESS + 3 * fit.error:
        way = "wide" if fit.excess > 0 else "narrow"
        flags.append(
            Flag(
                "wrong",
                f"The draws are too {way}: by their gradients, their variance is "
                f"{fit.temperature:.3f} +- {fit.error:.3f} of the posterior's on average.",
                remedy,
            )
        )
    if not fit.shift**2 <= _NOTED_SHIFT**2 + 4 * fit.shift_error**2:
        flags.append(
            Flag(
                "wrong",
                f"The means are off by about {fit.shift:.2f} standard deviations, by their "
                "gradients.",
                remedy,
            )
        )
    return flags


def _flag_of_certificate(certificate: Certificate, varies: list[np.ndarray]) -> Flag | None:
    """Returns a flag if importance weights show that means or standard deviations are off."""
    c = certificate
    offset = _largest(varies, c.mean_offset, 0.0, c.mean_offset_error)
    ratio = _largest(varies, c.sd_ratio, 1.0, c.sd_ratio_error)
    if max(offset, ratio) <= _CERTAIN:
        return None
    return Flag(
        "wrong",
        f"Importance weights show that a mean is off by {_largest(varies, c.mean_offset):.2f} "
        "standard deviations, or a standard deviation by "
        f"{100 * _largest(varies, c.sd_ratio, 1.0):.0f} %: see result.certificate.",
        "Ask for more results.",
    )


def _varying(states: Any) -> list[np.ndarray]:
    """Returns which entries of each part have more than one value, `[event...]`.

    Some parameters have constant entries, as the Cholesky factor of a correlation matrix has. Where
    nothing varies, chains have stopped, and no entry is left out.
    """
    found = [np.any(x != x[:1, :1], axis=(0, 1)) for x in tf.nest.flatten(states)]
    return found if any(x.any() for x in found) else [np.ones_like(x) for x in found]


def _largest(varies: Any, nest: Any, center: float = 0.0, errors: Any = None) -> float:
    """Returns the largest distance of a number from `center`, beyond four standard errors.

    Entries that do not vary are left out.
    """
    parts = tf.nest.flatten(nest)
    errors = [0 * x for x in parts] if errors is None else tf.nest.flatten(errors)
    found = [np.abs(x - center) - 4 * e for x, e in zip(parts, errors, strict=True)]
    return float(np.max(np.concatenate([x[v] for x, v in zip(found, varies, strict=True)])))
