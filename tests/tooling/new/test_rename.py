"""Renaming a unit: everything of it moves, edits survive, and what names it elsewhere is found."""

from __future__ import annotations

import shutil

import pytest

from tooling.cli.errors import ConflictError, NameRefusedError, UsageError
from tooling.kit.receipts import read_receipt
from tooling.new.commands.rename import plan_rename
from tooling.new.commands.undo import plan_undo
from tooling.new.merging import Rewriting

OLD, NEW = "shop/rules/half_off.py", "shop/rules/half_price.py"
OLD_TEST, NEW_TEST = "tests/test_half_off.py", "tests/test_half_price.py"
REGISTRY = "shop/rules/registry.py"


def rename(world, old="half_off", new="half_price", **options):
    unit = plan_rename(world.project, "rule", old, new, **options)
    world.apply(unit)
    return unit


def test_a_renamed_unit_is_as_if_it_had_been_generated_under_the_new_name(world):
    world.generate("half_price")
    expected = world.tree()
    world.apply(plan_undo(world.project, "rule", "half_price"))
    world.generate("half_off")
    unit = rename(world)
    assert world.tree() == expected
    assert unit.exit_code == 0
    assert unit.references == ()


def test_edits_move_along_and_use_the_new_name(made):
    made.edit(OLD, "def half_off_rule(price: float)", "def half_off_rule(price: float, floor: float = 0.0)")
    made.edit(OLD, "    return result", "    return max(result, floor)")
    made.write(OLD, made.read(OLD) + "\n\nDEFAULT = half_off_rule\n")
    unit = rename(made)
    assert unit.exit_code == 0
    text = made.read(NEW)
    assert "def half_price_rule(price: float, floor: float = 0.0)" in text
    assert "return max(result, floor)" in text
    assert "DEFAULT = half_price_rule" in text
    assert "half_off" not in text
    assert not (made.root / OLD).exists()
    assert not (made.root / OLD_TEST).exists()


@pytest.mark.exhaustive
def test_an_answer_that_was_given_stays_and_a_default_follows_the_name(world):
    world.generate("half_off", summary="my words")
    world.generate("third_off")
    rename(world)
    rename(world, "third_off", "third_price")
    assert read_receipt(world.root, "rule", "half_price").answers["summary"] == "my words"
    assert read_receipt(world.root, "rule", "third_price").answers["summary"] == "third price, a rule"


def test_a_deleted_file_stays_deleted_under_the_new_name(made):
    (made.root / OLD_TEST).unlink()
    unit = rename(made)
    assert not (made.root / NEW_TEST).exists()
    assert unit.tests == ()


def test_a_newer_template_does_not_slip_in(made):
    made.edit(made.module_template, "Takes {{ percent }}", "Now takes {{ percent }}")
    tree = read_receipt(made.root, "rule", "half_off").template.tree
    rename(made)
    assert "Now takes" not in made.read(NEW)
    assert read_receipt(made.root, "rule", "half_price").template.tree == tree


def use_elsewhere(world):
    world.write("shop/cart.py", "from shop.rules.half_off import half_off_rule\n\nPRICE = half_off_rule(2.0)\n")
    world.write("shop/run.yaml", "rule: half_off\nfunction: shop.rules.half_off:half_off_rule\n")
    world.write("README.md", "See `shop/rules/half_off.py`; not half_off_rules or xhalf_off_rule.\n")
    world.write("notes.txt", "half_off_rule is used here\n")
    world.write("data.bin", b"\0half_off_rule")


def test_places_elsewhere_are_reported_with_their_lines(made):
    use_elsewhere(made)
    before = {path: content for path, content in made.tree().items() if path.startswith(("shop/cart", "README"))}
    unit = rename(made)
    assert unit.references == (
        "README.md:1: See `shop/rules/half_off.py`; not half_off_rules or xhalf_off_rule.",
        "notes.txt:1: half_off_rule is used here",
        "shop/cart.py:1: from shop.rules.half_off import half_off_rule",
        "shop/cart.py:3: PRICE = half_off_rule(2.0)",
        "shop/run.yaml:1: rule: half_off",
        "shop/run.yaml:2: function: shop.rules.half_off:half_off_rule",
    )
    assert {path: made.tree()[path] for path in before} == before
    assert "--references" in unit.next_steps[0]


def test_unmistakable_references_are_rewritten_on_request(made):
    use_elsewhere(made)
    unit = rename(made, references=True)
    assert made.read("shop/cart.py") == (
        "from shop.rules.half_price import half_price_rule\n\nPRICE = half_price_rule(2.0)\n"
    )
    assert made.read("shop/run.yaml") == "rule: half_off\nfunction: shop.rules.half_price:half_price_rule\n"
    assert made.read("README.md") == "See `shop/rules/half_price.py`; not half_off_rules or xhalf_off_rule.\n"
    assert made.read("notes.txt") == "half_off_rule is used here\n"
    assert unit.references == ("notes.txt:1: half_off_rule is used here", "shop/run.yaml:1: rule: half_off")


@pytest.mark.exhaustive
def test_what_an_undo_took_out_does_not_come_back_under_the_new_name(made):
    registry, page = made.read("shop/rules/registry.py"), made.read("docs/extensions.md")
    made.edit("shop/rules/half_off.py", "return result", "return result + 0.0")
    made.apply(plan_undo(made.project, "rule", "half_off"))
    before = made.read("shop/rules/registry.py"), made.read("docs/extensions.md")
    assert before != (registry, page)
    unit = plan_rename(made.project, "rule", "half_off", "third_off")
    made.apply(unit)
    assert (made.read("shop/rules/registry.py"), made.read("docs/extensions.md")) == before
    assert (unit.registered, unit.receipt.entries, unit.receipt.documents) == ([], (), ())


def test_an_entry_that_stood_there_before_gets_one_beside_it(world):
    line = '    "half_off": "shop.rules.half_off:half_off_rule",\n'
    world.edit("shop/rules/registry.py", '    "zero"', line + '    "zero"')
    world.generate()
    world.apply(plan_rename(world.project, "rule", "half_off", "third_off"))
    assert line in world.read("shop/rules/registry.py"), "it is not ours to remove"
    assert '"third_off": "shop.rules.third_off:third_off_rule"' in world.read("shop/rules/registry.py")


def test_an_entry_that_somebody_changed_is_kept_and_reported(made):
    made.edit(REGISTRY, "shop.rules.half_off:half_off_rule", "shop.other:rule")
    unit = rename(made)
    assert unit.exit_code == 4
    assert '"half_off": "shop.other:rule"' in made.read(REGISTRY)
    assert '"half_price": "shop.rules.half_price:half_price_rule"' in made.read(REGISTRY)


@pytest.mark.sample(2)
@pytest.mark.parametrize("new", ["free", "FREE", "registry", "class", "../x"])
def test_a_new_name_that_is_taken_or_no_name_is_refused(made, new):
    before = made.tree()
    with pytest.raises((NameRefusedError, ConflictError)):
        plan_rename(made.project, "rule", "half_off", new)
    assert made.tree() == before


def test_the_same_name_and_another_units_name_are_refused(made):
    made.generate("third_off")
    with pytest.raises(UsageError, match="already"):
        plan_rename(made.project, "rule", "half_off", "Half-Off")
    with pytest.raises(ConflictError, match="third_off"):
        plan_rename(made.project, "rule", "half_off", "third_off")


@pytest.mark.exhaustive
def test_a_name_that_differs_from_the_old_one_only_in_separators_is_fine(made):
    rename(made, "half_off", "halfoff")
    assert (made.root / "shop/rules/halfoff.py").exists()
    assert not (made.root / OLD).exists()


def test_a_file_in_the_way_is_a_conflict(made):
    made.write(NEW, "x = 1\n")
    with pytest.raises(ConflictError):
        plan_rename(made.project, "rule", "half_off", "half_price")


def test_a_unit_whose_kind_is_gone_can_be_renamed_from_git(made):
    shutil.rmtree(made.root / "templates/rule")
    rename(made)
    assert "def half_price_rule" in made.read(NEW)


def test_without_the_old_template_the_message_says_what_to_do(world):
    world.edit(world.module_template, "percent off.", "percent away.")
    world.generate()
    for line in world.git("for-each-ref", "--format=%(refname)", "refs/areal-new").split():
        world.git("update-ref", "-d", line)
    world.git("gc", "--quiet", "--prune=now")
    world.edit(world.module_template, "percent away.", "percent off.")
    with pytest.raises(UsageError, match="not in this repository") as caught:
        plan_rename(world.project, "rule", "half_off", "half_price")
    assert "areal-new update rule half_off" in caught.value.fix


def test_words_are_replaced_whole_and_all_at_once():
    change = Rewriting({"a_rule": "b_rule", "b_rule": "c_rule", "shop.a": "shop.b"}, key="a")
    text = b"a_rule b_rule a_rules x_a_rule shop.a.a_rule myshop.a shop.ab"
    assert change.apply_bytes(text) == b"b_rule c_rule a_rules x_a_rule shop.b.b_rule myshop.a shop.ab"
    assert change.apply_bytes(b"\xff a_rule") == b"\xff a_rule"


@pytest.mark.parametrize("line", ['x["a"]', "rule=a", "rule: a", "`a`", "from shop import a"])
def test_a_key_counts_where_it_is_a_value(line):
    assert Rewriting({}, key="a").is_mentioned(line)


@pytest.mark.parametrize("line", ["a dog", "x: a.b", "f(a)", "y = a_b", "import ab"])
def test_a_key_does_not_count_as_an_ordinary_word(line):
    assert not Rewriting({}, key="a").is_mentioned(line)
