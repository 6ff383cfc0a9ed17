"""`areal-audit` from the command line, and checklists that people or accidents have changed."""

from pathlib import Path

import pytest

from tooling.kit.names import spell
from tooling.kit.receipts import Receipt, ReceiptFile, TemplateReference, read_receipts

ROOT = Path(__file__).resolve().parents[4]
ENGINE = "skills/upgrade-deps/checklists/engine.md"
BEGIN = "<!-- areal-audit:begin entry engine.core.LLM -->"


def drift(world, *words, expect=10):
    rows = world.json(*words, program="audit", expect=expect)["packages"]
    return {(row["distribution"], each["key"], each["what"]) for row in rows for each in row["drift"]}


def test_true_checklists_are_no_news(world):
    assert drift(world, expect=0) == set()
    assert "engine 1.0: 2 files" in world.run("--check", program="audit").stdout


def test_a_new_use_a_lost_use_and_a_missing_file_are_drift_and_written_right(world):
    world.write("shop/more.py", "from engine.utils import Counter\n\n\ndef f():\n    return Counter().step()\n")
    world.write("shop/numbers.py", "")
    found = drift(world)
    assert ("engine", "entry engine.utils.Counter.step", "missing") in found
    assert ("engine", "files", "changed") in found
    assert ("tensor", "file", "stale") in found
    (world.root / ENGINE).unlink()
    assert ("engine", "file", "missing") in drift(world, "engine")
    planned = world.json("--write", "--dry-run", "engine", program="audit")
    assert [each["path"] for each in planned["plan"]] == [ENGINE]
    assert not (world.root / ENGINE).exists()
    world.run("--write", "engine", program="audit")
    assert drift(world, "engine", expect=0) == set()


def test_a_checklist_is_as_true_alone_as_among_all(world):
    """What is passed to a class in one file reaches another one that names only the other package."""
    world.write("shop/held.py", "class Held:\n    def __init__(self, counter):\n        self.counter = counter\n")
    world.write(
        "shop/making.py",
        "from shop.held import Held\n\n\ndef made():\n    from engine.utils import Counter\n\n"
        "    return Held(Counter())\n",
    )
    world.write(
        "shop/asking.py",
        "import tensor\nfrom shop.held import Held\n\n\ndef count(held: Held):\n"
        "    tensor.zeros(held.counter.step())\n",
    )
    world.run("--write", program="audit")
    assert "`shop/asking.py`" in (world.root / ENGINE).read_text()
    assert drift(world, "engine", expect=0) == set()


def test_files_of_generated_units_come_and_go_without_drift(world):
    """After any `areal-new` command the checklists are true as they are; what people write beside a unit counts."""
    world.write("shop/more.py", "from engine.utils import Counter\n\n\ndef f():\n    return Counter().step()\n")
    assert drift(world)
    names = spell("more", "more")
    template = TemplateReference("project", "templates/part", "0" * 40)
    files = {"shop/more.py": ReceiptFile("0" * 64, "a part")}
    unit = Receipt(
        kind="part",
        names=names,
        generator="areal-new",
        template=template,
        answers={},
        package="shop",
        tests="tests",
        files=files,
    )
    world.write(unit.path, unit.to_bytes())
    assert drift(world, expect=0) == set()


def test_the_checklists_of_this_repository_name_no_file_of_a_unit():
    generated = [path for receipt in read_receipts(ROOT) for path in receipt.files]
    checklists = [
        path.read_text(encoding="utf-8") for path in sorted((ROOT / "skills/upgrade-deps/checklists").glob("*"))
    ]
    assert checklists
    assert [path for path in generated for text in checklists if f"`{path}" in text] == []


def test_a_signature_that_changed_is_drift(world):
    world.write("pyproject.toml", world.read("pyproject.toml").replace("engine==1.0", "engine==2.0"))
    (world.root / "uv.lock").unlink()
    found = drift(world, "engine")
    assert ("engine", "entry engine.core.LLM.generate", "changed") in found


DAMAGES = [
    (lambda text: text.replace("<!-- areal-audit:end -->\n", "", 1), "begins a part inside"),
    (lambda text: text.replace(BEGIN + "\n", "", 1), "ends a part that did not begin"),
    (lambda text: text[: text.rindex("<!-- areal-audit:end -->")], "has no end marker"),
    (lambda text: text + f"{BEGIN}\n<!-- areal-audit:end -->\n", "comes twice"),
    (lambda text: text[4:], "frontmatter"),
    (lambda text: "", "frontmatter"),
    (lambda text: "---\nno end", "frontmatter has no end"),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("damage", "said"), [*DAMAGES[:2], *(pytest.param(*row, marks=pytest.mark.exhaustive) for row in DAMAGES[2:])]
)
def test_a_damaged_checklist_is_named_with_its_line_and_left_alone(world, damage, said):
    world.write(ENGINE, damage(world.read(ENGINE)))
    world.commit("damage")
    old = world.tree()
    (row,) = world.json("engine", program="audit", expect=10)["packages"]
    (found,) = row["drift"]
    assert found["what"] == "damaged"
    assert found["path"].startswith(f"{ENGINE}:")
    assert said in found["message"]
    refused = world.json("--write", program="audit", expect=2)
    assert refused["where"] == found["path"]
    assert "areal-audit --write" in refused["fix"]
    upgrade = world.json("engine==2.0", "--fix", expect=2)
    assert upgrade["where"] == found["path"]
    assert (len(upgrade["findings"]), upgrade["fixed"]) == (5, [])
    assert world.tree() == old


def test_a_checklist_that_is_no_text_is_named_not_overwritten(world):
    world.write(ENGINE, b"\xff\xfe\x00")
    assert ("engine", "file", "damaged") in drift(world, "engine")
    world.run("--write", program="audit", expect=2)
    assert (world.root / ENGINE).read_bytes() == b"\xff\xfe\x00"


def test_notes_are_kept_when_everything_around_them_changes(world):
    text = world.read(ENGINE)
    world.write(ENGINE, text.replace(BEGIN, f"Our own words.\n\n{BEGIN}") + "\nAnd some at the end.\n")
    world.write("shop/end.py", "")
    world.run("--write", program="audit")
    after = world.read(ENGINE)
    assert "Our own words.\n" in after
    assert after.endswith("And some at the end.\n")
    assert drift(world, expect=0) == set()


def test_an_edit_inside_a_generated_part_is_drift(world):
    world.write(ENGINE, world.read(ENGINE).replace("- Source: `engine/core.py`", "- Source: `engine/other.py`", 1))
    rows = world.json("engine", program="audit", expect=10)["packages"]
    assert "engine/other.py" in rows[0]["drift"][0]["message"]


def test_a_release_that_cannot_be_had_leaves_signatures_unsaid(world):
    (world.wheels / "engine-1.0-py3-none-any.whl").unlink()
    done = world.json(program="audit", XDG_CACHE_HOME=str(world.folder / "other"))
    rows = {row["distribution"]: row["unseen"] for row in done["packages"]}
    assert rows["tensor"] is None
    assert "1.0" in rows["engine"]
    assert [each for each in done["warnings"] if each.startswith("engine: signatures not compared")]


@pytest.mark.parametrize(
    "words", [["--check", "--write"], ["--fix"], ["engine==1.0"], ["--wait", "x"], ["--repo", "no"]]
)
def test_wrong_arguments_are_refused(world, words):
    done = world.json(*words, program="audit", expect=2)
    assert done["error"]
    assert done["fix"]
