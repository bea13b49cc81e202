"""Imports between folders go one way, folders and files are small, and the package loads lazily."""

import ast
import collections
import subprocess
import sys
from pathlib import Path

import pytest

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
    "targets.validation",
    "kernels",
    "diagnostics",
    "diagnostics.run_report",
    "sampling",
    "sampling.shards",
    "adaptation",
    "keras.distributed",
    "keras.model",
    "keras.posterior",
    "keras.baselines",
    "keras.data",
    "keras.chain",
    "keras.records",
    "keras.checks",
    "keras.workers",
    "keras.adaptation",
    "keras",
    "demo",
    "__main__",
]
ALLOWED_IN_CORE = {"tensorflow", "tensorflow_probability", "keras", "numpy", "tree", "tfp_sgmcmc"}
# Packages of the extras, imported inside the functions that need them.
LAZY = {
    "internal": {"arviz"},
    "diagnostics.run_report": {"matplotlib"},
    "storage": {"zarr"},
    "sampling": {"tqdm", "xarray"},
    "sampling.shards": {"tqdm", "xarray"},
    "adaptation": {"scipy", "tqdm"},
}
MOST_CODE_LINES = 300
MOST_FILES = 25
# Names of modules that stand in several folders, where they mean the same.
COMMON_NAMES = {"__init__", "base"}

FILES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")
MODULES = [path for path in FILES if path.stem != "__init__"]


def identity(path: Path) -> str:
    return str(path.relative_to(ROOT))


def folder(path: Path) -> str:
    """Returns the folder of a file, or the name of a top-level module."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1]) or parts[0]


def _dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FOLDERS = {_dotted(path): folder(path) for path in MODULES}


def re_exports() -> dict[str, str]:
    """Returns the module behind each public name of a package, such as `tfp_sgmcmc.SGLD`."""
    homes = {}
    for path in [PACKAGE / "__init__.pyi", *PACKAGE.rglob("__init__.py")]:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom):
                names = {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
                homes |= {f"{_dotted(path)}.{name}": home for name, home in names.items()}
    return {name: home for name, home in homes.items() if name != home}


HOMES = re_exports()


def imports(path: Path) -> set[str]:
    """Returns the dotted names of all that a file imports, anywhere in the file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def folders_imported(path: Path) -> set[str]:
    """Returns the folders of the modules that define the imported names."""
    found = set()
    for name in imports(path):
        while name in HOMES:
            name = HOMES[name]
        while name and name not in FOLDERS:
            name = name.rpartition(".")[0]
        found |= {FOLDERS[name]} if name else set()
    return found


def code_lines(path: Path) -> int:
    """Counts the lines of a file without blank lines, comments and docstrings."""
    text = path.read_text()
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            first = node.body[0]
            documented |= set(range(first.lineno, (first.end_lineno or 0) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in documented
        for number, line in lines
    )


@pytest.mark.parametrize("path", MODULES, ids=identity)
def test_imports_go_one_way(path: Path) -> None:
    assert folder(path) in ORDER
    assert folders_imported(path) <= set(ORDER[: ORDER.index(folder(path)) + 1])


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
    assert folders_imported(source) == expected


@pytest.mark.parametrize("path", MODULES, ids=identity)
def test_files_are_short(path: Path) -> None:
    assert code_lines(path) <= MOST_CODE_LINES


def test_code_lines_leaves_out_docstrings_comments_and_blank_lines(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text('"""Doc.\n\nMore.\n"""\n\nx = 1  # why\n# why\n\ndef f():\n    """Doc."""\n')
    assert code_lines(source) == 2


def test_folders_are_small() -> None:
    sizes = collections.Counter(path.parent for path in FILES)
    assert max(sizes.values()) <= MOST_FILES, sizes.most_common(3)


def test_a_module_name_stands_for_one_thing() -> None:
    names = collections.Counter(path.stem for path in MODULES if path.stem not in COMMON_NAMES)
    assert not [name for name, count in names.items() if count > 1]


@pytest.mark.parametrize(
    "path",
    [path for path in MODULES if folder(path).split(".")[0] not in ("keras", "demo", "__main__")],
    ids=identity,
)
def test_the_core_needs_few_packages(path: Path) -> None:
    outside = {name.split(".")[0] for name in imports(path)} - set(sys.stdlib_module_names)
    assert outside <= ALLOWED_IN_CORE | LAZY.get(folder(path), set())


@pytest.mark.parametrize("path", sorted((ROOT / "datasets").rglob("*.py")), ids=identity)
def test_datasets_do_not_import_the_samplers(path: Path) -> None:
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


def test_run_directories_load_no_tensorflow() -> None:
    loaded = loaded_after("import tfp_sgmcmc.storage.directory")
    assert not loaded & {"tensorflow", "keras", "tensorflow_probability"}


def test_the_core_loads_nothing_optional() -> None:
    loaded = loaded_after(
        "import tfp_sgmcmc.kernels, tfp_sgmcmc.diagnostics, tfp_sgmcmc.adaptation; "
        "ours = {n for n in sys.modules if n.startswith('tfp_sgmcmc.')}; "
        "assert not any(n.startswith('tfp_sgmcmc.keras') for n in ours), ours"
    )
    assert "tensorflow" in loaded
    optional = {"tqdm", "pooch", "datasets", "zarr", "xarray", "arviz"}
    assert not loaded & optional  # Keras itself loads matplotlib
