"""Choices in the directory of a run, so that it goes on without a second pilot."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.adaptation.chains import Gradients
from tfp_sgmcmc.adaptation.coordinates import scaled
from tfp_sgmcmc.adaptation.excess_variance import Noise
from tfp_sgmcmc.adaptation.prepared import Prepared
from tfp_sgmcmc.adaptation.settings import Choices
from tfp_sgmcmc.internal.nest import State
from tfp_sgmcmc.kernels import NOGIN, UnderdampedLangevin
from tfp_sgmcmc.storage import npz
from tfp_sgmcmc.targets import ControlVariate, FullDataLogProb, MinibatchLogProb, whiten

FILE = "choices.npz"
_ARRAYS = ("center", "hessian", "start")


def save(folder: Path, prepared: Prepared, seed: tf.Tensor) -> None:
    """Writes choices, explanation and the user's seed before the first step."""
    c = prepared.choices
    leaves = [np.asarray(x) for x in tf.nest.flatten(c.center)]
    arrays = {f"center{i}": x for i, x in enumerate(leaves)} | {"start": c.start}
    if c.hessian is not None:
        arrays["hessian"] = c.hessian
    plain = {k: v for k, v in dataclasses.asdict(c).items() if k not in _ARRAYS}
    header = {
        "choices": plain,
        "dtype": c.start.dtype.name,
        "has_hessian": c.hessian is not None,
        "num_parts": len(leaves),
        "lines": prepared.lines,
        "flags": prepared.flags,
        "given_seed": seed.numpy().tolist(),
    }
    npz.write(folder / FILE, header, arrays)


def load(
    folder: Path,
    problem: MinibatchLogProb,
    state: State,
    seed: tf.Tensor | None,
    jit_compile: bool = True,
) -> Prepared | None:
    """Returns what an earlier process chose, or None.

    Raises:
      ValueError: the file is damaged, or the run has another seed or state.
    """
    if not (folder / FILE).exists():
        return None
    with npz.reading(folder / FILE, "a run of `sample`") as (header, array):
        count, dtype = header["num_parts"], header["dtype"]
        leaves = [array(f"center{i}", dtype) for i in range(count)]
        start = array("start", dtype)
        hessian = array("hessian", "float64") if header["has_hessian"] else None
        plain, given = header["choices"], header["given_seed"]
        lines, flags = tuple(header["lines"]), tuple(header["flags"])
    if seed is not None and seed.numpy().tolist() != given:
        raise ValueError(
            f"seed must be that of the run in {folder}, {given}. Received: {seed.numpy().tolist()}."
        )
    parts = tf.nest.flatten(state)
    if [x.shape for x in leaves] != [tuple(x.shape) for x in parts]:
        raise ValueError(
            f"initial_state must have parts of the shapes of the run in {folder}, "
            f"{[x.shape for x in leaves]}. Received: {[tuple(x.shape) for x in parts]}."
        )
    for name in ("seed", "predicted_excess", "measured_excess", "run_excess"):
        plain[name] = None if plain[name] is None else tuple(plain[name])
    center = tf.nest.pack_sequence_as(state, leaves)
    choices = Choices(center=center, hessian=hessian, start=start, **plain)
    return dataclasses.replace(rebuilt(problem, choices, jit_compile), lines=lines, flags=flags)


def rebuilt(problem: MinibatchLogProb, choices: Choices, jit_compile: bool) -> Prepared:
    """Returns the kernel that `choices` describe."""
    noise = None
    center = tf.nest.map_structure(tf.constant, choices.center)
    hessian = choices.hessian
    if hessian is not None and hessian.ndim == 1:
        target, bijector = scaled(problem, center, -1 / hessian)
    else:
        given: dict[str, Any] = {} if hessian is None else {"hessian": hessian}
        target, bijector = whiten(problem, center, **given)
    arguments: dict[str, Any] = choices.arguments
    estimates: Any = FullDataLogProb(target)
    if choices.sampler == "UnderdampedLangevin":
        zero = tf.zeros(choices.start.shape[-1:], choices.start.dtype)
        control = ControlVariate(target, zero, order=2, importance="pilot")
        estimates, noise = control.with_batch_size(choices.batch_size or 1), Noise(control)
        kernel = UnderdampedLangevin(estimates, **arguments)
    elif choices.sampler == "NOGIN":
        estimates = target.with_minibatches(choices.batch_size or 1)
        kernel = NOGIN(estimates, **arguments)
    else:
        kernel = getattr(tfp.mcmc, choices.sampler)(target, **arguments)
    gradients = Gradients(estimates, jit_compile)
    return Prepared(kernel, bijector, gradients, choices, (), noise=noise)
