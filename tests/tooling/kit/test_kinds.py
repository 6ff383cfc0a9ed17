"""Kinds: built-in, a project's own, and those of installed packages (really on the path, with real metadata)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tooling.cli.errors import UsageError
from tooling.kit.template.kinds import COMMANDS, KindSource, built_in_folder, discover, find_kind

ROOT = Path(__file__).resolve().parents[3]


def kind(folder: Path, *, summary: str = "a kind of the test") -> Path:
    folder.mkdir(parents=True)
    (folder / "copier.yml").write_text("_subdirectory: template\n")
    (folder / "template.toml").write_text(f'name = "{folder.name}"\nsummary = "{summary}"\n')
    return folder


def project(root: Path, templates: str = '["scaffolds"]') -> Path:
    (root / "pyproject.toml").write_text(f'[tool.areal.new]\npackage = "mine"\ntemplates = {templates}\n')
    (root / "scaffolds").mkdir()
    return root


def test_built_in_kinds_are_there_without_a_project():
    kinds = discover(None)
    assert kinds.keys() >= {"template"}
    assert {source.origin for source in kinds.values()} == {"built-in"}
    assert all(source.folder.parent == built_in_folder() for source in kinds.values())


def test_this_repository_s_own_folder_is_the_built_in_one():
    assert discover(ROOT)["template"].origin == "built-in"


def test_a_project_adds_and_replaces_kinds(tmp_path):
    added = kind(project(tmp_path) / "scaffolds" / "verifier")
    replaced = kind(tmp_path / "scaffolds" / "template", summary="ours")
    kinds = discover(tmp_path)
    assert kinds["verifier"] == KindSource("verifier", added, "a kind of the test", "project", None)
    assert kinds["template"] == KindSource("template", replaced, "ours", "project", None)
    assert list(kinds) == sorted(kinds)


def test_folders_without_both_files_are_no_kinds_but_explained(tmp_path):
    (project(tmp_path) / "scaffolds" / "half").mkdir()
    (tmp_path / "scaffolds" / "half" / "copier.yml").touch()
    assert "half" not in discover(tmp_path)
    with pytest.raises(UsageError, match=r"lacks template\.toml") as caught:
        find_kind(tmp_path, "half")
    assert caught.value.where == str(tmp_path / "scaffolds" / "half")


def test_an_unknown_kind_gets_the_nearest(tmp_path):
    kind(project(tmp_path) / "scaffolds" / "verifier")
    with pytest.raises(UsageError, match="no kind 'verifer'") as caught:
        find_kind(tmp_path, "verifer")
    assert "'verifier'" in caught.value.fix
    assert caught.value.where == ""
    for odd in ("../verifier", "/etc", "", "zzz"):
        with pytest.raises(UsageError, match="no kind"):
            find_kind(tmp_path, odd)


def test_a_broken_manifest_does_not_hide_the_other_kinds(tmp_path):
    broken = kind(project(tmp_path) / "scaffolds" / "broken")
    (broken / "template.toml").write_text("name =\n")
    renamed = kind(tmp_path / "scaffolds" / "renamed")
    (renamed / "template.toml").write_text('name = "other"\nsummary = "x"\n')
    kinds = discover(tmp_path)
    assert "cannot be read" in kinds["broken"].summary
    assert "'other'" in kinds["renamed"].summary


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_names_of_commands_are_refused(tmp_path, command):
    kind(project(tmp_path) / "scaffolds" / command)
    with pytest.raises(UsageError, match="is a command"):
        discover(tmp_path)


def test_odd_folder_names_are_refused(tmp_path):
    kind(project(tmp_path) / "scaffolds" / "My Kind")
    with pytest.raises(UsageError, match="not a name for a kind"):
        discover(tmp_path)


def test_folders_have_to_exist_inside_the_repository(tmp_path):
    (tmp_path / "inner").mkdir()
    inner = project(tmp_path / "inner", '["elsewhere"]')
    with pytest.raises(UsageError, match="does not exist"):
        discover(inner)
    (inner / "elsewhere").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="leads out"):
        discover(inner)


# ---------------------------------------------------------------------------------------------------------- packages


def distribution(site: Path, module: str) -> None:
    """What pip leaves behind for a package with an entry point."""
    (site / "ext_scaffolding.py").write_text(module)
    information = site / "ext-2.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: ext\nVersion: 2.0\n")
    (information / "entry_points.txt").write_text("[areal.new]\nverifier = ext_scaffolding:VERIFIER\n")


MODULE = """
from dataclasses import dataclass
from pathlib import Path

@dataclass
class Verifier:
    folder: Path
    prepare: str | None = "ext_scaffolding.pages"

VERIFIER = Verifier(Path(__file__).parent / "verifier")
"""


@pytest.fixture
def site(tmp_path, monkeypatch) -> Path:
    (tmp_path / "site").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield tmp_path / "site"
    sys.modules.pop("ext_scaffolding", None)


def test_an_installed_package_adds_a_kind(site):
    distribution(site, MODULE)
    folder = kind(site / "verifier")
    expected = KindSource("verifier", folder, "a kind of the test", "package:ext", "ext_scaffolding.pages")
    assert "verifier" not in discover(None)  # nothing is imported unless asked for
    assert "ext_scaffolding" not in sys.modules
    assert discover(None, packages=True)["verifier"] == expected
    assert find_kind(None, "verifier") == expected


def test_a_project_s_kind_comes_before_a_package_s(site, tmp_path):
    distribution(site, MODULE)
    kind(site / "verifier")
    own = kind(project(tmp_path) / "scaffolds" / "verifier")
    assert discover(tmp_path, packages=True)["verifier"].folder == own


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("raise ImportError('broken')\n", "cannot be loaded: broken"),
        ("OTHER = 1\n", "cannot be loaded"),
        ("VERIFIER = 'text'\n", "names no folder"),
        (MODULE.replace('"verifier")', '"missing")'), "names no folder"),
        (MODULE.replace('"ext_scaffolding.pages"', "3"), "not a module name"),
    ],
)
def test_a_damaged_package_is_named(site, module, message):
    distribution(site, module)
    kind(site / "verifier")
    with pytest.raises(UsageError, match=message) as caught:
        find_kind(None, "verifier")
    assert caught.value.where == "package:ext"


def test_listing_kinds_loads_nothing_heavy():
    program = (
        "import sys; from pathlib import Path; from tooling.kit.template.kinds import discover;"
        "discover(Path(sys.argv[1]));"
        "heavy = {'yaml', 'jinja2', 'copier', 'git', 'importlib.metadata', 'subprocess', 'tempfile', 'asyncio'};"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program, str(ROOT)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
