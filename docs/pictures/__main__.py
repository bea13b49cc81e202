"""Draws pictures: `python -m docs.pictures [NAME ...]`, from the root of a checkout."""

import argparse
import importlib
from pathlib import Path

from docs.render import shrunk

FOLDER = Path(__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all if none"
    )
    for name in parser.parse_args(arguments).names or NAMES:
        if name not in NAMES:
            parser.error(f"NAME must be one of {', '.join(NAMES)}. Received: {name}.")
        found = importlib.import_module(f"docs.pictures.{name}").draw(FOLDER)
        for file in found if isinstance(found, list) else [found]:
            if file.suffix == ".png":
                file.write_bytes(shrunk(file.read_bytes()))
            print(f"{file.relative_to(FOLDER.parents[1])}: {file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
