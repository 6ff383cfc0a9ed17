"""What the site adds to the pages of docs/: pages of the API, outputs of notebooks, and links that leave docs/.

A page that was made into a notebook (scripts/make_notebooks.py) shows the outputs of the notebook below its code; its
translation shows the same ones.
"""

from __future__ import annotations

import itertools
import json
import posixpath
import re
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTED = ("areal/api", "areal/algorithm", "areal/testing")
"""Packages whose modules users import."""
CODE = re.compile(r"^```python\n.*?^```$", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r"<!-- output (\d+) -->")
LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]*)")
WRAPPED = re.compile(r"(?ms)(^```.*?^```)|(?<=[\u3000-\u9fff\uff00-\uffef])\n(?=[\u3000-\u9fff\uff00-\uffef])")
"""A fenced block; or a line break between two Chinese characters, which a browser would show as a blank."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page per module of the documented packages, one that lists them, the changelog, and the style sheet."""
    from mkdocs.structure.files import File

    listed = ["# API\n\nRead from the source, without importing it.\n"]
    for package in DOCUMENTED:
        listed.append(f"\n## {package.replace('/', '.')}\n")
        for path in sorted((ROOT / package).glob("*.py")):
            if path.name.startswith("_"):
                continue
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            uri = f"reference/api/{module}.md"
            files.append(File.generated(config, uri, content=f"::: {module}\n"))
            listed.append(f"- [{module}]({module}.md)")
    files.append(File.generated(config, "reference/api/index.md", content="\n".join(listed) + "\n"))
    files.append(File.generated(config, "changelog.md", abs_src_path=str(ROOT / "CHANGELOG.md")))
    style = Path(__file__).with_name("site.css")
    files.append(File.generated(config, "assets/site.css", abs_src_path=str(style)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Point links to files outside of docs/ at the repository, and join wrapped lines of Chinese."""
    folder = posixpath.dirname(page.file.src_uri)

    def outside(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, match[2]))
        if target.startswith("docs/"):
            return match[0]
        return f"{match[1]}{config.extra['repository'].rstrip('/')}/blob/main/{target}"

    if folder.split("/")[0] == "zh":
        markdown = WRAPPED.sub(lambda match: match[1] or "", markdown)
    numbers = itertools.count()
    if notebook_of(page):
        markdown = CODE.sub(lambda match: f"{match[0]}\n<!-- output {next(numbers)} -->\n", markdown)
    return LINK.sub(outside, markdown)


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Put the outputs of a notebook below its code. They are of this repository, so HTML of cells is taken as it is."""
    notebook = notebook_of(page)
    if notebook is None:
        return html
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    outputs = [cell["outputs"] for cell in cells if cell["cell_type"] == "code"]
    return OUTPUT.sub(lambda match: "".join(map(shown, outputs[int(match[1])])), html)


def notebook_of(page: Page) -> Path | None:
    """Return the notebook that was made of a page or of its source, if there is one."""
    file = (ROOT / "docs" / page.file.src_uri.removeprefix("zh/")).with_suffix(".ipynb")
    return file if file.is_file() else None


def shown(output: dict[str, Any]) -> str:
    """Return an output as HTML; what was logged is folded."""
    data = output.get("data", {})
    if "text/html" in data:
        return f'<div class="output">{"".join(data["text/html"])}</div>'
    text = f"<pre>{escape(''.join(output.get('text') or data['text/plain']))}</pre>"
    if output.get("name") == "stderr":
        text = f"<details><summary>log</summary>{text}</details>"
    return f'<div class="output">{text}</div>'
