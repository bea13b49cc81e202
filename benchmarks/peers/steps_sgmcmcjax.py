"""SGMCMCJax's kernels in one `jax.lax.scan`: a side of `steps.py`.

Runs with the old JAX that SGMCMCJax needs. Kernels are built inside the compiled function, so that
the data are arguments. As constants they would take minutes to compile.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from sgmcmcjax import kernels

from benchmarks.common.environment import versions
from benchmarks.peers.steps_jax import log_likelihood, log_prior, runner
from benchmarks.peers.steps_settings import FRICTIONS, NUM_INNER_STEPS, STEP_SIZES, model
from benchmarks.peers.worker import Case, Runner, serve


def make_runner(case: Case, x: np.ndarray, y: np.ndarray) -> Runner:
    if case.sampler == "SGD":
        raise NotImplementedError("plain JAX is in the column of BlackJAX")
    if case.shared_batch:
        raise NotImplementedError("the kernel of each chain draws a minibatch")
    h, friction = STEP_SIZES[model(x)][case.sampler], FRICTIONS[model(x)]
    build = getattr(kernels, f"build_{case.sampler.lower()}_kernel")
    options: dict[str, Any] = {  # its velocity is h p
        "SGLD": {"dt": h / 2},  # theta + dt gradient + N(0, 2 dt)
        "SGHMC": {"dt": h**2, "alpha": h * friction, "L": NUM_INNER_STEPS},
        "SGNHT": {"dt": h**2, "a": h * friction},
    }[case.sampler]
    num_draws = case.num_steps // options.get("L", 1)

    def run(key: jax.Array, parts: Any, *data: jax.Array) -> Any:
        init, kernel, get_params = build(
            loglikelihood=log_likelihood,
            logprior=log_prior,
            data=data,
            batch_size=case.batch_size,
            **options,
        )

        def one_chain(key: jax.Array, parts: Any) -> Any:
            def step(state: Any, i_and_key: Any) -> tuple[Any, None]:
                return kernel(*i_and_key, state), None

            key, init_key = jax.random.split(key)
            keys = jax.random.split(key, num_draws)
            state, _ = jax.lax.scan(
                step, init(init_key, parts), (jax.numpy.arange(num_draws), keys)
            )
            return get_params(state)

        if case.num_chains == 1:
            return one_chain(key, parts)
        return jax.vmap(one_chain)(jax.random.split(key, case.num_chains), parts)

    return runner(run, case, x, y)


if __name__ == "__main__":
    serve(make_runner, versions("sgmcmcjax", "jax"))
