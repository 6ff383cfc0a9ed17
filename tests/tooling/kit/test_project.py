"""Project settings: what may be said, what is found out, what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tooling.cli.errors import UsageError
from tooling.kit.template.kinds import ProjectSettings, read_settings, read_template_folders

if TYPE_CHECKING:
    from pathlib import Path


def project(root: Path, section: str) -> Path:
    (root / "pyproject.toml").write_text(f"[tool.areal.new]\n{section}\n", encoding="utf-8")
    return root


def refused(root: Path, message: str) -> UsageError:
    with pytest.raises(UsageError, match=message) as caught:
        read_settings(root)
    return caught.value


def test_everything_can_be_said(tmp_path):
    project(tmp_path, 'package = "my.models"\ntests = "checks/unit/"\ntemplates = ["a", "b/c"]\nregister = false')
    settings = read_settings(tmp_path)
    assert settings == ProjectSettings(package="my.models", tests="checks/unit", templates=("a", "b/c"), register=False)
    assert settings.package_path == "my/models"


def test_without_a_section_the_package_is_found(tmp_path):
    for name in ("mine", "tests", "docs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    assert read_settings(tmp_path) == ProjectSettings(package="mine", tests="tests", templates=(), register=True)


def test_areal_is_preferred(tmp_path):
    for name in ("mine", "areal"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    assert read_settings(tmp_path).package == "areal"


@pytest.mark.parametrize("packages", [[], ["one", "two"]])
def test_a_package_that_is_not_obvious_has_to_be_named(tmp_path, packages):
    for name in packages:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    error = refused(tmp_path, f"{len(packages) or 'no'} package")
    assert "package =" in error.fix
    assert read_template_folders(tmp_path) == ()  # nobody needs the package for that


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ('pakage = "areal"', "unknown setting 'pakage'"),
        ("package = 3", "of type int, expected str"),
        ('package = "my-models"', "not an import name"),
        ('package = "../areal"', "not an import name"),
        ('templates = "templates"', "of type str, expected list"),
        ("templates = [1]", "not text"),
        ('templates = ["../elsewhere"]', "not a folder of the repository"),
        ('templates = ["/etc"]', "not a folder of the repository"),
        ('tests = ".git/hooks"', "not a folder of the repository"),
        ('register = "yes"', "of type str, expected bool"),
    ],
)
def test_wrong_settings_are_refused(tmp_path, section, message):
    error = refused(project(tmp_path, section), message)
    assert error.where == "pyproject.toml: [tool.areal.new]"
    assert error.fix


def test_a_misspelt_setting_gets_the_nearest(tmp_path):
    assert "'package'" in refused(project(tmp_path, 'pakage = "areal"'), "unknown").fix


@pytest.mark.parametrize(("text", "message"), [("[tool\n", "cannot be read"), ("tool = 3\n", "expected a table")])
def test_a_broken_file_is_refused(tmp_path, text, message):
    (tmp_path / "pyproject.toml").write_text(text)
    assert refused(tmp_path, message).where.startswith("pyproject.toml")
