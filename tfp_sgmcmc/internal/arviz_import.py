"""The import of ArviZ, which only the extra `results` installs."""

import warnings
from types import ModuleType


def import_arviz(needed_by: str = "to_inference_data") -> ModuleType:
    """Returns the module `arviz`.

    Raises:
      ModuleNotFoundError: ArviZ is not installed; the message begins with `needed_by`.
    """
    with warnings.catch_warnings():
        # The import warns that the interface of ArviZ is going to change.
        warnings.simplefilter("ignore", FutureWarning)
        try:
            import arviz
        except ImportError as error:
            raise ModuleNotFoundError(
                f"{needed_by} needs ArviZ and xarray. Install them by "
                'python -m pip install "tfp_sgmcmc[results]"'
            ) from error
    return arviz
