"""NumPyro's NUTS on a posterior of `time_to_answer`, in an environment that has NumPyro.

    python -m benchmarks.cost.numpyro_nuts PROBLEM.npz NUM_RESULTS

The file has `family`, the arrays of the data, and `scale`, that of the prior of a regression's
sigma, or 0 for a flat one. It prints as JSON the processor seconds of two calls of `MCMC.run`, the
second with another key, and the effective samples of the worst parameter. Four chains, vectorised,
start at zeros and take 500 steps of NumPyro's adaptation of the step and a diagonal metric.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

NUM_CHAINS, NUM_WARMUP = 4, 500


def main() -> None:
    path, num_results = sys.argv[1], int(sys.argv[2])
    import jax
    import numpyro

    with np.load(path, allow_pickle=False) as file:
        data = dict(file)
    family, scale = str(data.pop("family")), float(data.pop("scale"))
    if data["y"].dtype == np.float64:
        numpyro.enable_x64()
    model = models()[family]
    # All sites are unconstrained, so NumPyro's radius of 0 starts at zeros.
    kernel = numpyro.infer.NUTS(model, init_strategy=numpyro.infer.init_to_uniform(radius=0.0))
    mcmc = numpyro.infer.MCMC(
        kernel,
        num_warmup=NUM_WARMUP,
        num_samples=num_results,
        num_chains=NUM_CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    seconds, ess = [], 0.0
    for seed in range(2):
        began = time.process_time()
        mcmc.run(jax.random.PRNGKey(seed), scale=scale, **data)
        draws = jax.tree.map(np.asarray, mcmc.get_samples(group_by_chain=True))
        seconds.append(time.process_time() - began)
        sizes = map(numpyro.diagnostics.effective_sample_size, draws.values())
        ess = min(float(np.min(size)) for size in sizes)
    print(json.dumps({"seconds": seconds, "ess": ess}))


def models() -> dict[str, Any]:
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    def logistic(x: Any, y: Any, scale: float) -> None:
        w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    def poisson(x: Any, y: Any, scale: float) -> None:
        w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)

    def student(y: Any, scale: float) -> None:
        mu = numpyro.sample("mu", dist.Normal(0, 10))
        log_sigma = numpyro.sample("log_sigma", dist.Normal(0, 2))
        numpyro.sample("y", dist.StudentT(4, mu, jnp.exp(log_sigma)), obs=y)

    def normal(x: Any, y: Any, scale: float) -> None:
        real = dist.constraints.real_vector
        beta = numpyro.sample("beta", dist.ImproperUniform(real, (), (x.shape[1],)))
        log_sigma = numpyro.sample("log_sigma", dist.ImproperUniform(dist.constraints.real, (), ()))
        sigma = jnp.exp(log_sigma)
        prior = dist.HalfCauchy(scale).log_prob(sigma) if scale else 0.0
        numpyro.factor("prior", prior + log_sigma)
        numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)

    return {"logistic": logistic, "poisson": poisson, "student": student, "normal": normal}


if __name__ == "__main__":
    main()
