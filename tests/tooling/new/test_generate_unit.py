"""Generating a unit: files, registry, docs line and receipt as one change, and nothing when something is wrong."""

from __future__ import annotations

import json
import os

import pytest

from tooling.cli.errors import (
    ChecksFailedError,
    ConflictError,
    MergeConflictError,
    NameRefusedError,
    RegistryShapeError,
    UsageError,
)
from tooling.kit.change.transaction import recover, transaction
from tooling.kit.kind import RegistryEntry
from tooling.kit.receipts import read_receipt
from tooling.new.change import Change, UnitRequest
from tooling.new.commands.generate import plan_unit
from tooling.new.unit import register

MODULE = "shop/rules/half_off.py"
TEST = "tests/test_half_off.py"
REGISTRY = "shop/rules/registry.py"
RECEIPT = ".areal/receipts/rule/half_off.json"


def test_a_unit_is_four_changes_and_one_line_in_each_shared_file(world):
    unit = world.plan()
    assert [(change.action, change.path) for change in unit.plan.changes] == [
        ("create", RECEIPT),
        ("modify", "docs/extensions.md"),
        ("create", MODULE),
        ("modify", REGISTRY),
        ("create", TEST),
    ]
    world.apply(unit)
    assert world.git("diff", "--numstat").splitlines() == ["1\t0\tdocs/extensions.md", f"1\t0\t{REGISTRY}"]
    assert '    "half_off": "shop.rules.half_off:half_off_rule",\n' in world.read(REGISTRY)
    assert "| `half_off` | half off, a rule |\n" in world.read("docs/extensions.md")
    assert [(item.key, item.line, item.action) for item in unit.registered] == [
        ("half_off", 8, "add"),
        ("half_off", 7, "add"),
    ]
    assert unit.commit == "feat(rules): add half-off"
    assert unit.next_steps == ["use rule=half_off"]
    assert unit.exit_code == 0


def test_generated_files_pass_the_gates(world):
    unit = world.plan(percent=25, style="rounded")
    assert [(check.name, check.ok) for check in unit.checks] == [
        ("syntax", True),
        ("ruff-format", True),
        ("ruff-check", True),
    ]


def test_the_receipt_remembers_what_was_made_and_nothing_of_the_machine(world):
    world.generate(percent=25)
    receipt = read_receipt(world.root, "rule", "half_off")
    assert receipt.answers == {"percent": 25, "style": "plain", "summary": "half off, a rule"}
    assert receipt.symbols == ("half_off_rule",)
    assert receipt.template.folder == "templates/rule"
    assert receipt.template.tree == world.git("rev-parse", "HEAD:templates/rule").strip()
    assert [entry.key for entry in receipt.entries] == ["half_off"]
    assert str(world.root) not in world.read(RECEIPT)
    assert set(receipt.files) == {MODULE, TEST}


def test_the_same_request_a_second_time_is_an_empty_plan(made):
    again = made.plan("Half-Off")
    assert not again.plan
    assert again.warnings == []
    assert again.registered == []


def test_other_answers_for_a_unit_that_exists_are_refused_with_the_way_to_change_them(world):
    world.generate(percent=25)
    with pytest.raises(ConflictError, match="percent is 25, asked for is 30") as caught:
        world.plan(percent=30)
    assert "areal-new update rule half_off" in caught.value.fix


def test_an_edited_file_is_kept_by_a_second_run(made):
    made.edit(MODULE, "return result", "return max(result, 0.0)")
    again = made.plan()
    assert not again.plan
    assert again.warnings == [f"{MODULE} was edited since it was generated and is kept as it is"]


def test_a_second_run_restores_what_is_gone(made):
    complete = made.tree()
    (made.root / TEST).unlink()
    made.edit(REGISTRY, '    "half_off": "shop.rules.half_off:half_off_rule",\n', "")
    made.generate()
    assert made.tree() == complete


def test_a_second_run_after_the_template_changed_points_to_update(made):
    made.edit(made.module_template, "result = price", "result = 1.0 * price")
    again = made.plan()
    assert not again.plan
    assert "areal-new update rule half_off" in again.warnings[0]


def test_a_template_that_changed_is_not_rendered_with_the_old_answers(made):
    made.edit(made.module_template, "result = price", "result = {{ nobody.answers.this }}")
    again = made.plan()
    assert not again.plan
    assert "areal-new update" in again.warnings[0]


def test_without_registering_only_the_files_and_the_receipt_are_made(world):
    unit = world.plan(register=False)
    assert [change.path for change in unit.plan.changes] == [RECEIPT, MODULE, TEST]
    world.apply(unit)
    assert read_receipt(world.root, "rule", "half_off").entries == ()
    assert not world.plan(register=False).plan
    assert [change.path for change in world.plan().plan.changes] == [RECEIPT, "docs/extensions.md", REGISTRY]


def test_a_dirty_tree_is_fine_and_stays_as_it_is(world):
    world.edit("shop/__init__.py", "A shop", "A dirty shop")
    world.write("notes.txt", "mine")
    world.git("add", "notes.txt")
    world.write("notes.txt", "mine, and more")
    index = (world.root / ".git/index").read_bytes()
    world.generate()
    assert (world.root / ".git/index").read_bytes() == index
    assert world.read("notes.txt") == "mine, and more"
    assert "A dirty shop" in world.read("shop/__init__.py")


def test_a_file_in_the_way_is_a_conflict_even_when_git_ignores_it(world):
    world.write(MODULE, "x = 1\n")
    with pytest.raises(ConflictError) as caught:
        world.plan()
    assert MODULE in caught.value.where
    world.write(".gitignore", "half_off.py\n")
    with pytest.raises(ConflictError, match="exists already"):
        world.plan()


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["free", "Free", "F-R-E-E"])
def test_a_name_that_the_registry_has_in_another_spelling_is_refused(world, name):
    with pytest.raises((NameRefusedError, ConflictError)):
        world.plan(name)


def test_a_symbol_that_the_package_defines_is_refused(world):
    world.write("shop/other.py", "def half_off_rule(x: int) -> int:\n    return x\n")
    with pytest.raises(NameRefusedError, match=r"half_off_rule.*shop/other.py:1"):
        world.plan()


@pytest.mark.parametrize("name", ["registry", "import", "../x", "7up", ""])
def test_names_that_cannot_be_used_are_refused(world, name):
    with pytest.raises(NameRefusedError):
        world.plan(name)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"percent": 101}, "at most 100"),
        ({"percent": "ten"}, "percent"),
        ({"style": "plian"}, "plain"),
        ({"precent": 1}, "percent"),
    ],
)
def test_wrong_answers_are_refused_by_their_question(world, answers, message):
    with pytest.raises(UsageError, match=message):
        world.plan(**answers)


def test_an_unknown_option_is_refused(world):
    with pytest.raises(UsageError, match="no option 'from'"):
        plan_unit(world.project, UnitRequest(kind="rule", name="half_off", options={"from": "x"}))


def test_a_registry_of_another_shape_is_refused_with_the_line_to_paste(world):
    world.write(REGISTRY, "RULES = dict(free='shop.rules.free:free_rule')\n")
    before = world.tree()
    with pytest.raises(RegistryShapeError) as caught:
        world.plan()
    assert '"half_off": "shop.rules.half_off:half_off_rule",' in caught.value.fix
    assert world.tree() == before
    (world.root / REGISTRY).unlink()
    with pytest.raises(RegistryShapeError, match="does not exist"):
        world.plan()


def test_a_document_without_its_section_is_only_a_warning(world):
    world.write("docs/extensions.md", "# Nothing here\n")
    unit = world.plan()
    assert any("docs/extensions.md was left alone" in warning for warning in unit.warnings)
    assert REGISTRY in [change.path for change in unit.plan.changes]
    assert unit.receipt.documents == ()


def test_a_template_that_renders_bad_code_is_stopped_before_anything_is_written(world):
    before = world.tree()
    world.edit(world.module_template, "return result", "return reslut")
    with pytest.raises(ChecksFailedError, match="ruff-check") as caught:
        world.plan()
    assert "F821" in caught.value.checks[-1].detail
    assert "\n" not in str(caught.value), "the checks are reported besides"
    assert [check.ok for check in caught.value.checks] == [True, True, False]
    world.edit(world.module_template, "return reslut", "return (")
    with pytest.raises(ChecksFailedError, match="syntax"):
        world.plan()
    world.edit(world.module_template, "return (", "return result")
    assert world.tree() == before


def test_a_projects_own_template_runs_no_page(world, tmp_path):
    trap = tmp_path / "ran"
    world.write("evil_page.py", f"open({str(trap)!r}, 'w')\n")
    world.edit("templates/rule/template.toml", 'commit = "', 'generator = "evil_page"\ncommit = "')
    unit = world.plan()
    assert not trap.exists()
    assert any("evil_page was not run" in warning for warning in unit.warnings)


def test_a_run_that_ends_at_any_step_is_rolled_back_completely_or_was_complete(world):
    """At four steps; `tooling.new.matrix` ends at every one, for each built-in kind."""
    before, steps = world.tree(), []
    change = world.plan()
    world.apply(change, observe=steps.append)
    after = world.tree()
    repository = world.project.repository
    for number in (0, len(steps) // 3, 2 * len(steps) // 3, len(steps) - 1):
        world.git("clean", "-fdq")
        world.git("checkout", "--quiet", ".")
        process = os.fork()
        if process == 0:  # the child ends without any clean-up, as a killed process does
            left = iter([False] * number)
            world.apply(change, observe=lambda step, left=left: next(left, True) and os._exit(9))
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 9, steps[number]
        with transaction(repository, wait_seconds=5, note=lambda line: None):
            assert recover(repository) == []
        assert world.tree() == (after if number == len(steps) - 1 else before), steps[number]


def test_an_error_while_writing_leaves_the_tree_as_it_was(world):
    before = world.tree()

    def observe(step):
        if "replace" in step or "swap" in step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.apply(world.plan(), observe=observe)
    assert world.tree() == before


def test_an_uncommitted_template_is_kept_in_git_for_later(world):
    world.edit(world.module_template, "result = price", "result = 1.0 * price")
    unit = world.generate()
    tree = unit.receipt.template.tree
    assert world.git("cat-file", "-t", tree).strip() == "tree"
    assert tree != world.git("rev-parse", "HEAD:templates/rule").strip()


def test_json_answers_come_back_from_the_receipt_as_they_were(world):
    world.write(
        "templates/rule/copier.yml",
        world.read("templates/rule/copier.yml") + "\ncases:\n  type: json\n  default: []\n  help: examples\n",
    )
    cases = [{"price": 1.5, "expected": None}, ["ü", True]]
    world.generate(cases=cases)
    assert json.loads(world.read(RECEIPT))["answers"]["cases"] == cases
    assert not world.plan(cases=cases).plan


def test_a_registry_that_an_entry_would_spoil_is_left_alone(world):
    before = world.tree()
    with pytest.raises(ChecksFailedError) as caught:
        world.plan("takes_a_third_of_the_price_off")
    assert caught.value.where == REGISTRY
    assert [check.name for check in caught.value.checks] == ["ruff-check"]
    assert world.tree() == before
    world.apply(world.plan("takes_a_third_of_the_price_off", register=False))
    assert world.git("diff", "--numstat") == ""


def test_what_a_registry_failed_before_is_not_the_fault_of_an_entry(world):
    world.edit(REGISTRY, '"""Which', 'import os\n\nX  =  1\n"""Which')
    unit = world.plan()
    assert unit.warnings == []
    world.apply(unit)


def test_an_entry_that_spoils_only_the_layout_is_a_warning(world):
    world.write(REGISTRY, '"""Rules."""\n\nRULES = {"free": "shop.rules.free:free_rule"}\n')
    world.edit("pyproject.toml", "line-length = 100", "line-length = 80")  # the line gets 82 characters
    world.edit("pyproject.toml", '"E", ', "")
    unit = world.plan("half")
    assert any(f"ruff-format of {REGISTRY}" in warning for warning in unit.warnings)
    world.apply(unit)


TABLE = 'RULES = {\n    "free": "shop:free",\n    "zero": "shop:zero",\n}\n'


def test_every_entry_is_reported_where_it_stands_in_the_end(tmp_path):
    (tmp_path / "registry.py").write_text(TABLE, encoding="utf-8")
    change = Change(root=tmp_path, python=tmp_path, request=UnitRequest(kind="rule", name="half"))
    keys = ["tenth", "half", "third"]
    entries = [RegistryEntry("registry.py", "mapping", "RULES", key, f"shop:{key}") for key in keys]
    register(change, entries)
    lines = change.plan.read("registry.py").decode().splitlines()
    assert [lines[item.line - 1].split('"')[1] for item in change.registered] == keys
    (changed,) = change.plan.changes
    assert changed.reason == "register tenth, half, third in RULES"


CONFLICT = "<<<<<<< HEAD\n{ours}=======\n{theirs}>>>>>>> branch\n"


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("path", "line", "number"),
    [
        ("shop/rules/registry.py", '    "free": "shop.rules.free:free_rule",\n', 7),
        ("docs/extensions.md", "| `free` | nothing costs anything |\n", 6),
    ],
)
@pytest.mark.parametrize("command", [("rule", "fifth_off"), ("undo", "rule", "half_off")])
def test_a_file_with_conflict_markers_is_refused_by_its_lines(made, path, line, number, command):
    made.edit(path, line, CONFLICT.format(ours=line, theirs=line.upper()))
    before = made.tree()
    with pytest.raises(MergeConflictError, match=f"conflict markers in line {number}; nothing was written") as caught:
        made.call(*command)
    assert (caught.value.where, caught.value.fix) == (f"{path}:{number}", "resolve the conflict first")
    assert made.tree() == before
