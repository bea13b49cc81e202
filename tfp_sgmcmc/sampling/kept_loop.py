"""Keeps compiled steps, so that a run with other numbers compiles nothing."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp
import tree

from tfp_sgmcmc.internal.replicas import Replicas
from tfp_sgmcmc.kernels.base import StochasticGradientKernel, is_schedule
from tfp_sgmcmc.sampling.loop import Loop, Position
from tfp_sgmcmc.targets import Target
from tfp_sgmcmc.targets.base import kept_program

_SETTINGS = ("step_size", "temperature", "friction")
_MOST_LOOPS = 8  # that a target keeps


def kept_loop(
    kernel: tfp.mcmc.TransitionKernel,
    trace_fn: Callable[[Any, Any], Any] | None,
    start: Position,
    jit_compile: bool,
    view: Callable[[Any], Any] | None = None,
    replicas: Replicas | None = None,
) -> Loop:
    """Returns the loop of a kernel, which is kept: another run compiles nothing.

    The arguments are those of `Loop`. The seed, the data and the number of steps may be others. The
    target keeps the loops of this library's kernels, whose step size, temperature and friction may
    be other numbers too. Any other kernel keeps its own loop.
    """
    specs = [None if x is None else (x.shape, x.dtype) for x in tree.flatten(tuple(start))]
    structure = tree.map_structure(lambda _: 0, tuple(start))
    options = replicas, jit_compile, str(structure), str(specs)
    settings = _settings_of(kernel)
    target = getattr(kernel, "target_log_prob_fn", None)
    if settings is None or not isinstance(target, Target):
        key, settings = (kernel, trace_fn, view, *options), ()
        loops = vars(kernel).setdefault("_kept_loops", [])
    else:
        fixed = {k: v for k, v in kernel.parameters.items() if k not in settings}
        known = tf.nest.map_structure(lambda x: (x.shape, x.dtype), settings)
        key = type(kernel), fixed, str(known), trace_fn, view, *options
        loops = kept_program(target, "loops", (), list)  # which copies of the target share
    for kept in loops:
        if _is_same(kept[0], key):
            loops.remove(kept)
            break
    else:
        make = _with_settings(kernel) if settings else lambda _: kernel
        kept = key, Loop(make, trace_fn, start, jit_compile, view=view, replicas=replicas)
    loops.append(kept)
    del loops[:-_MOST_LOOPS]
    return kept[1].with_values(settings)


def _settings_of(kernel: tfp.mcmc.TransitionKernel) -> dict[str, Any] | None:
    """Returns those numbers of a kernel that its steps may take as arguments, as tensors.

    Returns None for a kernel of another library, which may read the numbers in its constructor.
    """
    is_own = type(kernel).__module__.startswith("tfp_sgmcmc.")
    if not (is_own and isinstance(kernel, StochasticGradientKernel)):
        return None
    given = {name: kernel.parameters.get(name) for name in _SETTINGS}
    return {
        name: tf.nest.map_structure(_as_argument, value)
        for name, value in given.items()
        if value is not None and not any(map(is_schedule, tf.nest.flatten(value)))
    }


def _as_argument(number: Any) -> tf.Tensor:
    # float64 keeps all digits of a Python number until the kernel rounds it to the state's dtype.
    is_python = isinstance(number, int | float)
    return tf.convert_to_tensor(number, tf.float64 if is_python else None)


def _with_settings(kernel: StochasticGradientKernel) -> Callable[[Any], Any]:
    make, parameters = type(kernel), kernel.parameters
    return lambda settings: make(**{**parameters, **settings})


def _is_same(a: Any, b: Any) -> bool:
    """Returns whether two values are one object, or equal numbers, names, nests or functions."""
    if isinstance(a, FunctionType) and isinstance(b, FunctionType):
        # A lambda expression makes a new function each time that it is evaluated.
        return a.__globals__ is b.__globals__ and _is_same(_parts_of(a), _parts_of(b))
    if type(a) is type(b) and isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(_is_same, a, b))
    if type(a) is type(b) and isinstance(a, dict):
        return a.keys() == b.keys() and all(_is_same(a[k], b[k]) for k in a)
    return a is b or (type(a) is type(b) and isinstance(a, int | float | str) and a == b)


def _parts_of(function: FunctionType) -> tuple[Any, ...]:
    try:
        enclosed = tuple(id(cell.cell_contents) for cell in function.__closure__ or ())
    except ValueError:  # a variable without a value yet
        enclosed = (id(function),)
    return function.__code__, function.__defaults__, function.__kwdefaults__, enclosed
