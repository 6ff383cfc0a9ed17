"""What the site adds to the pages of docs/: pages of the API, and links that leave docs/ lead to the repository."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTED = ("areal/api", "areal/algorithm", "areal/testing")
"""Packages whose modules users import."""
LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]*)")
WRAPPED = re.compile(r"(?ms)(^```.*?^```)|(?<=[\u3000-\u9fff\uff00-\uffef])\n(?=[\u3000-\u9fff\uff00-\uffef])")
"""A fenced block; or a line break between two Chinese characters, which a browser would show as a blank."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page per module of the documented packages, one that lists them, and the changelog."""
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
    return LINK.sub(outside, markdown)
