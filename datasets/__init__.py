"""Loaders of the public data sets that the benchmarks and tests use.

Each loader finds its files on this machine or downloads them (see `datasets/_fetch.py`) and
returns NumPy arrays: a `Dataset` for labelled data, an `Unlabelled` for data without labels.
Importing this package imports NumPy only. SciPy, scikit-learn and pooch are imported by the
loaders that need them.
"""

from datasets._types import Dataset, Unlabelled
from datasets.a9a import a9a
from datasets.connect4 import connect4
from datasets.kddcup99 import kddcup99
from datasets.letter import letter
from datasets.mnist import mnist, mnist_7v9
from datasets.nogin import (
    gaussian_mean,
    gaussian_mean_2d,
    gaussian_mixture,
    german,
    ica5,
    ica10,
    pima,
)
from datasets.posteriordb import posteriordb_data, posteriordb_reference
from datasets.sensit import sensit_acoustic

__all__ = [
    "Dataset",
    "Unlabelled",
    "a9a",
    "connect4",
    "gaussian_mean",
    "gaussian_mean_2d",
    "gaussian_mixture",
    "german",
    "ica5",
    "ica10",
    "kddcup99",
    "letter",
    "mnist",
    "mnist_7v9",
    "pima",
    "posteriordb_data",
    "posteriordb_reference",
    "sensit_acoustic",
]
