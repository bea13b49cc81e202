"""Arguments of `SamplerCallback`: which states are kept, how many chains run, which kernel.

The flat arguments and the attributes that it had until 0.2 are taken for one release.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.keras.chain.collection import Collection
from tfp_sgmcmc.keras.chain.initial_states import check_starts
from tfp_sgmcmc.kernels.base import StepSize, check_positive
from tfp_sgmcmc.storage.directory import Directory

LEARNING_RATE = "learning_rate"
# Kernels on minibatches that need nothing but a target and a step size.
NAMED_KERNELS = (
    "SGLD", "ModifiedSGLD", "SGFS", "UnderdampedLangevin", "SGHMC", "SGNHT", "CCAdL", "NOGIN"
)  # fmt: skip

_Class = TypeVar("_Class")
_Init = TypeVar("_Init", bound=Callable[..., None])
_POSITIONAL = (
    "kernel", "num_examples", "prior", "num_burnin_steps", "num_steps_between_results"
)  # fmt: skip
_COLLECT = {
    "num_burnin_steps": 0,  # what they were where they were left out
    "num_steps_between_results": 0,
    "num_burnin_epochs": 0,
    "keep": None,
    "mixing_distance": None,
    "sampling_threshold": None,
    "noise_every": None,
}
_MOVED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "sample_steps": ('result.trace["step"]', lambda s: s.result.trace["step"]),
    "sample_step_sizes": ('result.trace["step_size"]', lambda s: s.result.trace["step_size"]),
    "non_trainable_samples": (
        "result.non_trainable_samples",
        lambda s: s.result.non_trainable_samples,
    ),
    "choices": ("result.choices", lambda s: s.result.choices),
    "temperatures": ("result.temperatures", lambda s: s.result.temperatures),
    "outputs": ("posterior.outputs", lambda s: s.posterior.outputs),
}
_OLD = {
    "make_kernel_fn", *_COLLECT, "num_chains", "initial_states", "directory",
    "seconds_between_commits",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Collect:
    r"""Decides which states of a chain are kept.

    Burn-in that is left out takes half of the steps of the first `fit`, and with "posterior" half
    of its epochs, unless `num_burnin_epochs` is given. `num_burnin_steps` begin after its pilot.
    Thinning that is left out keeps about `num_results` states of that `fit`. A later `fit` of the
    same callback goes on with the same thinning, without another burn-in. A run in a directory goes
    on with the numbers of its first `fit`.

    Examples:
      >>> from tfp_sgmcmc.keras import Collect
      >>> Collect(1000, 9).num_burnin_steps
      1000
      >>> Collect().over(steps_per_epoch=50, num_epochs=40)[:2]  # of 2,000 steps
      (1000, 9)

    Args:
      num_burnin_steps: steps before the first that may be kept.
      num_steps_between_results: steps between kept ones, as in `tfp.mcmc.sample_chain`.
      num_results: states of each chain, about, that thinning that is left out keeps.
      num_burnin_epochs: epochs before the first step that may be kept, in addition.
      keep: step -> whether a state that is due is kept. "sampling" keeps those of the sampling
        phases of the `step_size`, a `Cyclical` (Zhang et al. 2020), as its `is_sampling` does. With
        either, burn-in and thinning that are left out are 0, and samples of sampling phases have
        equal weights. With another function they have those of their steps.
      mixing_distance: keeps a state whenever the sum of the step sizes since the end of burn-in
        passes a multiple of this number, as `sgmcmc.diagnostics.indices_by_distance` does. These
        samples have equal weights although steps decrease. It takes the place of
        `num_steps_between_results`. A step larger than the distance counts as the distance.
      sampling_threshold: burn-in lasts until \( \alpha \), the `sampling_threshold` of
        `sgmcmc.diagnostics`, is below this number, such as 0.1. For SGLD and ModifiedSGLD.
      noise_every: steps from one comparison of gradient noise and injected noise to the next, for
        SGLD and ModifiedSGLD. None means 100 with a `sampling_threshold`, and never without.

    Raises:
      ValueError: a number is out of range, or two arguments exclude each other.
      TypeError: a number is no integer, or `keep` is no function of a step.
    """

    num_burnin_steps: int | None = None
    num_steps_between_results: int | None = None
    _: dataclasses.KW_ONLY
    num_results: int = 100
    num_burnin_epochs: int | None = None
    keep: Callable[[tf.Tensor], tf.Tensor] | Literal["sampling"] | None = None
    mixing_distance: float | None = None
    sampling_threshold: float | None = None
    noise_every: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_burnin_steps", "num_steps_between_results", "num_burnin_epochs"):
            checks.optional(checks.integer, name, getattr(self, name), 0)
        if self.num_burnin_epochs and self.sampling_threshold is not None:
            raise ValueError(
                "Only one of num_burnin_epochs and sampling_threshold can end burn-in. "
                "Received: both."
            )
        checks.integer("num_results", self.num_results, 1)
        for name in ("mixing_distance", "sampling_threshold"):
            found = checks.optional(checks.positive, name, getattr(self, name))
            object.__setattr__(self, name, found)
        if self.mixing_distance is not None and self.num_steps_between_results:
            raise ValueError(
                "Only one of mixing_distance and num_steps_between_results can choose the samples. "
                f"Received: {self.mixing_distance} and {self.num_steps_between_results}."
            )
        checks.optional(checks.integer, "noise_every", self.noise_every, 1)
        if isinstance(self.keep, str):
            checks.one_of("keep", self.keep, ("sampling",))
        elif self.keep is not None:
            _check_keep(self.keep)

    def with_phases(self, step_size: Any) -> Collect:
        """Returns these options with the word "sampling" as the schedule's `is_sampling`.

        Raises:
          ValueError: a step size without such phases.
        """
        if not isinstance(self.keep, str):
            return self
        found = getattr(step_size, "is_sampling", None)
        if found is None:
            raise ValueError(
                'keep="sampling" needs a step_size with sampling phases, such as '
                f"sgmcmc.schedules.Cyclical. Received: {step_size!r}. With a function as kernel, "
                "pass keep=schedule.is_sampling."
            )
        return dataclasses.replace(self, keep=found)

    @property
    def depends_on_fit(self) -> bool:
        """Whether burn-in or thinning follow from the number of steps of a `fit`."""
        return self._burnin is None or self._thinning is None

    @property
    def _burnin(self) -> int | None:
        ends_otherwise = self.num_burnin_epochs is not None or self.sampling_threshold is not None
        if self.num_burnin_steps is None and (ends_otherwise or self.keep is not None):
            return 0
        return self.num_burnin_steps

    @property
    def _thinning(self) -> int | None:
        chooses = self.keep is not None or self.mixing_distance is not None
        if self.num_steps_between_results is None and chooses:
            return 0
        return self.num_steps_between_results

    def over(self, steps_per_epoch: int | None, num_epochs: int) -> Collection:
        """Returns which states of a `fit` of so many steps and epochs are kept.

        Raises:
          ValueError: the number of steps is needed and unknown.
        """
        burnin, thinning = self._burnin, self._thinning
        if (burnin is None or thinning is None) and steps_per_epoch is None:
            raise ValueError(
                "collect must give burn-in and thinning, such as Collect(num_burnin_steps=1000, "
                "num_steps_between_results=9), where the data do not tell how many steps fit "
                "takes. Received: data of unknown length. fit(steps_per_epoch=...) works, too."
            )
        total = (steps_per_epoch or 0) * num_epochs
        burnin = total // 2 if burnin is None else burnin
        if thinning is None:
            in_epochs = (steps_per_epoch or 0) * (self.num_burnin_epochs or 0)
            left = total - max(burnin, in_epochs)
            if self.sampling_threshold is not None:
                left //= 2  # a guess: burn-in ends at an unknown step
            thinning = max(1, round((left if left > 0 else total) / self.num_results)) - 1
        has_threshold = self.sampling_threshold is not None
        return Collection(
            burnin,
            thinning,
            bool(self.num_burnin_epochs) or has_threshold,
            None if isinstance(self.keep, str) else self.keep,
            self.mixing_distance,
            has_threshold,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Chains:
    """The number of chains that run side by side on the same batches, and their starts.

    Examples:
      >>> from tfp_sgmcmc.keras import Chains
      >>> Chains(4).initial_states
      'initializers'

    Args:
      num_chains: C, the number of chains, each with its own start and noise. Samples have shape
        `[num_kept, C, ...]`. The model, its logs and its validation show the first chain.
      initial_states: where the chains start, except the first, which starts at the model's weights:
        "initializers" draws from the initializers of the weights, "model" takes the model's
        weights. "fresh" draws the first chain's start as well, and so does "initializers" without a
        kernel. A list of arrays `[C, ...]`, one for each trainable variable, starts all chains. So
        does a list of C trained models of the same architecture, of paths that `save` or
        `save_weights` wrote, or of `Posterior`s, whose last samples count (MILE, Sommer et al.
        2024), and a `Posterior` with a sample or a chain for each chain, such as `SWAG` draws.

    Raises:
      ValueError: `num_chains` is below 1, or `initial_states` is another word. In `fit`: they do
        not suit the model.
      TypeError: `num_chains` is no integer, or `initial_states` are none of these.
    """

    num_chains: int
    initial_states: Any = "initializers"

    def __post_init__(self) -> None:
        checks.integer("num_chains", self.num_chains, 1)
        check_starts(self.initial_states)


def _check_keep(keep: Any) -> None:
    """Raises TypeError unless `keep` is a function that returns one truth value at step 0."""
    if not callable(keep):
        raise TypeError(
            "keep must be a callable, step -> whether its state is kept. Received: "
            f"{checks.a_type(keep)}."
        )
    step = tf.zeros([], tf.int64)
    found = checks.accepts("keep", keep, step)(step)
    array = np.asarray(found)
    if array.dtype != np.bool_ or array.shape != ():
        raise TypeError(f"keep must return one truth value for a step. Received: {found!r}.")


def as_collect(value: Any) -> Collect:
    """Returns a `Collect`, with nothing given for None.

    Raises:
      TypeError: it is neither.
    """
    if value is not None and not isinstance(value, Collect):
        raise TypeError(
            "collect must be a sgmcmc.keras.Collect, such as Collect(num_burnin_steps=1000). "
            f"Received: {checks.a_type(value)}."
        )
    return Collect() if value is None else value


def checked_kernel(kernel: Any, step_size: StepSize | None) -> Any:
    """Returns the function target -> kernel that was given or named, or "auto" for "posterior".

    Raises:
      ValueError: another word, or a step size that does not go with it.
      TypeError: no function and no word.
    """
    if not isinstance(kernel, str) or kernel in ("auto", "posterior"):
        if not isinstance(kernel, str):
            checks.function("kernel", kernel, "target -> kernel")
        if step_size is not None:
            raise ValueError(
                "step_size must be None unless kernel is the name of a kernel. Received: "
                f"{step_size!r}. A function gives the kernel its step size, such as `lambda "
                'target: SGLD(target, step_size=target.learning_rate)`, and "auto" chooses one.'
            )
        return "auto" if isinstance(kernel, str) else kernel
    if kernel not in NAMED_KERNELS:
        raise ValueError(
            f'kernel must be "auto", the name of a kernel ({", ".join(NAMED_KERNELS)}), '
            f'"posterior" or a function, target -> kernel. Received: {kernel!r}.'
        )
    if step_size is None or (isinstance(step_size, str) and step_size != LEARNING_RATE):
        raise ValueError(
            f'step_size must be a number, a schedule or "{LEARNING_RATE}" with kernel='
            f'"{kernel}". Received: {step_size!r}. '
            "sgmcmc.keras.find_step_size(model, x, y, prior=...) suggests a number."
        )
    if not isinstance(step_size, str):
        check_positive("step_size", step_size)
    make = getattr(sgmcmc, kernel)

    def make_kernel(target: Any) -> Any:
        return make(target, target.learning_rate if isinstance(step_size, str) else step_size)

    return make_kernel


def accepts_old_arguments(init: _Init) -> _Init:
    """Makes a constructor take the flat arguments as well, with a DeprecationWarning."""

    @functools.wraps(init)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        if len(args) > 2 or _OLD & kwargs.keys():
            kwargs, spelling = _grouped(args[1:], kwargs)
            args = args[:1]
            message = f"Flat arguments of SamplerCallback are deprecated. Write: {spelling}"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
        init(*args, **kwargs)

    return cast(_Init, wrapped)


def forwards_old_attributes(cls: type[_Class]) -> type[_Class]:
    """Gives a callback the attributes that have moved, with a DeprecationWarning."""
    for old, (new, value) in _MOVED.items():
        setattr(cls, old, _forwarded(old, new, value))
    return cls


def _forwarded(old: str, new: str, value: Callable[[Any], Any]) -> property:
    def get(self: Any) -> Any:
        message = f"SamplerCallback.{old} is deprecated. Read sampler.{new}."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return value(self)

    return property(get, doc=f"Deprecated name of `{new}`.")


def _grouped(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Returns arguments by today's names, and the call that gives them.

    Raises:
      TypeError: an argument is given twice, or groups and flat arguments are mixed.
    """
    if len(args) > len(_POSITIONAL):
        raise TypeError(
            f"SamplerCallback takes kernel alone by position. Received: {len(args)} arguments."
        )
    given = dict(zip(_POSITIONAL, args, strict=False))
    kwargs = {"kernel" if name == "make_kernel_fn" else name: x for name, x in kwargs.items()}
    twice = sorted(given.keys() & kwargs.keys())
    mixed = sorted({"collect", "chains", "output"} & kwargs.keys())
    if twice or mixed:
        raise TypeError(
            f"SamplerCallback takes {', '.join(twice or mixed)} "
            f"{'once' if twice else 'or flat arguments'}. Received: both."
        )
    given |= kwargs
    missing = sorted({"kernel", "num_examples", "prior"} - given.keys())
    if missing:
        received = ", ".join(sorted(given)) or "no arguments"
        groups = ", ".join(sorted({_group(name) for name in _OLD & given.keys()}))
        advice = f" Write: {groups}." if groups else ""
        raise TypeError(
            f"SamplerCallback needs {', '.join(missing)} with flat arguments. Received: "
            f"{received}.{advice}"
        )
    if given.get("num_chains") is None and not isinstance(given.get("initial_states", ""), str):
        raise ValueError(
            "initial_states needs num_chains, which is None: a single chain starts at the "
            "model's weights."
        )
    flat = {name: x for name, x in given.items() if name not in _OLD}
    shown = {name: _text(name, x) for name, x in flat.items()}
    collect = {name: given.get(name, x) for name, x in _COLLECT.items()}
    flat["collect"] = Collect(**collect)
    numbers = [str(collect["num_burnin_steps"]), str(collect["num_steps_between_results"])]
    shown["collect"] = _call("Collect", numbers, given, list(_COLLECT)[2:])
    if given.get("num_chains") is not None:
        flat["chains"] = Chains(given["num_chains"], given.get("initial_states", "initializers"))
        shown["chains"] = str(given["num_chains"])
        if "initial_states" in given:
            shown["chains"] = _call("Chains", [shown["chains"]], given, ["initial_states"])
    path, seconds = given.get("directory"), given.get("seconds_between_commits", 10.0)
    place = Directory("." if path is None else path, seconds_between_commits=seconds)
    if path is not None:
        flat["output"], shown["output"] = place, _text("directory", path)
        if "seconds_between_commits" in given:
            shown["output"] = _call(
                "Directory", [shown["output"]], given, ["seconds_between_commits"]
            )
    kernel = shown.pop("kernel")
    rest = "".join(f", {name}={text}" for name, text in shown.items())
    return flat, f"SamplerCallback({kernel}{rest})"


def _group(name: str) -> str:
    """Returns how an argument that was flat is written in its group."""
    if name in _COLLECT:
        return f"collect=Collect({name}=...)"
    if name in ("num_chains", "initial_states"):
        is_number = name == "num_chains"
        return "chains=num_chains" if is_number else "chains=Chains(..., initial_states=...)"
    return "output=directory" if name == "directory" else f"output=Directory(..., {name}=...)"


def _call(name: str, first: list[str], given: dict[str, Any], others: list[str]) -> str:
    named = [f"{n}={_text(n, given[n])}" for n in others if given.get(n) is not None]
    return f"{name}({', '.join(first + named)})"


def _text(name: str, value: Any) -> str:
    """Returns how a value is written; the argument's name stands for one that is not short."""
    is_plain = value is None or isinstance(value, bool | int | float | str)
    return repr(value) if is_plain else name
