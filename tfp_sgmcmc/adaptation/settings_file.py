"""The file in a run's directory that holds its choices, so that resuming needs no second pilot."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.adaptation.coordinates import standardize
from tfp_sgmcmc.adaptation.hierarchies.noncentering import noncentered
from tfp_sgmcmc.adaptation.independent_draws import with_proposal
from tfp_sgmcmc.adaptation.langevin import NUM_STATES
from tfp_sgmcmc.adaptation.pilot import Gradients
from tfp_sgmcmc.adaptation.settings import Choices, PreparedKernel
from tfp_sgmcmc.internal.nest import State
from tfp_sgmcmc.kernels import NOGIN, UnderdampedLangevin
from tfp_sgmcmc.sampling.result import Flag
from tfp_sgmcmc.sampling.run_fingerprint import describe_all_data
from tfp_sgmcmc.storage import npz
from tfp_sgmcmc.storage.checkpoint import check_same
from tfp_sgmcmc.targets import ControlVariate, FullDataLogProb, MinibatchLogProb, whiten
from tfp_sgmcmc.targets.control_variates.control_variate import RemainderCovariance

FILE = "choices.npz"
_VERSION = 3  # of the format; raise it when the fields of `Choices` change
_ARRAYS = ("center", "hessian", "start")
_DAMAGED = " Put a copy of it back, or use a new directory."
_PLAIN = {field.name for field in dataclasses.fields(Choices)} - {*_ARRAYS}


def describe_call(problem: MinibatchLogProb, state: State, jit_compile: bool) -> dict[str, Any]:
    """Returns JSON values that a run in a directory must share with the call that began it."""
    return {"jit_compile": jit_compile, **describe_all_data(problem, state)}


def save(
    folder: Path,
    prepared: PreparedKernel,
    seed: tf.Tensor,
    problem: MinibatchLogProb,
    state: State,
    jit_compile: bool,
) -> None:
    """Writes choices, explanation, the user's seed, and what identifies the call."""
    c = prepared.choices
    leaves = [np.asarray(x) for x in tf.nest.flatten(c.center)]
    arrays = {f"center{i}": x for i, x in enumerate(leaves)} | {"start": c.start}
    if c.hessian is not None:
        arrays["hessian"] = c.hessian
    header = {
        "version": _VERSION,
        "choices": {name: getattr(c, name) for name in _PLAIN},
        "dtype": c.start.dtype.name,
        "has_hessian": c.hessian is not None,
        "num_parts": len(leaves),
        "lines": prepared.lines,
        "flags": [[f.grade, f.cause, f.remedy] for f in prepared.flags],
        "given_seed": seed.numpy().tolist(),
        "call": describe_call(problem, state, jit_compile),
    }
    npz.write(folder / FILE, header, arrays)


def forget(folder: Path) -> None:
    """Removes the settings of a run that has no draws yet."""
    (folder / FILE).unlink(missing_ok=True)


def saved_jit_compile(folder: Path) -> bool | None:
    """Returns whether XLA compiles the run in a directory; None if it has no choices yet."""
    if not (folder / FILE).exists():
        return None
    with npz.reading(folder / FILE, "a run of `sample`", _DAMAGED) as (header, _):
        return header.get("call", {}).get("jit_compile")


def load(
    folder: Path,
    problem: MinibatchLogProb,
    state: State,
    seed: tf.Tensor | None,
    num_chains: int,
    jit_compile: bool = True,
) -> PreparedKernel | None:
    """Returns the choices of an earlier process, or None if there are none.

    Raises:
      ValueError: the file is damaged or has another format, or the run has another seed, start,
        number of chains, prior, likelihood or data.
    """
    path = folder / FILE
    if not path.exists():
        return None
    with npz.reading(path, "a run of `sample`", _DAMAGED) as (header, array):
        version = header.get("version", 1)  # 0.2.0 wrote no version
        plain = {"noncentered": [], **header["choices"]}  # version 2 did not know it
        is_known = _VERSION - 2 <= version <= _VERSION and {*plain} == _PLAIN
        if is_known:
            count, dtype = header["num_parts"], header["dtype"]
            leaves = [array(f"center{i}", dtype) for i in range(count)]
            start = array("start", dtype)
            hessian = array("hessian", "float64") if header["has_hessian"] else None
            lines = tuple(header["lines"])
            flags = tuple(
                Flag("wrong", flag) if isinstance(flag, str) else Flag(*flag)  # str: version 1
                for flag in header["flags"]
            )
            given, call = header["given_seed"], header.get("call", {})  # 0.2.0 wrote no call
    if not is_known:
        differences = [f"lacks {name}" for name in sorted(_PLAIN - {*plain})]
        differences += [f"has the unknown {name}" for name in sorted({*plain} - _PLAIN)]
        raise ValueError(
            f"{path} must hold choices of format version {_VERSION}. Received: "
            f"{', '.join([f'version {version}', *differences])}. Another version of tfp_sgmcmc "
            "wrote it: go on with that version, or use a new directory."
        )
    if seed is not None and seed.numpy().tolist() != given:
        raise ValueError(
            f"seed must be {given}, the seed of the run in {folder}. Received: "
            f"{seed.numpy().tolist()}."
        )
    at = noncentered(problem, state, plain["noncentered"])[1] if plain["noncentered"] else state
    parts = tf.nest.flatten(at)
    is_mixture = plain["arguments"].get("weights") is not None
    shapes = [x.shape[is_mixture:] for x in leaves]
    if shapes != [tuple(x.shape) for x in parts]:
        raise ValueError(
            f"initial_state must have parts of shapes {shapes}, as in the run "
            f"in {folder}. Received: {[tuple(x.shape) for x in parts]}."
        )
    expected = {"num_chains": num_chains, **describe_call(problem, state, jit_compile)}
    saved = {"num_chains": len(start), **call}
    check_same(f"The run in {folder}", saved, {n: x for n, x in expected.items() if n in saved})
    for name in ("seed", "predicted_excess", "measured_excess", "run_excess", "noncentered"):
        plain[name] = None if plain[name] is None else tuple(plain[name])
    center = tf.nest.pack_sequence_as(at, leaves)
    choices = Choices(center=center, hessian=hessian, start=start, **plain)
    prepared = rebuild(problem, state, choices, jit_compile)
    return dataclasses.replace(prepared, lines=lines, flags=flags)


def rebuild(
    problem: MinibatchLogProb, state: State, choices: Choices, jit_compile: bool
) -> PreparedKernel:
    """Returns the kernel that `choices` describe."""
    if choices.noncentered:
        problem, state = noncentered(problem, state, choices.noncentered)
    noise = None
    center = tf.nest.map_structure(tf.constant, choices.center)
    if choices.sampler == "IndependentMetropolis":
        return with_proposal(problem, choices)
    hessian = choices.hessian
    if hessian is not None and choices.is_standardized:
        target, bijector = standardize(problem, center, hessian)
    else:
        target, bijector = whiten(problem, center, "auto" if hessian is None else hessian)
    n, estimates = choices.batch_size or 1, FullDataLogProb(target)
    if choices.sampler == "UnderdampedLangevin":
        zero = tf.zeros(choices.start.shape[-1:], choices.start.dtype)
        control = ControlVariate(target, zero, order=2, importance="pilot")
        estimates, noise = control.with_batch_size(n), RemainderCovariance(control, NUM_STATES)
        kernel = UnderdampedLangevin(estimates, **choices.arguments)
    elif choices.sampler == "NOGIN":
        estimates = target.with_minibatches(n)
        kernel = NOGIN(estimates, **choices.arguments)
    else:
        kernel = getattr(tfp.mcmc, choices.sampler)(target, **choices.arguments)
    gradients = Gradients(estimates, jit_compile)
    return PreparedKernel(kernel, bijector, gradients, choices, (), noise=noise)
