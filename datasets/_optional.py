"""Import of the packages that only the tests and benchmarks need."""

import importlib
from types import ModuleType


def require(module: str) -> ModuleType:
    """Imports a module, or raises an error that says how to install it.

    Args:
      module: full name of the module, such as `"sklearn.decomposition"`.

    Raises:
      ImportError: the module cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"This data set needs {module.partition('.')[0]}, which cannot be imported ({error}). "
            'Install it with: python -m pip install "tfp_sgmcmc[test]"',
            name=module,
        ) from None
