"""Every style of `areal-new environment`: gates, answers that are refused, and what a module holds."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from environment_units import UNITS

from tooling.cli.errors import UsageError
from tooling.kit.names import Names
from tooling.kit.template.kinds import ProjectSettings
from tooling.kit.template.manifest import load_manifest, resolve
from tooling.kit.template.rendering import check_files, complete_answers, format_files, render, template_context

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "templates" / "environment"
LONG = "a_rather_long_name_for_a_world_of_ours_as_long_as_allowed_is"


def generated(name, package="areal", root=ROOT, **answers):
    """The formatted files of a unit, and what its manifest says about them."""
    parts = name.split("_")
    pascal = "".join(part[:1].upper() + part[1:] for part in parts)
    names = Names(name, name, pascal, name.upper(), "-".join(parts), name, " ".join(parts))
    settings = ProjectSettings(package=package)
    complete = complete_answers(TEMPLATE, answers, names, settings)
    files = render(TEMPLATE, complete, names, settings)
    context = {**template_context(names, settings, "environment"), **complete}
    return format_files(root, files), resolve(load_manifest(TEMPLATE), context, files)


@pytest.mark.parametrize("name", UNITS)
def test_every_style_passes_the_gates_and_is_the_same_each_time(name):
    files, manifest = generated(name, **UNITS[name])
    assert sorted(files) == [f"areal/environment/{name}.py", f"tests/areal/environment/test_{name}.py"]
    assert [result.name for result in check_files(ROOT, files) if not result.ok] == []
    assert [entry.path for entry in manifest.files if entry.test] == [f"tests/areal/environment/test_{name}.py"]
    assert generated(name, **UNITS[name])[0] == files


@pytest.mark.parametrize("style", ["text", "tools"])
@pytest.mark.parametrize("package", ["areal", "my_company.agents"])
def test_long_names_and_other_packages_pass_the_gates_too(style, package, tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    folder = tmp_path
    for part in (*package.split("."), "environment"):
        folder /= part
        folder.mkdir()
        (folder / "__init__.py").touch()
    files, manifest = generated(LONG, package, tmp_path, style=style)
    assert [result.detail for result in check_files(tmp_path, files) if not result.ok] == []
    assert manifest.registry[0].value.startswith(f"{package}.environment.{LONG}:ARatherLong")


@pytest.mark.parametrize(
    ("name", "absent"),
    [("number_game", ["ActionCall", "calls", "tools", "_ITEMS"]), ("corner_shop", ["_NUMBER", "guess", "highest"])],
)
def test_a_module_holds_nothing_of_other_styles(name, absent):
    files, _ = generated(name, **UNITS[name])
    module = files[f"areal/environment/{name}.py"].decode()
    assert [word for word in absent if re.search(rf"\b{word}\b", module)] == []
    assert not re.search(r"{[{%]", module)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"style": "image"}, "text"),
        ({"max_steps": 0}, "expected 1 .. 1000"),
        ({"max_steps": 1001}, "expected 1 .. 1000"),
    ],
)
def test_answers_that_make_no_sense_are_refused(answers, message):
    with pytest.raises(UsageError) as caught:
        generated("refused", **answers)
    assert message in str(caught.value)
