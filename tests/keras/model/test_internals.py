"""Private names of Keras: three files use them, and each lists those that it uses."""

import ast
import re
from pathlib import Path

import pytest

from tfp_sgmcmc.keras.data import training_data
from tfp_sgmcmc.keras.model import compiled_loss, internals

ROOT = Path(internals.__file__).parents[1]
LISTED = {
    Path(module.__file__): set(re.findall(r"`(?:\w+\.)?(_[a-z]\w*)`", module.__doc__))
    for module in (compiled_loss, internals, training_data)
}
NAMEDTUPLE = {"_asdict", "_fields", "_replace"}


def private_names(path):
    """Returns private attributes of objects other than `self`, and strings that are such names."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) != "self":
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {node.value} & set.union(*LISTED.values())
    return {name for name in names if re.match("_(?!_)", name)} - NAMEDTUPLE


@pytest.mark.parametrize("path", LISTED, ids=lambda path: path.name)
def test_the_listed_names_are_those_in_use(path):
    assert len(LISTED[path]) > 4
    assert private_names(path) == LISTED[path]


def test_other_files_use_none():
    others = set(ROOT.rglob("*.py")) - set(LISTED)
    assert len(others) > 20
    assert {path.name: names for path in others if (names := private_names(path))} == {}
    private = {path.name for path in ROOT.rglob("*.py") if "keras.src" in path.read_text()}
    assert private == {"internals.py"}  # which says what for
