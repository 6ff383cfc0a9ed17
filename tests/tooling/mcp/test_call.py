"""Arguments become words: whatever they hold, they are values of the command and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tooling.cli.errors import UsageError
from tooling.commit.__main__ import PROGRAM as COMMIT
from tooling.mcp.tools.call import make_call
from tooling.mcp.tools.table import offered

TOOLS = offered(writes=True).tools
HOSTILE = [
    "--force",
    "-f",
    "---",
    "--json",
    "; rm -rf .",
    "$(reboot)",
    "`id`",
    "a\nb",
    "x\x00y",
    "..",
    "'",
    '"',
    "\\",
    "*",
]


def words_of(name, root, /, **arguments):
    return make_call(TOOLS[name], arguments, root).words


def refusal(name, root, /, **arguments):
    with pytest.raises(UsageError) as caught:
        make_call(TOOLS[name], arguments, root)
    return caught.value


def test_a_call_is_the_command_with_json_and_the_repository(tmp_path):
    assert words_of("commit_check", tmp_path, range="main..HEAD", strict=True) == (
        "check", "--json", f"--repo={tmp_path}", "--strict", "--", "main..HEAD",
    )  # fmt: skip


def test_a_kind_stands_in_front_and_answers_go_to_standard_input(tmp_path):
    call = make_call(TOOLS["new_plan"], {"kind": "reward", "name": "digits", "answers": {"style": "boxed"}}, tmp_path)
    assert call.words == ("reward", "--dry-run", "--json", f"--repo={tmp_path}", "--answers=-", "--", "digits")
    assert call.input == '{"style": "boxed"}'


def test_switches_that_are_false_are_left_out(tmp_path):
    assert words_of("harness_sync", tmp_path, overwrite=False, diff=True) == (
        "sync", "--json", f"--repo={tmp_path}", "--diff",
    )  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_stays_the_value_of_its_option(tmp_path, text):
    words = words_of("commit_check", tmp_path, message=text)
    assert words == ("check", "--json", f"--repo={tmp_path}", f"--message={text}")
    assert COMMIT.parser("check").read(words[1:]).message == text


@given(text=st.text(min_size=1, max_size=200))
def test_any_text_that_is_let_through_as_a_word_is_that_word(tmp_path_factory, text):
    root = tmp_path_factory.getbasetemp()
    try:
        words = words_of("commit_check", root, range=text)
    except UsageError:
        return
    arguments = COMMIT.parser("check").read(words[1:])
    assert (arguments.target, arguments.message, arguments.strict) == (text, None, False)


@pytest.mark.parametrize("text", ["--force", "-f", "--", "", " x", "a\nb", "a\n", "x\x00y"])
@pytest.mark.parametrize(("name", "argument"), [("commit_check", "range"), ("review_rules", "rule")])
def test_a_word_that_could_be_taken_for_something_else_is_refused(tmp_path, name, argument, text):
    error = refusal(name, tmp_path, **{argument: text})
    assert error.where == argument
    assert error.fix.startswith("write ")


@pytest.mark.parametrize("kind", ["undo", "apply", "recover", "../x", "Reward", "reward\n", "--force", "a b"])
def test_another_command_is_no_kind(tmp_path, kind):
    assert refusal("new_apply", tmp_path, kind=kind, name="x").where == "kind"


@pytest.mark.parametrize(
    "request_", ["--help", "torch", "torch==2.9 --fix", "torch==2.9\n", "torch==2.9;id", "../x==1"]
)
def test_a_requirement_is_a_package_and_a_version(tmp_path, request_):
    assert refusal("upgrade_impact", tmp_path, requests=[request_]).where == "requests.0"


def test_a_path_leads_into_the_repository(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "link").symlink_to(outside)
    for path in ["../outside", str(outside), "link", "link/rows.jsonl", "a/../../outside"]:
        error = refusal("new_plan", root, kind="dataset", name="x", **{"from": path})
        assert "lies outside of the repository" in error.message
    assert "--from=rows.jsonl" in words_of("new_plan", root, kind="dataset", name="x", **{"from": "rows.jsonl"})
    assert f"--from={root}/rows" in words_of("new_plan", root, kind="dataset", name="x", **{"from": f"{root}/rows"})


def test_a_revision_is_no_file(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    for secret in (root / "secret", tmp_path / "secret"):
        secret.write_text("x", encoding="utf-8")
    for text in ["secret", "../secret", str(tmp_path / "secret"), "/nowhere"]:
        assert "is a file" in refusal("commit_check", root, range=text).message


def test_dashes_alone_are_refused_everywhere(tmp_path):
    assert refusal("commit_check", tmp_path, message="--").where == "message"
    assert refusal("commit_check", tmp_path, range="--").where == "range"


def test_an_argument_that_is_unknown_missing_or_of_another_type_is_named(tmp_path):
    unknown = refusal("new_plan", tmp_path, kind="reward", nam="x")
    assert (unknown.where, unknown.fix) == ("nam", "did you mean 'name'?")
    assert refusal("new_plan", tmp_path).where == "kind"
    assert refusal("commit_check", tmp_path, message=5).fix == "give a value of type string"
    assert refusal("commit_check", tmp_path, strict="yes").where == "strict"
    assert refusal("review", tmp_path, fail_on="bad").fix == "one of low, medium, high, critical, never"
    assert refusal("upgrade_impact", tmp_path, requests=[]).fix == "give at least one item"
    assert refusal("new_status", tmp_path, name="x").message == "name needs kind"


def test_what_is_huge_is_refused_with_its_size(tmp_path):
    error = refusal("commit_check", tmp_path, message="x" * 1_000_000)
    assert "(1000000 characters)" in error.message
    assert len(str(error)) < 400
    assert "1000010 characters" in refusal("new_plan", tmp_path, kind="reward", answers={"x": "y" * 1_000_001}).message
    assert refusal("upgrade_impact", tmp_path, requests=["a==1"] * 101).where == "requests"
    assert refusal("new_plan", tmp_path, kind="dataset", **{"from": "x/" * 490 + "y" * 300}).where == "from"
