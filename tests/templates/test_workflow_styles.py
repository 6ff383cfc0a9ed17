"""Every style of `areal-new workflow`: gates, answers that are refused, and what a module holds."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

import pytest
from workflow_units import FEEDBACK, UNITS

from tooling.cli.errors import UsageError
from tooling.kit.names import Names
from tooling.kit.template.kinds import ProjectSettings
from tooling.kit.template.manifest import load_manifest, resolve
from tooling.kit.template.rendering import check_files, complete_answers, format_files, render, template_context

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "templates" / "workflow"
LONG = "a_rather_long_name_for_a_workflow_of_ours_as_long_as_allowed"


def generated(name, package="areal", root=ROOT, **answers):
    """The formatted files of a unit, and what its manifest says about them."""
    parts = name.split("_")
    pascal = "".join(part[:1].upper() + part[1:] for part in parts)
    names = Names(name, name, pascal, name.upper(), "-".join(parts), name, " ".join(parts))
    settings = ProjectSettings(package=package)
    complete = complete_answers(TEMPLATE, answers, names, settings)
    files = render(TEMPLATE, complete, names, settings)
    context = {**template_context(names, settings, "workflow"), **complete}
    return format_files(root, files), resolve(load_manifest(TEMPLATE), context, files)


def module_of(files):
    return next(content.decode() for path, content in files.items() if not path.startswith("tests/"))


@pytest.mark.parametrize("name", UNITS)
def test_every_style_passes_the_gates_and_is_the_same_each_time(name):
    files, manifest = generated(name, **UNITS[name])
    assert sorted(files) == [f"areal/workflow/{name}.py", f"tests/areal/workflow/test_{name}.py"]
    assert [result.name for result in check_files(ROOT, files) if not result.ok] == []
    assert [entry.path for entry in manifest.files if entry.test] == [f"tests/areal/workflow/test_{name}.py"]
    assert generated(name, **UNITS[name])[0] == files


STYLES = [
    pytest.param(style, marks=pytest.mark.exhaustive)
    for style in ("single_turn", "multi_turn", "vision", "vision_tokens")
]


@pytest.mark.parametrize("style", ["tool_use", *STYLES])
def test_long_names_and_other_packages_pass_the_gates_too(style, tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in ("areal", "my_company.agents"):
        folder = tmp_path
        for part in (*package.split("."), "workflow"):
            folder /= part
            folder.mkdir()
            (folder / "__init__.py").touch()
        files, manifest = generated(LONG, package, tmp_path, style=style)
        assert [result.detail for result in check_files(tmp_path, files) if not result.ok] == []
        assert manifest.registry[0].value.startswith(f"{package}.workflow.{LONG}:ARatherLong")


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("plain_answer", ["turns", "feedback", "tool", "image", "FaultKind"]),
        ("second_try", ["tool", "image"]),
        ("with_tools", ["turn_discount", "FEEDBACK", "image_tokenizer"]),
        ("with_images", ["turns", "feedback", "tools"]),
        ("with_pixels", ["turns", "feedback", "tools", "image_tokenizer"]),
    ],
)
def test_a_module_holds_nothing_of_other_styles(name, absent):
    module = module_of(generated(name, **UNITS[name])[0])
    assert [word for word in absent if re.search(rf"\b{word}\b", module)] == []


def test_answers_are_data_whatever_they_hold():
    module = module_of(generated("odd_words", **UNITS["odd_words"])[0])
    values = {
        ast.unparse(node.targets[0]): ast.literal_eval(node.value)
        for node in ast.parse(module).body
        if isinstance(node, ast.Assign)
    }
    assert values == {"FEEDBACK": FEEDBACK}
    tools = module_of(generated("with_tools", style="tool_use", tools="a.b:C, my_tools:SEARCH")[0])
    assert 'TOOLS = ("a.b:C", "my_tools:SEARCH")' in tools


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"style": "multi_turns"}, "multi_turn"),
        ({"style": "multi_turn", "max_turns": 1}, "use --style single_turn"),
        ({"style": "multi_turn", "max_turns": 101}, "expected 2 .. 100"),
        ({"style": "multi_turn", "turn_discount": 1.01}, "expected 0 .. 1"),
        ({"style": "multi_turn", "feedback": " \n"}, "without it the model would only continue"),
        ({"style": "multi_turn", "feedback": "a " * 200}, "at most 300 characters"),
        ({"style": "multi_turn", "feedback": "a" * 61}, "words of at most 60 characters"),
        ({"style": "tool_use", "max_calls": 0}, "expected 1 .. 100"),
        ({"style": "tool_use", "tools": "calculator"}, '"calculator" is not "module:object"'),
        ({"style": "tool_use", "tools": "a.b:C,"}, '"" is not "module:object"'),
        ({"style": "tool_use", "tools": "a..b:C"}, '"a..b:C" is not "module:object"'),
        ({"style": "tool_use", "tools": 'a:C",__import__("os").abort(),"'}, 'is not "module:object"'),
        ({"style": "vision_tokens", "image_tokenizer": "a-b:C"}, 'expected "module:object"'),
        ({"style": "vision_tokens", "image_tokenizer": 'a:C"\nimport os'}, 'expected "module:object"'),
    ],
)
def test_answers_that_make_no_sense_are_refused(answers, message):
    with pytest.raises(UsageError) as caught:
        generated("refused", **answers)
    assert message in str(caught.value)
