"""Seeds, normals and minibatch indices: every random number of the library is drawn here.

The same seed gives the same chain in the same mode on the same device. Normals differ between
eager and compiled code; indices and three-point numbers are integer hashes of the seed and are the
same everywhere.
"""

from tfp_sgmcmc.random.indices import (
    AliasTable,
    epoch_indices,
    permuted_indices,
    uniform_indices,
)
from tfp_sgmcmc.random.normals import (
    normal,
    normal_like,
    rademacher_like,
    three_point,
    three_point_like,
)
from tfp_sgmcmc.random.seeds import as_seed, fold_in, fresh_seed, integers_of, numbered_seed, split

__all__ = [
    "AliasTable",
    "as_seed",
    "epoch_indices",
    "fold_in",
    "fresh_seed",
    "integers_of",
    "normal",
    "normal_like",
    "numbered_seed",
    "permuted_indices",
    "rademacher_like",
    "split",
    "three_point",
    "three_point_like",
    "uniform_indices",
]
