"""The examples of the skill and the documents, run in the project that they name: its releases are packaged with it."""

import shlex
import zipfile

import pytest
from generate_command_pages import ROOT, documented_commands

COPY = "cp -r skills/upgrade-deps/fixtures/shop /tmp/shop && cd /tmp/shop && git init -q"
PROGRAMS = ("areal-upgrade-deps", "areal-audit")


PAGES = [
    "skills/upgrade-deps/SKILL.md",
    *(pytest.param(page, marks=pytest.mark.exhaustive) for page in ("README.md", "docs/upgrade.md")),
]


@pytest.mark.parametrize("page", PAGES)
def test_every_example_runs(shop, page):
    assert COPY in (ROOT / page).read_text()
    commands = documented_commands(ROOT / page, PROGRAMS)
    assert len(commands) >= 2, "the page has examples, and they are read"
    for command in commands:
        program, *words = shlex.split(command)
        done = shop.run(*words, program="audit" if program == "areal-audit" else "", expect={0, 10})
        assert "error:" not in done.stderr, command
    assert "engine==2.0" in shop.read("pyproject.toml"), "one of them upgrades"


def test_the_releases_carry_their_licence():
    wheels = sorted((ROOT / "skills/upgrade-deps/fixtures/shop/wheels").glob("*.whl"))
    assert len(wheels) == 6
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            (licence,) = [name for name in archive.namelist() if name.endswith("/licenses/LICENSE")]
            assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
