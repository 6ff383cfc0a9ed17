"""Make a notebook of each page docs/learn/notebook-*.md: NAME.md becomes NAME.ipynb, with what its code printed.

    python scripts/make_notebooks.py            # text of the pages; exit 1 where code changed and has to be run
    python scripts/make_notebooks.py --check    # write nothing; exit 1 if a notebook is not that of its page
    .venv-site/bin/python scripts/make_notebooks.py --run [NAME ...]    # run the code (bash scripts/setup_site.sh)

A page is the only source: its text becomes cells of Markdown, its blocks of python cells of code. Outputs are kept as
long as no code of the page changes, and dropped together otherwise: there is never an output of other code than is
shown. Code runs in a kernel of .venv, in an empty folder.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs/learn"
CODE = re.compile(r"^```python\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
RUN = ".venv-site/bin/python scripts/make_notebooks.py"
KERNEL = """
import sys, warnings
sys.path.append(sys.argv.pop(1))
warnings.filterwarnings("ignore", "IProgress not found")
from ipykernel.kernelapp import launch_new_instance
launch_new_instance()
"""
"""The kernel's own packages come after those of .venv, so that code finds the versions that users have."""


def cells_of(text: str) -> list[dict[str, Any]]:
    """Return the cells of a page, code without outputs."""
    cells = []
    for number, part in enumerate(CODE.split(text)):
        source = part.strip("\n").splitlines(keepends=True)
        if not source:
            continue
        cell: dict[str, Any] = {"cell_type": "markdown", "id": f"cell-{len(cells)}", "metadata": {}, "source": source}
        if number % 2:
            cell |= {"cell_type": "code", "execution_count": None, "outputs": []}
        cells.append(cell)
    return cells


def code_of(cells: list[dict[str, Any]]) -> list[list[str]]:
    """Return the sources of the cells of code."""
    return [cell["source"] for cell in cells if cell["cell_type"] == "code"]


def notebook_of(page: Path) -> dict[str, Any]:
    """Return the notebook of a page, with the outputs of its present file if they are of the same code."""
    cells = cells_of(page.read_text(encoding="utf-8"))
    file = page.with_suffix(".ipynb")
    old = json.loads(file.read_text(encoding="utf-8"))["cells"] if file.exists() else []
    if code_of(old) == code_of(cells):
        kept = iter(cell for cell in old if cell["cell_type"] == "code")
        for cell in cells:
            if cell["cell_type"] == "code":
                before = next(kept)
                cell |= {"execution_count": before["execution_count"], "outputs": before["outputs"]}
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def unrun(notebook: dict[str, Any]) -> int:
    """Return how many cells of code have not been run."""
    return sum(cell["cell_type"] == "code" and cell["execution_count"] is None for cell in notebook["cells"])


def executed(notebook: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Run all cells in a new kernel of .venv, and return them with what they printed.

    Raises nbclient.exceptions.CellExecutionError for a cell that raises, ImportError outside of .venv-site.
    """
    import nbformat
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import KernelManager
    from nbclient import NotebookClient

    specs = folder / "kernels"
    argv = [str(ROOT / ".venv/bin/python"), "-c", KERNEL, str(Path(nbformat.__file__).parents[1])]
    (specs / "python3").mkdir(parents=True)
    spec = {"argv": [*argv, "-f", "{connection_file}"], "display_name": "Python 3", "language": "python"}
    (specs / "python3/kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    manager = KernelManager(
        kernel_name="python3",
        transport="ipc",
        ip=str(folder / "socket"),
        kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(specs)], ensure_native_kernel=False),
    )
    work = folder / "work"
    work.mkdir()
    node = nbformat.reads(json.dumps(notebook), as_version=4)
    client = NotebookClient(
        node, km=manager, timeout=900, record_timing=False, resources={"metadata": {"path": str(work)}}
    )
    try:
        client.execute()
    finally:
        manager.shutdown_kernel(now=True)
    return tidied(nbformat.writes(node), {str(work): ".", str(ROOT): "areal"})


def tidied(text: str, places: dict[str, str]) -> list[dict[str, Any]]:
    """Return the cells of the notebook in a JSON text: without escape sequences of terminals, with other names for
    places of this machine, and with all that a cell wrote to one stream as one output."""
    for place, name in places.items():
        text = text.replace(place, name)
    cells: list[dict[str, Any]] = json.loads(text)["cells"]
    for cell in cells:
        outputs: list[dict[str, Any]] = []
        for output in cell.get("outputs", ()):
            if output["output_type"] == "stream":
                output["text"] = ESCAPES.sub("", "".join(output["text"])).splitlines(keepends=True)
                if outputs and outputs[-1].get("name") == output["name"]:
                    outputs[-1]["text"] += output["text"]
                    continue
            outputs.append(output)
        if cell["cell_type"] == "code":
            cell["outputs"] = outputs
    return cells


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="pages, such as notebook-first-run; default: all")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--check", action="store_true", help="write nothing; exit 1 if a notebook is not its page's")
    modes.add_argument("--run", action="store_true", help="run the code and keep what it prints")
    options = parser.parse_args(argv)
    pages = {page.stem: page for page in sorted(PAGES.glob("notebook-*.md"))}
    if unknown := sorted(set(options.names) - set(pages)):
        parser.error(f"no page {', '.join(unknown)}; there are {', '.join(pages)}")
    problems = []
    for page in (pages[name] for name in options.names or pages):
        notebook, file = notebook_of(page), page.with_suffix(".ipynb")
        if options.run:
            with tempfile.TemporaryDirectory() as folder:
                notebook["cells"] = executed(notebook, Path(folder))
        text = json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
        if not options.check:
            file.write_text(text, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != text:
            problems.append(f"{file.name} is not that of {page.name}: python scripts/make_notebooks.py")
        if count := unrun(notebook):
            problems.append(f"{page.name}: {count} cells to run: {RUN} --run {page.stem}")
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
