"""The site of docs/: built strictly, complete, and of nobody else's parts."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / ".venv-site"
OUTSIDE = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["'](?:https?:)?//[^"']+""")


def test_every_page_is_in_the_navigation() -> None:
    """Without the generator, so that a new page is missed at once."""
    listed = (ROOT / "scripts/site/mkdocs.yml").read_text()
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if not re.search(rf"(?:: |- ){re.escape(page)}$", listed, re.MULTILINE)] == []


@pytest.mark.exhaustive
@pytest.mark.skipif(not (SITE / ".ready").exists(), reason="bash scripts/setup_site.sh")
def test_the_site_builds_without_warnings_and_asks_nobody(tmp_path: Path) -> None:
    command = [SITE / "bin/mkdocs", "build", "-q", "-f", ROOT / "scripts/site/mkdocs.yml", "-d", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert {"index.html", "quickstart.html", "reference/api/areal.api.records.html"} <= {
        page.relative_to(tmp_path).as_posix() for page in pages
    }
    assert "The records that travel" in (tmp_path / "reference/api/areal.api.records.html").read_text()
    assert {page.name: found for page in pages if (found := OUTSIDE.findall(page.read_text()))} == {}
