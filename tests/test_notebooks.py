"""Notebooks of the documents: each is its page, with the outputs of the code it shows; and that code runs."""

from __future__ import annotations

import ast
import json
import subprocess
from importlib import import_module
from pathlib import Path

import make_notebooks
import pytest

ROOT = Path(__file__).resolve().parents[1]
NAMES = sorted(page.stem for page in make_notebooks.PAGES.glob("notebook-*.md"))
SITE = ROOT / ".venv-site"


def test_every_notebook_is_its_page_and_was_run() -> None:
    assert len(NAMES) >= 2
    assert make_notebooks.main(["--check"]) == 0


@pytest.mark.parametrize("name", NAMES)
def test_code_of_a_notebook_parses_and_imports_what_there_is(name) -> None:
    cells = json.loads((make_notebooks.PAGES / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(source) for source in make_notebooks.code_of(cells)]
    code = compile("\n".join(sources), name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
    imports = [node for node in ast.walk(code) if isinstance(node, ast.ImportFrom | ast.Import)]
    assert imports
    for node in imports:
        modules = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        for module in modules:
            loaded = import_module(str(module))
            wanted = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            assert [each for each in wanted if not hasattr(loaded, each)] == []


@pytest.mark.parametrize("name", NAMES)
def test_outputs_name_no_place_of_the_machine_and_have_curves(name) -> None:
    text = (make_notebooks.PAGES / f"{name}.ipynb").read_text(encoding="utf-8")
    assert str(ROOT) not in text
    assert "/tmp/" not in text
    assert "areal-curves" in text


@pytest.fixture
def page(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(make_notebooks, "PAGES", tmp_path)
    page = tmp_path / "notebook-small.md"
    page.write_text("# Small\n\nText.\n\n```python\n1 + 1\n```\n\n```bash\nls\n```\n")
    make_notebooks.main([])
    notebook = json.loads(page.with_suffix(".ipynb").read_text())
    output = {"output_type": "execute_result", "execution_count": 1, "metadata": {}, "data": {"text/plain": ["2"]}}
    notebook["cells"][1] |= {"execution_count": 1, "outputs": [output]}
    page.with_suffix(".ipynb").write_text(json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True) + "\n")
    assert make_notebooks.main(["--check"]) == 0
    return page


def test_new_words_keep_the_outputs_and_new_code_drops_them(page, capsys) -> None:
    page.write_text(page.read_text().replace("Text.", "Words."))
    assert make_notebooks.main(["--check"]) == 1
    assert "is not that of notebook-small.md" in capsys.readouterr().out
    assert make_notebooks.main([]) == 0
    cells = json.loads(page.with_suffix(".ipynb").read_text())["cells"]
    assert [cell["cell_type"] for cell in cells] == ["markdown", "code", "markdown"]
    assert cells[1]["outputs"][0]["data"] == {"text/plain": ["2"]}
    page.write_text(page.read_text().replace("1 + 1", "1 + 2"))
    assert make_notebooks.main([]) == 1
    assert "1 cells to run" in capsys.readouterr().out
    assert json.loads(page.with_suffix(".ipynb").read_text())["cells"][1]["outputs"] == []


def test_an_unknown_page_is_refused(capsys) -> None:
    with pytest.raises(SystemExit):
        make_notebooks.main(["notebook-none"])
    assert "no page notebook-none; there are notebook-" in capsys.readouterr().err


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.skipif(not (SITE / ".ready").exists(), reason="bash scripts/setup_site.sh")
def test_a_notebook_runs_as_it_stands(name, tmp_path) -> None:
    """In the site's environment, whose kernel takes areal from ours; cells assert that something was learned."""
    program = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); import make_notebooks as made; from pathlib import Path\n"
        "found = made.executed(made.notebook_of(made.PAGES / f'{sys.argv[2]}.md'), Path(sys.argv[3]))\n"
        "print(json.dumps([cell['execution_count'] for cell in found if cell['cell_type'] == 'code']))"
    )
    words = [SITE / "bin/python", "-c", program, ROOT / "scripts", name, tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    counts = json.loads(done.stdout)
    assert counts == list(range(1, len(counts) + 1))
