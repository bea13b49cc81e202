"""The order of the rooms: imports go down only, and `import tfp_sgmcmc` is light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tfp_sgmcmc import _HOMES

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "tfp_sgmcmc"

# A room may import those before it, and itself.
ROOMS = [
    "xla",
    "checks",
    "memory",
    "state",
    "random",
    "schedules",
    "preconditioners",
    "covariance",
    "targets",
    "kernels",
    "samplers",
    "diagnostics",
    "storage",
    "sampling",
    "keras",
    "demo",
    "__main__",
]
CORE = ROOMS[: ROOMS.index("keras")]
ALLOWED_IN_CORE = {"tensorflow", "tensorflow_probability", "keras", "numpy", "tree", "tfp_sgmcmc"}
# What only the extras install, imported inside the functions that need it.
LAZY = {
    "diagnostics": {"arviz", "matplotlib", "scipy"},
    "storage": {"zarr"},
    "sampling": {"tqdm", "xarray"},
}
# The order within `keras/`.
KERAS_ROOMS = ["model", "posterior", "baselines", "fit", "callback"]
MOST_LINES = 400

FILES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")
CORE_FILES = [p for p in FILES if p.relative_to(PACKAGE).parts[0].removesuffix(".py") in CORE]


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Dotted names of everything a file imports, wherever in the file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def rooms_imported(path: Path) -> set[str]:
    """Rooms, and the rooms of the names that the package itself hands out."""
    names = {name for name in imports(path) if name.split(".")[0] == "tfp_sgmcmc"}
    names = {name.split(".")[1] for name in names if "." in name}
    homes = {name: home.split(".")[-1] for name, home in _HOMES.items() if "." in home}
    return {homes.get(name, name) for name in names} - {"__version__"}


def identity(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=identity)
def test_every_file_is_in_a_room_and_imports_go_down(path: Path) -> None:
    assert room(path) in ROOMS
    below = ROOMS[: ROOMS.index(room(path)) + 1]
    assert rooms_imported(path) <= set(below)


@pytest.mark.parametrize("path", sorted((PACKAGE / "keras").rglob("*.py")), ids=identity)
def test_imports_go_down_within_keras(path: Path) -> None:
    def place(module: str) -> int:
        """Position in the order; the public names in `__init__` come last."""
        room = module.split(".")[2] if module.count(".") > 1 else ""
        return KERAS_ROOMS.index(room) if room in KERAS_ROOMS else len(KERAS_ROOMS)

    own = ".".join(["tfp_sgmcmc", *path.relative_to(PACKAGE).with_suffix("").parts])
    for name in imports(path):
        if name.startswith("tfp_sgmcmc.keras"):
            assert place(name) <= place(own), name


def test_rooms_imported_sees_every_form_of_import(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text(
        "import tfp_sgmcmc.kernels.sgld\n"
        "def f():\n    from tfp_sgmcmc import random, keras as k\n"
        "from tfp_sgmcmc.targets import Target\n"
        "from tfp_sgmcmc import __version__, check_finite\n"
        "import numpy as np\n"
    )
    assert rooms_imported(source) == {"kernels", "random", "keras", "targets", "diagnostics"}


@pytest.mark.parametrize("path", CORE_FILES, ids=identity)
def test_core_files_are_short_and_need_little(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES
    outside = {name.split(".")[0] for name in imports(path)} - set(sys.stdlib_module_names)
    assert outside <= ALLOWED_IN_CORE | LAZY.get(room(path), set())


@pytest.mark.parametrize("path", sorted((ROOT / "datasets").rglob("*.py")), ids=identity)
def test_datasets_know_nothing_of_the_samplers(path: Path) -> None:
    tops = {name.split(".")[0] for name in imports(path) if name.split(".")[0]}
    assert not tops & {"tfp_sgmcmc", "tensorflow", "tensorflow_probability", "keras"}


def loaded_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*{{n.split('.')[0] for n in sys.modules}})"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def test_importing_the_package_loads_no_tensorflow() -> None:
    loaded = loaded_after("import tfp_sgmcmc; tfp_sgmcmc.__version__; dir(tfp_sgmcmc)")
    assert not loaded & {"tensorflow", "keras", "numpy", "tensorflow_probability"}


def test_runs_on_disk_and_the_registry_load_no_tensorflow() -> None:
    loaded = loaded_after("import tfp_sgmcmc.samplers, tfp_sgmcmc.storage.directory")
    assert not loaded & {"tensorflow", "keras", "tensorflow_probability"}


def test_the_core_loads_nothing_optional() -> None:
    """What only the extras install (or only the demonstration needs) stays out."""
    loaded = loaded_after(
        "import tfp_sgmcmc.kernels, tfp_sgmcmc.diagnostics, tfp_sgmcmc.sampling.driver; "
        "ours = {n for n in sys.modules if n.startswith('tfp_sgmcmc.')}; "
        "assert not any(n.startswith('tfp_sgmcmc.keras') for n in ours), ours"
    )
    assert "tensorflow" in loaded
    optional = {"tqdm", "pooch", "datasets", "zarr", "xarray", "arviz"}
    assert not loaded & optional  # Keras itself loads what plots
