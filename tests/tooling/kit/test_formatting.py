"""Formatting and checking with the real ruff, judged by the configuration of the repository the files go to."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tooling.cli.errors import ToolError, UsageError
from tooling.kit.template import rendering as formatting
from tooling.kit.template.rendering import check_edited, check_files, format_files

if TYPE_CHECKING:
    from pathlib import Path

UGLY = b"import os\nx = {  'a':1 }\n"


def repository(root: Path, ruff: str = "") -> Path:
    (root / "pyproject.toml").write_text(f"[project]\nname = 'x'\n{ruff}")
    return root


def details(root: Path, files: dict[str, bytes]) -> dict[str, str]:
    return {result.name: result.detail for result in check_files(root, files)}


def snapshot(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_python_is_formatted_and_the_rest_passes(tmp_path):
    files = {"b/data.json": b"{ }", "a/x.py": UGLY, "c.pyi": b"x:int\n"}
    formatted = format_files(repository(tmp_path), files)
    assert formatted == {"a/x.py": b'import os\n\nx = {"a": 1}\n', "b/data.json": b"{ }", "c.pyi": b"x: int\n"}
    assert list(formatted) == sorted(files)


def test_formatting_twice_changes_nothing(tmp_path):
    once = format_files(repository(tmp_path), {"x.py": UGLY})
    assert format_files(tmp_path, once) == once


def test_line_endings_survive(tmp_path):
    assert format_files(repository(tmp_path), {"x.py": b"x = 1 \r\ny = 2\r\n"}) == {"x.py": b"x = 1\r\ny = 2\r\n"}


def test_the_repository_s_configuration_decides(tmp_path):
    repository(tmp_path, "[tool.ruff]\nline-length = 20\n[tool.ruff.format]\nquote-style = 'single'\n")
    formatted = format_files(tmp_path, {"x.py": b'values = ["aaaa", "bbbb", "cccc"]\n'})
    assert formatted["x.py"] == b"values = [\n    'aaaa',\n    'bbbb',\n    'cccc',\n]\n"


@pytest.mark.parametrize("name", ["ruff.toml", ".ruff.toml"])
def test_other_configuration_files_count_too(tmp_path, name):
    (repository(tmp_path) / name).write_text("[format]\nquote-style = 'single'\n")
    assert format_files(tmp_path, {"x.py": b'x = "a"\n'}) == {"x.py": b"x = 'a'\n"}


def test_a_nested_configuration_that_extends_another_counts(tmp_path):
    repository(tmp_path)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/base.toml").write_text("[format]\nquote-style = 'single'\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/ruff.toml").write_text("extend = '../shared/base.toml'\n")
    formatted = format_files(tmp_path, {"tests/x.py": b'x = "a"\n', "x.py": b'x = "a"\n'})
    assert formatted == {"tests/x.py": b"x = 'a'\n", "x.py": b'x = "a"\n'}


def test_per_file_ignores_match_repository_paths(tmp_path):
    ruff = "[tool.ruff.lint]\nselect = ['F401']\n[tool.ruff.lint.per-file-ignores]\n'tests/**' = ['F401']\n"
    repository(tmp_path, ruff)
    assert details(tmp_path, {"tests/x.py": b"import os\n"})["ruff-check"] == ""
    assert details(tmp_path, {"x.py": b"import os\n"})["ruff-check"].startswith("x.py:1:8: F401")


def test_packages_around_a_file_are_seen(tmp_path):
    """INP001 looks for __init__.py beside the file; the import sorter looks for first-party packages."""
    repository(tmp_path, "[tool.ruff.lint]\nselect = ['INP001', 'I001']\n")
    (tmp_path / "mine/inner").mkdir(parents=True)
    (tmp_path / "mine/__init__.py").touch()
    (tmp_path / "mine/inner/__init__.py").touch()
    source = b"import mine.inner\nimport zlib\nimport requests\n"
    assert format_files(tmp_path, {"mine/inner/x.py": source}) == {
        "mine/inner/x.py": b"import zlib\n\nimport requests\n\nimport mine.inner\n"
    }
    (tmp_path / "single.py").touch()
    elsewhere = format_files(tmp_path, {"checks/x.py": source + b"import single\n"})
    assert elsewhere == {"checks/x.py": b"import zlib\n\nimport requests\n\nimport mine.inner\nimport single\n"}
    assert details(tmp_path, {"mine/inner/x.py": b"x = 1\n"})["ruff-check"] == ""
    assert "INP001" in details(tmp_path, {"other/x.py": b"x = 1\n"})["ruff-check"]


def test_folders_that_the_configuration_calls_sources_are_seen(tmp_path):
    root = repository(tmp_path, '[tool.ruff]\nsrc = ["packages/a/src", "packages/b/src"]\nlint.select = ["I"]\n')
    for package in ("packages/a/src/one", "packages/b/src/two"):
        (root / package).mkdir(parents=True)
        (root / package / "__init__.py").write_bytes(b"")
    path = "packages/a/src/one/new.py"
    formatted = format_files(root, {path: b"import two\nimport yaml\n\nprint(two, yaml)\n"})[path]
    assert formatted == b"import yaml\n\nimport two\n\nprint(two, yaml)\n"
    (root / path).write_bytes(formatted)
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", path]
    assert subprocess.run(command, cwd=root, check=False, capture_output=True).returncode == 0


def test_a_nested_project_file_of_another_shape_is_the_project_s_mistake(tmp_path):
    root = repository(tmp_path)
    (root / "sub").mkdir()
    (root / "sub/pyproject.toml").write_text("tool = 3\n")
    with pytest.raises(UsageError, match="ruff refuses to work"):
        check_files(root, {"sub/x.py": b"x = 1\n"})


def test_imports_are_left_alone_where_the_project_does_not_sort_them(tmp_path):
    repository(tmp_path, "[tool.ruff.lint]\nselect = ['F']\n")
    source = b"import zlib\nimport ast\n\nprint(zlib, ast)\n"
    assert format_files(tmp_path, {"x.py": source}) == {"x.py": source}


def test_only_imports_are_fixed(tmp_path):
    repository(tmp_path, "[tool.ruff.lint]\nselect = ['I', 'F', 'UP']\n")
    source = b"import os\n\nx = str('a')\n"
    assert format_files(tmp_path, {"x.py": source}) == {"x.py": b'import os\n\nx = str("a")\n'}


# ---------------------------------------------------------------------------------------------------------- checks


def test_good_files_pass_every_check(tmp_path):
    results = check_files(repository(tmp_path), {"x.py": b"x = 1\n", "notes.md": b"#  x"})
    assert [(result.name, result.ok, result.detail) for result in results] == [
        ("syntax", True, ""),
        ("ruff-format", True, ""),
        ("ruff-check", True, ""),
    ]
    assert all(result.seconds > 0 for result in results)


def test_syntax_errors_are_named_with_their_line_and_stop_ruff(tmp_path):
    files = {"a.py": b"x = 1\n", "b.py": b"x = 1\ndef f(:\n", "c.py": b"x = '\n", "d.py": b"x = 1\0\n"}
    (result,) = check_files(repository(tmp_path), files)
    assert not result.ok
    assert [line.split(":")[:2] for line in result.detail.splitlines()] == [["b.py", "2"], ["c.py", "1"], ["d.py", "1"]]
    assert format_files(tmp_path, files) == files  # the sound one is formatted already


def test_unformatted_files_fail(tmp_path):
    results = {result.name: result for result in check_files(repository(tmp_path), {"x.py": UGLY})}
    assert not results["ruff-format"].ok
    assert "x.py" in results["ruff-format"].detail
    assert not results["ruff-check"].ok
    assert "F401" in results["ruff-check"].detail


def test_without_python_files_ruff_is_not_run(tmp_path, monkeypatch):
    monkeypatch.setattr(formatting, "_ruff_program", lambda: pytest.fail("ruff was run"))
    repository(tmp_path)
    (tmp_path / "bad.py").write_bytes(UGLY)
    assert check_files(tmp_path, {"a.md": b"x"}) == []
    assert check_files(tmp_path, {}) == []
    assert format_files(tmp_path, {"a.md": b"x"}) == {"a.md": b"x"}


def test_long_reports_are_cut(tmp_path):
    source = "".join(f"import {name}_{'x' * 60}\n" for name in "abcdefgh" * 20).encode()
    detail = details(repository(tmp_path), {"x.py": source})["ruff-check"]
    assert len(detail) < 4100
    assert detail.endswith("more characters)")


# ---------------------------------------------------------------------------------------------------------- isolation


def test_the_work_tree_is_neither_judged_nor_touched(tmp_path):
    repository(tmp_path)
    (tmp_path / "bad.py").write_bytes(UGLY)
    before = snapshot(tmp_path)
    format_files(tmp_path, {"x.py": b"x = 1\n"})
    assert all(result.ok for result in check_files(tmp_path, {"x.py": b"x = 1\n"}))
    assert snapshot(tmp_path) == before


def test_the_environment_and_folders_above_do_not_matter(tmp_path, monkeypatch):
    for name in ("above", "home/ruff"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "ruff.toml").write_text("[format]\nquote-style = 'single'\n")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "above"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RUFF_OUTPUT_FILE", str(tmp_path / "report"))
    monkeypatch.setenv("FORCE_COLOR", "1")
    (tmp_path / "repository").mkdir()
    root = repository(tmp_path / "repository")
    assert format_files(root, {"x.py": b'x = "a"\n'}) == {"x.py": b'x = "a"\n'}
    assert details(root, {"x.py": b"import os\n"})["ruff-check"].startswith("x.py:1:8: F401")
    assert os.listdir(tmp_path / "above") == ["ruff.toml"]
    assert not (tmp_path / "report").exists()


def test_a_broken_configuration_is_the_project_s_mistake(tmp_path):
    repository(tmp_path, "[tool.ruff]\nline-length = 'long'\n")
    with pytest.raises(UsageError, match="line-length"):
        format_files(tmp_path, {"x.py": b"x = 1\n"})


def test_unsafe_paths_are_refused(tmp_path):
    for path in ("../x.py", "/tmp/x.py", ".git/x.py"):
        with pytest.raises(UsageError, match="unsafe path"):
            format_files(repository(tmp_path), {path: b"x = 1\n"})


def test_a_ruff_that_cannot_be_run_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(formatting, "_ruff_program", lambda: str(tmp_path / "missing"))
    with pytest.raises(ToolError, match="could not be run"):
        format_files(repository(tmp_path), {"x.py": b"x = 1\n"})


# ---------------------------------------------------------------------------------------------------------- edits


def worse(root: Path, before: bytes, after: bytes, **others: tuple[bytes, bytes]) -> list[str]:
    edits = {"x.py": (before, after), **{f"{name}.py": edit for name, edit in others.items()}}
    return [result.name for result in check_edited(root, edits)]


def test_only_what_an_edit_breaks_counts(tmp_path):
    root = repository(tmp_path, '[tool.ruff]\nlint.select = ["E", "F"]\nlint.ignore = ["F401"]\n')
    long = b'X = "' + b"x" * 90 + b'"\n'
    assert worse(root, b"x = 1\n", b"x = 2\n") == []
    assert worse(root, b"x = 1\n", b"import os\n") == []  # the repository ignores that rule
    assert worse(root, b"x = 1\n", long) == ["ruff-check"]
    assert worse(root, long, long + long) == []  # it failed before
    assert worse(root, b"x = 1\n", b"x  = 1\n") == ["ruff-format"]
    assert worse(root, b"x = 1\n", b"x = (\n") == ["syntax"]


def test_a_file_that_failed_all_along_hides_no_other(tmp_path):
    root, long = repository(tmp_path), b"import os\n"
    assert worse(root, long, long + b"import sys\n", y=(b"x = 1\n", long)) == ["ruff-check"]
