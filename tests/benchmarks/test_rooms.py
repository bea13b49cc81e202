"""The rooms of `benchmarks/`: each imports the shared room and itself, and one other's models."""

import ast
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
ROOMS = (
    "common", "accuracy", "cost", "devices", "no_knobs", "peers", "posteriordb", "predictions",
    "reproductions", "robustness", "scaling_out", "structure", "suite",
)  # fmt: skip
MODELS_OF = {  # problems that another room states
    "accuracy/certificates.py": {"posteriordb"},
    "cost/growth.py": {"suite"},
    "cost/stream_effective.py": {"accuracy"},
    "cost/stream_setup.py": {"accuracy"},
    "cost/time_to_answer.py": {"posteriordb"},
    "devices/beside_blackjax.py": {"peers"},
    "robustness/planted.py": {"suite"},
}
# Two programs must run where neither TensorFlow nor this library is installed.
WITHOUT_TENSORFLOW = ("run_program.py", "beside_blackjax.py")
PARSERS = (
    FOLDER / "common" / "command_line.py", *(FOLDER / "devices" / n for n in WITHOUT_TENSORFLOW)
)  # fmt: skip
FILES = sorted(FOLDER.glob("*/*.py"))
MOST_LINES = 400


def rooms_imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("benchmarks.")}
    return found


def test_every_script_is_in_a_room_and_every_room_says_why() -> None:
    assert {path.name for path in FOLDER.glob("*.py")} == {"__init__.py"}
    assert {path.parent.name for path in FILES} == set(ROOMS)
    for room in ROOMS:
        docstring = ast.get_docstring(ast.parse((FOLDER / room / "__init__.py").read_text()))
        assert docstring and docstring.splitlines()[0].endswith(".")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_imports_go_down_and_files_are_short(path: Path) -> None:
    also = MODELS_OF.get(path.relative_to(FOLDER).as_posix(), set())
    assert also <= rooms_imported(path) <= {"common", path.parent.name, *also}
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES
    if "argparse" in path.read_text(encoding="utf-8"):
        assert path in PARSERS
