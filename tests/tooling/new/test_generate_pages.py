"""Generator pages: an installed package's page is run, its answers are remembered, a project's own is never run."""

from __future__ import annotations

import importlib
import shutil
import sys

import pytest

from tooling.cli.errors import UsageError
from tooling.kit.receipts import read_receipt
from tooling.kit.template.kinds import KindSource
from tooling.new.change import UnitRequest
from tooling.new.commands.generate import plan_unit
from tooling.new.commands.rename import plan_rename
from tooling.new.commands.update import plan_update
from tooling.new.unit import prepare

PAGE = """
from tooling.cli.errors import UsageError

CALLS = []


def prepare(change):
    options = change.request.options
    CALLS.append(("prepare", dict(change.request.answers), dict(options)))
    if "from" not in options:
        return {}
    change.warnings.append("read a file")
    change.next_steps.append("look at it")
    return {"percent": int(open(options["from"], encoding="utf-8").read())}


def finish(change, answers, folder):
    rendered = (folder / f"shop/rules/{change.names.snake}.py").read_text(encoding="utf-8")
    CALLS.append(("finish", sorted(path.name for path in folder.rglob("*.py")), change.root.name))
    return {"count": len(rendered.splitlines())}
"""

DISTRIBUTION = {
    "METADATA": "Metadata-Version: 2.1\nName: ruler\nVersion: 1.0\n",
    "entry_points.txt": "[areal.new]\nruled = ruler:KIND\n",
}


@pytest.fixture
def installed(world, tmp_path, monkeypatch):
    """The kind "rule" as the kind "ruled" of an installed package, with a page and an option."""
    site = tmp_path / "site"
    shutil.copytree(world.root / "templates/rule", site / "ruled")
    shutil.rmtree(world.root / "templates/rule")
    manifest = site / "ruled/template.toml"
    text = manifest.read_text(encoding="utf-8").replace('name = "rule"', 'name = "ruled"')
    option = '[[options]]\nname = "from"\nmetavar = "FILE"\nhelp = "read the percentage"\n\n[[files]]'
    manifest.write_text(text.replace("[[files]]", option, 1), encoding="utf-8")
    questions = site / "ruled/copier.yml"
    count = "\ncount:\n  type: int\n  default: 0\n  when: false\n"
    questions.write_text(questions.read_text(encoding="utf-8") + count, encoding="utf-8")
    module = site / "ruled/template/{{ package_path }}/rules/{{ snake }}.py.jinja"
    module.write_text(module.read_text(encoding="utf-8") + "\n\nLINES = {{ count }}\n", encoding="utf-8")
    (site / "ruler_page.py").write_text(PAGE, encoding="utf-8")
    (site / "ruler.py").write_text(
        "from pathlib import Path\n\n\nclass KIND:\n"
        "    folder = Path(__file__).parent / 'ruled'\n    prepare = 'ruler_page'\n",
        encoding="utf-8",
    )
    (site / "ruler-1.0.dist-info").mkdir()
    for name, content in DISTRIBUTION.items():
        (site / "ruler-1.0.dist-info" / name).write_text(content, encoding="utf-8")
    monkeypatch.syspath_prepend(site)
    yield site
    for name in ("ruler", "ruler_page"):
        sys.modules.pop(name, None)


def calls():
    return importlib.import_module("ruler_page").CALLS


def plan(world, tmp_path, **answers):
    (tmp_path / "percent.txt").write_text("40", encoding="utf-8")
    request = UnitRequest(
        kind="ruled", name="half_off", answers=answers, options={"from": str(tmp_path / "percent.txt")}
    )
    return plan_unit(world.project, request)


def test_the_page_of_an_installed_package_derives_answers_and_sees_the_rendered_files(world, installed, tmp_path):
    unit = plan(world, tmp_path, style="rounded")
    world.apply(unit)
    assert "(100 - 40)" in world.read("shop/rules/half_off.py")
    assert "LINES = 15" in world.read("shop/rules/half_off.py")
    assert unit.warnings == ["read a file"]
    assert unit.next_steps == ["use rule=half_off", "look at it"]
    receipt = read_receipt(world.root, "ruled", "half_off")
    assert (receipt.answers["percent"], receipt.answers["count"]) == (40, 15)
    assert receipt.template.origin == "package:ruler"
    assert receipt.template.folder == "ruled"
    assert calls()[0][1:] == ({"style": "rounded"}, {"from": str(tmp_path / "percent.txt")})
    assert calls()[1] == ("finish", ["half_off.py", "test_half_off.py"], "shop")
    assert not plan(world, tmp_path, style="rounded").plan


@pytest.mark.exhaustive
def test_an_update_needs_neither_the_option_nor_its_file(world, installed, tmp_path):
    world.apply(plan(world, tmp_path))
    (tmp_path / "percent.txt").unlink()
    template = installed / "ruled/template/{{ package_path }}/rules/{{ snake }}.py.jinja"
    template.write_text(template.read_text(encoding="utf-8").replace("percent off", "percent away"), encoding="utf-8")
    world.edit("shop/rules/half_off.py", "return result", "return abs(result)")
    unit = plan_update(world.project, "ruled", "half_off")
    world.apply(unit)
    assert unit.exit_code == 0
    assert "Takes 40 percent away." in world.read("shop/rules/half_off.py")
    assert "return abs(result)" in world.read("shop/rules/half_off.py")


def test_an_update_follows_a_page_that_derives_otherwise_now(world, installed, tmp_path, monkeypatch):
    world.apply(plan(world, tmp_path))
    world.edit("shop/rules/half_off.py", "return result", "return abs(result)")
    assert not plan_update(world.project, "ruled", "half_off").plan
    derive = importlib.import_module("ruler_page").prepare

    def changed(change):
        return {**derive(change), "percent": change.request.answers["percent"] // 2}

    monkeypatch.setattr("ruler_page.prepare", changed)
    unit = plan_update(world.project, "ruled", "half_off")
    world.apply(unit)
    assert unit.exit_code == 0
    assert "(100 - 20)" in world.read("shop/rules/half_off.py")
    assert "return abs(result)" in world.read("shop/rules/half_off.py")
    assert read_receipt(world.root, "ruled", "half_off").answers["percent"] == 20
    monkeypatch.setattr("ruler_page.prepare", derive)
    assert not plan_update(world.project, "ruled", "half_off").plan


@pytest.mark.exhaustive
def test_an_update_can_read_new_data_by_the_option(world, installed, tmp_path):
    world.apply(plan(world, tmp_path))
    (tmp_path / "other.txt").write_text("70", encoding="utf-8")
    unit = plan_update(world.project, "ruled", "half_off", options={"from": str(tmp_path / "other.txt")})
    world.apply(unit)
    assert "(100 - 70)" in world.read("shop/rules/half_off.py")
    assert "read a file" in unit.warnings


@pytest.mark.exhaustive
def test_a_rename_runs_no_page(world, installed, tmp_path):
    world.apply(plan(world, tmp_path))
    before = len(calls())
    world.apply(plan_rename(world.project, "ruled", "half_off", "half_price"))
    assert len(calls()) == before
    assert "LINES = 14" in world.read("shop/rules/half_price.py")


def test_an_error_of_the_page_reaches_the_caller_and_nothing_is_written(world, installed, tmp_path):
    page = (installed / "ruler_page.py").read_text(encoding="utf-8")
    refusing = page.replace(
        "    change.warnings", '    raise UsageError("row 3 is odd", where="--from")\n    change.warnings'
    )
    (installed / "ruler_page.py").write_text(refusing, encoding="utf-8")
    before = world.tree()
    with pytest.raises(UsageError, match="row 3 is odd"):
        plan(world, tmp_path)
    assert world.tree() == before


def test_a_page_that_does_not_exist_is_named(world, installed, tmp_path):
    (installed / "ruler_page.py").unlink()
    with pytest.raises(UsageError, match="'ruler_page' does not exist"):
        plan(world, tmp_path)


def with_page(world, name):
    world.edit("templates/rule/template.toml", 'commit = "', 'generator = "ruler_page"\ncommit = "')
    return KindSource(name, world.root / "templates/rule", "", "project")


def test_options_of_a_projects_own_template_are_refused_since_its_page_is_not_run(world):
    with_page(world, "rule")
    world.edit(
        "templates/rule/template.toml",
        "[[files]]",
        '[[options]]\nname = "from"\nmetavar = "F"\nhelp = "h"\n\n[[files]]',
    )
    with pytest.raises(UsageError, match="is not run for a project's own template"):
        plan_unit(world.project, UnitRequest(kind="rule", name="half_off", options={"from": "x"}))


def test_a_byte_for_byte_copy_of_a_built_in_template_has_the_built_in_page(world, tmp_path, monkeypatch):
    built_in = tmp_path / "built_in"
    source = with_page(world, "rule")
    shutil.copytree(source.folder, built_in / "rule")
    monkeypatch.setattr("tooling.new.unit.built_in_folder", lambda: built_in)
    (tmp_path / "site").mkdir()
    (tmp_path / "site/ruler_page.py").write_text(PAGE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "site")
    project = world.project
    change = project.change(UnitRequest(kind="rule", name="half_off"))
    _, finish = prepare(project, source, change)
    assert finish is not None
    sys.modules.pop("ruler_page")
    world.edit(world.module_template, "percent off", "percent away")
    assert prepare(project, source, change) == ({}, None)
    assert change.warnings == ["the page ruler_page was not run: a project's own template is data"]
    assert "ruler_page" not in sys.modules
