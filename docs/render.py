"""Runs tutorials and writes their pages: `python -m docs.render [NAME ...]`, from the root.

A tutorial is a percent script, `docs/tutorials/NAME.py`. Its page `NAME.md` holds the text, the
code, what the code printed, and its pictures. What goes to stderr is left out.
"""

import argparse
import io
import os
import resource
import shutil
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "tutorials"
END = """
---

This page is the output of `docs/tutorials/{name}.py`. `python -m docs.render {name}` runs it and
writes the page again. Here that took {seconds:.0f} s of processor time on a machine of two cores.
"""


def shown(outputs: list) -> list:
    """Returns the outputs for readers: what was printed, in one piece, and the pictures."""
    kept: list = []
    for output in outputs:
        text = output.get("text", "")
        if output.get("name") == "stderr" or text.startswith("WARNING:tensorflow"):
            continue
        if "━" in text:  # progress bars of Keras
            text = "\n".join(line for line in text.split("\n") if "━" not in line)
            if not text.strip():
                continue
            output["text"] = text
        if kept and output.output_type == kept[-1].output_type == "stream":
            kept[-1]["text"] += text
        else:
            kept.append(output)
    return kept


def shrunk(picture: bytes) -> bytes:
    """Returns a PNG with a palette of 64 colours, which a plot does not miss: half the bytes."""
    from PIL import Image

    with Image.open(io.BytesIO(picture)) as image:
        small = image.convert("RGB").quantize(64, dither=Image.Dither.NONE)
    out = io.BytesIO()
    small.save(out, "png", optimize=True)
    return out.getvalue()


def render(name: str) -> None:
    """Runs a tutorial and writes its page and its pictures."""
    import jupytext
    from nbconvert import MarkdownExporter
    from nbconvert.preprocessors import ExecutePreprocessor

    notebook = jupytext.read(FOLDER / f"{name}.py")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = ExecutePreprocessor(timeout=600, kernel_name="python3")
    run.preprocess(notebook, {"metadata": {"path": FOLDER.parents[1]}})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)  # the kernel and what it started
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    for cell in notebook.cells:
        if "outputs" in cell:
            cell["outputs"] = shown(cell["outputs"])
    text, resources = MarkdownExporter().from_notebook_node(notebook)
    pictures = FOLDER / f"{name}_files"
    shutil.rmtree(pictures, ignore_errors=True)
    for file, data in resources["outputs"].items():
        pictures.mkdir(exist_ok=True)
        (pictures / file).write_bytes(shrunk(data))
        text = text.replace(f"![png]({file})", f"![What the code above draws]({name}_files/{file})")
    lines = [line.rstrip() for line in (text + END.format(name=name, seconds=seconds)).splitlines()]
    (FOLDER / f"{name}.md").write_text("\n".join(lines).lstrip() + "\n", encoding="utf-8")
    print(f"{name}: {seconds:.0f} s")


def main(arguments: list[str] | None = None) -> None:
    names = sorted(path.stem for path in FOLDER.glob("*.py"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; all if none"
    )
    for name in parser.parse_args(arguments).names or names:
        if name not in names:
            parser.error(f"NAME must be one of {', '.join(names)}. Received: {name}.")
        render(name)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # The kernel imports the package and the data sets from this checkout.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(FOLDER.parents[1]), *sys.path[1:]])
    os.environ.pop("MPLBACKEND", None)  # pictures go into the page
    main()
