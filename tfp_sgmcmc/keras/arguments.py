"""The arguments of `SamplerCallback`, checked before any work starts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.keras.chain.ring_buffer import Collection, checked_distance
from tfp_sgmcmc.keras.checks.fit_preflight import checked_keep
from tfp_sgmcmc.kernels import registry
from tfp_sgmcmc.kernels.base import StepSize, check_positive

LEARNING_RATE = "learning_rate"


def checked_kernel(make_kernel_fn: Any, step_size: StepSize | None) -> Any:
    """Returns the function target -> kernel that was given or named, or "auto".

    Raises:
      ValueError: another word, or a step size that does not go with it.
      TypeError: no function and no word.
    """
    is_named = isinstance(make_kernel_fn, str) and make_kernel_fn != "auto"
    if not is_named:
        if not isinstance(make_kernel_fn, str):
            checks.function("make_kernel_fn", make_kernel_fn, "target -> kernel")
        if step_size is not None:
            raise ValueError(
                "step_size must be None unless make_kernel_fn is the name of a kernel. Received: "
                f"{step_size!r}. A function gives the kernel its step size, such as `lambda "
                'target: SGLD(target, step_size=target.learning_rate)`, and "auto" chooses one.'
            )
        return make_kernel_fn
    names = [row.name for row in registry.SAMPLERS if not row.all_data and _takes_step(row.name)]
    if make_kernel_fn not in names:
        raise ValueError(
            f'make_kernel_fn must be "auto", the name of a kernel ({", ".join(names)}) or a '
            f"function, target -> kernel. Received: {make_kernel_fn!r}."
        )
    if step_size is None or (isinstance(step_size, str) and step_size != LEARNING_RATE):
        raise ValueError(
            f'step_size must be a number, a schedule or "{LEARNING_RATE}" with make_kernel_fn='
            f'"{make_kernel_fn}". Received: {step_size!r}. '
            "sgmcmc.keras.find_step_size(model, x, y, prior=...) suggests a number."
        )
    if not isinstance(step_size, str):
        check_positive("step_size", step_size)
    make = getattr(sgmcmc, make_kernel_fn)

    def make_kernel(target: Any) -> Any:
        return make(target, target.learning_rate if isinstance(step_size, str) else step_size)

    return make_kernel


def _takes_step(name: str) -> bool:
    """Returns whether a kernel needs a step size beside its target, and nothing else."""
    _, second, *others = inspect.signature(getattr(sgmcmc, name)).parameters.values()
    return second.name == "step_size" and all(p.default is not p.empty for p in others)


def checked_collection(
    num_burnin_steps: Any,
    num_steps_between_results: Any,
    num_burnin_epochs: Any,
    sampling_threshold: Any,
    keep: Callable[[Any], Any] | None,
    mixing_distance: Any,
) -> Collection:
    """Returns which states are kept, by arguments of `SamplerCallback`.

    Raises:
      ValueError: a number is out of range, or two arguments end burn-in.
      TypeError: no integers, or no function.
    """
    by_epochs = checks.integer("num_burnin_epochs", num_burnin_epochs, 0) > 0
    if by_epochs and sampling_threshold is not None:
        raise ValueError(
            "Only one of num_burnin_epochs and sampling_threshold can end burn-in. Received: both."
        )
    return Collection(
        checks.integer("num_burnin_steps", num_burnin_steps, 0),
        checks.integer("num_steps_between_results", num_steps_between_results, 0),
        by_epochs or sampling_threshold is not None,
        checked_keep(keep),
        checked_distance(mixing_distance, num_steps_between_results),
        sampling_threshold is not None,
    )


def sampling_phases(keep: Any, step_size: Any) -> Any:
    """Returns `keep`, with the word "sampling" as the schedule's `is_sampling`.

    Raises:
      ValueError: another word, or a step size without such phases.
    """
    if not isinstance(keep, str):
        return keep
    checks.one_of("keep", keep, ("sampling",))
    found = getattr(step_size, "is_sampling", None)
    if found is None:
        raise ValueError(
            'keep="sampling" needs a step_size with sampling phases, such as '
            f"sgmcmc.schedules.Cyclical. Received: {step_size!r}. With a function as "
            "make_kernel_fn, pass keep=schedule.is_sampling."
        )
    return found


def check_options(
    directory: Any,
    num_chains: Any,
    num_groups: Any,
    seconds_between_commits: Any,
    check_num_examples: Any,
    independent_batches: Any,
) -> None:
    """Raises ValueError or TypeError for options of `SamplerCallback` that are out of range."""
    if directory is not None:
        checks.path("directory", directory)
    if num_chains is not None:
        checks.integer("num_chains", num_chains, 1)
    if num_groups is not None:
        checks.integer("num_groups", num_groups, 2)
    checks.number(
        "seconds_between_commits", seconds_between_commits, "at least 0", lambda s: s >= 0
    )
    checks.boolean("check_num_examples", check_num_examples)
    if independent_batches is not None:
        checks.boolean("independent_batches", independent_batches)
