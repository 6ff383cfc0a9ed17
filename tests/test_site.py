"""The site of docs/: built strictly, complete, and of nobody else's parts."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import browser
import pytest

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / ".venv-site"
OUTSIDE = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["'](?:https?:)?//[^"']+""")


def needs_site(test):
    """Mark a test that takes the generator of the site."""
    return pytest.mark.exhaustive(
        pytest.mark.skipif(not (SITE / ".ready").exists(), reason="bash scripts/setup_site.sh")(test)
    )


def test_every_page_is_in_the_navigation() -> None:
    """Without the generator, so that a new page is missed at once."""
    listed = (ROOT / "scripts/site/mkdocs.yml").read_text()
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if not re.search(rf"(?:: |- ){re.escape(page)}$", listed, re.MULTILINE)] == []


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """Return the folder of the site, built strictly: a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [SITE / "bin/mkdocs", "build", "-q", "-f", ROOT / "scripts/site/mkdocs.yml", "-d", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@needs_site
def test_the_site_builds_without_warnings_and_asks_nobody(built: Path) -> None:
    pages = list(built.rglob("*.html"))
    assert {"index.html", "quickstart.html", "reference/api/areal.api.records.html"} <= {
        page.relative_to(built).as_posix() for page in pages
    }
    assert "The records that travel" in (built / "reference/api/areal.api.records.html").read_text()
    assert {page.name: found for page in pages if (found := OUTSIDE.findall(page.read_text()))} == {}


@needs_site
@pytest.mark.parametrize("folder", ["learn", "zh/learn"])
def test_code_of_a_notebook_page_is_followed_by_its_outputs(built: Path, folder: str) -> None:
    page = (built / folder / "notebook-first-run.html").read_text()
    words = re.sub(r"<[^>]*>", "", page.replace('<div class="areal-curves">', "CURVES"))
    assert words.index("result.metrics.curves()") < words.index("CURVES") < words.index('generate(["3?7="')
    assert "<!-- output" not in page
    assert (built / "learn/notebook-first-run.ipynb").is_file()


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Return the branch of the site with two versions, made in a clone by real git and mike."""
    clone, served = tmp_path / "clone", tmp_path / "served"
    subprocess.run(["git", "clone", "-q", "--shared", ROOT, clone], check=True)
    (clone / ".venv-site").symlink_to(SITE)
    who = {
        f"GIT_{role}_{part}": f"{role}@example.org" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")
    }
    for version in ("0.1", "0.2"):
        words = ["bash", "scripts/site/add_version.sh", version]
        subprocess.run(words, cwd=clone, env=os.environ | who, capture_output=True, check=True)
    subprocess.run(["git", "clone", "-q", "--branch", "gh-pages", clone, served], check=True)
    return served


@needs_site
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_versions_are_kept_side_by_side_and_the_newest_is_called_latest(published: Path, tmp_path: Path) -> None:
    listed = json.loads((published / "versions.json").read_text())
    assert [(each["version"], each["aliases"]) for each in listed] == [("0.2", ["latest"]), ("0.1", [])]
    for folder in ("0.1", "0.2", "latest"):
        assert (published / folder / "learn/first-run.html").is_file()
    assert "latest/" in (published / "index.html").read_text()
    if browser.PROGRAM is None:
        pytest.skip("the list of versions needs Chromium: apt-get install chromium")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=published)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, browser.Browser(tmp_path / "profile") as reader:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        reader.open(f"http://127.0.0.1:{server.server_port}/0.1/learn/first-run.html")
        links = "[...document.querySelectorAll('.md-version__link')].map(each => each.href)"
        deadline = time.monotonic() + 60
        while not (found := reader.evaluate(links)) and time.monotonic() < deadline:
            time.sleep(0.1)
        server.shutdown()
    assert [link.split("/")[3] for link in found] == ["0.2", "0.1"]
    assert reader.problems == []


def test_a_version_that_is_none_is_refused() -> None:
    for wrong in ("", "v0.2", "0.2; ls", "../0.2"):
        words = ["bash", ROOT / "scripts/site/add_version.sh", wrong]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert "is no version" in done.stderr


def test_only_tags_of_versions_are_published() -> None:
    """What starts the workflow is what the script takes, and no release candidate becomes `latest`."""
    listed = re.search(
        r"tags: (\[.*?\])(?: #|$)", (ROOT / ".github/workflows/publish-site.yml").read_text(), re.MULTILINE
    )
    assert listed is not None
    patterns = [pattern.replace(".", r"\.") for pattern in json.loads(listed[1])]
    tags = ["v0.2", "v1.20.3", "v0.2-rc1", "v0.2.0rc1", "v1", "vnext", "v0.2.1.2"]
    assert [tag for tag in tags if any(re.fullmatch(pattern, tag) for pattern in patterns)] == tags[:2]
