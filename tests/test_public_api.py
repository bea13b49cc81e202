"""The public names exist, are documented, and load on first use."""

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import tfp_sgmcmc as sgmcmc
from tests.harness.thorough_examples import THOROUGH_EXAMPLES

MODULES = sorted(name for name, home in sgmcmc._HOMES.items() if home == "tfp_sgmcmc")
CLASSES_AND_FUNCTIONS = sorted({*sgmcmc._HOMES} - {*MODULES})
ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", CLASSES_AND_FUNCTIONS)
def test_names_come_from_their_rooms(name: str) -> None:
    home = importlib.import_module(sgmcmc._HOMES[name])
    assert getattr(sgmcmc, name) is getattr(home, name)
    assert name in home.__all__


@pytest.mark.parametrize("name", MODULES)
def test_modules_load(name: str) -> None:
    module = getattr(sgmcmc, name)
    assert module.__name__ == f"tfp_sgmcmc.{name}"
    assert module.__doc__


def test_every_kernel_and_target_is_public_at_the_top() -> None:
    expected = {*sgmcmc.kernels.__all__} | {*sgmcmc.sampling.__all__}
    expected |= {*sgmcmc.targets.__all__} - {"CenterReport", "Target", "as_target"}
    assert expected <= {*CLASSES_AND_FUNCTIONS}


def test_type_checkers_see_the_names_that_are_loaded_on_first_use() -> None:
    """A stub re-exports only what it imports as itself."""
    tree = ast.parse((ROOT / "tfp_sgmcmc" / "__init__.pyi").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    aliases = [alias for node in imports for alias in node.names]
    assert all(alias.asname == alias.name for alias in aliases)
    assert {alias.name for alias in aliases} == {*sgmcmc._HOMES}


def test_dir_lists_the_public_names_only() -> None:
    assert set(sgmcmc.__all__) == {*CLASSES_AND_FUNCTIONS, *MODULES}
    assert set(dir(sgmcmc)) == {*sgmcmc.__all__, "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'SGDL'"):
        sgmcmc.SGDL  # noqa: B018


@pytest.mark.parametrize("name", CLASSES_AND_FUNCTIONS)
def test_docstrings_say_what_is_raised_and_taken(name: str) -> None:
    thing = getattr(sgmcmc, name)
    doc = inspect.getdoc(thing) or ""
    assert doc.splitlines()[0].rstrip().endswith((".", r"\)"))
    parameters = [
        p
        for p in inspect.signature(thing).parameters
        if p not in ("self", "args", "kwargs") and not issubclass_namedtuple(thing)
    ]
    if "Args:" in doc:
        documented = doc.split("Args:")[1]
        assert all(f"{p}:" in documented for p in parameters), parameters


def issubclass_namedtuple(thing: object) -> bool:
    return inspect.isclass(thing) and issubclass(thing, tuple)


@pytest.mark.parametrize("kernel", [sgmcmc.SGLD, sgmcmc.CorrectedLangevin])
def test_kernels_name_their_parameters_as_their_constructors_do(kernel: type) -> None:
    made = kernel(sgmcmc.FullDataLogProb(lambda x: -(x**2)), 0.1)
    assert list(made.parameters) == list(inspect.signature(kernel).parameters)


@pytest.mark.parametrize("name", sorted(THOROUGH_EXAMPLES))
def test_examples_that_are_thorough_exist(name: str) -> None:
    assert ">>> " in (pkgutil.resolve_name(name).__doc__ or "")
