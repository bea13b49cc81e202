"""The settings of an automatic run, and the kernel that they describe."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.adaptation.coordinates import Coordinates
from tfp_sgmcmc.adaptation.pilot import PilotDraws, PilotRuns
from tfp_sgmcmc.adaptation.pilot_steps import PilotSteps
from tfp_sgmcmc.diagnostics.certificate import Certificate
from tfp_sgmcmc.internal.tables import Table, as_html, code_block
from tfp_sgmcmc.sampling.result import Flag
from tfp_sgmcmc.sampling.steps import StepPlan
from tfp_sgmcmc.targets.control_variates.control_variate import RemainderCovariance


class SampleCall(NamedTuple):
    """The arguments of `sample` that concern the chains, in one process or in shards."""

    target: Any
    initial_state: Any = None
    num_results: int = 1000
    bijector: Any = None
    num_chains: int = 4
    min_ess: int = 400
    seed: Any = None
    progress_bar: bool | None = None
    jit_compile: bool | None = None
    preflight_check: bool = True


@dataclasses.dataclass(frozen=True, repr=False)
class Choices:
    """The settings that `sample` chose for a target; `print` shows them and an equivalent program.

    Attributes:
      sampler: name of the kernel.
      arguments: the kernel's arguments other than the target, by name.
      batch_size: n, or None for all examples in every step.
      coordinates: the source of the coordinates z: "hessian" for the curvature at the center,
        "low rank" for the largest curvatures; "pilot" or "widths" where the prior has kinks;
        "covariance" for the covariance of draws; "scores" or "pilot" with a diagonal
        `hessian`.
      hessian: the Hessian to pass to `whiten`, or None for the one that `whiten` computes; for a
        diagonal matrix only the diagonal.
      center: the center, in the structure of the state, unconstrained; with a leading axis of
        modes where proposals come from a mixture.
      start: z at which the chains start, `[chains, D]`.
      seed: seed of the run that was kept.
      num_burnin_steps: steps before the first draw.
      num_steps_between_results: steps between draws.
      predicted_excess: predicted relative excess of the draws' variance due to noise: its mean over
        directions, and the worst direction. None without noise.
      measured_excess: the same from the noise at the pilot's draws. The temperature corrects the
        mean and the effect of the step.
      run_excess: the same from the noise at the draws of the run.
      guarded_share: share of the run's draws so far out that the guard w of the control variates is
        below 1.
      milliseconds: measured milliseconds for all chains, of a step by name of the sampler, or of a
        gradient of all data.
      noncentered: places in a flat state of the effects of a centred hierarchy that were sampled as
        standard normals; then `center` is flat.
    """

    sampler: str
    arguments: dict[str, Any]
    batch_size: int | None
    coordinates: str
    center: Any
    hessian: np.ndarray | None
    start: np.ndarray
    num_burnin_steps: int
    num_steps_between_results: int
    milliseconds: dict[str, float]
    predicted_excess: tuple[float, float] | None = None
    measured_excess: tuple[float, float] | None = None
    run_excess: tuple[float, float] | None = None
    guarded_share: float | None = None
    seed: tuple[int, int] = (0, 0)
    noncentered: tuple[int, ...] = ()

    @property
    def is_standardized(self) -> bool:
        """Whether only the Hessian gives the coordinates, and not the likelihood's curvature."""
        if self.hessian is None:
            return False
        return self.hessian.ndim == 1 or self.coordinates == "covariance"

    @property
    def first_state(self) -> Any:
        """The state of all chains before the first step."""
        if self.sampler != "IndependentMetropolis":
            return tf.constant(self.start)
        count = len(self.start)
        if (weights := self.arguments.get("weights")) is not None:  # chains begin at all modes
            modes = np.arange(count) % len(weights)
            return tf.nest.map_structure(lambda x: tf.constant(x[modes]), self.center)
        return tf.nest.map_structure(lambda x: tf.repeat(x[np.newaxis], count, 0), self.center)

    @property
    def trace_fn(self) -> Callable[[Any, Any], Any] | None:
        """The function that gives what a draw keeps of the kernel results; None keeps nothing."""
        return trace_divergences if self.sampler == "NoUTurnSampler" else None

    def __repr__(self) -> str:
        lines = [f"  {name}: {value}" for name, value in self._settings()]
        return "\n".join(["Choices:", *lines, "By hand:", *(f"  {x}" for x in self.program())])

    def _repr_html_(self) -> str:
        table = Table("Choices", ("setting", "value"), self._settings(), ["By hand:"])
        return as_html(table) + code_block(self.program())

    def _settings(self) -> list[tuple[str, str]]:
        """Returns name and value of each setting that applies; arrays by their shapes."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        found["center"] = "result.choices.center"
        return [
            (name, _readable(value))
            for name, value in found.items()
            if value is not None and not (isinstance(value, dict | tuple) and not value)
        ]

    def program(self) -> list[str]:
        """Returns the lines of a program that makes the same draws, if the data are in memory."""
        lines, checked = [], ""
        if self.batch_size is None and self.sampler != "IndependentMetropolis":
            checked = ", preflight_check=False"  # which would take minibatches
            lines = [
                "from tfp_sgmcmc.adaptation.target_arguments import as_problem",
                "target = as_problem(target, None)  # or the bijector that sample was given",
            ]
        if self.noncentered:
            lines += [
                "from tfp_sgmcmc.adaptation.hierarchies.noncentering import noncentered",
                "target, _ = noncentered(target, initial_state, result.choices.noncentered)",
            ]
        of, module = "z", "sgmcmc" if self.batch_size is not None else "tfp.mcmc"
        start, bijector = "start", "bijector"
        if self.sampler == "IndependentMetropolis":
            of, module = "target, result.choices.center, result.choices.hessian", "sgmcmc"
            start, bijector = "first_state", "result.bijector"
        elif self.is_standardized:
            lines += [
                "from tfp_sgmcmc.adaptation.coordinates import standardize",
                "center = tf.nest.map_structure(tf.constant, result.choices.center)",
                "z, bijector = standardize(target, center, result.choices.hessian)",
            ]
        else:
            hessian = "" if self.hessian is None else ", hessian=result.choices.hessian"
            lines.append(f"z, bijector = sgmcmc.whiten(target, result.choices.center{hessian})")
        if self.batch_size is not None:
            lines.append(f"z = z.with_minibatches({self.batch_size})")
        if self.sampler == "UnderdampedLangevin":
            zero, of = f"tf.zeros([{self.start.shape[-1]}])", "control"
            lines.append(f"control = sgmcmc.ControlVariate(z, {zero}, order=2, importance='pilot')")
        given = ", ".join(f"{k}={v!r}" for k, v in self.arguments.items())
        return [
            *lines,
            f"kernel = {module}.{self.sampler}({of}, {given})",
            f"run = sgmcmc.sample_chain(kernel, result.choices.{start}, num_results, "
            f"seed={[*self.seed]}, num_burnin_steps={self.num_burnin_steps}, "
            f"num_steps_between_results={self.num_steps_between_results}{checked})",
            f"draws = {bijector}.forward(run.states)",
        ]


def _readable(value: Any) -> str:
    """Returns a setting as text, with four digits of numbers."""
    if isinstance(value, np.ndarray) and value.size > 4:
        return f"array {list(value.shape)}"
    if isinstance(value, dict):
        return ", ".join(f"{key}={_readable(x)}" for key, x in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(_readable, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def trace_divergences(state: Any, results: Any) -> dict[str, tf.Tensor]:
    """Returns whether the trajectories of NUTS diverged, by ArviZ's name of it."""
    del state
    return {"diverging": results.has_divergence}


@dataclasses.dataclass(frozen=True)
class PreparedKernel:
    """A kernel that is ready to run.

    Attributes:
      kernel: the kernel, whose states are z.
      bijector: from z to the user's parameters.
      gradients: estimates gradients at z; None for draws that their weights check.
      choices: all settings, with the start.
      lines: what was done and why.
      flags: warnings that hold before the run.
      noise: computes the noise of a control variate's estimates at z; None for other targets.
      most_results: the number of draws that there is time for; None for any number.
      certify: compares draws of the parameters, `[draws, chains, event...]`, with weighted draws;
        None where that would take long.
      remedy: what to do if chains disagree; None if the cause is not known.
      loop: compiled steps of the kernel, if a pilot made them.
      view: from z to the user's parameters, if a kept program computes them.
    """

    kernel: Any
    bijector: Any
    gradients: Callable[[np.ndarray, tf.Tensor], np.ndarray] | None
    choices: Choices
    lines: tuple[str, ...]
    flags: tuple[Flag, ...] = ()
    noise: RemainderCovariance | None = None
    most_results: int | None = None
    certify: Callable[[Any], Certificate] | None = None
    remedy: str | None = None
    loop: PilotSteps | None = None
    view: Callable[[Any], Any] | None = None

    @property
    def is_noisy(self) -> bool:
        """Whether gradients come from minibatches."""
        return self.choices.batch_size is not None

    def plan(self, num_results: int) -> StepPlan:
        c, most = self.choices, self.most_results
        num_results = num_results if most is None else min(num_results, most)
        return StepPlan(num_results, c.num_burnin_steps, c.num_steps_between_results + 1)

    def with_choices(self, **changes: Any) -> PreparedKernel:
        return dataclasses.replace(self, choices=dataclasses.replace(self.choices, **changes))

    def with_step_size(self, factor: float) -> PreparedKernel:
        """Returns the same sampler, such as NUTS, with a step of so many times the size."""
        arguments = {**self.choices.arguments}
        arguments["step_size"] *= factor
        kernel = type(self.kernel)(self.kernel.target_log_prob_fn, **arguments)
        return dataclasses.replace(self, kernel=kernel).with_choices(arguments=arguments)


def settled(flags: tuple[Flag, ...], choices: Choices, draws_failed: bool) -> tuple[Flag, ...]:
    """Returns the flags that hold before a run after its draws were checked.

    A doubt is settled if draws of a sampler with a Metropolis test pass every check.
    """
    if choices.batch_size is not None or draws_failed:
        return flags
    return tuple(
        Flag("note", f"{f.cause} The draws passed every check.", f.remedy)
        if f.grade == "doubt"
        else f
        for f in flags
    )


def prepare_kernel(
    kernel: Any,
    found: Coordinates,
    gradients: Callable[[np.ndarray, tf.Tensor], np.ndarray],
    pilot: PilotDraws,
    runs: PilotRuns,
    line: str,
    *,
    stride: int,
    noise: RemainderCovariance | None = None,
    loop: PilotSteps | None = None,
    **settings: Any,
) -> PreparedKernel:
    """Returns a kernel whose pilot was sound, with all settings and their explanation."""
    stride *= pilot.draws_per_sample
    precision = None if found.kind == "hessian" else found.precision
    choices = Choices(
        sampler=type(kernel).__name__,
        coordinates=found.kind,
        center=tf.nest.map_structure(lambda x: x.numpy(), found.center),
        hessian=None if precision is None else -precision,
        start=pilot.z[-1],
        num_burnin_steps=0,
        num_steps_between_results=stride - 1,
        milliseconds=runs.milliseconds,
        **settings,
    )
    where = {
        "hessian": "The curvature there gives",
        "low rank": "The largest curvatures there give",
        "widths": "The prior has kinks there, so the posterior's widths give",
        "pilot": "A pilot's draws, and the data's curvature at their mean, give",
        "covariance": "The mean and the covariance of a pilot's draws give",
    }[found.kind]
    costs = ", ".join(f"{k}: {v:.3g} ms" for k, v in runs.milliseconds.items())
    fit, every = pilot.fit, "every state" if stride == 1 else f"one state in {stride}"
    lines = [
        f"A mode of the posterior was found in {found.num_passes} passes over the data. "
        f"{where} coordinates in which all {pilot.z.shape[-1]} parameters are about N(0, I), so "
        "that one step size suits every posterior.",
        *runs.dropped,
        line,
        f"{choices.sampler} with step {choices.arguments['step_size']:.2g} keeps {every}. "
        f"Measured times of all chains, for a step or a gradient: {costs}.",
        f"A pilot from dispersed starts had {fit.temperature:.3f} +- {fit.error:.3f} of the "
        f"posterior's variance, by its gradients, and {fit.radius:.2f} of the variance that "
        "these coordinates predict (1 for Laplace's approximation).",
    ]
    return PreparedKernel(
        kernel, found.bijector, gradients, choices, tuple(lines), noise=noise, loop=loop
    )
