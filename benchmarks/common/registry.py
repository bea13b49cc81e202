"""The registry of samplers: one row for each kernel, which tables and comparisons read.

A sampler that is added here appears in the README's table and in the benchmarks without a further
edit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tfp_sgmcmc as sgmcmc


class Variant(NamedTuple):
    """A line of the README's table that has no registry row, such as a way to use a kernel.

    Attributes:
      name: the kernel and what is added to it, in Markdown.
      update: the change to the kernel's formula.
      when: when to use it.
    """

    name: str
    update: str
    when: str


class RegisteredSampler(NamedTuple):
    """A row of the registry.

    Attributes:
      name: the public name of the kernel.
      label: the name in tables of benchmarks.
      update: the update formula, in the notation of the README.
      when: when to use the sampler.
      make: `(target, step, friction, noise, covariance) -> kernel`. `target` is a
        `sgmcmc.targets.Target`. `step` is h, a time: overdamped samplers take epsilon = h^2, and
        SGFS takes alpha = 2 / h, so that its largest step is h = infinity. `noise` is the largest
        eigenvalue of the covariance of the gradient noise. A maker ignores the arguments that its
        kernel does not need.
      uses_covariance: whether the kernel takes a `covariance` of the gradient noise.
      all_data: whether each step evaluates all N examples.
      is_fisher_scoring: whether the covariance stands for the Fisher information. Targets with
        control variates, which give differences of scores, are then unsuitable.
      num_gradients: gradient estimates of a step.
      variants: further lines of the README's table.
    """

    name: str
    label: str
    update: str
    when: str
    make: Callable[[Any, Any, Any, Any, Any], Any]
    uses_covariance: bool = False
    all_data: bool = False
    is_fisher_scoring: bool = False
    num_gradients: int = 1
    variants: tuple[Variant, ...] = ()


SAMPLERS = (
    RegisteredSampler(
        "SGLD",
        "SGLD",
        "θ ← θ + ε/2 (M g + T div M) + (ε T)^½ M^½ z",
        "try this first: steps are cheap, but must be small, as the bias is of order ε",
        lambda target, h, *_: sgmcmc.SGLD(target, h**2),
        variants=(
            Variant(
                "`SGLD` with `RMSprop`",
                "as `SGLD`, with M = diag(1/(δ + √v))",
                "coordinates of very different scales, networks (pSGLD)",
            ),
            Variant(
                "`SGLD` with `PositionDependent`",
                "as `SGLD`, with M = M(θ)",
                "a known geometry, such as the natural gradient of ICA",
            ),
            Variant(
                "`SGLD` on `GrowingBatch`",
                "as `SGLD`, with n ← min(1.1 n, N)",
                "a fast start that ends with full-data gradients (hybrid SGLD)",
            ),
        ),
    ),
    RegisteredSampler(
        "ModifiedSGLD",
        "mSGLD",
        "θ ← θ + ε/2 g + (ε T)^½ (I − ε/8T Σ) z",
        "SGLD without the bias of the gradient noise, to first order",
        lambda target, h, friction, noise, c: sgmcmc.ModifiedSGLD(target, h**2, c),
        uses_covariance=True,
    ),
    RegisteredSampler(
        "SGFS",
        "SGFS",
        "θ ← θ + 2 (γ N V + 4B/ε)^-1 (g + (4 T B/ε)^½ z)",
        "large, preconditioned steps; exact for a Gaussian posterior at every step size",
        lambda target, h, friction, noise, c: sgmcmc.SGFS(target, alpha=2 / h, covariance=c),
        uses_covariance=True,
        is_fisher_scoring=True,
    ),
    RegisteredSampler(
        "UnderdampedLangevin",
        "underdamped Langevin",
        "BAOAB or OBABO, one gradient a step",
        "exact or nearly exact gradients; momenta carry the chain along narrow valleys",
        lambda target, h, friction, *_: sgmcmc.UnderdampedLangevin(target, h, friction),
    ),
    RegisteredSampler(
        "SGHMC",
        "SGHMC",
        "θ ← θ + h p; p ← p + h g − h A p + (2h (A T I − h/2 Σ))^½ z",
        "gradient noise of known Σ, with a friction above h λmax(Σ)/2",
        lambda target, h, friction, noise, c: sgmcmc.SGHMC(target, h, friction + h * noise, c),
        uses_covariance=True,
    ),
    RegisteredSampler(
        "SGNHT",
        "SGNHT",
        "p ← p + h g − h ξ p + (2 A h T)^½ z; ξ ← ξ + h/μ (p·p/D − T)",
        "gradient noise of unknown size that is the same everywhere",
        lambda target, h, friction, *_: sgmcmc.SGNHT(target, h, friction),
    ),
    RegisteredSampler(
        "CCAdL",
        "CCAdL",
        "the step of `NOGIN` with noise for A, and the friction ξ ← ξ + h/μ (p·(p + h/2 g)/D − T)",
        "gradient noise that changes with θ",
        lambda target, h, friction, noise, c: sgmcmc.CCAdL(target, h, friction, c),
        uses_covariance=True,
    ),
    RegisteredSampler(
        "NOGIN",
        "NOGIN",
        "θ ← θ + h/2 p; p ← p + k; p ← 2 ((1 + κ) I + h²/4T Σ)^-1 p − p; p ← p + k; θ ← θ + h/2 p",
        "the largest steps: second order at every noise level, exact for a Gaussian posterior",
        lambda target, h, friction, noise, c: sgmcmc.NOGIN(target, h, friction, c),
        uses_covariance=True,
    ),
    RegisteredSampler(
        "ReplicaExchangeSGLD",
        "replica exchange SGLD",
        "`SGLD` at several temperatures, with swaps that are corrected for noisy energies",
        "posteriors with several modes",
        # Swaps have little bias only between near temperatures, as energies are noisy.
        lambda target, h, *_: sgmcmc.ReplicaExchangeSGLD(target, h**2, (1.0, 1.1)),
        num_gradients=2,  # one for each temperature
    ),
    RegisteredSampler(
        "CorrectedLangevin",
        "corrected Langevin",
        "the step of `SGLD` on all data, with a Metropolis-Hastings test",
        "an exact baseline when N is small enough",
        lambda target, h, *_: sgmcmc.CorrectedLangevin(target, h**2),
        all_data=True,
        variants=(
            Variant(
                "`IndependentMetropolis`",
                "draws of a fitted normal with heavy tails, with a Metropolis-Hastings test",
                "posteriors near a normal, D up to hundreds; `sample` begins with it, and "
                "checks it by importance weights",
            ),
        ),
    ),
)


def table() -> str:
    """Returns the README's Markdown table of samplers.

    >>> print(table().splitlines()[0])
    | kernel | update | when |
    """
    lines = [("kernel", "update", "when"), ("---",) * 3]
    for row in SAMPLERS:
        lines += [(f"`{row.name}`", row.update, row.when), *row.variants]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
