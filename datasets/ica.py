"""Recordings of the brain's magnetic field (MEG), for independent component analysis."""

import numpy as np
from numpy.typing import DTypeLike

from datasets._fetch import registered
from datasets._types import Unlabelled
from datasets.nogin import unlabelled


def ica5(dtype: DTypeLike = np.float32) -> Unlabelled:
    """Loads the recording in five channels, as recorded.

    There are N = 17730 time points with D = 5 channels. N is the length of the 122-channel MEG
    artefact recording that is customary for ICA. The numbers suggest that these are five of its
    channels, but the authors do not document it.

    Args:
      dtype: dtype of both arrays.

    Returns:
      `x`, `[17730, 5]`, neither centred nor scaled, in an undocumented unit (means -6 to -26,
      standard deviations 115 to 160). `initial`, `[25]`, the 5 x 5 unmixing matrix column by
      column.

    Raises:
      ValueError: the file is damaged.
      FileNotFoundError: the file is not on this machine and cannot be downloaded.
      ImportError: a package of the `test` extra is missing.

    References:
      https://github.com/c-matthews/nogin, `data/ica/ica5.mat`. Licence: none stated.
    """
    return unlabelled(registered("nogin/ica/ica5.mat"), dtype)


def ica10(dtype: DTypeLike = np.float32) -> Unlabelled:
    """Loads the recording in ten whitened channels.

    There are N = 17730 time points with D = 10 channels. The channels behind this file do not
    include all those of `ica5`. The exceptions are the same as for `ica5`.

    Args:
      dtype: dtype of both arrays.

    Returns:
      `x`, `[17730, 10]`, with mean 0 and identity covariance, without a unit. `initial`, `[100]`,
      the 10 x 10 unmixing matrix column by column.

    References:
      https://github.com/c-matthews/nogin, `data/ica/ica10.mat`. Licence: none stated.
    """
    return unlabelled(registered("nogin/ica/ica10.mat"), dtype)
