"""Status and explain: what stands where, what it is for, and what is left to do."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tooling.cli.errors import UsageError
from tooling.cli.parser import split
from tooling.new.change import open_project
from tooling.new.command_line import VALUE_OPTIONS, answer
from tooling.new.commands.explain import explain, find_markers

ROOT = Path(__file__).resolve().parents[3]
MODULE = "shop/rules/half_off.py"
TEST = "tests/test_half_off.py"
REGISTRY = "shop/rules/registry.py"


def status(world):
    (found,) = world.units("rule", "half_off")
    return found


def test_a_fresh_unit_is_clean(world):
    assert world.units() == []
    world.generate()
    world.prove(passed=3)
    found = status(world)
    assert (found.state, found.template) == ("clean", "current")
    assert {(file.path, file.state) for file in found.files} == {(MODULE, "pristine"), (TEST, "pristine")}
    assert [(entry.file, entry.table, entry.key, entry.state) for entry in found.entries] == [
        (REGISTRY, "RULES", "half_off", "present"),
        ("docs/extensions.md", "rules", "half_off", "present"),
    ]


def test_an_edit_is_seen(made):
    made.edit(MODULE, "return result", "return max(result, 0.0)")
    assert status(made).state == "edited"
    assert [file.state for file in status(made).files] == ["edited", "pristine"]


def test_a_missing_file_or_entry_is_seen_before_an_edit(made):
    made.edit(MODULE, "return result", "return max(result, 0.0)")
    (made.root / TEST).unlink()
    assert status(made).state == "incomplete"
    assert [file.state for file in status(made).files] == ["edited", "missing"]
    made.edit(REGISTRY, "shop.rules.half_off:half_off_rule", "shop.other:rule")
    made.edit("docs/extensions.md", "| `half_off` | half off, a rule |\n", "")
    assert [entry.state for entry in status(made).entries] == ["changed", "absent"]


def test_a_newer_template_makes_a_clean_unit_outdated(made):
    made.edit(made.module_template, "percent off", "percent away")
    assert (status(made).state, status(made).template) == ("outdated", "outdated")
    shutil.rmtree(made.root / "templates/rule")
    assert status(made).template == "unavailable"


def test_a_link_in_the_place_of_a_file_is_an_edit(made):
    (made.root / MODULE).unlink()
    (made.root / MODULE).symlink_to("registry.py")
    assert [file.state for file in status(made).files] == ["edited", "pristine"]


def states(folder):
    units = answer(split(["status", "--repo", str(folder)], VALUE_OPTIONS)).data["units"]
    return {f"{unit['kind']} {unit['name']}": unit["state"] for unit in units}


def test_the_units_of_this_repository_are_clean():
    """What a fresh clone says first: a template that was changed goes with `areal-new update --all`."""
    assert set(states(ROOT).values()) <= {"clean"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [(), ("--depth=1",)], ids=["with history", "without"])
def test_the_units_of_a_fresh_clone_are_clean(tmp_path, options):
    command = ["git", "clone", "--quiet", *options, ROOT.as_uri(), str(tmp_path / "clone")]
    subprocess.run(command, check=True, timeout=120)
    assert set(states(tmp_path / "clone").values()) == {"clean"}


def test_units_are_listed_by_kind_and_name(made):
    made.generate("fifth_off")
    assert [unit.name for unit in made.units()] == ["fifth_off", "half_off"]
    assert made.units("reward") == []
    with pytest.raises(UsageError, match="fourth_off"):
        made.units("rule", "fourth_off")


def test_a_generated_unit_is_explained_from_its_receipt_and_files(world):
    world.generate(percent=25)
    world.write(MODULE, world.read(MODULE) + "# FIXME: fractions\n")
    explanation = world.as_namespaces(explain(world.project, "rule", "Half-Off"))
    assert (explanation.generated, explanation.name, explanation.summary) == (True, "half_off", "a rule on prices")
    module, test = explanation.files
    assert (module.path, module.purpose, module.state) == (MODULE, "the rule half off", "edited")
    assert module.contract == "shop/rules/free.py:4:free_rule"
    assert module.todo == ["say what the rule is for"]
    assert [(marker.line, marker.text) for marker in module.markers] == [
        (3, "TODO: say what half off is for"),
        (12, "FIXME: fractions"),
    ]
    assert (test.test, test.contract, test.markers) == (True, "", [])
    assert explanation.answers.percent == 25
    assert [entry.key for entry in explanation.entries] == ["half_off"]


def test_a_unit_that_is_not_there_is_explained_from_its_template(world):
    before = world.tree()
    explanation = world.as_namespaces(explain(world.project, "rule", answers={"percent": 30}))
    assert (explanation.generated, explanation.name) == (False, "example")
    assert [file.state for file in explanation.files] == ["planned", "planned"]
    assert explanation.files[0].path == "shop/rules/example.py"
    assert explanation.files[0].markers[0].line == 3
    assert explanation.commit == "feat(rules): add example"
    assert world.tree() == before


def test_a_kind_that_cannot_be_made_of_nothing_is_explained_by_the_example_of_its_template(world):
    world.edit("templates/rule/copier.yml", "  default: 10\n", "")
    with pytest.raises(UsageError):
        explain(world.project, "rule")
    world.edit("templates/rule/template.toml", "[[files]]", "[example]\npercent = 3\n\n[[files]]")
    explanation = world.as_namespaces(explain(world.project, "rule"))
    assert (explanation.generated, explanation.name) == (False, "example")
    assert [file.state for file in explanation.files] == ["planned", "planned"]
    assert explanation.files[0].path == "shop/rules/example.py"
    assert explanation.entries
    assert explanation.commit == "feat(rules): add example"


@pytest.mark.exhaustive
def test_every_kind_of_this_repository_is_explained_without_a_name():
    project = open_project(ROOT)
    for kind in project.kinds:
        explanation = explain(project, kind)
        assert explanation["files"]
        assert all(file["purpose"] for file in explanation["files"])


def test_an_explained_unit_survives_the_loss_of_its_kind(made):
    shutil.rmtree(made.root / "templates/rule")
    assert explain(made.project, "rule", "half_off")["files"][0]["purpose"] == "the rule half off"
    with pytest.raises(UsageError, match="no kind 'rule'"):
        explain(made.project, "rule", "other")


def test_markers_are_words_and_lose_the_markup_around_them():
    text = "x = 1  # TODO: one\n<!-- FIXME two -->\nTODOS = 3\n/* TODO(me): three */\n"
    assert list(find_markers(text)) == [(1, "TODO: one"), (2, "FIXME two"), (4, "TODO(me): three")]
