"""Undoing a unit: the tree is as it was, edits are never lost, and what could not go is reported."""

from __future__ import annotations

import pytest

from tooling.cli.errors import ConflictError, UsageError, WriteError
from tooling.kit.receipts import read_receipt
from tooling.new.commands.undo import plan_undo

MODULE = "shop/rules/half_off.py"
TEST = "tests/test_half_off.py"
REGISTRY = "shop/rules/registry.py"
RECEIPT = ".areal/receipts/rule/half_off.json"


def undo(world, name="half_off", **options):
    unit = plan_undo(world.project, "rule", name, **options)
    return unit, world.apply(unit)


def test_generate_and_undo_leave_the_tree_as_it_was_byte_for_byte(world):
    before = world.tree()
    world.generate()
    unit, outcome = undo(world)
    assert world.tree() == before
    assert world.status() == ""
    assert (unit.exit_code, unit.kept, unit.receipt, outcome.backup) == (0, [], None, None)
    assert [(item.key, item.action) for item in unit.registered] == [("half_off", "remove")] * 2


@pytest.mark.parametrize("name", ["half-off", "HalfOff", "half.off"])
def test_any_spelling_of_the_name_finds_the_unit(made, name):
    assert plan_undo(made.project, "rule", name).plan


def test_crlf_registries_and_documents_come_back_byte_for_byte(world):
    for path in (REGISTRY, "docs/extensions.md"):
        world.write(path, world.read(path).replace("\n", "\r\n"))
    before = world.tree()
    world.generate()
    assert b'_off_rule",\r\n' in (world.root / REGISTRY).read_bytes()
    undo(world)
    assert world.tree() == before


def test_an_edited_file_is_kept_and_reported_and_the_rest_goes(made):
    made.edit(MODULE, "return result", "return max(result, 0.0)")
    edited = made.read(MODULE)
    unit, _ = undo(made)
    assert unit.exit_code == 4
    assert [item.path for item in unit.kept] == [MODULE]
    assert made.read(MODULE) == edited
    assert not (made.root / TEST).exists()
    assert "half_off" not in made.read(REGISTRY)
    assert "half_off" not in made.read("docs/extensions.md")
    left = read_receipt(made.root, "rule", "half_off")
    assert set(left.files) == {MODULE}
    assert (left.entries, left.documents) == ((), ())


def test_what_was_kept_can_be_forced_away_later_into_a_backup(world):
    before = world.tree()
    world.generate()
    world.edit(MODULE, "return result", "return max(result, 0.0)")
    edited = world.read(MODULE)
    undo(world)
    unit, outcome = undo(world, force=True)
    assert unit.exit_code == 0
    assert world.tree() == before
    assert outcome.backup.is_relative_to(world.root / ".git/areal-new/backup")
    assert (outcome.backup / MODULE).read_text(encoding="utf-8") == edited
    assert world.status() == ""


def test_two_forced_undos_in_a_second_keep_both_backups(world):
    backups = []
    for text in ("first", "second"):
        world.generate()
        world.write(MODULE, text)
        backups.append(undo(world, force=True)[1].backup)
    assert [(backup / MODULE).read_text(encoding="utf-8") for backup in backups] == ["first", "second"]


def test_after_a_kept_file_the_unit_can_be_generated_again(world):
    world.generate()
    complete = world.tree()
    world.edit(MODULE, "return result", "return max(result, 0.0)")
    edited = world.read(MODULE)
    undo(world)
    world.generate()
    assert world.read(MODULE) == edited
    mode, _ = complete[MODULE]
    assert world.tree() == complete | {MODULE: (mode, edited.encode())}


def test_a_registry_entry_that_somebody_changed_is_kept_and_reported(made):
    made.edit(REGISTRY, "shop.rules.half_off:half_off_rule", "shop.other:rule")
    unit, _ = undo(made)
    assert unit.exit_code == 4
    assert [(item.path, "changed since" in item.reason) for item in unit.kept] == [(REGISTRY, True)]
    assert "shop.other:rule" in made.read(REGISTRY)
    assert not (made.root / MODULE).exists()
    assert [entry.key for entry in read_receipt(made.root, "rule", "half_off").entries] == ["half_off"]
    forced, _ = undo(made, force=True)
    assert forced.exit_code == 0
    assert "shop.other:rule" in made.read(REGISTRY)
    assert not (made.root / RECEIPT).exists()


def test_a_document_line_that_somebody_changed_is_kept_and_reported(made):
    made.edit("docs/extensions.md", "half off, a rule", "a fine rule")
    unit, _ = undo(made)
    assert [item.path for item in unit.kept] == ["docs/extensions.md"]
    assert "a fine rule" in made.read("docs/extensions.md")


def test_a_registry_that_cannot_be_read_any_more_does_not_block_the_rest(made):
    made.edit(REGISTRY, "RULES: Final[dict[str, str]] = {", "RULES: Final[dict[str, str]] = {**{}, ")
    unit, _ = undo(made)
    assert [item.path for item in unit.kept] == [REGISTRY]
    assert not (made.root / MODULE).exists()


def test_files_and_entries_that_are_gone_already_are_fine(world):
    before = world.tree()
    world.generate()
    (world.root / MODULE).unlink()
    world.edit(REGISTRY, '    "half_off": "shop.rules.half_off:half_off_rule",\n', "")
    unit, _ = undo(world)
    assert unit.exit_code == 0
    assert world.tree() == before
    world.generate()
    (world.root / REGISTRY).unlink()
    (world.root / "docs/extensions.md").unlink()
    assert undo(world)[0].exit_code == 0


def test_a_link_in_the_place_of_a_file_is_not_followed(made, tmp_path):
    precious = tmp_path / "precious.py"
    precious.write_text("mine", encoding="utf-8")
    (made.root / MODULE).unlink()
    (made.root / MODULE).symlink_to(precious)
    unit, _ = undo(made, force=True)
    assert [item.path for item in unit.kept] == [MODULE]
    assert precious.read_text(encoding="utf-8") == "mine"


def test_folders_of_others_and_empty_folders_stay(world):
    world.write("tests/other.py", "x = 1\n")
    (world.root / "shop/rules/empty").mkdir()
    before = world.tree()
    world.generate()
    undo(world)
    assert world.tree() == before


def test_an_entry_that_stood_there_before_survives(world):
    world.edit(REGISTRY, '    "zero"', '    "half_off": "shop.rules.half_off:half_off_rule",\n    "zero"')
    before = world.tree()
    world.generate()
    undo(world)
    assert world.tree() == before


def test_a_unit_that_was_not_generated_is_named_with_the_nearest_one(made):
    with pytest.raises(UsageError, match="no rule 'half_of'") as caught:
        plan_undo(made.project, "rule", "half_of")
    assert "half_off" in caught.value.fix
    with pytest.raises(UsageError, match="was generated"):
        plan_undo(made.project, "rule", "../../etc/passwd")


def test_a_misspelt_kind_is_told_before_the_name(world):
    with pytest.raises(UsageError, match="there is no kind 'rul'") as caught:
        plan_undo(world.project, "rul", "half_off")
    assert "'rule'" in caught.value.fix


def test_a_failed_undo_leaves_no_backup_behind(made):
    made.edit(MODULE, "return result", "return max(result, 0.0)")
    unit = plan_undo(made.project, "rule", "half_off", force=True)
    made.edit(MODULE, "max", "min")
    with pytest.raises(ConflictError, match="changed since"):
        made.apply(unit)
    assert list((made.root / ".git/areal-new/backup").iterdir()) == []


def test_a_backup_that_cannot_be_written_stops_the_undo(made):
    made.edit(MODULE, "return result", "return max(result, 0.0)")
    before = made.tree()
    made.write(".git/areal-new/backup", "a file in the way")
    with pytest.raises(WriteError, match="backup"):
        undo(made, force=True)
    assert made.tree() == before
