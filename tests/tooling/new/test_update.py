"""Updating a unit: changes of template, answers and user come together, and nothing of the user's is lost."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tooling.cli.errors import ChecksFailedError, ConflictError, MergeConflictError, UsageError
from tooling.kit.change.plan import sha256
from tooling.kit.receipts import read_receipt
from tooling.new.commands.rename import plan_rename
from tooling.new.commands.update import plan_update, plan_update_all

MODULE = "shop/rules/half_off.py"
TEST = "tests/test_half_off.py"
REGISTRY = "shop/rules/registry.py"
RECEIPT = ".areal/receipts/rule/half_off.json"
MANIFEST = "templates/rule/template.toml"
QUESTIONS = "templates/rule/copier.yml"


def update(world, name="half_off", **options):
    unit = plan_update(world.project, "rule", name, **options)
    world.apply(unit)
    return unit


def improve_template(world):
    """A change of the template in one line that users leave alone."""
    world.edit(
        world.module_template, '"""Takes {{ percent }} percent off."""', '"""Lowers by {{ percent }} percent."""'
    )


def test_an_unchanged_template_gives_an_empty_plan(made):
    unit = plan_update(made.project, "rule", "half_off")
    assert not unit.plan
    assert unit.exit_code == 0


def test_a_pristine_unit_becomes_what_the_template_makes_now(made):
    improve_template(made)
    unit = update(made)
    assert "Lowers by 10 percent." in made.read(MODULE)
    receipt = read_receipt(made.root, "rule", "half_off")
    assert receipt.files[MODULE].sha256 == sha256((made.root / MODULE).read_bytes())
    assert receipt.template.tree == unit.receipt.template.tree
    assert not plan_update(made.project, "rule", "half_off").plan
    made.git("checkout", "--quiet", "templates")


def test_edits_and_changes_of_the_template_are_both_kept(made):
    made.edit(MODULE, "    return result", "    return max(result, 0.0)")
    improve_template(made)
    unit = update(made)
    assert unit.exit_code == 0
    text = made.read(MODULE)
    assert "Lowers by 10 percent." in text
    assert "return max(result, 0.0)" in text
    assert [check.name for check in unit.checks].count("ruff-check") == 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("where", ["collected garbage", "linked", "sha256"])
def test_updates_work_when_neither_template_was_ever_committed(world, tmp_path, where):
    here = world
    if where == "linked":
        world.git("worktree", "add", "--quiet", str(tmp_path / "linked"))
        here = type(world)(tmp_path / "linked")
    elif where == "sha256":
        shutil.rmtree(world.root / ".git")
        world.git("init", "--quiet", "--object-format=sha256")
        world.commit("start")
    here.edit(here.module_template, "percent off.", "percent away.")
    unit = here.generate()
    assert len(unit.receipt.template.tree) == (64 if where == "sha256" else 40)
    assert [status.template for status in here.units()] == ["current"]
    here.edit(MODULE, "    return result", "    return max(result, 0.0)")
    here.edit(here.module_template, "Takes {{ percent }} percent away.", "Never committed.")
    if where == "collected garbage":
        here.git("gc", "--quiet", "--prune=now")
    assert update(here).exit_code == 0
    assert "Never committed." in here.read(MODULE)
    assert "return max(result, 0.0)" in here.read(MODULE)


def test_lines_changed_on_both_sides_get_markers_and_exit_code_5(made):
    made.edit(MODULE, "Takes 10 percent off.", "Takes a tenth off.")
    improve_template(made)
    unit = update(made)
    assert unit.exit_code == 5
    assert unit.conflicts == [MODULE]
    text = made.read(MODULE)
    for part in ("<<<<<<< yours", "Takes a tenth off.", "||||||| template before", "Lowers by", ">>>>>>> template now"):
        assert part in text
    assert read_receipt(made.root, "rule", "half_off").template.tree == unit.receipt.template.tree


def test_conflicts_that_nobody_resolved_are_told_again_and_stop_the_next_merge(made):
    made.edit(MODULE, "Takes 10 percent off.", "Takes a tenth off.")
    improve_template(made)
    update(made)
    again = plan_update(made.project, "rule", "half_off")
    assert (bool(again.plan), again.exit_code, again.conflicts) == (False, 5, [MODULE])
    before = made.tree()
    with pytest.raises(MergeConflictError, match="earlier merge") as caught:
        plan_update(made.project, "rule", "half_off", answers={"percent": 20})
    assert caught.value.where == MODULE
    with pytest.raises(MergeConflictError):
        plan_rename(made.project, "rule", "half_off", "quarter_off")
    assert made.tree() == before
    resolved = [line for line in made.read(MODULE).splitlines() if not line.startswith(("<", "|", "=", ">"))]
    kept = [line for line in resolved if "percent off" not in line and "Lowers by" not in line]
    made.write(MODULE, "\n".join(kept) + "\n")
    assert plan_update(made.project, "rule", "half_off").exit_code == 0
    assert update(made, answers={"style": "rounded"}).exit_code == 0
    assert "Takes a tenth off." in made.read(MODULE)
    assert "round(result, 2)" in made.read(MODULE)


def test_new_answers_are_merged_like_a_new_template(made):
    made.edit(MODULE, "    return result", "    return max(result, 0.0)")
    unit = update(made, answers={"percent": 25})
    assert unit.exit_code == 0
    assert "(100 - 25)" in made.read(MODULE)
    assert "return max(result, 0.0)" in made.read(MODULE)
    assert read_receipt(made.root, "rule", "half_off").answers["percent"] == 25
    assert not plan_update(made.project, "rule", "half_off", answers={"percent": 25}).plan


def test_an_answer_to_no_question_is_refused(made):
    with pytest.raises(UsageError, match="percent"):
        plan_update(made.project, "rule", "half_off", answers={"precent": 25})


def test_old_answers_stay_and_new_questions_get_their_defaults(world):
    world.generate(percent=25)
    world.write(QUESTIONS, world.read(QUESTIONS) + "\nfloor:\n  type: float\n  default: 0.0\n  help: never below\n")
    world.edit(world.module_template, "    return result", "    return max(result, {{ floor }})")
    update(world)
    assert "return max(result, 0.0)" in world.read(MODULE)
    assert "(100 - 25)" in world.read(MODULE)
    assert read_receipt(world.root, "rule", "half_off").answers["floor"] == 0.0


@pytest.mark.exhaustive
def test_an_answer_the_template_no_longer_asks_for_is_dropped_with_a_warning(world):
    world.generate(style="rounded")
    text = world.read(QUESTIONS)
    start, end = text.index("style:"), text.index("summary:")
    world.write(QUESTIONS, text[:start] + text[end:])
    template = world.read(world.module_template)
    start, end = template.index('{%- if style == "rounded" %}'), template.index("    return result")
    world.write(world.module_template, template[: start - 1] + "\n" + template[end:])
    unit = update(world)
    assert any("no longer asks for 'style'" in warning for warning in unit.warnings)
    assert "style" not in read_receipt(world.root, "rule", "half_off").answers
    assert "round(" not in world.read(MODULE)


@pytest.mark.exhaustive
def test_an_old_answer_that_is_no_longer_allowed_asks_for_a_new_one(world):
    world.generate(percent=90)
    world.edit(QUESTIONS, "percent > 100 %}at most 100", "percent > 50 %}at most 50")
    with pytest.raises(UsageError, match="at most 50"):
        plan_update(world.project, "rule", "half_off")
    update(world, answers={"percent": 40})
    assert "(100 - 40)" in world.read(MODULE)


def test_a_file_that_the_user_deleted_stays_deleted(made):
    (made.root / TEST).unlink()
    improve_template(made)
    made.edit(made.test_template, "200.0 - 2.0", "200.0 - 1.0 * 2.0")
    unit = update(made)
    assert not (made.root / TEST).exists()
    assert unit.tests == ()


def add_notes_file(world):
    world.write("templates/rule/template/docs/{{ snake }}.md.jinja", "# {{ words }}\n")
    world.edit(
        MANIFEST,
        "[[registry]]",
        '[[files]]\npath = "docs/{{ snake }}.md"\npurpose = "notes"\n\n[[registry]]',
    )


def test_a_file_that_is_new_in_the_template_is_added_to_the_unit(made):
    add_notes_file(made)
    update(made)
    assert made.read("docs/half_off.md") == "# half off\n"
    assert "docs/half_off.md" in read_receipt(made.root, "rule", "half_off").files


def test_a_new_file_never_overwrites_one_of_the_users(made):
    add_notes_file(made)
    made.write("docs/half_off.md", "mine\n")
    with pytest.raises(ConflictError, match="does not belong to the unit"):
        plan_update(made.project, "rule", "half_off")


def drop_test_file(world):
    (world.root / world.test_template).unlink()
    text = world.read(MANIFEST)
    start, end = text.index('[[files]]\npath = "{{ tests }}'), text.index("[[registry]]")
    world.write(MANIFEST, text[:start] + text[end:])


def test_a_pristine_file_that_left_the_template_goes(made):
    drop_test_file(made)
    update(made)
    assert not (made.root / TEST).exists()
    assert set(read_receipt(made.root, "rule", "half_off").files) == {MODULE}


def test_an_edited_file_that_left_the_template_stays_and_is_reported(made):
    made.edit(TEST, "200.0", "400.0")
    drop_test_file(made)
    unit = update(made)
    assert unit.exit_code == 4
    assert [item.path for item in unit.kept] == [TEST]
    assert "400.0" in made.read(TEST)
    assert set(read_receipt(made.root, "rule", "half_off").files) == {MODULE}


def test_a_file_that_the_template_renamed_moves_with_its_edits(made):
    made.edit(TEST, "200.0) ==", "400.0 - 200.0) ==")
    new = "templates/rule/template/{{ tests }}/rules/{{ snake }}_test.py.jinja"
    (made.root / new).parent.mkdir(parents=True)
    (made.root / made.test_template).rename(made.root / new)
    made.edit(MANIFEST, "{{ tests }}/test_{{ snake }}.py", "{{ tests }}/rules/{{ snake }}_test.py")
    old_name, new_name = (path.removeprefix("templates/rule/") for path in (made.test_template, new))
    made.write(MANIFEST, made.read(MANIFEST) + f'\n[renames]\n"{old_name}" = "{new_name}"\n')
    unit = update(made)
    assert unit.exit_code == 0
    assert not (made.root / TEST).exists()
    assert "400.0 - 200.0" in made.read("tests/rules/half_off_test.py")
    assert unit.tests == ("tests/rules/half_off_test.py",)


def test_registry_entries_and_document_lines_move_when_the_template_changes_them(made):
    made.edit(MANIFEST, ':{{ snake }}_rule"', ':{{ snake }}_price_rule"')
    made.edit(MANIFEST, 'symbols = ["{{ snake }}_rule"]', 'symbols = ["{{ snake }}_price_rule"]')
    made.edit(MANIFEST, "| {{ summary }} |", "| {{ summary }}! |")
    made.edit(made.module_template, "def {{ snake }}_rule", "def {{ snake }}_price_rule")
    made.write(made.test_template, made.read(made.test_template).replace("_rule", "_price_rule"))
    unit = update(made)
    assert '"half_off": "shop.rules.half_off:half_off_price_rule",' in made.read(REGISTRY)
    assert made.read(REGISTRY).count("half_off") == 3
    assert "| `half_off` | half off, a rule! |" in made.read("docs/extensions.md")
    assert sorted(item.action for item in unit.registered) == ["add", "add", "remove", "remove"]


def test_an_entry_that_the_user_removed_is_not_put_back(made):
    made.edit(REGISTRY, '    "half_off": "shop.rules.half_off:half_off_rule",\n', "")
    registry = made.read(REGISTRY)
    improve_template(made)
    update(made)
    assert made.read(REGISTRY) == registry


def test_a_unit_generated_without_registering_stays_out_of_registries(world):
    world.apply(world.plan(register=False))
    registry = world.read(REGISTRY)
    world.edit(MANIFEST, ':{{ snake }}_rule"', ':{{ snake }}_other"')
    update(world)
    assert world.read(REGISTRY) == registry


@pytest.mark.exhaustive
def test_what_an_undo_kept_does_not_bring_the_rest_back(world):
    from tooling.new.commands.undo import plan_undo

    world.generate()
    world.edit(MODULE, "    return result", "    return max(result, 0.0)")
    world.apply(plan_undo(world.project, "rule", "half_off"))
    improve_template(world)
    update(world)
    assert "Lowers by" in world.read(MODULE)
    assert not (world.root / TEST).exists()
    assert "half_off" not in world.read(REGISTRY)


def test_a_merge_that_fits_together_as_text_but_not_as_code_is_refused(made):
    made.edit(MODULE, "    return result", "    return result + 0.0 * price")
    made.edit(made.module_template, "def {{ snake }}_rule(price: float)", "def {{ snake }}_rule(cost: float)")
    made.edit(made.module_template, "result = price *", "result = cost *")
    with pytest.raises(ChecksFailedError, match="do not fit together") as caught:
        plan_update(made.project, "rule", "half_off")
    assert "\n" not in str(caught.value)
    assert any(not check.ok and check.detail for check in caught.value.checks)


def test_code_that_was_broken_before_the_update_is_only_a_warning(made):
    made.edit(MODULE, "    return result", "    return reslut")
    improve_template(made)
    unit = update(made)
    assert any("F821" in warning for warning in unit.warnings)
    assert "Lowers by" in made.read(MODULE)


def test_all_units_are_updated_in_one_plan(made):
    made.generate("quarter_off")
    made.edit(MANIFEST, "| {{ summary }} |", "| {{ summary }}! |")
    improve_template(made)
    unit = plan_update_all(made.project)
    made.apply(unit)
    assert "Lowers by" in made.read(MODULE)
    assert "Lowers by" in made.read("shop/rules/quarter_off.py")
    assert made.read("docs/extensions.md").count("a rule! |") == 2
    assert not plan_update_all(made.project, "rule").plan


def test_a_misspelt_kind_is_no_empty_set_of_units(world):
    with pytest.raises(UsageError, match="there is no kind 'rul'") as caught:
        plan_update_all(world.project, "rul")
    assert "'rule'" in caught.value.fix


def test_all_or_none_and_the_failing_unit_is_named(world):
    world.generate("half_off", percent=90)
    world.generate("quarter_off")
    world.edit(QUESTIONS, "percent > 100 %}at most 100", "percent > 50 %}at most 50")
    with pytest.raises(UsageError, match="rule half_off: "):
        plan_update_all(world.project)


# ------------------------------------------------------------------------------------------------- the merge base


def forget_old_template(world):
    """As in a clone that never had the tree: the reference goes, and with it the objects."""
    for line in world.git("for-each-ref", "--format=%(refname)", "refs/areal-new").split():
        world.git("update-ref", "-d", line)
    world.git("reflog", "expire", "--expire=now", "--all")
    world.git("gc", "--quiet", "--prune=now")


def generate_from_lost_template(world):
    world.edit(world.module_template, "percent off.", "percent away.")
    world.generate()
    forget_old_template(world)
    world.edit(world.module_template, "Takes {{ percent }} percent away.", "New words.")


@pytest.mark.exhaustive
def test_without_the_old_template_a_pristine_file_is_its_own_base(world):
    generate_from_lost_template(world)
    assert update(world).exit_code == 0
    assert "New words." in world.read(MODULE)


@pytest.mark.exhaustive
def test_without_the_old_template_the_history_of_the_file_is_the_base(world):
    world.edit(world.module_template, "percent off.", "percent away.")
    world.generate()
    world.git("add", "shop", "tests", ".areal", "docs")
    world.git("commit", "--quiet", "--message", "a unit, but not its template")
    world.edit(MODULE, "    return result", "    return max(result, 0.0)")
    forget_old_template(world)
    world.edit(world.module_template, "Takes {{ percent }} percent away.", "New words.")
    assert update(world).exit_code == 0
    assert "New words." in world.read(MODULE)
    assert "return max(result, 0.0)" in world.read(MODULE)


def test_without_any_base_the_update_says_what_is_missing(world):
    generate_from_lost_template(world)
    world.edit(MODULE, "    return result", "    return max(result, 0.0)")
    before = world.tree()
    with pytest.raises(UsageError, match="not in this repository, and no commit holds the file") as caught:
        plan_update(world.project, "rule", "half_off")
    assert caught.value.where == MODULE
    assert world.tree() == before


@pytest.mark.exhaustive
def test_in_a_shallow_clone_the_way_out_is_named(world, tmp_path):
    world.edit(world.module_template, "percent off.", "percent away.")
    world.generate()
    world.commit("unit with its template")
    world.edit(world.module_template, "Takes {{ percent }} percent away.", "New words.")
    world.edit(MODULE, "    return result", "    return max(result, 0.0)")
    world.commit("newer template, edited unit")
    clone = tmp_path / "clone"
    subprocess.run(
        ["git", "clone", "--quiet", "--depth=1", f"file://{world.root}", str(clone)], check=True, capture_output=True
    )
    shallow = type(world)(clone)
    with pytest.raises(UsageError) as caught:
        plan_update(shallow.project, "rule", "half_off")
    assert "git fetch --unshallow" in caught.value.fix
    shallow.git("fetch", "--quiet", "--unshallow")
    assert update(shallow).exit_code == 0
    assert "New words." in shallow.read(MODULE)


@pytest.mark.exhaustive
def test_another_formatting_now_than_then_is_merged_with_a_warning(world):
    long = "result = price * (100 - {{ percent }}) / 100"
    world.edit(
        world.module_template, long, "result = max(price * (100 - {{ percent }}) / 100, price * 0.0, price * -0.0)"
    )
    world.generate()
    world.edit(MODULE, "    return result", "    return abs(result)")
    world.edit("pyproject.toml", "line-length = 100", "line-length = 60")
    improve_template(world)
    unit = update(world)
    assert any("gives other bytes" in warning for warning in unit.warnings)
    assert "return abs(result)" in world.read(MODULE)


def test_without_its_kind_a_unit_cannot_be_updated_and_the_message_says_so(made):
    shutil.rmtree(made.root / "templates/rule")
    with pytest.raises(UsageError, match="no kind 'rule'"):
        plan_update(made.project, "rule", "half_off")
