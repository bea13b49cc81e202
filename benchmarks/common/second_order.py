"""Control variates of second order in whitened coordinates, as methods with all that they cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common.logistic import gaussian_log_prior, log_likelihood
from benchmarks.common.methods import Cost, Method, constant, find_mode
from benchmarks.common.posteriors import Posterior

PILOT_DRAWS = 16


class _Choice(NamedTuple):
    """A minibatch, a friction, and whether the log likelihood is a `LinearModel`."""

    batch_size: int
    friction: float = 1.5
    is_linear: bool = True


_CHOICES = {
    f"underdamped Langevin + CV2, n = {name}": choice
    for name, choice in {
        "100": _Choice(100),
        "100, friction 1": _Choice(100, friction=1.0),
        "500": _Choice(500),
        "100, autodiff": _Choice(100, is_linear=False),
        "500, autodiff": _Choice(500, is_linear=False),
    }.items()
}
NAMES = (*_CHOICES,)


def second_order(p: Posterior, names: Sequence[str]) -> dict[str, Method]:
    """Returns those methods of `NAMES` that are in `names`.

    The step h = 1 is a standard deviation of Laplace's approximation, from a draw of which chains
    start. The cost before the first step is that of the mode, as for other samplers, and the
    processor seconds that `whiten` and `ControlVariate` took when they were called: the Hessian,
    the pilot, and all that they trace and compile.
    """
    found = {name: choice for name, choice in _CHOICES.items() if name in names}
    if not found:
        return {}
    mode, search = find_mode(p.target(1), len(p.mode))
    return {name: _method(p, mode, search, choice) for name, choice in found.items()}


def _method(p: Posterior, mode: np.ndarray, search: Cost, choice: _Choice) -> Method:
    total, dimension = p.x.shape
    n = min(choice.batch_size, total)
    begin = time.process_time()
    target = sgmcmc.MinibatchLogProb(
        lambda w: gaussian_log_prior(w, p.prior_precision),
        sgmcmc.LinearModel(_of_predictor) if choice.is_linear else _of_weights,
        (p.x, p.y.astype(np.float32)),
        n,
        chunk_size=total,
    )
    whitened, bijector = sgmcmc.whiten(target, mode)
    control = sgmcmc.ControlVariate(whitened, tf.zeros([dimension]), order=2, importance="pilot")
    seconds = time.process_time() - begin
    # Twice the Hessian, a gradient at the mode, and remainders at the pilot's draws and the mode.
    passes = 2 * dimension / 2 + 1 + PILOT_DRAWS + 1
    examples = n if choice.is_linear else 3 * n  # a product with the Hessian counts as a gradient
    return Method(
        lambda h: sgmcmc.UnderdampedLangevin(control, h, choice.friction),
        1.0,
        constant(examples),
        examples,
        1,
        np.random.default_rng(0).standard_normal(dimension),
        Cost(search.passes + passes, search.seconds + seconds),
        lambda z: bijector.forward(z).numpy(),
    )


def _of_predictor(eta: Any, y: Any) -> Any:
    return y * eta - tf.math.softplus(eta)


def _of_weights(w: Any, batch: Any) -> Any:
    return log_likelihood(w, {"x": batch[0], "y": batch[1]})
