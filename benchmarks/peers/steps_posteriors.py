"""posteriors' samplers in its loop, not compiled, and SGD in PyTorch: a side of `steps.py`.

Runs with PyTorch's interpreter. Chains are a leading dimension of the parameters. The log posterior
is summed over them, so that one backward pass gives all gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import posteriors
import torch
from torch.nn import functional

from benchmarks.common.environment import num_cores, versions
from benchmarks.peers.steps_settings import FRICTIONS, STEP_SIZES, first_state, model
from benchmarks.peers.worker import Case, Runner, serve


def log_likelihood(parts: list[torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Returns the sum over examples and chains; `x` is `[n, D]` or `[chains, n, D]`."""
    if len(parts) == 1:
        logits = (x @ parts[0][..., None])[..., 0]
        return -functional.binary_cross_entropy_with_logits(
            logits, y.expand_as(logits), reduction="sum"
        )
    w1, b1, w2, b2 = parts
    hidden = torch.relu(x @ w1 + b1[..., None, :])
    logits = (hidden @ w2 + b2[..., None, :]).flatten(end_dim=-2)
    return -functional.cross_entropy(logits, y.flatten(), reduction="sum")


def as_tree(parts: list[torch.Tensor]) -> Any:
    return parts[0] if len(parts) == 1 else {f"part {i}": part for i, part in enumerate(parts)}


def make_runner(case: Case, x: np.ndarray, y: np.ndarray) -> Runner:
    torch.set_num_threads(num_cores())
    features, labels, total = torch.from_numpy(x), torch.from_numpy(y), len(x)
    own = case.num_chains > 1 and not case.shared_batch
    shape = (case.num_chains, case.batch_size) if own else (case.batch_size,)
    if case.num_chains > 1 and case.sampler == "SGNHT":
        raise NotImplementedError("all chains would share one thermostat")

    def minibatch() -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.randint(total, shape)
        return features[rows], labels[rows]

    def log_posterior(parts: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        parts = [parts] if isinstance(parts, torch.Tensor) else list(parts.values())
        prior = -0.5 * sum(part.square().sum() for part in parts)
        likelihood = total / case.batch_size * log_likelihood(parts, *batch)
        return prior + likelihood, torch.tensor([])

    h, friction = STEP_SIZES[model(x)][case.sampler], FRICTIONS[model(x)]

    def sgd(parts: list[torch.Tensor]) -> list[torch.Tensor]:
        for part in parts:
            part.requires_grad_()
        for _ in range(case.num_steps):
            log_prob, _ = log_posterior(as_tree(parts), minibatch())
            gradients = torch.autograd.grad(log_prob, parts)
            with torch.no_grad():
                for part, gradient in zip(parts, gradients, strict=True):
                    part.add_(gradient, alpha=h / 2)
        return parts

    def sample(parts: list[torch.Tensor]) -> list[torch.Tensor]:
        transform = {
            "SGLD": lambda: posteriors.sgmcmc.sgld.build(log_posterior, lr=h / 2),
            "SGHMC": lambda: posteriors.sgmcmc.sghmc.build(log_posterior, lr=h, alpha=friction),
            "SGNHT": lambda: posteriors.sgmcmc.sgnht.build(
                log_posterior, lr=h, alpha=friction, xi=friction
            ),
        }[case.sampler]()
        state = transform.init(as_tree(parts))
        for _ in range(case.num_steps):
            state, _ = transform.update(state, minibatch(), inplace=True)
        return [state.params] if len(parts) == 1 else list(state.params.values())

    def run(seed: int) -> list[np.ndarray]:
        torch.manual_seed(seed)
        parts = [torch.from_numpy(part.copy()) for part in first_state(x, case.num_chains)]
        found = sgd(parts) if case.sampler == "SGD" else sample(parts)
        return [part.detach().numpy() for part in found]

    return run


if __name__ == "__main__":
    serve(make_runner, versions("posteriors", "torch"))
