"""The flat arguments and the attributes that `SamplerCallback` had until 0.2, for one release."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

from tfp_sgmcmc.keras.options import Chains, Collect
from tfp_sgmcmc.storage.directory import Directory

_Class = TypeVar("_Class")
_Init = TypeVar("_Init", bound=Callable[..., None])
_POSITIONAL = (
    "make_kernel_fn", "num_examples", "prior", "num_burnin_steps", "num_steps_between_results"
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
_CHAINS = {"num_chains": None, "initial_states": "initializers"}
_OUTPUT = {"directory": None, "seconds_between_commits": 10.0}
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
_OLD = {"make_kernel_fn", *_COLLECT, *_CHAINS, *_OUTPUT}


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
    first = "kernel" if "kernel" in kwargs else "make_kernel_fn"
    given = dict(zip(_POSITIONAL, args, strict=False))
    twice = sorted(given.keys() & kwargs.keys() | ({"kernel"} & kwargs.keys() if args else set()))
    mixed = sorted({"collect", "chains", "output"} & kwargs.keys())
    if twice or mixed:
        raise TypeError(
            f"SamplerCallback takes {', '.join(twice or mixed)} "
            f"{'once' if twice else 'or flat arguments'}. Received: both."
        )
    given |= kwargs
    missing = sorted({first, "num_examples", "prior"} - given.keys())
    if missing:
        raise TypeError(f"SamplerCallback needs {', '.join(missing)}. Received: neither.")
    if given.get("num_chains") is None and not isinstance(given.get("initial_states", ""), str):
        raise ValueError(
            "initial_states needs num_chains, which is None: a single chain starts at the "
            "model's weights."
        )
    flat = {name: x for name, x in given.items() if name not in _OLD}
    flat["kernel"] = given.get("kernel", given.get("make_kernel_fn"))
    shown = {"kernel": _text("kernel", flat["kernel"])}
    shown |= {name: _text(name, x) for name, x in flat.items() if name != "kernel"}
    collect = {name: given.get(name, x) for name, x in _COLLECT.items()}
    flat["collect"] = Collect(**collect)
    numbers = [str(collect["num_burnin_steps"]), str(collect["num_steps_between_results"])]
    shown["collect"] = _call("Collect", numbers, given, list(_COLLECT)[2:])
    if given.get("num_chains") is not None:
        flat["chains"] = Chains(given["num_chains"], given.get("initial_states", "initializers"))
        own = "initial_states" in given
        shown["chains"] = (
            _call("Chains", [str(given["num_chains"])], given, ["initial_states"])
            if own
            else str(given["num_chains"])
        )
    seconds = given.get("seconds_between_commits", _OUTPUT["seconds_between_commits"])
    if given.get("directory") is not None or seconds != _OUTPUT["seconds_between_commits"]:
        place = Directory("." if given.get("directory") is None else given["directory"],
                          seconds_between_commits=seconds)  # fmt: skip
        if given.get("directory") is not None:
            flat["output"] = place
            path = _text("directory", given["directory"])
            shown["output"] = path
            if "seconds_between_commits" in given:
                shown["output"] = _call("Directory", [path], given, ["seconds_between_commits"])
    kernel = shown.pop("kernel")
    rest = "".join(f", {name}={text}" for name, text in shown.items())
    return flat, f"SamplerCallback({kernel}{rest})"


def _call(name: str, first: list[str], given: dict[str, Any], others: list[str]) -> str:
    named = [f"{n}={_text(n, given[n])}" for n in others if given.get(n) is not None]
    return f"{name}({', '.join(first + named)})"


def _text(name: str, value: Any) -> str:
    """Returns how a value is written; the argument's name stands for one that is not short."""
    is_plain = value is None or isinstance(value, bool | int | float | str)
    return repr(value) if is_plain else name
