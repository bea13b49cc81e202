"""Stan's posteriordb: data sets, and moments of the reference draws of their posteriors."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np

from datasets._fetch import local_files, read, registered

QUANTILES = (0.05, 0.5, 0.95)


class Moments(NamedTuple):
    """Moments of reference draws, which are nearly independent.

    Attributes:
      names: the D parameters as Stan writes them, as in `"beta[2]"`, which counts from one.
      num_draws: number of draws.
      mean: their means, `[D]`.
      deviation: their standard deviations, `[D]`.
      quantiles: their 5 %, 50 % and 95 % quantiles, `[3, D]`.
    """

    names: tuple[str, ...]
    num_draws: int
    mean: np.ndarray
    deviation: np.ndarray
    quantiles: np.ndarray


def posteriordb_data(name: str) -> dict[str, np.ndarray]:
    """Loads a data set of posteriordb, such as `"eight_schools"`.

    Returns:
      The arrays and numbers of the data set by name, as Stan's data block declares them: integers
      as int64, others as float64.

    Raises:
      KeyError: there is no such data set in `datasets/registry.txt`.
      ValueError: the file is damaged.
      FileNotFoundError: the file is not on this machine and cannot be downloaded.
      ImportError: a package of the `test` extra is missing.

    References:
      M. Magnusson et al. posteriordb: Testing, benchmarking and developing Bayesian inference
      algorithms. AISTATS, 2025. https://github.com/stan-dev/posteriordb. Licence: BSD-3-Clause.
    """
    content = json.loads(read(registered(f"posteriordb/data/{name}.json")))
    return {key: np.asarray(value) for key, value in content.items()}


def posteriordb_reference(name: str) -> Moments:
    """Loads moments of the reference draws of a posterior, such as `"arma-arma11"`.

    They are read from `posteriordb/moments` in a folder of data sets if it has them, and otherwise
    computed from posteriordb's draws. The exceptions are the same as for `posteriordb_data`.
    """
    for path in local_files(f"posteriordb/moments/{name}.json"):
        found = json.loads(path.read_bytes())
        quantiles = np.array([found["quantiles"][str(q)] for q in QUANTILES])
        mean, deviation = np.array(found["mean"]), np.array(found["sd"])
        return Moments(tuple(found["names"]), found["num_draws"], mean, deviation, quantiles)
    return moments_of(json.loads(read(registered(f"posteriordb/draws/{name}.json"))))


def moments_of(chains: list[dict[str, list[float]]]) -> Moments:
    """Returns the moments of chains, each with the draws of every parameter by name."""
    names = tuple(chains[0])
    draws = np.concatenate([np.transpose([chain[name] for name in names]) for chain in chains])
    quantiles = np.quantile(draws, QUANTILES, axis=0)
    return Moments(names, len(draws), draws.mean(axis=0), draws.std(axis=0, ddof=1), quantiles)
