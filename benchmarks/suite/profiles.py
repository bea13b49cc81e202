"""The parameters of each profile: names and numbers, which asv reads without TensorFlow."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.common.samplers import ON_ALL_DATA, ON_MINIBATCHES
from benchmarks.suite.device import named_choice

VARIABLE = "TFP_SGMCMC_PROFILE"

SAMPLERS = tuple(ON_MINIBATCHES)
LOW_RANK = tuple(name for name in SAMPLERS if "low_rank" in name)
BASELINES = ("SGD", *ON_ALL_DATA, "HMC", "NUTS")
FEW = ("SGLD, eps 2e-5", "SGHMC", "SGNHT", "NOGIN diag")


# Settings of `exact_laws`, each kernel and estimator of a target, and of `exact_entry_points`.
EXACT = (
    "SGLD",
    "ModifiedSGLD",
    "SGFS",
    "UnderdampedLangevin",
    "SGHMC",
    "SGNHT",
    "SGNHT, adodab",
    "SGNHT, thermostat",
    "CCAdL",
    "CCAdL, euler",
    "CCAdL, thermostat",
    "NOGIN",
    "ReplicaExchangeSGLD",
    "CorrectedLangevin",
    "IndependentMetropolis",
    "MinibatchLogProb, replacement",
    "MinibatchLogProb, groups",
    "FullDataLogProb",
    "ControlVariate",
    "SVRG",
    "GrowingBatch",
    "GrowingBatch, constant",
    "whiten",
    "StreamedLogProb",
    "fit",
    "sample",
)


class Lengths(NamedTuple):
    """How long the runs are: the same in every profile whose figures are kept."""

    passes: int = 500  # over the data, of a scored sampler
    seeds: int = 4  # of a scored sampler
    reference_draws: int = 200  # of each chain of the exact posterior
    numbers: int = 10**8  # that a call of `scaling` gathers, if the bounds of its steps allow it
    network_steps: int = 1200
    network_burnin_steps: int = 400
    network_seeds: int = 3


class Profile(NamedTuple):
    """Parameters of the benchmarks."""

    # Samplers whose steps are timed, with all of `chains` and `batch_sizes`.
    samplers: tuple[str, ...]
    chains: tuple[int, ...]  # numbers of chains
    batch_sizes: tuple[int, ...]  # sizes of minibatches
    compiled: tuple[str, ...]  # samplers whose compilation is timed
    problems: tuple[str, ...]  # posteriors on which samples are compared with exact moments
    # Samplers and baselines that are compared. `low_rank` keeps more scores here than there are
    # dimensions and takes as long as all others together, so only "large" has it.
    scored: tuple[str, ...]
    num_examples: tuple[int, ...]  # N, at D = 10
    dimensions: tuple[int, ...]  # D, at N = 1000
    scaled_chains: tuple[int, ...]  # numbers of chains, at N = 1000 and D = 10
    # How a Keras network is fitted: by SGD, or by the callback with a sampler.
    fitted: tuple[str, ...]
    steps_per_execution: tuple[int, ...]  # arguments of `compile`
    exact: tuple[str, ...] = EXACT  # the same in every profile whose figures are kept
    lengths: Lengths = Lengths()


FAST = Profile(
    samplers=FEW,
    chains=(1,),
    batch_sizes=(500,),
    compiled=("SGLD, eps 2e-5",),
    problems=("synthetic",),
    scored=(*FEW, "SGD", "HMC"),
    num_examples=(10**5,),
    dimensions=(10**4,),
    scaled_chains=(64,),
    fitted=("SGD", "SGHMC"),
    steps_per_execution=(10,),
)
REGULAR = Profile(
    samplers=SAMPLERS,
    chains=(1, 64),
    batch_sizes=(100, 500),
    compiled=SAMPLERS,
    problems=("synthetic", "mnist_7v9"),
    scored=tuple(name for name in SAMPLERS + BASELINES if name not in LOW_RANK),
    num_examples=(10**3, 10**5),
    dimensions=(10, 10**4),
    scaled_chains=(1, 64),
    fitted=("SGD", "SGLD", "SGHMC"),
    steps_per_execution=(1, 10),
)
LARGE = REGULAR._replace(
    scored=SAMPLERS + BASELINES,
    num_examples=(10**3, 10**4, 10**5, 10**6, 10**7),
    dimensions=(10, 10**2, 10**3, 10**4, 10**5, 10**6),
    scaled_chains=(1, 4, 16, 64, 256, 1024),
)
# Runs each benchmark once, on little, to see that none fails.
SMOKE = FAST._replace(
    samplers=("SGHMC",),
    scored=("SGLD, eps 2e-5",),
    num_examples=(10**3,),
    dimensions=(10,),
    scaled_chains=(4,),
    fitted=("SGHMC",),
    exact=("SGLD", "sample"),
    lengths=Lengths(
        passes=25,
        seeds=2,
        reference_draws=20,
        numbers=10**5,
        network_steps=60,
        network_burnin_steps=20,
        network_seeds=1,
    ),
)
PROFILES = {"fast": FAST, "smoke": SMOKE, "regular": REGULAR, "large": LARGE}


def chosen() -> Profile:
    """Returns the profile that the environment variable names."""
    return PROFILES[named_choice(VARIABLE, tuple(PROFILES))]


PROFILE = chosen()
