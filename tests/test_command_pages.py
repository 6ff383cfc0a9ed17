"""The pages of `areal-new` are rendered again only when they or their inputs changed."""

import sys

import generate_command_pages as pages
import pytest


@pytest.fixture
def check(monkeypatch, tmp_path):
    """Run `--check --changed` where rendering finds the pages as they are; returns whether it rendered."""
    rendered = []
    monkeypatch.setattr(pages, "WRITTEN", pages.ROOT / "docs/areal-new/missing.sha256")
    monkeypatch.setattr(pages, "CHECKED", tmp_path / "cache" / "digest")
    monkeypatch.setattr(sys, "argv", ["generate_command_pages.py", "--check", "--changed"])

    def render(listed):
        rendered.append(listed)
        return {path.relative_to(pages.ROOT): path.read_text() for path in (pages.ROOT / pages.FOLDER).glob("*.md")}

    monkeypatch.setattr(pages, "render_pages", render)

    def run():
        rendered.clear()
        assert pages.main() == 0
        return bool(rendered)

    return run


def test_a_committed_digest_spares_the_run(check, monkeypatch, tmp_path):
    written = tmp_path / "inputs.sha256"
    written.write_text(f"{pages.inputs_digest()}\n")
    monkeypatch.setattr(pages, "WRITTEN", written)
    assert not check()
    monkeypatch.setattr(pages, "INPUTS", r"templates/")
    monkeypatch.setattr(pages, "WRITTEN", pages.ROOT / "docs/areal-new/missing.sha256")
    assert check()


def test_a_check_that_passed_is_remembered(check, capsys):
    assert check()
    assert "records it" in capsys.readouterr().out
    assert not check()
