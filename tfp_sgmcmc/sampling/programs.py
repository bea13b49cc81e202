"""Compiled programs of chains: kept for other runs, or written to a file.

`kept_loop` keeps compiled steps, so that a run with other numbers compiles nothing.
`export_program` writes a chain as a program that runs without TensorFlow.

A compiled program keeps the numbers that its functions read while they were traced. Another
evaluation of the same lambda expression gives an equal function, unless a variable that it reads
has another value since. Snapshots of what settings and functions hold tell whether a program still
fits.
"""

from __future__ import annotations

import functools
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tree

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks, xla
from tfp_sgmcmc.internal.replicas import Replicas
from tfp_sgmcmc.kernels.base import StochasticGradientKernel, check_kernel, is_schedule
from tfp_sgmcmc.sampling.loop import (
    Loop,
    Position,
    Program,
    log_prob_fn_of,
    repeat_chains,
    replicas_of,
    start_of,
    target_of,
)
from tfp_sgmcmc.sampling.run_fingerprint import schedule_values
from tfp_sgmcmc.sampling.steps import StepPlan
from tfp_sgmcmc.targets import Target
from tfp_sgmcmc.targets.base import kept_program
from tfp_sgmcmc.targets.streamed import StreamedLogProb
from tfp_sgmcmc.targets.validation.changed_functions import forget_if_changed, have_changed

_SETTINGS = ("step_size", "temperature", "friction")
_MOST_LOOPS = 8  # that a target keeps
_MOST_ENTRIES = 1_000  # of an array or a nest that is compared by its values
_DEPTH = 3  # of attributes of attributes
_LIBRARIES = {"builtins", "keras", "numpy", "tensorflow", "tensorflow_probability", "tfp_sgmcmc"}
_LARGE = Target, tf.Module, type, ModuleType, FunctionType  # whose attributes are not looked into


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
        loops = vars(kernel).setdefault("_kept_loops", _Loops())
        log_prob_fn = log_prob_fn_of(kernel)
        if log_prob_fn is not None and have_changed(loops.known, log_prob_fn, start.state):
            loops.clear()
    else:
        if replicas is None:
            forget_if_changed(target, start.state)
        fixed = {k: v for k, v in kernel.parameters.items() if k not in settings}
        fixed["values of schedules"] = _schedule_values(fixed)
        known = tf.nest.map_structure(lambda x: (x.shape, x.dtype), settings)
        key = type(kernel), fixed, str(known), trace_fn, view, *options
        loops = kept_program(target, "loops", (), list)  # which copies of the target share
    key = snapshot(key)
    for i, kept in enumerate(loops):
        if is_same(kept[0], key):
            del loops[i]  # and not `remove`, which compares tensors
            break
    else:

        def make(given: Any) -> Any:
            return type(kernel)(**kernel.parameters | given) if given else kernel

        kept = key, Loop(make, trace_fn, start, jit_compile, view=view, replicas=replicas)
    loops.append(kept)
    del loops[:-_MOST_LOOPS]
    return kept[1].with_values(settings)


def _schedule_values(parameters: dict[str, Any]) -> list[Any] | None:
    """Returns values of schedules, which may read what no snapshot looks into, or None."""
    try:
        return [schedule_values(name, value) for name, value in parameters.items()]
    except Exception:  # at a step that the run need not reach; if it does, it raises the error
        return None


class _Loops(list[Any]):
    """The loops of a kernel, which a copy by pickle or `copy` leaves out.

    Attributes:
      known: values of the log posterior of which the loops were made.
    """

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, Any] = {}

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        del protocol
        return _Loops, ()


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


def export_program(
    kernel: tfp.mcmc.TransitionKernel,
    initial_state: Any,
    num_results: int,
    path: str | os.PathLike[str],
    *,
    seed: Any = 0,
    num_burnin_steps: int = 0,
    num_steps_between_results: int = 0,
    num_chains: int | None = None,
    device_kind: str | None = None,
) -> Path:
    """Writes the compiled chain of `sample_chain` as StableHLO, with all arrays that it reads.

    It is the program that `sample_chain` with the same arguments passes to XLA. Any PJRT client,
    such as JAX's, can compile and run it on a machine without TensorFlow. It takes the steps of one
    call and returns the draws and the position after the last step. With that position as its
    inputs, it continues the chain. It runs on every device, and is fastest on those of
    `device_kind`. The draws equal those of `sample_chain` up to rounding.

    The file is a NumPy archive (`.npz`, read without pickle) with these entries:

    - `program`: StableHLO as MLIR bytecode, in bytes.
    - `header`: JSON with the names of `inputs` and `outputs` in the program's order, the
      `output_types` (pairs of dtype and shape), `num_results`, the number of steps of a call
      `num_steps`, and `steps_between`, from one draw to the next.
    - one entry for each input: `position_i` is the chain's position: the number of the step, the
      parts of the state, and the parts of the kernel's results. `rows` is the number of draws to
      keep, at most `num_results`. `first` is the number of steps to the first of them; to continue
      a chain, set it to `steps_between`. `seed` is the chain's seed, and `data_i` are arrays that
      the kernel captured.

    The outputs are `position_i` after the last step; `kept_i`, the draws of each part of the state,
    `[num_results, ...]`, and the step sizes; `is_finite`, whether all draws are finite; and
    `lost_at`, the first step whose log posterior was not finite, or 2^62.

    Examples:
      >>> import pathlib, tempfile
      >>> import numpy as np, tensorflow as tf, tensorflow_probability as tfp
      >>> import tfp_sgmcmc as sgmcmc
      >>> target = sgmcmc.FullDataLogProb(tfp.distributions.Normal(0., 1.).log_prob)
      >>> kernel = sgmcmc.SGLD(target, step_size=0.1)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = sgmcmc.export_program(
      ...         kernel, tf.zeros([4]), num_results=100, path=pathlib.Path(folder, "chain.npz"))
      ...     with np.load(path) as file:
      ...         inputs = file["rows"].item(), file["position_1"]
      >>> inputs
      (100, array([0., 0., 0., 0.], dtype=float32))

    Args:
      kernel: a kernel of this library or of `tfp.mcmc`.
      initial_state: a tensor or a nest of tensors; leading axes count chains.
      num_results: number of draws of a call.
      path: the file to write. An existing file is replaced.
      seed: an integer or two.
      num_burnin_steps: number of steps before the step of the first draw.
      num_steps_between_results: number of steps between two that are kept.
      num_chains: C; every part of `initial_state` is repeated to `[C, ...]`.
      device_kind: `"CPU"`, `"GPU"` or `"TPU"`, for which the program is made; None is the kind of
        this machine's device. It need not have one of the others.

    Returns:
      The path.

    Raises:
      ValueError: a number is out of range, the state does not fit the kernel, or the kernel reads
        variables, or batches that arrive during a run, which a program cannot hold.
      TypeError: an argument has the wrong type.
      OSError: the file cannot be written.
    """
    checks.eager("export_program")
    check_kernel("kernel", kernel)
    target = target_of(kernel)
    if replicas_of(target) is not None:
        raise ValueError(
            "kernel must take its steps on one device, as a program does. Received: a kernel on a "
            "ShardedLogProb with data on several replicas."
        )
    if isinstance(target, StreamedLogProb):
        raise ValueError(
            "kernel must have its data in memory, which the file holds. Received: a kernel on a "
            "StreamedLogProb, whose batches arrive during a run."
        )
    plan = StepPlan.checked(num_results, num_burnin_steps, num_steps_between_results)
    seed = random.as_seed(seed)
    path = checks.path("path", path)
    if path.is_dir() or not path.parent.is_dir():
        what = "a directory" if path.is_dir() else "in a directory that does not exist"
        raise ValueError(f"path must name a file in a directory. Received: {path}, {what}.")
    checks.optional(checks.integer, "num_chains", num_chains, 1)
    checks.optional(checks.one_of, "device_kind", device_kind, ("CPU", "GPU", "TPU"))
    position = start_of(kernel, repeat_chains(initial_state, num_chains))
    loop = Loop(lambda _: kernel, None, position, jit_compile=True, slots=plan.num_results)
    with xla.for_device_kind(device_kind):
        program = loop.program(
            position, plan.num_results, plan.num_burnin_steps + 1, plan.stride, seed
        )
    _write(path, program, _arrays(kernel, program), plan)
    return path


def _arrays(kernel: Any, program: Program) -> dict[str, np.ndarray]:
    """Returns the inputs as arrays that NumPy can store."""
    for name, x in program.inputs.items():
        if x.dtype == tf.resource:
            raise ValueError(
                "kernel must read only tensors, which the file can hold. Received: "
                f"{checks.a_type(kernel)} that reads a variable. A Keras model's likelihood does; "
                "pass its weights by model.stateless_call, as parts of the state."
            )
        if x.dtype == tf.bfloat16:
            raise ValueError(
                "kernel must have parts of a dtype that NumPy can store. Received: bfloat16 in "
                f"the input {name}."
            )
    return {name: x.numpy() for name, x in program.inputs.items()}


def _write(path: Path, program: Program, inputs: dict[str, np.ndarray], plan: StepPlan) -> None:
    header = {
        "format": 1,
        "inputs": [*inputs],
        "outputs": program.outputs,
        "output_types": program.output_types,
        "num_results": plan.num_results,
        "num_steps": plan.num_steps,
        "steps_between": plan.stride,
    }
    stablehlo = np.frombuffer(program.stablehlo, np.uint8)
    entries: dict[str, Any] = {"header": json.dumps(header), "program": stablehlo, **inputs}
    written = path.with_name(path.name + ".part")
    try:
        with written.open("wb") as file:
            np.savez(file, **entries)
        written.replace(path)
    finally:
        written.unlink(missing_ok=True)


def snapshot(value: Any) -> Any:
    """Returns what `value` holds now, for `is_same`.

    It looks into nests, small arrays and functions. A function holds its defaults, the variables of
    enclosing functions and of its module that it reads, and their attributes that it reads.
    Anything else is the object itself, whatever it holds.

    Examples:
      >>> scale = [1.0]
      >>> before, same = (snapshot(lambda x: scale[0] * x) for _ in range(2))
      >>> scale[0] = 2.0
      >>> is_same(before, same), is_same(before, snapshot(lambda x: scale[0] * x))
      (True, False)
    """
    return _held(value, None, frozenset())


def is_same(a: Any, b: Any) -> bool:
    """Returns whether two snapshots hold the same objects, or equal numbers and names."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(is_same(a[k], b[k]) for k in a)
    return isinstance(a, int | float | str | bytes | CodeType) and a == b


def _held(
    value: Any,
    module: Any,
    seen: frozenset[int],
    names: frozenset[str] = frozenset(),
    depth: int = _DEPTH,
) -> Any:
    """Looks into `value`, read by a function of `module`, and not into the functions `seen`.

    Of another object it holds the attributes by `names`, which the function reads.
    """

    def inner(x: Any) -> Any:
        return _held(x, module, seen, names, depth)

    if isinstance(value, FunctionType):
        is_foreign = module is not None and value.__globals__ is not module
        return value if is_foreign or id(value) in seen else _function(value, seen)
    if isinstance(value, MethodType) and isinstance(value.__self__, tfp.bijectors.Bijector):
        # Each access to a method makes another object. Bijectors do not change.
        return MethodType, value.__func__, value.__self__
    if isinstance(value, np.ndarray) and value.dtype != object:
        # Copied, because it may be written to later.
        is_small = value.size <= _MOST_ENTRIES
        content = value.tobytes() if is_small else zlib.crc32(value.tobytes())
        return np.ndarray, value.shape, value.dtype.str, content
    if isinstance(value, tuple | list) and len(value) <= _MOST_ENTRIES:
        return type(value), *map(inner, value)
    if isinstance(value, dict) and len(value) <= _MOST_ENTRIES:
        return {k: inner(x) for k, x in value.items()}
    if isinstance(value, functools.partial):
        parts = value.func, list(value.args), dict(value.keywords)
        return functools.partial, *map(inner, parts)
    owner = value.__self__ if isinstance(value, MethodType) else value
    if callable(value) and _is_of_user(owner) and id(owner) not in seen:
        seen = seen | {id(owner)}
        fn = value.__func__ if isinstance(value, MethodType) else type(value).__call__
        names = names.union(_names(getattr(fn, "__code__", None)))
        return type(owner), _held(fn, None, seen), {k: inner(x) for k, x in vars(owner).items()}
    if depth == 0 or not names or isinstance(value, FunctionType):
        return value
    # Methods and properties by these names read other attributes.
    classes = type(value).__mro__[-2::-1] if _is_of_user(value) else ()
    of_class = {k: v for c in classes for k, v in vars(c).items() if k in names}
    codes = [getattr(getattr(x, "fget", x), "__code__", None) for x in of_class.values()]
    known = names.union(*map(_names, codes))
    found = of_class | {k: v for k, v in getattr(value, "__dict__", {}).items() if k in known}
    return value, {k: _held(v, module, seen, known, depth - 1) for k, v in found.items()}


def _is_of_user(value: Any) -> bool:
    """Returns whether a value is an object of a plain class that no library defines."""
    home = type(value).__module__.partition(".")[0]
    return hasattr(value, "__dict__") and home not in _LIBRARIES and not isinstance(value, _LARGE)


def _function(function: FunctionType, seen: frozenset[int]) -> tuple[Any, ...]:
    """Returns a function's code, and what it reads besides its arguments."""
    module, seen = function.__globals__, seen | {id(function)}
    names = frozenset(_names(function.__code__))

    def look(value: Any) -> Any:
        return _held(value, module, seen, names)

    def enclosed() -> Iterator[Any]:
        for cell in function.__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:  # a variable without a value yet
                yield function
            else:
                yield look(value)

    return (
        FunctionType,
        function.__code__,
        _held(function.__defaults__, module, seen),
        _held(function.__kwdefaults__, module, seen),
        tuple(enclosed()),
        {name: look(module[name]) for name in sorted(names) if name in module},
    )


def _names(code: Any) -> Iterator[str]:
    """Yields the names of variables and attributes that code reads, with those of inner code."""
    if not isinstance(code, CodeType):
        return
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
