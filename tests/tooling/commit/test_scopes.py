"""The table of scopes: the most specific row decides, and every path of this repository has one."""

import subprocess
from pathlib import Path

import pytest

from tooling.cli.errors import UsageError
from tooling.commit.settings import CommitSettings, Scope, read_commit_settings, scope_of_path, scope_of_symbol

ROOT = Path(__file__).resolve().parents[3]
TABLE = CommitSettings(
    none=("README.md", "docs/*.md", "notes/*"),
    scopes={
        "engine": Scope(paths=("src/engine/**",), symbols=("Engine*",)),
        "train": Scope(paths=("src/engine/train",), symbols=("EngineTrainer",)),
        "docs": Scope(paths=("docs/**",)),
    },
)


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("src/engine/a.py", "engine"),
        ("src/engine/train/a/b.py", "train"),
        ("docs/index.md", ""),
        ("docs/deep/index.md", "docs"),
        ("README.md", ""),
        ("docs/a.rst", "docs"),
        ("elsewhere/README.md", None),
        ("src/engines/a.py", None),
        ("notes/a.txt", ""),
        ("notes/deep/a.txt", None),
    ],
)
def test_the_most_specific_row_decides(path, scope):
    row = scope_of_path(TABLE, path)
    assert (None if row is None else row[0]) == scope


@pytest.mark.parametrize(
    ("symbol", "scope"), [("EngineTrainer.step", "train"), ("EnginePool", "engine"), ("engine", None)]
)
def test_a_class_stands_for_its_methods(symbol, scope):
    row = scope_of_symbol(TABLE, symbol)
    assert (row[0] if row else None) == scope


def repository_files():
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_every_path_of_this_repository_has_a_scope_or_none_on_purpose():
    settings = read_commit_settings(ROOT)
    assert [path for path in repository_files() if scope_of_path(settings, path) is None] == []


def test_every_row_of_this_repository_s_table_is_of_use():
    settings = read_commit_settings(ROOT)
    used = {scope_of_path(settings, path)[0] for path in repository_files()}
    assert settings.scopes.keys() - used == set()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("types = 3", "`types` is 3, expected a list of texts"),
        ("header_length = true", "expected a whole number"),
        ('unknown_scope = "maybe"', "expected 'error', 'warning' or 'allow'"),
        ("scopes = 3", "`scopes` is 3, expected a table"),
        ('[tool.areal.commit.scopes]\napi = ["a"]', '`scopes.api` is ["a"], expected a table'),
        ('[tool.areal.commit.scopes]\napi = { path = ["a"] }', "did you mean 'paths'?"),
        ('[tool.areal.commit.accepted]\nabc = "published before the rules"', "`accepted.abc` is"),
        ("not toml", "is not TOML"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path, text, said):
    (tmp_path / "pyproject.toml").write_text(f"[tool.areal.commit]\n{text}\n")
    with pytest.raises(UsageError) as raised:
        read_commit_settings(tmp_path)
    assert said in str(raised.value)
