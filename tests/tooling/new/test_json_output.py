"""`--json`: one object on stdout that fits its schema, for success and for every exit code."""

import json
import os
import resource
from pathlib import Path

import jsonschema
import pytest

from tooling.cli.git import find_repository
from tooling.kit.change.lock import repository_lock
from tooling.new.command_line import COMMANDS, EXIT_CODES, main
from tooling.new.commands import kinds as kinds_command

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = json.loads((ROOT / "tooling/new/schemas/output.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def checked(text, expected_code):
    """The one object of an output, which has to fit the schema."""
    found = json.loads(text)
    VALIDATOR.validate(found)
    assert found["exit_code"] == expected_code, found
    return found


def call(run, world, *words, expect):
    """The object that a command prints."""
    done = run(world.root, *words, "--json")
    assert done.code == expect, done.stdout + done.stderr
    return checked(done.stdout, expect)


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_schema_knows_exactly_the_documented_exit_codes():
    assert sorted(SCHEMA["$defs"]["exit_code"]["enum"]) == sorted(EXIT_CODES)


@pytest.mark.parametrize(
    "change",
    [
        {"ok": False},
        {"exit_code": 3},
        {"exit_code": 9},
        {"surprise": 1},
        {"plan": [{"path": "x", "action": "touch", "reason": ""}]},
        {"checks": [{"name": "tests"}]},
        {"error": "but ok"},
    ],
)
def test_the_schema_refuses_what_is_not_documented(world, run, change):
    good = call(run, world, "list", expect=0)
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate({**good, **change})


# ----------------------------------------------------------------------------------------------------------- success


def test_a_generated_unit_is_reported(world, run):
    world.interpreter("echo noise of a child process")
    found = call(run, world, "rule", "half_off", "--percent", "50", "--diff", expect=0)
    assert [change["path"] for change in found["plan"]] == [
        ".areal/receipts/rule/half_off.json",
        "docs/extensions.md",
        "shop/rules/half_off.py",
        "shop/rules/registry.py",
        "tests/test_half_off.py",
    ]
    registry = next(entry for entry in found["registered"] if entry["file"].endswith("registry.py"))
    line = world.read("shop/rules/registry.py").splitlines()[registry["line"] - 1]
    assert line == '    "half_off": "shop.rules.half_off:half_off_rule",'
    assert (registry["table"], registry["key"]) == ("RULES", "half_off")
    assert {check["name"]: check["ok"] for check in found["checks"]} | {"tests": True} == dict.fromkeys(
        [check["name"] for check in found["checks"]], True
    )
    assert any(check["name"] == "tests" for check in found["checks"])
    assert (found["applied"], found["commit"]) == (True, "feat(rules): add half-off")


def test_every_command_answers_with_one_object(world, tmp_path, capsys):
    plan = tmp_path / "plan.json"
    calls = [
        ("rule", "first", "--no-test"),
        ("rule", "second", "--plan-out", plan),
        ("apply", plan),
        ("apply", plan, "--dry-run"),
        ("list",),
        ("status", "rule", "first"),
        ("explain", "rule"),
        ("explain", "rule", "first"),
        ("kinds",),
        ("schema", "rule"),
        ("schema", "output"),
        ("completion", "bash"),
        ("update", "rule", "first", "--percent", "20", "--no-test"),
        ("update", "--all"),
        ("prove", "--all", "--dry-run"),
        ("rename", "rule", "first", "third", "--no-test"),
        ("undo", "rule", "third", "--dry-run", "--diff"),
        ("undo", "rule", "third"),
        ("recover",),
        ("--version",),
        ("--help",),
        ("rule", "--help"),
    ]
    for words in calls:
        code = main([*map(str, words), "--json", "--repo", str(world.root)])
        found = checked(capsys.readouterr().out, 0)
        assert (code, bool(found["command"])) == (0, True), words
    assert {words[0] for words in calls} >= set(COMMANDS)


# ------------------------------------------------------------------------------------------------ every other exit code


def test_exit_1_the_disk_refuses(made, run):
    made.edit("shop/rules/registry.py", "# sorted", "# sorted" + " " * 4000)
    before = made.tree()
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, unlimited[1]))  # enough for the lock, not for a copy of a registry
    try:
        found = call(run, made, "undo", "rule", "half_off", expect=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert found["code"] == "write"
    assert made.tree() == before


def test_exit_1_a_bug_is_reported_with_its_traceback_on_stderr(world, capsys, monkeypatch):
    def broken(invocation):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(kinds_command, "run", broken)
    assert main(["kinds", "--json", "--repo", str(world.root)]) == 1
    captured = capsys.readouterr()
    assert checked(captured.out, 1)["code"] == "internal"
    assert "ZeroDivisionError: division by zero" in captured.err
    assert "Traceback" in captured.err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["rule"], "usage"),
        (["nothing"], "usage"),
        ([], "usage"),
        (["rule", "x", "--percent", "200"], "usage"),
        (["rule", "class"], "name"),
        (["rule", "registry"], "name"),
        (["undo", "rule", "x"], "usage"),
    ],
)
def test_exit_2_wrong_words_and_names(world, words, code, run):
    found = call(run, world, *words, expect=2)
    assert found["code"] == code
    assert found["fix"]


def test_exit_3_a_file_is_in_the_way(world, run):
    world.write("shop/rules/half_off.py", "mine = 1\n")
    found = call(run, world, "rule", "half_off", expect=3)
    assert (found["code"], found["plan"]) == ("conflict", [])
    assert world.read("shop/rules/half_off.py") == "mine = 1\n"


def test_exit_4_an_edited_file_is_kept_and_force_moves_it_to_a_backup(made, run):
    world = made
    world.write("shop/rules/half_off.py", world.read("shop/rules/half_off.py") + "# mine\n")
    found = call(run, world, "undo", "rule", "half_off", expect=4)
    assert found["code"] == "edited"
    assert [item["path"] for item in found["kept"]] == ["shop/rules/half_off.py"]
    assert "--force" in found["fix"]
    forced = call(run, world, "undo", "rule", "half_off", "--force", expect=0)
    assert (Path(forced["backup"]) / "shop/rules/half_off.py").read_text().endswith("# mine\n")
    assert world.status() == ""


def test_exit_5_conflict_markers_are_left(made, run):
    world = made
    world.edit("shop/rules/half_off.py", "Takes 10 percent off.", "Takes a lot off.")
    world.edit(world.module_template, "Takes {{ percent }} percent off.", "Lowers by {{ percent }} percent.")
    found = call(run, world, "update", "rule", "half_off", expect=5)
    assert (found["code"], found["conflicts"]) == ("merge-conflict", ["shop/rules/half_off.py"])
    assert found["applied"] is True
    assert "<<<<<<<" in world.read("shop/rules/half_off.py")


def test_exit_6_the_line_to_paste_is_given(world, run):
    world.edit("shop/rules/registry.py", "RULES: Final[dict[str, str]] = {", "RULES: Final = dict(**{}) | {")
    before = world.tree()
    found = call(run, world, "rule", "half_off", expect=6)
    assert found["code"] == "registry-shape"
    assert found["where"].startswith("shop/rules/registry.py")
    assert '"half_off": "shop.rules.half_off:half_off_rule",' in found["fix"]
    assert world.tree() == before


def test_exit_7_generated_code_that_fails_the_gates_is_not_written(world, run):
    world.edit(world.module_template, "result = price", "unused = undefined\n    result = price")
    world.commit()
    before = world.tree()
    found = call(run, world, "rule", "half_off", expect=7)
    assert found["code"] == "checks-failed"
    assert any(not check["ok"] and "undefined" in check["detail"] for check in found["checks"])
    assert world.tree() == before


def test_exit_75_another_process_is_at_work(world, run):
    with repository_lock(find_repository(world.root), wait_seconds=0):
        found = call(run, world, "rule", "half_off", "--wait", "0", expect=75)
        call(run, world, "rule", "half_off", "--dry-run", expect=0)
    assert found["code"] == "busy"
    assert str(os.getpid()) in found["error"]


def test_exit_130_an_interrupt_during_the_tests_of_a_written_unit(world):
    code, out = world.interrupted("rule", "half_off", "--json")
    found = checked(out, 130)
    assert (code, found["code"], found["applied"]) == (130, "interrupted", True)
    assert found["error"] == "interrupted: the files are written, the proof is not finished"
    assert "`areal-new prove rule half_off` to finish it, or `areal-new undo rule half_off`" in found["fix"]
    assert [(unit["name"], unit["state"]) for unit in found["proofs"]] == [("half_off", "written")]
