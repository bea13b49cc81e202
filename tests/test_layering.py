"""Imports between folders go one way, folders and files are small, and the package loads lazily."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.structure import imports
from benchmarks.structure.__main__ import repeated_names, sizes

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "tfp_sgmcmc"

# The folders and top-level modules, in order. A file imports from those above its own, and from its
# own. An `__init__.py` re-exports names of its subfolders and is exempt.
ORDER = [
    "internal",
    "random",
    "schedules",
    "preconditioners",
    "covariance",
    "storage",
    "targets",
    "targets.laplace",
    "targets.control_variates",
    "targets.streaming",
    "targets.validation",
    "kernels",
    "diagnostics",
    "sampling",
    "sampling.shards",
    "adaptation.hierarchies",
    "adaptation",
    "keras.model",
    "keras.posterior",
    "keras.data",
    "keras.chain",
    "keras.records",
    "keras.checks",
    "keras.adaptation",
    "keras",
    "demo",
    "__main__",
]
ALLOWED_IN_CORE = {"tensorflow", "tensorflow_probability", "keras", "numpy", "tree", "tfp_sgmcmc"}
# Packages of the extras, imported inside the functions that need them.
LAZY = {
    "internal": {"arviz", "cloudpickle", "matplotlib", "xarray"},
    "storage": {"zarr"},
    "sampling": {"tqdm", "xarray"},
    "sampling.shards": {"tqdm", "xarray"},
    "adaptation": {"tqdm"},
}
MOST_CODE_LINES = 300
MOST_FILES = 25
MODULES = imports.modules(PACKAGE)


def identity(path: Path) -> str:
    return str(path.relative_to(ROOT))


def folder(path: Path) -> str:
    return imports.folder(PACKAGE, path)


@pytest.mark.parametrize("path", MODULES, ids=identity)
def test_imports_go_one_way(path: Path) -> None:
    assert folder(path) in ORDER  # a new folder needs a place there
    assert imports.folders_imported(PACKAGE, path) <= set(ORDER[: ORDER.index(folder(path)) + 1])


def test_folders_imported_sees_every_form_of_import(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text(
        "import tfp_sgmcmc.kernels.sgld\n"
        "def f():\n    from tfp_sgmcmc.keras.model import priors as p\n"
        "from tfp_sgmcmc.targets import Target, whiten\n"
        "from tfp_sgmcmc import __version__, check_finite\n"
        "import numpy as np\n"
    )
    expected = {"kernels", "keras.model", "targets", "targets.laplace", "diagnostics"}
    assert imports.folders_imported(PACKAGE, source) == expected


@pytest.mark.parametrize("path", MODULES, ids=identity)
def test_files_are_short(path: Path) -> None:
    assert imports.count_lines(path)[0] <= MOST_CODE_LINES


def test_lines_of_code_leave_out_docstrings_comments_and_blank_lines(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text('"""Doc.\n\nMore.\n"""\n\nx = 1  # why\n# why\n\ndef f():\n    """Doc."""\n')
    assert imports.count_lines(source) == (2, 4)


def test_folders_are_small() -> None:
    *folders, _ = sizes(PACKAGE)
    assert max(files for _, files, _, _ in folders) <= MOST_FILES


def test_a_module_name_stands_for_one_thing() -> None:
    assert repeated_names(PACKAGE) == []


@pytest.mark.parametrize(
    "path",
    [path for path in MODULES if folder(path).split(".")[0] not in ("keras", "demo", "__main__")],
    ids=identity,
)
def test_the_core_needs_few_packages(path: Path) -> None:
    outside = {name.split(".")[0] for name in imports.imported(path)} - set(sys.stdlib_module_names)
    assert outside <= ALLOWED_IN_CORE | LAZY.get(folder(path), set())


@pytest.mark.parametrize("path", sorted((ROOT / "datasets").rglob("*.py")), ids=identity)
def test_datasets_do_not_import_the_samplers(path: Path) -> None:
    tops = {name.split(".")[0] for name in imports.imported(path) if name.split(".")[0]}
    assert not tops & {"tfp_sgmcmc", "tensorflow", "tensorflow_probability", "keras"}


def loaded_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*{{n.split('.')[0] for n in sys.modules}})"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def test_importing_the_package_loads_no_tensorflow() -> None:
    loaded = loaded_after("import tfp_sgmcmc; tfp_sgmcmc.__version__; dir(tfp_sgmcmc)")
    assert not loaded & {"tensorflow", "keras", "numpy", "tensorflow_probability"}


def test_run_directories_load_no_tensorflow() -> None:
    loaded = loaded_after("import tfp_sgmcmc.storage.directory")
    assert not loaded & {"tensorflow", "keras", "tensorflow_probability"}


@pytest.mark.thorough
def test_the_core_loads_nothing_optional() -> None:
    loaded = loaded_after(
        "import tfp_sgmcmc.kernels, tfp_sgmcmc.diagnostics, tfp_sgmcmc.adaptation; "
        "ours = {n for n in sys.modules if n.startswith('tfp_sgmcmc.')}; "
        "assert not any(n.startswith('tfp_sgmcmc.keras') for n in ours), ours"
    )
    assert "tensorflow" in loaded
    optional = {"tqdm", "pooch", "datasets", "zarr", "xarray", "arviz"}
    assert not loaded & optional  # Keras itself loads matplotlib
