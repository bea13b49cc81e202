"""Recordings of the brain's magnetic field (MEG), for independent component analysis."""

import numpy as np
from numpy.typing import DTypeLike

from datasets._types import Unlabelled
from datasets.nogin import nogin_source, unlabelled

ICA5 = nogin_source(
    "ica/ica5.mat", "a696f2b3080fc6f211a0714186625d850e056e50ba831cb684a99f0031e29477"
)
ICA10 = nogin_source(
    "ica/ica10.mat", "1094901efb3212edca0016af18aa4e58daf155c37549630b9a5dfbf42001389f"
)


def ica5(dtype: DTypeLike = np.float32) -> Unlabelled:
    """Load the recording in five channels, as recorded.

    Source: https://github.com/c-matthews/nogin `data/ica/ica5.mat`. Licence: none stated. The
    17730 time points are the length of the 122-channel MEG artefact recording that is customary
    for ICA; that these are five of its channels is inferred from the numbers, not documented.

    Args:
        dtype: dtype of both arrays.

    Returns:
        `x` of shape (17730, 5), neither centred nor scaled, in the file's unit, which is not
        documented (means -6 to -26, standard deviations 115 to 160); `initial` of shape (25,),
        the 5 x 5 unmixing matrix column by column.

    Raises:
        ValueError: the file is damaged.
        FileNotFoundError: the file is not on this machine and cannot be downloaded.
        ImportError: a package of the ``test`` extra is missing.
    """
    return unlabelled(ICA5, dtype)


def ica10(dtype: DTypeLike = np.float32) -> Unlabelled:
    """Load the recording in ten whitened channels.

    Source, licence and exceptions are those of `ica5`, with `data/ica/ica10.mat`. It is not a
    whitening of channels that include those of `ica5`.

    Args:
        dtype: dtype of both arrays.

    Returns:
        `x` of shape (17730, 10) with mean 0 and identity covariance, without unit; `initial` of
        shape (100,), the 10 x 10 unmixing matrix column by column.
    """
    return unlabelled(ICA10, dtype)
